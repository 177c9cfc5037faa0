"""The largest page there can be: figures from plain data, as a server or a notebook would build them."""

import json

import numpy as np
import pytest

from jitter.analysis.diagnosis.model import ClassShares, Divergence, StepAnswer
from jitter.core.step_key import StepKey
from jitter.report.figures.collective_sizes import draw_collective_sizes
from jitter.report.figures.frame import stack_figures
from jitter.report.figures.heatmap import draw_heatmap
from jitter.report.figures.kernel_maps import draw_kernel_map, map_columns
from jitter.report.figures.kernels import build_kernel_axis, draw_divergence, draw_other_series, view_columns
from jitter.report.figures.steps import build_step_axis, draw_loss_by_class, draw_step_times
from jitter.report.html import MAX_EMBEDDED_STEPS
from jitter.report.page import _library, encode, serialize_figures
from jitter.report.views.collective_waits import CollectiveWaits
from jitter.report.views.excess_heatmap import MAX_COLUMNS, arrange_heatmap
from jitter.report.views.kernel_durations import MAX_VALUES
from jitter.report.views.run_report import RunSeries
from jitter.report.views.step_view import (
    CUMULATIVE_COLUMNS,
    MAX_MAP_CELLS,
    MAX_MAP_ROWS,
    MAX_POINTS,
    MAX_RUNS,
    PIXEL_COLUMNS,
    SELF_EXCESS,
    SERIES,
    KernelMap,
    MetricSeries,
    RankRuns,
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

    series = {name: line(8 * CUMULATIVE_COLUMNS + 2 if name == SELF_EXCESS else POINTS) for name in SERIES}
    left = np.arange(2.0 * MAX_RUNS)
    runs = RankRuns(
        (left >= MAX_RUNS).astype(np.int32),
        left,
        left + 1,
        rng.integers(0, RANKS, left.size).astype(np.int32),
        left > 9,
    )
    wide = MAX_MAP_CELLS // MAX_MAP_ROWS
    rows = tuple(tuple(range(at, at + 10)) for at in range(0, RANKS, 10))
    columns = tuple((at, at + kernels // wide - 1) for at in range(0, kernels, kernels // wide))[:wide]
    cells = KernelMap(rows, columns, noise(rng, len(rows), len(columns)).astype(np.float32))
    collectives = CollectiveWaits(
        np.sort(rng.choice(kernels, met, replace=False)).astype(np.int32),
        ("all_reduce",) * met,
        abs(noise(rng, met)),
        rng.integers(0, RANKS, met).astype(np.int32),
        abs(noise(rng, met)),
        rng.integers(0, RANKS, met).astype(np.int32),
        *abs(noise(rng, 4, met)),
        rng.integers(1, 10**9, met).astype(np.float64),
    )
    return StepView(
        key=StepKey(None, step),
        cohort=0,
        ranks=RANKS,
        max_rank=5,
        min_rank=7,
        others=RANKS - 2,
        values=False,
        kernels=kernels,
        points=POINTS,
        scale_ns=1e6,
        is_calm=False,
        names=tuple(f"void at::native::kernel_{n}<{'float, ' * 30}>" for n in range(200)),
        series=series,
        runs=runs,
        map=cells,
        collectives=collectives,
        recorded_collectives=len(collectives.kernel_index),
        waited_ns=0.0,
        waits=(1, 2),
        divergence=9,
        alignment="collective",
        negative_latencies=0,
    )


def run_of(steps):
    began, by_class = Divergence(9, "k" * 200, 0), ClassShares(1, 2, 1, 3, -1, 0, 1, 2)
    answers = tuple(
        StepAnswer(StepKey(None, n), 10**8, 10**6, 0.01, 7, 5, began, 6, "gpu_compute", by_class) for n in range(steps)
    )
    labels = tuple(str(n) for n in range(steps))
    return RunSeries(answers, labels, tuple(range(RANKS)), is_calm=False)


def size_of(steps):
    rng = np.random.default_rng(7)
    run, ranks = run_of(steps), list(range(RANKS))
    layers = {name: (name, noise(rng, RANKS, steps)) for name in ("path", "transfers", "gpu", "cpu", "start")}
    hosts = {rank: f"node{rank // 8:04}" for rank in ranks}
    excess = arrange_heatmap(ranks, hosts, layers, np.ones((RANKS, steps), np.bool_), 1.0)
    views = [view_of(rng, step) for step in range(MAX_EMBEDDED_STEPS)]
    steps, kernels = build_step_axis(run, 0, range(MAX_EMBEDDED_STEPS)), build_kernel_axis(views[0])
    groups = {
        "run": [draw_heatmap(steps, excess, {5}), draw_step_times(steps)],
        "kernels": draw_divergence(kernels, views),
        "series": draw_other_series(kernels, views),
        "split": [draw_loss_by_class(steps)],
        "map": [draw_kernel_map(kernels, views[0].map)],
        "sizes": [draw_collective_sizes(kernels)],
    }
    text = serialize_figures({name: stack_figures(drawn, has_toolbar=False) for name, drawn in groups.items()})
    text += json.dumps([encode(view_columns(view) | map_columns(view.map)) for view in views])
    text += json.dumps(encode(np.zeros(MAX_VALUES, np.float32)))
    print(len(text))
    return len(text.encode()) + len(_library())


def test_no_page_is_larger_than_eight_megabytes():
    assert size_of(STEPS) < LIMIT
    assert size_of(2 * MAX_COLUMNS) < LIMIT  # two steps a column
