"""Cumulative excess of own time: against the simulator's truth, and against plain sums of the lake's rows."""

import json

import numpy as np
import pandas as pd
import pytest

from jitter.report.views.run_report import RunReport
from jitter.report.views.step_view import measure_self_excess
from tests.support.report_lakes import report_job
from tests.support.simulated import sampled_lake


def excess_of(lake, step):
    page = RunReport(lake)
    grid = page.grid(lake.step(step))
    return grid, measure_self_excess(page.examined, lake.step(step), grid)


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


def test_slow_transfers_are_no_ranks_own(tmp_path):
    options = "--shape expert --experts 4 --ranks 8 --steps 5 --kernels 120 --format kineto"
    lake = sampled_lake(tmp_path, f"{options} --fault slow_link:rank=6,factor=4")
    _, excess = excess_of(lake, 2)
    wait = RunReport(lake)
    met = wait.view(wait.grid(lake.step(2))).collectives
    slow = np.nansum((met.most_ns - met.usual_ns).clip(0))
    assert abs(excess[-1]).max() < 0.5 * slow


def test_a_single_rank_and_step_has_nothing_to_compare(tmp_path):
    page = RunReport(report_job(tmp_path / "lake", ranks=1, steps=1, late=(0, 0, 3, 10_000)))
    view = page.view(page.grid(page.steps[0]))
    assert not view.has_self_excess


def test_a_single_rank_is_compared_with_its_other_steps(tmp_path):
    page = RunReport(report_job(tmp_path / "lake", ranks=1, steps=5, late=(0, 2, 3, 90_000)))
    view = page.view(page.grid(page.steps[2]))
    assert view.series["self_excess"].max[12] == pytest.approx(90_000, abs=3_000)
