"""One pass backwards through a step's graph: what its end owes to every self time and transfer that changed.

Two settings of a step are compared, the upper one (as recorded) and the lower one (the baseline); every node of the
graph has a time in both. A multiplier is how much later the step ends if a node is later by one: 1 at the end, spread
over the ranks. Sums pass it on; maxima divide it by the Shapley values of their inputs, measured from their anchor. A
self time's share is its multiplier times its difference; what no input owes (rounding, unknown times) is unexplained,
so that the shares of a step add up to its loss.
"""

import math
from math import isnan
from typing import Final, NamedTuple

from jitter.analysis.account.graph import (
    END,
    LEFT,
    RETURN,
    SELF,
    STREAM,
    Setting,
    StepGraph,
    attended_head,
    common_ancestor,
    find_anchor,
    frees_stream,
    head_moved,
    is_sole,
    latest_input,
    list_arrivals,
    list_call_inputs,
    list_since_inputs,
    list_start_inputs,
    list_stream_inputs,
    ready_to_start,
)
from jitter.analysis.account.shapley import divide_maximum, shapley_value
from jitter.analysis.execution.interference import LOOK_BACK, end_beside
from jitter.analysis.execution.job_arrays import JobArrays, push_pending
from jitter.analysis.execution.schedule import CALLS, STARTS, WHOLE
from jitter.analysis.execution.self_times import CPU, GPU, START, cut_self_times
from jitter.analysis.execution.step_times import StepTimes
from jitter.analysis.replay.replay import cut_nodes
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COMPUTE, SYNC
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.compilation import compiled

_LIMITS: Final = THRESHOLDS.account
# for compiled loops, which know no classes
_UNCHANGED_NS: Final = _LIMITS.unchanged_ns
_NO_MULTIPLIER: Final = _LIMITS.no_multiplier
_COLLECTIVES_BESIDE: Final = _LIMITS.collectives_beside
SUBSETS_BESIDE: Final = 2 ** (2 + 2 * _LIMITS.collectives_beside)
"""The ends of a kernel that are computed at most: of its start, its work, and start and end of each collective."""


class Multipliers(NamedTuple):
    """How much later the step ends for each ns that a node is later."""

    end: Floats
    """(cells,)."""
    start: Floats
    """(cells,)."""
    stream: Floats
    """(ranks, carried ends): of the last end so far."""
    left: Floats
    """(ranks, carried ends): of what the steps before left."""
    back: Floats
    """(ranks, threads)."""
    held: Floats
    """(cells,) of the returns of launches whose calls and starts the schedule computes apart."""
    launch: Floats
    """(ranks, streams) of the return of the launch that the pass reaches next, from maxima measured from it."""
    group: Floats
    """(groups of all collectives,)."""
    touched: Bools
    """(ranks,) whether any of a rank's nodes has a multiplier."""


class Shares(NamedTuple):
    """Shares of a step's loss, ns."""

    host: Floats
    """(cells,)."""
    gpu: Floats
    """(cells,)."""
    overlap: Floats
    """(cells,) of time beside collectives that no single node owes; empty where collectives slow no kernels."""
    transfer: Floats
    """(groups of all collectives,)."""
    passed: Floats
    """(groups of all collectives,) no share: how much later the step ends for each ns that a group ends later."""
    carried: Floats
    """(ranks,) of what earlier steps left."""
    unexplained: Floats
    """(ranks,)."""


class Stretches(NamedTuple):
    """Noise of the operations to which a step's end owes its time, by the stretch between two collectives.

    A stretch is known by the collective that it begins at: its instance + 1; 0 is the end of the step before.
    """

    variance: Floats
    """(teams, START/CPU/GPU) noise variance, ns², of one operation's own time."""
    bias: Floats
    """(teams, START/CPU/GPU) how far its baseline is below its mean, ns."""
    varied: Floats
    """(stretches,) sum of the variances, each times its multiplier."""
    biased: Floats
    """(stretches,) likewise of the biases."""
    reached: Floats
    """(stretches,) sum of the multipliers of what the stretch ends at."""
    entered: Floats
    """(stretches,) sum of the multipliers with which its ranks are entered there: more where several are as late."""


class Border(NamedTuple):
    """From where an operation's maxima are measured that no collective of its step anchors."""

    cell: int
    """The rank's end of the step, for what follows it; -1: the end of the step before."""
    shift: float
    """How much later that is in the upper setting, ns."""


class Beside(NamedTuple):
    """Work arrays for kernels beside collectives."""

    start: Floats
    """(operations,)."""
    end: Floats
    """(operations,)."""
    values: Floats
    """(subsets of the inputs,)."""


class BackwardPass(NamedTuple):
    """What one pass backwards carries along and fills in."""

    ends: Ints
    """(ranks,) the operation with which the step ends for each; -1 if unknown."""
    multiplier: Multipliers
    shares: Shares
    beside: Beside
    stretches: Stretches


@compiled
def share_step(graph: StepGraph, backward: BackwardPass, first: int, last: int) -> None:
    """Go back through a step with the multipliers of its nodes and fill in its shares.

    Through the instructions from `first` up to but not including `last`: the later ones before the earlier ones.
    """
    instructions = graph.structure.instructions
    for at in range(last - 1, first - 1, -1):
        block, low, high = instructions[at, 0], instructions[at, 1], instructions[at, 2]
        if block < 0:
            share_collective(graph, backward, low, at)
            continue
        share_operations(graph, backward, block, low, high, instructions[at, 3], at)


@compiled
def share_collective(graph: StepGraph, backward: BackwardPass, number: int, now: int) -> None:
    """Divide the multipliers of a collective's ends, of all groups, among transfer and arrivals.

    `now` is the number of the instruction.
    """
    job, structure, collectives, step = graph.job, graph.structure, graph.collectives, graph.step
    upper, lower, shift, heads, inputs = graph.upper, graph.lower, graph.shift, graph.heads, graph.inputs
    ends, multiplier, shares, stretches = backward.ends, backward.multiplier, backward.shares, backward.stretches
    for at in range(collectives.first[number], collectives.first[number + 1]):
        rank, op = collectives.rank[at], collectives.place[at]
        cell = step.row[rank] + op
        if step.row[rank] < 0 or not multiplier.touched[rank] or isnan(step.start[cell]):
            continue
        stream = job.stream[job.first[step.team[rank]] + op]
        whole = multiplier.stream[rank, stream]
        if whole != 0.0:
            multiplier.stream[rank, stream] = 0.0
            count = list_stream_inputs(graph, cell, op)
            border = border_before(graph, rank, op, ends[rank], now)
            pass_on(graph, border, multiplier, rank, 0, stream, count, whole)
        if not isnan(upper.nodes.end[cell] - lower.nodes.end[cell]):
            multiplier.group[collectives.group[at]] += multiplier.end[cell]
            multiplier.end[cell] = 0.0
    for group in range(collectives.first_group[number], collectives.first_group[number + 1]):
        whole = multiplier.group[group]
        multiplier.group[group] = 0.0
        if abs(whole) < _NO_MULTIPLIER:
            continue
        shares.passed[group] = whole
        count = list_arrivals(graph, group)
        change, first = heads.moved[structure.instance[group]], collectives.rank[inputs.which[0]]
        transfer = upper.transfer[group] - lower.transfer[group]
        transfer = 0.0 if isnan(transfer) else transfer
        shares.transfer[group] += whole * transfer
        anchor = find_anchor(graph, count, -1, group, shift)
        since = heads.moved[anchor] if anchor >= 0 else shift
        anchored = divide_maximum(count, inputs.upper, inputs.lower, since, inputs.factor, inputs.order)
        if anchor >= 0:
            multiplier.group[structure.group[anchor]] += whole * anchored
        stretch = heads.parent[structure.instance[group]] + 1
        stretches.reached[stretch] += whole
        for index in range(count):
            stretches.entered[stretch] += whole * inputs.factor[index]
            if inputs.factor[index] != 0.0:
                at = inputs.which[index]
                rank = collectives.rank[at]
                multiplier.start[step.row[rank] + collectives.place[at]] += whole * inputs.factor[index]
                multiplier.touched[rank] = True
        moved = latest_input(count, inputs.upper) - latest_input(count, inputs.lower)
        shares.unexplained[first] += whole * (change - transfer - moved)


@compiled
def share_operations(  # noqa: PLR0912, PLR0915  # one formula, backwards
    graph: StepGraph, backward: BackwardPass, block: int, first: int, last: int, of_operation: int, now: int
) -> None:
    """Pass the multipliers of operations of a block's ranks on to what they follow.

    The operations are those from `first` up to but not including `last`, `of_operation` is which part of each: see
    `Schedule`; `now` is the number of the instruction.
    """
    job, structure, collectives, step = graph.job, graph.structure, graph.collectives, graph.step
    upper, lower, heads, inputs = graph.upper, graph.lower, graph.heads, graph.inputs
    ends, multiplier, shares, stretches = backward.ends, backward.multiplier, backward.shares, backward.stretches
    for member in range(collectives.first_member[block], collectives.first_member[block + 1]):
        rank = collectives.member[member]
        team, row = step.team[rank], step.row[rank]
        if row < 0 or not multiplier.touched[rank]:
            continue
        has_launches, slower, unexplained = job.has_launches[team], job.interference[team], 0.0
        launch_ns, stream_ns, first_kernel = job.launch_ns[team], job.stream_ns[team], job.first_kernel[team]
        # numbers from 0 up, in parts of the arrays, need no test for places counted from the end
        begin, end = job.first[team] + first, job.first[team] + last
        of_thread, of_stream, before = job.thread[begin:end], job.stream[begin:end], structure.thread_before[begin:end]
        follows_call, follows_stream = structure.follows_call[begin:end], structure.follows_stream[begin:end]
        launch_before = structure.launch_before[begin:end]
        usual = cut_self_times(graph.baseline, begin, end)
        begin, end = collectives.first_place[block] + first, collectives.first_place[block] + last
        is_coupled = structure.is_coupled[begin:end]
        begin, end = row + first, row + last
        recorded, calls, of_start = (
            cut_self_times(graph.self_times, begin, end),
            step.call[begin:end],
            heads.start[begin:end],
        )
        nodes, others = cut_nodes(upper.nodes, begin, end), cut_nodes(lower.nodes, begin, end)
        by_end, by_start = multiplier.end[begin:end], multiplier.start[begin:end]
        head, since, border = -2, graph.shift, Border(-1, graph.shift)
        owed = count_owed(multiplier, rank, begin, end) if of_operation != CALLS else end - begin
        for behind in range(owed):
            at = owed - 1 - behind
            op, thread, stream = first + at, of_thread[at], of_stream[at]
            place, cell = job.first[team] + op, row + op
            gpu = host = ended = started = by_launch_after = 0.0
            if behind == 0 or op == ends[rank]:
                head, border = -2, border_before(graph, rank, op, ends[rank], now)
            of_others = 0.0
            if of_operation != WHOLE:
                of_others, multiplier.back[rank, thread] = multiplier.back[rank, thread], multiplier.held[cell]
                multiplier.held[cell] = 0.0
            if of_operation == CALLS:
                multiplier.back[rank, thread] += of_others
            elif stream >= 0 and isnan(nodes.start[at]):
                # the rank has not the operation: what waits for it waits for the one before it
                multiplier.stream[rank, stream] += by_end[at]
                by_end[at] = 0.0
            elif stream >= 0:  # else a synchronising call
                by_launch_after, multiplier.launch[rank, stream] = multiplier.launch[rank, stream], 0.0
                whole = multiplier.stream[rank, stream]
                if whole != 0.0 and not is_coupled[at]:
                    multiplier.stream[rank, stream] = 0.0
                    if frees_stream(nodes, others, at):
                        ended = whole
                    else:
                        count = list_stream_inputs(graph, cell, op)
                        pass_on(graph, border, multiplier, rank, thread, stream, count, whole)
                if by_end[at] != 0.0:
                    ended += by_end[at]
                    by_end[at] = 0.0
                if ended != 0.0:
                    pass_by(stretches, of_start[at], team, GPU, ended)
                    took, usually_took = nodes.end[at] - nodes.start[at], others.end[at] - others.start[at]
                    if is_coupled[at] or isnan(took - usually_took):  # its end is unknown in a setting
                        unexplained += ended * known(nodes.end[at] - others.end[at] - graph.shift)
                    elif not (slower > 0 and job.kind[place] == COMPUTE):
                        # a collective that no other rank attends takes what it took
                        gpu = ended * (took - usually_took)
                        started = ended
                    elif took - recorded.gpu[at] < 1.0 and usually_took - usual.gpu[at] < 1.0:
                        work = recorded.gpu[at] - usual.gpu[at]
                        gpu = ended * work
                        shares.overlap[cell] += ended * (took - usually_took - work)
                        started = ended
                    else:
                        gpu = share_beside(graph, backward, border, rank, op, recorded.gpu[at], usual.gpu[at], ended)
                if by_start[at] != 0.0:
                    started += by_start[at]
                    by_start[at] = 0.0
            if started != 0.0:
                begun, free = ready_to_start(nodes, at, recorded.lead[at], launch_ns, stream_ns)
                usually_begun, usually_free = ready_to_start(others, at, usual.lead[at], launch_ns, stream_ns)
                is_known = not isnan(recorded.delay[at] if has_launches else recorded.host[at])
                is_alone = is_known and follows_stream[at]
                if of_start[at] != head:
                    head = of_start[at]
                    since = head_moved(graph, head, rank, border.shift)
                by_launch, count = 0.0, 2
                base, since_base = launch_before[at] if is_alone else -1, math.nan
                # what follows the step's end is measured from that, not from a launch before it
                is_same_side = base > ends[rank] or op <= ends[rank]
                if base >= 0 and is_same_side and not isnan(upper.nodes.start[row + base]):
                    since_base = upper.nodes.back[row + base] - lower.nodes.back[row + base]
                    since_base += 0.0 * (begun - usually_begun + free - usually_free)  # all must be known
                reference = since if isnan(since_base) else since_base
                if is_alone and is_sole(free, usually_free, begun, usually_begun, reference):
                    multiplier.stream[rank, stream] += started
                    moved = free - usually_free
                elif is_alone and is_sole(begun, usually_begun, free, usually_free, reference):
                    multiplier.back[rank, thread] += started
                    moved, by_launch = begun - usually_begun, 1.0
                elif not isnan(since_base):
                    # both follow the launch before, from which they are measured
                    inputs.upper[0], inputs.lower[0] = begun, usually_begun
                    inputs.upper[1], inputs.lower[1] = free, usually_free
                    rest = divide_maximum(2, inputs.upper, inputs.lower, since_base, inputs.factor, inputs.order)
                    by_launch = inputs.factor[0]
                    multiplier.back[rank, thread] += started * by_launch
                    multiplier.stream[rank, stream] += started * inputs.factor[1]
                    multiplier.launch[rank, stream] = started * rest
                    moved = max(begun, free) - max(usually_begun, usually_free)
                else:
                    count = list_start_inputs(graph, rank, op)
                    moved = pass_on(graph, border, multiplier, rank, thread, stream, count, started)
                    if count > 0 and inputs.goes[0] == RETURN:
                        by_launch = inputs.factor[0]
                change = nodes.start[at] - others.start[at] - moved
                if count > 0 and is_known:
                    delay = known(recorded.delay[at] - usual.delay[at])
                    waited = 0.0 if has_launches else known(recorded.host[at] - usual.host[at])
                    gpu += started * delay
                    host += started * waited
                    change -= delay + waited
                if by_launch != 0.0:
                    host -= started * by_launch * (recorded.lead[at] - usual.lead[at])
                unexplained += started * change
            multiplier.back[rank, thread] += by_launch_after
            if of_operation == STARTS:
                multiplier.held[cell], multiplier.back[rank, thread] = multiplier.back[rank, thread], of_others
            whole = multiplier.back[rank, thread] if of_operation != STARTS else 0.0
            if whole != 0.0 and not isnan(calls[at]):
                called = since_called = math.nan
                if before[at] >= 0 and follows_call[at]:
                    called = upper.nodes.back[row + before[at]] - lower.nodes.back[row + before[at]]
                    since_called = recorded.host[at] - usual.host[at]
                if not isnan(called + since_called):
                    # it follows the call before it alone, which the multiplier stays with
                    own_time = recorded.call[at] - usual.call[at] + since_called
                    unexplained += whole * (nodes.back[at] - others.back[at] - own_time - called)
                    host += whole * own_time
                    part = START if op <= first_kernel else CPU
                    pass_by(stretches, heads.back[cell], team, part, whole)
                else:
                    unexplained += share_call(graph, backward, border, rank, op)
            if gpu != 0.0:
                shares.gpu[cell] += gpu
            if host != 0.0:
                shares.host[cell] += host
        shares.unexplained[rank] += unexplained


@compiled
def count_owed(multiplier: Multipliers, rank: int, begin: int, end: int) -> int:
    """Return up to where the pass has to go back through a rank's cells from `begin` up to but not including `end`."""
    for stream in range(multiplier.stream.shape[1]):
        if multiplier.stream[rank, stream] != 0.0 or multiplier.launch[rank, stream] != 0.0:
            return end - begin
    for thread in range(multiplier.back.shape[1]):
        if multiplier.back[rank, thread] != 0.0:
            return end - begin
    by_end, by_start = multiplier.end[begin:end], multiplier.start[begin:end]
    for behind in range(end - begin):
        at = end - begin - 1 - behind
        if by_end[at] != 0.0 or by_start[at] != 0.0:
            return at + 1
    return 0


@compiled
def share_call(graph: StepGraph, backward: BackwardPass, border: Border, rank: int, op: int) -> float:
    """Pass the multiplier of a call's return on to all that it waits for; return what stays unexplained."""
    job, step, heads, inputs = graph.job, graph.step, graph.heads, graph.inputs
    self_times, baseline, upper, lower = graph.self_times, graph.baseline, graph.upper, graph.lower
    multiplier, shares, stretches = backward.multiplier, backward.shares, backward.stretches
    team, row = step.team[rank], step.row[rank]
    place, cell = job.first[team] + op, row + op
    thread, stream = job.thread[place], job.stream[place]
    whole = multiplier.back[rank, thread]
    multiplier.back[rank, thread] = 0.0
    count = list_call_inputs(graph, rank, op)
    moved = pass_on(graph, border, multiplier, rank, thread, stream, count, whole)
    in_call = self_times.call[cell] - baseline.call[place]
    unexplained = whole * (upper.nodes.back[cell] - lower.nodes.back[cell] - in_call - moved)
    shares.host[cell] += whole * in_call
    if stream >= 0 and count > 1:
        share_slot(graph, backward, rank, cell, whole * inputs.factor[1])
    whole *= inputs.factor[0]
    if whole == 0.0 or inputs.goes[0] != SELF:
        return float(unexplained)
    called = inputs.upper[0] - inputs.lower[0]
    host = self_times.host[cell] - baseline.host[place]
    shares.host[cell] += whole * host
    pass_by(stretches, heads.back[cell], team, START if op <= job.first_kernel[team] else CPU, whole)
    count = list_since_inputs(graph, row, rank, place)
    moved = pass_on(graph, border, multiplier, rank, thread, stream, count, whole)
    return float(unexplained + whole * (called - host - moved))


@compiled
def border_before(graph: StepGraph, rank: int, op: int, end: int, now: int) -> Border:
    """Return from where an operation of a rank is measured whose step ends with the operation `end`, -1 if unknown.

    `now` is the number of the operation's instruction: what is computed before the end is not measured from it.
    """
    upper, lower, cell = graph.upper.nodes, graph.lower.nodes, graph.step.row[rank] + end
    if end < 0 or op <= end or isnan(upper.end[cell] - lower.end[cell]):
        return Border(-1, graph.shift)
    if now < graph.structure.computed[graph.collectives.first_place[graph.collectives.block[rank]] + end]:
        return Border(-1, graph.shift)
    return Border(cell, upper.end[cell] - lower.end[cell])


@compiled
def pass_by(stretches: Stretches, head: int, team: int, part: int, whole: float) -> None:
    """Add an operation's noise to the stretch that begins at its head."""
    stretches.varied[head + 1] += whole * stretches.variance[team, part]
    stretches.biased[head + 1] += whole * stretches.bias[team, part]


@compiled
def share_beside(
    graph: StepGraph,
    backward: BackwardPass,
    border: Border,
    rank: int,
    op: int,
    work: float,
    usual_work: float,
    whole: float,
) -> float:
    """Divide the multiplier of the end of a kernel beside collectives; return the share of its work.

    It is divided by Shapley values over all subsets of its inputs: its start, its work, and start and end of each
    collective beside it. They are measured from the anchor, as in a maximum.
    """
    nodes, others, inputs, row = graph.upper.nodes, graph.lower.nodes, graph.inputs, graph.step.row[rank]
    multiplier, beside, cell = backward.multiplier, backward.beside, row + op
    count, anchor, since = list_beside(graph, beside, border, rank, op)
    players = 2 + 2 * count
    for subset in range(1 << players):
        beside.values[subset] = end_in_subset(graph, beside, rank, op, work, usual_work, count, since, subset)
    rest, passed, gpu = nodes.end[cell] - others.end[cell] - since, 0.0, 0.0
    for player in range(players):
        value = shapley_value(beside.values, players, player)
        rest -= value
        if player == 1:  # its work
            gpu = whole * value
            continue
        node = op if player == 0 else inputs.which[(player - 2) // 2]
        is_start = player % 2 == 0
        change = nodes.start[row + node] - others.start[row + node]
        if not is_start:
            change = nodes.end[row + node] - others.end[row + node]
        part = 1.0 if player == 0 else 0.0
        if abs(change - since) > _UNCHANGED_NS:
            part = value / (change - since)
        passed += part
        if is_start:
            multiplier.start[row + node] += whole * part
        else:
            multiplier.end[row + node] += whole * part
    if anchor >= 0:
        multiplier.group[graph.structure.group[anchor]] += whole * (1 - passed)
    elif border.cell >= 0:
        multiplier.end[border.cell] += whole * (1 - passed)
    backward.shares.overlap[cell] += whole * rest
    return float(gpu)


@compiled
def list_beside(graph: StepGraph, beside: Beside, border: Border, rank: int, op: int) -> tuple[int, int, float]:
    """Make collectives beside a kernel in either setting inputs; return how many, the anchor, and how much later it is.

    All collectives beside the kernel get their times in the lower setting, from the anchor; others none (-inf).
    """
    nodes, others, heads, inputs = graph.upper.nodes, graph.lower.nodes, graph.heads, graph.inputs
    last_beside, first = graph.job.last_beside, graph.job.first[graph.step.team[rank]]
    row = graph.step.row[rank]
    cell, anchor, count, node = row + op, heads.start[row + op], 0, last_beside[first + op]
    for _ in range(LOOK_BACK):
        if node < 0:
            break
        at = row + node
        touches = (nodes.end[at] > nodes.start[cell] and nodes.start[at] < nodes.end[cell]) or (
            others.end[at] > others.start[cell] and others.start[at] < others.end[cell]
        )
        is_beside = touches and not isnan(nodes.end[at] - others.end[at] + nodes.start[at] - others.start[at])
        beside.start[node] = beside.end[node] = 0.0 if is_beside else -math.inf
        if is_beside and count < _COLLECTIVES_BESIDE:
            inputs.which[count] = node
            count += 1
            anchor = common_ancestor(anchor, heads.start[at], heads.parent)
            anchor = common_ancestor(anchor, heads.end[at], heads.parent)
        node = last_beside[first + node]
    anchor = attended_head(graph, anchor, rank, -1)
    since, node = heads.moved[anchor] if anchor >= 0 else border.shift, last_beside[first + op]
    for _ in range(LOOK_BACK):
        if node < 0:
            break
        if beside.end[node] == 0.0:
            beside.start[node], beside.end[node] = others.start[row + node] + since, others.end[row + node] + since
        node = last_beside[first + node]
    return count, anchor, since


@compiled
def end_in_subset(
    graph: StepGraph,
    beside: Beside,
    rank: int,
    op: int,
    work: float,
    usual_work: float,
    count: int,
    since: float,
    subset: int,
) -> float:
    """Return when a kernel beside collectives ends with the inputs of a subset (bits) as in the upper setting.

    The other inputs are as in the lower setting, `since` later.
    """
    nodes, others, row, team = graph.upper.nodes, graph.lower.nodes, graph.step.row[rank], graph.step.team[rank]
    for index in range(count):
        node = graph.inputs.which[index]
        begun, ended = others.start[row + node] + since, others.end[row + node] + since
        beside.start[node] = nodes.start[row + node] if subset >> (2 + 2 * index) & 1 else begun
        beside.end[node] = nodes.end[row + node] if subset >> (3 + 2 * index) & 1 else ended
    begin = nodes.start[row + op] if subset & 1 else others.start[row + op] + since
    first, factor = graph.job.first[team], 1 + graph.job.interference[team]
    chosen_work = work if subset & 2 else usual_work
    return end_beside(graph.job.last_beside, first, 0, op, beside.start, beside.end, begin, chosen_work, factor)


@compiled
def share_slot(graph: StepGraph, backward: BackwardPass, rank: int, cell: int, whole: float) -> None:
    """Pass the multiplier of a queue place on to the launches that held it in the two settings, half each."""
    upper, lower, multiplier, shares, row = (
        graph.upper,
        graph.lower,
        backward.multiplier,
        backward.shares,
        graph.step.row[rank],
    )
    change = upper.slot[cell] - lower.slot[cell]
    upper_holder, lower_holder = upper.holder[cell], lower.holder[cell]
    if upper_holder < 0 or lower_holder < 0:
        shares.carried[rank] += whole * (change - graph.shift)
        return
    moved = 0.0
    for setting in range(2):
        holder = upper_holder if setting == 0 else lower_holder
        multiplier.start[row + holder] += whole / 2
        moved += known(upper.nodes.start[row + holder] - lower.nodes.start[row + holder]) / 2
    shares.unexplained[rank] += whole * (change - moved)


@compiled
def pass_on(
    graph: StepGraph,
    border: Border,
    multiplier: Multipliers,
    rank: int,
    thread: int,
    stream: int,
    count: int,
    whole: float,
) -> float:
    """Divide a multiplier among the inputs of a maximum of one rank; return how much later it is, ns.

    Without inputs it is as late as the border.
    """
    heads, inputs, row = graph.heads, graph.inputs, graph.step.row[rank]
    if count == 0:
        if border.cell >= 0:
            multiplier.end[border.cell] += whole
        return border.shift
    if count == 1:
        inputs.factor[0] = 1.0
    else:
        anchor = find_anchor(graph, count, rank, -1, border.shift)
        since = heads.moved[anchor] if anchor >= 0 else border.shift
        anchored = divide_maximum(count, inputs.upper, inputs.lower, since, inputs.factor, inputs.order)
        if anchor >= 0:
            multiplier.group[graph.structure.group[anchor]] += whole * anchored
        elif border.cell >= 0:
            multiplier.end[border.cell] += whole * anchored
    for index in range(count):
        part = whole * inputs.factor[index]
        if inputs.goes[index] == RETURN:
            multiplier.back[rank, thread] += part
        elif inputs.goes[index] == STREAM:
            multiplier.stream[rank, stream] += part
        elif inputs.goes[index] == END:
            multiplier.end[row + inputs.which[index]] += part
        elif inputs.goes[index] == LEFT:
            multiplier.left[rank, inputs.which[index]] += part
    return latest_input(count, inputs.upper) - latest_input(count, inputs.lower)


@compiled
def known(value: float) -> float:
    """Return a value, 0 where it is unknown."""
    return 0.0 if isnan(value) else value


@compiled
def follow_queue(job: JobArrays, step: StepTimes, rank: int, setting: Setting, holders: Ints) -> None:
    """Find when each launch of a rank had a place in the launch queue, and which operation had held that place.

    The setting's queue before the step, and `holders` (places,), are overwritten.
    """
    nodes, pending, slot, holder = setting.nodes, setting.before.pending, setting.slot, setting.holder
    team, row = step.team[rank], step.row[rank]
    places, head = job.queue[team], 0
    for at in range(places):
        holders[at] = -1
    for op in range(job.first[team + 1] - job.first[team]):
        place, cell = job.first[team] + op, row + op
        if job.kind[place] >= SYNC:
            continue
        slot[cell], holder[cell] = pending[rank, head], holders[head]
        start = nodes.start[cell]
        if not start > pending[rank, head]:
            continue
        old = head
        head = push_pending(pending, rank, head, places, start)
        # the new start has moved the later ones by one place each
        at = old
        while at != head:
            previous = places - 1 if at == 0 else at - 1
            if pending[rank, at] == start:
                break
            holders[at] = holders[previous]
            at = previous
        holders[at] = op
