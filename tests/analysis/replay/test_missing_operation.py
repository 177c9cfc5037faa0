"""A rank that lacks an operation spends nothing on it, repaired or not: a replay of a few kernels by hand."""

import numpy as np
import pytest

from jitter.analysis.collectives.matching import match
from jitter.analysis.execution.dependencies import Wait
from jitter.analysis.execution.schedule import schedule
from jitter.analysis.execution.self_times import CPU, baselines, follow_steps
from jitter.analysis.replay.replay import Change, no_shift, replay_steps
from jitter.analysis.replay.run_steps import RecordedSteps
from jitter.core.step_key import StepKey
from tests.support.programs import dependencies, job_of, no_state, program, step_of

NONE = np.nan
RANKS = 3
"""Rank 1 lacks the second of three kernels; the others are alike."""


pytestmark = pytest.mark.usefixtures("each_way")


def replayed(
    times: dict[str, list[list[float]]], queue: int | None, repaired: bool, waits: tuple[Wait, ...] = ()
) -> list[float]:
    """When rank 1's kernels end, its host's times after the first kernel replaced by the usual ones or not."""
    its, job = program("kkk"), job_of("kkk", RANKS, waits, queue=queue)
    matching = match({0: its}, dict.fromkeys(range(RANKS), 0), {rank: [] for rank in range(RANKS)})
    order = schedule({0: its}, {0: dependencies("kkk", waits, queue=queue)}, matching)
    step = step_of(*(times[name] for name in ("start", "end", "call", "back")))
    own, before = follow_steps(job, step, no_state(RANKS, queue), 1)
    fresh, changed = np.ones((1, RANKS), np.bool_), np.zeros((1, 3, RANKS), np.bool_)
    changed[0, CPU, 1] = repaired
    recorded = RecordedSteps(0, [StepKey(None, 0)], step, own, before, fresh, matching.arrays, np.full((1, RANKS), -1))
    change, usual = Change(changed, *np.zeros((2, 1, 0))), baselines(job, step, own, np.zeros((1, RANKS)))
    replayed = replay_steps(job, order.array(), recorded, usual, change, no_state(RANKS, queue), no_shift(RANKS))
    ends = replayed.nodes.end
    return ends[3:6].tolist()


ON_TIME = {
    "call": [[10, 10, 10], [30, NONE, 30], [50, 50, 50]],
    "back": [[15, 15, 15], [35, NONE, 35], [55, 55, 55]],
    "start": [[20, 20, 20], [40, NONE, 40], [60, 60, 60]],
    "end": [[21, 21, 21], [41, NONE, 41], [61, 61, 61]],
}


def test_as_recorded():
    """An operation that waits for the missing kernel waits for the one before it."""
    assert replayed(ON_TIME, None, repaired=False) == [21, 21, 61]


def test_its_host_is_not_given_the_usual_time_of_a_launch_it_does_not_make():
    """Back at 15, the usual 15 to the last launch, 5 in it, 5 until it starts, 1 on the GPU: 35 of its own before."""
    assert replayed(ON_TIME, None, repaired=True) == [21, 21, 15 + 15 + 5 + 5 + 1]


@pytest.mark.parametrize("queue", [1, 2])
def test_it_takes_no_place_in_the_launch_queue(queue: int):
    """Of one place: the last launch waits from 16 until the first kernel starts at 20, and takes 2 more."""
    times = {
        "call": [[10, 10, 10], [16, NONE, 16], [50, 16, 50]],
        "back": [[15, 15, 15], [22, NONE, 22], [55, 22, 55]],
        "start": [[20, 20, 20], [50, NONE, 50], [60, 50, 60]],
        "end": [[50, 50, 50], [51, NONE, 51], [61, 58, 61]],
    }
    assert replayed(times, queue, repaired=False) == [50, 50, 58]


def test_nor_where_it_has_the_kernel_and_its_launch_was_not_recorded():
    """The kernel starts 19 after the one before, as recorded; the next 5 after it, the host being back at 35."""
    times = {name: [list(row) for row in rows] for name, rows in ON_TIME.items()}
    times["start"][1][1], times["end"][1][1] = 40, 41
    assert replayed(times, None, repaired=False) == [21, 41, 61]
    assert replayed(times, None, repaired=True) == [21, 21 + 19 + 1, 41 + 5 + 1]


@pytest.mark.parametrize("missing", [True, False])
def test_its_host_does_not_wait_for_the_kernel_that_it_lacks(missing: bool):
    """The last launch comes 9 after the second kernel's end; the rank without that one launches it when it likes."""
    wait = Wait(2, 1, "sync", provenance="inferred")
    late = {name: [list(row) for row in rows] for name, rows in ON_TIME.items()}
    if not missing:
        for name, rows in late.items():
            rows[1][1] = ON_TIME[name][1][0]
    step = step_of(*(late[name] for name in ("start", "end", "call", "back")))
    host = follow_steps(job_of("kkk", RANKS, (wait,)), step, no_state(RANKS), 1)[0].host.reshape(RANKS, 3)
    assert host[:, 2].tolist() == [9, 35 if missing else 9, 9]
    assert replayed(late, None, repaired=False, waits=(wait,)) == [21, 21 if missing else 41, 61]
