"""The run again with other self times, one scenario at a time, operation by operation.

For operation i of a rank, with its own self times or the baseline where it is repaired:

    called   = max(back of the call before on its thread, held[i] - host_lead_ns[i]) + host[i]; at least slot[i]
    returned = called + call[i]                         (of a synchronising call: max(called, awaited[i]) + call[i])
    start    = max(returned - lead[i] + launch_ns, end before on its stream + stream_ns, awaited[i]) + delay[i]
    end      = start + gpu[i]                           (slower while a collective of the rank runs: `interference`)

where `held[i]` is the latest end that the host waits for without a record. For a collective, over the ranks of its
group, where `end_recorded` is each rank's own, and in a ring over its neighbours, who leave `lag` earlier or later:

    moved = max(start - end_recorded - lag) + transfer
    end   = end_recorded + moved

An absent member may have arrived last, so a group with absent members may have waited. If the last collective of its
absent members moved further than the group, the group moves with them, at most by the transfer's excess.

So times stay on each rank's own clock: what couples ranks is how much later than recorded the last of a group arrives.
"""

import math
from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jitter.analysis.collectives.matching import CollectiveArrays
from jitter.analysis.execution.interference import end_beside
from jitter.analysis.execution.job_arrays import (
    CarriedState,
    JobArrays,
    carry_ends,
    push_pending,
    turn_pending,
)
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.schedule import CALLS, STARTS
from jitter.analysis.execution.self_times import CPU, GPU, START, SelfTimes, cut_self_times
from jitter.analysis.execution.step_times import StepTimes
from jitter.core.names.kernels import COLLECTIVE, COMPUTE, SYNC
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.compilation import compiled
from jitter.core.numeric.selection import later

if TYPE_CHECKING:
    from jitter.analysis.replay.run_steps import RecordedStep


class NodeTimes(NamedTuple):
    """Times of one setting of a step, (cells,) each, ns from the rank's origin, NaN where unknown."""

    end: Floats
    """End of each operation, or the stream's last end before it where the rank lacks it."""
    start: Floats
    """Start of each operation on the GPU. Empty unless asked for, like those below."""
    back: Floats
    """Return of the last call on the operation's thread, up to the operation's own."""
    free: Floats
    """Last end on the operation's stream before it."""


@compiled
def cut_nodes(nodes: NodeTimes, low: int, high: int) -> NodeTimes:
    """Return a part of some nodes, from `low` up to but not including `high`."""
    return NodeTimes(nodes.end[low:high], nodes.start[low:high], nodes.back[low:high], nodes.free[low:high])


class Scratch(NamedTuple):
    """Work arrays of the replay of one step; every replay overwrites them."""

    stream_end_before: Floats
    """(ranks, carried ends) what the steps before left."""
    free: Floats
    """(ranks, streams) when each stream had come to its last collective."""
    head: Ints
    """(ranks,) where each rank's launch queue begins."""
    room: Floats
    """(places,) of the launch queue."""
    held: Ints
    """(ranks,) launches that are called and not started."""
    late: Floats
    """(groups of all collectives,) how much later than recorded the last rank arrives; then, the collective ends."""
    moved: Floats
    """(ranks, absent ranks) how much later than recorded the last collective of each ended."""


class Change(NamedTuple):
    """Changes of a scenario in one step."""

    repaired: Bools
    """(START, CPU, GPU; ranks) whose self times are the baseline's."""
    transfer: Floats
    """(groups of all collectives,) from the last arrival to the end."""
    possible_wait: Floats
    """(groups of all collectives,) how much of the transfer may be a wait for absent members."""
    time_saved: float
    """How much earlier than recorded the scenario is: ranks that join now join there."""


class StepReplay(NamedTuple):
    """A step in one scenario: what the loops of the replay read and fill."""

    job: JobArrays
    instructions: Ints
    """The schedule's array."""
    collectives: CollectiveArrays
    step: StepTimes
    self_times: SelfTimes
    baseline: SelfTimes
    """(operations of all teams,)."""
    change: Change
    begins: Bools
    """(ranks,) which start, where nothing is known of what they waited for, as recorded."""
    state: CarriedState
    scratch: Scratch
    nodes: NodeTimes


def replay_step(
    job: JobArrays,
    instructions: Ints,
    step: "RecordedStep",
    baseline: SelfTimes,
    change: Change,
    state: CarriedState,
    nodes: NodeTimes | None = None,
) -> NodeTimes:
    """Replay one step in one scenario and return when each operation ends; the other times fill `nodes`, if given.

    `state` is how the ranks come to the step in the scenario, and becomes how they leave it. `instructions` is the
    schedule's array, `baseline` (operations,) the step's medians.
    """
    collectives, ranks, cells = step.collectives, len(step.fresh), len(step.times.start)
    state.forget(step.fresh)
    state.back[step.fresh] = step.before.back[step.fresh] - change.time_saved  # known where a marker tells it
    beginning = np.zeros(len(collectives.first_member) - 1, np.bool_)
    beginning[collectives.block[step.fresh]] = True
    runs_ahead = bool((instructions[:, 3] == CALLS).any())
    if nodes is None:
        starts, backs = (np.empty(cells if is_kept else 0) for is_kept in (job.interference.any(), runs_ahead))
        nodes = NodeTimes(np.empty(cells), starts, backs, np.empty(0))
    if runs_ahead:
        nodes.start.fill(np.nan)  # no held collective slows a kernel down
    scratch = Scratch(
        state.stream_end.copy(),
        np.full(state.stream_end.shape, np.nan),
        np.zeros(ranks, np.int64),
        np.empty(state.pending.shape[1]),
        np.zeros(ranks, np.int64),
        np.empty(len(change.transfer)),
        np.full(collectives.absent.max(initial=ranks - 1) + 1, -change.time_saved),
    )
    begins = beginning[collectives.block]
    follow_instructions(
        StepReplay(
            job, instructions, collectives, step.times, step.self_times, baseline, change, begins, state, scratch, nodes
        )
    )
    return nodes


@compiled
def follow_instructions(replay: StepReplay) -> None:
    """Compute the blocks' operations and the collectives in the schedule's order."""
    job, step, state, scratch, instructions = replay.job, replay.step, replay.state, replay.scratch, replay.instructions
    for at in range(instructions.shape[0]):
        block = instructions[at, 0]
        if block < 0:
            end_collective(replay, instructions[at, 1])
        else:
            replay_operations(replay, block, instructions[at, 1], instructions[at, 2], instructions[at, 3])
    for rank in range(len(step.row)):
        places = job.queue[step.team[rank]]
        if step.row[rank] >= 0:
            row = step.row[rank]
            carry_ends(job, step.team[rank], rank, row, step.start, replay.nodes.end, state.stream_end)
        if places > 0 and step.row[rank] >= 0:
            turn_pending(state.pending, rank, scratch.head[rank], places, scratch.room)


@compiled
def replay_operations(  # noqa: PLR0912, PLR0915  # one formula
    replay: StepReplay, block: int, first: int, last: int, of_operation: int
) -> None:
    """Compute some operations of a block's ranks, the `first` up to but not including the `last`.

    `of_operation` is which part of each: see `Schedule`.

    A collective ends here as recorded after its start; `end_collective` corrects collectives of several ranks.
    Until then its start stands among the ends.
    """
    job, collectives, step, change = replay.job, replay.collectives, replay.step, replay.change
    begins, state, scratch, nodes = replay.begins, replay.state, replay.scratch, replay.nodes
    ends, keeps_starts, keeps_all = nodes.end, len(nodes.start) > 0, len(nodes.free) > 0
    is_called_now, is_started_now = of_operation != STARTS, of_operation != CALLS
    for member in range(collectives.first_member[block], collectives.first_member[block + 1]):
        rank = collectives.member[member]
        team, row = step.team[rank], step.row[rank]
        if row < 0:
            continue
        launch_ns, stream_ns, places = job.launch_ns[team], job.stream_ns[team], job.queue[team]
        has_launches, slower, first_kernel = job.has_launches[team], job.interference[team], job.first_kernel[team]
        by_start, by_host, by_gpu = change.repaired[START, rank], change.repaired[CPU, rank], change.repaired[GPU, rank]
        # numbers from 0 up, in parts of the arrays, need no test for places counted from the end
        low, high = job.first[team] + first, job.first[team] + last
        straight, threads, streams = job.is_straight[low:high], job.thread[low:high], job.stream[low:high]
        usual = cut_self_times(replay.baseline, low, high)
        low, high = row + first, row + last
        recorded = cut_self_times(replay.self_times, low, high)
        calls, starts, part = step.call[low:high], step.start[low:high], cut_nodes(nodes, low, high)
        for at in range(last - first):
            thread, stream = threads[at], streams[at]
            is_straight, is_called = straight[at] and not begins[rank], not isnan(calls[at])
            if by_start if first + at <= first_kernel else by_host:
                host, in_call, lead = usual.host[at], usual.call[at], usual.lead[at]
            else:
                host, in_call, lead = recorded.host[at], recorded.call[at], recorded.lead[at]
            before, awaited = state.back[rank, thread], math.nan
            called = before + host
            if not is_straight:
                place = job.first[team] + first + at
                since = before
                for wait in range(job.first_host_wait[place], job.first_host_wait[place + 1]):
                    awaited_op = job.host_wait_on[wait]
                    if awaited_op >= 0 and isnan(step.start[row + awaited_op]):
                        continue  # the host does not wait for what the rank lacks
                    held = ends[row + awaited_op] if awaited_op >= 0 else scratch.stream_end_before[rank, ~awaited_op]
                    since = later(since, held - job.host_lead_ns[place])
                called = since + host
                if begins[rank] and isnan(called):
                    called = calls[at] - change.time_saved
                for wait in range(job.first_wait[place], job.first_wait[place + 1]):
                    awaited_op = job.wait_on[wait]
                    held = ends[row + awaited_op] if awaited_op >= 0 else scratch.stream_end_before[rank, ~awaited_op]
                    awaited = later(awaited, held)
                if job.kind[place] == SYNC:
                    if is_called:
                        state.back[rank, thread] = later(called, awaited) + in_call
                    part.end[at] = math.nan
                    if keeps_starts:
                        part.start[at] = math.nan
                    if keeps_all:
                        part.back[at], part.free[at] = state.back[rank, thread], math.nan
                    continue
                if places > 0:
                    # launches that are held start later than all that have started
                    slot = state.pending[rank, (scratch.head[rank] + scratch.held[rank]) % places]
                    if called < slot:  # noqa: PLR1730  # an unknown call stays unknown
                        called = slot
            returned = called + in_call if is_called else before
            if is_called_now:
                state.back[rank, thread] = returned
            else:
                returned = part.back[at]
                scratch.held[rank] -= not isnan(starts[at])
            if not is_started_now:
                part.back[at] = returned
                scratch.held[rank] += not isnan(starts[at])
                continue
            free = state.stream_end[rank, stream]
            if keeps_all:
                part.back[at], part.free[at] = returned, free
            if isnan(starts[at]):
                part.end[at] = free  # the rank has not the operation: what waits for it waits for the one before it
                if keeps_starts:
                    part.start[at] = math.nan
                continue
            delay, gpu = recorded.delay[at], recorded.gpu[at]
            is_known = not isnan(delay if has_launches else recorded.host[at])
            if by_gpu:
                delay, gpu = usual.delay[at], usual.gpu[at]
            if not has_launches:
                delay += host
            if is_known:
                start = later(later(returned - lead + launch_ns, free + stream_ns), awaited) + delay
            else:
                start = later(returned - lead + launch_ns, starts[at] - change.time_saved)
            end = start + gpu
            if not is_straight:
                op = first + at
                place = job.first[team] + op
                if begins[rank] and isnan(start):
                    start = starts[at] - change.time_saved
                    end = start + gpu
                if places > 0:
                    scratch.head[rank] = push_pending(state.pending, rank, scratch.head[rank], places, start)
                if job.kind[place] == COLLECTIVE:
                    scratch.free[rank, stream] = free
                    end = start + (step.end[row + op] - starts[at])
                elif slower > 0 and job.kind[place] == COMPUTE:
                    part.start[at] = start
                    end = end_beside(
                        job.collective_before, job.first[team], row, op, nodes.start, ends, start, gpu, 1 + slower
                    )
                    if not isnan(end):
                        end = start + math.floor(end - start + 0.5)  # whole ns, as recorded ones are
            if keeps_starts:
                part.start[at] = start
            part.end[at] = end
            # it may end before an earlier one that it overlaps
            state.stream_end[rank, stream] = later(free, end)


@compiled
def end_collective(replay: StepReplay, number: int) -> None:
    """End one collective for all of its groups: as much later than recorded as the last rank arrives."""
    collectives, step, change, scratch = replay.collectives, replay.step, replay.change, replay.scratch
    ends, stream_end = replay.nodes.end, replay.state.stream_end
    for group in range(collectives.first_group[number], collectives.first_group[number + 1]):
        latest = -math.inf
        for position in range(collectives.first_in_group[group], collectives.first_in_group[group + 1]):
            at, lag = collectives.by_group[position], collectives.lag[position]
            cell = step.row[collectives.rank[at]] + collectives.place[at]
            if step.row[collectives.rank[at]] >= 0 and not isnan(step.start[cell]) and not isnan(lag):
                # it ends for now as recorded after its start
                late = ends[cell] - (step.end[cell] - step.start[cell]) - step.end[cell] - lag
                if isnan(late) or late > latest:  # an unknown arrival makes the end unknown
                    latest = late
        moved = latest + change.transfer[group]
        if change.possible_wait[group] > 0:
            absent = absent_moved(replay, group)
            if absent < moved:
                moved = max(moved - change.possible_wait[group], absent)
        scratch.late[group] = moved
        if not isnan(moved):
            for at in range(collectives.first_absent[group], collectives.first_absent[group + 1]):
                scratch.moved[collectives.absent[at]] = moved
    for at in range(collectives.first[number], collectives.first[number + 1]):
        rank = collectives.rank[at]
        cell = step.row[rank] + collectives.place[at]
        moved = scratch.late[collectives.group[at]]
        if not isnan(moved):
            scratch.moved[rank] = moved
        if step.row[rank] >= 0 and not isnan(step.start[cell]):
            stream = replay.job.stream[replay.job.first[step.team[rank]] + collectives.place[at]]
            ends[cell] = step.end[cell] + moved
            stream_end[rank, stream] = later(scratch.free[rank, stream], ends[cell])


@compiled
def absent_moved(replay: StepReplay, group: int) -> float:
    """Return how much later than recorded the last collective of a group's absent members ended, of the latest one."""
    collectives, step, scratch = replay.collectives, replay.step, replay.scratch
    latest = -math.inf
    for at in range(collectives.first_absent[group], collectives.first_absent[group + 1]):
        latest = max(latest, scratch.moved[collectives.absent[at]])
    for position in range(collectives.first_in_group[group], collectives.first_in_group[group + 1]):
        at = collectives.by_group[position]
        rank = collectives.rank[at]
        if step.row[rank] < 0 or isnan(step.start[step.row[rank] + collectives.place[at]]):
            latest = max(latest, scratch.moved[rank])
    return latest


def accumulate_excess(run: RunModel, step: "RecordedStep", baseline: SelfTimes, usual_transfers: Floats) -> Floats:
    """Return, (cells,), how much later than with the medians each operation ends, ns; transfers take their usual time.

    `baseline` (operations of all teams,) holds the step's medians, `usual_transfers` (groups of all collectives,) the
    baseline of each transfer. Cells are laid out as in `StepTimes`; NaN where the rank lacks the operation.
    """
    collectives = step.collectives
    alone = replace(step, collectives=_one_rank_groups(collectives))
    usual = usual_transfers[collectives.group]
    took = step.transfers.took[collectives.group]
    # an unrecorded rank may have arrived last: then the time from the last recorded arrival includes waiting
    took = np.where(step.transfers.complete[collectives.group], took, np.fmin(took, usual))
    usual = np.nan_to_num(np.where(np.isnan(usual), took, usual))
    instructions, no_waits = run.schedule.array(), np.zeros(len(usual))

    def ends(*, is_repaired: bool) -> Floats:
        change = Change(np.full((len((START, CPU, GPU)), len(step.fresh)), is_repaired), usual, no_waits, 0.0)
        return replay_step(run.job, instructions, alone, baseline, change, step.before.copy()).end

    return ends(is_repaired=False) - ends(is_repaired=True)


def _one_rank_groups(collectives: CollectiveArrays) -> CollectiveArrays:
    """Return the collectives with each attendance in a group of its own."""
    size = len(collectives.rank)
    every = np.arange(size, dtype=np.int64)
    return collectives._replace(
        first_group=collectives.first,
        group=every,
        first_in_group=np.arange(size + 1, dtype=np.int64),
        by_group=every,
        lag=np.zeros(size),
        first_absent=np.zeros(size + 1, np.int64),
    )
