#!/usr/bin/env python3
"""Make the pictures that the README shows, in nbs/images/: one from a run of the demonstration, one out of a
finding's stored outputs, one from the package's list of names (tools/rooms.py)."""

import json
import re
from pathlib import Path

import rooms

from ragbench.apps.demo import run_demo
from ragbench.plot.chart import standalone

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "nbs" / "images"


def stored_chart(notebook: Path, title: str) -> str:
    """The chart of that title among the outputs of a notebook."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    shown = ("".join(o.get("data", {}).get("text/html", "")) for c in cells for o in c.get("outputs", ()))
    return next(
        m[0]
        for html in shown
        if f">{title}</title>" in html and (m := re.search(r"<svg.*</svg>", html, re.DOTALL))
    )


if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    table = stored_chart(
        ROOT / "nbs" / "findings" / "chunking_evaluation.ipynb",
        "Which published differences in recall survive",
    )
    (IMAGES / "published_table.svg").write_text(standalone(table), encoding="utf-8")
    (ROOT / rooms.PICTURE).write_text(rooms.draw(), encoding="utf-8")
    run_demo(ROOT / ".ragbench").budget_curve().save(IMAGES / "budget_curve.svg")
    print(*sorted(p.relative_to(ROOT) for p in IMAGES.glob("*.svg")), sep="\n")
