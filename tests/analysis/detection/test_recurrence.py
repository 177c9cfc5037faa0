"""Whether a finding recurs, against own times whose faults are known."""

from collections.abc import Sequence

import numpy as np
import pytest

from jitter.analysis.detection.deviations import TeamDeviations, subtract_median_of_others
from jitter.analysis.detection.standouts import (
    Recurrence,
    count_more_steps,
    decide_recurrence,
    decide_repetition,
    find_standouts,
)
from jitter.analysis.execution.self_times import TimePart

STEP = 1e6
USUAL = 0.8 * STEP


def times(steps: int, ranks: int, *, seed: int = 0, spread: float = 0.003, noise: float = 0.003) -> np.ndarray:
    """Return GPU times (steps, ranks) of ranks that differ for ever, and from step to step, by these parts."""
    rng = np.random.default_rng(seed)
    return USUAL * (1 + spread * rng.standard_normal((1, ranks)) + noise * rng.standard_normal((steps, ranks)))


def paused(own: np.ndarray, events: Sequence[tuple[int, int]], ns: float = 0.4 * STEP) -> np.ndarray:
    for step, rank in events:
        own[step, rank] += ns
    return own


def answer(own: np.ndarray, ranks: Sequence[int], seen: int) -> Recurrence:
    steps, count = own.shape
    every = np.random.default_rng(1).normal(0, 100, (3, steps, count))
    every[TimePart.GPU] = own
    team = TeamDeviations(
        0,
        np.arange(count),
        subtract_median_of_others(every),
        np.full((3, steps, 1), 0.001 * USUAL),
        np.full((3, steps, 1), USUAL),
    )
    standouts = find_standouts(team, TimePart.GPU, np.full(steps, STEP))
    late = standouts.is_late[:, standouts.columns(ranks)].any(axis=1)
    of_finding = np.argsort(~late, kind="stable")[: max(seen, int(late.sum()))].tolist()
    return decide_recurrence(standouts, ranks, of_finding)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ranks", [8, 16])
def test_a_host_that_is_slow_from_some_step_on_recurs(seed: int, ranks: int):
    """Seven steps of half of the ranks: by chance all of them fall on one half in 1.6% of the runs."""
    own = times(16, ranks, seed=seed)
    own[9:, ranks // 2 :] *= 1.1
    assert answer(own, range(ranks // 2, ranks), 7) == Recurrence("yes")


def test_each_of_two_halves_that_is_slow_in_one_part_of_the_run_recurs():
    own = times(12, 8)
    own[:6, :4] *= 1.1
    own[6:, 4:] *= 1.1
    assert [answer(own, half, 6).answer for half in (range(4), range(4, 8))] == ["yes", "yes"]


def test_a_rank_that_pauses_at_times_recurs_beside_one_that_does_so_more_often():
    pauses = [(step, rank) for rank, every in ((0, 7), (9, 2)) for step in range(2, 20, every)]
    own = paused(times(20, 16), pauses)
    assert [answer(own, [rank], seen).answer for rank, seen in ((0, 3), (9, 9))] == ["yes"] * 2


@pytest.mark.parametrize("steps", [(259,), (40, 41), (100, 101, 102)])
def test_one_pause_of_one_step_or_a_few_tells_of_no_other(steps: tuple[int, ...]):
    """Nor do pauses of other ranks, between which it lies or after them."""
    others = [(step, rank) for rank in range(4, 16) for step in (17 * rank, 17 * rank + 1)]
    own = paused(times(260, 16), [*others, *((step, 0) for step in steps)])
    assert answer(own, [0], len(steps)).answer != "yes"


def test_one_long_pause_of_a_rank_that_is_slow_in_every_step_makes_it_no_other():
    own = times(20, 16)
    own[:, 3] += 0.1 * STEP
    assert answer(paused(own, [(7, 3)], 5 * STEP), [3], 20) == Recurrence("yes")


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("ranks", [8, 32])
def test_a_rank_that_is_slow_in_every_step_recurs(seed: int, ranks: int):
    own = times(10, ranks, seed=seed)
    own[:, 5] *= 1.1
    assert answer(own, [5], 10) == Recurrence("yes")


def test_a_rank_that_pauses_again_and_again_recurs():
    assert answer(paused(times(20, 8), [(2, 3), (7, 3), (11, 3), (15, 3)]), [3], 4).answer == "yes"


@pytest.mark.parametrize("seed", range(4))
def test_pauses_of_all_ranks_are_counted_from_one_length_on(seed: int):
    """What four pauses of one rank show, one pause of another rank does not: it is as long nevertheless."""
    own = paused(times(20, 8, noise=0.02, seed=seed), [(2, 3), (7, 3), (11, 3), (19, 3)])
    others = [(4, 0), (9, 1), (13, 2), (16, 5), (18, 6), (0, 7)]
    assert answer(paused(own.copy(), others, 0.1 * STEP), [3], 4).answer == "yes"
    assert answer(paused(own.copy(), others), [3], 4).answer != "yes"


@pytest.mark.parametrize("ranks", [2, 4, 8, 32])
def test_one_pause_does_not_tell_and_the_steps_that_would_are_told(ranks: int):
    found = answer(paused(times(5, ranks), [(3, 1)]), [1], 1)
    assert found.answer == "unknown"
    assert found.more_steps is not None
    # so many steps, with the same pause as often, do decide it
    steps = 5 + found.more_steps
    again = answer(paused(times(steps, ranks), [(at, 1) for at in range(3, steps, 5)]), [1], steps // 5)
    assert again.answer == "yes"
    fewer = steps - 5
    still = answer(paused(times(fewer, ranks), [(at, 1) for at in range(3, fewer, 5)]), [1], fewer // 5)
    assert still.answer == "unknown"


def test_the_only_step_tells_nothing():
    assert answer(paused(times(1, 8), [(0, 1)]), [1], 1).answer == "unknown"


def test_pauses_of_random_ranks_could_hit_any_rank_next():
    """The rank with the most pauses is chosen after the fact: by chance it recurs in 5% of runs at most."""
    answers = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        events = list(zip(rng.permutation(40)[:12].tolist(), rng.integers(0, 16, 12).tolist(), strict=True))
        ranks = [rank for _, rank in events]
        busiest = max(ranks, key=ranks.count)
        own = paused(times(40, 16, seed=seed), events)
        answers.append(answer(own, [busiest], ranks.count(busiest)).answer)
        assert answer(own, sorted(set(ranks)), len(events)).answer != "yes"
    assert answers.count("yes") <= 0.05 * len(answers)
    assert answers.count("no") >= 0.8 * len(answers)


def test_random_pauses_of_few_ranks_are_no_more_likely_of_all_ranks():
    """Twelve events on three of 64 ranks: those three have a fault, and none of them more than the others."""
    events = [(step, (3, 20, 41)[step % 3]) for step in range(12)]
    assert answer(paused(times(24, 64), events), [3], 4).answer == "yes"
    assert answer(paused(times(24, 6), [(2, 1), (9, 4), (17, 5)]), [1], 1).answer == "no"


def test_ranks_that_pause_in_one_step_are_late_together():
    events = [(4, rank) for rank in (0, 1, 2)]
    assert answer(paused(times(10, 8), events), [0, 1, 2], 1).answer == "together"
    assert answer(paused(times(10, 8), events), [1], 1).answer == "together"


def test_a_host_that_pauses_in_many_steps_recurs():
    events = [(step, rank) for step in (1, 4, 8, 13) for rank in (4, 5, 6, 7)]
    assert answer(paused(times(16, 32), events), [4, 5, 6, 7], 4).answer == "yes"


@pytest.mark.parametrize("ranks", [4, 8, 24])
@pytest.mark.parametrize("spread", [0.003, 0.015])
def test_healthy_ranks_seldom_recur(ranks: int, spread: float):
    """GPUs of one model differ by 1 to 2% for ever."""
    wrong = 0
    for seed in range(40):
        own = times(8, ranks, seed=seed, spread=spread)
        worst = int(np.argmax(np.median(own, axis=0)))
        wrong += answer(own, [worst], 8).answer == "yes"
    assert wrong <= 1


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_of_few_ranks_none_is_the_unusual_one(ranks: int):
    own = times(10, ranks)
    own[:, 0] *= 1.1
    assert answer(own, [0], 10).answer == "unknown"


def test_the_order_of_ranks_does_not_matter():
    own = paused(times(20, 8), [(2, 3), (7, 3), (11, 3), (4, 5), (4, 6)])
    order = np.random.default_rng(3).permutation(8)
    for rank in range(8):
        moved = int(np.flatnonzero(order == rank)[0])
        assert answer(own, [rank], 3) == answer(own[:, order], [moved], 3)


def test_a_rank_that_lacks_steps_is_judged_by_the_others():
    own = paused(times(20, 8), [(2, 3), (7, 3), (11, 3), (15, 3)])
    own[5:7, 3] = np.nan
    own[:, 6] = np.nan
    assert answer(own, [3], 4).answer == "yes"


def test_few_steps_in_all_of_which_a_rank_is_late_are_too_few():
    own = times(3, 4, spread=0.01)
    own[:, 2] += 0.01 * USUAL
    assert answer(own, [2], 3) == Recurrence("unknown", 2)
    own = times(8, 4, spread=0.01)
    own[:, 2] += 0.01 * USUAL
    assert answer(own, [2], 8) == Recurrence("unknown")  # no more than GPUs of one model differ by


def test_links_recur_by_the_same_rule():
    assert decide_repetition(3, 0, 1 / 8, 10) == Recurrence("yes")
    assert decide_repetition(3, 5, 1 / 8, 10).answer == "unknown"  # other links are slow as often
    assert decide_repetition(1, 0, 1 / 8, 10) == Recurrence("unknown", 20)


def test_steps_alone_cannot_tell_ranks_without_others():
    assert count_more_steps(1, 0, 1.0, 5) is None
    assert count_more_steps(1, 0, 1 / 8, 5) == 10  # three times in 15 steps: 8 × (1/8)³ < 5%
