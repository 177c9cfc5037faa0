"""What held each operation back, as recorded: the host's last call, the stream's last end, those of the step before."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jitter.program import Program
from jitter.sheets import SYNC, Floats, Ints
from jitter.step_arrays import StepArrays


@dataclass(frozen=True)
class Tail:
    """How a step left its ranks (columns), for the next one; NaN where that is unknown. ns from each rank's zero."""

    lane_end: Floats
    """(lanes, ranks) the last end on each stream."""
    back: Floats
    """(threads, ranks) the return of the last call."""
    starts: Floats
    """(pending, ranks) the latest starts, ascending: what the launch queue holds."""


@dataclass(frozen=True)
class Readiness:
    """(operations, ranks); ns from each rank's zero, NaN where nothing is known."""

    back_before: Floats
    """The return of the host's call before."""
    submit: Floats
    """When the GPU had it: the launch's return, or the start if that is earlier; a graph's activities share it."""
    end_before: Floats
    """The end of the operation before it on its stream."""
    end: Floats
    """Its own, as recorded; NaN where a rank lacks it."""

    def strip(self, rows: slice) -> "Readiness":
        """Some of the operations."""
        return Readiness(self.back_before[rows], self.submit[rows], self.end_before[rows], self.end[rows])

    def end_by(self, places: int | slice) -> Floats:
        """The end of the latest on its stream up to and with it: its own, or, where a rank lacks it, the one before."""
        own = self.end[places]
        return np.where(np.isnan(own), self.end_before[places], own)


def no_tail(lanes: int, threads: int, ranks: int, queue: int | None) -> Tail:
    """Nothing known of a step before."""
    return Tail(
        np.full((lanes, ranks), np.nan), np.full((threads, ranks), np.nan), np.full((queue or 0, ranks), -np.inf)
    )


def carried(values: Floats, first: Floats) -> tuple[Floats, Floats]:
    """For each row the latest known value of the rows above it (`first` above all), and what the last row leaves."""
    stacked = np.concatenate([first[None, :], values])
    if np.isnan(values).any():
        unknown = np.isnan(stacked)
        known = np.where(unknown, 0, np.arange(len(stacked))[:, None])
        stacked = np.take_along_axis(stacked, np.maximum.accumulate(known, axis=0), axis=0)
    return stacked[:-1], stacked[-1]


def latest(values: Floats, first: Floats) -> tuple[Floats, Floats]:
    """For each row the greatest value of the rows above it and of `first`, and what the last row leaves."""
    stacked = np.concatenate([first[None, :], values])
    np.fmax.accumulate(stacked, axis=0, out=stacked)
    return stacked[:-1], stacked[-1]


def threads_of(program: Program) -> Ints:
    """(operations,) whose calls each follows: one chain, 0, unless the threads' launches interleave.

    Autograd's thread takes over for a whole pass and hands back; threads that launch at the same time do not wait for
    each other.
    """
    own = np.array([op.thread for op in program.operations], np.int64)
    switches = int((np.diff(own) != 0).sum())
    threads = len(np.unique(own))
    return own if threads > 1 and switches > _SWITCHES * threads else np.zeros_like(own)


_SWITCHES = 4
"""Switches per thread and step up to which threads are taken to hand over to each other."""


def readiness(
    program: Program, thread: Ints, step: StepArrays, tail: Tail, rows: slice = slice(None)
) -> tuple[Readiness, Tail]:
    """Follow each rank's host and streams through the step, or those operations of it that `rows` says.

    `step` holds these, `tail` is how the ranks come to them; returns also how these leave them.
    """
    kinds = program.kinds[rows]
    back_before, left_back = _follow(carried, step.back, thread[rows], tail.back)
    # a later kernel of a stream may end before an earlier one that overlaps it
    end_before, left_end = _follow(latest, step.end, program.lanes[rows], tail.lane_end)
    unknown = np.isnan(step.back)
    launched = np.where(unknown, back_before, step.back) if unknown.any() else step.back
    submit = np.minimum(launched, step.start)  # NaN where either is
    starts = tail.starts
    if len(starts):
        for at in np.flatnonzero(kinds != SYNC):
            starts = pushed(starts, step.start[at])
    return Readiness(back_before, submit, end_before, step.end), Tail(left_end, left_back, starts)


def _follow(
    rule: Callable[[Floats, Floats], tuple[Floats, Floats]], values: Floats, of: Ints, first: Floats
) -> tuple[Floats, Floats]:
    """Apply a rule to the operations of each thread, or stream, by itself; NaN for those of none."""
    left = first.copy()
    here = np.unique(of)
    if len(here) == 1 and 0 <= here[0] < len(first):
        before, left[here[0]] = rule(values, first[here[0]])
        return before, left
    before = np.full_like(values, np.nan)
    for number in here[(here >= 0) & (here < len(first))]:
        rows = np.flatnonzero(of == number)
        before[rows], left[number] = rule(values[rows], first[number])
    return before, left


def pushed(pending: Floats, start: Floats) -> Floats:
    """Keep the greatest starts of those pending (ascending) and a further one; NaN changes nothing."""
    above = np.concatenate([pending[1:], np.full((1, pending.shape[1]), np.inf)])
    moved = np.clip(start, pending, above)
    return np.where(np.isnan(start), pending, moved)
