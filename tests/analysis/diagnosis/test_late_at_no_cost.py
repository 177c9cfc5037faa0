"""A host that is late at every collective while all hosts are as slow: it is named, and fixing it saves little."""

from pathlib import Path

import pytest

from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small

LATE = "late_start:rank=3,step=0,ms=3,loading=no"
"""In the first step: the hosts wait for nothing, so that the rank stays behind."""


@pytest.mark.parametrize("seed", [0, 3])
def test_a_rank_that_stays_behind_is_named_with_what_it_costs(tmp_path: Path, seed: int):
    run = simulate(small(steps=3, kernels=120, cpu_bound=True, cpu_noise=0.2, seed=seed), [Fault.parse(LATE)])
    found = ingest_run(run, tmp_path).diagnose()
    (lead,) = found.culprits
    assert (lead.ranks, lead.cause, lead.confidence) == ((3,), "cpu_launch", "low")
    assert "it arrives last at 9 of 9 collectives" in lead.evidence
    ends, without = run.last_collective_ends(), run.without().last_collective_ends()
    assert lead.gain_ns == pytest.approx(
        ends[-1] - ends[0] - (without[-1] - without[0]), abs=0.02 * (ends[-1] - ends[0])
    )
    assert "because others are about as late" in found.verdict


@pytest.mark.parametrize("seed", [0, 3])
def test_without_a_late_rank_none_is_named(tmp_path: Path, seed: int):
    run = simulate(small(steps=3, kernels=120, cpu_bound=True, cpu_noise=0.2, seed=seed))
    assert [one for one in ingest_run(run, tmp_path).diagnose().culprits if one.scope == "rank"] == []
