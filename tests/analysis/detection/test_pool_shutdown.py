"""A report that ends between its passes, while other processes wait for more to do: it ends, with its code."""

import subprocess
import sys
from pathlib import Path

import pytest

from jitter.simulate import simulate
from tests.support.simulated import ingest_run, small

pytestmark = pytest.mark.slow

SCRIPT = """
import multiprocessing, sys
from functools import cached_property
from jitter.analysis.detection import pool_executor
from jitter.cli import run
from jitter.core.errors import LakeError
from jitter.analysis.detection.run_analysis import RunAnalysis

def fail(examined):
    examined._seen
    assert multiprocessing.active_children()
    raise {error}

pool_executor.LARGE, pool_executor.cpu_count = 0, lambda: 3
RunAnalysis.candidates = cached_property(fail)
RunAnalysis.candidates.__set_name__(RunAnalysis, "candidates")
run()
"""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [("KeyboardInterrupt", 130, "interrupted"), ("LakeError('x: lost', 'put it back')", 3, "jitter: x: lost")],
)
def test_it_ends(error: str, code: int, said: str, tmp_path: Path):
    root = ingest_run(simulate(small(steps=6, ranks=3), []), tmp_path).root
    script = SCRIPT.format(error=error)
    done = subprocess.run(
        [sys.executable, "-c", script, "report", root, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.strip().splitlines()[0] == said
