"""Where a path ends, being walked back: at a rank's first step nobody knows what its stream did before."""

import numpy as np
import pytest

from jitter.analysis.execution.collectives import Attendance, Block, Meeting, Meetings
from jitter.analysis.execution.ready_times import no_tail
from jitter.analysis.execution.rules import Wait
from jitter.analysis.execution.step_model import ObservedStep, TeamStep
from jitter.analysis.execution.step_times import StepArrays
from jitter.analysis.execution.time_part import TimePart
from jitter.analysis.replay.critical_path import Charge, PathWalker
from jitter.analysis.replay.replay import BlockStep
from jitter.analysis.replay.step_inputs import StepWork, medians, transfers_of
from jitter.core.step_key import StepKey
from tests.support.programs import program, rules

US = 1000.0


def charges(*, joined: bool) -> list[Charge]:
    """Two ranks launch alike; rank 0's kernel starts 400 µs after rank 1's and is late for the collective."""
    words, waits = program("ka"), rules("ka", (Wait(1, 0, "event"),))
    times = [[[500, 100], [600, 200]], [[600, 200], [700, 700]], [[10, 10], [20, 20]], [[15, 15], [25, 25]]]
    arrays = StepArrays(np.arange(2), np.ones((2, 2), np.bool_), *(np.array(its) * US for its in times))
    have_joined, tail = np.full(2, joined), no_tail(2, 1, 2, None)
    team = TeamStep(words, waits, arrays, tail, have_joined)
    typical = {0: medians(team.own)}
    block = BlockStep(arrays, typical[0], have_joined, tail)
    meeting = Meeting((Attendance(0, 1, np.zeros(2, np.int64)),), 1, np.zeros(1, np.bool_))
    meetings = Meetings((Block(0, (0, 1)),), (meeting,), unrecorded=True, named=0, unpaired=0)
    transfers = transfers_of(meetings, lambda _, place: arrays.end[place] - arrays.start[place])
    work = StepWork(ObservedStep(StepKey(None, 7), {0: team}), typical, [block], [np.arange(2)], transfers)
    return PathWalker({0: words}, {0: waits}, meetings).walk(work, {0: 100 * US}, frozenset())


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
