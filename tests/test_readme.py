"""What the README promises: its example runs as printed, names complete, and what it names is there."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "bench(" in block)


def test_the_example_runs_as_printed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "recall@5" in done.stdout
    assert (tmp_path / "report.html").stat().st_size > 10_000
    lines = [line for line in EXAMPLE.splitlines() if line.strip()]
    assert len(lines) <= 12


def test_every_file_that_it_points_to_is_there():
    targets = [t for t in re.findall(r"\]\(([^)#\s]+)", README) if "://" not in t]
    assert targets
    missing = [t for t in targets if not (ROOT / t).exists()]
    assert missing == []


def test_its_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_completion_knows_the_public_names():
    import jedi

    names = {c.name for c in jedi.Script("from ragbench import ", path=str(ROOT / "x.py")).complete()}
    assert {"TokenChunker", "bench", "grid", "load_corpus", "Results"} <= names
    fields = {
        c.name
        for c in jedi.Script("import ragbench\nragbench.TokenChunker(5).", path=str(ROOT / "x.py")).complete()
    }
    assert {"size", "overlap", "tokenizer"} <= fields
