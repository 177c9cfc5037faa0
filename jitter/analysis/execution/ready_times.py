"""What held each operation back, as recorded: the host's last call, the stream's last end, those of the step before."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from jitter.analysis.execution.program import Program
from jitter.analysis.execution.step_times import Recorded
from jitter.core.arrays import Floats, Ints
from jitter.core.kernels import SYNC


@dataclass(frozen=True)
class Tail:
    """How a step left its ranks (columns), for the next one; NaN where that is unknown. ns from each rank's zero."""

    lane_end: Floats
    """(lanes, ranks) the last end on each stream."""
    back: Floats
    """(threads, ranks) the return of the last call."""
    starts: Floats
    """(pending, ranks) the latest starts, ascending: what the launch queue holds."""

    def columns(self, which: Ints | slice) -> "Tail":
        """The same for some of the ranks."""
        return Tail(self.lane_end[:, which], self.back[:, which], self.starts[:, which])


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


def carried(values: Floats, first: Floats) -> Floats:
    """For each row the latest known value of the rows above it (`first` above all)."""
    stacked = np.concatenate([first[None, :], values[:-1]])
    unknown = np.isnan(stacked)
    if unknown[1:].any():
        known = np.where(unknown, 0, np.arange(len(stacked))[:, None])
        stacked = np.take_along_axis(stacked, np.maximum.accumulate(known, axis=0), axis=0)
    return stacked


def latest(values: Floats, first: Floats) -> Floats:
    """For each row the greatest value of the rows above it and of `first`."""
    stacked = np.concatenate([first[None, :], values[:-1]])
    if not (stacked[1:] >= stacked[:-1]).all():
        np.fmax.accumulate(stacked, axis=0, out=stacked)
    return stacked


def threads_of(program: Program, steps: Iterable[Recorded]) -> Ints:
    """(operations,) whose calls each follows: one chain, 0, unless the threads' launches interleave in these steps.

    Autograd's thread takes over for a whole pass and hands back; threads that launch at the same time do not wait for
    each other.
    """
    own = np.array([op.thread for op in program.operations], np.int64)
    switches = int((np.diff(own) != 0).sum())
    threads = len(np.unique(own))
    interleave = threads > 1 and switches > _SWITCHES * threads and not _take_turns(own, steps)
    return own if interleave else np.zeros_like(own)


def _take_turns(own: Ints, steps: Iterable[Recorded]) -> bool:
    """Whether the threads' calls follow each other however often they switch, none beginning while another's lasts.

    So do forward and backward passes of a pipeline's micro-batches: whatever holds up one thread holds up the other.
    """
    first = np.flatnonzero(np.diff(own) != 0)
    overlapping = switches = 0
    for step in steps:
        returned, called = step.back[first], step.call[first + 1]
        switches += int((~np.isnan(returned + called)).sum())
        overlapping += int((called < returned).sum())
    return overlapping <= _OVERLAPPING * switches


_OVERLAPPING = 0.01
"""Part of the switches at which a profiler's clock may err."""
_SWITCHES = 4
"""Switches per thread and step up to which threads are taken to hand over to each other."""


def readiness(program: Program, thread: Ints, step: Recorded, tail: Tail, rows: slice = slice(None)) -> Readiness:
    """Follow each rank's host and streams through the step, or those operations of it that `rows` says.

    `step` holds these, `tail` is how the ranks come to them.
    """
    back_before = _follow(carried, step.back, thread[rows], tail.back)
    # a later kernel of a stream may end before an earlier one that overlaps it
    end_before = _follow(latest, step.end, program.lanes[rows], tail.lane_end)
    unknown = np.isnan(step.back)
    launched = np.where(unknown, back_before, step.back) if unknown.any() else step.back
    return Readiness(back_before, np.minimum(launched, step.start), end_before, step.end)  # NaN where either is


def _follow(rule: Callable[[Floats, Floats], Floats], values: Floats, of: Ints, first: Floats) -> Floats:
    """Apply a rule to the operations of each thread, or stream, by itself; NaN for those of none."""
    here = np.unique(of)
    if len(here) == 1 and 0 <= here[0] < len(first):
        return rule(values, first[here[0]])
    before = np.full_like(values, np.nan)
    for number in here[(here >= 0) & (here < len(first))]:
        rows = np.flatnonzero(of == number)
        before[rows] = rule(values[rows], first[number])
    return before


def left_by(program: Program, thread: Ints, step: Recorded, tail: Tail, rows: slice = slice(None)) -> Tail:
    """Tell how a step, or those operations of it that `rows` says, leaves the ranks who come to it as `tail` says."""
    lane_end, back, starts = tail.lane_end.copy(), tail.back.copy(), tail.starts
    lanes, threads = program.lanes[rows], thread[rows]
    runs = [0, *(np.flatnonzero(np.diff(lanes)) + 1).tolist(), len(lanes)]
    for first, last in pairwise(runs if len(lanes) else []):
        if 0 <= lanes[first] < len(lane_end):
            np.fmax(lane_end[lanes[first]], step.latest_end(first, last), out=lane_end[lanes[first]])
    for number in np.unique(threads):
        unknown = np.ones(back.shape[1], np.bool_)
        for at in np.flatnonzero(threads == number)[::-1]:
            own = step.row("back", at)
            back[number] = np.where(unknown & ~np.isnan(own), own, back[number])
            unknown &= np.isnan(own)
            if not unknown.any():
                break
    if len(starts):
        for at in np.flatnonzero(program.kinds[rows] != SYNC):
            starts = pushed(starts, step.start[at])
    return Tail(lane_end, back, starts)


def pushed(pending: Floats, start: Floats) -> Floats:
    """Keep the greatest starts of those pending (ascending) and a further one; NaN changes nothing."""
    above = np.concatenate([pending[1:], np.full((1, pending.shape[1]), np.inf)])
    moved = np.clip(start, pending, above)
    return np.where(np.isnan(start), pending, moved)
