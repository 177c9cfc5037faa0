"""The walk along a critical path, back from a step's last collective, as compiled loops."""

import math
from math import isnan
from typing import NamedTuple

from jitter.analysis.execution.collectives.matching import CollectiveArrays
from jitter.analysis.execution.dependencies.carried_state import CarriedState
from jitter.analysis.execution.dependencies.ready_times import (
    NOT_AWAITED,
    ReadyTimes,
    find_awaited,
    find_awaited_by_host,
    find_ready_times,
)
from jitter.analysis.execution.job_arrays import JobArrays
from jitter.analysis.execution.recorded.step_times import StepTimes
from jitter.analysis.execution.self_times import CPU, GPU, START, TRANSFER, SelfTimes
from jitter.core.names.kernels import SYNC
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.compilation import compiled
from jitter.core.numeric.selection import later, select_median

END, AT_COLLECTIVE, AT_OPERATION, AT_START, AT_LAUNCH, STREAM_BEFORE, THREAD_BEFORE = range(7)
"""Position of a walk: at its end, at a collective, at the end of an operation, at its start, at its launch; or at what
a stream or a thread did in the step before.
"""


class Standing(NamedTuple):
    """Position of a walk."""

    where: int
    rank: int
    """Number of the rank in the run."""
    which: int
    """The place of an operation; the stream or thread of the step before."""


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

    `standing` (3,) is where to begin, as `Standing`, and becomes where the walk ends. A tail, what a rank does after
    its last collective, ends at that collective.

    Each is a row of `numbers` (room, 5): rank, place, part, and of a transfer the collective and the group, else -1;
    and its `excess` (room,). Returns -1 if there is too little room. `before` is how the ranks come to the step;
    `state`, a copy of it, `visited` (ranks,) all False and `ready` (cells,) are overwritten.
    """
    count, where, rank, op = 0, standing[0], standing[1], standing[2]
    if rank >= 0:
        visited[rank] = True
        find_ready_times(job, step, rank, state.stream_end, state.back, step.row[rank], ready)
    while END < where < STREAM_BEFORE:
        if where == AT_COLLECTIVE:
            rank, op, latest = find_last_arrival(collectives, step, group)
            if rank < 0:
                where = END
                break
            if not visited[rank]:
                visited[rank] = True
                find_ready_times(job, step, rank, state.stream_end, state.back, step.row[rank], ready)
            count = charge(
                numbers, excess, count, rank, op, TRANSFER, -latest - baseline_transfers[group], number, group
            )
            where = AT_START
        elif where == AT_OPERATION:
            first, row = job.first[step.team[rank]], step.row[rank]
            stream = job.stream[first + op]
            while op >= 0 and isnan(step.start[row + op]):
                op = previous_on_stream[first + op]  # the rank lacks it: what was waited for is the one before it
            if op < 0:
                where, op = STREAM_BEFORE, stream
                break
            if is_tail and step.end[row + op] <= left[rank]:
                where = END
                break
            at = collectives.first_place[collectives.block[rank]] + op
            if collectives.number_at[at] >= 0 and coupled[collectives.number_at[at]]:
                number = collectives.number_at[at]
                group = collectives.group[collectives.attendance_at[at] + collectives.column[rank]]
                where = AT_COLLECTIVE
            else:
                more = own.gpu[row + op] - baseline.gpu[first + op]
                count = charge(numbers, excess, count, rank, op, GPU, more, -1, -1)
                where = AT_START
        elif where == AT_START:
            team, row = step.team[rank], step.row[rank]
            place = job.first[team] + op
            if step.start[row + op] <= left[rank]:
                where = END
                break
            launched = ready.submit[row + op] + job.launch_ns[team]
            stream = ready.end_before[row + op] + job.stream_ns[team]
            awaited, other = find_awaited(job, step, rank, op, before.stream_end, row, ready)
            held = later(later(launched, stream), awaited)
            more = own.delay[row + op] - baseline.delay[place]
            if not job.has_launches[team]:
                more += own.host[row + op] - baseline.host[place]
            if fresh[rank] and isnan(stream):
                more = 0.0  # what its stream did before is not known
            part = GPU
            if not job.has_launches[team]:
                part = START if op <= job.first_kernel[team] else CPU
            elif held == launched:
                # the GPU had it before the call returned: that much of the call held nothing up
                part = CPU
                more -= own.lead[row + op] - baseline.lead[place]
            count = charge(numbers, excess, count, rank, op, part, more, -1, -1)
            if held == awaited:
                where, op = (AT_OPERATION, other) if other >= 0 else (STREAM_BEFORE, ~other)
            elif held == launched:
                where = AT_LAUNCH
            elif isnan(held):
                where = END
            else:
                op = previous_on_stream[place]
                if op >= 0:
                    where = AT_OPERATION
                else:
                    where, op = STREAM_BEFORE, job.stream[place]
        else:
            count, where, op = walk_launches(
                job, step, own, baseline, before, left, ready, rank, op, numbers, excess, count
            )
        if count < 0 or count + 2 > len(excess):
            return -1
    standing[0], standing[1], standing[2] = where, rank, op
    return count


@compiled
def walk_launches(  # noqa: PLR0911, PLR0912  # one walk, five places where it may stop
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
            return -1, END, -1
        part = START if place <= job.first_kernel[team] else CPU
        more = own.call[cell] - baseline.call[first + place]
        count = charge(numbers, excess, count, rank, place, part, more, -1, -1)
        if job.kind[first + place] == SYNC:
            awaited, other = find_awaited(job, step, rank, place, before.stream_end, row, ready)
            if other != NOT_AWAITED and awaited > called:
                if other >= 0:
                    return count, AT_OPERATION, other
                return count, STREAM_BEFORE, ~other
        else:
            begun = step.back[cell] - own.call[cell]
            if begun > called:
                # the queue was full until this started
                for other in range(job.first[team + 1] - first):
                    if step.start[row + other] == begun:
                        return count, AT_START, other
                return count, END, -1
        host = own.host[cell]
        if isnan(host):
            return count, END, -1
        count = charge(numbers, excess, count, rank, place, part, host - baseline.host[first + place], -1, -1)
        held, other = find_awaited_by_host(job, step, rank, place, before.stream_end, row, ready)
        if held - job.host_lead_ns[first + place] > ready.back_before[row + place]:
            if other >= 0:
                return count, AT_OPERATION, other
            return count, STREAM_BEFORE, ~other
        if called - host <= left[rank]:
            return count, END, -1
    return count, THREAD_BEFORE, thread


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
