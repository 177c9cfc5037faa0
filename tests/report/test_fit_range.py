"""The y range: all that is drawn is inside, 0 too, and no scale is finer than that of the step."""

import numpy as np
import pytest

from jitter.report.figures.kernels import fit_range


def test_a_spike_is_inside_and_noise_is_flat():
    values = np.tile([-10.0, 10.0], 1000)
    start, end = fit_range([values], 100_000.0)
    assert end - start == pytest.approx(100_020 * 1.0, rel=0.13)
    assert start == pytest.approx(-end)
    values[0] = 2_000_000.0
    start, end = fit_range([values], 100_000.0)
    assert -200_000 < start < -10
    assert 2_000_000 < end < 2_300_000


def test_values_without_a_sign_start_at_zero():
    assert fit_range([np.linspace(50e6, 110e6, 500)], 1e6, has_floor=True) == (0.0, pytest.approx(116.6e6))


def test_nothing_known_is_the_finest_scale():
    start, end = fit_range([np.array([np.nan])], 100.0)
    assert (start, end) == (-56.0, 56.0)
