"""Ctrl-C and SIGTERM at any moment, imports included: one line, exit 130 or 143, and nothing is left behind."""

import os
import shutil
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
    assert (ingest.returncode, said) == (130, "interrupted\n")


AT_IMPORT = """
import os, signal, sys
from importlib.abc import MetaPathFinder
module, number = sys.argv[1], int(sys.argv[2])
class Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module and self in sys.meta_path:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Finder())
sys.argv[:] = ["jitter", *sys.argv[3:]]
from jitter.__main__ import run
run()
"""


@pytest.mark.parametrize(
    ("number", "code", "line"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("jitter.cli", ["steps"]),
        ("click", ["steps"]),
        ("msgspec", ["report"]),
        ("pyarrow", ["report"]),
        ("numpy", ["report"]),
        ("jitter.analysis.replay.replay", ["report"]),
        ("duckdb", ["query", "select 1"]),
        ("bokeh.server.tornado", ["serve", "--port", "0"]),
        ("jitter.report.html", ["report", "--html"]),
    ],
)
def test_a_signal_during_imports_is_one_line(
    module: str, words: list[str], number: int, code: int, line: str, small_lake: Path, tmp_path: Path
):
    lake = Path(shutil.copytree(small_lake, tmp_path / "lake"))
    (tmp_path / "tmp").mkdir()
    verb, *others = words
    ended = subprocess.run(
        [sys.executable, "-c", AT_IMPORT, module, str(int(number)), verb, str(lake), *others],
        cwd=tmp_path, env=os.environ | {"TMPDIR": str(tmp_path / "tmp")}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr.splitlines()[-1:]) == (code, "", [line])
    assert "Traceback" not in ended.stderr
    assert not list((tmp_path / "tmp").iterdir())


def _commands(children: Path) -> str:
    try:
        return " ".join(Path("/proc", pid, "cmdline").read_text() for pid in children.read_text().split())
    except OSError:  # one of them has ended meanwhile
        return ""
