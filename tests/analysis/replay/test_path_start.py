"""The end of the backward walk: at a rank's first step nobody knows what its stream did before."""

from collections.abc import Iterator

import numpy as np
import pytest

from jitter.analysis.execution.collectives.matching import (
    Collective,
    CollectiveMatching,
    Participants,
    RankBlock,
    flatten_collectives,
)
from jitter.analysis.execution.dependencies.inference import Wait
from jitter.analysis.execution.self_times import baselines, follow_step
from jitter.analysis.execution.time_part import TimePart
from jitter.analysis.replay.charges import Charge
from jitter.analysis.replay.critical_path import PathWalker
from jitter.analysis.replay.recorded_step import RecordedStep
from jitter.core.step_key import StepKey
from tests.support.loops import WAYS, run_loops
from tests.support.programs import job_of, no_state, step_of

US = 1000.0


@pytest.fixture(autouse=True, params=WAYS)
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    with run_loops(request.param):
        yield


def charges(*, joined: bool) -> list[Charge]:
    """Two ranks launch alike; rank 0's kernel starts 400 µs after rank 1's and is late for the collective."""
    times = [[[500, 100], [600, 200]], [[600, 200], [700, 700]], [[10, 10], [20, 20]], [[15, 15], [25, 25]]]
    step, job = step_of(*(np.array(its) * US for its in times)), job_of("ka", 2, (Wait(1, 0, "event"),))
    collective = Collective((Participants(0, 1, np.zeros(2, np.int64)),), 1)
    matching = CollectiveMatching((RankBlock(0, (0, 1)),), (collective,), unrecorded=True, named=0, unpaired=0)
    collectives = flatten_collectives(matching, {0: 2}, {0: 0, 1: 1})
    before = no_state(2, streams=2)
    own = follow_step(job, step, before.copy())
    recorded = RecordedStep(0, StepKey(None, 7), step, own, before, np.full(2, joined), collectives)
    walker = PathWalker(job, collectives, np.arange(2), frozenset(), np.array([100 * US]))
    return list(walker.walk(recorded, baselines(job, step, own)).charges)


@pytest.mark.parametrize(("joined", "excess_us"), [(True, 0), (False, 400)])
def test_a_first_start_is_nobodys_delay(joined: bool, excess_us: int):
    found = charges(joined=joined)
    assert [(one.rank, one.place, one.part) for one in found] == [
        (0, 1, TimePart.TRANSFER),
        (0, 1, TimePart.GPU),
        (0, 0, TimePart.GPU),
        (0, 0, TimePart.CPU),
        (0, 0, TimePart.START),
    ]
    assert [one.excess_ns for one in found] == [0, 0, 0, excess_us * US, 0]
