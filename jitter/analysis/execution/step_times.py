"""One step as recorded: four times of every operation of every rank, in launch order along the team's program.

Ranks that did the same in one step, activities and synchronising calls between them, are read together.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isnan
from typing import NamedTuple

import numpy as np

from jitter.analysis.alignment.program import Signature
from jitter.core.grouping import by_key
from jitter.core.names.kernels import HOST_BARRIER, MEMORY
from jitter.core.numeric.arrays import Bools, Floats, Ints, IntTimes, KindCodes, unknown_value
from jitter.core.numeric.compilation import compiled


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


class HostCall(NamedTuple):
    """What a host calls that launches nothing."""

    name: str
    kind: int
    """`SYNC`, or `HOST_BARRIER`: that is followed by a `SYNC` of equal times, which waits for it."""


@dataclass(frozen=True)
class StepSyncCalls:
    """The host calls of a step's ranks, each one's by start; times in ns on its clock."""

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
    names: tuple[HostCall, ...]

    def of(self, ranks: Ints) -> tuple[Ints, Ints]:
        """Return, (ranks,) each, where the calls of these ranks begin, and how many there are."""
        if not len(self.ranks):
            return np.zeros(len(ranks), np.int64), np.zeros(len(ranks), np.int64)
        at = np.minimum(np.searchsorted(self.ranks, ranks), len(self.ranks) - 1)
        there = self.ranks[at] == ranks
        return np.where(there, self.first[at], 0), np.where(there, self.last[at] - self.first[at], 0)

    def by(self, rank: int) -> list[tuple[HostCall, int]]:
        """Return each call of one rank, and its thread."""
        (first,), (count,) = self.of(np.array([rank]))
        rows = slice(first, first + count)
        return [(self.names[name], thread) for name, thread in zip(self.name[rows], self.thread[rows], strict=True)]


@dataclass(frozen=True)
class IdenticalRanks:
    """Ranks that ran the same operations in the same order in one step."""

    ranks: Ints
    signature: Signature
    kind: KindCodes
    """(operations,) codes of `kernels.KINDS`, or of host calls."""
    row: Ints
    """(operations,) the row in the rank's file (its launch order); -1 for host calls."""
    calls: tuple[HostCall, ...]
    """The host calls, in order."""
    times: IntTimes
    """(ranks, 4, activities), as in `StepActivities`."""
    begun: Ints
    """(ranks, calls) when each host call began, from the activities' zero."""
    ended: Ints
    """(ranks, calls) when it returned."""
    since: Floats
    """(ranks,) the activities' zero, from the rank's origin."""
    unlaunched: Ints
    """(ranks,) kernels whose launch is unknown."""

    def cut(self, rows: slice | Ints, times: IntTimes) -> "IdenticalRanks":
        """Return some of the ranks, whose `times` are given."""
        return IdenticalRanks(
            self.ranks[rows],
            self.signature,
            self.kind,
            self.row,
            self.calls,
            times,
            self.begun[rows],
            self.ended[rows],
            self.since[rows],
            self.unlaunched[rows],
        )


def group_identical_ranks(
    activities: StepActivities, syncs: StepSyncCalls, origins: Mapping[int, int], streams: bytes = b""
) -> Iterator[IdenticalRanks]:
    """Yield groups of ranks with equal operations, by their first ranks; `origins` are by rank, on its clock.

    `streams` is a digest of the activities' streams, where these belong to the signature.
    """
    first, count = syncs.of(activities.ranks)
    is_kernel, nothing = activities.kind < MEMORY, unknown_value(activities.times.dtype)
    unlaunched = np.count_nonzero(activities.times[:, 2][:, is_kernel] == nothing, axis=1)
    for members, calls in _by_names(syncs.name, first, count):
        zero = activities.zero_ns[members, None]
        begun, ended = syncs.start_ns[calls] - zero, syncs.end_ns[calls] - zero
        times = activities.times if len(members) == len(activities.ranks) else activities.times[members]
        names = tuple(syncs.names[name] for name in syncs.name[calls[0]].tolist())
        where = np.zeros(begun.shape, np.int64)
        if names:
            find_places_of_calls(times, begun, where)
        for rows in _alike(where):
            places = members[rows]
            since = [int(activities.zero_ns[at]) - origins[int(activities.ranks[at])] for at in places]
            kind, row, shape = _operations(activities.kind.tobytes(), where[rows[0]].tobytes(), names)
            yield IdenticalRanks(
                activities.ranks[places],
                (activities.sequence, shape + streams),
                kind,
                row,
                names,
                times if len(rows) == len(times) else times[rows],
                begun[rows],
                ended[rows],
                np.array(since, np.float64),
                unlaunched[places],
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
    groups = []
    for calls in sorted(set(count.tolist())):
        rows = np.flatnonzero(count == calls)
        call_places = first[rows, None] + np.arange(calls)
        groups += [(rows[alike], call_places[alike]) for alike in _alike(name[call_places])]
    return sorted(groups, key=lambda group: int(group[0][0]))


def _alike(rows: Ints) -> list[Ints]:
    """Return the positions of equal rows of an array together, in the order of their first."""
    same: Bools = (rows == rows[:1]).all(axis=1)
    if same.all():
        return [np.arange(len(rows))]
    by_content = by_key((row.tobytes(), at) for at, row in enumerate(rows))
    return [np.array(places) for places in by_content.values()]


@lru_cache(maxsize=256)  # most steps and ranks do the same
def _operations(activities: bytes, where: bytes, calls: tuple[HostCall, ...]) -> tuple[KindCodes, Ints, bytes]:
    """Return the kinds of operations, their rows in the file, and a digest of what is no kernel among them.

    The digest is of the positions of copies and host calls, and of the `calls`. `activities` are the activities'
    kinds, `where` the places of the calls among them.
    """
    kinds, places = np.frombuffer(activities, np.int8), np.frombuffer(where, np.int64)
    kind = np.insert(kinds, places, [call.kind for call in calls])
    row = np.insert(np.arange(len(kinds)), places, -1)
    apart = np.flatnonzero(kind >= MEMORY)
    shape = hashlib.blake2b(digest_size=8)
    shape.update(apart.astype(np.int32).tobytes() + kind[apart].tobytes() + repr(calls).encode())
    return kind, row, shape.digest()


class StepTimes(NamedTuple):
    """Ranks one after another, each with the operations of its team's program; ns from the rank's origin, NaN: unknown.

    An operation that a rank lacks has no times; a synchronising call has those of the host alone. A host's barrier has
    those of its call for times on the GPU, and returns at once: the call that waits for it is the next operation.
    """

    team: Ints
    """(ranks of the run,)."""
    row: Ints
    """(ranks of the run,) where each one's operations begin below; -1: the rank has not the step."""
    start: Floats
    """(cells,) on the GPU."""
    end: Floats
    call: Floats
    """(cells,) when the host began the call; of the kernels of one launch only the first has it."""
    back: Floats
    """(cells,) when the call returned."""


@compiled
def cut_step(steps: StepTimes, at: int, cells: int) -> StepTimes:
    """Return one of several steps of the same ranks whose cells, so many each, follow each other."""
    low, high = at * cells, (at + 1) * cells
    return StepTimes(
        steps.team, steps.row, steps.start[low:high], steps.end[low:high], steps.call[low:high], steps.back[low:high]
    )


class TeamTimes(NamedTuple):
    """One team's step, (operations, ranks): views of `StepTimes`."""

    ranks: Ints
    """(ranks,) the ranks that have the step."""
    start: Floats
    end: Floats
    call: Floats
    back: Floats


def empty_step(team: Ints, operations: Ints, here: Bools) -> StepTimes:
    """Make room for the ranks that are `here`; `operations` (ranks,) is how many each rank's program has."""
    sizes = np.where(here, operations, 0)
    row = np.where(here, np.cumsum(sizes) - sizes, -1)
    return StepTimes(team, row, *(np.empty(int(sizes.sum())) for _ in range(4)))


class PlacedOperations(NamedTuple):
    """Where the operations of a signature stand in a program."""

    stretches: Ints
    """As `list_stretches` returns them."""
    places: Ints
    """(activities,) -1 for none."""
    places_of_calls: Ints
    """(calls,)"""
    before_calls: Ints
    """(calls,) the activity before each call, -1 for none."""
    is_barrier: Bools
    """(calls,)"""
    lacks_operations: bool
    """Whether the program has others."""
    size: int
    """How many operations the program has."""


def place_operations(kind: KindCodes, row: Ints, places: Ints, size: int) -> PlacedOperations:
    """Return where the operations of a signature stand in a program of `size` operations.

    `kind` and `row` are those of `IdenticalRanks`, `places` (operations,) those in the program, -1 for none.
    """
    is_call = row < 0
    calls, of_activities = np.flatnonzero(is_call), places[~is_call]
    return PlacedOperations(
        list_stretches(of_activities),
        of_activities,
        places[calls],
        calls - np.arange(1, len(calls) + 1),
        kind[calls] == HOST_BARRIER,
        bool(np.count_nonzero(places >= 0) < size),
        size,
    )


def fill_group(step: StepTimes, group: IdenticalRanks, placed: PlacedOperations, numbers: Ints) -> None:
    """Put a group's times into the step. `numbers` (ranks of the group,) are the ranks' in the run, -1 to leave out."""
    row, nothing = np.where(numbers < 0, -1, step.row[numbers]), unknown_value(group.times.dtype)
    fill_rows(group.times.ravel(), group.begun, group.ended, group.since, *placed, row, nothing, *step[2:])


def list_stretches(places: Ints) -> Ints:
    """Return, (stretches, 3), stretches of successive activities at successive places: the first, how many, the place.

    Activities without a place, -1, are in none.

    >>> list_stretches(np.array([0, 1, 3, -1, 5, 6])).tolist()
    [[0, 2, 0], [2, 1, 3], [4, 2, 5]]
    """
    begins = np.flatnonzero((np.diff(places, prepend=-1) != 1) | (places <= 0))
    stretches = np.stack([begins, np.diff(begins, append=len(places)), places[begins]], axis=1)
    return stretches[stretches[:, 2] >= 0]


@compiled
def fill_rows(
    times: IntTimes,
    begun: Ints,
    ended: Ints,
    since: Floats,
    stretches: Ints,
    places: Ints,
    places_of_calls: Ints,
    before_calls: Ints,
    is_barrier: Bools,
    lacks_operations: bool,
    size: int,
    row: Ints,
    nothing: int,
    start: Floats,
    end: Floats,
    call: Floats,
    back: Floats,
) -> None:
    """Put whole numbers, (ranks × 4 × activities,), and calls, (ranks, calls), in launch order along the program.

    `places` are the activities', and `before_calls` (calls,) the activity before each call, -1 for none. Of the
    activities of one launch (a graph's) the first alone keeps the call's times.
    """
    activities = len(places)
    for rank in range(len(row)):
        if row[rank] < 0:
            continue
        if lacks_operations:
            for cell in range(row[rank], row[rank] + size):
                start[cell] = end[cell] = call[cell] = back[cell] = math.nan
        zero, begin = since[rank], rank * 4 * activities
        launches = times[begin + 2 * activities : begin + 3 * activities]
        for at in range(len(stretches)):
            first, count, cell = stretches[at, 0], stretches[at, 1], row[rank] + stretches[at, 2]
            put_times(times, begin + first, zero, nothing, start[cell : cell + count])
            put_times(times, begin + activities + first, zero, nothing, end[cell : cell + count])
            put_times(times, begin + 2 * activities + first, zero, nothing, call[cell : cell + count])
            put_times(times, begin + 3 * activities + first, zero, nothing, back[cell : cell + count])
            for one in range(1 if first == 0 else 0, count):
                if launches[first + one] == launches[first + one - 1]:
                    call[cell + one] = back[cell + one] = math.nan
        for at in range(len(places_of_calls)):
            activity, cell = before_calls[at], row[rank] + places_of_calls[at]
            if activity >= 0 and places[activity] >= 0 and begun[rank, at] == launches[activity]:
                launch = row[rank] + places[activity]
                if not isnan(call[launch]):
                    returned = blocking_return(times, begin, activities, activity)
                    back[launch] = math.nan if returned == nothing else returned + zero
            if places_of_calls[at] >= 0:
                call[cell] = begun[rank, at] + zero
                back[cell] = ended[rank, at] + zero
                start[cell] = end[cell] = math.nan
                if is_barrier[at]:
                    start[cell], end[cell], back[cell] = call[cell], back[cell], call[cell]


@compiled
def put_times(times: IntTimes, first: int, zero: float, nothing: int, to: Floats) -> None:
    """Put whole numbers, from the `first` one on, into times that begin at `zero`."""
    some = times[first : first + len(to)]
    for at in range(len(to)):
        to[at] = math.nan if some[at] == nothing else some[at] + zero


@compiled
def blocking_return(times: IntTimes, begin: int, activities: int, activity: int) -> int:
    """Return when the launch of a blocking copy ends and its wait begins; its rank's times begin at `begin`.

    That is at once if the GPU is busy with the launch before, else no later than the copy starts.
    """
    started, called = times[begin + activity], times[begin + 2 * activities + activity]
    if activity > 0 and times[begin + activities + activity - 1] > called:
        return int(called)
    return int(min(max(started, called), times[begin + 3 * activities + activity]))


def of_team(step: StepTimes, ranks: Ints, team: int, operations: int) -> TeamTimes:
    """Return one team's part; `ranks` are the run's, by number, `operations` how many the team's program has."""
    here = np.flatnonzero((step.team == team) & (step.row >= 0))
    first = int(step.row[here[0]]) if len(here) else 0
    shape = (len(here), operations)
    cut = (
        values[first : first + shape[0] * operations].reshape(shape).T
        for values in (step.start, step.end, step.call, step.back)
    )
    return TeamTimes(ranks[here], *cut)
