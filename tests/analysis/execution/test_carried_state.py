"""How a step leaves its ranks, remembered for the next one: whoever of them has it, in whatever order."""

import numpy as np

from jitter.analysis.execution.carried_state import Tails
from jitter.analysis.execution.ready_times import Tail
from jitter.core.step_key import StepKey
from tests.support.programs import program


def tails() -> Tails:
    return Tails(program("k"), np.zeros(1, np.int64), None)


def left(*back: float) -> Tail:
    """The hosts came back then, and the only stream was done 1 before."""
    return Tail(np.array([back]) - 1.0, np.array([back]), np.zeros((0, len(back))))


def told(of: Tails, step: int, ranks: list[int], epoch: int | None = None) -> list[float | None]:
    """For each rank when its host came back of the step before; None: not known."""
    tail, joined = of.before(StepKey(epoch, step), np.array(ranks))
    known = [None if new else float(back) for new, back in zip(joined, tail.back[0], strict=True)]
    assert [None if new else float(end) + 1.0 for new, end in zip(joined, tail.lane_end[0], strict=True)] == known
    assert np.isnan(tail.back[0][joined]).all()
    return known


def test_the_same_ranks_step_after_step():
    of, ranks = tails(), np.array([3, 5])
    assert told(of, 1, [3, 5]) == [None, None]
    of.take(StepKey(None, 1), ranks, left(10, 11))
    assert told(of, 2, [3, 5]) == [10, 11]
    of.take(StepKey(None, 2), ranks, left(20, 21))
    assert told(of, 3, [3, 5]) == [20, 21]


def test_only_of_the_step_just_before_and_of_the_same_epoch():
    of, ranks = tails(), np.array([3, 5])
    of.take(StepKey(0, 1), ranks, left(10, 11))
    for step, epoch in ((1, 0), (3, 0), (2, 1), (2, None)):
        assert told(of, step, [3, 5], epoch) == [None, None]
    assert told(of, 2, [3, 5], 0) == [10, 11]


def test_one_who_comes_one_who_goes_and_another_order():
    of = tails()
    of.take(StepKey(None, 1), np.array([3, 5, 7]), left(10, 11, 12))
    assert told(of, 2, [2, 5, 7]) == [None, 11, 12]
    of.take(StepKey(None, 2), np.array([2, 5, 7]), left(20, 21, 22))
    assert told(of, 3, [7, 3, 2]) == [22, None, 20]


def test_one_who_comes_back_has_what_it_had_long_before_forgotten():
    of = tails()
    of.take(StepKey(None, 1), np.array([3, 5]), left(10, 11))
    assert told(of, 2, [5]) == [11]
    of.take(StepKey(None, 2), np.array([5]), left(21))
    assert told(of, 3, [3, 5]) == [None, 21]
    of.take(StepKey(None, 3), np.array([3, 5]), left(30, 31))
    assert told(of, 4, [5, 3, 4]) == [31, 30, None]


def test_others_steps_of_one_number_are_kept_beside():
    """Ranks of one step taken in one after the other, not asked of between: neither displaces the other."""
    of = tails()
    of.take(StepKey(None, 1), np.array([3, 5]), left(10, 11))
    of.take(StepKey(None, 1), np.array([4]), left(12))
    assert told(of, 2, [3, 4, 5]) == [10, 12, 11]
