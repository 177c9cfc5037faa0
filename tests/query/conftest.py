"""A small lake with a trace that was refused; and the oracle and the random lakes that lie one folder up."""

import sys
from pathlib import Path

import pytest

import jitter
from jitter.simulate import Fault, Job, simulate, write

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 ranks, epoch 1, steps 2000 to 2002; rank 1 runs a kernel more in step 2001. Nobody changes it."""
    folder = tmp_path_factory.mktemp("traces")
    job = Job(ranks=3, steps=3, kernels=16, first_step=2000)
    write(simulate(job, [Fault.parse("extra_kernel:rank=1,step=2001,kernel=7")]), folder, "nsys")
    (folder / "broken.sqlite").write_bytes((folder / "rank0.sqlite").read_bytes()[:60_000])
    root = tmp_path_factory.mktemp("lakes") / "lake"
    jitter.ingest([folder], root, jobs=1)
    return root


@pytest.fixture
def lake(made: Path) -> "jitter.Lake":
    return jitter.open(made)
