"""Memory of the command's process: Arrow's buffers come from the C library, as numpy's arrays do."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from jitter.simulate import simulate
from tests.support.simulated import ingest_run, small

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc"
)


def test_no_row_of_a_lake_lies_in_arrows_own_pool(tmp_path: Path):
    lake = ingest_run(simulate(small(steps=2)), tmp_path).root
    script = f"""
from pathlib import Path
from jitter.cli.lakes import open_lake
open_lake(Path({str(lake)!r})).measure_collectives()
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
for other in {{"mimalloc", "jemalloc"}} & set(pyarrow.supported_memory_backends()):
    assert getattr(pyarrow, other + "_memory_pool")().max_memory() == 0, other
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "system\n"


def test_of_a_process_that_has_arrow_already_new_buffers_alone():
    script = """
import pyarrow
from jitter.core.memory import keep_freed_memory
keep_freed_memory()
print(pyarrow.default_memory_pool().backend_name)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "system\n"
