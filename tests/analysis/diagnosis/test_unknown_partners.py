"""Exchanges whose partners no trace names: what a late rank costs is unknown, and no rank is cleared."""

from pathlib import Path

import pytest

import jitter
from jitter.analysis.detection.pricing import PARTNERS, Pricing
from jitter.analysis.replay.what_if import Scenario
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_partial_run, small


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    """A pipeline of four stages in nsys exports, which record no groups; rank 3's GPU is slow.

    The stages that it exchanges with have no recording.
    """
    job = small("pipeline", ranks=8, stages=4, steps=8, kernels=200, marker="nvtx", epoch=1, gpus_per_node=4)
    folder: Path = tmp_path_factory.mktemp("unknown")
    run = simulate(job, [Fault.parse("slow_gpu:rank=3,factor=1.3")])
    return ingest_partial_run(run, folder, "nsys", absent=frozenset({0, 1, 4, 5}))


def test_the_slow_rank_is_a_lead_of_unknown_cost(lake: "jitter.Lake"):
    found = lake.diagnose()
    assert lake.results().unpaired > 0
    (one,) = found.culprits
    assert (one.ranks, one.cause, one.confidence, one.has_unknown_gain) == ((3,), "gpu_compute", "low", True)
    assert one.gain_ns < 0.01 * sum(step.step_time_ns or 0 for step in found.steps)
    assert "what fixing it would save is unknown, because some exchanges name no partners." in found.verdict
    assert any(line.startswith("whether that delays other ranks is unknown") for line in one.evidence)


def test_a_range_names_missing_partners_only_where_they_make_it_wide(lake: "jitter.Lake"):
    analysis, whole = lake.analyze(), [Scenario(everything=True)]
    pricing, gains = Pricing(analysis), analysis.gains(whole)
    (narrow,), (wide,) = (pricing.ranges(whole, gains, [delay_ns]) for delay_ns in (0.0, 1e9))
    assert narrow is None or PARTNERS not in narrow.unknown
    assert wide is not None
    assert (wide.most_ns, wide.unknown[-1]) == (10**9, PARTNERS)


def test_a_healthy_run_clears_no_rank(tmp_path: Path):
    job = small("pipeline", ranks=8, stages=4, steps=8, kernels=200, marker="nvtx", epoch=1, gpus_per_node=4)
    found = ingest_partial_run(simulate(job), tmp_path, "nsys", absent=frozenset({0, 1, 4, 5})).diagnose()
    assert found.culprits == found.conclusion.cleared == ()
    assert "waiting in them cannot be attributed to a rank" in found.verdict
    assert "no rank, host or link" not in found.verdict
