"""State carried from step to step, per rank: last ends on streams, last returns on threads, pending launches."""

from math import isnan
from typing import NamedTuple

import numpy as np

from jitter.analysis.execution.job_arrays import JobArrays
from jitter.core.numeric.arrays import Bools, Floats
from jitter.core.numeric.compilation import compiled
from jitter.core.step_key import StepKey


class CarriedState(NamedTuple):
    """State of the ranks before a step; ns from each rank's origin, NaN where unknown."""

    stream_end: Floats
    """(ranks, carried ends) the last end on each stream; then those of operations that a later step waits for."""
    back: Floats
    """(ranks, threads) the return of the last call."""
    pending: Floats
    """(ranks, places) the latest starts, ascending: what the launch queue holds; -inf for a free place."""

    def copy(self) -> "CarriedState":
        """Return a copy, with arrays of its own."""
        return CarriedState(*(values.copy() for values in self))

    def forget(self, ranks: Bools) -> None:
        """Make the state of these ranks unknown."""
        self.stream_end[ranks] = self.back[ranks] = np.nan
        self.pending[ranks] = -np.inf


def unknown_state(ranks: int, streams: int, threads: int, places: int) -> CarriedState:
    """Return the state of ranks of which no step is known."""
    return CarriedState(
        np.full((ranks, streams), np.nan), np.full((ranks, threads), np.nan), np.full((ranks, places), -np.inf)
    )


class StateTracker:
    """Follows the state of all ranks of a run, step by step."""

    def __init__(self, state: CarriedState) -> None:
        self.state = state
        self._last: list[StepKey | None] = [None] * len(state.back)

    def enter(self, key: StepKey, here: Bools) -> Bools:
        """Enter a step; return the mask of ranks that do not come from the step before, whose state is unknown.

        `here` (ranks,) are the ranks that have the step; the state of the others stays.
        """
        before = StepKey(key.epoch, key.step - 1)
        fresh = np.array([last != before for last in self._last], np.bool_)
        self.state.forget(fresh & here)
        for rank in np.flatnonzero(here).tolist():
            self._last[rank] = key
        return fresh | ~here


@compiled
def carry_ends(
    job: JobArrays, team: int, rank: int, row: int, end: Floats, base: int, otherwise: Floats, stream_end: Floats
) -> None:
    """Carry the ends of a rank's operations, from `row` on in `end`, that later steps wait for.

    Where the rank lacks one, the end before it on its stream counts, from `base` on in `otherwise`.
    """
    for at in range(job.first_carried[team + 1] - 1, job.first_carried[team] - 1, -1):
        column = job.carried_column[at]
        if job.carried_steps[at] > 1:
            stream_end[rank, column] = stream_end[rank, column - 1]
        else:
            own = end[row + job.carried_place[at]]
            stream_end[rank, column] = own if not isnan(own) else otherwise[base + job.carried_place[at]]


@compiled
def push_pending(pending: Floats, rank: int, head: int, size: int, start: float) -> int:
    """Let one more launch into a rank's queue, in place of the earliest start; return the new head.

    The queue is a ring of `size` places: from `head` on starts ascend. A start that is unknown, or before all of them,
    changes nothing.
    """
    if not start > pending[rank, head]:
        return head
    at = head
    head = 0 if head + 1 == size else head + 1
    while at != head:
        previous = size - 1 if at == 0 else at - 1
        if not pending[rank, previous] > start:
            break
        pending[rank, at] = pending[rank, previous]
        at = previous
    pending[rank, at] = start
    return head


@compiled
def turn_pending(pending: Floats, rank: int, head: int, size: int, room: Floats) -> None:
    """Put a rank's queue in order, the earliest start first; `room` (places,) is overwritten."""
    if head > 0:
        for at in range(size):
            room[at] = pending[rank, (head + at) % size]
        for at in range(size):
            pending[rank, at] = room[at]


def same_state(one: Floats, other: Floats) -> Bools:
    """Return, (…,), where two states are equal; unknown equals unknown."""
    found: Bools = (one == other) | (np.isnan(one) & np.isnan(other))
    return found
