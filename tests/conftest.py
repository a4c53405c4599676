"""What every test run needs, however it was started."""

import os
import signal
import subprocess

import pytest

# A job that a shell starts in the background ignores Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def site():
    """A web site on loopback, closed after the test."""
    from helper_site import Site

    s = Site()
    yield s
    s.server.shutdown()
    s.server.server_close()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB; only root can make one."""
    if (
        os.getuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True
        ).returncode
    ):
        pytest.skip("no right to mount a file system")
    yield tmp_path
    subprocess.run(["mount", "-o", "remount,rw", str(tmp_path)], capture_output=True)
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)
