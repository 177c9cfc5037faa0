"""Ctrl-C and SIGTERM at any moment, imports included: one line, exit 130 or 143, and nothing is left behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import signal_at_import

pytestmark = pytest.mark.slow

LINES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
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
    ("module", "words", "number"),
    [
        ("jitter.cli", ["steps"], signal.SIGINT),
        ("numpy", ["report"], signal.SIGTERM),
        ("duckdb", ["query", "select 1"], signal.SIGINT),
        ("jitter.report.live.server", ["serve", "--port", "0"], signal.SIGTERM),
    ],
)
def test_a_signal_during_imports_is_one_line(
    module: str, words: list[str], number: signal.Signals, small_lake: Path, tmp_path: Path
):
    lake = Path(shutil.copytree(small_lake, tmp_path / "lake"))
    (tmp_path / "tmp").mkdir()
    verb, *others = words
    ended = subprocess.run(
        [sys.executable, "-c", AT_IMPORT, module, str(int(number)), verb, str(lake), *others],
        cwd=tmp_path, env=os.environ | {"TMPDIR": str(tmp_path / "tmp")}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr.splitlines()[-1:]) == (128 + number, "", [LINES[number]])
    assert "Traceback" not in ended.stderr
    assert not list((tmp_path / "tmp").iterdir())


IN_IMPORT_SYSTEM = """
import signal, time
from jitter.core.interrupts import Interrupted, handle_signals

handle_signals()
try:
    exec(compile("signal.raise_signal(signal.SIGINT); print('released')", "<frozen importlib._bootstrap>", "exec"))
    time.sleep(20)
except Interrupted:
    print("interrupted")
"""

AT_WORKER_START = """
import os, signal
from multiprocessing import popen_forkserver
from jitter.core.interrupts import Interrupted, handle_signals
from jitter.core.parallel.processes import WorkerPool

workers = []
launch = popen_forkserver.Popen._launch

def launch_and_signal(self, process):
    launch(self, process)
    workers.append(self.pid)
    os.kill(os.getpid(), signal.SIGINT)

popen_forkserver.Popen._launch = launch_and_signal
handle_signals()
try:
    with WorkerPool(1, ["math"]) as pool:
        pool.submit(os.getpid)
except Interrupted:
    print("interrupted")
for worker in workers:
    try:
        os.kill(worker, 0)
    except ProcessLookupError:
        print("the worker has ended")
"""

DEAD_WORKERS = """
import os, signal, time
from jitter.core.parallel.processes import WorkerPool

try:
    with WorkerPool(2, ["math"]) as pool:
        first = pool.submit(os.getpid)
        pool.submit(time.sleep, 600)
        os.kill(first.result(), signal.SIGKILL)
        raise ZeroDivisionError
except ZeroDivisionError:
    print("ended")
"""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        # a thread that imported meanwhile waited for the lock of the import system, and the command for the thread
        pytest.param(IN_IMPORT_SYSTEM, "released\ninterrupted\n", id="in the import system"),
        # the pool did not know the worker, which lost the parent's semaphores and printed a traceback
        pytest.param(AT_WORKER_START, "interrupted\nthe worker has ended\n", id="at the start of a worker"),
        # a scheduler signals all processes of a job at once: no end may wait for an answer of a worker
        pytest.param(DEAD_WORKERS, "ended\n", id="after the workers died"),
    ],
)
def test_a_signal_blocks_nothing(script: str, said: str):
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, said, "")


AT_NTH_IMPORT = Path(signal_at_import.__path__[0])


@pytest.mark.parametrize(
    ("launcher", "number"),
    [(("-m", "jitter"), signal.SIGINT), (("-c", "from jitter.__main__ import run; run()"), signal.SIGTERM)],
)
def test_signals_are_handled_from_the_first_import_on(launcher: tuple[str, str], number: signal.Signals):
    """Of all imports of the command, those that load the handler alone come before it."""
    path = os.pathsep.join([str(AT_NTH_IMPORT), *sys.path])
    ended = subprocess.run(
        [sys.executable, *launcher, "--version"], capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"PYTHONPATH": path, "AT_IMPORT": f"1 {number.value}"},
    )  # fmt: skip
    assert ended.returncode == 128 + number, ended.stderr
    assert ended.stderr.splitlines() == [LINES[number]]
    before = [sys.executable, "-X", "importtime", *launcher, "--version"]
    listed = subprocess.run(before, capture_output=True, text=True, timeout=60, check=True).stderr
    loaded = [line.rpartition("|")[2].strip() for line in listed.splitlines()]
    ours = loaded[loaded.index("jitter._version") : loaded.index("jitter.core.interrupts")]
    assert [name for name in ours if name.startswith("jitter")] == ["jitter._version", "jitter", "jitter.core"]
    assert "typing" not in ours
    assert len(ours) < 20


def _commands(children: Path) -> str:
    try:
        return " ".join(Path("/proc", pid, "cmdline").read_text() for pid in children.read_text().split())
    except OSError:  # one of them has ended meanwhile
        return ""
