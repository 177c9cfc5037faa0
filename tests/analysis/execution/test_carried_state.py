"""How a step leaves its ranks, remembered for the next one: whichever of them has it."""

import numpy as np
import pytest

from jitter.analysis.execution.job_arrays import StateTracker, push_pending, turn_pending, unknown_state
from jitter.core.step_key import StepKey

RANKS = 8


@pytest.fixture
def tracker() -> StateTracker:
    return StateTracker(unknown_state(RANKS, 1, 1, 2))


def leave(tracker: StateTracker, ranks: list[int], *back: float) -> None:
    """The hosts came back then, and the only stream was done 1 before."""
    tracker.state.back[ranks, 0] = back
    tracker.state.stream_end[ranks, 0] = np.array(back) - 1.0
    tracker.state.pending[ranks] = 5.0


def told(tracker: StateTracker, step: int, ranks: list[int], epoch: int | None = None) -> list[float | None]:
    """For each rank when its host came back of the step before; None: not known."""
    here = np.zeros(RANKS, np.bool_)
    here[ranks] = True
    (fresh,) = tracker.enter([StepKey(epoch, step)], here)
    assert fresh[~here].all()
    state = tracker.state
    assert np.isnan(state.back[fresh & here]).all()
    assert np.isinf(state.pending[fresh & here]).all()
    known = [None if fresh[rank] else float(state.back[rank, 0]) for rank in ranks]
    assert [None if fresh[rank] else float(state.stream_end[rank, 0]) + 1.0 for rank in ranks] == known
    return known


def test_the_same_ranks_step_after_step(tracker: StateTracker):
    assert told(tracker, 1, [3, 5]) == [None, None]
    leave(tracker, [3, 5], 10, 11)
    assert told(tracker, 2, [3, 5]) == [10, 11]
    leave(tracker, [3, 5], 20, 21)
    assert told(tracker, 3, [3, 5]) == [20, 21]


@pytest.mark.parametrize(("step", "epoch", "known"), [(1, 0, False), (3, 0, False), (2, 1, False), (2, 0, True)])
def test_only_of_the_step_just_before_and_of_the_same_epoch(tracker: StateTracker, step: int, epoch: int, known: bool):
    told(tracker, 1, [3, 5], 0)
    leave(tracker, [3, 5], 10, 11)
    assert told(tracker, step, [3, 5], epoch) == ([10, 11] if known else [None, None])


def test_one_without_epochs_does_not_follow_one_of_an_epoch(tracker: StateTracker):
    told(tracker, 1, [3], 0)
    leave(tracker, [3], 10)
    assert told(tracker, 2, [3], None) == [None]


def test_one_who_comes_one_who_goes(tracker: StateTracker):
    told(tracker, 1, [3, 5, 7])
    leave(tracker, [3, 5, 7], 10, 11, 12)
    assert told(tracker, 2, [2, 5, 7]) == [None, 11, 12]
    leave(tracker, [2, 5, 7], 20, 21, 22)
    assert told(tracker, 3, [2, 3, 7]) == [20, None, 22]


def test_one_who_comes_back_has_what_it_had_long_before_forgotten(tracker: StateTracker):
    told(tracker, 1, [3, 5])
    leave(tracker, [3, 5], 10, 11)
    assert told(tracker, 2, [5]) == [11]
    leave(tracker, [5], 21)
    assert told(tracker, 3, [3, 5]) == [None, 21]
    leave(tracker, [3, 5], 30, 31)
    assert told(tracker, 4, [3, 4, 5]) == [30, None, 31]


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("places", [1, 2, 5])
def test_the_queue_holds_the_latest_starts(places: int):
    """As all of them sorted, whatever the order, with equal ones and unknown ones."""
    chance = np.random.default_rng(places)
    pending, room = np.full((2, places + 1), -np.inf), np.empty(places + 1)
    head, started = 0, [-np.inf] * places
    for _ in range(200):
        start = float(chance.choice([np.nan, *chance.integers(0, 300, 4)]))
        head = push_pending(pending, 1, head, places, start)
        started = sorted([*started, *([] if np.isnan(start) else [start])])[-places:]
        assert pending[1, head] == started[0]
    turn_pending(pending, 1, head, places, room)
    assert pending[1].tolist() == [*started, -np.inf]
    assert np.isinf(pending[0]).all()
