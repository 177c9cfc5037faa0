"""Ctrl-C while an ingest's processes start: it reaches all of them, and one line tells of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CHILDREN = Path("/proc/self/task", str(os.getpid()), "children")


@pytest.mark.skipif(not CHILDREN.exists(), reason="this system does not tell a process's children")
def test_ctrl_c_while_workers_start_is_one_line(traces: Path, tmp_path: Path):
    words = [sys.executable, "-m", "jitter", "ingest", str(traces), "-o", str(tmp_path / "lake"), "--jobs", "2"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as ingest:
        children = Path("/proc", str(ingest.pid), "task", str(ingest.pid), "children")
        until = time.monotonic() + 60
        while "forkserver" not in _commands(children) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.2)  # in the middle of its imports; before them it would die without a word
        os.killpg(ingest.pid, signal.SIGINT)  # as a terminal does
        _, said = ingest.communicate(timeout=60)
    # Python dies of the signal itself where it hit code made from text (a dataclass): to a shell that is 130, too
    code = 128 - ingest.returncode if ingest.returncode < 0 else ingest.returncode
    assert (code, said.split()) == (130, ["interrupted"])


def _commands(children: Path) -> str:
    try:
        return " ".join(Path("/proc", pid, "cmdline").read_text() for pid in children.read_text().split())
    except OSError:  # one of them has ended meanwhile
        return ""
