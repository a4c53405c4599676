#!/usr/bin/env python3
"""Which lines of the package run when the chapters and the tests run, by room: `make coverage`.

python tools/covered.py                        all chapters, then pytest, then the table: an hour on one core
python tools/covered.py chapters nbs/03_core   the chapters of one room (of all, if none is named)
python tools/covered.py tests tests/test_x.py  pytest of some files (of all, if none is named)
python tools/covered.py table "all chapters"   what ran until now, by that name; WRITE=1: into CONTRIBUTING.md

A chapter runs with the definitions of its module in the place of its exported cells, so that their lines are
counted in the module; one that shows what is not there yet then fails, which costs its last lines only.
Processes that a chapter or a test starts are counted too, except those that it kills, that end by `os._exit`
or that have an empty environment: what only they run is missing. What `make test` does not run does not run
here either.
"""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import coverage
import nbdev.test
from execnb.shell import CaptureShell

ROOT = Path(__file__).resolve().parents[1]
WORKERS = os.environ.get("WORKERS", "2")
PAGE = ROOT / "CONTRIBUTING.md"
BETWEEN = re.compile(r"(?<=<!-- coverage -->\n).*?(?=<!-- /coverage -->)", re.DOTALL)
LOW = 80
ANNOTATIONS = "from __future__ import annotations"
DEFINITIONS = (
    "globals().update({name: value for name, value in vars(__import__('importlib').import_module('MODULE'))"
    ".items() if not name.startswith('__')})"
)


def take_from_module(nb) -> None:
    """Put the module's definitions in the place of the first exported cell, nothing in that of the others.
    That annotations stay text, which one cell decides for those after it, is kept."""
    directives = [(cell, getattr(cell, "directives_", None) or {}) for cell in nb.cells]
    module = next((words["default_exp"][0] for _, words in directives if "default_exp" in words), None)
    exported = [cell for cell, words in directives if "export" in words]
    as_text = any(ANNOTATIONS in cell.source for cell in exported)
    for cell in exported:
        cell.source = "pass"
    if exported:
        taken = DEFINITIONS.replace("MODULE", f"ragbench.{module}")
        exported[0].source = f"{ANNOTATIONS}\n{taken}" if as_text else taken


class FromModule(CaptureShell):
    """A shell that takes what a chapter exports from its module, where lines are counted."""

    kernel = None  # its presence tells pandas that tables are for a notebook, not for a terminal

    def run_all(self, nb, **options):
        take_from_module(nb)
        super().run_all(nb, **options)


def measured(*command: str) -> bool:
    """Run a command of Python under coverage, in the repository's root; false if it failed."""
    environment = {
        **os.environ,
        "COVERAGE_FILE": str(ROOT / ".coverage"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "MPLBACKEND": "agg",
        "OMP_NUM_THREADS": "1",
    }
    return not subprocess.run(
        [sys.executable, "-m", "coverage", "run", *command], cwd=ROOT, env=environment
    ).returncode


def chapters(paths: list[str]) -> bool:
    done = [
        measured("tools/covered.py", "notebooks", *(["--path", path] if path else []), "--n_workers", WORKERS)
        for path in paths or [""]
    ]
    return all(done)


def tests(paths: list[str]) -> bool:
    workers = [] if WORKERS == "1" else ["-n", WORKERS]
    return measured("-m", "pytest", *workers, "-q", "-m", "not system and not slow", *paths)


def lines_of_modules() -> dict[str, tuple[int, int]]:
    """Of each module of the package: its statements, and those that ran."""
    data = coverage.Coverage(data_file=str(ROOT / ".coverage"), config_file=str(ROOT / "pyproject.toml"))
    data.combine([str(ROOT)], keep=True)
    counts = {}
    for path in sorted(data.get_data().measured_files()):
        _, statements, _, missing, _ = data.analysis2(path)
        if statements:
            counts[str(Path(path).relative_to(ROOT / "ragbench"))] = (
                len(statements),
                len(statements) - len(missing),
            )
    return counts


def percent(ran: int, statements: int) -> str:
    return f"{100 * ran / statements:.0f} %"


def table(counts: dict[str, tuple[int, int]], of_what: str) -> str:
    """The rooms in the order in which data flows, the whole, and the modules of which much did not run."""
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for module, (statements, ran) in counts.items():
        for name in (module.split("/")[0] if "/" in module else "(the package itself)", "all"):
            rooms[name][0] += statements
            rooms[name][1] += ran
    folders = [re.sub(r"^\d+_", "", path.name) for path in sorted((ROOT / "nbs").glob("[0-9]*_*"))]
    order = [name for name in [*folders, "all"] if name in rooms]
    rows = [
        f"| {name} | {rooms[name][0]} | {percent(rooms[name][1], rooms[name][0])} |"
        if name == "all"
        else f"| `{name}` | {rooms[name][0]} | {percent(rooms[name][1], rooms[name][0])} |"
        for name in order
    ]
    low = [
        f"`{module.removesuffix('.py').replace('/', '.')}` {percent(ran, statements)}"
        for module, (statements, ran) in counts.items()
        if 100 * ran < LOW * statements
    ]
    day = f"{datetime.date.today():%-d %B %Y}"
    return "\n".join(
        [
            f"Measured on {day}, of {of_what}:",
            "",
            "| room | statements | run |",
            "|---|---:|---:|",
            *rows,
            "",
            f"Modules of which less than {LOW} % ran: {', '.join(low) or 'none'}.",
            "",
        ]
    )


def show_table(of_what: str) -> None:
    text = table(lines_of_modules(), of_what)
    print(text)
    if os.environ.get("WRITE"):
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(BETWEEN.sub(lambda _: text, page, count=1), encoding="utf-8")


def main(words: list[str]) -> int:
    if words[:1] == ["table"]:
        show_table(" ".join(words[1:]) or "what ran until then")
        return 0
    if words[:1] in (["chapters"], ["tests"]):
        return not (chapters if words[0] == "chapters" else tests)(words[1:])
    for old in ROOT.glob(".coverage*"):
        old.unlink()
    passed = [chapters([]), tests([])]
    show_table("all chapters and tests")
    return not all(passed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["notebooks"]:
        del sys.argv[1]
        # as a module: a notebook's shell takes the place of __main__, where workers would look for it
        sys.path.insert(0, str(Path(__file__).parent))
        import covered

        nbdev.test.CaptureShell = covered.FromModule
        nbdev.test.nbdev_test()
    else:
        sys.exit(main(sys.argv[1:]))
