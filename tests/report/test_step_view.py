"""Figures draw the values of the tables: selection, minimum and maximum, nothing else."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from jitter.report.views import step_view as module
from jitter.report.views.step_grid import StepGrid
from jitter.report.views.step_view import MIN_SCALE_FRACTION, build_step_view, own_values
from tests.support.report_lakes import report_job, report_lake, step_rows, view_of


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return report_job(tmp_path_factory.mktemp("view") / "lake", ranks=5)


@pytest.mark.parametrize("metric", ["duration", "gap", "ttke", "launch_latency"])
def test_lines_and_band_are_the_tables(lake, metric):
    view = view_of(lake)
    table = lake.table(metric, step=1, deviation=metric != "launch_latency").astype(
        {f"rank_{r}": "float64" for r in range(5)}
    )
    if metric == "duration":
        table.loc[view.collectives.kernel_index, [f"rank_{r}" for r in range(5)]] = np.nan  # includes waiting
    assert view.max_rank == 2
    series = view.series[metric]
    others = table[[f"rank_{r}" for r in range(5) if r not in (view.max_rank, view.min_rank)]]
    np.testing.assert_array_equal(series.kernel_index, table.index)
    assert view.min_rank == lake.diagnose().steps[1].min_rank != 2
    np.testing.assert_allclose(series.max, table[f"rank_{view.max_rank}"], atol=1e-6)
    np.testing.assert_allclose(series.min, table[f"rank_{view.min_rank}"], atol=1e-6)
    np.testing.assert_allclose(series.low, others.min(axis=1), atol=1e-6)
    np.testing.assert_allclose(series.high, others.max(axis=1), atol=1e-6)
    for at, (low, high) in enumerate(zip(series.low_rank, series.high_rank, strict=True)):
        if np.isnan(low):
            assert others.iloc[at].isna().all()
            continue
        assert others.iloc[at][f"rank_{low:.0f}"] == others.min(axis=1).iloc[at]
        assert others.iloc[at][f"rank_{high:.0f}"] == others.max(axis=1).iloc[at]


def test_the_fault_is_in_the_gap_of_its_kernel(lake):
    gap = view_of(lake).series["gap"]
    assert int(np.nanargmax(gap.max)) == 5
    assert gap.max[5] == pytest.approx(400_000 * 4 / 5, abs=50)  # against a mean that it is part of


def test_names_travel_as_codes(lake):
    view = view_of(lake)
    assert [view.names[code] for code in view.series["ttke"].code] == list(lake.table("ttke", step=1)["kernel_name"])


def test_collectives_are_marked(lake):
    assert view_of(lake).collectives.kernel_index.tolist() == [12]


def test_a_kernel_that_one_rank_lacks_is_unknown_and_not_nought(tmp_path):
    whole = step_rows(0, 0)
    missing = [row for row in step_rows(2, 0) if "kernel_4" not in row["kernel_name"]]
    lake = report_lake(
        tmp_path / "lake", {0: {(1, 0): whole}, 1: {(1, 0): step_rows(1, 0, late={2: 90_000})}, 2: {(1, 0): missing}}
    )
    view = view_of(lake, 0)
    shown = view.series["duration"]
    table = lake.table("duration", step=0, deviation=True)
    assert pd.isna(table["rank_2"][4])
    column = {view.max_rank: shown.max, view.min_rank: shown.min}.get(2, shown.low)
    assert np.isnan(column[4])
    assert not np.isnan(column[3])


def test_a_rank_of_the_band_that_lost_more_than_the_max_rank_is_named(tmp_path):
    """Of several slow ranks the critical path passes only one."""
    late = {(2, 1): {5: 400_000}, (3, 1): {5: 300_000}}
    ranks = {r: {(1, s): step_rows(r, s, late=late.get((r, s))) for s in range(3)} for r in range(5)}
    view = view_of(report_lake(tmp_path / "lake", ranks))
    assert (view.max_rank, view.top_of_others) == (2, None)
    own = view.series["self_excess"]
    masked = replace(view, series={**view.series, "self_excess": replace(own, max=own.max / 2)})
    assert masked.top_of_others == 3


def test_two_ranks_leave_no_band(tmp_path):
    view = view_of(report_job(tmp_path / "lake", ranks=2, late=(1, 1, 5, 400_000)))
    assert view.others == 0
    assert np.isnan(view.series["gap"].low).all()


def test_a_single_rank_shows_its_own_values(tmp_path):
    lake = report_job(tmp_path / "lake", ranks=1, steps=1, late=(0, 0, 3, 10_000))
    view = view_of(lake, 0)
    assert (view.max_rank, view.min_rank, view.values) == (0, None, True)
    table = lake.table("duration", step=0).astype({"rank_0": "float64"})
    np.testing.assert_array_equal(view.series["duration"].max, table["rank_0"])


def test_long_steps_are_thinned_without_losing_a_spike(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_POINTS", 100)
    monkeypatch.setattr(module, "PIXEL_COLUMNS", 10)
    lake = report_lake(
        tmp_path / "lake",
        {r: {(1, 0): step_rows(r, 0, kernels=400, late={123: 70_000} if r == 1 else None)} for r in range(3)},
    )
    view = view_of(lake, 0)
    gap = view.series["gap"]
    assert view.kernels == 402
    assert gap.kernel_index.size <= 10 * 8 + 2
    assert view.points < 402
    table = lake.table("gap", step=0, deviation=True)
    assert 123 in gap.kernel_index
    assert np.nanmax(gap.max) == pytest.approx(float(table["rank_1"].max()))


def test_the_last_and_the_first_rank_of_every_kernel(lake):
    examined, step = lake.analyze(), lake.diagnose().steps[1]
    grid = StepGrid(lake, step)
    view = build_step_view(grid, examined, step, examined.arrivals[1].waited_ns)
    values, runs = grid.metric("self_excess"), view.runs
    for row, pick in ((0, np.argmax), (1, np.argmin)):
        own = runs.row == row
        assert runs.left[own][0] == -0.5
        assert runs.right[own][-1] == grid.kernel_index[-1] + 0.5
        np.testing.assert_array_equal(runs.left[own][1:], runs.right[own][:-1])  # no kernel without a rank
        for at, index in enumerate(grid.kernel_index):
            (piece,) = np.flatnonzero(own & (runs.left < index) & (index < runs.right))
            assert runs.rank[piece] == grid.ranks[pick(values[at])]
            apart = abs(values[at][pick(values[at])] - np.median(values[at]))
            assert runs.is_clear[piece] == (apart >= MIN_SCALE_FRACTION * step.step_time_ns)


def test_many_pieces_of_the_band_are_thinned_to_the_clearest(lake, monkeypatch):
    whole = view_of(lake).runs
    monkeypatch.setattr(module, "MAX_RUNS", 1)
    few = view_of(lake).runs
    assert (few.row == 0).sum() == 1 < (whole.row == 0).sum()
    assert few.rank[few.row == 0].tolist() == [2]


def test_the_map_of_ranks_by_kernels_is_gap_and_duration_without_waiting(lake):
    view = view_of(lake)
    gap, duration = (lake.table(metric, step=1, deviation=True) for metric in ("gap", "duration"))
    ranks = [f"rank_{r}" for r in range(5)]
    added = gap[ranks].astype(float).to_numpy() + duration[ranks].astype(float).to_numpy()
    (met,) = view.collectives.kernel_index
    added[met] = gap[ranks].astype(float).to_numpy()[met]
    np.testing.assert_allclose(view.map.added_ns, added.T, rtol=1e-5, atol=1e-3)
    assert view.map.ranks == ((0,), (1,), (2,), (3,), (4,))
    assert view.map.kernels == tuple((at, at) for at in range(len(added)))


def test_a_cell_of_a_large_map_is_its_highest_value(lake, monkeypatch):
    whole = view_of(lake).map.added_ns
    monkeypatch.setattr(module, "MAX_MAP_ROWS", 2)
    monkeypatch.setattr(module, "MAX_MAP_CELLS", 8)
    small = view_of(lake).map
    assert small.ranks == ((0, 1, 2), (3, 4))
    for row, ranks in enumerate(small.ranks):
        for column, (first, last) in enumerate(small.kernels):
            assert small.added_ns[row, column] == whole[list(ranks), first : last + 1].max()


def test_gaps_of_kernels_that_wait_for_a_collective_of_another_stream_are_left_out(sample_lake):
    """The host of the sample waits for the GPU before its last copies: those gaps are the wait for the late rank."""
    lake = sample_lake
    examined = lake.analyze()
    number = next(at for at, step in enumerate(lake.diagnose().steps) if step.key.step == 2003)
    step = lake.diagnose().steps[number]
    grid = StepGrid(lake, step)
    view = build_step_view(grid, examined, step, examined.arrivals[number].waited_ns)
    table = lake.table("gap", step=2003, deviation=True)["rank_5"].astype(float)
    assert np.isnan(view.series["gap"].max[58])
    assert table[58] < -900_000
    assert np.nanargmax(np.abs(view.series["gap"].max)) == 17
    assert own_values(grid, "gap")[17, 5] == table[17]
