"""The ten-line components of the chapter on protocols, pasted as a new user would, work the first time."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHAPTER = Path(__file__).resolve().parents[1] / "nbs/03_core/15_protocols.ipynb"
MINE = (
    "load_note",
    "BlankLines",
    "Letters",
    "CompareAll",
    "CommonWords",
    "Jaccard",
    "BestPlace",
    "SharedWords",
)
FAMILIES = ("loader", "chunker", "embedder", "index", "engine", "retriever", "fusion", "reranker", "metric")


@pytest.fixture(scope="module")
def pasted():
    "The code cells of the section, in order; a check that would be shown is asserted."
    cells, inside = [], False
    for cell in json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and source.startswith("## "):
            inside = source.startswith("## Ten lines and a check")
        elif inside and cell["cell_type"] == "code":
            cells.append(source)
    return cells


def script(cells, store):
    "What a new user has in a file."
    code = "\n\n\n".join(cells)
    code = re.sub(r"^(check_\w+\(.*\))$", r"assert (report := \1).ok, report", code, flags=re.M)
    code = code.replace('store=notes.parent / "store"', f"store={str(store)!r}")
    code = code.replace("\nresults.quality()", "\nprint(results.quality_csv())")
    names = ", ".join(MINE)
    tail = f"from ragbench.store.fingerprint import fingerprint\nprint([fingerprint(c) for c in ({names})])\n"
    return f"{code}\n{tail}"


def run(folder, *arguments, seed):
    "Run Python in a folder; its standard output, and its standard error."
    keep = {k: v for k, v in os.environ.items() if k != "IN_TEST"}
    root = str(CHAPTER.parents[2])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**keep, "PYTHONPATH": root, "PYTHONHASHSEED": str(seed), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FingerprintWarning" not in done.stderr, done.stderr
    return done.stdout


def test_the_chapter_has_every_family(pasted):
    code = "\n".join(pasted)
    for family in FAMILIES:
        assert len(re.findall(rf"^check_{family}\(", code, flags=re.M)) == 1
    for name in MINE:
        assert re.search(rf"^(def|class) {name}\b", code, flags=re.M)


def test_no_component_is_long(pasted):
    """Ten lines, give or take what searches beside what builds."""
    for cell in pasted:
        for part in re.split(r"\n\n\n", cell):
            if part.startswith(("@dataclass", "def ", "class ")):
                assert len([line for line in part.splitlines() if line.strip()]) <= 15, part


@pytest.mark.timeout(600)
def test_as_a_script_in_two_processes(pasted, tmp_path):
    """All suites pass, the benchmark runs, and a second process finds the same names and what was kept."""
    (tmp_path / "mine.py").write_text(script(pasted, tmp_path / "store"), encoding="utf-8")
    first = run(tmp_path, "mine.py", seed=1)
    assert "first document" in first.splitlines()[0]
    made = {p for p in (tmp_path / "store").rglob("manifest.json")}
    assert made
    assert run(tmp_path, "mine.py", seed=2) == first
    assert {p for p in (tmp_path / "store").rglob("manifest.json")} == made


@pytest.mark.timeout(600)
def test_as_a_module(pasted, tmp_path):
    """The same with the components in a module of their own: there the suites ask another process, too."""
    parts = [c for c in pasted if c.startswith(("import", "from", "@dataclass", "def", "class"))]
    rest = ["from mine import *", *(c for c in pasted if c not in parts[1:])]
    (tmp_path / "mine.py").write_text("\n\n\n".join(parts), encoding="utf-8")
    code = script(rest, tmp_path / "store") + "print(report, check_embedder(Letters()))\n"
    (tmp_path / "use.py").write_text(code, encoding="utf-8")
    shown = run(tmp_path, "use.py", seed=1)
    assert "FAIL" not in shown
    assert shown.count("ok    another process finds the same fingerprint") == 2


def test_a_module_that_checks_itself_asks_no_process_after_process(tmp_path):
    """Another process that is asked for a fingerprint imports the module, and must not ask the next one."""
    code = (
        "from dataclasses import dataclass\nfrom pathlib import Path\nfrom ragbench import RRF\n"
        "from ragbench.testing import check_fusion\n"
        "class Mine(RRF): ...\n"
        "Path('imports').open('a').write('x')\n"
        "report = check_fusion(Mine(), strict=True)\n"
    )
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    shown = run(tmp_path, "-c", "import mine; print(mine.report)", seed=1)
    assert "ok    another process finds the same fingerprint" in shown
    assert (tmp_path / "imports").read_text() == "xx"
