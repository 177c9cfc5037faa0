"""Tails against numerical integration and exact sums; spreads against their definitions."""

import math
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from jitter.analysis.detection.findings import split_random_events
from jitter.analysis.detection.significance import (
    binomial_tail,
    changes_once,
    predictive_tails,
    quiet_level,
    spread_of_others,
)
from jitter.analysis.detection.standouts import Outlier, is_random, log_odds_of_all_ranks
from jitter.analysis.execution.self_times import TimePart
from jitter.core.numeric.stats import qn_sigma
from jitter.core.numeric.student_t import student_tail


def integrated_tail(t: float, degrees: int) -> float:
    """Integrate the density from t on, with u = 1 / x beyond 1."""

    def density(x: np.ndarray) -> np.ndarray:
        scale = math.gamma((degrees + 1) / 2) / math.sqrt(math.pi * degrees) / math.gamma(degrees / 2)
        return scale * (1 + x**2 / degrees) ** (-(degrees + 1) / 2)

    u = np.linspace(1e-9, 1 / t, 400_001)
    return float(np.trapezoid(density(1 / u) / u**2, u))


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 13, 30])
@pytest.mark.parametrize("t", [0.3, 1.0, 2.5, 6.0, 20.0, 100.0])
def test_the_tail_of_students_t(t: float, degrees: int):
    found = float(student_tail(t, degrees))
    wanted = integrated_tail(t, degrees)
    assert found == pytest.approx(wanted, rel=2e-3)
    assert float(student_tail(-t, degrees)) == pytest.approx(1 - found)


def test_the_binomial_tail_is_the_sum_of_its_terms():
    for count, trials, chance in ((1, 5, 0.1), (3, 12, 0.02), (8, 8, 0.5), (2, 40, 0.3)):
        wanted = sum(math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(count, trials + 1))
        assert binomial_tail(count, trials, chance) == pytest.approx(wanted)
    ways = [1]  # exact: more terms than floats can hold
    for k in range(10_000):
        ways.append(ways[k] * (10_000 - k) // (k + 1))
    for count in (4_700, 4_990, 5_000, 5_010, 5_300):
        assert binomial_tail(count, 10_000, 0.5) == pytest.approx(sum(ways[count:]) / 2**10_000, rel=1e-9)
    assert binomial_tail(0, 5, 0.1) == 1.0
    assert binomial_tail(2, 5, 0.0) == 0.0


def test_what_changes_once_seldom_does_by_chance():
    orders = [np.isin(np.arange(10), some) for some in combinations(range(10), 5)]
    assert sum(map(changes_once, orders)) == 2
    assert len(orders) == 252
    assert changes_once(np.arange(300) < 290)
    assert not any(changes_once(np.isin(np.arange(300), some)) for some in ([299], range(296, 300), range(50, 56)))
    assert not changes_once(np.zeros(0, np.bool_))


def test_qn_is_the_standard_deviation_of_normal_values_and_ignores_outliers():
    values = np.random.default_rng(1).normal(5, 3, (4000, 1))[:1500]
    assert float(qn_sigma(values)[0]) == pytest.approx(3, rel=0.05)
    some = np.random.default_rng(1).normal(0, 1, (40, 2))
    some[::3, 1] += 1000
    assert float(qn_sigma(some)[1]) < 3


def test_the_quiet_level_is_the_median_unless_most_steps_have_events():
    values = np.random.default_rng(1).normal(0, 1, (60, 2))
    values[:40, 1] += 50
    level = quiet_level(values, np.ones(2))
    assert abs(level[0]) < 0.4
    assert abs(level[1]) < 1.5


@pytest.mark.parametrize("ranks", [4, 5, 7, 16])
def test_one_rank_far_from_the_others_and_what_is_known_beforehand(ranks: int):
    levels = np.zeros(ranks)
    levels[2] = 10.0
    excess, sigma, degrees = spread_of_others(levels, np.full(ranks, 2.0))
    assert excess[2] == 10
    assert sigma[2] < 2.5  # the others agree: what is known beforehand remains
    assert degrees > 4
    wide = np.random.default_rng(3).normal(0, 8, ranks)
    _, sigma, _ = spread_of_others(wide, np.full(ranks, 2.0))
    assert sigma.max() > 2.5


def outlier(rank: int, *steps: int) -> Outlier:
    return Outlier(0, rank, TimePart.CPU, steps, 1e5 * len(steps), 50.0, 1e-6)


def test_events_on_random_ranks_are_one_finding():
    members = [outlier(0, 3), outlier(2, 1, 8), outlier(5, 6), outlier(7, 2, 9)]
    alone, shared = split_random_events(members, 8, 10, {})
    assert alone == []
    (job,) = shared
    assert (job.kind, job.ranks, job.steps) == ("random_pauses", (0, 2, 5, 7), (1, 2, 3, 6, 8, 9))
    assert job.excess_ns == 6e5
    assert "6 events on 4 ranks" in job.evidence[0]


def test_a_long_stall_is_none_of_the_short_pauses_of_any_rank():
    short = [outlier(rank, rank % 10) for rank in range(4, 30) if rank != 17]
    stalls = [replace(outlier(3, 4), excess_ns=1.2e7), replace(outlier(17, 8), excess_ns=1.2e7)]
    alone, (pauses,) = split_random_events([*short[:9], *stalls, *short[9:]], 32, 12, {})
    assert alone == stalls
    assert pauses.ranks == tuple(late.rank for late in short)


@pytest.mark.parametrize("seed", range(4))
def test_a_long_stall_leaves_pauses_of_any_length_random(seed: int):
    """Pauses of exponential lengths: no two sizes of them, and the rank that stalls pauses as the others do."""
    rng = np.random.default_rng(seed)
    pauses_ns = rng.exponential(1e6, (50, 32)) * (rng.random((50, 32)) < 0.06)
    pauses_ns[25, 3] = 3e7
    members = [
        replace(outlier(rank, *np.flatnonzero(of_rank).tolist()), excess_ns=of_rank.sum(), longest_ns=of_rank.max())
        for rank, of_rank in enumerate(pauses_ns.T)
        if of_rank.any()
    ]
    alone, (job,) = split_random_events(members, 32, 50, {})
    assert [late.rank for late in alone] == [3]
    assert job.ranks == tuple(late.rank for late in members if late.rank != 3)


def test_few_events_on_few_ranks_may_be_faults_of_these():
    """Three ranks of 8 with two events each: drawn from three ranks they are likelier than from all."""
    assert not is_random(np.array([0, 2, 0, 0, 2, 0, 2, 0]))
    assert is_random(np.full(8, 2))
    assert is_random(np.array([3, 2, 2, 2, 2, 0, 3, 2]))  # 16 events seldom hit all of 8 ranks
    assert not is_random(np.array([1, 1, 0, 0, 0, 0, 0, 0]))  # two ranks
    assert not is_random(np.array([1, 1, 1, 9, 1, 1, 1, 1]))  # one rank has most of them


@pytest.mark.parametrize(("ranks", "hit", "events"), [(4, 2, 4), (4, 3, 3), (5, 2, 3)])
def test_odds_of_all_ranks_against_counting(ranks: int, hit: int, events: int):
    """Of all draws from all ranks, and from each choice of ranks, how many are one that hits the first ranks alone."""
    seen = tuple(number % hit for number in range(events))
    choices = [list(product(chosen, repeat=events)) for chosen in combinations(range(ranks), hit)]
    of_some = sum(draws.count(seen) / len(draws) for draws in choices) / len(choices)
    every = list(product(range(ranks), repeat=events))
    odds = every.count(seen) / len(every) / of_some
    assert log_odds_of_all_ranks(events, hit, ranks) == pytest.approx(math.log(odds))


def test_odds_of_all_ranks_of_a_large_job():
    """One event on each second rank of 4,096: C(4096, 2048) is no float."""
    exact = math.log(math.comb(4_096, 2_048)) + 2_048 * math.log(0.5)
    assert log_odds_of_all_ranks(2_048, 2_048, 4_096) == pytest.approx(exact)
    members = [outlier(rank, rank // 2) for rank in range(0, 4_096, 2)]
    assert len(split_random_events(members, 4_096, 2_048, {})[1]) == 1


def test_a_rank_with_more_events_than_chance_gives_is_itself():
    members = [outlier(0, 1, 3, 5, 6, 8), outlier(2, 2), outlier(5, 6)]
    alone, shared = split_random_events(members, 8, 10, {})
    assert (alone, shared) == (members, [])


@pytest.mark.parametrize(("ranks_of_node", "are_random"), [(4, False), (16, True)])
def test_events_on_ranks_of_one_node_of_several_are_not_random(ranks_of_node: int, are_random: bool):
    members = [outlier(4, 2, 9), outlier(5, 3), outlier(6, 5), outlier(7, 7)]
    node_of = {rank: rank // ranks_of_node for rank in range(16)}
    assert bool(split_random_events(members, 16, 12, node_of)[1]) == are_random


def test_ranks_that_are_late_in_the_same_step_are_not_random():
    members = [outlier(rank, 4) for rank in range(6)]
    alone, shared = split_random_events(members, 8, 10, {})
    assert shared == []
    assert {one.rank for one in alone} == set(range(6))


def test_ranks_of_one_node_that_are_late_together_are_not_random():
    """Twice 4 of 12 ranks at once: of ranks of one node that is no chance, of any ranks it may be."""
    members = [outlier(rank, 4, 10) for rank in range(8, 12)]
    assert split_random_events(members, 12, 14, {rank: rank // 4 for rank in range(12)}) == (members, [])
    assert split_random_events(members, 12, 14, {rank: rank % 3 for rank in range(12)})[1]


@pytest.mark.parametrize("by_node", [True, False])
def test_pauses_of_one_node_after_another_are_told_as_such(by_node: bool):
    """Of 4 nodes of 4 ranks, one in each of 12 steps: all ranks have as many events, as any ranks would by chance."""
    late = {
        rank: [step for step in range(12) if (step + (0 if by_node else rank)) % 4 == rank // 4] for rank in range(16)
    }
    members = [outlier(rank, *steps) for rank, steps in late.items()]
    alone, (job,) = split_random_events(members, 16, 12, {rank: rank // 4 for rank in range(16)})
    assert (alone, job.kind) == ([], "random_pauses")
    assert ("ranks of one node or few" in job.evidence[0]) == by_node


@pytest.mark.parametrize("nodes", [{rank: rank // 4 for rank in range(8)}, dict.fromkeys(range(8), 0), {}])
@pytest.mark.parametrize("times", [1, 3])
def test_of_two_halves_of_which_each_is_late_in_one_part_of_the_run_none_is_late_at_random(
    times: int, nodes: dict[int, object]
):
    """Each has as many events as the other, and as many in each step; they change places once, or five times."""
    first = [step for step in range(12) if (step * times // 6) % 2 == 0]
    late = {rank: first if rank < 4 else [step for step in range(12) if step not in first] for rank in range(8)}
    members = [outlier(rank, *steps) for rank, steps in late.items()]
    alone, shared = split_random_events(members, 8, 12, nodes)
    assert (alone == members, len(shared)) == ((True, 0) if times == 1 else (False, 1))


@pytest.mark.parametrize("known", [0, 2, 8, 16])
def test_random_pauses_where_the_nodes_of_some_ranks_are_unknown(known: int):
    """In each of 40 steps three of 16 ranks, whose nodes may be fewer than the events in a step."""
    chance = np.random.default_rng(0)
    late: dict[int, list[int]] = {rank: [] for rank in range(16)}
    for step in range(40):
        for rank in chance.choice(16, 3, replace=False).tolist():
            late[rank].append(step)
    members = [outlier(rank, *steps) for rank, steps in late.items()]
    alone, (job,) = split_random_events(members, 16, 40, {rank: f"node{rank // 4}" for rank in range(known)})
    assert (alone, job.kind) == ([], "random_pauses")
    assert "no rank has more of them than chance gives" in job.evidence[0]


def test_one_event_and_persistent_outliers_are_left_alone():
    persistent = Outlier(0, 3, TimePart.CPU, tuple(range(10)), 1e6, 50.0, 1e-6, persistent=True)
    once = outlier(1, 4)
    assert split_random_events([persistent, once], 8, 10, {}) == ([persistent, once], [])


def test_the_tail_of_a_step_is_that_of_the_other_ranks():
    """Against Student's t of the distribution that the deviations are drawn from."""
    rng = np.random.default_rng(3)
    at = np.full((200, 12), 8.0)
    narrow = float(predictive_tails(at, rng.standard_normal((200, 12)) * 0.7)[0, 0])
    heavy = float(predictive_tails(at, rng.standard_t(3, (200, 12)))[0, 0])
    assert narrow < 1e-6
    assert heavy == pytest.approx(float(student_tail(8.0, 3)), rel=0.2)


def test_few_values_leave_the_worst_case_likely():
    sigmas = np.array([[-1.0, 0.5, 10.0], [0.0, 1.0, -1.0]])
    found = predictive_tails(sigmas, sigmas)
    worst = student_tail(sigmas, 3)
    assert np.all(found[sigmas > 2] <= worst[sigmas > 2])
    assert found[0, 2] > worst[0, 2] / 4
    of_two = predictive_tails(sigmas[:, 1:], sigmas[:, 1:])
    np.testing.assert_allclose(of_two, student_tail(sigmas[:, 1:], 3), rtol=2e-3)


def test_a_rank_does_not_tell_its_own_tail():
    deviations = np.random.default_rng(5).standard_normal((12, 8)) * 0.7
    before = predictive_tails(deviations, deviations)
    deviations[4:8, 2] = 30.0
    after = predictive_tails(deviations, deviations)
    np.testing.assert_allclose(after[0, 2], before[0, 2])
    assert float(after[4, 2]) < student_tail(30.0, 3) / 50
    assert np.all(
        predictive_tails(np.full((12, 8), 9.0), deviations)[:, 3]
        > 10
        * predictive_tails(np.full((12, 8), 9.0), np.delete(deviations, 2, axis=1)[:, [0, 1, 2, 3, 4, 5, 6, 0]])[:, 3]
    )


@pytest.mark.parametrize("draw", ["normal", "heavy", "exponential"])
def test_few_runs_have_a_step_that_chance_seldom_makes(draw: str):
    """Of 400 runs at most 1% + 3 standard deviations have a step of which the chance is 1%, as events have."""
    rng = np.random.default_rng(11)
    alarms = 0
    for _ in range(400):
        drawn = {
            "normal": rng.standard_normal((8, 6)) * 0.8,
            "heavy": rng.standard_t(3, (8, 6)) * 0.8,
            "exponential": rng.standard_exponential((8, 6)) - math.log(2),
        }[draw]
        alarms += bool(predictive_tails(drawn, drawn).min() * drawn.size <= 0.01)
    assert alarms <= 400 * 0.01 + 3 * math.sqrt(400 * 0.01 * 0.99)
