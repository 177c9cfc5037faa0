"""Self times: what an operation took by itself, all waiting taken out.

For operation i of a rank, with the thread and the stream it is on, the ready times are

    back_before[i] = return of the call before i on its thread
    submit[i]      = min(return of i's own call, or back_before[i] where that is unknown; start[i])
    end_before[i]  = latest end of the operations before i on its stream

Across steps the carried state (`CarriedState`) tells what the step before left. With the latest end `awaited[i]` of
what else operation i waits for, `slot[i]`, when its launch queue had a place, and `held[i]`, the latest end that the
host waits for without a record, the self times are

    host[i]  = call[i] - max(back_before[i], held[i] - host_lead_ns[i])
    call[i]  = back[i] - max(call[i], slot[i])            (of a synchronising call: awaited[i] for slot[i])
    lead[i]  = back[i] - submit[i]
    delay[i] = start[i] - max(submit[i] + launch_ns, end_before[i] + stream_ns, awaited[i])
    gpu[i]   = end[i] - start[i]                           (0 for a collective: that time is its group's)

Of a compute kernel the time that it lost beside collectives is taken out of `gpu` (see `interference`).
If no launches were recorded, an idle GPU is taken to wait for its host: host[i] is the delay, and delay[i] is 0.
"""

import math
from collections.abc import Iterator, Sequence
from enum import IntEnum
from math import isnan
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.execution.interference import time_beside
from jitter.analysis.execution.job_arrays import (
    CarriedState,
    JobArrays,
    carry_ends,
    note_state,
    push_pending,
    turn_pending,
)
from jitter.analysis.execution.rank_clusters import find_reference_ranks
from jitter.analysis.execution.step_times import StepTimes, cut_step
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COLLECTIVE, COMPUTE, HOST_BARRIER, SYNC
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.compilation import compiled
from jitter.core.numeric.selection import later, select_lower_median
from jitter.core.numeric.stats import lower_median


class TimePart(IntEnum):
    """A part of a step's time. The values are positions along the `parts` axis of arrays."""

    START = 0
    """Host time before the launch of the step's first main-stream kernel."""
    CPU = 1
    """Host time after that, where kernels waited for their launch."""
    GPU = 2
    """Durations of kernels and copies, and delays between them on the GPU."""
    TRANSFER = 3
    """A collective's time from its last arrival to its end; it belongs to the group, not to a rank."""

    @property
    def label(self) -> str:
        """Return the part's name in figures and tables."""
        return _LABELS[self]


_LABELS: Final = {
    TimePart.START: "late start",
    TimePart.CPU: "CPU",
    TimePart.GPU: "GPU",
    TimePart.TRANSFER: "communication",
}
OWN_PARTS: Final = (TimePart.START, TimePart.CPU, TimePart.GPU)
"""The parts of a rank's own time."""


@compiled
def submitted(before: float, returned: float, start: float) -> float:
    """Return when the GPU had a launch: its return, or that of the call before, no later than the start; or NaN."""
    launched = returned if not isnan(returned) else before
    return launched if launched <= start or isnan(launched) else start


@compiled
def find_awaited(
    job: JobArrays, step: StepTimes, rank: int, op: int, stream_end_before: Floats, end_before: Floats, by_host: bool
) -> float:
    """Return when the last of what an operation, or its host without a record, waits for ended; NaN for none.

    `stream_end_before` (ranks, carried ends) is what the steps before left. Where the rank lacks the awaited operation,
    the operation waits for the one before that on its stream: of `end_before` (operations,). The host does not wait.
    """
    at = job.first[step.team[rank]] + op
    first, wait_on = (job.first_host_wait, job.host_wait_on) if by_host else (job.first_wait, job.wait_on)
    latest = math.nan
    for wait in range(first[at], first[at + 1]):
        awaited_op = wait_on[wait]
        if awaited_op >= 0:
            end = step.end[step.row[rank] + awaited_op]
            end = end_before[awaited_op] if isnan(end) and not by_host else end
        else:
            end = stream_end_before[rank, ~awaited_op]
        latest = later(latest, end)
    return latest


OPERATIONS_AT_ONCE: Final = 16
"""Whose values are put together over ranks: two lines of the processor's cache of each rank's."""
START, CPU, GPU, TRANSFER = (int(part) for part in TimePart)
"""For compiled loops, which know no enums."""


class SelfTimes(NamedTuple):
    """(cells,) of a step, laid out as in `StepTimes`, or (operations,) of all teams as in `JobArrays`; ns.

    0 where a rank has not the operation.
    """

    host: Floats
    """From the call before on the thread to this one's begin, a wait between them taken out.

    NaN for a rank's first call: nothing goes before it.
    """
    call: Floats
    """In the call, waits for the GPU and for a place in the launch queue taken out."""
    lead: Floats
    """From when the GPU had the launch to the call's return."""
    delay: Floats
    """From the latest of what it waits for, and the usual time after that, to its start; may be below 0. NaN for the
    first of a stream, without another wait, of a rank that joins its team in this step: what it waited for lies before.
    """
    gpu: Floats
    """On the GPU; 0 for collectives."""

    @property
    def host_and_call(self) -> Floats:
        """The host's, before the call and in it; of a rank's first call, what is in it."""
        before_and_in: Floats = np.nan_to_num(self.host) + self.call
        return before_and_in


@compiled
def cut_self_times(times: SelfTimes, low: int, high: int) -> SelfTimes:
    """Return a part of some self times, from `low` up to but not including `high`."""
    return SelfTimes(
        times.host[low:high], times.call[low:high], times.lead[low:high], times.delay[low:high], times.gpu[low:high]
    )


def empty_self_times(cells: int) -> SelfTimes:
    """Make room for so many, in arrays of their own: freed memory is used again for no larger ones."""
    return SelfTimes(*(np.empty(cells) for _ in SelfTimes._fields))


def follow_steps(job: JobArrays, steps: StepTimes, state: CarriedState, count: int) -> tuple[SelfTimes, CarriedState]:
    """Return the self times of all ranks in so many steps, of the same ranks, and the state before each of them.

    `state` is how the ranks come to the first one, and becomes how they leave the last one.
    """
    self_times = empty_self_times(len(steps.start))
    before = CarriedState(*(np.empty((count, *values.shape)) for values in state))
    end_before = np.empty(int(np.diff(job.first).max(initial=0)))
    room = np.empty(state.pending.shape[1])
    find_self_times_of_steps(job, steps, state, before, np.empty_like(state.stream_end), end_before, room, self_times)
    return self_times, before


@compiled
def find_self_times_of_steps(
    job: JobArrays,
    steps: StepTimes,
    state: CarriedState,
    before: CarriedState,
    stream_end_before: Floats,
    end_before: Floats,
    room: Floats,
    self_times: SelfTimes,
) -> None:
    """Take all waiting out of steps that follow each other; all arguments but the first three are overwritten."""
    count = before.back.shape[0]
    cells = len(steps.start) // count
    for at in range(count):
        step, times_of_step = cut_step(steps, at, cells), cut_self_times(self_times, at * cells, (at + 1) * cells)
        note_state(before, at, state, stream_end_before)
        for team in range(len(job.launch_ns)):
            is_new = True
            for rank in range(job.first_rank[team], job.first_rank[team + 1]):
                is_new = is_new and (step.row[rank] < 0 or not is_known(stream_end_before, rank))
            for rank in range(job.first_rank[team], job.first_rank[team + 1]):
                if step.row[rank] >= 0:
                    joins = not is_new and not is_known(stream_end_before, rank)
                    find_self_times(job, step, rank, joins, stream_end_before, state, end_before, room, times_of_step)
                    carry_ends(job, team, rank, step.row[rank], step.start, step.end, state.stream_end)


@compiled
def is_known(stream_end: Floats, rank: int) -> bool:
    """Return whether it is known when one of a rank's streams was done."""
    has_end = False
    for stream in range(stream_end.shape[1]):
        has_end = has_end or not isnan(stream_end[rank, stream])
    return has_end


@compiled
def find_self_times(  # noqa: PLR0912, PLR0915  # one formula
    job: JobArrays,
    step: StepTimes,
    rank: int,
    joins: bool,
    stream_end_before: Floats,
    state: CarriedState,
    end_before: Floats,
    room: Floats,
    self_times: SelfTimes,
) -> None:
    """Take all waiting out of one rank's step; `end_before` (operations,) becomes the last end on each one's stream.

    `joins` says that the step before is known of other ranks of the team only. `state` is how the rank comes to the
    step, and leaves it; `stream_end_before` (ranks, carried ends) is what the steps before left.
    """
    team, row = step.team[rank], step.row[rank]
    first, size = job.first[team], job.first[team + 1] - job.first[team]
    launch_ns, stream_ns, places, head = job.launch_ns[team], job.stream_ns[team], job.queue[team], 0
    has_launches = job.has_launches[team]
    # numbers from 0 up, in parts of the arrays, need no test for places counted from the end
    straight, threads, streams = (
        job.is_straight[first : first + size],
        job.thread[first : first + size],
        job.stream[first : first + size],
    )
    starts, ends = step.start[row : row + size], step.end[row : row + size]
    calls, backs = step.call[row : row + size], step.back[row : row + size]
    own = cut_self_times(self_times, row, row + size)
    for op in range(size):
        thread, stream, start, call, back = threads[op], streams[op], starts[op], calls[op], backs[op]
        before, on_stream = state.back[rank, thread], stream >= 0  # else a synchronising call
        is_queued = places > 0 and job.kind[first + op] < SYNC
        if not isnan(back):
            state.back[rank, thread] = back
        free = math.nan
        if on_stream:
            free = state.stream_end[rank, stream]
            # a later kernel of a stream may end before an earlier one that overlaps it
            state.stream_end[rank, stream] = later(free, ends[op])
        end_before[op] = free
        lead = delay = gpu = 0.0
        awaited, held, since = math.nan, -np.inf, before
        if not straight[op]:
            awaited = find_awaited(job, step, rank, op, stream_end_before, end_before, False)
            if not on_stream:
                held = awaited
            elif is_queued:
                held = state.pending[rank, head]
            if job.first_host_wait[first + op] < job.first_host_wait[first + op + 1] and not isnan(before):
                waited = find_awaited(job, step, rank, op, stream_end_before, end_before, True)
                since = later(before, waited - job.host_lead_ns[first + op])
        if not isnan(start):
            submit = submitted(before, back, start)
            lead = (back if not isnan(call) else before) - submit
            held_until = later(later(submit + launch_ns, free + stream_ns), awaited)
            delay = start - held_until if not (joins and isnan(free) and isnan(awaited)) else np.nan
            if straight[op]:
                gpu = ends[op] - start
            elif job.kind[first + op] != COLLECTIVE and job.kind[first + op] != HOST_BARRIER:
                gpu = undisturbed_ns(job, team, row, op, step.start, step.end)
        if is_queued:
            head = push_pending(state.pending, rank, head, places, start)
        host = call - since if not isnan(call) else 0.0
        if not has_launches and on_stream:
            host, delay = delay if joins or not isnan(delay) else 0.0, 0.0
        own.host[op] = host
        own.call[op] = back - later(call, held) if not isnan(call) else 0.0
        own.lead[op] = lead if not isnan(lead) else 0.0
        own.delay[op] = delay if joins or not isnan(delay) else 0.0
        own.gpu[op] = gpu
    if places > 0:
        turn_pending(state.pending, rank, head, places, room)


@compiled
def undisturbed_ns(job: JobArrays, team: int, row: int, op: int, start: Floats, end: Floats) -> float:
    """Return an activity's duration less the time that it lost beside collectives; its rank's begin at `row`."""
    duration, factor = end[row + op] - start[row + op], job.interference[team]
    if factor > 0 and job.kind[job.first[team] + op] == COMPUTE:
        beside = time_beside(job.last_beside, job.first[team], row, op, start, end)
        duration -= beside * factor / (1 + factor)
    return float(duration)


def undisturbed_times(job: JobArrays, team: int, start: Floats, end: Floats) -> Floats:
    """Return, (operations,), the durations of one rank's step less the time that they lost beside collectives."""
    times_ns = np.empty(len(start))
    fill_undisturbed(job, team, np.ascontiguousarray(start), np.ascontiguousarray(end), times_ns)
    return times_ns


@compiled
def fill_undisturbed(job: JobArrays, team: int, start: Floats, end: Floats, times_ns: Floats) -> None:
    """Find the undisturbed duration of each of one rank's operations."""
    for op in range(len(start)):
        times_ns[op] = undisturbed_ns(job, team, 0, op, start, end)


Alternatives = Sequence[tuple[int, Sequence[Ints]]]
"""Teams, and stretches of their programs at which ranks do the same in different ways: the operations of each way."""


def baselines(
    job: JobArrays, steps: StepTimes, self_times: SelfTimes, lost: Floats, alternatives: Alternatives = ()
) -> SelfTimes:
    """Return, (steps, operations of all teams), the lower median of each self time over the team's ranks.

    Of a team whose ranks fall into two clusters, over those of the faster one, if that is not the smaller one. Ranks
    that lost many events are left out, if half of the team or more did not; `lost` (steps, ranks) is which share each
    lost. NaN for a team that has not the step. Of `alternatives` each way takes as long as the median rank's.
    """
    count, ranks = lost.shape
    baseline = SelfTimes(*(np.empty((count, int(job.first[-1]))) for _ in SelfTimes._fields))
    room, known = np.empty(OPERATIONS_AT_ONCE * ranks), np.empty(OPERATIONS_AT_ONCE, np.int64)
    here, is_whole = steps.row >= 0, lost <= THRESHOLDS.min_cost_share
    if not is_whole.all():
        of_team = np.arange(len(job.launch_ns))[:, None] == steps.team
        whole, all_ranks = ((mask[..., None, :] & of_team).sum(axis=-1) for mask in (is_whole & here, here))
        is_whole |= (2 * whole < all_ranks)[:, steps.team]
    by_host = find_reference_ranks(job, steps, (self_times.host, self_times.call), count) & is_whole
    by_gpu = find_reference_ranks(job, steps, (self_times.gpu, self_times.delay), count) & is_whole
    references = (by_host, by_host, by_host, by_gpu, by_gpu)
    for values, is_reference, medians in zip(self_times, references, baseline, strict=True):
        find_medians(job, steps.row, count, values, is_reference.ravel(), room, known, medians.ravel())
        for team, ways in alternatives:
            chosen = np.flatnonzero(here & (steps.team == team))
            if not len(chosen):
                continue
            of_ways = [np.nan_to_num(values.reshape(count, -1)[:, steps.row[chosen, None] + way]) for way in ways]
            for way, of_way in zip(ways, _level(of_ways, is_reference[:, chosen]), strict=True):
                medians[:, job.first[team] + way] = of_way
    return baseline


def _level(ways: Sequence[Floats], is_reference: Bools) -> Iterator[Floats]:
    """Yield each way's times, (steps, operations): the lower medians of its ranks, scaled to the median rank's sum.

    `ways` are (steps, ranks, operations) each, 0 where a rank goes another way; `is_reference` (steps, ranks) are those
    that tell. Some times are below 0: each is changed in proportion to its size.
    """
    tells = is_reference | ~is_reference.any(axis=1, keepdims=True)
    usual = lower_median(np.where(tells, sum(way.sum(axis=2) for way in ways), np.nan))
    for way in ways:
        goes = (way != 0).any(axis=2)
        is_known = np.where((goes & tells).any(axis=1, keepdims=True), goes & tells, goes)
        medians = np.nan_to_num(lower_median(np.where(is_known[..., None], way, np.nan), axis=1)[:, 0])
        sizes = np.abs(medians)
        whole, added = sizes.sum(axis=1, keepdims=True), usual - medians.sum(axis=1, keepdims=True)
        yield medians + sizes * np.divide(added, whole, out=np.zeros_like(whole), where=whole > 0)


def median_over_steps(baselines: SelfTimes, numbers: Ints | slice) -> SelfTimes:
    """Return, (operations of all teams,), the lower median of each self time over those of these steps that have it.

    `baselines` are (steps of the run, operations of all teams).
    """
    return SelfTimes(*(lower_median(np.ascontiguousarray(values[numbers].T))[:, 0] for values in baselines))


@compiled
def find_medians(
    job: JobArrays,
    row: Ints,
    count: int,
    values: Floats,
    chosen: Bools,
    room: Floats,
    known: Ints,
    medians: Floats,
) -> None:
    """Find each operation's lower median over its team's reference ranks of those known, else over the others.

    Of so many steps that follow each other. `row` is (ranks,), `chosen` (steps × ranks,); `room` (operations at
    once × ranks) and `known` (operations at once,) are overwritten.
    """
    cells, operations = len(values) // count, job.first[-1]
    for step in range(count):
        values_of_step = values[step * cells : (step + 1) * cells]
        for team in range(len(job.launch_ns)):
            low, high = job.first_rank[team], job.first_rank[team + 1]
            rows, is_chosen = row[low:high], chosen[step * len(row) + low : step * len(row) + high]
            for first in range(job.first[team], job.first[team + 1], len(known)):
                size, begin = min(len(known), job.first[team + 1] - first), step * operations + first
                medians_of_team = medians[begin : begin + size]
                for is_wanted in (True, False):
                    gather_operations(
                        values_of_step, rows, first - job.first[team], size, is_chosen, is_wanted, room, known
                    )
                    has_all = True
                    for at in range(size):
                        if is_wanted or isnan(medians_of_team[at]):
                            medians_of_team[at] = select_lower_median(room[at * len(rows) :], known[at])
                        has_all = has_all and not isnan(medians_of_team[at])
                    if has_all:
                        break


@compiled
def gather_operations(
    values: Floats, row: Ints, first: int, size: int, is_chosen: Bools, is_wanted: bool, room: Floats, known: Ints
) -> None:
    """Put the known values of some operations together over ranks, (operations × ranks), and count them.

    Several operations at once: each rank's values lie on another page of memory.
    """
    for at in range(size):
        known[at] = 0
    for rank in range(len(row)):
        if row[rank] >= 0 and is_chosen[rank] == is_wanted:
            part = values[row[rank] + first : row[rank] + first + size]
            for at in range(size):
                room[at * len(row) + known[at]] = part[at]
                known[at] += not isnan(part[at])
