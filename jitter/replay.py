"""The run again with other own times: METRICS, "From deviations to answers", 3.

The loop is over the operations of one step; ranks and scenarios are computed at once. Times stay on each rank's own
clock: what couples ranks is how much later than recorded the last of a group arrives, so no shared clock is needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jitter.meetings import Meetings
from jitter.own_time import OwnTimes
from jitter.program import Program
from jitter.readiness import pushed
from jitter.rules import Rules
from jitter.schedule import Meet, Schedule
from jitter.sheets import COLLECTIVE, SYNC, Floats
from jitter.step_arrays import StepArrays

Bools = npt.NDArray[np.bool_]
START, CPU, GPU = range(3)
"""Positions in `Repairs`."""


@dataclass
class BlockStep:
    """One block's step as recorded, columns the block's ranks."""

    recorded: StepArrays
    own: OwnTimes
    typical: OwnTimes
    """(operations, 1): the median of its team."""
    joined: Bools
    """(ranks,) those whose step before is not known: they begin as recorded."""


class Repairs(NamedTuple):
    """Where own times are replaced by the median, (scenarios, ranks) each."""

    start: Bools
    """The host's, up to the step's first main-stream kernel."""
    cpu: Bools
    """The host's after that."""
    gpu: Bools
    """Durations and delays on the GPU."""


@dataclass
class _State:
    """(scenarios, ranks) each; how the block stands."""

    lane_end: list[Floats]
    back: list[Floats]
    pending: Floats | None


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
    ) -> list[Floats]:
        """Compute one step of all blocks; returns each block's ends, (operations, scenarios, ranks).

        `repairs` says for each block whose own times are the median's; `transfers[meeting]` is (scenarios, groups),
        from the last arrival to the end; `ahead` (scenarios,) is how much earlier than recorded those stand who were
        there before: who joins now joins there.
        """
        work = [
            _Work(self._programs[n], self._rules[n], self._states[n], block, repairs[n], ahead)
            for n, block in enumerate(blocks)
        ]
        for instruction in self._schedule.instructions:
            if isinstance(instruction, Meet):
                self._meet(instruction.meeting, work, transfers[instruction.meeting])
            else:
                for place in range(instruction.first, instruction.last):
                    work[instruction.block].compute(place)
        return [one.ends for one in work]

    def _meet(self, number: int, work: Sequence["_Work"], transfer: Floats) -> None:
        meeting = self._meetings.meetings[number]
        late = np.full((self._scenarios, meeting.groups), -np.inf)
        for member in meeting.members:
            arrived = work[member.block].arrived(member.place)
            there = work[member.block].block.recorded.present[member.place]
            if meeting.groups == 1:
                if there.any():
                    late[:, 0] = np.maximum(late[:, 0], arrived[:, there].max(axis=1))
            else:
                for scenario in range(self._scenarios):
                    np.maximum.at(late[scenario], member.group[there], arrived[scenario, there])
        moved = late + transfer
        for member in meeting.members:
            work[member.block].end_together(member.place, moved[:, member.group])


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
    ) -> None:
        self.block = block
        self._operations = program.operations
        self._rules = rules
        self._state = state
        shape = (len(program.operations), *repairs.gpu.shape)
        self._repairs = repairs
        self._any = [bool(mask.any()) for mask in repairs]
        own, usual = block.own, block.typical
        self._host_times = ((own.host, own.call, own.lead), (usual.host, usual.call, usual.lead))
        self._gpu_times = ((own.delay, own.gpu), (usual.delay, usual.gpu))
        self._first_kernel = program.first_kernel
        self._starts: dict[int, Floats] = {}
        """Of collectives."""
        self.ends = np.empty(shape)
        self._all_here = [bool(row.all()) for row in block.recorded.present]
        self._called: Bools = ~np.isnan(block.recorded.call)
        self._all_called = [bool(row.all()) for row in self._called]
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
        op, state, rules = self._operations[place], self._state, self._rules
        # own times of all scenarios: the median where they are repaired
        part = START if place <= self._first_kernel else CPU
        own, usual = self._host_times
        host, call, lead = own[0][place], own[1][place], own[2][place]
        if self._any[part]:
            repaired = self._repairs[part]
            host = np.where(repaired, usual[0][place], host)
            call = np.where(repaired, usual[1][place], call)
            lead = np.where(repaired, usual[2][place], lead)
        of_gpu, usual_gpu = self._gpu_times
        delay, gpu = of_gpu[0][place], of_gpu[1][place]
        if self._any[GPU]:
            repaired = self._repairs[GPU]
            delay = np.where(repaired, usual_gpu[0][place], delay)
            gpu = np.where(repaired, usual_gpu[1][place], gpu)
        thread = int(rules.thread[place])
        back = state.back[thread]
        called = back + host
        if self._begin is not None:
            called = np.where(np.isnan(host) | np.isnan(back), self._begin[place], called)
        awaited = self._awaited(place)
        if op.kind == SYNC:
            returned = (called if awaited is None else np.fmax(called, awaited)) + call
            state.back[thread] = returned if self._all_called[place] else np.where(self._called[place], returned, back)
            return
        if state.pending is not None:
            called = np.maximum(called, state.pending[0])
        returned = called + call
        if not self._all_called[place]:
            returned = np.where(self._called[place], returned, back)
        state.back[thread] = returned
        before = state.lane_end[op.lane]
        start = np.fmax(returned - lead + rules.launch_ns, before + rules.stream_ns)
        if awaited is not None:
            start = np.fmax(start, awaited)
        start = start + delay
        if self._start_as_recorded is not None:
            start = np.where(np.isnan(start), self._start_as_recorded[place], start)
        here = self.block.recorded.present[place]
        if state.pending is not None:
            state.pending = _pushed(state.pending, start if self._all_here[place] else np.where(here, start, np.nan))
        if op.kind == COLLECTIVE:
            self._starts[place] = start
            # who meets nobody ends as recorded after his start; a meeting sets it right
            recorded = self.block.recorded
            end = start + (recorded.end[place] - recorded.start[place])
        else:
            end = start + gpu
        if op.kind == COLLECTIVE:
            self._free_before[place] = before
        self._end(place, end, before)

    def arrived(self, place: int) -> Floats:
        """(scenarios, ranks) when each arrived, less the recorded end."""
        found: Floats = self._starts[place] - self.block.recorded.end[place]
        return found

    def end_together(self, place: int, moved: Floats) -> None:
        """All of a meeting end this much later than recorded, (scenarios, ranks)."""
        self._end(place, self.block.recorded.end[place] + moved, self._free_before[place])

    def _end(self, place: int, end: Floats, before: Floats) -> None:
        """End an operation whose stream had come to `before`; it may end before an earlier one that it overlaps.

        Who has not the operation: what waits for it waits for the one before it on its stream.
        """
        here = self.block.recorded.present[place]
        self.ends[place] = end if self._all_here[place] else np.where(here, end, before)
        self._state.lane_end[self._operations[place].lane] = np.fmax(before, self.ends[place])

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
