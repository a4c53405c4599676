"""Law 5: killed at any instant and started again, the demonstration ends with the same table, byte for
byte."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ragbench.store.artifacts import Store, verify

KILLS = int(os.environ.get("RAGBENCH_KILLS", "10"))  # `make test-all` asks for 200
SEED = int(os.environ.get("RAGBENCH_KILL_SEED", "20260101"))


def start(folder: Path) -> subprocess.Popen:
    command = [
        sys.executable,
        "-c",
        "from ragbench.apps.cli import app; app()",
        "demo",
        "--store",
        str(folder / "store"),
        "--out",
        str(folder / "report.html"),
        "--csv",
        str(folder / "quality.csv"),
    ]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(folder: Path) -> tuple[bytes, float]:
    began, process = time.monotonic(), start(folder)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert (folder / "report.html").stat().st_size > 10_000
    return (folder / "quality.csv").read_bytes(), time.monotonic() - began


@pytest.mark.faults
@pytest.mark.timeout(1300 + 20 * KILLS)
def test_a_killed_demo_ends_with_the_same_table(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), killed.mkdir()
    table, seconds = finish(whole)
    assert table.count(b"\n") >= 13  # a header and at least 12 systems

    rng, hits = random.Random(SEED), 0
    print(f"undisturbed {seconds:.0f} s; seed {SEED}")
    for attempt in range(3 * KILLS):
        if hits == KILLS:
            break
        if (killed / "quality.csv").exists():  # it got to the end: begin again from nothing
            killed = tmp_path / f"killed-{attempt}"
            killed.mkdir()
        process = start(killed)
        # the first seconds are imports; work that was finished stays finished, so the kills wander through
        # all the phases
        delay = rng.uniform(0.5, 8 + seconds / 6)
        try:
            process.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            hits += 1
            print(
                f"killed after {delay:.1f} s; artifacts so far:"
                f" {sum(1 for _ in (killed / 'store').glob('*/*/manifest.json'))}"
            )
            if (killed / "store").is_dir():
                assert verify(Store(killed / "store")) == []  # what is there is whole
        process.stdout.close()
    assert hits == KILLS

    again, _ = finish(killed)
    assert again == table
    assert verify(Store(killed / "store")) == []
    second, quick = finish(killed)
    assert second == table
    print(f"killed {hits} times; a second run of the finished store took {quick:.1f} s")
