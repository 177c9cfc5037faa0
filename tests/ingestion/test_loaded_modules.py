"""The modules that an ingest loads: every process of it pays for them before it reads its first byte."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jitter.simulate import Job, simulate, write

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("form", "jobs"), [("nsys", 2), ("kineto", 1)])
def test_no_process_of_an_ingest_loads_pandas(tmp_path: Path, form: str, jobs: int):
    write(simulate(Job(ranks=2, steps=2, kernels=16)), tmp_path / "traces", form)
    loaded = _loaded("-m", "jitter", "ingest", tmp_path / "traces", "-o", tmp_path / "lake", "--jobs", jobs)
    assert len(list((tmp_path / "lake").rglob("rank=*.parquet"))) >= 4
    assert "pyarrow" in loaded
    assert not any(name.startswith("pandas.") for name in loaded)  # `pandas` by itself is the search for it
    others = {"nsys": "jitter.readers.amd.rpd", "kineto": "jitter.readers.nsys"}
    assert (others[form] in loaded) == (jobs == 2)  # loaded beside the first reader's work, for all workers


@pytest.mark.parametrize("command", ["ingest", "report"])
def test_numpy_starts_no_threads_for_linear_algebra(tmp_path: Path, command: str):
    write(simulate(Job(ranks=1, steps=2, kernels=16)), tmp_path / "traces", "nsys")
    lines = (
        "import os, runpy, sys",
        "class Finder:",
        "    def find_spec(self, name, path=None, target=None):",
        "        if name == 'numpy': print('threads', os.environ.get('OPENBLAS_NUM_THREADS'), file=sys.stderr)",
        "sys.meta_path.insert(0, Finder())",
        "runpy.run_module('jitter', run_name='__main__')",
    )
    where = ["--jobs", "1"] if command == "ingest" else ["--json"]
    arguments = [sys.executable, "-c", "\n".join(lines), command, "traces", *where]
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert [line for line in done.stderr.splitlines() if line.startswith("threads")] == ["threads 1"]


def test_pandas_works_where_pyarrow_was_kept_from_it():
    loaded = _loaded(
        "-c",
        "from jitter.core.arrow import hide_pandas\n"
        "hide_pandas()\n"
        "import pyarrow as pa\n"
        "frame = pa.table({'a': [1, None]}).to_pandas()\n"
        "assert frame['a'].isna().tolist() == [False, True]\n"
        "assert pa.array(frame['a']).to_pylist() == [1, None]\n",
    )
    assert "pandas.core.frame" in loaded


def _loaded(*arguments: object) -> set[str]:
    """The modules that a fresh Python and all its processes load."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | {"PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}
