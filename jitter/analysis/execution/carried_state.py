"""How each step leaves its ranks for the next one, whoever of them has it."""

import numpy as np

from jitter.analysis.execution.program import NO_LANE, Program
from jitter.analysis.execution.ready_times import Tail, left_by, no_tail
from jitter.analysis.execution.step_times import Recorded
from jitter.core.arrays import Bools, Floats, Ints
from jitter.core.step_key import StepKey


class Tails:
    """How the step before left each rank of a team."""

    def __init__(self, program: Program, thread: Ints, queue: int | None) -> None:
        self._program, self._thread = program, thread
        self._lanes = 1 + max((op.lane for op in program.operations), default=NO_LANE)
        self._threads = 1 + int(thread.max(initial=0))
        self._queue = queue
        self._left: dict[int, tuple[StepKey, Floats, Floats, Floats]] = {}
        self._whole: tuple[StepKey, Ints, Tail] | None = None

    def before(self, key: StepKey, ranks: Ints) -> tuple[Tail, Bools]:
        """What these ranks' step before left, and which of them have none."""
        joined = np.ones(len(ranks), np.bool_)
        if self._whole is not None:
            last, same, whole = self._whole
            if last == StepKey(key.epoch, key.step - 1) and np.array_equal(same, ranks):
                return whole, ~joined
            self._spread_out()
        tail = no_tail(self._lanes, self._threads, len(ranks), self._queue)
        for column, rank in enumerate(ranks.tolist()):
            left = self._left.get(rank)
            if left is not None and left[0] == StepKey(key.epoch, key.step - 1):
                joined[column] = False
                _, tail.lane_end[:, column], tail.back[:, column], tail.starts[:, column] = left
        return tail, joined

    def follow(self, key: StepKey, step: Recorded) -> None:
        """Take the step in."""
        tail, _ = self.before(key, step.ranks)
        self.take(key, step.ranks, left_by(self._program, self._thread, step, tail))

    def take(self, key: StepKey, ranks: Ints, left: Tail) -> None:
        """Take in how a step left these ranks."""
        if self._whole is not None and not np.array_equal(self._whole[1], ranks):
            self._spread_out()
        self._whole = (key, ranks, left)

    def _spread_out(self) -> None:
        """Remember the last step rank by rank: the next has others."""
        assert self._whole is not None
        key, ranks, left = self._whole
        for column, rank in enumerate(ranks.tolist()):
            self._left[rank] = (key, left.lane_end[:, column], left.back[:, column], left.starts[:, column])
        self._whole = None
