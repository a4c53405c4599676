#!/usr/bin/env python3
"""Run the notebooks as `nbdev_test` does, and hold what they print to what is stored: an output that is older
than its code fails, as a wrong assertion does. One run serves both, so it costs nothing.

python tools/outputs.py                       all chapters; the flags of nbdev_test: --n_workers, --flags, …
python tools/outputs.py --path nbs/X.ipynb    one
WRITE=1 python tools/outputs.py …             store the new outputs where they differ, then run nbdev_clean

Compared is text: what is printed, and the text of what is shown. Durations, addresses, ports, hashes and
temporary paths are taken out first. A cell whose output is another each time (a table of latencies) says
`#| varies`. Not seen: pictures, HTML, what goes to stderr, cells that do not run (`#| slow`,
`#| eval: false`), and the numbers of findings and benchmarks, whose outputs say on what they were run.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbdev.test
from execnb.shell import CaptureShell

VARIES = "varies"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
CHANGING = [
    (re.compile(r"0x[0-9a-f]{6,}"), "0x…"),
    (re.compile(r"(/private)?/(tmp|var/folders)/[\w./-]+"), "/tmp/…"),
    (re.compile(r"\d[\d.,]*( ?)(ns|µs|μs|us|ms|s|min|seconds?|minutes?)\b"), r"…\1\2"),
    (re.compile(r"\b[0-9a-f]{32}\b|(?<=fingerprint=')[0-9a-f]{8}\b|#[0-9a-f]{6}\b"), "hash"),  # of code too
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:…"),
    (re.compile(r"^ragbench: computing rank metrics with ranx: .*\n", re.MULTILINE), ""),  # once a process
    (re.compile(r"\d[\d.,]*( ?)(/s|times as fast|× faster)"), r"…\1\2"),
]


def shown(outputs: list) -> str:
    """The text of a cell's outputs: what it prints, then what it shows; pictures have none."""
    printed = ["".join(o["text"]) for o in outputs if o.get("name") == "stdout"]
    for output in outputs:
        data = output.get("data", {})
        if "text/plain" in data and not any(kind.startswith("image/") for kind in data):
            printed.append("".join(data["text/plain"]) + "\n")
    return ANSI.sub("", "".join(printed))


def settled(text: str) -> str:
    """The text without what is another at each run."""
    for pattern, mark in CHANGING:
        text = pattern.sub(mark, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def differences(stored: list, new: list) -> str:
    """How the text of two lists of outputs differs; '' where it does not."""
    before, now = settled(shown(stored)), settled(shown(new))
    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), "stored", "now", n=0, lineterm="")
    return "" if before == now else "\n".join(list(lines)[2:14])


class Comparing(CaptureShell):
    """A shell that remembers which cells came out otherwise than stored."""

    kernel = None  # its presence tells pandas that tables are for a notebook, not for a terminal
    changed: list[tuple[str, str, list]] = []  # (cell id, difference, new outputs) of the last notebook

    def run_all(self, nb, exc_stop=False, preproc=lambda cell: False, **options):
        cells = [c for c in nb.cells if c.cell_type == "code" and not preproc(c)]
        stored = [c.get("outputs", []) for c in cells]
        for cell in cells:
            cell.outputs = []
        super().run_all(nb, exc_stop=exc_stop, preproc=preproc, **options)
        Comparing.changed = [
            (cell["id"], difference, cell.outputs)
            for cell, before in zip(cells, stored, strict=True)
            if VARIES not in (getattr(cell, "directives_", None) or {})
            and (difference := differences(before, cell.outputs))
        ]


def write_outputs(path: Path, changed: list[tuple[str, str, list]]) -> None:
    """Store the new outputs of these cells."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    new = {cell_id: outputs for cell_id, _, outputs in changed}
    for cell in notebook["cells"]:
        if cell["id"] in new:
            outputs = json.loads(json.dumps(new[cell["id"]], default=dict))
            warned = any(o.get("name") == "stderr" for o in cell["outputs"])  # else it is progress
            cell["outputs"] = [o for o in outputs if warned or o.get("name") != "stderr"]
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def report(path: Path, changed: list[tuple[str, str, list]]) -> Iterator[str]:
    for cell_id, difference, _ in changed:
        yield f"{path.name}, cell {cell_id}: the stored output is not that of the code\n{difference}\n"


def run_notebook(fn: Path, **options) -> tuple[bool, float]:
    """As `nbdev.test.test_nb`, and false too where an output differs."""
    Comparing.changed = []
    passed, seconds = RUN(fn, **options)
    if passed and Comparing.changed:
        sys.stderr.write("\n".join(report(Path(fn), Comparing.changed)) + "\n")
        if os.environ.get("WRITE"):
            write_outputs(Path(fn), Comparing.changed)
        else:
            passed = False
    return passed, seconds


RUN = nbdev.test.test_nb
nbdev.test.CaptureShell = Comparing
nbdev.test.test_nb = run_notebook

if __name__ == "__main__":
    # as a module: a notebook's shell takes the place of __main__, where workers would look for it
    sys.path.insert(0, str(Path(__file__).parent))
    nbdev.test.CaptureShell, nbdev.test.test_nb = CaptureShell, RUN
    import outputs  # noqa: F401

    nbdev.test.nbdev_test()
