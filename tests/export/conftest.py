"""A lake of twelve ranks: more than an export shows unless ranks are chosen."""

from pathlib import Path

import pytest

from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run


@pytest.fixture(scope="session")
def twelve_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake of 12 ranks, steps 2000 to 2002; in step 2001 the host of rank 9 stalls."""
    folder = tmp_path_factory.mktemp("export")
    faults = [Fault.parse("cpu_stall:rank=9,step=2001,kernel=5,ms=3")]
    return ingest_run(simulate(Job(ranks=12, steps=3, kernels=24, first_step=2000), faults), folder, "nsys").root
