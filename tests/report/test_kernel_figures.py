"""The data along the kernels: ranges, points that are kept, durations, own time above the median."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitter.core.errors import UsageError
from jitter.report.figures.kernels import fit_range
from jitter.report.notebook import Figures
from jitter.report.views import step_view as module
from jitter.report.views.run_report import RunReport
from jitter.report.views.step_view import is_known, keep_extremes
from tests.support.report_lakes import report_job, report_lake, step_rows
from tests.support.simulated import sampled_lake


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


values = st.one_of(st.just(float("nan")), st.integers(-50, 50).map(float))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 500), min_size=1, max_size=80, unique=True).map(sorted), st.integers(1, 20), st.data())
def test_every_line_keeps_its_extremes_in_every_column(x, columns, data):
    lines = [data.draw(st.lists(values, min_size=len(x), max_size=len(x))) for _ in range(2)]
    kept = keep_extremes(np.array(x, dtype=np.int32), [np.array(line) for line in lines], columns).tolist()
    assert kept == sorted(set(kept))
    assert {0, len(x) - 1} <= set(kept)
    width = (x[-1] - x[0] + 1) / columns
    parts = {}
    for at, place in enumerate(x):
        parts.setdefault(int((place - x[0]) / width + 1e-9), []).append(at)
    assert len(kept) <= len(parts) * 2 * len(lines) + 2
    for members in parts.values():
        for line in lines:
            known = [line[at] for at in members if line[at] == line[at]]
            left = [line[at] for at in members if at in kept and line[at] == line[at]]
            if known:
                assert (min(known), max(known)) == (min(left), max(left))


def test_nothing_to_thin():
    assert keep_extremes(np.empty(0, dtype=np.int32), [np.empty(0)], 10).size == 0


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return report_job(tmp_path_factory.mktemp("durations") / "lake", ranks=5, steps=3)


def test_durations_are_the_tables(lake):
    report = RunReport(lake)
    durations = report.durations(report.grid(lake.step_keys[1]))
    assert durations.kernel_index == tuple(range(14))
    for at, key in enumerate(lake.step_keys):
        table = lake.table("duration", step=key)
        assert list(durations.names) == list(table["kernel_name"])
        for row, rank in enumerate(durations.ranks):
            np.testing.assert_array_equal(durations.duration_ns[:, row, at], table[f"rank_{rank}"].astype(float))


def test_a_step_that_a_rank_lacks_is_unknown(tmp_path):
    ranks = {r: {(1, s): step_rows(r, s) for s in range(4)} for r in range(3)}
    del ranks[1][1, 2]
    lake = report_lake(tmp_path / "lake", ranks)
    report = RunReport(lake)
    durations = report.durations(report.grid(lake.step_keys[0]), [3])
    (own,) = np.isnan(durations.duration_ns)
    assert np.argwhere(own).tolist() == [[1, 2]]


def test_of_many_kernels_those_where_ranks_differ_most_are_kept(lake, monkeypatch):
    monkeypatch.setattr(module, "MAX_VALUES", 2 * 5 * 3)
    report = RunReport(lake)
    assert 5 in report.durations(report.grid(lake.step_keys[1])).kernel_index  # rank 2 is late there
    assert len(report.durations(report.grid(lake.step_keys[1])).kernel_index) == 2


def test_the_figure_of_a_kernel(lake):
    drawn = Figures(lake).kernel(5, 1)
    (source,) = drawn.select({"name": "strip"})
    table = lake.table("duration", step=1)
    own = [took for took, rank, step in zip(*(source.data[name] for name in ("took", "rank", "step")), strict=True)
           if (rank, step) == (3, "1")]  # fmt: skip
    assert own == [table["rank_3"][5]]
    with pytest.raises(UsageError, match="has no kernel 99"):
        Figures(lake).kernel(99, 1)


def excess_of(lake, step):
    page = RunReport(lake)
    grid = page.grid(lake.step(step))
    page.view(grid)
    return grid, grid.metric("self_excess")


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow")
    options = "--ranks 8 --steps 3 --kernels 400 --shape tensor_parallel --fault slow_gpu:rank=3,factor=1.1"
    return sampled_lake(folder, options), folder


def test_a_slow_gpu_climbs_to_what_it_costs(slow):
    lake, folder = slow
    truth = json.loads((folder / "traces" / "truth.json").read_text())["steps"][1]
    cost = truth["step_time_ns"] - truth["healthy_step_time_ns"]
    grid, excess = excess_of(lake, 1)
    ends = dict(zip(grid.ranks.tolist(), excess[-1], strict=True))
    assert ends[3] == pytest.approx(
        cost, rel=0.25
    )  # the healthy step also waits for the slowest of eight at each place
    assert max(abs(ns) for rank, ns in ends.items() if rank != 3) < 0.1 * ends[3]
    line = excess[:, 3]
    quarters = line[:: len(line) // 4][1:4]
    assert (np.diff([0, *quarters, line[-1]]) > 0.05 * line[-1]).all()  # steadily, and at no collective back to 0


def test_the_excess_of_a_slow_gpu_is_the_sum_of_durations_above_the_median(slow):
    lake, _ = slow
    _, excess = excess_of(lake, 1)
    rows = pd.concat(
        pd.read_parquet(lake.root / f"kernels/epoch=1/step=1/rank={rank}.parquet", partitioning=None)
        for rank in range(8)
    )
    rows = rows[rows["kind"] == "compute"]
    duration = rows.pivot_table(index="ordinal", columns="rank", values="duration_ns").sort_index()
    above = duration.sub(duration.quantile(0.5, axis=1, interpolation="lower"), axis=0).sum()
    drawn = excess[-1]
    assert drawn[3] == pytest.approx(above[3], rel=0.02)  # delays between kernels are not in the durations


def test_a_pause_of_the_host_is_excess_from_its_kernel_on(tmp_path):
    lake = report_job(tmp_path / "lake", ranks=4, late=(2, 1, 5, 400_000))
    _, excess = excess_of(lake, 1)
    late = excess[:, 2]
    assert abs(late[4]) < 2_000
    # not the kernel after the collective: it is launched at one time on all ranks, late or not
    assert late[5:13] == pytest.approx(np.full(8, 400_000), abs=2_000)
    assert not np.isnan(excess).any()


def test_host_time_that_the_launch_queue_hides_is_no_excess(tmp_path):
    options = "--ranks 4 --steps 3 --kernels 200 --fault cpu_stall:rank=1,step=1,kernel=150,ms=0.2"
    lake = sampled_lake(tmp_path, options)
    _, excess = excess_of(lake, 1)
    ahead = lake.table("launch_latency", step=1)["rank_1"].astype(float).iloc[140:150].min()
    assert ahead > 250_000
    assert np.diff(excess[140:, 1]).max() < 20_000  # nowhere from the pause on does the rank fall behind by it


def test_slow_transfers_are_no_ranks_own(slow_experts):
    _, excess = excess_of(slow_experts, 2)
    wait = RunReport(slow_experts)
    met = wait.view(wait.grid(slow_experts.step(2))).collectives
    slow = np.nansum((met.most_ns - met.usual_ns).clip(0))
    assert abs(excess[-1]).max() < 0.5 * slow


def test_a_single_rank_and_step_has_nothing_to_compare(tmp_path):
    page = RunReport(report_job(tmp_path / "lake", ranks=1, steps=1, late=(0, 0, 3, 10_000)))
    view = page.view(page.grid(page.steps[0]))
    assert not is_known(view.series["self_excess"])


def test_a_single_rank_is_compared_with_its_other_steps(tmp_path):
    page = RunReport(report_job(tmp_path / "lake", ranks=1, steps=5, late=(0, 2, 3, 90_000)))
    view = page.view(page.grid(page.steps[2]))
    assert view.series["self_excess"].max[12] == pytest.approx(90_000, abs=3_000)
