"""A step in the order of the hosts: activities as they were launched, synchronising calls between them.

Ranks that did the same in the same order share a sheet, one row each: what is computed for one is computed for all.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from jitter.core.arrays import Bools, Floats, Ints, IntTimes, KindCodes, has_unknown, is_unknown, unknown_value
from jitter.core.kernels import MEMORY, SYNC

Time = Literal["start", "end", "call", "back"]
"""Of `Times`, and of `Activities`."""
Signature = tuple[str, bytes]
"""Digest of the kernels' sequence, digest of where copies and synchronising calls stand."""


@dataclass(frozen=True)
class Activities:
    """Ranks that ran the same kinds of activity in the same order: (ranks, rows).

    Times are whole ns from each rank's zero, unknown as in `whole_times`.
    """

    ranks: Ints
    sequence: str
    """Digest of the kernels that all of them ran."""
    kind: KindCodes
    """(rows,)."""
    zero_ns: Ints
    """(ranks,) what times count from, on each rank's clock."""
    start: IntTimes
    end: IntTimes
    call: IntTimes
    back: IntTimes

    def of(self, which: Ints | slice) -> "Activities":
        """The same for some of the ranks."""
        times = (values[which] for values in (self.start, self.end, self.call, self.back))
        return Activities(self.ranks[which], self.sequence, self.kind, self.zero_ns[which], *times)


@dataclass(frozen=True)
class Syncs:
    """The synchronising calls of a step's ranks, each one's by start; times in ns on its clock."""

    ranks: Ints
    """(ranks,) ascending; who is not among them made none."""
    first: Ints
    """(ranks,) where each one's calls begin in what follows."""
    last: Ints
    """(ranks,) where they are over."""
    start_ns: Ints
    """(calls,)."""
    end_ns: Ints
    """(calls,)."""
    thread: Ints
    """(calls,)."""
    name: Ints
    """(calls,) position in `names`."""
    names: tuple[str, ...]

    def of(self, ranks: Ints) -> tuple[Ints, Ints]:
        """(ranks,) where the calls of each of these begin, and how many there are."""
        if not len(self.ranks):
            return np.zeros(len(ranks), np.int64), np.zeros(len(ranks), np.int64)
        at = np.minimum(np.searchsorted(self.ranks, ranks), len(self.ranks) - 1)
        there = self.ranks[at] == ranks
        return np.where(there, self.first[at], 0), np.where(there, self.last[at] - self.first[at], 0)

    def by(self, rank: int) -> list[tuple[str, int]]:
        """One rank's: the name and the thread of each."""
        (first,), (count,) = self.of(np.array([rank]))
        which = slice(first, first + count)
        return [(self.names[name], thread) for name, thread in zip(self.name[which], self.thread[which], strict=True)]


_FEW_CALLS: Final = 8


@dataclass(frozen=True)
class Times:
    """Of some operations, (operations, ranks): ns from each rank's origin, NaN where unknown."""

    start: Floats
    """On the GPU; NaN for synchronising calls."""
    end: Floats
    call: Floats
    """When the host began the launch, or the synchronising call; of a graph's activities only the first has it."""
    back: Floats
    """When that call returned."""


@dataclass(frozen=True)
class Sheet:
    """Ranks that did the same. Their times are laid out for as many operations as are asked for."""

    ranks: Ints
    signature: Signature
    kind: KindCodes
    """(operations,) codes of `kinds`."""
    row: Ints
    """(operations,) the row in the rank's file (its ordinal); -1 for synchronising calls."""
    calls: tuple[str, ...]
    """The names of the synchronising calls, in order."""
    activities: Activities
    """Calls' times cut where waits begin, and of one launch's activities left to the first."""
    begun: Ints
    """(ranks, calls) when each synchronising call began, from the activities' zero; and when it ended."""
    ended: Ints
    since: Floats
    """(ranks,) the activities' zero, from the rank's origin."""

    def times(self, first: int = 0, last: int | None = None) -> Times:
        """Lay out the operations from `first` up to but not including `last` (all)."""
        return Times(*(self.laid_out(time, first, last) for time in ("start", "end", "call", "back")))

    def laid_out(self, time: Time, first: int = 0, last: int | None = None) -> Floats:
        """Do it with one of the times."""
        values: IntTimes = getattr(self.activities, time)
        last = len(self.row) if last is None else last
        waits = self._waits[(self._waits >= first) & (self._waits < last)]
        found = np.empty((last - first, len(self.ranks)))
        for begin, end in pairwise([first - 1, *waits.tolist(), last]):
            row = begin + 1 - int(np.searchsorted(self._waits, begin, side="right"))
            found[begin + 1 - first : end - first] = values[:, row : row + end - begin - 1].T
        found[waits - first] = 0.0
        if self._some_unknown:
            found[found == unknown_value(values.dtype)] = np.nan
        found += self.since
        for wait in waits.tolist():
            found[wait - first] = self._of_wait(time, wait)
        return found

    def one(self, time: Time, place: int) -> Floats:
        """(ranks,) one of the times of one operation."""
        row = int(self.row[place])
        if row < 0:
            return self._of_wait(time, place)
        values = getattr(self.activities, time)[:, row]
        found: Floats = values + self.since
        if self._some_unknown:
            found[is_unknown(values)] = np.nan
        return found

    def latest_end(self, first: int = 0, last: int | None = None) -> Floats:
        """(ranks,) the greatest of these operations' ends; NaN where none is known."""
        rows = self.row[first:last]
        rows = rows[rows >= 0]
        if not len(rows):
            return np.full(len(self.ranks), np.nan)
        latest = self.activities.end[:, rows[0] : rows[-1] + 1].max(axis=1)  # the unknown is least
        return np.where(is_unknown(latest), np.nan, latest + self.since)

    @cached_property
    def is_called(self) -> Bools:
        """(operations,) whether all ranks' calls are known."""
        found = np.ones(len(self.row), np.bool_)
        if self._some_unknown:
            found[self.row >= 0] = ~is_unknown(self.activities.call).any(axis=0)
        return found

    def columns(self, which: Ints | slice) -> "Sheet":
        """The same for some of the ranks."""
        fewer = self.activities.of(which)
        of_ranks = (self.begun[which], self.ended[which], self.since[which])
        return Sheet(fewer.ranks, self.signature, self.kind, self.row, self.calls, fewer, *of_ranks)

    def _of_wait(self, time: Time, place: int) -> Floats:
        """Of a synchronising call, which has no times on the GPU."""
        if time in ("start", "end"):
            return np.full(len(self.ranks), np.nan)
        number = int(np.searchsorted(self._waits, place))
        return (self.begun if time == "call" else self.ended)[:, number] + self.since

    @cached_property
    def _waits(self) -> Ints:
        """Places of synchronising calls."""
        return np.flatnonzero(self.row < 0)

    @cached_property
    def _some_unknown(self) -> bool:
        part = self.activities
        return any(has_unknown(values) for values in (part.start, part.end, part.call, part.back))


def sheets(activities: Activities, syncs: Syncs, origins: Mapping[int, int]) -> Iterator[Sheet]:
    """Divide ranks by what they did; `origins` are each one's on its clock."""
    first, count = syncs.of(activities.ranks)
    for members, calls in _by_names(syncs.name, first, count):
        part = _of(activities, members)
        begun, ended = (times[calls] - part.zero_ns[:, None] for times in (syncs.start_ns, syncs.end_ns))
        names = tuple(syncs.names[name] for name in syncs.name[calls[0]].tolist())
        where = _launched_before(part.call, begun)
        for rows in _alike(where):
            yield _sheet(_of(part, rows), names, begun[rows], ended[rows], where[rows[0]], origins)


def _by_names(name: Ints, first: Ints, count: Ints) -> list[tuple[Ints, Ints]]:
    """Put ranks that made the same calls together: their rows, and (those, calls) which calls; by the first rank."""
    found = []
    for calls in np.unique(count).tolist():
        rows = np.flatnonzero(count == calls)
        which = first[rows, None] + np.arange(calls)
        found += [(rows[alike], which[alike]) for alike in _alike(name[which])]
    return sorted(found, key=lambda one: int(one[0][0]))


def _alike(rows: Ints) -> list[Ints]:
    """Rows of an array that are equal: where each of them stands, by the first."""
    if (rows == rows[:1]).all():
        return [np.arange(len(rows))]
    found: dict[bytes, list[int]] = {}
    for at, row in enumerate(rows):
        found.setdefault(row.tobytes(), []).append(at)
    return [np.array(places) for places in found.values()]


def _of(whole: Activities, rows: Ints) -> Activities:
    return whole if len(rows) == len(whole.ranks) else whole.of(rows)


def _launched_before(call: IntTimes, begun: Ints) -> Ints:
    """(ranks, syncs): how many activities each rank had launched, or was launching, when it began each call.

    A blocking copy is both a launch and a call that waits: the launch comes first.
    """
    ranks, rows = call.shape
    if begun.shape[1] <= _FEW_CALLS:
        limits = np.iinfo(call.dtype)
        found = np.empty(begun.shape, np.int64)
        for own, column in zip(found.T, np.clip(begun.T, limits.min, limits.max).astype(call.dtype), strict=True):
            later = call > column[:, None]  # the unknown is least
            own[:] = np.where(later.any(axis=1), later.argmax(axis=1), rows)
        return found
    launched = np.maximum.accumulate(call, axis=1).astype(np.int64)
    nowhere = launched == unknown_value(call.dtype)
    if nowhere.any():
        launched[nowhere] = min(int(launched.min(where=~nowhere, initial=0)), int(begun.min())) - 1
    # one search for all ranks: each one's times above those of the rank before
    first = min(int(launched.min()), int(begun.min()))
    apart = (max(int(launched.max()), int(begun.max())) - first + 1) * np.arange(ranks)[:, None] - first
    found = np.searchsorted((launched + apart).ravel(), begun + apart, side="right")
    found -= rows * np.arange(ranks)[:, None]
    return found


def _sheet(
    part: Activities, names: tuple[str, ...], begun: Ints, ended: Ints, where: Ints, origins: Mapping[int, int]
) -> Sheet:
    """Put calls, (ranks, calls), before the rows `where` they stand."""
    call, back = _once_a_launch(part.call, _cut_where_waits_begin(part, begun, where))
    kind = np.insert(part.kind, where, SYNC)
    row = np.insert(np.arange(len(part.kind)), where, -1)
    since = (part.zero_ns - np.array([origins[rank] for rank in part.ranks.tolist()], np.int64)).astype(np.float64)
    apart = np.flatnonzero(kind >= MEMORY)
    shape = hashlib.blake2b(digest_size=8)
    shape.update(apart.astype(np.int32).tobytes() + kind[apart].tobytes() + repr(names).encode())
    signature = (part.sequence, shape.digest())
    return Sheet(part.ranks, signature, kind, row, names, replace(part, call=call, back=back), begun, ended, since)


def _once_a_launch(call: IntTimes, back: IntTimes) -> tuple[IntTimes, IntTimes]:
    """Of the activities of one launch (a graph's) the first alone keeps the call's times."""
    again = call[:, 1:] == call[:, :-1]
    if not again.any():
        return call, back
    again &= call[:, 1:] != unknown_value(call.dtype)
    call, back = call.copy(), back.copy()
    call[:, 1:][again] = back[:, 1:][again] = unknown_value(call.dtype)
    return call, back


def _cut_where_waits_begin(part: Activities, begun: Ints, where: Ints) -> IntTimes:
    """When launches returned; a blocking copy's launch ends where its wait begins: no later than the copy itself."""
    found = part.back
    for number, at in enumerate(where.tolist()):
        if at > 0:
            blocking = part.call[:, at - 1] == begun[:, number]
            if blocking.any():
                found = part.back.copy() if found is part.back else found
                until = np.clip(part.start[:, at - 1], part.call[:, at - 1], part.back[:, at - 1])
                found[:, at - 1] = np.where(blocking, until, found[:, at - 1])
    return found
