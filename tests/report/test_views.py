"""The data that the figures of a step and of a run draw."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitter
from jitter.analysis.execution.self_times import CPU
from jitter.analysis.metrics import step_metrics
from jitter.api import lake as lake_module
from jitter.lake import step_reader
from jitter.report.notebook import Figures
from jitter.report.text.step_text import describe_step
from jitter.report.views import excess_heatmap, run_report, step_view
from jitter.report.views.excess_heatmap import LOSS_LAYER, arrange_heatmap, build_excess_heatmap, self_time_layer
from jitter.report.views.run_report import RunReport
from jitter.report.views.step_view import MIN_SCALE_FRACTION, StepGrid, build_step_view, own_values
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


def test_a_large_step_is_read_some_ranks_after_others_and_drawn_the_same(lake, monkeypatch):
    def contents():
        report = RunReport(jitter.open(lake.root))
        [(grid, section, tables)] = report.sections([report.answer(report.steps[1]).key])
        return [grid.metric(name) for name in step_view.METRICS], section, tables

    whole, whole_section, whole_tables = contents()
    reads = []
    read_step = step_reader.read_step
    monkeypatch.setattr(step_reader, "read_step", lambda *given: reads.append(given[4]) or read_step(*given))
    monkeypatch.setattr(run_report, "_MOST_ROWS_KEPT", 0)
    monkeypatch.setattr(lake_module, "ROWS_PER_PIECE", 1)
    monkeypatch.setattr(step_metrics, "ROWS_PER_PIECE", 1)
    parts, section, tables = contents()
    assert [0] in reads
    assert [4] in reads
    for part, values in zip(parts, whole, strict=True):
        np.testing.assert_array_equal(part, values)
    assert tables == whole_tables
    assert repr(section) == repr(whole_section)


def test_the_fault_is_in_the_gap_of_its_kernel(lake):
    gap = view_of(lake).series["gap"]
    assert int(np.nanargmax(gap.max)) == 5
    assert gap.max[5] == pytest.approx(400_000 * 4 / 5, abs=50)  # against a mean that it is part of


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
    monkeypatch.setattr(step_view, "MAX_POINTS", 100)
    monkeypatch.setattr(step_view, "PIXEL_COLUMNS", 10)
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
    view = build_step_view(grid, examined, step)
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
    monkeypatch.setattr(step_view, "MAX_RUNS", 1)
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
    monkeypatch.setattr(step_view, "MAX_MAP_ROWS", 2)
    monkeypatch.setattr(step_view, "MAX_MAP_CELLS", 8)
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
    view = build_step_view(grid, examined, step)
    table = lake.table("gap", step=2003, deviation=True)["rank_5"].astype(float)
    assert np.isnan(view.series["gap"].max[58])
    assert table[58] < -900_000
    assert np.nanargmax(np.abs(view.series["gap"].max)) == 17
    assert own_values(grid, "gap")[17, 5] == table[17]


def test_all_wait_for_the_late_one(tmp_path):
    lake = report_job(tmp_path / "lake")
    rows = [row for row in lake.metrics(1).rows.to_pylist() if row["kind"] == "collective"]
    took = {row["rank"]: row["duration_ns"] for row in rows}
    met = view_of(lake).collectives
    assert met.kernel_index.tolist() == [12]
    assert met.operation == ("all_reduce",)
    assert met.last.tolist() == [2] == [min(took, key=took.get)]
    assert met.waiter.tolist() == [max(took, key=took.get)]
    assert met.waited_ns.tolist() == [max(took.values()) - min(took.values())]
    assert met.least_ns.tolist() == met.most_ns.tolist() == [took[2]]
    transfers = sorted(
        min(row["duration_ns"] for row in lake.metrics(step).rows.to_pylist() if row["kind"] == "collective")
        for step in range(3)
    )
    assert met.usual_ns.tolist() == [transfers[1]]
    assert not met.sized


def test_groups_wait_by_themselves(tmp_path):
    ranks = {
        r: {(1, s): step_rows(r, s, late={5: 400_000} if (r, s) == (2, 1) else None) for s in range(3)}
        for r in range(4)
    }
    for rank, steps in ranks.items():
        for rows in steps.values():
            for row in rows:
                if row["kind"] == "collective":
                    row |= {
                        "group_ranks": [0, 1] if rank < 2 else [2, 3],
                        "group_size": 2,
                        "message_bytes": 1000 + rank,
                    }
    lake = report_lake(tmp_path / "lake", ranks)
    took = {r["rank"]: r["duration_ns"] for r in lake.metrics(1).rows.to_pylist() if r["kind"] == "collective"}
    met = view_of(lake).collectives
    assert met.kernel_index.tolist() == [12]
    assert (met.waiter.tolist(), met.last.tolist()) == ([3], [2])
    assert met.waited_ns.tolist() == [took[3] - took[2]]
    least = [min(took[0], took[1]), min(took[2], took[3])]
    assert (met.least_ns.tolist(), met.most_ns.tolist()) == ([min(least)], [max(least)])
    slow = (0, 1) if least[0] > least[1] else (2, 3)
    assert met.bytes.tolist() == [1000 + min(slow, key=lambda rank: took[rank])]
    assert met.sized


def words_of(lake, view, number=1):
    return describe_step(lake.diagnose().steps[number], view, lake.hosts, 1).waits


def test_waits_that_count_are_lines_and_short_ones_are_added_up(tmp_path):
    view = view_of(report_job(tmp_path / "lake", late=(2, 1, 5, 4_000_000)))
    assert view.waits == (0,)
    lake = report_job(tmp_path / "quiet", late=(2, 1, 5, 400_000))
    quiet = view_of(lake)
    assert quiet.collectives.waited_ns[0] < 0.01 * 50_000_000
    assert quiet.waits == ()
    said = "1 collective; no rank waited long in any of them"
    assert words_of(lake, quiet) == f"{said}; all waits of one rank together: up to 400 µs (0.80% of the step)."
    assert words_of(lake, replace(quiet, waited_ns=0.0)) == f"{said}."


def test_no_collective(tmp_path):
    lake = report_lake(tmp_path / "lake", {r: {(None, 0): step_rows(r, 0, collective=False)} for r in range(3)})
    view = view_of(lake, 0)
    assert view.collectives.kernel_index.size == 0
    assert view.collectives.waited_ns.shape == (0,)
    assert words_of(lake, view, 0) == "This step has no collectives."
    # what was recorded is not denied
    unplaced = words_of(lake, replace(view, recorded_collectives=1), 0)
    assert unplaced == "1 collective without a kernel index; waiting there is unknown."


@pytest.mark.parametrize("extra", [0, 3])
def test_kernel_indices_hold_where_a_rank_runs_more(tmp_path, extra):
    ranks = {r: {(1, s): step_rows(r, s) for s in range(2)} for r in range(4)}
    for rows in ranks[0].values():
        for n in range(extra):
            start = rows[2]["end_ns"] + 100 + 50 * n
            more = rows[2] | {"kernel_name": f"odd_{n}", "start_ns": start, "end_ns": start + 10}
            rows.insert(
                3 + n, more | {"launch_start_ns": rows[2]["launch_start_ns"] + 1 + n, "launch_end_ns": start - 50}
            )
    lake = report_lake(tmp_path / "lake", ranks)
    met = view_of(lake, 1).collectives
    rows = [r for r in lake.metrics(1).rows.to_pylist() if r["kind"] == "collective"]
    assert met.kernel_index.tolist() == [12] == sorted({r["kernel_index"] for r in rows})
    took = {r["rank"]: r["duration_ns"] for r in rows}
    np.testing.assert_array_equal(met.waited_ns, [max(took.values()) - min(took.values())])


values = st.one_of(st.just(float("nan")), st.integers(-9, 9).map(float))


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 11),
    st.lists(st.sampled_from(["a", "b", None]), min_size=9, max_size=9),
    st.lists(values, min_size=99, max_size=99),
)
def test_every_cell_is_the_highest_of_its_ranks_and_steps(ranks, steps, hosts, drawn_values):
    ns = np.array(drawn_values[: ranks * steps]).reshape(ranks, steps)
    there = ~np.isnan(ns)
    names = [3 * rank + 1 for rank in range(ranks)]
    host_of = dict(zip(names, hosts, strict=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(excess_heatmap, "MAX_ROWS", 4)
        patch.setattr(excess_heatmap, "MAX_COLUMNS", 3)
        drawn = arrange_heatmap(names, host_of, {"x": ("x", ns)}, there, 2.0)
    assert sorted(rank for row in drawn.rows for rank in row) == names
    assert len(drawn.rows) <= 4
    assert len(drawn.columns) <= 3
    assert [at for first, last in drawn.columns for at in range(first, last + 1)] == list(range(steps))
    order = [host for at, host in enumerate(drawn.hosts) if at == 0 or host != drawn.hosts[at - 1]]
    assert len(order) == len(set(order))  # a host's rows lie together
    (layer,) = drawn.layers
    holes = {(row, column) for row, first, last in drawn.holes for column in range(first, last + 1)}
    for row, own in enumerate(drawn.rows):
        assert len({host_of[rank] for rank in own}) == 1
        for column, (first, last) in enumerate(drawn.columns):
            block = {(rank, at): ns[names.index(rank), at] for rank in own for at in range(first, last + 1)}
            known = {where: value for where, value in block.items() if value == value}
            assert ((row, column) in holes) is (not known)
            if known:
                assert layer.excess_ns[row, column] == max(known.values())
                assert known[layer.rank[row, column], layer.step[row, column]] == max(known.values())
            else:
                assert np.isnan(layer.excess_ns[row, column])
    positive = [value for value in ns.ravel().tolist() if value > 0]
    assert layer.low_ns == pytest.approx(0.006)
    assert layer.high_ns == max([0.04, *positive])


def test_cells_without_a_share_have_their_own_excess(tmp_path):
    drawn = build_excess_heatmap(lake := report_job(tmp_path / "lake"), lake.analyze())
    assert drawn.layers[0].shows_loss
    off = np.isnan(drawn.layers[0].excess_ns)
    assert off.any()
    assert not np.isnan(drawn.own.excess_ns[off]).any()
    parts = lake.analyze().measured.deviations[0].total_ns
    np.testing.assert_allclose(drawn.own.excess_ns, np.nanmax(parts, axis=0).T, rtol=1e-6)


def test_a_cell_is_what_the_step_lost_to_the_rank(tmp_path):
    lake = report_job(tmp_path / "lake")
    examined = lake.analyze()
    drawn = build_excess_heatmap(lake, examined)
    assert drawn.layers[0].name == LOSS_LAYER
    assert drawn.rows == ((0,), (1,), (2,), (3,))
    assert drawn.hosts == ("node0", "node0", "node1", "node1")
    rows = lake.losses()
    rows = rows[rows["class"].isin(["start", "launch", "after", "gpu"])]
    for number, key in enumerate(examined.keys):
        for row, (rank,) in enumerate(drawn.rows):
            own = rows[(rows["step"] == key.step) & (rows["rank"] == rank)]["loss_ns"]
            cell = drawn.layers[0].excess_ns[row, number]
            if np.isfinite(examined.measured.step_ns[number]):
                shown = own.sum() >= 0.003 * examined.measured.usual_step_ns
                assert cell == pytest.approx(own.sum(), rel=1e-6) if shown else np.isnan(cell)
    most = np.nanargmax(drawn.layers[0].excess_ns)
    assert divmod(most, len(drawn.columns)) == (2, 1)
    # the others differ by 40 ns a kernel at most
    assert drawn.layers[0].excess_ns.flat[most] == pytest.approx(400_000, abs=1500)


def test_own_time_is_that_of_the_deviations(tmp_path):
    lake = report_job(tmp_path / "lake")
    examined = lake.analyze()
    drawn = build_excess_heatmap(lake, examined, self_time_layer(CPU))
    assert drawn.layers[0].name == self_time_layer(CPU)
    (team,) = examined.measured.deviations
    np.testing.assert_allclose(drawn.layers[0].excess_ns, team.total_ns[CPU].T, rtol=1e-6)


def test_a_missing_step_is_a_hole(tmp_path):
    ranks = {r: {(1, s): step_rows(r, s) for s in range(4)} for r in range(3)}
    del ranks[1][1, 2], ranks[1][1, 3]
    lake = report_lake(tmp_path / "lake", ranks)
    drawn = build_excess_heatmap(lake, lake.analyze())
    assert list(drawn.holes) == [(1, 2, 3)]


def test_one_rank_has_no_map(tmp_path):
    lake = report_job(tmp_path / "lake", ranks=1, steps=2, late=(0, 0, 3, 10_000))
    assert build_excess_heatmap(lake, lake.analyze()) is None


@pytest.mark.parametrize(("per_host", "lines"), [(2, 3), (1, 0)])
def test_lines_between_hosts_only_where_hosts_have_several_rows(tmp_path, per_host, lines):
    ranks = {rank: {(1, step): step_rows(rank, step) for step in range(2)} for rank in range(8)}
    lake = report_lake(tmp_path / "lake", ranks, host=lambda rank: f"node{rank // per_host}")
    (source,) = Figures(lake).run().select({"name": "host-borders"})
    assert len(source.data["y"]) == lines
