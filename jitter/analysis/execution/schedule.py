"""The order in which the operations of all blocks of ranks are computed, so that what each waits for is known.

Blocks follow their programs until a collective holds all of them. Where ranks issue their collectives in different
orders, as in bidirectional pipelines, that is before each has met its partner: then the host of a block runs ahead of
its GPU, as it did when the job ran. Calls are computed up to an operation that may start on another stream; what they
launched is held, stream by stream, and computed once what it waits for is over.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.alignment.program import NO_STREAM, Program
from jitter.analysis.collectives.matching import CollectiveMatching
from jitter.analysis.execution.dependencies import Dependencies
from jitter.core.names.kernels import COMPUTE, SYNC
from jitter.core.numeric.arrays import Ints

WHOLE, CALLS, STARTS = range(3)
"""What an instruction computes of its operations: all, or only their calls, or only what these launched."""
_NOTHING: Final[tuple[int, ...]] = ()


class Schedule(NamedTuple):
    """Instructions in order."""

    instructions: tuple[tuple[int, int, int, int], ...]
    """A block, the places of it to compute, the first and the last (not included), and `WHOLE`, `CALLS` or `STARTS`; or
    -1, a collective all of whose ranks have arrived, so that its end is known, and 0, 0.
    """
    uncoupled: frozenset[int]
    """Collectives whose matching contradicts the order: each rank ends its own."""

    def array(self) -> Ints:
        """(instructions, 4)."""
        return np.array(self.instructions, np.int64).reshape(-1, 4)


def schedule(
    programs: Mapping[int, Program], rules: Mapping[int, Dependencies], matching: CollectiveMatching
) -> Schedule:
    """Return the order of all blocks' operations and of all collectives."""
    of_place: list[dict[int, int]] = [{} for _ in matching.teams]
    for number, members in enumerate(matching.members):
        for member, place in members:
            of_place[member][place] = number
    missing = list(map(len, matching.members))
    met: set[int] = set()
    blocks = [
        _Block(programs[team], rules[team], collective_at, met)
        for team, collective_at in zip(matching.teams, of_place, strict=True)
    ]
    instructions: list[tuple[int, int, int, int]] = []
    uncoupled: set[int] = set()
    while not all(block.is_done for block in blocks):
        moved = False
        for number, block in enumerate(blocks):
            arrived = len(block.arrived)
            computed = block.advance()
            instructions += [(number, *places) for places in computed]
            for collective_number in block.arrived[arrived:]:
                missing[collective_number] -= 1
            ready = [m for m in block.arrived if not missing[m] and m not in met]
            instructions += [(-1, m, 0, 0) for m in ready]
            met.update(ready)
            block.arrived = [m for m in block.arrived if m not in met]
            moved |= bool(computed or ready)
        if (
            not moved
            and not any(block.run_ahead() for block in blocks)
            and not any(block.release() for block in blocks)
        ):
            # the recorded groups cannot be right: let the first that a block waits for be every rank's own
            stuck = next(m for block in blocks for m in block.arrived if m not in met)
            uncoupled.add(stuck)
            met.add(stuck)
    return Schedule((*instructions,), frozenset(uncoupled))


class _Block:
    def __init__(
        self, program: Program, rules: Dependencies, collective_at: Mapping[int, int], met: Collection[int]
    ) -> None:
        """Begin a block's program; `met` are the collectives that are over, of all blocks."""
        self.at = 0
        """The operations before it are called."""
        self.arrived: list[int] = []
        self._ahead_until = 0
        """The operations before it are called, whether they may start or not."""
        self._held: dict[int, deque[int]] = {}
        """By stream the operations that are called and not started; no stream has none."""
        self._size = len(program.operations)
        self._queue = rules.queue
        self._collective_at, self._met = collective_at, met
        self._streams = program.streams.tolist()
        self._by_call, self._by_start = _needed(program, rules, collective_at)
        self._slowed_by = _slowing(program, rules, collective_at) if rules.interference else {}

    @property
    def is_done(self) -> bool:
        return self.at == self._size and not self._held

    def advance(self) -> list[tuple[int, int, int]]:
        """Go on as far as the collectives that are over allow; return the (first, last, part) computed."""
        computed: list[tuple[int, int, int]] = []
        has_moved = True
        while has_moved:
            before = len(computed)
            for stream in list(self._held):
                held = self._held[stream]
                while held and self._is_over(self._by_start.get(held[0])) and self._is_undisturbed(held[0]):
                    self._add(computed, held.popleft(), STARTS)
                if not held:
                    del self._held[stream]
            first = self.at
            while self.at < self._size and self._may_call(self.at):
                if self._may_start(self.at):
                    self._add(computed, self.at, WHOLE)
                elif self.at < self._ahead_until:
                    self._held.setdefault(self._streams[self.at], deque()).append(self.at)
                    self._add(computed, self.at, CALLS)
                else:
                    break
                self.at += 1
            has_moved = bool(self._held) and (self.at > first or len(computed) > before)
        return computed

    def run_ahead(self) -> bool:
        """Let the host run ahead up to the next operation that may start before what it would pass by; return whether.

        There has to be one, and the launch queue must have room.
        """
        passed: dict[int, int] = {}
        """By place the stream of each operation that it would pass by."""
        room = self._queue - sum(map(len, self._held.values())) if self._queue else self._size
        for place in range(self.at, min(self._size, self.at + room)):
            by_start = self._by_start.get(place, _NOTHING)
            if not self._may_call(place) or not passed.keys().isdisjoint(self._by_call.get(place, _NOTHING)):
                return False
            is_free = self._streams[place] not in passed.values() and passed.keys().isdisjoint(by_start)
            if is_free and self._may_start(place):
                self._ahead_until = place
                return place > self.at
            passed[place] = self._streams[place]
        return False

    def release(self) -> bool:
        """Let the block go on where it only waits to know what slows a kernel down; return whether it did."""
        places = [held[0] for held in self._held.values()]
        if self.at < self._size and self._may_call(self.at):
            places.append(self.at)
        for place in places:
            if self._is_over(self._by_start.get(place)) and self._slowed_by.pop(place, None) is not None:
                return True
        return False

    def _may_call(self, place: int) -> bool:
        return self._is_over(self._by_call.get(place))

    def _may_start(self, place: int) -> bool:
        is_free = self._streams[place] not in self._held
        return is_free and self._is_over(self._by_start.get(place)) and self._is_undisturbed(place)

    def _is_undisturbed(self, place: int) -> bool:
        return all(collective in self._met for collective in self._slowed_by.get(place, _NOTHING))

    def _is_over(self, places: Sequence[int] | None) -> bool:
        """Return whether all these operations are over: not one that is held, nor a collective that has not met."""
        for place in places or ():
            if (collective := self._collective_at.get(place)) is not None and collective not in self._met:
                return False
            if self._held and place in self._held.get(self._streams[place], ()):
                return False
        return True

    def _add(self, computed: list[tuple[int, int, int]], place: int, part: int) -> None:
        """Add an operation to what is computed, and to the collectives arrived at."""
        if part != CALLS and (collective := self._collective_at.get(place)) is not None:
            self.arrived.append(collective)
        if computed and computed[-1][1:] == (place, part):
            computed[-1] = computed[-1][0], place + 1, part
        else:
            computed.append((place, place + 1, part))


def _slowing(program: Program, rules: Dependencies, collective_at: Mapping[int, int]) -> dict[int, Sequence[int]]:
    """Return, by place of a compute kernel, the collectives that may slow it and no kernel before it on its stream."""
    slowing: dict[int, Sequence[int]] = {}
    # by stream the collectives since its last kernel
    since: dict[int, list[int]] = {stream: [] for stream in program.streams.tolist()}
    for place, (stream, kind) in enumerate(zip(program.streams.tolist(), program.kinds.tolist(), strict=True)):
        if place in collective_at:
            for collectives in since.values():
                collectives.append(collective_at[place])
        elif kind == COMPUTE:
            later = [collective_at[at] for at in rules.later_beside.get(place, _NOTHING) if at in collective_at]
            if beside := since[stream] + later:
                slowing[place], since[stream] = beside, []
    return slowing


def _needed(
    program: Program, rules: Dependencies, collective_at: Mapping[int, int]
) -> tuple[dict[int, Sequence[int]], dict[int, Sequence[int]]]:
    """Return, by place, the operations that must be over before its call, and before its start.

    Before its start also the last one on its stream, if that is a collective.
    """
    by_call: dict[int, Sequence[int]] = {}
    by_start: dict[int, Sequence[int]] = {}
    last: dict[int, int] = {}
    for place, (stream, kind) in enumerate(zip(program.streams.tolist(), program.kinds.tolist(), strict=True)):
        by_host, by_gpu = (
            [wait.on_op_index for wait in waits.get(place, ()) if wait.on_op_index >= 0 and not wait.steps_back]
            for waits in (rules.of_hosts, rules.by_place)
        )
        if kind == SYNC:
            by_host, by_gpu = by_host + by_gpu, []
        if stream != NO_STREAM and last.get(stream, -1) in collective_at:
            by_gpu.append(last[stream])
        if by_host:
            by_call[place] = by_host
        if by_gpu:
            by_start[place] = by_gpu
        last[stream] = place
    return by_call, by_start
