"""The parts of a step's time: every instant of the step, on the rank that is on the path then, belongs to one part.

A step lasts from the end of the step before to its own end. Each rank's time in it is cut into the parts of `PathPart`
by what its GPU does at each instant, the first of them that holds. The path goes back from the step's end. It stays on
one rank until a collective that this rank does not hide behind compute. All ranks of a group leave a collective
together, so the path may change ranks there: it goes on with the rank of the (upper) median arrival, which is the
later one of two. That rank's wait for the last one is `WAITING`. No two ranks' clocks are compared.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.execution.job_arrays import JobArrays
from jitter.analysis.replay.run_steps import RecordedStep, RunSteps
from jitter.analysis.replay.step_end import StepDurations
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COLLECTIVE, COMPUTE, SYNC
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.step_key import StepKey

_LIMITS: Final = THRESHOLDS.replay


class PathPart(IntEnum):
    """A part of a step's time. Where several hold at an instant, the first counts."""

    COMPUTE = 0
    """A compute kernel runs."""
    EXPOSED_COMMUNICATION = 1
    """A collective runs after its last arrival, and no compute kernel."""
    WAITING = 2
    """A collective waits for its last arrival, and no compute kernel runs."""
    LAUNCH = 3
    """The GPU is idle until a kernel starts that the host launched too late to follow the one before it."""
    LATE_START = 4
    """The same, up to the step's first main-stream kernel."""
    REST = 5
    """Copies, delays between kernels on the GPU, and what the path does not account for."""

    @property
    def label(self) -> str:
        """Return the part's name in texts."""
        return _LABELS[self]


_LABELS: Final = {
    PathPart.COMPUTE: "compute",
    PathPart.EXPOSED_COMMUNICATION: "exposed communication",
    PathPart.WAITING: "waiting for late ranks",
    PathPart.LAUNCH: "launch",
    PathPart.LATE_START: "late start",
    PathPart.REST: "rest",
}
_MOST_JUMPS: Final = 100_000


class PathTime(NamedTuple):
    """One step's time by part."""

    key: StepKey
    step_ns: float
    """NaN for the first of consecutive steps."""
    parts_ns: Floats
    """(parts,) which add up to `step_ns`; NaN where that is unknown."""


def measure_path_times(steps: RunSteps) -> Iterator[tuple[RecordedStep, PathTime]]:
    """Yield each step of the run with its time by part."""
    run, durations = steps.run, StepDurations()
    before: tuple[RecordedStep, Floats] | None = None
    for step in steps.steps():
        cells = steps.ends.cells(step.times)
        which = cells >= 0
        end = np.full(len(which), np.nan)
        end[which] = step.times.end[cells[which]]
        step_ns = durations.of(step.key, run.rank_numbers[which], end[which])
        parts = np.full(len(PathPart), np.nan)
        if before is not None and not np.isnan(step_ns):  # known only if the step before was recorded
            parts = _Path(run.job, before[0], step, before[1], end).parts(step_ns)
            parts[PathPart.REST] += step_ns - parts.sum()
        yield step, PathTime(step.key, step_ns, parts)
        before = step.without_self_times(), end
        del step  # else it stays in memory while the next one is read


class _Activities(NamedTuple):
    """One rank's GPU activities that touch the step's time, (activities,) each, by start."""

    start: Floats
    end: Floats
    is_compute: Bools
    is_collective: Bools
    last_arrival: Floats
    """Of a collective whose group was recorded; its own start where it was not."""
    group: Ints
    """Of all collectives' groups; -1: none, or not followed."""
    is_before: Bools
    """Whether it belongs to the step before."""
    submit: Floats
    """When the GPU had its launch; NaN where it has none of its own."""
    is_first: Bools
    """Whether it comes no later than the step's first main-stream kernel, in launch order."""


class _Timeline(NamedTuple):
    """One rank's time in the step: (boundaries,) instants, and (parts, boundaries) the time of each part up to them."""

    at: Floats
    so_far: Floats

    def between(self, first: float, last: float) -> Floats:
        """Return, (parts,), the time of each part from one boundary, `first`, to another."""
        begin, end = np.searchsorted(self.at, (first, last))
        last_boundary = len(self.at) - 1
        found: Floats = self.so_far[:, min(end, last_boundary)] - self.so_far[:, min(begin, last_boundary)]
        return np.maximum(found, 0.0)


class _Path:
    """The path through one step."""

    def __init__(self, job: JobArrays, before: RecordedStep, step: RecordedStep, begin: Floats, end: Floats) -> None:
        """`begin` and `end` (ranks of the run,) are when each rank ended the step before, and this one."""
        self._job, self._before, self._step = job, before, step
        self._begin, self._end = begin, end
        self._activities: dict[int, _Activities] = {}
        self._timelines: dict[int, _Timeline] = {}
        self._stops: dict[int, Ints] = {}

    def parts(self, step_ns: float) -> Floats:
        """Return, (parts,), the time along the path, which begins on a rank whose step took about `step_ns`."""
        took = self._end - self._begin
        known = np.flatnonzero(~np.isnan(took))
        if not len(known):
            return np.zeros(len(PathPart))
        rank = int(known[np.argmin(np.abs(took[known] - step_ns))])
        found = np.zeros(len(PathPart))
        at = float(self._end[rank])
        for _ in range(_MOST_JUMPS):
            stop = self._stop_before(rank, at)
            if stop is None:
                found += self._timeline(rank).between(float(self._begin[rank]), at)
                break
            found += self._timeline(rank).between(float(self._rank(rank).end[stop]), at)
            # the collective itself is passed whole on the rank that the path goes on with
            rank, own = self._typical(rank, stop)
            ended, begun = float(self._rank(rank).end[own]), float(self._rank(rank).start[own])
            at = max(begun, float(self._begin[rank]))
            found += self._timeline(rank).between(at, ended)
            if at <= self._begin[rank]:
                break
        return found

    def _stop_before(self, rank: int, at: float) -> int | None:
        """Return a rank's last collective that ends by then, is not hidden by compute, and has a known group."""
        mine, stops = self._rank(rank), self._stops[rank]
        place = int(np.searchsorted(mine.end[stops], at, side="right"))
        return int(stops[place - 1]) if place else None

    def _typical(self, rank: int, stop: int) -> tuple[int, int]:
        """Return the rank of the median arrival at a collective, and its collective; `rank` among equals."""
        mine = self._rank(rank)
        group, is_before = int(mine.group[stop]), bool(mine.is_before[stop])
        step = self._before if is_before else self._step
        collectives = step.collectives
        members = collectives.by_group[collectives.first_in_group[group] : collectives.first_in_group[group + 1]]
        ranks, took = collectives.rank[members], step.in_collectives[members]
        known = ~np.isnan(took) & ~np.isnan(self._begin[ranks])
        ranks, took = ranks[known], took[known]
        middle = np.argsort(-took, kind="stable")[len(took) // 2]
        if np.abs(took[ranks == rank] - took[middle]).min(initial=np.inf) < _LIMITS.simultaneous_ns:
            return rank, stop
        theirs = self._rank(int(ranks[middle]))
        there = np.flatnonzero((theirs.group == group) & (theirs.is_before == is_before))
        # of another program, its step may end before the collective
        return (int(ranks[middle]), int(there[0])) if len(there) else (rank, stop)

    def _rank(self, rank: int) -> _Activities:
        if rank not in self._activities:
            begin, finish = float(self._begin[rank]), float(self._end[rank])
            self._activities[rank] = found = self._read(rank)
            self._timelines[rank] = timeline = _cut(found, begin, finish, self._launch_ns(rank))
            coupled = np.flatnonzero((found.group >= 0) & (found.end <= finish + _LIMITS.simultaneous_ns))
            start, end = np.maximum(found.start[coupled], begin), found.end[coupled]
            compute = timeline.so_far[PathPart.COMPUTE]
            beside = np.interp(end, timeline.at, compute) - np.interp(start, timeline.at, compute)
            stops = coupled[beside < end - start - _LIMITS.simultaneous_ns]
            self._stops[rank] = stops[np.argsort(found.end[stops], kind="stable")]
        return self._activities[rank]

    def _timeline(self, rank: int) -> _Timeline:
        self._rank(rank)
        return self._timelines[rank]

    def _launch_ns(self, rank: int) -> float:
        return float(self._job.launch_ns[self._step.times.team[rank]])

    def _read(self, rank: int) -> _Activities:
        parts = [self._cells(self._before, rank, True), self._cells(self._step, rank, False)]
        columns = [np.concatenate(found) for found in zip(*parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return _Activities(*(column[order] for column in columns))

    def _cells(self, step: RecordedStep, rank: int, is_before: bool) -> _Activities:
        job, times, collectives = self._job, step.times, step.collectives
        team, row = int(times.team[rank]), int(times.row[rank])
        first, after = int(job.first[team]), int(job.first[team + 1])
        here = slice(row, row + after - first) if row >= 0 else slice(0, 0)
        kind = job.kind[first:after] if row >= 0 else job.kind[:0]
        start, end, call, back = times.start[here], times.end[here], times.call[here], times.back[here]
        block = int(collectives.block[rank])
        base = int(collectives.first_place[block])
        number = collectives.number_at[base : base + len(kind)]
        attendance = collectives.attendance_at[base : base + len(kind)] + collectives.column[rank]
        group = np.full(len(kind), -1, np.int64)
        attended = number >= 0
        group[attended] = collectives.group[attendance[attended]]
        transfers = step.transfers
        known = attended.copy()
        known[attended] = transfers.mostly_complete[group[attended]] & ~np.isnan(transfers.took[group[attended]])
        sizes = np.diff(collectives.first_in_group)
        known[attended] &= sizes[group[attended]] > 1
        arrival = start.copy()
        arrival[known] = np.maximum(start[known], end[known] - transfers.took[group[known]])
        group[~known] = -1
        begin, finish = float(self._begin[rank]), float(self._end[rank])
        chosen = (kind != SYNC) & ~np.isnan(start) & (end > begin) & (start < finish)
        is_first = np.arange(len(kind)) <= (-1 if is_before else int(job.first_kernel[team]))
        submit = np.where(np.isnan(call), np.nan, np.fmin(back, start))
        columns = (start, end, kind == COMPUTE, kind == COLLECTIVE, arrival, group, np.full(len(kind), is_before))
        return _Activities(*(column[chosen] for column in (*columns, submit, is_first)))


def _cut(found: _Activities, begin: float, finish: float, launch_ns: float) -> _Timeline:
    """Cut a rank's time in the step, from `begin` to `finish`, into parts."""
    start, end = found.start.clip(begin, finish), found.end.clip(begin, finish)
    arrival = found.last_arrival.clip(begin, finish)
    at = np.unique(np.concatenate([[begin, finish], start, end, arrival]))
    compute = _covered(at, start[found.is_compute], end[found.is_compute])
    transfer = _covered(at, arrival[found.is_collective], end[found.is_collective])
    waiting = _covered(at, start[found.is_collective], arrival[found.is_collective])
    busy = _covered(at, start, end)
    part = np.full(len(at) - 1, int(PathPart.REST))
    idle = np.flatnonzero(~busy)
    if len(idle):
        part[idle] = _idle_parts(found, at, idle, launch_ns)
    part[waiting] = PathPart.WAITING
    part[transfer] = PathPart.EXPOSED_COMMUNICATION
    part[compute] = PathPart.COMPUTE
    so_far = np.zeros((len(PathPart), len(at)))
    so_far[part, np.arange(1, len(at))] = np.diff(at)
    return _Timeline(at, np.cumsum(so_far, axis=1))


def _covered(at: Floats, start: Floats, end: Floats) -> Bools:
    """Return, (boundaries - 1,), whether anything runs between two boundaries."""
    count = np.zeros(len(at), np.int64)
    np.add.at(count, np.searchsorted(at, start), 1)
    np.add.at(count, np.searchsorted(at, end), -1)
    found: Bools = np.cumsum(count)[:-1] > 0
    return found


def _idle_parts(found: _Activities, at: Floats, idle: Ints, launch_ns: float) -> Ints:
    """Return, (idle intervals,), the part of each: launch or late start if the next activity was launched too late."""
    following = np.searchsorted(found.start, at[idle + 1] - 1e-6)
    parts = np.full(len(idle), int(PathPart.REST))
    there = following < len(found.start)
    after = following[there]
    is_late = found.submit[after] + launch_ns > at[idle[there]]  # False where the launch is unknown
    parts[np.flatnonzero(there)[is_late]] = np.where(
        found.is_first[after[is_late]], PathPart.LATE_START, PathPart.LAUNCH
    )
    return parts


def measure_kernel_times(step: RecordedStep, job: JobArrays) -> Floats:
    """Return, (operations of all teams,), the median over a team's ranks of each operation's own time on the GPU.

    That of a collective is from its last arrival to its end, the median over groups. NaN where no rank has it.
    """
    found = np.full(int(job.first[-1]), np.nan)
    times, collectives, transfers = step.times, step.collectives, step.transfers
    for team in range(len(job.launch_ns)):
        first, after = int(job.first[team]), int(job.first[team + 1])
        here = np.flatnonzero((times.team == team) & (times.row >= 0))
        if not len(here):
            continue
        begin = int(times.row[here[0]])
        shape = (len(here), after - first)
        cells = slice(begin, begin + shape[0] * shape[1])
        taken = (times.end[cells] - times.start[cells]).reshape(shape)
        is_transfer = job.kind[first:after] == COLLECTIVE
        taken[:, is_transfer] = np.nan
        for column, rank in enumerate(here.tolist()):
            block = int(collectives.block[rank])
            base = int(collectives.first_place[block])
            number = collectives.number_at[base : base + shape[1]]
            attended = np.flatnonzero(number >= 0)
            group = collectives.group[collectives.attendance_at[base + attended] + collectives.column[rank]]
            known = transfers.mostly_complete[group] & (np.diff(collectives.first_in_group)[group] > 1)
            taken[column, attended[known]] = transfers.took[group[known]]
        known_rows = ~np.isnan(taken).all(axis=0)
        found[first:after][known_rows] = np.nanmedian(taken[:, known_rows], axis=0)
    return found
