"""Lengths of unions of time intervals, for all ranks of a step at once."""

from typing import NamedTuple

import numpy as np

from jitter.core.numeric.arrays import Ints


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
        found = np.zeros(len(self._origin), np.int64)
        np.add.at(found, rank, self._end - self._start)
        return found

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
        known = np.maximum(at, 0)
        within = np.clip(time - self._start[known], 0, self._end[known] - self._start[known])
        return np.where(at >= 0, self._covered[known] + within, 0)
