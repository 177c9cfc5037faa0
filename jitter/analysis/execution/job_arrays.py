"""All teams' programs and dependencies as flat arrays, and the state that ranks carry from step to step.

The compiled loops go through these arrays, operation by operation. Ranks of the run are numbered team by team, and
within a team by rank: `rank` in a loop is that number.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import NamedTuple

import numpy as np

from jitter.analysis.alignment.program import NO_STREAM, Program
from jitter.analysis.execution.dependencies import Dependencies
from jitter.analysis.execution.interference import last_beside
from jitter.analysis.execution.step_times import StepTimes
from jitter.core.names.kernels import COMPUTE, MEETINGS, SYNC
from jitter.core.numeric.arrays import Bools, Floats, Ints, begins_of, distinct_values, joined
from jitter.core.numeric.compilation import compiled
from jitter.core.step_key import StepKey


class JobArrays(NamedTuple):
    """Teams one after another: (teams + 1,) where each one's ranks and operations begin, then one entry each."""

    first_rank: Ints
    """(teams + 1,)."""
    first: Ints
    """(teams + 1,) of the operations below."""
    kind: Ints
    """(operations,) codes of `kernels.KINDS`, or of host calls."""
    stream: Ints
    """(operations,) the stream; `NO_STREAM` for synchronising calls."""
    thread: Ints
    """(operations,) whose calls the operation's call follows."""
    first_wait: Ints
    """(operations + 1,) where what each operation waits for begins in `wait_on`."""
    wait_on: Ints
    """(waits,) a place in the team's program; below 0 ~column of `CarriedState.stream_end`: an earlier step's end."""
    first_host_wait: Ints
    """(operations + 1,) where what the host waits for before each call, without a record, begins in `host_wait_on`.

    The host does not wait for what the rank lacks in the step."""
    host_wait_on: Ints
    """(waits of hosts,) as in `wait_on`."""
    host_lead_ns: Floats
    """(operations,) how much of an operation's own host time lies before such a wait."""
    first_carried: Ints
    """(teams + 1,) of the operations of earlier steps that are awaited, below."""
    carried_place: Ints
    """(carried,) the operation."""
    carried_steps: Ints
    """(carried,) how many steps ago; those of one operation follow each other: 1, 2, …"""
    carried_column: Ints
    """(carried,) the column of `CarriedState.stream_end`."""
    launch_ns: Floats
    """(teams,) usual time from a launch's return to its start."""
    stream_ns: Floats
    """(teams,) usual time from the end of the operation before it on its stream to its start."""
    queue: Ints
    """(teams,) launches that may be pending; 0: no limit."""
    first_kernel: Ints
    """(teams,) the place of the step's first main-stream kernel."""
    interference: Floats
    """(teams,) by what part compute kernels take longer beside collectives."""
    last_beside: Ints
    """(operations,) the place of the last collective that may run beside each operation, -1 for none."""
    has_launches: Bools
    """(teams,) whether launches were recorded; see `Dependencies`."""
    is_straight: Bools
    """(operations,) which wait for nothing but their launch and their stream, and which no collective touches."""

    def operations(self, team: int) -> slice:
        """Return where a team's operations lie."""
        return slice(int(self.first[team]), int(self.first[team + 1]))

    def slices(self, times: StepTimes, number: int) -> tuple[slice, slice]:
        """Return where a rank's operations lie, and its cells in a step that the rank, given by its number, has."""
        operations, row = self.operations(int(times.team[number])), int(times.row[number])
        return operations, slice(row, row + operations.stop - operations.start)

    def slices_of_ranks(self, times: StepTimes) -> Iterator[tuple[slice, slice]]:
        """Return the `slices` of the ranks that have a step, in the order of their numbers."""
        return (self.slices(times, number) for number in np.flatnonzero(times.row >= 0).tolist())


def job_arrays(sizes: Sequence[int], programs: Mapping[int, Program], rules: Mapping[int, Dependencies]) -> JobArrays:
    """Flatten the programs and dependencies of all teams, numbered from 0; `sizes` are their numbers of ranks."""
    teams = range(len(sizes))
    streams = 1 + max((int(programs[team].streams.max(initial=NO_STREAM)) for team in teams), default=NO_STREAM)
    carried = [rules[team].carried for team in teams]
    columns = [dict(zip(ends, range(streams, streams + len(ends)), strict=True)) for ends in carried]
    places = [(team, place) for team in teams for place in range(len(programs[team].operations))]
    waits, host_waits = (
        [[wait.on(columns[team]) for wait in of_place[team].get(place, ())] for team, place in places]
        for of_place in ([rules[team].by_place for team in teams], [rules[team].of_hosts for team in teams])
    )
    every = [carried_end for ends in carried for carried_end in ends]
    job = JobArrays(
        first_rank=begins_of(sizes),
        first=begins_of(len(programs[team].operations) for team in teams),
        kind=joined(programs[team].kinds for team in teams),
        stream=joined(programs[team].streams for team in teams),
        thread=joined(rules[team].thread for team in teams),
        first_wait=begins_of(map(len, waits)),
        wait_on=np.array([awaited for others in waits for awaited in others], np.int64),
        first_host_wait=begins_of(map(len, host_waits)),
        host_wait_on=np.array([awaited for others in host_waits for awaited in others], np.int64),
        host_lead_ns=np.array([rules[team].host_lead_ns.get(place, 0.0) for team, place in places], np.float64),
        first_carried=begins_of(map(len, carried)),
        carried_place=np.array([place for place, _ in every], np.int64),
        carried_steps=np.array([steps for _, steps in every], np.int64),
        carried_column=np.array([column for team_columns in columns for column in team_columns.values()], np.int64),
        launch_ns=np.array([rules[team].launch_ns for team in teams], np.float64),
        stream_ns=np.array([rules[team].stream_ns for team in teams], np.float64),
        queue=np.array([rules[team].queue or 0 for team in teams], np.int64),
        first_kernel=np.array([programs[team].first_kernel for team in teams], np.int64),
        interference=np.array([rules[team].interference for team in teams], np.float64),
        last_beside=joined(last_beside(programs[team].kinds, rules[team].later_beside) for team in teams),
        has_launches=np.array([rules[team].has_launches for team in teams], np.bool_),
        is_straight=np.empty(0, np.bool_),
    )
    return mark_straight(job)


def mark_straight(job: JobArrays) -> JobArrays:
    """Return the job with the `is_straight` that follows from everything else."""
    is_slowed = np.repeat(job.interference > 0, np.diff(job.first)) & (job.kind == COMPUTE)
    is_alone = follow_call_alone(job) & follow_stream_alone(job)
    return job._replace(is_straight=is_alone & ~np.isin(job.kind, MEETINGS) & ~is_slowed)


def follow_call_alone(job: JobArrays) -> Bools:
    """Return, (operations,), whose launch waits for nothing but the call before it on its thread."""
    has_queue = np.repeat(job.queue > 0, np.diff(job.first))
    follows_call: Bools = (np.diff(job.first_host_wait) == 0) & (job.kind != SYNC) & ~has_queue
    return follows_call


def follow_stream_alone(job: JobArrays) -> Bools:
    """Return, (operations,), whose start waits for nothing but their launch and their stream."""
    follows_stream: Bools = (np.diff(job.first_wait) == 0) & (job.kind != SYNC)
    return follows_stream


def launches_before(job: JobArrays) -> Ints:
    """Return, (operations,), the place of the operation before on the stream, whose launch both of its waits follow.

    That is so of operations that wait for nothing but their launch and their stream, if one thread launches both. -1
    for none, and for a collective, whose end owes its time to other ranks.
    """
    before = places_before(job, job.stream)
    there = np.repeat(job.first[:-1], np.diff(job.first)) + np.maximum(before, 0)
    is_common = follow_stream_alone(job) & (before >= 0) & (job.thread[there] == job.thread)
    places: Ints = np.where(is_common & ~np.isin(job.kind[there], MEETINGS), before, -1)
    return places


def places_before(job: JobArrays, lane: Ints) -> Ints:
    """Return, (operations,), the place of the operation before each on its lane; -1 for none.

    `lane` (operations,) is the stream or the thread of each.
    """
    before = np.full(len(lane), -1, np.int64)
    for first, after in zip(job.first[:-1].tolist(), job.first[1:].tolist(), strict=True):
        team_lane = lane[first:after]
        for number in distinct_values(team_lane).tolist():
            places = np.flatnonzero(team_lane == number)
            before[first + places[1:]] = places[:-1]
    return before


class CarriedState(NamedTuple):
    """State of the ranks before a step; ns from each rank's origin, NaN where unknown."""

    stream_end: Floats
    """(ranks, carried ends) the last end on each stream; then those of operations that a later step waits for."""
    back: Floats
    """(ranks, threads) the return of the last call."""
    pending: Floats
    """(ranks, places) the latest starts, ascending: what the launch queue holds; -inf for a free place."""

    def copy(self) -> "CarriedState":
        """Return a copy, with arrays of its own."""
        return CarriedState(*(values.copy() for values in self))

    def forget(self, ranks: Bools) -> None:
        """Make the state of these ranks unknown."""
        if not ranks.any():
            return
        self.stream_end[ranks] = self.back[ranks] = np.nan
        self.pending[ranks] = -np.inf


def unknown_state(ranks: int, streams: int, threads: int, places: int) -> CarriedState:
    """Return the state of ranks of which no step is known."""
    return CarriedState(
        np.full((ranks, streams), np.nan), np.full((ranks, threads), np.nan), np.full((ranks, places), -np.inf)
    )


def state_before(job: JobArrays) -> CarriedState:
    """Return the state of a job's ranks of which no step is known.

    Each carries the ends of its streams, and of operations that a later step waits for.
    """
    ends = 1 + max(int(job.stream.max(initial=NO_STREAM)), int(job.carried_column.max(initial=NO_STREAM)))
    threads, places = 1 + int(job.thread.max(initial=0)), int(job.queue.max(initial=0))
    return unknown_state(int(job.first_rank[-1]), ends, threads, places)


class StateTracker:
    """Follows the state of all ranks of a run, step by step."""

    def __init__(self, state: CarriedState) -> None:
        self.state = state
        self._last: list[StepKey | None] = [None] * len(state.back)

    def enter(self, keys: Sequence[StepKey], here: Bools) -> Bools:
        """Enter steps that follow each other; return, (steps, ranks), which do not come from the step before.

        `here` (ranks,) are the ranks that have the steps. The state of those without the step before becomes unknown.
        """
        before = StepKey(keys[0].epoch, keys[0].step - 1)
        fresh = np.tile(~here, (len(keys), 1))
        fresh[0] |= np.array([last != before for last in self._last], np.bool_)
        self.state.forget(fresh[0] & here)
        self._last = [keys[-1] if is_here else last for is_here, last in zip(here.tolist(), self._last, strict=True)]
        return fresh


@compiled
def carry_ends(job: JobArrays, team: int, rank: int, row: int, start: Floats, end: Floats, stream_end: Floats) -> None:
    """Carry the ends of a rank's operations, from `row` on in `end`, that later steps wait for.

    No step waits for an operation that the rank lacks: of unknown `start`.
    """
    for at in range(job.first_carried[team + 1] - 1, job.first_carried[team] - 1, -1):
        column = job.carried_column[at]
        if job.carried_steps[at] > 1:
            stream_end[rank, column] = stream_end[rank, column - 1]
        else:
            cell = row + job.carried_place[at]
            stream_end[rank, column] = end[cell] if not isnan(start[cell]) else math.nan


@compiled
def note_state(noted: CarriedState, at: int, state: CarriedState, stream_end: Floats) -> None:
    """Note a state as one of several, (states, …), and its ends in an array of their own."""
    for rank in range(len(stream_end)):
        for column in range(stream_end.shape[1]):
            stream_end[rank, column] = noted.stream_end[at, rank, column] = state.stream_end[rank, column]
        for thread in range(state.back.shape[1]):
            noted.back[at, rank, thread] = state.back[rank, thread]
        for place in range(state.pending.shape[1]):
            noted.pending[at, rank, place] = state.pending[rank, place]


@compiled
def push_pending(pending: Floats, rank: int, head: int, size: int, start: float) -> int:
    """Let one more launch into a rank's queue, in place of the earliest start; return the new head.

    The queue is a ring of `size` places: from `head` on starts ascend. A start that is unknown, or before all of them,
    changes nothing.
    """
    if not start > pending[rank, head]:
        return head
    at = head
    head = 0 if head + 1 == size else head + 1
    while at != head:
        previous = size - 1 if at == 0 else at - 1
        if not pending[rank, previous] > start:
            break
        pending[rank, at] = pending[rank, previous]
        at = previous
    pending[rank, at] = start
    return head


@compiled
def turn_pending(pending: Floats, rank: int, head: int, size: int, room: Floats) -> None:
    """Put a rank's queue in order, the earliest start first; `room` (places,) is overwritten."""
    if head > 0:
        for at in range(size):
            room[at] = pending[rank, (head + at) % size]
        for at in range(size):
            pending[rank, at] = room[at]
