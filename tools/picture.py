#!/usr/bin/env python3
"""Make the picture that the README shows, from a run of the demonstration: nbs/images/budget_curve.svg."""

from pathlib import Path

from ragbench.apps.demo import run_demo

ROOT = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    target = ROOT / "nbs" / "images" / "budget_curve.svg"
    target.parent.mkdir(parents=True, exist_ok=True)
    run_demo(ROOT / ".ragbench").budget_curve().save(target)
    print(target.relative_to(ROOT))
