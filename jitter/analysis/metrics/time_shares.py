"""Split of each rank's step time: compute, hidden and exposed communication, waiting, copies, idle."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.metrics.collective_calls import Calls
from jitter.core.numeric.arrays import Ints, pieces_of
from jitter.lake.step_reader import StepColumns


class Intervals(NamedTuple):
    """Intervals of several ranks; each array is shape (intervals,), times in ns on the rank's own clock."""

    rank: Ints
    """Position of the rank, from 0."""
    start: Ints
    end: Ints

    def joined(self, other: "Intervals") -> "Intervals":
        """Return the intervals of both."""
        return Intervals(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))

    def of_ranks(self, ranks: slice) -> "Intervals":
        """Return the intervals of a range of ranks, whose positions then count from 0; intervals are in rank order."""
        first, last = np.searchsorted(self.rank, [ranks.start, ranks.stop])
        return Intervals(self.rank[first:last] - ranks.start, self.start[first:last], self.end[first:last])


class Coverage:
    """The union of intervals: how much time of each rank it covers, and how much of any interval."""

    def __init__(self, intervals: Intervals, origin: Ints, span: int) -> None:
        """Merge them. `origin` (ranks,) is before each rank's times; no time is `span` or more after it."""
        self._origin = origin
        self._span = span + 1
        start, end = self._shifted(intervals.rank, intervals.start), self._shifted(intervals.rank, intervals.end)
        order = np.argsort(start, kind="stable")
        start, reached = start[order], np.maximum.accumulate(end[order])
        before = np.concatenate([[-1], reached[:-1]]) if len(reached) else reached
        first = np.flatnonzero(start > before)
        self._start = start[first]
        self._end = reached[np.append(first[1:], len(start)) - 1] if len(first) else reached
        self._covered = np.concatenate([[0], np.cumsum(self._end - self._start)])

    def per_rank(self) -> Ints:
        """Return the covered time of each rank in ns, shape (ranks,)."""
        rank = self._start // self._span
        covered_ns = np.zeros(len(self._origin), np.int64)
        np.add.at(covered_ns, rank, self._end - self._start)
        return covered_ns

    def of(self, intervals: Intervals) -> Ints:
        """Return how much of each interval is covered, in ns, shape (intervals,)."""
        return self._until(self._shifted(intervals.rank, intervals.end)) - self._until(
            self._shifted(intervals.rank, intervals.start)
        )

    def _shifted(self, rank: Ints, time: Ints) -> Ints:
        """Return times on one axis, on which ranks follow each other."""
        return time - self._origin[rank] + rank * self._span

    def _until(self, time: Ints) -> Ints:
        if not len(self._start):
            return np.zeros(len(time), np.int64)
        at = np.searchsorted(self._start, time, side="right") - 1
        interval = np.maximum(at, 0)
        within = np.clip(time - self._start[interval], 0, self._end[interval] - self._start[interval])
        return np.where(at >= 0, self._covered[interval] + within, 0)


SHARES: Final = ("compute", "hidden", "exposed", "waiting", "copies", "idle")
"""compute: kernels without communication at the same time; hidden: communication at the same time as compute; exposed:
communication alone; waiting: in a collective for its last rank, without compute; copies: copies and fills alone; idle:
the rest, in which the GPU waits for its host to launch."""
_ROWS_AT_ONCE: Final = 50_000
"""Rows whose intervals are merged at once, some 300 bytes each."""


@dataclass(frozen=True)
class StepShares:
    """Times of one step in ns; arrays are shape (ranks,) unless stated."""

    ranks: tuple[int, ...]
    busy_ns: Ints
    """Shape (5, ranks): `SHARES` without idle."""
    first_ns: Ints
    """First start of an activity, on the rank's clock."""
    last_ns: Ints
    """Last end of an activity."""
    hidden_ns: Ints
    """Of each kernel of the calls, shape (kernels,)."""
    exposed_ns: Ints
    """The rest of each kernel: exposed communication and waiting."""


def measure_shares(read: StepColumns, calls: Calls) -> StepShares | None:
    """Measure a step; None if no rank has a kernel in it."""
    if not any(read.rows):
        return None
    start, end = read.values("start_ns"), read.values("end_ns")
    has_rows = np.array(read.rows, np.int64) > 0
    first, last = np.zeros((2, len(read.ranks)), np.int64)
    at = read.bounds[:-1][has_rows]
    first[has_rows], last[has_rows] = np.minimum.reduceat(start, at), np.maximum.reduceat(end, at)
    is_compute, is_copy = (read.equals("kind", kind) for kind in ("compute", "memory"))
    kernels = calls.kernels
    transfer_start = np.where(
        calls.time_ns[kernels.call] >= 0, kernels.end_ns - calls.time_ns[kernels.call], kernels.start_ns
    )
    transfers = Intervals(kernels.rank, np.maximum(transfer_start, kernels.start_ns), kernels.end_ns)
    whole = Intervals(kernels.rank, kernels.start_ns, kernels.end_ns)
    parts = []
    for ranks in pieces_of(read.bounds, _ROWS_AT_ONCE):
        rows = slice(*read.bounds[[ranks.start, ranks.stop]].tolist())
        of_rank = read.of_rank[rows] - ranks.start
        compute, copies = (
            Intervals(of_rank[chosen], start[rows][chosen], end[rows][chosen])
            for chosen in (is_compute[rows], is_copy[rows])
        )
        intervals = (compute, copies, transfers.of_ranks(ranks), whole.of_ranks(ranks))
        parts.append(_shares_of_ranks(intervals, first[ranks], int((last - first)[ranks].max())))
    busy, hidden = (np.concatenate(some, axis=-1) for some in zip(*parts, strict=True))
    return StepShares(read.ranks, busy, first, last, hidden, whole.end - whole.start - hidden)


def _shares_of_ranks(intervals: Sequence[Intervals], first: Ints, span: int) -> tuple[Ints, Ints]:
    """Return, (5, ranks), `SHARES` without idle, and, (kernels of calls,), the hidden time of each.

    `intervals` are compute kernels, copies, transfers and whole kernels of calls; `first` (ranks,) and `span` are as in
    `Coverage`.
    """
    compute, copies, transfers, whole = intervals
    of_compute = Coverage(compute, first, span)
    in_compute, in_calls = of_compute.per_rank(), Coverage(whole, first, span).per_rank()
    with_transfers = Coverage(compute.joined(transfers), first, span).per_rank()
    with_calls = Coverage(compute.joined(whole), first, span).per_rank()
    with_copies = Coverage(compute.joined(whole).joined(copies), first, span).per_rank()
    hidden = in_compute + in_calls - with_calls
    busy = (
        *(in_compute - hidden, hidden, with_transfers - in_compute, with_calls - with_transfers),
        with_copies - with_calls,
    )
    return np.stack(busy), of_compute.of(whole)
