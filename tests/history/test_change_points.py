"""Change points: a change between runs is found with its second run, and equal runs hold none."""

import numpy as np
import pytest

from jitter.history.change_points import find_change_points

SERIES, RUNS, CHANGED, STEP_NS = 200, 30, 20, 1e7


def simulated(rng: np.random.Generator, spread: str, change: float) -> list[float]:
    """Step times of runs; `spread` is the range that they lie in evenly, or a standard deviation."""
    kind, _, size = spread.partition(" ")
    half = float(size) / 2
    noise = rng.uniform(-half, half, RUNS) if kind == "range" else rng.normal(0, float(size), RUNS)
    times = STEP_NS * (1 + noise)
    times[CHANGED:] *= 1 + change
    return times.tolist()


def rates(spread: str, change: float) -> tuple[float, float, float]:
    """Shares of series: change found with its second run; any change before it; one baseline raises a false alarm."""
    rng = np.random.default_rng(20200324)
    found = early = alarmed = 0
    for _ in range(SERIES):
        times = simulated(rng, spread, change)
        at = [one.run for one in find_change_points(times)]
        found += CHANGED in at
        early += any(one < CHANGED for one in at)
        alarmed += any(abs(time / times[0] - 1) > 0.01 for time in times[1:CHANGED])
    return found / SERIES, early / SERIES, alarmed / SERIES


def test_a_regression_of_4_percent_in_runs_that_spread_over_2_percent():
    found, early, alarmed = rates("range 0.02", 0.04)
    assert found >= 0.95
    assert early <= 0.05
    assert alarmed > 0.5  # one baseline takes the spread between runs for regressions


def test_runs_of_a_standard_deviation_of_1_percent():
    assert rates("sigma 0.01", 0.04)[0] >= 0.85


def test_equal_runs_hold_few_changes():
    for spread in ("range 0.02", "sigma 0.01", "sigma 0.02"):
        assert rates(spread, 0.0)[1] <= 0.05


def test_a_change_has_its_place_and_size():
    times = [1e7, 1.002e7, 0.998e7, 1.001e7, 1e7, 1.1e7, 1.102e7, 1.1e7, 1.101e7, 1.099e7, 1.0e7, 1.0e7]
    slower, faster = find_change_points(times)
    assert (slower.run, faster.run) == (5, 10)
    assert slower.fraction == pytest.approx(0.1, abs=0.002)
    assert faster.fraction == pytest.approx(-0.09, abs=0.002)


def test_one_slow_run_is_no_change():
    assert find_change_points([1e7, 1.001e7, 0.999e7, 1e7, 1.5e7, 1e7, 1.001e7]) == []


def test_unknown_times_are_passed_over():
    times = [1e7, None, 1.001e7, 0.999e7, None, 1e7, 1.2e7, None, 1.2e7]
    (change,) = find_change_points(times)
    assert change.run == 6


def test_too_few_runs():
    assert find_change_points([]) == []
    assert find_change_points([1e7, 1e7, 1e7, 2e7, 2e7]) == []
