"""Change points: a change between runs is found with its second run, and equal runs hold none."""

import pytest

from jitter.history.change_points import find_change_points, find_outside
from tests.accuracy.history import SPREADS, measure_rates


def test_a_regression_of_4_percent_in_runs_that_spread_over_2_percent():
    rates = measure_rates("range ±1%")
    assert rates.found >= 0.95
    assert rates.early <= 0.05
    assert rates.alarmed > 0.5  # one baseline takes the spread between runs for regressions


def test_runs_of_a_standard_deviation_of_1_percent():
    rates = measure_rates("sd 1%")
    assert rates.found >= 0.8
    assert rates.early <= 0.05


@pytest.mark.parametrize("spread", SPREADS)
def test_equal_runs_hold_few_changes(spread):
    assert measure_rates(spread).false <= 0.05


def test_a_change_has_its_place_and_size():
    times = [1e7, 1.002e7, 0.998e7, 1.001e7, 1e7, 1.1e7, 1.102e7, 1.1e7, 1.101e7, 1.099e7, 1.0e7, 1.0e7]
    slower, faster = find_change_points(times)
    assert (slower.run, faster.run) == (5, 10)
    assert slower.fraction == pytest.approx(0.1, abs=0.002)
    assert faster.fraction == pytest.approx(-0.09, abs=0.002)


def test_one_slow_run_is_no_change():
    assert find_change_points([1e7, 1.001e7, 0.999e7, 1e7, 1.5e7, 1e7, 1.001e7]) == []


@pytest.mark.parametrize(
    ("times", "percent"),
    [
        ([3.89e6, 3.89e6, 3.90e6, 3.90e6, 4.58e6], 17.6),
        ([3.89e6, 3.89e6, None, 3.90e6, 3.90e6, 3.2e6, None], -17.8),
        ([3.89e6, 3.89e6, 3.90e6, 3.90e6, 3.91e6], None),
        ([3.89e6, 3.90e6, 3.90e6, 4.58e6], None),  # three runs do not tell their spread
        ([3.8e6, 4.3e6, 3.6e6, 4.1e6, 4.58e6], None),
        ([3.89e6, 3.89e6, 3.90e6, 3.90e6, 4.58e6, 4.58e6], None),  # a change, with its second run
        ([], None),
    ],
)
def test_the_last_run_outside_the_spread(times, percent):
    found = find_outside(times)
    assert (found is None) == (percent is None)
    if found is not None:
        assert 100 * found.fraction == pytest.approx(percent, abs=0.05)
        assert times[found.run] == found.after_ns


def test_unknown_times_are_passed_over():
    times = [1e7, None, 1.001e7, 0.999e7, None, 1e7, 1.2e7, None, 1.2e7]
    (change,) = find_change_points(times)
    assert change.run == 6


def test_too_few_runs():
    assert find_change_points([]) == []
    assert find_change_points([1e7, 1e7, 1e7, 2e7, 2e7]) == []
