"""The cross-rank critical path of a step, walked back from its last collective: whose time the step took.

Every operation passed is charged its self time less the team's median for it: the excess. From a collective the walk
goes to the rank that arrived last; from a start to what held it back longest (its launch, its stream, or what it waits
for); from a launch along the thread's calls to the one that waited for the GPU or for a place in its queue. All
comparisons between ranks are of arrivals at a common end, so no shared clock is needed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from math import isnan
from typing import NamedTuple

import numpy as np

from jitter.analysis.execution.collectives.matching import CollectiveArrays
from jitter.analysis.execution.dependencies.carried_state import CarriedState
from jitter.analysis.execution.dependencies.ready_times import NOT_AWAITED, ReadyTimes, find_awaited, find_ready_times
from jitter.analysis.execution.job_arrays import JobArrays
from jitter.analysis.execution.recorded.step_times import StepTimes
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.self_times import CPU, GPU, START, TRANSFER, SelfTimes
from jitter.analysis.execution.time_part import OWN_PARTS, TimePart
from jitter.analysis.replay.recorded_step import RecordedStep
from jitter.core.arrays import Bools, Floats, Ints
from jitter.core.compilation import compiled
from jitter.core.kernels import COLLECTIVE, SYNC
from jitter.core.selection import later, select_median

_END, _COLLECTIVE, _OPERATION, _START, _LAUNCH, _STREAM_BEFORE, _THREAD_BEFORE = range(7)
"""Position of a walk: at its end, at a collective, at the end of an operation, at its start, at its launch; or at what
a stream or a thread did in the step before.
"""


class Charge(NamedTuple):
    """An operation on the path; `rank` is the last to arrive where it is a transfer."""

    rank: int
    team: int
    place: int
    part: TimePart
    excess_ns: float
    collective: int | None = None
    group: int | None = None


@dataclass(frozen=True, eq=False)
class Charges:
    """The operations on a path, the last first; (charges,) each."""

    rank: Ints
    team: Ints
    place: Ints
    part: Ints
    """`TimePart`."""
    excess_ns: Floats
    collective: Ints
    """Of a transfer; -1 elsewhere."""
    group: Ints
    """Of a transfer, among its collective's; -1 elsewhere."""

    def __len__(self) -> int:
        return len(self.rank)

    def __getitem__(self, at: int) -> Charge:
        return next(iter(self.where(np.array([at]))))

    def __iter__(self) -> Iterator[Charge]:
        columns = (self.rank, self.team, self.place, self.part, self.excess_ns, self.collective, self.group)
        for rank, team, place, part, excess, *where in zip(*(column.tolist() for column in columns), strict=True):
            yield Charge(rank, team, place, TimePart(part), excess, *(where if part == TRANSFER else (None, None)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Charges) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def where(self, chosen: Bools | Ints) -> "Charges":
        """Some of them."""
        return Charges(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def joined(self, other: "Charges") -> "Charges":
        """Return these charges and the other ones."""
        return Charges(*(np.concatenate([getattr(one, field.name) for one in (self, other)]) for field in fields(self)))

    def sums(self, ranks: Sequence[int]) -> Floats:
        """(ranks, parts): the excess of these ranks, which must ascend and be all that are charged."""
        found = np.zeros((len(ranks), len(TimePart)))
        np.add.at(found, (np.searchsorted(ranks, self.rank), self.part), self.excess_ns)
        return found

    def own_sums(self, ranks: Sequence[int]) -> Floats:
        """(ranks,): the excess of these ranks without transfers; see `sums`."""
        found: Floats = self.sums(ranks)[:, list(OWN_PARTS)].sum(axis=1)
        return found


class StepWalk(NamedTuple):
    """The path through one step."""

    charges: Charges
    """Operations of the step."""
    tail: Charges
    """Operations of the step before, after its last collective: they delay this step."""


class PathWalker:
    """Walks the paths of a run's steps, one after the other; remembers where each rank left the step before."""

    def __init__(
        self,
        job: JobArrays,
        collectives: CollectiveArrays,
        ranks: Ints,
        uncoupled: frozenset[int],
        baseline_transfers: Floats,
    ) -> None:
        """`ranks` are the run's, by number; `uncoupled` the collectives that each rank ends by itself.

        `baseline_transfers` (groups of all collectives,) is from the last arrival to the end.
        """
        self._job, self._collectives, self._ranks = job, collectives, ranks
        self._baseline_transfers = baseline_transfers
        self._coupled = np.ones(len(collectives.first) - 1, np.bool_)
        self._coupled[list(uncoupled)] = False
        self._previous_on_stream = _previous_on_stream(job)
        self._left = np.full(len(ranks), -np.inf)
        """End of each rank's last collective of the step before."""
        self._before: tuple[RecordedStep, SelfTimes] | None = None
        """The step before, with its medians."""

    @classmethod
    def of_run(cls, run: RunModel, baseline_transfers: Floats) -> "PathWalker":
        """Make the one for a run's steps."""
        return cls(run.job, run.collective_arrays, run.rank_numbers, run.schedule.uncoupled, baseline_transfers)

    def walk(self, step: RecordedStep, baseline: SelfTimes) -> StepWalk:
        """Return the step's path, empty where ranks do not meet; `baseline` (operations,) are its medians."""
        found = self._walk(step, baseline)
        self.pass_by(step, baseline)
        return found

    def pass_by(self, step: RecordedStep, baseline: SelfTimes) -> None:
        """Remember where a step leaves each rank, and the step itself for what it does after its last collective."""
        job, times = self._job, step.times
        self._before = step, baseline
        self._left = np.full(len(times.row), -np.inf)
        for team in range(len(job.launch_ns)):
            places = np.flatnonzero(job.kind[job.first[team] : job.first[team + 1]] == COLLECTIVE)
            here = np.flatnonzero((times.team == team) & (times.row >= 0))
            if len(places) and len(here):
                self._left[here] = np.fmax.reduce(times.end[times.row[here, None] + places], axis=1)

    def _walk(self, step: RecordedStep, baseline: SelfTimes) -> StepWalk:
        job, collectives, ranks = self._job, self._collectives, len(step.fresh)
        last_end = np.full(ranks, np.nan)
        number, group = find_last_collective(collectives, step.times, job, self._coupled, last_end, np.empty(ranks))
        if number < 0:
            return StepWalk(_no_charges(), _no_charges())
        found, ended = self._walk_from(step, baseline, _Standing(_COLLECTIVE, -1, -1), (number, group))
        begin = self._last_of_step_before(step, ended)
        if begin is None or self._before is None:
            return StepWalk(found, _no_charges())
        return StepWalk(found, self._walk_from(*self._before, begin, None)[0])

    def _last_of_step_before(self, step: RecordedStep, ended: "_Standing") -> "_Standing | None":
        """Return the last operation that a stream or thread did in the step before; None where that is not known."""
        rank = ended.rank
        if self._before is None or ended.where not in (_STREAM_BEFORE, _THREAD_BEFORE) or step.fresh[rank]:
            return None
        job, times = self._job, self._before[0].times
        team, row = int(times.team[rank]), int(times.row[rank])
        if row < 0:
            return None
        its = slice(int(job.first[team]), int(job.first[team + 1]))
        cells = slice(row, row + its.stop - its.start)
        if ended.where == _STREAM_BEFORE:
            places = np.flatnonzero((job.stream[its] == ended.which) & ~np.isnan(times.start[cells]))
            where = _OPERATION
        else:
            places = np.flatnonzero((job.thread[its] == ended.which) & ~np.isnan(times.call[cells]))
            where = _LAUNCH
        return _Standing(where, rank, int(places[-1])) if len(places) else None

    def _walk_from(
        self, step: RecordedStep, baseline: SelfTimes, begin: "_Standing", last: tuple[int, int] | None
    ) -> tuple[Charges, "_Standing"]:
        """Walk back through a step; `last` is the (collective, group) that it begins at, if it begins at one."""
        job, collectives, ranks = self._job, self._collectives, len(step.fresh)
        ready = ReadyTimes(*np.empty((3, len(step.times.start))))
        room = 4 * int(np.diff(job.first).max(initial=0)) + 1024
        number, group = (-1, -1) if last is None else last
        while True:
            numbers, excess = np.empty((room, 5), np.int64), np.empty(room)
            standing = np.array(begin, np.int64)
            count = walk_back(
                job,
                collectives,
                step.times,
                step.own,
                baseline,
                step.before,
                step.fresh,
                self._baseline_transfers,
                self._coupled,
                self._previous_on_stream,
                self._left,
                step.before.copy(),
                np.zeros(ranks, np.bool_),
                ready,
                standing,
                number,
                group,
                last is None,
                numbers,
                excess,
            )
            if count >= 0:
                break
            room *= 4
        rank, place, part, which, of_all = numbers[:count].T
        shared = np.where(which >= 0, of_all - collectives.first_group[which], -1)
        found = Charges(
            self._ranks[rank],
            step.times.team[rank],
            place.copy(),
            part.copy(),
            excess[:count].copy(),
            which.copy(),
            shared,
        )
        return found, _Standing(*standing.tolist())


class _Standing(NamedTuple):
    """Where a walk stands."""

    where: int
    rank: int
    """Number of the rank in the run."""
    which: int
    """The place of an operation; the stream or thread of the step before."""


def _no_charges() -> Charges:
    nothing = np.zeros(0, np.int64)
    return Charges(nothing, nothing, nothing, nothing, np.zeros(0), nothing, nothing)


def _previous_on_stream(job: JobArrays) -> Ints:
    """(operations,) the place of the one before each on its stream, whether a rank has that or not; -1: none."""
    found = np.full(len(job.stream), -1, np.int64)
    for first, after in zip(job.first[:-1].tolist(), job.first[1:].tolist(), strict=True):
        streams = job.stream[first:after]
        for stream in np.unique(streams).tolist():
            places = np.flatnonzero(streams == stream)
            found[first + places[1:]] = places[:-1]
    return found


@compiled
def find_last_collective(
    collectives: CollectiveArrays, step: StepTimes, job: JobArrays, coupled: Bools, last_end: Floats, room: Floats
) -> tuple[int, int]:
    """Return the (collective, group) that ends the step: of those that come last the largest; (-1, -1): there is none.

    It comes last after which, in the median of its ranks, the least of the step is left, in whole µs. `last_end` and
    `room` (ranks,) are overwritten.
    """
    for rank in range(len(step.row)):
        last_end[rank] = -math.inf
        if step.row[rank] >= 0:
            for cell in range(
                step.row[rank], step.row[rank] + job.first[step.team[rank] + 1] - job.first[step.team[rank]]
            ):
                last_end[rank] = max(last_end[rank], step.end[cell])
    number, which, left_us, left_ns, size = -1, -1, 0, 0.0, 0
    for collective in range(len(coupled)):
        if not coupled[collective]:
            continue
        for group in range(collectives.first_group[collective], collectives.first_group[collective + 1]):
            count = 0
            for at in range(collectives.first_in_group[group], collectives.first_in_group[group + 1]):
                rank = collectives.rank[collectives.by_group[at]]
                cell = step.row[rank] + collectives.place[collectives.by_group[at]]
                if step.row[rank] >= 0 and not isnan(step.start[cell]):
                    room[count] = last_end[rank] - step.end[cell]
                    count += 1
            if count < 2:
                continue
            since = select_median(room, count)
            since_us = round(since / 1e3)
            if (
                number < 0
                or since_us < left_us
                or (since_us == left_us and (count > size or (count == size and since < left_ns)))
            ):
                number, which, left_us, left_ns, size = collective, group, since_us, since, count
    return number, which


@compiled
def walk_back(  # noqa: PLR0912, PLR0915  # one walk, four places where it may stand
    job: JobArrays,
    collectives: CollectiveArrays,
    step: StepTimes,
    own: SelfTimes,
    baseline: SelfTimes,
    before: CarriedState,
    fresh: Bools,
    baseline_transfers: Floats,
    coupled: Bools,
    previous_on_stream: Ints,
    left: Floats,
    state: CarriedState,
    visited: Bools,
    ready: ReadyTimes,
    standing: Ints,
    number: int,
    group: int,
    is_tail: bool,
    numbers: Ints,
    excess: Floats,
) -> int:
    """Walk from a collective's group back to where the step began; return how many operations are charged.

    `standing` (3,) is where to begin, as `_Standing`, and becomes where the walk ends. A tail, what a rank does after
    its last collective, ends at that collective.

    Each is a row of `numbers` (room, 5): rank, place, part, and of a transfer the collective and the group, else -1;
    and its `excess` (room,). Returns -1 if there is too little room. `before` is how the ranks come to the step;
    `state`, a copy of it, `visited` (ranks,) all False and `ready` (cells,) are overwritten.
    """
    count, where, rank, op = 0, standing[0], standing[1], standing[2]
    if rank >= 0:
        visited[rank] = True
        find_ready_times(job, step, rank, state.stream_end, state.back, step.row[rank], ready)
    while _END < where < _STREAM_BEFORE:
        if where == _COLLECTIVE:
            rank, op, latest = find_last_arrival(collectives, step, group)
            if rank < 0:
                where = _END
                break
            if not visited[rank]:
                visited[rank] = True
                find_ready_times(job, step, rank, state.stream_end, state.back, step.row[rank], ready)
            count = charge(
                numbers, excess, count, rank, op, TRANSFER, -latest - baseline_transfers[group], number, group
            )
            where = _START
        elif where == _OPERATION:
            first, row = job.first[step.team[rank]], step.row[rank]
            stream = job.stream[first + op]
            while op >= 0 and isnan(step.start[row + op]):
                op = previous_on_stream[first + op]  # the rank lacks it: what was waited for is the one before it
            if op < 0:
                where, op = _STREAM_BEFORE, stream
                break
            if is_tail and step.end[row + op] <= left[rank]:
                where = _END
                break
            at = collectives.first_place[collectives.block[rank]] + op
            if collectives.number_at[at] >= 0 and coupled[collectives.number_at[at]]:
                number = collectives.number_at[at]
                group = collectives.group[collectives.attendance_at[at] + collectives.column[rank]]
                where = _COLLECTIVE
            else:
                more = own.gpu[row + op] - baseline.gpu[first + op]
                count = charge(numbers, excess, count, rank, op, GPU, more, -1, -1)
                where = _START
        elif where == _START:
            team, row = step.team[rank], step.row[rank]
            place = job.first[team] + op
            if step.start[row + op] <= left[rank]:
                where = _END
                break
            launched = ready.submit[row + op] + job.launch_ns[team]
            stream = ready.end_before[row + op] + job.stream_ns[team]
            awaited, other = find_awaited(job, step, rank, op, before.stream_end, row, ready)
            held = later(later(launched, stream), awaited)
            more = own.delay[row + op] - baseline.delay[place]
            if fresh[rank] and isnan(stream):
                more = 0.0  # what its stream did before is not known
            part = GPU
            if held == launched:
                # the GPU had it before the call returned: that much of the call held nothing up
                part = CPU
                more -= own.lead[row + op] - baseline.lead[place]
            count = charge(numbers, excess, count, rank, op, part, more, -1, -1)
            if held == awaited:
                where, op = (_OPERATION, other) if other >= 0 else (_STREAM_BEFORE, ~other)
            elif held == launched:
                where = _LAUNCH
            elif isnan(held):
                where = _END
            else:
                op = previous_on_stream[place]
                if op >= 0:
                    where = _OPERATION
                else:
                    where, op = _STREAM_BEFORE, job.stream[place]
        else:
            count, where, op = walk_launches(
                job, step, own, baseline, before, left, ready, rank, op, numbers, excess, count
            )
        if count < 0 or count + 2 > len(excess):
            return -1
    standing[0], standing[1], standing[2] = where, rank, op
    return count


@compiled
def walk_launches(  # noqa: PLR0911  # one walk, five places where it may stop
    job: JobArrays,
    step: StepTimes,
    own: SelfTimes,
    baseline: SelfTimes,
    before: CarriedState,
    left: Floats,
    ready: ReadyTimes,
    rank: int,
    op: int,
    numbers: Ints,
    excess: Floats,
    count: int,
) -> tuple[int, int, int]:
    """Walk back along a thread's calls to one that waited for the GPU or for its queue, or to the step before.

    Return how many operations are charged then (-1: too little room), where the walk stands, and at which operation,
    or of the step before at which stream or thread.
    """
    team, row = step.team[rank], step.row[rank]
    first = job.first[team]
    thread = job.thread[first + op]
    for place in range(op, -1, -1):
        cell = row + place
        called = step.call[cell]
        if job.thread[first + place] != thread or isnan(called):
            continue
        if count + 4 > len(excess):
            return -1, _END, -1
        part = START if place <= job.first_kernel[team] else CPU
        more = own.call[cell] - baseline.call[first + place]
        count = charge(numbers, excess, count, rank, place, part, more, -1, -1)
        if job.kind[first + place] == SYNC:
            awaited, other = find_awaited(job, step, rank, place, before.stream_end, row, ready)
            if other != NOT_AWAITED and awaited > called:
                if other >= 0:
                    return count, _OPERATION, other
                return count, _STREAM_BEFORE, ~other
        else:
            begun = step.back[cell] - own.call[cell]
            if begun > called:
                # the queue was full until this started
                for other in range(job.first[team + 1] - first):
                    if step.start[row + other] == begun:
                        return count, _START, other
                return count, _END, -1
        host = own.host[cell]
        if isnan(host):
            return count, _END, -1
        count = charge(numbers, excess, count, rank, place, part, host - baseline.host[first + place], -1, -1)
        if called - host <= left[rank]:
            return count, _END, -1
    return count, _THREAD_BEFORE, thread


@compiled
def find_last_arrival(collectives: CollectiveArrays, step: StepTimes, group: int) -> tuple[int, int, float]:
    """Return the rank of a group that arrived last, its place there, and its start less its end; rank -1: none came."""
    found, place, latest = -1, -1, -math.inf
    for at in range(collectives.first_in_group[group], collectives.first_in_group[group + 1]):
        one = collectives.by_group[at]
        rank = collectives.rank[one]
        cell = step.row[rank] + collectives.place[one]
        if step.row[rank] >= 0 and step.start[cell] - step.end[cell] > latest:
            found, place, latest = rank, collectives.place[one], step.start[cell] - step.end[cell]
    return found, place, latest


@compiled
def charge(
    numbers: Ints,
    excess: Floats,
    count: int,
    rank: int,
    place: int,
    part: int,
    excess_ns: float,
    number: int,
    group: int,
) -> int:
    """Write one charge behind `count` others; return how many there are."""
    numbers[count, 0] = rank
    numbers[count, 1] = place
    numbers[count, 2] = part
    numbers[count, 3] = number
    numbers[count, 4] = group
    excess[count] = excess_ns
    return count + 1
