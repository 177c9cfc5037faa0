"""The largest page there can be: figures from plain data, as a server or a notebook would build them."""

import numpy as np
import pytest
from bokeh.resources import Resources

from jitter.analysis.diagnosis.model import ClassShares, Divergence, Split, StepAnswer
from jitter.core.step_key import StepKey
from jitter.report.figures import collective_sizes, run_figures, step_figures, step_split
from jitter.report.figures.kernel_axis import build_kernel_axis
from jitter.report.figures.step_axis import build_step_axis
from jitter.report.html import MAX_EMBEDDED_STEPS, serialize_figures
from jitter.report.views.collective_waits import CollectiveWaits
from jitter.report.views.excess_heatmap import MAX_COLUMNS, arrange_heatmap
from jitter.report.views.run_series import RunSeries
from jitter.report.views.step_view import (
    CUMULATIVE_COLUMNS,
    MAX_POINTS,
    METRICS,
    PIXEL_COLUMNS,
    SERIES,
    MetricSeries,
    StepView,
)

pytestmark = pytest.mark.slow

RANKS, STEPS, LIMIT = 960, 50, 8_000_000
POINTS = max(MAX_POINTS, 8 * PIXEL_COLUMNS + 2)  # four lines with a highest and a lowest in each column, and both ends


def noise(rng, *shape):
    return rng.normal(0, 1e5, shape)


def view_of(rng, step, kernels=20_000, met=300):

    def line(points):
        kept = np.sort(rng.choice(kernels, points, replace=False)).astype(np.int32)
        codes = rng.integers(0, 200, points).astype(np.int32)
        return MetricSeries(
            kept, codes, *noise(rng, 4, points), *rng.integers(0, RANKS, (2, points)).astype(np.float64)
        )

    series = {name: line(POINTS if name in METRICS else 8 * CUMULATIVE_COLUMNS + 2) for name in SERIES}
    collectives = CollectiveWaits(
        np.sort(rng.choice(kernels, met, replace=False)).astype(np.int32),
        ("all_reduce",) * met,
        abs(noise(rng, met)),
        *rng.integers(0, RANKS, (2, met)).astype(np.int32),
        *abs(noise(rng, 3, met)),
        rng.integers(1, 10**9, met).astype(np.float64),
    )
    return StepView(
        StepKey(None, step),
        0,
        RANKS,
        5,
        7,
        RANKS - 2,
        False,
        kernels,
        POINTS,
        series,
        collectives,
        len(collectives.kernel_index),
        0.0,
        (1, 2),
        9,
        "collective",
        0,
    )


def run_of(steps):
    began, split, by_class = Divergence(9, "k" * 200, 0), Split(1, 2, 0, 3), ClassShares(1, 2, 1, 3, -1, 0, 1, 2)
    answers = tuple(
        StepAnswer(StepKey(None, n), 10**8, 10**6, 0.01, 7, 5, began, split, "gpu_compute", by_class)
        for n in range(steps)
    )
    labels = tuple(str(n) for n in range(steps))
    return RunSeries(answers, labels, tuple(range(RANKS)))


def size_of(steps):
    rng = np.random.default_rng(7)
    run, ranks = run_of(steps), list(range(RANKS))
    layers = {name: (name, noise(rng, RANKS, steps)) for name in ("path", "transfers", "gpu", "cpu", "start")}
    hosts = {rank: f"node{rank // 8:04}" for rank in ranks}
    excess = arrange_heatmap(ranks, hosts, layers, np.ones((RANKS, steps), np.bool_), 1.0)
    views = [view_of(rng, step) for step in range(MAX_EMBEDDED_STEPS)]
    along_steps = build_step_axis(run, 0, range(MAX_EMBEDDED_STEPS))
    along_kernels = build_kernel_axis(views[0], [f"void at::native::kernel_{n}<{'float, ' * 30}>" for n in range(200)])
    text = serialize_figures(
        {
            "run": run_figures.build(along_steps, run, excess, {5}),
            "profile": step_figures.build(along_kernels, views[1:]),
            "split": step_split.build(along_steps),
            "collectives": collective_sizes.build(along_kernels),
        }
    )
    library = Resources(mode="inline", components=["bokeh"], minified=True).js_raw
    print(len(text.encode()))
    return len(text.encode()) + sum(len(part.encode()) for part in library)


def test_no_page_is_larger_than_eight_megabytes():
    assert size_of(STEPS) < LIMIT
    assert size_of(2 * MAX_COLUMNS) < LIMIT  # two steps a column
