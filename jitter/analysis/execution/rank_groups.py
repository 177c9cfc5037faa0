"""Ranks that did the same in one step, in launch order: activities, and synchronising calls between them.

A rank's signature tells which program places its operations have.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from jitter.core.names.kernels import MEMORY, SYNC
from jitter.core.numeric.arrays import Bools, Floats, Ints, IntTimes, KindCodes
from jitter.core.numeric.compilation import compiled

Signature = tuple[str, bytes]
"""Digest of the kernels' sequence, digest of where copies and synchronising calls stand."""


@dataclass(frozen=True)
class StepActivities:
    """Ranks that ran the same kinds of activity in the same order. Times are whole ns, unknown as in `arrays`."""

    ranks: Ints
    sequence: str
    """Digest of the kernels that all of them ran."""
    kind: KindCodes
    """(activities,)."""
    zero_ns: Ints
    """(ranks,) what times count from, on each rank's clock."""
    times: IntTimes
    """(ranks, 4, activities): start and end on the GPU, begin and return of the launching call."""


@dataclass(frozen=True)
class StepSyncCalls:
    """The synchronising calls of a step's ranks, each one's by start; times in ns on its clock."""

    ranks: Ints
    """(ranks,) ascending; a rank that is not among them made none."""
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
        """Return, (ranks,) each, where the calls of these ranks begin, and how many there are."""
        if not len(self.ranks):
            return np.zeros(len(ranks), np.int64), np.zeros(len(ranks), np.int64)
        at = np.minimum(np.searchsorted(self.ranks, ranks), len(self.ranks) - 1)
        there = self.ranks[at] == ranks
        return np.where(there, self.first[at], 0), np.where(there, self.last[at] - self.first[at], 0)

    def by(self, rank: int) -> list[tuple[str, int]]:
        """Return the name and the thread of each call of one rank."""
        (first,), (count,) = self.of(np.array([rank]))
        which = slice(first, first + count)
        return [(self.names[name], thread) for name, thread in zip(self.name[which], self.thread[which], strict=True)]


@dataclass(frozen=True)
class IdenticalRanks:
    """Ranks that ran the same operations in the same order in one step."""

    ranks: Ints
    signature: Signature
    kind: KindCodes
    """(operations,) codes of `kernels.KINDS`, or `SYNC`."""
    row: Ints
    """(operations,) the row in the rank's file (its launch order); -1 for synchronising calls."""
    calls: tuple[str, ...]
    """The names of the synchronising calls, in order."""
    times: IntTimes
    """(ranks, 4, activities), as in `StepActivities`."""
    begun: Ints
    """(ranks, calls) when each synchronising call began, from the activities' zero."""
    ended: Ints
    """(ranks, calls) when it returned."""
    since: Floats
    """(ranks,) the activities' zero, from the rank's origin."""


def group_identical_ranks(
    activities: StepActivities, syncs: StepSyncCalls, origins: Mapping[int, int]
) -> Iterator[IdenticalRanks]:
    """Yield groups of ranks with equal operations, by their first ranks; `origins` are by rank, on its clock."""
    first, count = syncs.of(activities.ranks)
    for members, calls in _by_names(syncs.name, first, count):
        zero = activities.zero_ns[members, None]
        begun, ended = syncs.start_ns[calls] - zero, syncs.end_ns[calls] - zero
        times = activities.times if len(members) == len(activities.ranks) else activities.times[members]
        names = tuple(syncs.names[name] for name in syncs.name[calls[0]].tolist())
        where = np.zeros(begun.shape, np.int64)
        if names:
            find_places_of_calls(times, begun, where)
        for rows in _alike(where):
            which = members[rows]
            since = [int(activities.zero_ns[at]) - origins[int(activities.ranks[at])] for at in which]
            kind = np.insert(activities.kind, where[rows[0]], SYNC)
            yield IdenticalRanks(
                activities.ranks[which],
                (activities.sequence, _shape(kind, names)),
                kind,
                np.insert(np.arange(len(activities.kind)), where[rows[0]], -1),
                names,
                times if len(rows) == len(times) else times[rows],
                begun[rows],
                ended[rows],
                np.array(since, np.float64),
            )


@compiled
def find_places_of_calls(times: IntTimes, begun: Ints, where: Ints) -> None:
    """Count, (ranks, calls), the activities that each rank had launched, or was launching, when it began each call.

    A blocking copy is both a launch and a call that waits: the launch comes first. Each rank's calls ascend.
    """
    for rank in range(len(begun)):
        launched = 0
        for call in range(begun.shape[1]):
            # the unknown is least
            while launched < times.shape[2] and times[rank, 2, launched] <= begun[rank, call]:
                launched += 1
            where[rank, call] = launched


def _by_names(name: Ints, first: Ints, count: Ints) -> list[tuple[Ints, Ints]]:
    """Return ranks with equal calls together: their rows, and, (these ranks, calls), positions of their calls."""
    found = []
    for calls in np.unique(count).tolist():
        rows = np.flatnonzero(count == calls)
        which = first[rows, None] + np.arange(calls)
        found += [(rows[alike], which[alike]) for alike in _alike(name[which])]
    return sorted(found, key=lambda one: int(one[0][0]))


def _alike(rows: Ints) -> list[Ints]:
    """Return the positions of equal rows of an array together, in the order of their first."""
    same: Bools = (rows == rows[:1]).all(axis=1)
    if same.all():
        return [np.arange(len(rows))]
    found: dict[bytes, list[int]] = {}
    for at, row in enumerate(rows):
        found.setdefault(row.tobytes(), []).append(at)
    return [np.array(places) for places in found.values()]


def _shape(kind: KindCodes, names: tuple[str, ...]) -> bytes:
    """Return a digest of the positions of copies and synchronising calls, and of the calls' names."""
    apart = np.flatnonzero(kind >= MEMORY)
    shape = hashlib.blake2b(digest_size=8)
    shape.update(apart.astype(np.int32).tobytes() + kind[apart].tobytes() + repr(names).encode())
    return shape.digest()
