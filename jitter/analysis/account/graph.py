"""The maxima of a step's graph and their inputs, in two settings; and the collective that each node owes its time to.

The graph is that of the replay (`jitter.analysis.replay.replay`). The head of a node is the latest collective of the
step through which its time goes in both settings; heads form a tree, whose root is the end of the step before. A
maximum is measured from an anchor, the latest collective to which all of its inputs that can matter owe their time:
a delay that they share says nothing about which of them moved the maximum. (Lundberg and Lee 2017 call it a reference.)
"""

import math
from math import isnan
from mmap import mmap
from typing import NamedTuple

from jitter.analysis.collectives.matching import CollectiveArrays
from jitter.analysis.execution.job_arrays import CarriedState, JobArrays
from jitter.analysis.execution.schedule import CALLS, STARTS, WHOLE
from jitter.analysis.execution.self_times import SelfTimes, cut_self_times
from jitter.analysis.execution.step_times import StepTimes, cut_step
from jitter.analysis.replay.replay import NodeTimes, cut_nodes
from jitter.core.names.kernels import SYNC
from jitter.core.numeric.arrays import Bools, Codes, Floats, Ints
from jitter.core.numeric.compilation import compiled
from jitter.core.numeric.mapped_arrays import map_to_file

STEP_BEFORE, RETURN, STREAM, END, LEFT, SELF = range(6)
"""Where an input comes from: the end of the step before, the thread, the stream, an operation's end, an end that an
earlier step left, or what comes before in the operation itself.
"""


class Setting(NamedTuple):
    """A step in one setting."""

    nodes: NodeTimes
    before: CarriedState
    """State before the step; the launch queues are overwritten."""
    transfer: Floats
    """(groups of all collectives,) from the last arrival to the end."""
    slot: Floats
    """(cells,) when a place in the launch queue was free for each launch; empty where no team has a queue."""
    holder: Ints
    """(cells,) the operation that had held it; -1 for one of an earlier step."""


class Structure(NamedTuple):
    """What the graph needs of a run besides `JobArrays` and `CollectiveArrays`."""

    instructions: Ints
    """(instructions, 4) the schedule's array."""
    is_coupled: Bools
    """(blocks × places,) whether there is a collective that other ranks attend, as in `CollectiveArrays`."""
    follows_call: Bools
    """(operations,) whose launch waits for nothing but the call before it on its thread."""
    follows_stream: Bools
    """(operations,) whose start waits for nothing but their launch and their stream."""
    launch_before: Ints
    """(operations,) the operation before on the stream, if both waits of the operation follow its launch; or -1."""
    thread_before: Ints
    """(operations,) the place of the operation before each on its thread; -1 for none."""
    instance: Ints
    """(groups of all collectives,) the number of each in the order of the schedule."""
    group: Ints
    """(instances,) the group of each."""
    collective: Ints
    """(groups of all collectives,) the collective of each."""
    attendance: Ints
    """(collectives, blocks) where the block's attendances of it begin in `CollectiveArrays`; -1 for none."""
    computed: Ints
    """(blocks × places,) the instruction that computes the start of each."""
    last_launch: Ints
    """(teams,) the last operation that is launched; -1 for none."""
    rank: Ints
    """(ranks of the run,) the ranks by number."""


class Heads(NamedTuple):
    """Heads of a step's nodes: instances, by number; -1 for the end of the step before."""

    start: Codes
    """(cells,)."""
    end: Codes
    """(cells,)."""
    free: Codes
    """(cells,)."""
    back: Codes
    """(cells,)."""
    parent: Ints
    """(instances,) the head of the last arrivals."""
    moved: Floats
    """(instances,) how much later each ends in the upper setting, ns; NaN where unknown."""


class Inputs(NamedTuple):
    """Inputs of a maximum, (inputs,) each; every maximum overwrites them."""

    upper: Floats
    lower: Floats
    goes: Ints
    """Where each comes from."""
    which: Ints
    """The operation or column there."""
    head: Ints
    factor: Floats
    order: Ints
    chosen: Bools


class StepGraph(NamedTuple):
    """A step's graph in two settings: what the loops of the account read of it."""

    job: JobArrays
    structure: Structure
    collectives: CollectiveArrays
    step: StepTimes
    self_times: SelfTimes
    baseline: SelfTimes
    """(operations of all teams,)."""
    upper: Setting
    lower: Setting
    shift: float
    """How much later the step before ends in the upper setting, ns."""
    heads: Heads
    inputs: Inputs
    """Those of one maximum at a time."""

    def in_file(self) -> "tuple[StepGraph, mmap]":
        """Return the graph with its own arrays in a temporary file; see `map_to_file`."""
        names = ("step", "self_times", "upper", "lower", "heads")
        mapped, pages = map_to_file(tuple(getattr(self, name) for name in names))
        return self._replace(**dict(zip(names, mapped, strict=True))), pages


@compiled
def cut_graph(graphs: StepGraph, at: int, steps: int, shift: float) -> StepGraph:
    """Return the graph of one of so many steps, which follow each other in the arrays; `shift` is that of this one."""
    cells, operations, instances = len(graphs.step.start), len(graphs.baseline.gpu), len(graphs.heads.moved)
    low, high = at * cells // steps, (at + 1) * cells // steps
    heads, first, last = graphs.heads, at * instances // steps, (at + 1) * instances // steps
    return StepGraph(
        graphs.job,
        graphs.structure,
        graphs.collectives,
        cut_step(graphs.step, at, cells // steps),
        cut_self_times(graphs.self_times, low, high),
        cut_self_times(graphs.baseline, at * operations // steps, (at + 1) * operations // steps),
        cut_setting(graphs.upper, at, steps),
        cut_setting(graphs.lower, at, steps),
        shift,
        Heads(
            heads.start[low:high],
            heads.end[low:high],
            heads.free[low:high],
            heads.back[low:high],
            heads.parent[first:last],
            heads.moved[first:last],
        ),
        graphs.inputs,
    )


@compiled
def cut_setting(setting: Setting, at: int, steps: int) -> Setting:
    """Return the setting of one of so many steps."""
    nodes, before, ranks = setting.nodes, setting.before, len(setting.before.back) // steps
    low, high = at * ranks, (at + 1) * ranks
    state = CarriedState(before.stream_end[low:high], before.back[low:high], before.pending[low:high])
    cells, groups, launches = len(nodes.start) // steps, len(setting.transfer) // steps, len(setting.slot) // steps
    low, high = at * launches, (at + 1) * launches
    return Setting(
        cut_nodes(nodes, at * cells, (at + 1) * cells),
        state,
        setting.transfer[at * groups : (at + 1) * groups],
        setting.slot[low:high],
        setting.holder[low:high],
    )


@compiled
def find_heads(graph: StepGraph, threads: Ints, streams: Ints, first: int, last: int) -> None:
    """Find the heads of nodes of a step, of the instructions from the `first` up to but not including the `last`.

    `threads` (ranks, threads) and `streams` (ranks, streams) are -1 at first, as all heads are.
    """
    instructions = graph.structure.instructions
    for at in range(first, last):
        block, low, high = instructions[at, 0], instructions[at, 1], instructions[at, 2]
        if block < 0:
            find_heads_of_collective(graph, streams, low)
        else:
            find_heads_of_operations(graph, threads, streams, block, low, high, instructions[at, 3])


@compiled
def find_heads_of_operations(  # noqa: PLR0912, PLR0915  # one rule
    graph: StepGraph, threads: Ints, streams: Ints, block: int, first: int, last: int, of_operation: int
) -> None:
    """Find the heads of operations of a block's ranks, the `first` up to but not including the `last`.

    `of_operation` is which part of each: see `Schedule`.
    """
    job, structure, collectives, step = graph.job, graph.structure, graph.collectives, graph.step
    upper, lower, heads, inputs = graph.upper, graph.lower, graph.heads, graph.inputs
    base = collectives.first_place[block]
    is_coupled = structure.is_coupled[base + first : base + last]
    for member in range(collectives.first_member[block], collectives.first_member[block + 1]):
        rank = collectives.member[member]
        team, row = step.team[rank], step.row[rank]
        if row < 0:
            continue
        launch_ns, stream_ns, has_launches = job.launch_ns[team], job.stream_ns[team], job.has_launches[team]
        # numbers from 0 up, in parts of the arrays, need no test for places counted from the end
        low, high = job.first[team] + first, job.first[team] + last
        of_thread, of_stream, before = job.thread[low:high], job.stream[low:high], structure.thread_before[low:high]
        follows_call, follows_stream = structure.follows_call[low:high], structure.follows_stream[low:high]
        usual = cut_self_times(graph.baseline, low, high)
        low, high = row + first, row + last
        recorded, calls = cut_self_times(graph.self_times, low, high), step.call[low:high]
        nodes, others = cut_nodes(upper.nodes, low, high), cut_nodes(lower.nodes, low, high)
        starts, ends = heads.start[low:high], heads.end[low:high]
        frees, backs = heads.free[low:high], heads.back[low:high]
        for at in range(last - first):
            op, thread, stream = first + at, of_thread[at], of_stream[at]
            follows_both = follows_call[at] and follows_stream[at] and not is_coupled[at] and of_operation == WHOLE
            if follows_both and threads[rank, thread] < 0 and streams[rank, stream] < 0:
                continue  # nor has it a head
            if of_operation != STARTS:
                is_plain = follows_call[at] and before[at] >= 0
                is_plain = is_plain and not isnan(recorded.host[at] - usual.host[at] + nodes.back[at] - others.back[at])
                # where a call follows the one before it alone, its head is that one's
                if not is_plain and not isnan(calls[at]):
                    count = list_call_inputs(graph, rank, op)
                    threads[rank, thread] = common_head(count, inputs, heads.parent)
                backs[at] = threads[rank, thread]
            if of_operation == CALLS:
                continue
            if stream < 0:  # a synchronising call
                starts[at] = ends[at] = frees[at] = -1
                continue
            frees[at] = streams[rank, stream]
            if isnan(nodes.start[at]):
                starts[at] = ends[at] = frees[at]
                continue
            begun, free = ready_to_start(nodes, at, recorded.lead[at], launch_ns, stream_ns)
            usually_begun, usually_free = ready_to_start(others, at, usual.lead[at], launch_ns, stream_ns)
            is_alone = follows_stream[at] and not isnan(recorded.delay[at] if has_launches else recorded.host[at])
            if is_alone and is_latest(free, usually_free, begun, usually_begun):
                starts[at] = ends[at] = frees[at]
            elif is_alone and is_latest(begun, usually_begun, free, usually_free):
                starts[at] = ends[at] = backs[at]
            else:
                count = list_start_inputs(graph, rank, op)
                starts[at] = ends[at] = common_head(count, inputs, heads.parent)
            if is_coupled[at]:
                continue
            if frees_stream(nodes, others, at):
                streams[rank, stream] = ends[at]
            else:
                count = list_stream_inputs(graph, row + op, op)
                streams[rank, stream] = common_head(count, inputs, heads.parent)


@compiled
def find_heads_of_collective(graph: StepGraph, streams: Ints, number: int) -> None:
    """Find the parents of a collective's groups, and the heads of its ends."""
    job, structure, collectives, step = graph.job, graph.structure, graph.collectives, graph.step
    upper, lower, heads, inputs = graph.upper, graph.lower, graph.heads, graph.inputs
    for group in range(collectives.first_group[number], collectives.first_group[number + 1]):
        count = list_arrivals(graph, group)
        instance = structure.instance[group]
        heads.parent[instance], heads.moved[instance] = common_head(count, inputs, heads.parent), math.nan
        for index in range(count):
            at = inputs.which[index]
            if collectives.group[at] == group:  # in a ring others arrive, too
                cell = step.row[collectives.rank[at]] + collectives.place[at]
                heads.moved[instance] = upper.nodes.end[cell] - lower.nodes.end[cell]
    for at in range(collectives.first[number], collectives.first[number + 1]):
        rank, op = collectives.rank[at], collectives.place[at]
        cell = step.row[rank] + op
        if step.row[rank] < 0 or isnan(step.start[cell]):
            continue
        instance = structure.instance[collectives.group[at]]
        heads.end[cell] = instance if not isnan(heads.moved[instance]) else heads.parent[instance]
        count = list_stream_inputs(graph, cell, op)
        streams[rank, job.stream[job.first[step.team[rank]] + op]] = common_head(count, inputs, heads.parent)


@compiled
def common_head(count: int, inputs: Inputs, parent: Ints) -> int:
    """Return the head of a maximum: that of the `chosen` inputs, the latest in each setting; -1 without inputs."""
    latest_upper, latest_lower = latest_input(count, inputs.upper), latest_input(count, inputs.lower)
    head, is_first = -1, True
    for at in range(count):
        inputs.chosen[at] = inputs.upper[at] == latest_upper or inputs.lower[at] == latest_lower
        if inputs.chosen[at]:
            head = inputs.head[at] if is_first else common_ancestor(head, inputs.head[at], parent)
            is_first = False
    return int(head)


@compiled
def common_ancestor(first: int, second: int, parent: Ints) -> int:
    """Return the latest instance to which two owe their time; parents have smaller numbers, the root is -1."""
    while first != second:
        if first > second:
            first = parent[first]
        else:
            second = parent[second]
    return first


@compiled
def find_anchor(graph: StepGraph, count: int, rank: int, group: int, shift: float) -> int:
    """Return the instance from which a maximum is measured; -1 for none.

    It is of one `rank`, or of the arrivals of a `group` (-1: of none). Without one it is measured from what is later by
    `shift` in the upper setting, ns.
    """
    heads, inputs = graph.heads, graph.inputs
    anchor = common_head(count, inputs, heads.parent)
    while True:
        anchor = attended_head(graph, anchor, rank, group)
        since = heads.moved[anchor] if anchor >= 0 else shift
        level = -math.inf
        for at in range(count):
            level = max(level, min(inputs.upper[at], inputs.lower[at] + since))
        has_joined = False
        for at in range(count):
            if not inputs.chosen[at] and max(inputs.upper[at], inputs.lower[at] + since) > level:
                inputs.chosen[at] = has_joined = True
                anchor = common_ancestor(anchor, inputs.head[at], heads.parent)
        if not has_joined:
            return int(anchor)


@compiled
def head_moved(graph: StepGraph, head: int, rank: int, shift: float) -> float:
    """Return how much later a node's head is in the upper setting, ns; NaN where the node's rank does not attend it.

    `shift` is that of nodes without a head.
    """
    if head < 0:
        return shift
    if not is_attended(graph, graph.structure.group[head], rank, -1):
        return math.nan
    return float(graph.heads.moved[head])


@compiled
def attended_head(graph: StepGraph, head: int, rank: int, by: int) -> int:
    """Return a head or the nearest one above it that is attended, see `is_attended`; -1 for none."""
    while head >= 0 and not is_attended(graph, graph.structure.group[head], rank, by):
        head = graph.heads.parent[head]
    return int(head)


@compiled
def is_attended(graph: StepGraph, group: int, rank: int, by: int) -> bool:
    """Return whether a rank, or all ranks of the group `by` unless that is -1, attend a group of a collective."""
    structure, collectives = graph.structure, graph.collectives
    number = structure.collective[group]
    low, high = (0, 1) if by < 0 else (collectives.first_in_group[by], collectives.first_in_group[by + 1])
    for index in range(low, high):
        attendee = rank if by < 0 else collectives.rank[collectives.by_group[index]]
        at = structure.attendance[number, collectives.block[attendee]]
        if at < 0 or collectives.group[at + collectives.column[attendee]] != group:
            return False
    return True


@compiled
def list_arrivals(graph: StepGraph, group: int) -> int:
    """Make the arrivals of a group the inputs of a maximum, with their attendances; return how many."""
    collectives, step, heads, inputs = graph.collectives, graph.step, graph.heads, graph.inputs
    upper, lower = graph.upper, graph.lower
    count = 0
    for index in range(collectives.first_in_group[group], collectives.first_in_group[group + 1]):
        at = collectives.by_group[index]
        cell = step.row[collectives.rank[at]] + collectives.place[at]
        if step.row[collectives.rank[at]] < 0 or isnan(step.start[cell]):
            continue
        lag = collectives.lag[index]
        if not isnan(upper.nodes.start[cell] - lower.nodes.start[cell] - lag):
            inputs.upper[count] = upper.nodes.start[cell] - step.end[cell] - lag
            inputs.lower[count] = lower.nodes.start[cell] - step.end[cell] - lag
            inputs.which[count], inputs.head[count] = at, heads.start[cell]
            count += 1
    return count


@compiled
def list_stream_inputs(graph: StepGraph, cell: int, op: int) -> int:
    """Make an operation's end and the end before it on its stream the inputs of a maximum; return how many."""
    heads, inputs = graph.heads, graph.inputs
    count, nodes, others = 0, graph.upper.nodes, graph.lower.nodes
    if not isnan(nodes.end[cell] - others.end[cell]):
        inputs.upper[count], inputs.lower[count] = nodes.end[cell], others.end[cell]
        inputs.goes[count], inputs.which[count], inputs.head[count] = END, op, heads.end[cell]
        count += 1
        if frees_stream(nodes, others, cell):
            return count
    if not isnan(nodes.free[cell] - others.free[cell]):
        inputs.upper[count], inputs.lower[count] = nodes.free[cell], others.free[cell]
        inputs.goes[count], inputs.head[count] = STREAM, heads.free[cell]
        count += 1
    return count


@compiled
def list_start_inputs(graph: StepGraph, rank: int, op: int) -> int:
    """Make what an operation waits for to start the inputs of a maximum, its launch first; return how many."""
    job, step, self_times, baseline = graph.job, graph.step, graph.self_times, graph.baseline
    upper, lower, heads, inputs = graph.upper, graph.lower, graph.heads, graph.inputs
    team, row = step.team[rank], step.row[rank]
    place, cell, count = job.first[team] + op, row + op, 0
    launch_ns, stream_ns = job.launch_ns[team], job.stream_ns[team]
    begun, free = ready_to_start(upper.nodes, cell, self_times.lead[cell], launch_ns, stream_ns)
    usually_begun, usually_free = ready_to_start(lower.nodes, cell, baseline.lead[place], launch_ns, stream_ns)
    if not isnan(begun - usually_begun):
        inputs.upper[count], inputs.lower[count] = begun, usually_begun
        inputs.goes[count], inputs.head[count] = RETURN, heads.back[cell]
        count += 1
    if isnan(self_times.delay[cell] if job.has_launches[team] else self_times.host[cell]):  # it joins here, as recorded
        inputs.upper[count], inputs.lower[count] = step.start[cell], step.start[cell] - graph.shift
        inputs.goes[count], inputs.head[count] = STEP_BEFORE, -1
        return count + 1
    if not isnan(free - usually_free):
        inputs.upper[count], inputs.lower[count] = free, usually_free
        inputs.goes[count], inputs.head[count] = STREAM, heads.free[cell]
        count += 1
    low, high = job.first_wait[place], job.first_wait[place + 1]
    return add_awaited(graph, job.wait_on, low, high, row, rank, 0.0, False, count)


@compiled
def list_since_inputs(graph: StepGraph, row: int, rank: int, place: int) -> int:
    """Make what a call follows the inputs of a maximum: the call before, and what its host waits for; return how many.

    `place` is that of all teams' operations; the rank's cells begin at `row`.
    """
    job, structure, upper, lower = graph.job, graph.structure, graph.upper, graph.lower
    heads, inputs = graph.heads, graph.inputs
    count, thread, previous = 0, job.thread[place], structure.thread_before[place]
    before, usual, head = upper.before.back[rank, thread], lower.before.back[rank, thread], -1
    if previous >= 0:
        before, usual = upper.nodes.back[row + previous], lower.nodes.back[row + previous]
        head = heads.back[row + previous]
    if not isnan(before - usual):
        inputs.upper[0], inputs.lower[0], inputs.goes[0], inputs.head[0] = before, usual, RETURN, head
        count = 1
    low, high = job.first_host_wait[place], job.first_host_wait[place + 1]
    lead = job.host_lead_ns[place]
    return add_awaited(graph, job.host_wait_on, low, high, row, rank, lead, True, count)


@compiled
def latest_input(count: int, values: Floats) -> float:
    """Return the greatest of the first `count` values; NaN of none."""
    if count == 0:
        return math.nan
    latest = values[0]
    for at in range(1, count):
        latest = max(latest, values[at])
    return float(latest)


@compiled
def list_call_inputs(graph: StepGraph, rank: int, op: int) -> int:
    """Make what a call's return waits for the inputs of a maximum, the call itself first; return how many."""
    job, step, upper, lower = graph.job, graph.step, graph.upper, graph.lower
    heads, inputs = graph.heads, graph.inputs
    team, row = step.team[rank], step.row[rank]
    place, cell = job.first[team] + op, row + op
    count = list_since_inputs(graph, row, rank, place)
    since, usual = latest_input(count, inputs.upper), latest_input(count, inputs.lower)
    head = common_head(count, inputs, heads.parent)
    called, usually_called = since + graph.self_times.host[cell], usual + graph.baseline.host[place]
    inputs.goes[0] = SELF
    if isnan(called - usually_called):  # it begins here, as recorded
        called, usually_called, head = step.call[cell], step.call[cell] - graph.shift, -1
        inputs.goes[0] = STEP_BEFORE
    inputs.upper[0], inputs.lower[0], inputs.head[0] = called, usually_called, head
    if job.kind[place] == SYNC:
        low, high = job.first_wait[place], job.first_wait[place + 1]
        return add_awaited(graph, job.wait_on, low, high, row, rank, 0.0, False, 1)
    if job.queue[team] > 0 and job.kind[place] < SYNC and upper.slot[cell] > -math.inf and lower.slot[cell] > -math.inf:
        holder, usual_holder = upper.holder[cell], lower.holder[cell]
        inputs.upper[1], inputs.lower[1], inputs.goes[1], inputs.head[1] = (
            upper.slot[cell],
            lower.slot[cell],
            STEP_BEFORE,
            -1,
        )
        if holder >= 0 and usual_holder >= 0:
            inputs.head[1] = common_ancestor(heads.start[row + holder], heads.start[row + usual_holder], heads.parent)
        return 2
    return 1


@compiled
def add_awaited(
    graph: StepGraph, wait_on: Ints, low: int, high: int, row: int, rank: int, lead: float, by_host: bool, count: int
) -> int:
    """Add awaited ends, each `lead` earlier, to the inputs of a maximum; return how many inputs there are.

    A host (`by_host`) does not wait for what the rank lacks; a stream waits for the operation before that.
    """
    upper, lower, heads, inputs = graph.upper, graph.lower, graph.heads, graph.inputs
    for wait in range(low, high):
        awaited = wait_on[wait]
        if by_host and awaited >= 0 and isnan(upper.nodes.start[row + awaited]):
            continue
        if awaited >= 0:
            end, usual = upper.nodes.end[row + awaited], lower.nodes.end[row + awaited]
        else:
            end, usual = upper.before.stream_end[rank, ~awaited], lower.before.stream_end[rank, ~awaited]
        if not isnan(end - usual):
            inputs.upper[count], inputs.lower[count] = end - lead, usual - lead
            inputs.goes[count] = END if awaited >= 0 else LEFT
            inputs.which[count] = awaited if awaited >= 0 else ~awaited
            inputs.head[count] = heads.end[row + awaited] if awaited >= 0 else -1
            count += 1
    return count


@compiled
def is_latest(upper: float, lower: float, other_upper: float, other_lower: float) -> bool:
    """Return whether an input is later than another one in both settings; False where one is unknown."""
    return upper > other_upper and lower > other_lower


@compiled
def is_sole(upper: float, lower: float, other_upper: float, other_lower: float, since: float) -> bool:
    """Return whether an input, measured from its own head, leaves another one no part of the maximum.

    `since` is how much later the head is in the upper setting, ns; NaN: it is not the anchor, and the answer is False.
    """
    if not is_latest(upper, lower, other_upper, other_lower):
        return False
    return upper >= other_lower + since and lower + since >= other_upper


@compiled
def ready_to_start(nodes: NodeTimes, at: int, lead: float, launch_ns: float, stream_ns: float) -> tuple[float, float]:
    """Return when an operation may start for its launch, and when for its stream."""
    return nodes.back[at] - lead + launch_ns, nodes.free[at] + stream_ns


@compiled
def frees_stream(nodes: NodeTimes, others: NodeTimes, at: int) -> bool:
    """Return whether an operation runs wholly after its stream was free in both settings.

    Then the stream is free at its end, whatever was before.
    """
    free, usually_free = nodes.free[at], others.free[at]
    is_after = nodes.start[at] >= free and nodes.end[at] >= free
    return bool(is_after and others.start[at] >= usually_free and others.end[at] >= usually_free)
