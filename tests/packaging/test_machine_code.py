"""The wheel holds the machine code of every loop, so nobody's first report waits for a compiler."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OTHER_JOBS = (
    "--shape sharded --format kineto --layout rocm --fault slow_cpu:rank=1,factor=3",
    "--shape tensor_parallel --variable-work 0.2 --fault unequal_work:rank=0,factor=1.3",
    "--shape data_parallel --cpu-bound --autotuned 0.5 --fault pause:every=2,ms=3",
    "--shape pipeline --stages 2 --microbatches 1 --marker none --fault late_end:rank=2,ms=3",
    "--format rocprof-csv --fault extra_kernel:rank=2,kernel=5",
)
"""Options of `jitter sample` that the build does not use."""
ANALYSE = "import sys; from jitter.packaging.compile_loops import compile_all_loops; compile_all_loops(sys.argv[1:])"
COMPILE_ONE = """
import numpy as np
from jitter.core.numeric.compilation import compile_loops
from jitter.core.numeric.selection import select_median
compile_loops(10**6)
select_median.fast(np.ones(3), 3)
"""

pytestmark = pytest.mark.slow


def install(place: Path) -> Path:
    """Return a folder with the content of a wheel built from this tree."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(place)]
    subprocess.run([*build, str(ROOT)], check=True, cwd=place)
    [wheel] = place.glob("*.whl")
    assert not wheel.name.endswith("py3-none-any.whl")  # machine code is for one Python and one architecture
    zipfile.ZipFile(wheel).extractall(place / "site")
    return place / "site"


def run(installation: Path, cache: Path, code: str, *arguments: str) -> str:
    """Return what a program says on stderr with this installation and these compiled loops."""
    environment = os.environ | {"PYTHONPATH": str(installation), "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", code, *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=installation)
    return ended.stderr


def test_an_installation_from_the_wheel_compiles_nothing_unless_its_machine_code_does_not_fit(tmp_path: Path) -> None:
    installation, cache = install(tmp_path), tmp_path / "cache"
    assert "compiled now" not in run(installation, cache, ANALYSE, *OTHER_JOBS)
    assert not cache.exists(), sorted(path.name for path in cache.rglob("*"))
    [code] = (installation / "jitter" / "_machine_code").iterdir()
    code.rename(code.with_name("cpython-310-linux-x86_64-numba-0.1"))
    assert run(installation, cache, COMPILE_ONE).count("compiled now") == 1
    assert list(cache.rglob("select*"))
