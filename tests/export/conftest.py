"""Tests of exports share the oracle that lies one folder up, and the metrics' lakes made by hand."""

import sys
from pathlib import Path

import pytest

import jitter
from jitter.simulate import Fault, Job, simulate, write

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "metrics")]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 ranks, steps 2000 to 2002; in 2001 rank 9's host stalls. Nobody changes it."""
    folder = tmp_path_factory.mktemp("traces")
    faults = [Fault.parse("cpu_stall:rank=9,step=2001,kernel=5,ms=3")]
    write(simulate(Job(ranks=12, steps=3, kernels=24, first_step=2000), faults), folder, "nsys")
    root = tmp_path_factory.mktemp("lakes") / "lake"
    jitter.ingest([folder], root, jobs=1)
    return root
