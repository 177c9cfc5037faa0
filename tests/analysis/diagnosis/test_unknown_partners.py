"""Exchanges whose partners no trace names: nobody is blamed for them, and nobody is cleared."""

from pathlib import Path

import pytest

import jitter
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    """A pipeline of two stages in nsys exports, which record no groups; rank 3's GPU is slow."""
    job = small("pipeline", ranks=8, stages=2, steps=8, kernels=120, marker="nvtx", epoch=1, gpus_per_node=4)
    folder: Path = tmp_path_factory.mktemp("unknown")
    return ingest_run(simulate(job, [Fault.parse("slow_gpu:rank=3,factor=1.3")]), folder, form="nsys")


def test_nobody_is_cleared(lake: "jitter.Lake"):
    found = lake.diagnose()
    assert lake.results().unpaired > 0
    assert found.culprits == ()
    assert "waiting in them cannot be attributed to a rank" in found.verdict
    assert "no rank, host or link" not in found.verdict


def test_whose_own_time_leaves_the_noise_is_told(lake: "jitter.Lake"):
    (told,) = (note for note in lake.diagnose().notes if note.startswith("Rank"))
    assert told.startswith("Rank 3's GPU time is ")
    assert told.endswith("above its peers' in 8 steps: whether that delays other ranks is unknown.")
