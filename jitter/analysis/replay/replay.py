"""The run again with other own times: METRICS, "From deviations to answers", 3.

The loop is over the operations of one step; ranks and scenarios are computed at once. Times stay on each rank's own
clock: what couples ranks is how much later than recorded the last of a group arrives, so no shared clock is needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jitter.analysis.execution.collectives import Meetings
from jitter.analysis.execution.own_time import OwnTimes
from jitter.analysis.execution.program import Program
from jitter.analysis.execution.ready_times import Tail, pushed
from jitter.analysis.execution.rules import Rules
from jitter.analysis.execution.schedule import Meet, Schedule
from jitter.analysis.execution.step_times import Recorded
from jitter.analysis.replay.scenario_times import Repairs, repaired_times
from jitter.core.arrays import Bools, Floats, Ints
from jitter.core.kernels import COLLECTIVE, SYNC


@dataclass(frozen=True)
class BlockStep:
    """One block's step as recorded, columns the block's ranks."""

    recorded: Recorded
    typical: OwnTimes
    """(operations, 1): the median of its team."""
    joined: Bools
    """(ranks,) those whose step before is not known: they begin as recorded."""
    tail: Tail
    """How the step before left the ranks, as recorded."""


@dataclass
class _State:
    """(scenarios, ranks) each; how the block stands."""

    lane_end: list[Floats]
    back: list[Floats]
    pending: Floats | None
    """(pending, scenarios, ranks)."""

    def of(self, rows: Ints) -> "_State":
        """These scenarios'."""
        pending = None if self.pending is None else self.pending[:, rows]
        return _State([end[rows] for end in self.lane_end], [back[rows] for back in self.back], pending)

    def put(self, rows: Ints, part: "_State") -> None:
        """Take over what `of` these scenarios has become."""
        for whole, own in zip(self.lane_end + self.back, part.lane_end + part.back, strict=True):
            whole[rows] = own
        if self.pending is not None:
            self.pending[:, rows] = part.pending


class Replay:
    """Computes step after step; every scenario keeps its own state."""

    def __init__(
        self,
        programs: Mapping[int, Program],
        rules: Mapping[int, Rules],
        meetings: Meetings,
        schedule: Schedule,
        scenarios: int,
    ) -> None:
        self._programs = [programs[block.team] for block in meetings.blocks]
        self._rules = [rules[block.team] for block in meetings.blocks]
        self._meetings = meetings
        self._schedule = schedule
        self._scenarios = scenarios
        self._awaited = [frozenset(of for others in its.by_place.values() for of in others) for its in self._rules]
        """The operations of each block that others wait for."""
        self._states = [self._fresh(number) for number in range(len(meetings.blocks))]

    def _fresh(self, block: int) -> _State:
        ranks = len(self._meetings.blocks[block].ranks)
        shape = (self._scenarios, ranks)
        lanes = 1 + max((op.lane for op in self._programs[block].operations), default=0)
        rules = self._rules[block]
        threads = 1 + int(rules.thread.max(initial=0))
        queue = None if rules.queue is None else np.full((rules.queue, *shape), -np.inf)
        return _State(
            [np.full(shape, np.nan) for _ in range(lanes)], [np.full(shape, np.nan) for _ in range(threads)], queue
        )

    def step(
        self,
        blocks: Sequence[BlockStep],
        repairs: Sequence[Repairs],
        transfers: Mapping[int, Floats],
        ahead: Floats,
        rows: Ints,
        asked: Sequence[frozenset[int]],
    ) -> list[Mapping[int, Floats]]:
        """Compute one step of all blocks for the scenarios `rows`; returns each block's ends.

        Ends are (rows, ranks), of the places `asked` for by block (no synchronising calls), and maybe others.
        `repairs` says for each block whose own times are the median's; `transfers[meeting]` is (rows, groups), from
        the last arrival to the end; `ahead` (rows,) is how much earlier than recorded those stand who were there
        before: who joins now joins there. The other scenarios stay where they are.
        """
        states = [state.of(rows) for state in self._states]
        work = [
            _Work(self._programs[n], self._rules[n], states[n], block, repairs[n], ahead, self._awaited[n] | asked[n])
            for n, block in enumerate(blocks)
        ]
        for instruction in self._schedule.instructions:
            if isinstance(instruction, Meet):
                self._meet(instruction.meeting, work, transfers[instruction.meeting])
            else:
                for place in range(instruction.first, instruction.last):
                    work[instruction.block].compute(place)
        for state, part in zip(self._states, states, strict=True):
            state.put(rows, part)
        return [one.ends for one in work]

    def is_as_recorded(self, blocks: Sequence[BlockStep], ahead: Floats) -> Bools:
        """(scenarios,) those that come to this step as recorded, but for being `ahead` (scenarios,) of it."""
        found = np.ones(self._scenarios, np.bool_)
        for state, block in zip(self._states, blocks, strict=True):
            there = ~block.joined
            for own, recorded in _side_by_side(state, block.tail):
                moved = own[..., there] + ahead[:, None]
                same = (moved == recorded[..., None, there]) | (np.isnan(moved) & np.isnan(recorded[..., None, there]))
                found &= same.all(axis=tuple(axis for axis in range(same.ndim) if axis != same.ndim - 2))
        return found

    def put_as_recorded(self, rows: Ints, blocks: Sequence[BlockStep], ahead: Floats) -> None:
        """Let these scenarios come to this step as recorded, `ahead` (rows,) of it."""
        for state, block in zip(self._states, blocks, strict=True):
            for own, recorded in _side_by_side(state, block.tail):
                own[..., rows, :] = recorded[..., None, :] - ahead[:, None]

    def _meet(self, number: int, work: Sequence["_Work"], transfer: Floats) -> None:
        meeting = self._meetings.meetings[number]
        late = np.full((len(transfer), meeting.groups), -np.inf)
        for member in meeting.members:
            arrived = work[member.block].arrived(member.place)
            there = work[member.block].here(member.place)
            if meeting.groups == 1:
                if there is None:
                    late[:, 0] = np.maximum(late[:, 0], arrived.max(axis=1))
                elif there.any():
                    late[:, 0] = np.maximum(late[:, 0], arrived[:, there].max(axis=1))
            else:
                which = slice(None) if there is None else there
                for own, its in zip(late, arrived, strict=True):
                    np.maximum.at(own, member.group[which], its[which])
        moved = late + transfer
        for member in meeting.members:
            work[member.block].end_together(member.place, moved[:, member.group])


def _side_by_side(state: _State, tail: Tail) -> Iterator[tuple[Floats, Floats]]:
    """How a block stands in the scenarios, (…, scenarios, ranks), and as recorded, (…, ranks)."""
    yield from zip(state.lane_end, tail.lane_end, strict=False)
    yield from zip(state.back, tail.back, strict=False)
    if state.pending is not None:
        yield state.pending, tail.starts


class _Work:
    """One block in one step."""

    def __init__(
        self,
        program: Program,
        rules: Rules,
        state: _State,
        block: BlockStep,
        repairs: Repairs,
        ahead: Floats,
        kept: frozenset[int],
    ) -> None:
        """`kept` are the places of which the ends are asked for."""
        self.block, self._kept = block, kept
        self._operations = program.operations
        self._rules = rules
        self._state = state
        self._times = repaired_times(program, rules, block.recorded, block.tail, block.typical, repairs)
        self._threads: list[int] = rules.thread.tolist()
        self._starts: dict[int, Floats] = {}
        """Of collectives."""
        self.ends: dict[int, Floats] = {}
        """Of the places kept: (scenarios, ranks)."""
        self._all_here: list[bool] = block.recorded.has_all.tolist()
        self._all_called: list[bool] = block.recorded.is_called.tolist()
        # before the tails are overwritten: what the step before left on each lane
        self._lane_end_before = list(state.lane_end)
        joined = block.joined
        if joined.any():
            for values in (*state.lane_end, *state.back):
                values[:, joined] = np.nan
            if state.pending is not None:
                state.pending[:, :, joined] = -np.inf
        self._free_before: dict[int, Floats] = {}
        """For each collective when its stream was done with all before it."""
        self._begin: Floats | None = None
        self._start_as_recorded: Floats | None = None
        if joined.any():
            self._begin = block.recorded.call[:, None, :] - ahead[:, None]
            self._start_as_recorded = block.recorded.start[:, None, :] - ahead[:, None]

    def compute(self, place: int) -> None:
        """Compute the next operation."""
        op, state, rules = self._operations[place], self._state, self._rules
        host, call, lead, delay, gpu = next(self._times)
        thread = self._threads[place]
        back = state.back[thread]
        called = back + host
        if self._begin is not None:
            called = np.where(np.isnan(host) | np.isnan(back), self._begin[place], called)
        awaited = self._awaited(place)
        if op.kind == SYNC:
            returned = (called if awaited is None else np.fmax(called, awaited)) + call
            state.back[thread] = returned if self._all_called[place] else np.where(self._called(place), returned, back)
            return
        if state.pending is not None:
            called = np.maximum(called, state.pending[0])
        returned = called + call
        if not self._all_called[place]:
            returned = np.where(self._called(place), returned, back)
        state.back[thread] = returned
        before = state.lane_end[op.lane]
        start = np.fmax(returned - lead + rules.launch_ns, before + rules.stream_ns)
        if awaited is not None:
            start = np.fmax(start, awaited)
        start = start + delay
        if self._start_as_recorded is not None:
            start = np.where(np.isnan(start), self._start_as_recorded[place], start)
        if state.pending is not None:
            state.pending = _pushed(state.pending, self._of_those_here(place, start, np.nan))
        if op.kind == COLLECTIVE:
            self._starts[place], self._free_before[place] = start, before
            # who meets nobody ends as recorded after his start; a meeting sets it right
            recorded = self.block.recorded
            end = start + (recorded.row("end", place) - recorded.row("start", place))
        else:
            end = start + gpu
        self._end(place, end, before)

    def arrived(self, place: int) -> Floats:
        """(scenarios, ranks) when each arrived, less the recorded end."""
        found: Floats = self._starts[place] - self.block.recorded.row("end", place)
        return found

    def end_together(self, place: int, moved: Floats) -> None:
        """All of a meeting end this much later than recorded, (scenarios, ranks)."""
        self._end(place, self.block.recorded.row("end", place) + moved, self._free_before[place])

    def _end(self, place: int, end: Floats, before: Floats) -> None:
        """End an operation whose stream had come to `before`; it may end before an earlier one that it overlaps.

        Who has not the operation: what waits for it waits for the one before it on its stream.
        """
        end = self._of_those_here(place, end, before)
        if place in self._kept:
            self.ends[place] = end
        self._state.lane_end[self._operations[place].lane] = np.fmax(before, end)

    def _of_those_here(self, place: int, values: Floats, else_: Floats | float) -> Floats:
        """Of who has not the operation something else."""
        here = self.here(place)
        return values if here is None else np.where(here, values, else_)

    def here(self, place: int) -> Bools | None:
        """(ranks,) who has an operation; None: all."""
        return None if self._all_here[place] else self.block.recorded.present[place]

    def _called(self, place: int) -> Bools:
        """(ranks,) whose call is known."""
        known: Bools = ~np.isnan(self.block.recorded.row("call", place))
        return known

    def _awaited(self, place: int) -> Floats | None:
        found = None
        for other in self._rules.by_place.get(place, ()):
            end = self.ends[other] if other >= 0 else self._lane_end_before[~other]
            found = end if found is None else np.fmax(found, end)
        return found


def _pushed(pending: Floats, start: Floats) -> Floats:
    """As `readiness.pushed`, for all scenarios."""
    flat = pushed(pending.reshape(len(pending), -1), start.reshape(-1))
    return flat.reshape(pending.shape)
