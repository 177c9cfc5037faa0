"""A lake of two cohorts, for the commands that must tell them apart."""

from pathlib import Path

import pytest

import jitter
from jitter.simulate import Job, simulate, write


@pytest.fixture(scope="session")
def two_cohorts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake in which ranks 0 and 1 run one program and rank 2 another."""
    folder = tmp_path_factory.mktemp("cohorts")
    write(simulate(Job(ranks=2, steps=2, kernels=16)), folder / "a", "nsys")
    write(simulate(Job(ranks=3, steps=2, kernels=90, buckets=2)), folder / "b", "nsys")
    sources = [folder / "a", folder / "b" / "rank2.sqlite"]
    jitter.ingest(sources, folder / "lake", same_job=True)
    return folder / "lake"
