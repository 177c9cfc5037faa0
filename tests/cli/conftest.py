"""A small lake and its traces, made once; nobody changes them."""

from pathlib import Path

import pytest

import jitter
from jitter.simulate import Fault, Job, simulate, write


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 ranks, steps 2000 to 2002; in 2001 rank 2 runs a kernel more and its host stalls for 3 ms."""
    folder = tmp_path_factory.mktemp("traces")
    faults = [
        Fault.parse("cpu_stall:rank=2,step=2001,kernel=5,ms=3"),
        Fault.parse("extra_kernel:rank=2,step=2001,kernel=7"),
    ]
    write(simulate(Job(ranks=3, steps=3, kernels=16, first_step=2000), faults), folder, "nsys")
    return folder


@pytest.fixture(scope="session")
def lake(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lakes") / "lake"
    assert jitter.ingest([traces], root, jobs=1).refused == []
    return root


@pytest.fixture(scope="session")
def two_cohorts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ranks 0 and 1 run one program, rank 2 another."""
    folder = tmp_path_factory.mktemp("cohorts")
    write(simulate(Job(ranks=2, steps=2, kernels=16)), folder / "a", "nsys")
    write(simulate(Job(ranks=3, steps=2, kernels=90, era="2020", buckets=2)), folder / "b", "nsys")
    jitter.ingest([folder / "a", folder / "b" / "rank2.sqlite"], folder / "lake", jobs=1)
    return folder / "lake"
