"""The y range: spikes do not set the scale, the few points of a short step are all inside."""

import numpy as np

from jitter.report.figures.fit_range import fit_range


def columns(values):
    nothing = np.full(len(values), np.nan)
    return {"max": np.asarray(values, float), "min": nothing, "low": nothing, "high": nothing}


def test_one_spike_of_many_kernels_does_not_set_the_scale():
    values = np.tile([-10.0, 10.0], 1000)
    values[0] = 2_000_000.0
    start, end = fit_range(columns(values), zero=True)
    assert -15 < start < -10
    assert 10 < end < 15


def test_the_spike_of_a_short_step_is_inside():
    values = np.zeros(60)
    values[17] = 1_500_000.0
    start, end = fit_range(columns(values), zero=True)
    assert start < 0
    assert end > 1_500_000


def test_launch_latency_starts_at_its_own_range():
    start, end = fit_range(columns(np.linspace(50e6, 110e6, 500)), zero=False)
    assert start > 40e6
    assert end > 109e6


def test_nothing_known_is_a_range_all_the_same():
    assert fit_range(columns([np.nan]), zero=False) == (0.0, 1.0)
