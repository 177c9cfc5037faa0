"""What held each operation back, as recorded: the host's last call, the stream's last end, those of the step before."""

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
    end_by: Floats
    """The end of the latest on its stream up to and with it: its own, or, where a rank lacks it, the one before."""


def no_tail(lanes: int, threads: int, ranks: int, queue: int | None) -> Tail:
    """Nothing known of a step before."""
    return Tail(
        np.full((lanes, ranks), np.nan), np.full((threads, ranks), np.nan), np.full((queue or 0, ranks), -np.inf)
    )


def carried(values: Floats, first: Floats) -> tuple[Floats, Floats]:
    """For each row the latest known value of the rows above it (`first` above all), and what the last row leaves."""
    stacked = np.concatenate([first[None, :], values])
    known = np.where(np.isnan(stacked), 0, np.arange(len(stacked))[:, None])
    latest = np.maximum.accumulate(known, axis=0)
    filled = np.take_along_axis(stacked, latest, axis=0)
    return filled[:-1], filled[-1]


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


def readiness(program: Program, thread: Ints, step: StepArrays, tail: Tail) -> tuple[Readiness, Tail]:
    """Follow each rank's host and streams through the step; returns also how the step leaves them."""
    lanes = np.array([op.lane for op in program.operations], np.int64)
    back_before, end_before = np.full_like(step.back, np.nan), np.full_like(step.end, np.nan)
    left_back, left_end = tail.back.copy(), tail.lane_end.copy()
    for number in range(len(left_back)):
        rows = np.flatnonzero(thread == number)
        back_before[rows], left_back[number] = carried(step.back[rows], tail.back[number])
    for lane in range(len(left_end)):
        rows = np.flatnonzero(lanes == lane)
        # a later kernel of a stream may end before an earlier one that overlaps it
        ends = np.fmax.accumulate(np.concatenate([tail.lane_end[lane][None], step.end[rows]]), axis=0)[1:]
        end_before[rows], left_end[lane] = carried(np.where(step.present[rows], ends, np.nan), tail.lane_end[lane])
    launched = np.where(np.isnan(step.back), back_before, step.back)
    submit = np.where(step.present & ~np.isnan(step.start), np.fmin(launched, step.start), np.nan)
    submit[np.isnan(launched)] = np.nan
    syncs = np.array([op.kind == SYNC for op in program.operations], np.bool_)
    starts = tail.starts
    if len(starts):
        for at in np.flatnonzero(~syncs):
            starts = pushed(starts, step.start[at])
    end_by = np.where(np.isnan(step.end), end_before, step.end)
    return Readiness(back_before, submit, end_before, end_by), Tail(left_end, left_back, starts)


def pushed(pending: Floats, start: Floats) -> Floats:
    """Keep the greatest starts of those pending (ascending) and a further one; NaN changes nothing."""
    above = np.concatenate([pending[1:], np.full((1, pending.shape[1]), np.inf)])
    moved = np.clip(start, pending, above)
    return np.where(np.isnan(start), pending, moved)
