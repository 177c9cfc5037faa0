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
    note_state,
    push_pending,
    turn_pending,
)
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.schedule import CALLS, STARTS
from jitter.analysis.execution.self_times import CPU, GPU, START, SelfTimes, cut_self_times
from jitter.analysis.execution.step_times import StepTimes, cut_step
from jitter.core.names.kernels import COLLECTIVE, COMPUTE, HOST_BARRIER, SYNC
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.compilation import compiled
from jitter.core.numeric.selection import later

if TYPE_CHECKING:
    from jitter.analysis.replay.run_steps import RecordedSteps


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
    """Changes of a scenario in one step, or in several: with a further axis before these."""

    repaired: Bools
    """(START, CPU, GPU; ranks) whose self times are the baseline's."""
    transfer: Floats
    """(groups of all collectives,) from the last arrival to the end."""
    possible_wait: Floats
    """(groups of all collectives,) how much of the transfer may be a wait for absent members."""


class EndShift(NamedTuple):
    """How much earlier than recorded steps end in another setting: the mean over the ranks that have the step, ns.

    A step adds the change of the mean over its own ranks: a rank that leaves the run keeps what it gained.
    """

    of_ranks: Floats
    """(ranks,) at the last step of each; NaN: as the others."""
    mean_ns: Floats
    """(1,)."""


def no_shift(ranks: int) -> EndShift:
    """Return that no rank is earlier."""
    return EndShift(np.full(ranks, np.nan), np.zeros(1))


class StepReplay(NamedTuple):
    """A step, or several, in one scenario: what the loops of the replay read and fill."""

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
    time_saved: float
    """How much earlier than recorded the scenario is: ranks that join now join there."""
    state: CarriedState
    scratch: Scratch
    nodes: NodeTimes


class Replayed(NamedTuple):
    """Steps in one scenario."""

    nodes: NodeTimes
    """(steps × cells,)."""
    before: CarriedState
    """How the ranks come to each step, (steps, …)."""
    entered_ns: Floats
    """(steps,) how much earlier than recorded the step's ranks come to it."""
    left_ns: Floats
    """(steps,) how much earlier it ends."""
    is_known: Bools
    """(steps, ranks) whose ends are known."""
    gained_ns: Floats
    """(steps,) how much shorter it is; NaN where no rank's end is known, 0 where the scenario stands as recorded."""


SKIPPED, AS_RECORDED, CHANGED = range(3)
"""A step that is left out; one that is recorded as the scenario has it, and need not be computed where the scenario has
come back to what was recorded, but for a constant shift; any other one."""


def replay_steps(
    job: JobArrays,
    instructions: Ints,
    steps: "RecordedSteps",
    baseline: SelfTimes,
    change: Change,
    state: CarriedState,
    shift: EndShift,
    nodes: NodeTimes | None = None,
    turns: Ints | None = None,
    has_diverged: Bools | None = None,
) -> Replayed:
    """Replay steps in one scenario; their `nodes` are filled, of new ones the ends.

    `state` and `shift` are how the ranks come to the first step in the scenario, and become how they leave the last
    one. `instructions` is the schedule's array, `baseline` (steps, operations) and `change` are each step's. `turns`
    (steps,) is what each step is, and `has_diverged` (1,), also overwritten, whether the scenario differs from the
    recording by more than a constant shift; by default all is computed.
    """
    collectives, count, ranks, cells = steps.collectives, *steps.fresh.shape, len(steps.times.start)
    runs_ahead = bool((instructions[:, 3] == CALLS).any())
    if nodes is None:
        starts, backs = (np.empty(cells if is_kept else 0) for is_kept in (job.interference.any(), runs_ahead))
        nodes = NodeTimes(np.empty(cells), starts, backs, np.empty(0))
    if runs_ahead or job.interference.any():
        nodes.start.fill(np.nan)  # no collective that is held, or launched later, slows a kernel down yet
    scratch = Scratch(
        np.empty_like(state.stream_end),
        np.empty_like(state.stream_end),
        np.empty(ranks, np.int64),
        np.empty(state.pending.shape[1]),
        np.empty(ranks, np.int64),
        np.empty(change.transfer.shape[1]),
        np.empty(collectives.absent.max(initial=ranks - 1) + 1),
    )
    replay = StepReplay(
        job,
        instructions,
        collectives,
        steps.times,
        steps.self_times,
        SelfTimes(*(values.ravel() for values in baseline)),
        Change(np.empty(change.repaired.shape[1:], np.bool_), change.transfer.ravel(), change.possible_wait.ravel()),
        np.empty(ranks, np.bool_),
        0.0,
        state,
        scratch,
        nodes,
    )
    before = CarriedState(*(np.empty((count, *values.shape)) for values in state))
    entered_ns, left_ns, gained_ns = np.full((3, count), np.nan)
    replayed = Replayed(nodes, before, entered_ns, left_ns, np.zeros(steps.fresh.shape, np.bool_), gained_ns)
    turns = np.full(count, CHANGED) if turns is None else turns
    has_diverged = np.ones(1, np.bool_) if has_diverged is None else has_diverged
    recorded = steps.before, steps.fresh, steps.end_cells
    replay_in_turn(replay, *recorded, change.repaired, shift, turns, has_diverged, replayed)
    return replayed


@compiled
def replay_in_turn(
    replay: StepReplay,
    before: CarriedState,
    fresh: Bools,
    end_cells: Ints,
    repaired: Bools,
    shift: EndShift,
    turns: Ints,
    has_diverged: Bools,
    replayed: Replayed,
) -> None:
    """Replay steps one after the other; `before`, `fresh`, `end_cells` and `repaired` are those of each, (steps, …)."""
    state, scratch, count = replay.state, replay.scratch, len(turns)
    cells, operations = len(replay.step.start) // count, len(replay.baseline.gpu) // count
    for at in range(count):
        if turns[at] == SKIPPED:
            continue
        if turns[at] == CHANGED and not has_diverged[0]:
            put_as_recorded(state, shift, before, at)
        has_diverged[0] = turns[at] == CHANGED or (
            has_diverged[0] and not is_as_recorded(state, shift.mean_ns[0], before, fresh, at)
        )
        replayed.gained_ns[at] = 0.0
        if not has_diverged[0]:
            continue
        enter_shift(shift, fresh, end_cells, at)
        replayed.entered_ns[at] = saved = shift.mean_ns[0]
        for part in range(repaired.shape[1]):
            for rank in range(repaired.shape[2]):
                replay.change.repaired[part, rank] = repaired[at, part, rank]
        one = one_replay(replay, at, cells, operations, saved)
        begin_replay(one, before, fresh, at)
        note_state(replayed.before, at, state, scratch.stream_end_before)
        follow_instructions(one)
        is_known = leave_shift(shift, one.step, one.nodes, end_cells, at, replayed.is_known)
        replayed.left_ns[at] = shift.mean_ns[0]
        replayed.gained_ns[at] = shift.mean_ns[0] - saved if is_known else math.nan


@compiled
def one_replay(replay: StepReplay, at: int, cells: int, operations: int, time_saved: float) -> StepReplay:
    """Return the replay of one of several steps."""
    low, high, groups, change = at * cells, (at + 1) * cells, len(replay.scratch.late), replay.change
    first, last = at * groups, (at + 1) * groups
    return StepReplay(
        replay.job,
        replay.instructions,
        replay.collectives,
        cut_step(replay.step, at, cells),
        cut_self_times(replay.self_times, low, high),
        cut_self_times(replay.baseline, at * operations, (at + 1) * operations),
        Change(change.repaired, change.transfer[first:last], change.possible_wait[first:last]),
        replay.begins,
        time_saved,
        replay.state,
        replay.scratch,
        cut_nodes(replay.nodes, low, high),
    )


@compiled
def begin_replay(replay: StepReplay, before: CarriedState, fresh: Bools, at: int) -> None:
    """Begin the replay of a step: ranks that join in it begin as recorded, earlier by what is saved."""
    state, scratch, saved, collectives = replay.state, replay.scratch, replay.time_saved, replay.collectives
    for block in range(len(collectives.first_member) - 1):
        begins = False
        for member in range(collectives.first_member[block], collectives.first_member[block + 1]):
            begins = begins or fresh[at, collectives.member[member]]
        for member in range(collectives.first_member[block], collectives.first_member[block + 1]):
            replay.begins[collectives.member[member]] = begins
    for rank in range(len(replay.begins)):
        scratch.head[rank] = scratch.held[rank] = 0
        for column in range(state.stream_end.shape[1]):
            scratch.free[rank, column] = math.nan
            if fresh[at, rank]:
                state.stream_end[rank, column] = math.nan
        if fresh[at, rank]:
            for place in range(state.pending.shape[1]):
                state.pending[rank, place] = -math.inf
            for thread in range(state.back.shape[1]):
                state.back[rank, thread] = before.back[at, rank, thread] - saved  # known where a marker tells it
    for rank in range(len(scratch.moved)):
        scratch.moved[rank] = -saved


@compiled
def enter_shift(shift: EndShift, fresh: Bools, end_cells: Ints, at: int) -> None:
    """Find how much earlier the ranks of one of several steps come to it."""
    total, known = 0.0, 0
    for rank in range(len(shift.of_ranks)):
        if fresh[at, rank]:
            shift.of_ranks[rank] = math.nan
        if end_cells[at, rank] >= 0 and not isnan(shift.of_ranks[rank]):
            total += shift.of_ranks[rank]
            known += 1
    if known > 0:
        shift.mean_ns[0] = total / known


@compiled
def leave_shift(shift: EndShift, step: StepTimes, nodes: NodeTimes, end_cells: Ints, at: int, is_known: Bools) -> bool:
    """Take the ends of one of several steps in the other setting; return whether any rank's end is known."""
    total, known = 0.0, 0
    for rank in range(len(shift.of_ranks)):
        cell = end_cells[at, rank]
        if cell >= 0:
            shift.of_ranks[rank] = step.end[cell] - nodes.end[cell]
            if not isnan(shift.of_ranks[rank]):
                is_known[at, rank] = True
                total += shift.of_ranks[rank]
                known += 1
    if known > 0:
        shift.mean_ns[0] = total / known
    return known > 0


@compiled
def is_as_recorded(state: CarriedState, shift_ns: float, before: CarriedState, fresh: Bools, at: int) -> bool:
    """Return whether a scenario comes to a step as recorded, but for a constant shift."""
    return (
        are_same(state.stream_end, shift_ns, before.stream_end, fresh, at)
        and are_same(state.back, shift_ns, before.back, fresh, at)
        and are_same(state.pending, shift_ns, before.pending, fresh, at)
    )


@compiled
def are_same(times: Floats, shift_ns: float, before: Floats, fresh: Bools, at: int) -> bool:
    """Return whether times, (ranks, …), are those before one of several steps, of ranks that come from the last one."""
    for rank in range(len(times)):
        for column in range(times.shape[1]):
            shifted, recorded = times[rank, column] + shift_ns, before[at, rank, column]
            if not (fresh[at, rank] or shifted == recorded or (isnan(shifted) and isnan(recorded))):
                return False
    return True


@compiled
def put_as_recorded(state: CarriedState, shift: EndShift, before: CarriedState, at: int) -> None:
    """Let a scenario come to a step as recorded, but for a constant shift; all ranks are as early as their mean."""
    for rank in range(len(state.back)):
        shift.of_ranks[rank] = math.nan
    take_times(state.stream_end, before.stream_end, at, shift.mean_ns[0])
    take_times(state.back, before.back, at, shift.mean_ns[0])
    take_times(state.pending, before.pending, at, shift.mean_ns[0])


@compiled
def take_times(times: Floats, before: Floats, at: int, shift_ns: float) -> None:
    """Fill times, (ranks, …), with those before one of several steps, less the shift."""
    for rank in range(len(times)):
        for column in range(times.shape[1]):
            times[rank, column] = before[at, rank, column] - shift_ns


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
                    called = calls[at] - replay.time_saved
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
                if places > 0 and job.kind[place] < SYNC:
                    # launches that are held start later than all that have started
                    slot = state.pending[rank, (scratch.head[rank] + scratch.held[rank]) % places]
                    if called < slot:  # noqa: PLR1730  # an unknown call stays unknown
                        called = slot
            returned = called + in_call if is_called else before
            if is_called_now:
                state.back[rank, thread] = returned
            else:
                returned = part.back[at]
                scratch.held[rank] -= not isnan(starts[at]) and job.kind[job.first[team] + first + at] < SYNC
            if not is_started_now:
                part.back[at] = returned
                scratch.held[rank] += not isnan(starts[at]) and job.kind[job.first[team] + first + at] < SYNC
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
                start = later(returned - lead + launch_ns, starts[at] - replay.time_saved)
            end = start + gpu
            if not is_straight:
                op = first + at
                place = job.first[team] + op
                if begins[rank] and isnan(start):
                    start = starts[at] - replay.time_saved
                    end = start + gpu
                if places > 0 and job.kind[place] < SYNC:
                    scratch.head[rank] = push_pending(state.pending, rank, scratch.head[rank], places, start)
                if job.kind[place] == COLLECTIVE or job.kind[place] == HOST_BARRIER:
                    scratch.free[rank, stream] = free
                    end = start + (step.end[row + op] - starts[at])
                elif slower > 0 and job.kind[place] == COMPUTE:
                    part.start[at] = start
                    end = end_beside(
                        job.last_beside, job.first[team], row, op, nodes.start, ends, start, gpu, 1 + slower
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


def accumulate_excess(run: RunModel, step: "RecordedSteps", baseline: SelfTimes, usual_transfers: Floats) -> Floats:
    """Return, (cells,), how much later than with the medians each operation ends, ns; transfers take their usual time.

    Of one step. `baseline` (1, operations of all teams) holds its medians, `usual_transfers` (groups of all
    collectives,) the baseline of each transfer. Cells are laid out as in `StepTimes`; NaN where the rank lacks the
    operation.
    """
    collectives = step.collectives
    alone = replace(step, collectives=_one_rank_groups(collectives))
    usual = usual_transfers[collectives.group]
    took = step.transfers.took[:, collectives.group]
    # an unrecorded rank may have arrived last: then the time from the last recorded arrival includes waiting
    took = np.where(step.transfers.complete[:, collectives.group], took, np.fmin(took, usual))
    usual = np.nan_to_num(np.where(np.isnan(usual), took, usual))
    instructions, ranks = run.schedule.array(), len(run.rank_numbers)

    def ends(*, is_repaired: bool) -> Floats:
        change = Change(np.full((1, len((START, CPU, GPU)), ranks), is_repaired), usual, np.zeros_like(usual))
        state = CarriedState(*(values[0].copy() for values in step.before))
        return replay_steps(run.job, instructions, alone, baseline, change, state, no_shift(ranks)).nodes.end

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
