"""The tape of a run: the replay of every step in two settings, operation by operation, from the project's arrays.

The upper setting is what was recorded; in the lower one every self time and transfer is at its baseline. The formula
is that of `jitter.analysis.replay.replay`.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from math import floor, isnan, nan
from typing import TypeVar

import numpy as np

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.schedule import CALLS, STARTS
from jitter.analysis.execution.self_times import SelfTimes
from jitter.analysis.replay.run_steps import RecordedSteps
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COLLECTIVE, COMPUTE, SYNC
from tests.account.anchors import Anchors
from tests.account.tape import (
    MOST_BESIDE,
    Beside,
    Given,
    Latest,
    Leaf,
    Mean,
    Node,
    Shares,
    Slot,
    Sum,
    Tape,
    end_of_work,
)

Time = Node | None
"""None where it is unknown in both settings."""
Key = TypeVar("Key", bound=Hashable)


@dataclass
class TapedStep:
    number: int
    ends: dict[int, Node]
    """By cell when each operation ends; without those that are unknown in both settings."""
    end: Node | None
    """The step's end, mean over ranks; None where no rank's is known in both settings."""
    loss_ns: float = nan
    shares: Shares = field(default_factory=dict)


@dataclass
class TapedState:
    """How the ranks come to a step."""

    streams: dict[tuple[int, int], Node] = field(default_factory=dict)
    """Last end by (rank, column of the carried ends)."""
    backs: dict[tuple[int, int], Node] = field(default_factory=dict)
    """Last return by (rank, thread)."""
    pending: dict[int, tuple[list[Node], list[Node]]] = field(default_factory=dict)
    """By rank the latest starts, in r and in b, ascending: the launch queue."""
    saved: float = 0.0
    """How much earlier the step before ended in the lower setting."""

    def forget(self, rank: int) -> None:
        for known in (self.streams, self.backs):
            for key in [key for key in known if key[0] == rank]:
                del known[key]
        self.pending.pop(rank, None)


def tape_run(analysis: RunAnalysis) -> list[TapedStep]:
    """Put all steps of a run on one tape, and share out the loss of each."""
    tape, state, found = Tape(), TapedState(), []
    for recorded in analysis.steps.steps(ahead=False):
        one = _StepTape(analysis, tape, state, recorded).run()
        if one.end is not None:
            one.loss_ns = one.end.change - state.saved
            one.shares = tape.shares(one.end, THRESHOLDS.most_in_flight)
            tape.ends.append(one.end)
            state.saved = one.end.change
        found.append(one)
    return found


class _StepTape:
    """Puts one step on the tape."""

    def __init__(self, analysis: RunAnalysis, tape: Tape, state: TapedState, recorded: RecordedSteps) -> None:
        self.analysis, self.job = analysis, analysis.run.job
        self.tape, self.state = tape, state
        self.recorded, self.times, self.own = recorded, recorded.times, recorded.self_times
        self.collectives = recorded.collectives
        self.baseline = SelfTimes(*(values[0] for values in analysis.steps.find_baselines(recorded)))
        self.transfers = baseline_transfers(analysis, recorded)
        self.end_cells: list[int] = analysis.steps.ends.cells(self.times).tolist()
        self.anchors = Anchors(recorded.first, state.saved, [])
        self.ends: dict[int, Node] = {}
        self.starts: dict[int, Node] = {}
        """Of collectives, by cell."""
        self.returned: dict[int, Node] = {}
        """By cell."""
        self.free: dict[tuple[int, int], Time] = {}
        """By (rank, stream) when it had come to its last collective."""
        self.launches: dict[tuple[int, int], tuple[int, Time]] = {}
        """By (rank, stream) thread and return of the launch of the last operation there; none of a collective."""
        self.rank, self.op = -1, -1
        """The operation whose nodes are made now."""
        fresh = np.flatnonzero(recorded.fresh[0]).tolist()
        for rank in fresh:
            self.rank = rank
            state.forget(self.rank)
            for thread, back in enumerate(recorded.before.back[0, self.rank].tolist()):
                if not isnan(back):
                    state.backs[self.rank, thread] = self.given(back)
        beginning = {int(self.collectives.block[rank]) for rank in fresh}
        self.begins = [int(block) in beginning for block in self.collectives.block]
        self.streams_before = dict(state.streams)

    def run(self) -> TapedStep:
        for block, first, last, of_operation in self.analysis.run.schedule.array().tolist():
            if block < 0:
                self.end_collective(first)
                continue
            for at in range(self.collectives.first_member[block], self.collectives.first_member[block + 1]):
                rank = int(self.collectives.member[at])
                if self.times.row[rank] >= 0:
                    for self.rank, self.op in ((rank, op) for op in range(first, last)):
                        if of_operation != STARTS:
                            self.call_operation()
                        if of_operation != CALLS:
                            self.start_operation()
        self.carry_ends()
        known = [self.ends[cell] for cell in self.end_cells if cell in self.ends and self.ends[cell].is_known]
        end = None
        if known:
            r, b = (sum(times) / len(known) for times in zip(*((one.r, one.b) for one in known), strict=True))
            end = Mean(r=r, b=b, step=self.recorded.first, inputs=tuple(known))
            self.tape.put(end)
        return TapedStep(self.recorded.first, self.ends, end)

    # nodes

    @property
    def row(self) -> int:
        return int(self.times.row[self.rank])

    @property
    def cell(self) -> int:
        return self.row + self.op

    @property
    def team(self) -> int:
        return int(self.times.team[self.rank])

    @property
    def place(self) -> int:
        return int(self.job.first[self.team]) + self.op

    @property
    def border(self) -> Node | None:
        """The rank's end of the step, for operations after it."""
        end_cell = int(self.end_cells[self.rank])
        end = self.ends.get(end_cell) if 0 <= end_cell < self.cell else None
        return end if end is not None and end.is_known else None

    def put(self, node: Node) -> Node:
        """Put a node of the current operation on the tape."""
        node.rank, node.place, node.border = self.rank, self.op, self.border
        self.tape.put(node)
        return node

    def given(self, recorded: float) -> Node:
        return self.put(Given(r=recorded, b=recorded - self.state.saved, step=self.recorded.first))

    def self_time(self, name: str, kind: str, sign: int = 1) -> Leaf:
        r, b = float(getattr(self.own, name)[self.cell]), float(getattr(self.baseline, name)[self.place])
        leaf = Leaf(r=sign * r, b=sign * b, step=self.recorded.first, kind=kind)
        self.put(leaf)
        return leaf

    def sum(self, time: Time, *more: Leaf | float) -> Time:
        if time is None:
            return None
        r, b = time.r, time.b
        for one in more:
            r, b = (r + one.r, b + one.b) if isinstance(one, Leaf) else (r + one, b + one)
        inputs = (time, *(one for one in more if isinstance(one, Leaf)))
        node = Sum(r=r, b=b, step=self.recorded.first, head=self.anchors.head(time), inputs=inputs)
        return None if isnan(r) and isnan(b) else self.put(node)

    def latest(self, *times: Time) -> Time:
        inputs = [one for one in times if one is not None]
        if len(inputs) < 2:
            return inputs[0] if inputs else None
        return self.put(self.latest_of(inputs, [self.rank]))

    def latest_of(self, inputs: list[Node], ranks: Iterable[int]) -> Latest:
        """Make the latest of some times; one that is unknown in a setting is none there, and no input."""
        r, b = inputs[0].r, inputs[0].b
        for one in inputs[1:]:
            r, b = later(r, one.r), later(b, one.b)
        known = [one for one in inputs if one.is_known]
        border = self.border if list(ranks) == [self.rank] else None
        anchor = self.anchors.anchor(known, list(ranks), border) if known else None
        head = self.anchors.head_of_latest(known) if known else -1
        return Latest(r=r, b=b, step=self.recorded.first, head=head, inputs=tuple(known), anchor=anchor)

    def known_or_given(self, time: Time, recorded: float) -> Time:
        """Return a time; where it is unknown, what was recorded, as much earlier as the setting is."""
        if time is not None and time.is_known:
            return time
        given = self.given(recorded)
        if time is not None:
            given.r, given.b = (given.r if isnan(time.r) else time.r), (given.b if isnan(time.b) else time.b)
        return given

    def awaited(self, waits: Iterable[int]) -> list[Time]:
        """Return the ends of operations; below 0: ~column of what the steps before left."""
        return [
            self.ends.get(self.row + one) if one >= 0 else self.streams_before.get((self.rank, ~one)) for one in waits
        ]

    # operations of one rank

    def host_time(self, name: str) -> Leaf:
        """Return one of the operation's self times that are its host's."""
        launched = np.flatnonzero(self.job.kind[self.job.first[self.team] : self.job.first[self.team + 1]] != SYNC)
        is_start = self.op <= self.job.first_kernel[self.team]
        sign = -1 if name == "lead" else 1
        return self.self_time(name, "start" if is_start else "after" if self.op > launched.max() else "launch", sign)

    def call_operation(self) -> None:
        job, times, state = self.job, self.times, self.state
        place, cell, team = self.place, self.cell, self.team
        thread = int(job.thread[place])
        in_call = self.host_time("call")
        is_called = not isnan(times.call[cell])
        before = state.backs.get((self.rank, thread))
        by_host = job.host_wait_on[job.first_host_wait[place] : job.first_host_wait[place + 1]].tolist()
        held = self.awaited(one for one in by_host if one < 0 or not isnan(times.start[self.row + one]))
        since = self.latest(before, *(self.sum(one, -float(job.host_lead_ns[place])) for one in held))
        called = self.sum(since, self.host_time("host"))
        if self.begins[self.rank] and is_called:
            called = self.known_or_given(called, float(times.call[cell]))
        if job.kind[place] == SYNC:
            if is_called:
                awaited = self.awaited(job.wait_on[job.first_wait[place] : job.first_wait[place + 1]].tolist())
                keep(state.backs, (self.rank, thread), self.sum(self.latest(called, *awaited), in_call))
            return
        called = self.latest(called, self.slot(int(job.queue[team]))) if called is not None else None
        returned = self.sum(called, in_call) if is_called else before
        keep(state.backs, (self.rank, thread), returned)
        keep(self.returned, cell, returned)

    def start_operation(self) -> None:
        job, times, state, rank = self.job, self.times, self.state, self.rank
        place, cell, team = self.place, self.cell, self.team
        if job.kind[place] == SYNC:
            return
        thread, stream, places = int(job.thread[place]), int(job.stream[place]), int(job.queue[team])
        returned, free = self.returned.get(cell), state.streams.get((rank, stream))
        if isnan(times.start[cell]):
            keep(self.ends, cell, free)
            self.launches.pop((rank, stream), None)
            return
        awaited = self.awaited(job.wait_on[job.first_wait[place] : job.first_wait[place + 1]].tolist())
        start = self.start(returned, free, awaited)
        self.launches.pop((rank, stream), None)
        if job.kind[place] != COLLECTIVE:
            self.launches[rank, stream] = thread, returned
        if self.begins[rank]:
            start = self.known_or_given(start, float(times.start[cell]))
        self.push(start, places)
        if job.kind[place] == COLLECTIVE:
            self.free[rank, stream] = free
            keep(self.starts, cell, start)
            end = self.sum(start, float(times.end[cell] - times.start[cell]))
        elif job.kind[place] == COMPUTE and job.interference[team] > 0 and start is not None:
            end = self.end_beside(start, self.self_time("gpu", "gpu"), 1 + float(job.interference[team]))
        else:
            end = self.sum(start, self.self_time("gpu", "gpu"))
        keep(self.ends, cell, end)
        keep(state.streams, (rank, stream), self.last_on_stream(start, end, free))

    def last_on_stream(self, start: Time, end: Time, free: Time) -> Time:
        """Return when the stream is free again: at the end of an operation that waited for it, else the later time."""
        if start is not None and end is not None and free is not None:
            waited = all(getattr(one, which) >= getattr(free, which) for one in (start, end) for which in "rb")
            if waited and end.is_known:
                return end
        return self.latest(free, end)

    def start(self, returned: Time, free: Time, awaited: list[Time]) -> Time:
        """Return when the current activity starts."""
        job, team = self.job, self.team
        launched = self.sum(returned, self.host_time("lead"), float(job.launch_ns[team]))
        delays = [self.self_time("delay", "gpu")]
        if not job.has_launches[team]:
            delays.append(self.host_time("host"))
        if isnan(self.own.delay[self.cell] if job.has_launches[team] else self.own.host[self.cell]):
            return self.latest(launched, self.given(float(self.times.start[self.cell])))
        ready = self.latest(launched, self.sum(free, float(job.stream_ns[team])), *awaited)
        thread, before = self.launches.get((self.rank, int(job.stream[self.place])), (-1, None))
        is_plain = job.first_wait[self.place] == job.first_wait[self.place + 1] and thread == job.thread[self.place]
        if isinstance(ready, Latest) and len(ready.inputs) == 2 and is_plain and before is not None and before.is_known:
            end = int(self.end_cells[self.rank])
            if self.row + before.place > end or self.cell <= end:  # else measured from the step's end
                ready.anchor = before  # both inputs follow the launch before
        return self.sum(ready, *delays)

    def slot(self, places: int) -> Time:
        """Return when the launch queue has a place; None if it has one, or no limit."""
        in_r, in_b = self.state.pending.get(self.rank, ([], []))
        if not places or len(in_r) < places or len(in_b) < places:
            return None
        holders = in_r[0], in_b[0]
        head = self.anchors.common(holders)
        node = Slot(r=in_r[0].r, b=in_b[0].b, step=self.recorded.first, head=head, inputs=holders)
        return self.put(node)

    def push(self, start: Time, places: int) -> None:
        """Let one more launch into the rank's queue."""
        if not places or start is None:
            return
        for queue, name in zip(self.state.pending.setdefault(self.rank, ([], [])), ("r", "b"), strict=True):
            value = getattr(start, name)
            if not isnan(value):
                queue.insert(sum(getattr(one, name) <= value for one in queue), start)
                del queue[:-places]

    def end_beside(self, start: Node, work: Leaf, factor: float) -> Node:
        """Return the end of a kernel that collectives of its rank slow down."""
        pairs, first = [], int(self.job.first[self.team])
        at = int(self.job.last_beside[first + self.op])
        for _ in range(THRESHOLDS.interference.look_back):
            if at < 0:
                break
            if self.row + at in self.starts and self.row + at in self.ends:
                pairs.append((self.starts[self.row + at], self.ends[self.row + at]))
            at = int(self.job.last_beside[first + at])
        ends, near = {}, set()
        for name in ("r", "b"):
            begin, took = getattr(start, name), getattr(work, name)
            times = [(getattr(one, name), getattr(other, name)) for one, other in pairs]
            ends[name] = begin + floor(end_of_work(begin, took, times, factor) - begin + 0.5)
            near |= {at for at, (one, other) in enumerate(times) if one < ends[name] and other > begin}
        touching = [pairs[at] for at in sorted(near) if all(one.is_known for one in pairs[at])]
        players = touching[:MOST_BESIDE]
        moving = [start, *(one for pair in players for one in pair)]
        node = Beside(
            **ends,
            step=self.recorded.first,
            head=self.anchors.head(start),
            anchor=self.anchors.anchor_of_all(moving, [self.rank]),
            start=start,
            work=work,
            beside=tuple(touching),
            players=tuple(players),
            factor=factor,
        )
        return self.put(node)

    # collectives

    def end_collective(self, number: int) -> None:
        """End one collective for all of its groups."""
        attended: dict[int, list[tuple[int, int]]] = {}
        for at in range(self.collectives.first[number], self.collectives.first[number + 1]):
            self.rank, self.op = int(self.collectives.rank[at]), int(self.collectives.place[at])
            if self.row >= 0 and not isnan(self.times.start[self.cell]):
                attended.setdefault(int(self.collectives.group[at]), []).append((self.rank, self.op))
        for group, members in attended.items():
            moved = self.moved(group, members)
            if moved is not None:
                self.anchors.end(moved, [rank for rank, _ in members])
            for self.rank, self.op in members:
                stream = self.rank, int(self.job.stream[self.place])
                keep(self.ends, self.cell, self.sum(moved, float(self.times.end[self.cell])))
                times = self.starts.get(self.cell), self.ends.get(self.cell), self.free[stream]
                keep(self.state.streams, stream, self.last_on_stream(*times))

    def moved(self, group: int, members: list[tuple[int, int]]) -> Time:
        """Return how much later than recorded a collective ends for a group; unknown if any arrival is."""
        late: list[Time] = []
        for self.rank, self.op in members:
            recorded = float(self.times.end[self.cell])
            late.append(self.sum(self.ends.get(self.cell), float(self.times.start[self.cell]) - recorded, -recorded))
        arrived = [one for one in late if one is not None and one.is_known]
        if len(arrived) < len(late):
            return None
        last = self.latest_of(arrived, [rank for rank, _ in members])
        took = self.recorded.transfers.took[0, group]
        transfer = Leaf(
            r=float(took), b=float(self.transfers[group]), step=self.recorded.first, place=group, kind="transfer"
        )
        self.put(last)
        self.tape.put(transfer)
        moved = self.sum(last, transfer)
        for one in (last, moved):
            if one is not None:
                one.rank = one.place = one.border = None  # of all its ranks
        return moved

    def carry_ends(self) -> None:
        """Keep the ends that later steps wait for."""
        job, streams = self.job, self.state.streams
        for rank in np.flatnonzero(self.times.row >= 0).tolist():
            self.rank = rank
            for at in range(job.first_carried[self.team + 1] - 1, job.first_carried[self.team] - 1, -1):
                column = int(job.carried_column[at])
                awaited = self.row + int(job.carried_place[at])
                carried = None if isnan(self.times.start[awaited]) else self.ends.get(awaited)
                before = streams.get((self.rank, column - 1))
                keep(streams, (self.rank, column), before if job.carried_steps[at] > 1 else carried)


def baseline_transfers(analysis: RunAnalysis, recorded: RecordedSteps) -> np.ndarray:
    """Return, (groups of all collectives,), the transfers of the lower setting."""
    usual, took = analysis.transfers.baseline[recorded.first], recorded.transfers.took[0]
    return np.where(recorded.transfers.mostly_complete[0], usual, np.fmin(usual, took))


def keep(where: dict[Key, Node], key: Key, time: Time) -> None:
    """Put a time in the place of the one before; without one where it is unknown."""
    where.pop(key, None)
    if time is not None:
        where[key] = time


def later(one: float, other: float) -> float:
    """Return the greater of two times; an unknown one says nothing."""
    return other if isnan(one) or other > one else one
