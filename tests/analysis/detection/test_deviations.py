"""How far own times are apart, and by chance: against plain sums, medians and estimators."""

import math
import tracemalloc

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jitter.analysis.detection.deviations import (
    KernelDeviations,
    StepDeviations,
    TeamDeviations,
    collect_deviations,
    collect_kernel_deviations,
    subtract_median_of_others,
)
from jitter.analysis.detection.significance import scatter_over_steps
from jitter.analysis.detection.standouts import Outlier, find_standouts
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.stats import lower_median, mad_sigma, qn_sigma
from tests.support.fuzz_depth import fuzz, of_all

TO_SIGMA = 1.4826


def others_median(total: np.ndarray) -> np.ndarray:
    apart = np.full_like(total, np.nan)
    for part, step, rank in np.ndindex(*total.shape):
        others = sorted(v for at, v in enumerate(total[part, step]) if at != rank and not np.isnan(v))
        if others:
            apart[part, step, rank] = total[part, step, rank] - others[(len(others) - 1) // 2]
    return apart


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("seed", range(5))
def test_each_rank_against_the_median_of_the_others(ranks: int, seed: int):
    random = np.random.default_rng(seed)
    total = random.integers(-5, 5, (3, 6, ranks)).astype(float)  # few values: ties are common
    total[random.random(total.shape) < 0.3] = np.nan
    np.testing.assert_array_equal(subtract_median_of_others(total), others_median(total))


def test_a_rank_without_others_is_its_own_total():
    total = np.array([[[3.0], [np.nan]]])
    np.testing.assert_array_equal(subtract_median_of_others(total), total)


@pytest.mark.parametrize("steps", [3, 5, 6, 30])
def test_scatter_is_the_lower_quartile_of_all_distances_between_steps(steps: int):
    total = np.random.default_rng(steps).normal(0, 100, (steps, 4))
    for own, sigma in zip(total.T.tolist(), qn_sigma(total).tolist(), strict=True):
        apart = sorted(abs(a - b) for at, a in enumerate(own) for b in own[:at])
        wanted = 2.2219 * apart[(len(apart) - 1) // 4] * steps / (steps + 0.5)
        assert sigma == pytest.approx(wanted, rel=1e-9)


def test_what_a_rank_always_has_and_what_grows_are_no_scatter():
    """A ramp of 40 steps counts as the random walk that it might be: √(2 · 40) times the scatter of a step."""
    noise = np.random.default_rng(1).normal(0, 50, (40, 5))
    always, third, drift = noise + np.array([0, 1e6, 0, 0, 0]), noise.copy(), noise + np.arange(40)[:, None] * 1e3
    third[::3, 2] += 1e6
    np.testing.assert_allclose(qn_sigma(always), qn_sigma(noise), rtol=1e-6)
    assert ((scatter_over_steps(third) > 30) & (scatter_over_steps(third) < 90)).all()
    from_a_step_on = noise + np.maximum(np.arange(40) - 15, 0)[:, None] * 1e3
    for total in (drift, from_a_step_on):
        assert (scatter_over_steps(total) > 200).all()
        assert (scatter_over_steps(total) < 2_000).all()
        assert (qn_sigma(total) > 4_000).all()


def test_scatter_of_hardly_any_steps():
    assert qn_sigma(np.array([[1.0, 5.0, 9.0]])).tolist() == [0.0] * 3
    assert qn_sigma(np.full((3, 2), np.nan)).tolist() == [0.0] * 2
    assert mad_sigma(np.array([1.0, 5.0, 9.0, 100.0])) == pytest.approx(TO_SIGMA * 4)
    assert mad_sigma(np.array([np.nan])) == 0.0


@settings(max_examples=40, deadline=None)
@given(
    arrays(
        np.float64,
        st.tuples(st.integers(1, 5), st.integers(1, 7)),
        elements=st.one_of(st.integers(-1000, 1000).map(float), st.just(math.nan)),
    )
)
def test_lower_median_is_quantile_disc(values: np.ndarray):
    rows = [(row, value) for row, own in enumerate(values.tolist()) for value in own if not math.isnan(value)]
    with duckdb.connect() as db:
        db.execute("create table own(line integer, ns double)")
        if rows:
            db.executemany("insert into own values (?, ?)", rows)
        told = dict(db.execute("select line, quantile_disc(ns, 0.5) from own group by line").fetchall())
    found = lower_median(values)
    assert found.shape == (len(values), 1)
    for row, (value,) in enumerate(found.tolist()):
        assert value == told[row] if row in told else math.isnan(value)


STEPS, RANKS, NOISE = 20, 6, 1000.0


def team(total: np.ndarray, noise: float = NOISE) -> TeamDeviations:
    each = np.ones((3, total.shape[1], 1))
    return TeamDeviations(0, np.arange(total.shape[2]) * 10, total, noise * each, 1e5 * each)


def find_outliers(deviations: TeamDeviations, step_ns: np.ndarray) -> list[Outlier]:
    """Return what stands out in any part of the time."""
    return [one for part in OWN_PARTS for one in find_standouts(deviations, part, step_ns).outliers(step_ns)]


def found(total: np.ndarray, step_ns: float = 1e6, noise: float = NOISE):
    return [(s.rank, s.part, s.steps) for s in find_outliers(team(total, noise), np.full(total.shape[1], step_ns))]


def chance(seed: int = 2, steps: int = STEPS, ranks: int = RANKS) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, NOISE, (3, steps, ranks))


@pytest.mark.parametrize("seed", range(20))
def test_chance_makes_nobody_suspect(seed: int):
    assert found(chance(seed)) == []


def test_one_step_out_of_the_noise():
    total = chance()
    total[TimePart.GPU, [7, 12], 3] = 400 * NOISE, 15 * NOISE  # the second one is no part of that event
    (one,) = find_outliers(team(total), np.full(STEPS, 1e6))
    assert (one.rank, one.part, one.steps, one.team) == (30, TimePart.GPU, (7,), 0)
    assert one.excess_ns == 400 * NOISE
    assert 120 < one.sigmas < 440
    assert 0 < one.chance <= THRESHOLDS.max_chance
    assert not one.persistent


def test_an_excess_of_heavy_tails_is_no_outlier():
    """Ten standard deviations occur in one of a thousand values of Student's t with 3 degrees of freedom."""
    total = chance()
    total[TimePart.CPU, 7, 3] = 10 * NOISE
    assert found(total) == []


@pytest.mark.parametrize(
    ("ranks", "steps", "late", "size"),
    [(8, 5, [4], 60), (4, 8, [2], 60), (8, 5, [1, 3], 60), (6, 12, [5], 90), (6, 7, [2, 4], 60)],
)
@pytest.mark.parametrize("seed", range(3))
def test_few_steps_far_apart_from_all_others(ranks: int, steps: int, late: list[int], size: int, seed: int):
    """The rank's own late steps do not hide each other, and the others show how far noise goes."""
    own = chance(seed, steps, ranks)
    own[TimePart.START, late, 1] += np.array([1.0, 5 / 6])[: len(late)] * size * NOISE
    assert found(subtract_median_of_others(own), noise=0.3 * NOISE) == [(10, TimePart.START, tuple(late))]


def test_the_ranks_of_a_slow_host_do_not_hide_each_other():
    """Of 16 GPUs, which differ by 1.1% for ever, those of one host are slower by 5 to 6%."""
    levels = 1_100 * np.random.default_rng(3).standard_normal(16)
    levels[8:12] += [5e3, 5e3, 6e3, 5e3]
    total = np.zeros((3, 6, 16))
    total[TimePart.GPU] = levels - np.median(levels) + 300 * np.random.default_rng(4).standard_normal((6, 16))
    assert [rank for rank, _, _ in found(total, step_ns=1.2e5, noise=300)] == [80, 90, 100, 110]


def test_of_two_halves_that_differ_for_ever_none_is_slow():
    total = np.zeros((3, 12, 4))
    total[TimePart.GPU] = [-2.1e3, 1.9e3, -1.9e3, 2e3] + 300 * np.random.default_rng(4).standard_normal((12, 4))
    assert found(total, step_ns=1.2e5, noise=300) == []


def test_half_of_few_ranks_that_are_late_in_one_of_two_steps_are_late_there():
    """Chance decides which of the two is a little late in the other step, too: that one was named alone."""
    total = np.zeros((3, 3, 4))
    total[TimePart.START] = [[math.nan] * 4, [11e3, -4e3, 4e3, -5e3], [-4e6, -4e6, 4e6, 4e6]]
    assert found(total, step_ns=3e6) == [(rank, TimePart.START, (2,)) for rank in (20, 30)]


@pytest.mark.parametrize("ranks", [4, 8, 16])
@pytest.mark.parametrize("own", [0.0, 0.5])
def test_half_of_the_ranks_are_late_in_half_of_the_steps_by_amounts_that_vary(ranks: int, own: float):
    """As the second of two hosts: who is late, and in which steps; each by the host's time, and `own` of it alone."""
    late, half = (1, 2, 5, 6, 9, 11), ranks // 2
    rng = np.random.default_rng(4)
    level = rng.normal(0, NOISE / 20, (12, ranks))
    level[np.ix_(late, range(half, ranks))] += rng.uniform(40, 120, (6, 1)) * NOISE * rng.uniform(1 - own, 1, (6, half))
    total = np.zeros((3, 12, ranks))
    total[TimePart.CPU] = subtract_median_of_others(level[None])[0]
    assert found(total) == [(10 * rank, TimePart.CPU, late) for rank in range(half, ranks)]


def test_several_ranks_in_one_step_are_less_likely_than_one():
    """As four of a node, each of which alone chance may make so late."""
    total = chance(ranks=16)
    total[TimePart.CPU, 7, 4] += 10 * NOISE
    assert found(total) == []
    total[TimePart.CPU, 7, [5, 6, 7]] += 10 * NOISE
    assert found(total) == [(rank, TimePart.CPU, (7,)) for rank in (40, 50, 60, 70)]


def test_several_steps_are_less_likely_than_one():
    total = chance()
    total[TimePart.CPU, [2, 7, 11, 15], 3] = 15 * NOISE
    assert found(total) == [(30, TimePart.CPU, (2, 7, 11, 15))]


@pytest.mark.parametrize("seed", range(1, 6))
def test_every_other_pair_of_steps_at_a_lower_clock(seed: int):
    """Half of the steps are slow, the most that can be told from the rank's own scatter (with seed 0 they cannot)."""
    slow = (2, 3, 6, 7, 10, 11)
    total = chance(seed, steps=12, ranks=16)
    total[TimePart.GPU, slow, 14] += np.array([16.0, 16.5, 18.0, 17.5, 15.0, 15.2]) * NOISE
    assert found(total) == [(140, TimePart.GPU, slow)]


def test_all_along_though_no_step_is_out():
    total = chance()
    total[TimePart.START, :, 1] += 20 * NOISE
    assert found(total) == [(10, TimePart.START, tuple(range(STEPS)))]
    (one,) = find_outliers(team(total), np.full(STEPS, 1e6))
    assert one.persistent


def test_a_rank_far_behind_by_an_amount_that_varies():
    """Its own deviation over four steps is large; the other ranks show that noise is not."""
    total = chance(steps=4, ranks=12)
    total[TimePart.START, :, 3] = np.array([37.0, 29.0, 19.0, 27.0]) * NOISE
    (one,) = find_outliers(team(total), np.full(4, 1e5))
    assert (one.rank, one.part, one.steps, one.persistent) == (30, TimePart.START, (0, 1, 2, 3), True)


def test_a_constant_difference_that_gpus_of_one_model_have_is_no_outlier():
    """The noise is 0.1% of the GPU time; rank 1 is 2% slower, in every step."""
    total = chance() / 10
    total[TimePart.GPU, :, 1] += 0.02 * 1e5
    assert found(total, step_ns=1e5) == []
    total[TimePart.GPU, :, 1] += 0.10 * 1e5
    assert found(total, step_ns=1e5) == [(10, TimePart.GPU, tuple(range(STEPS)))]


def test_a_value_that_wanders_is_not_as_many_values_as_steps():
    """A rank is above the others, by a value that drifts slowly up and down with the same amplitude."""
    total = chance() / 10
    total[TimePart.GPU, :, 1] += 4_000 + 4_000 * np.sin(np.arange(STEPS) / 3)
    assert found(total, step_ns=1e5) == []


def test_a_drift_is_found_by_its_mean():
    total = chance()
    total[TimePart.GPU, :, 1] += np.linspace(0, 100 * NOISE, STEPS)
    assert [(rank, part) for rank, part, _ in found(total)] == [(10, TimePart.GPU)]


@pytest.mark.parametrize("growth", [0.0, 20 * NOISE])
def test_what_begins_in_a_step_is_the_steps_from_there(growth: float):
    """As of a GPU that throttles after its warm-up; with a ramp, whose first steps are within the noise."""
    total = chance() / 10
    total[TimePart.GPU, 12:, 1] += 20 * NOISE + growth * np.arange(STEPS - 12)
    assert found(total) == [(10, TimePart.GPU, tuple(range(12, STEPS)))]
    slow = chance() / 10
    slow[TimePart.GPU, :9, 1] += 20 * NOISE + growth * np.arange(9)[::-1]
    assert found(slow) == [(10, TimePart.GPU, tuple(range(9)))]


def test_a_mean_that_some_steps_carry_is_those_steps():
    total = chance() / 10
    total[TimePart.GPU, ::4, 2] = 50 * NOISE
    assert found(total) == [(20, TimePart.GPU, (0, 4, 8, 12, 16))]


def test_being_early_is_no_fault():
    total = chance()
    total[TimePart.GPU, 3, 3] = -80 * NOISE
    total[TimePart.CPU, :, 2] -= 80 * NOISE
    assert found(total) == []


def test_what_is_too_small_a_part_of_the_step_is_not_tried():
    total = chance() / 1000
    total[TimePart.GPU, 7, 3] = 10 * NOISE
    assert found(total, step_ns=10 * NOISE / THRESHOLDS.min_excess_share) == [(30, TimePart.GPU, (7,))]
    assert found(total, step_ns=10 * NOISE / THRESHOLDS.min_excess_share * 1.01) == []


def test_it_must_be_a_part_of_each_of_its_steps():
    total = chance() / 1000
    total[TimePart.GPU, [7, 9], 3] = 10 * NOISE
    assert found(total, step_ns=10 * NOISE / THRESHOLDS.min_excess_share) == [(30, TimePart.GPU, (7, 9))]
    assert found(total, step_ns=10 * NOISE / THRESHOLDS.min_excess_share * 1.01) == []


def test_a_step_in_which_all_ranks_differ_more_is_noisier():
    """A checkpoint: in step 7 every rank pauses, some longer than others."""
    total = chance()
    total[TimePart.CPU, 7] = np.array([0.0, 100, 200, 300, 400, 500]) * NOISE
    assert found(total) == []


def test_ranks_that_lack_steps():
    total = chance()
    total[:, 5:, 4] = np.nan
    total[:, :, 5] = np.nan
    total[TimePart.GPU, 2, 4] = 300 * NOISE
    assert found(total) == [(40, TimePart.GPU, (2,))]


def test_a_rank_alone_stands_out_from_its_own_steps_if_there_are_enough():
    few, enough = np.zeros((3, 4, 1)), np.zeros((3, 5, 1))
    few[TimePart.GPU, 2, 0] = enough[TimePart.GPU, 2, 0] = 60 * NOISE
    assert found(few) == []
    assert found(enough) == [(0, TimePart.GPU, (2,))]


def test_a_rank_is_not_late_by_more_than_its_steps_take():
    """A rank alone that waits on several streams for unrecorded ranks has an excess beyond its steps: no finding."""
    total = np.random.default_rng(3).normal(0, 1e5, (3, 20, 1))
    total[TimePart.GPU, 4:8, 0] += 3e8
    still = np.full((3, 20, 1), 1e5)
    late = find_standouts(TeamDeviations(0, np.array([0]), total, still, still * 100), TimePart.GPU, np.full(20, 3.5e7))
    assert late.outliers(np.full(20, 3.5e7)) == []
    (one,) = late.outliers(np.full(20, 3.5e8))
    assert one.steps == (4, 5, 6, 7)


def test_one_step_and_two_ranks():
    total = np.zeros((3, 1, 2))
    total[TimePart.CPU, 0, 1] = 50 * NOISE
    assert found(total) == [(10, TimePart.CPU, (0,))]
    assert found(np.zeros((3, 1, 2)), noise=0.0) == []
    assert find_outliers(team(total), np.array([np.nan]))[0].rank == 10


@pytest.mark.parametrize("late_steps", [(3,), (2, 5)])
def test_two_of_four_ranks_that_are_late_at_once(late_steps: tuple[int, ...]):
    total = subtract_median_of_others(paused_at(late_steps, chance(steps=8, ranks=4)))
    assert found(total) == [(10, TimePart.GPU, late_steps), (20, TimePart.GPU, late_steps)]


@pytest.mark.parametrize("seed", range(20))
def test_steps_of_much_noise_make_none_of_four_ranks_suspect(seed: int):
    """Their halves lie apart by chance."""
    total = chance(seed, steps=8, ranks=4)
    total[:, 2::3] *= 3
    assert found(subtract_median_of_others(total)) == []


def paused_at(steps: tuple[int, ...], own: np.ndarray) -> np.ndarray:
    own[TimePart.GPU, np.array(steps)[:, None], [1, 2]] += 100 * NOISE
    return own


@pytest.mark.parametrize(("second_start", "steps"), [(30 * NOISE, (0, 1, 2)), (0.1 * NOISE, ())])
def test_a_slow_host_is_slow_in_all_that_it_does(second_start: float, steps: tuple[int, ...]):
    """Of two ranks and two known starts, which of them varies is unknown; one host's launches are usually slow."""
    excess = np.zeros((3, 3))
    excess[TimePart.START] = np.nan, 30 * NOISE, second_start
    excess[TimePart.CPU] = 50 * NOISE + np.array([0.0, NOISE, -NOISE])
    uncertain = TeamDeviations(
        0, np.arange(2), excess[:, :, None] * [-1, 1], np.full((3, 3, 1), 25 * NOISE), np.full((3, 3, 1), 1e5)
    )
    step_ns = np.full(3, 1e6)
    start, launches = (find_standouts(uncertain, part, step_ns) for part in (TimePart.START, TimePart.CPU))
    assert start.outliers(step_ns) == []
    found = start.with_rest_of_host(launches, step_ns).outliers(step_ns)
    assert [(one.rank, one.steps) for one in found] == ([(1, steps)] if steps else [])
    assert launches.with_rest_of_host(start, step_ns).outliers(step_ns) == launches.outliers(step_ns)


@fuzz
@pytest.mark.parametrize(("ranks", "steps"), [(4, 5), (8, 8), (16, 12)])
@pytest.mark.parametrize("tails", ["normal", "heavy", "wandering"])
def test_false_alarms_are_rare(ranks: int, steps: int, tails: str):
    """At most 5% of runs without a fault have an outlier: 7 of 60, or 3 of 10, by the binomial distribution's 99%."""
    alarms = 0
    for seed in range(of_all(60, 10)):
        rng = np.random.default_rng(seed)
        if tails == "normal":
            total = rng.normal(0, NOISE, (3, steps, ranks))
        elif tails == "heavy":
            total = rng.standard_t(3, (3, steps, ranks)) * NOISE
        else:
            total = np.cumsum(rng.normal(0, NOISE / 3, (3, steps, ranks)), axis=1) + rng.normal(0, NOISE, (3, 1, ranks))
        total = subtract_median_of_others(total)
        alarms += bool(find_outliers(team(total, noise=0.0), np.full(steps, 1e5)))
    assert alarms <= of_all(7, 3)


def test_a_rank_alone_is_measured_by_its_other_steps():
    """Its usual total may be above that of usual operations; what a slow step's operations take is not its noise."""
    totals = [50.0, 52.0, np.nan, 51.0, 90.0, 49.0]
    noises = [1.0, 3.0, np.nan, 1.0, 40.0, 2.0]
    of_parts = (np.repeat(values, 3).reshape(-1, 3, 1) for values in (totals, noises, 50.0 + 0 * np.array(totals)))
    seen = StepDeviations(*of_parts, np.zeros((len(totals), 1), np.bool_))
    (team,) = collect_deviations(seen, np.array([4]), np.array([0, 1]), [np.arange(len(totals))], {})
    for part in range(3):
        # the lower median of four others: 49, 50, 51, 52, 90 less one of them
        np.testing.assert_array_equal(team.total_ns[part, :, 0], [-1.0, 2.0, np.nan, 1.0, 40.0, -2.0])
        np.testing.assert_array_equal(team.noise_ns[part, :, 0], [2.0, 2.0, np.nan, 2.0, 2.0, 2.0])


def test_of_two_ranks_the_late_steps_of_one_are_no_usual_lateness():
    """What one of two ranks takes more in two of eight steps lowers the other one: it is late in these two alone."""
    own = np.zeros((len(OWN_PARTS), 8, 2))
    own[TimePart.GPU, :, 1] = [-105, 37, 23, 987, 830, -26, -20, 32]
    own[TimePart.GPU, :, 0] = -own[TimePart.GPU, :, 1]
    assert found(own * 1e3, step_ns=2.8e6, noise=1e4) == [(10, TimePart.GPU, (3, 4))]


def test_names_of_kernels_are_gone_through_one_at_a_time():
    steps, ranks, names = 30, 40, 60
    random = np.random.default_rng(0)
    seen = KernelDeviations(random.normal(size=(steps, names, ranks)), np.ones((steps, names)))
    seen.total_ns[:, 7, 3] += 100
    unknown = np.full((len(OWN_PARTS), steps, ranks), np.nan)
    tracemalloc.start()
    (name,) = collect_kernel_deviations(TeamDeviations(0, np.arange(ranks), unknown, unknown, unknown), seen, 50.0)
    assert name == 7
    assert tracemalloc.get_traced_memory()[1] < names * steps * ranks * 8
    tracemalloc.stop()
