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
    "--shape pipeline --stages 4 --microbatches 1 --marker none --fault late_end:rank=2,ms=3",
    "--format rocpd --fault extra_kernel:rank=2,kernel=5",
)
"""Options of `jitter sample` that the build does not use."""
ANALYSE = "import sys; from jitter.packaging.compile_loops import compile_all_loops; compile_all_loops(sys.argv[1:])"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of a wheel built from this tree."""
    place = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(place)]
    subprocess.run([*build, str(ROOT)], check=True, cwd=place)
    [wheel] = place.glob("*.whl")
    assert not wheel.name.endswith("py3-none-any.whl")  # machine code is for one Python and one architecture
    zipfile.ZipFile(wheel).extractall(place / "site")
    return place / "site"


def analyse(installation: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Analyze the other jobs with this installation and nothing compiled before."""
    environment = os.environ | {"PYTHONPATH": str(installation), "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", ANALYSE, *OTHER_JOBS]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=installation)


def test_an_installation_from_the_wheel_compiles_nothing(installation: Path, tmp_path: Path) -> None:
    ended = analyse(installation, tmp_path / "cache")
    assert not (tmp_path / "cache").exists(), sorted(path.name for path in (tmp_path / "cache").rglob("*"))
    assert "compiled now" not in ended.stderr


def test_an_installation_without_fitting_machine_code_says_so_once(installation: Path, tmp_path: Path) -> None:
    [code] = (installation / "jitter" / "_machine_code").iterdir()
    other = code.rename(code.with_name("cpython-310-linux-x86_64-numba-0.1"))
    try:
        ask = "import numpy as np; from jitter.core.numeric.selection import select_median as f; f.fast(np.ones(3), 3)"
        start = "from jitter.core.numeric.compilation import compile_loops; compile_loops(10**6);"
        environment = os.environ | {"PYTHONPATH": str(installation), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        ended = subprocess.run(
            [sys.executable, "-c", start + ask],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        assert ended.stderr.count("compiled now") == 1
        assert list((tmp_path / "cache").rglob("select*"))
    finally:
        other.rename(code)
