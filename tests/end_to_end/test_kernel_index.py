"""A kernel has one index: diagnosis, steps, table, SQL, JSON, page marks and timeline name the same one."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import jitter
from jitter.report.views.step_view import StepGrid
from jitter.simulate import Fault, Job, simulate
from tests.support.json_report import differing
from tests.support.printed import json_of, output_of
from tests.support.report_lakes import view_of
from tests.support.simulated import ingest_run

STEP = 2003
STALLED = 5
STALL_NS = 1_500_000
EXTRA = [f"extra_kernel:rank={rank},step={STEP},kernel=7" for rank in range(8)]


def make_lake(folder: Path, faults: list[str], **job: Any) -> Path:
    run = simulate(
        Job(**({"ranks": 8, "steps": 5, "kernels": 60, "first_step": 2000, "seed": 7} | job)),
        [Fault.parse(fault) for fault in faults],
    )
    return ingest_run(run, folder, "nsys").root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake in which step 2003 runs one kernel more than the other steps, on all ranks."""
    stall = f"cpu_stall:rank={STALLED},step={STEP},kernel=17,ms=1.5"
    return make_lake(tmp_path_factory.mktemp("longer_step"), [*EXTRA, stall])


@pytest.fixture(scope="module")
def expected(root: Path) -> tuple[int, str]:
    """Return index and name of the kernel after the longest gap on the stalled rank, from its parquet file alone."""
    rows = pd.read_parquet(next(root.glob(f"kernels/**/step={STEP}/rank={STALLED}.parquet")), partitioning=None)
    kernels = rows[rows["kind"] != "memory"].sort_values("ordinal").reset_index(drop=True)
    assert (kernels["stream"].nunique(), kernels["launch_start_ns"].is_monotonic_increasing) >= (1, True)
    launches = kernels["launch_start_ns"].diff()
    at = int(launches.idxmax())
    assert launches[at] > 0.9 * STALL_NS
    return at, kernels["kernel_name"][at]


def run_csv(capsys: pytest.CaptureFixture[str], *arguments: object) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(output_of(capsys, *arguments)))


def test_the_stall_is_before_the_18th_kernel(expected: tuple[int, str]):
    # the simulator's kernel 17, and one more that was inserted before it
    assert expected[0] == 18


def test_diagnosis(root: Path, expected: tuple[int, str]):
    diagnosis = jitter.open(root).diagnose()
    step = next(step for step in diagnosis.steps if step.key.step == STEP)
    assert step.divergence is not None
    assert (step.divergence.kernel_index, step.divergence.kernel_name) == expected
    (culprit,) = diagnosis.culprits
    assert culprit.kernel_index is not None
    assert (culprit.kernel_index.first, culprit.kernel_index.last) == (expected[0], expected[0])


def test_table(root: Path, expected: tuple[int, str], capsys: pytest.CaptureFixture[str]):
    table = run_csv(capsys, "table", root, "--metric", "gap", "--step", STEP, "--deviation")
    worst = table.loc[table[f"rank_{STALLED}"].idxmax()]
    assert (worst["kernel_index"], worst["kernel_name"]) == expected


def test_sql(root: Path, expected: tuple[int, str]):
    lake = jitter.open(root)
    metrics = lake.sql(
        f"select kernel_index, kernel_name from metrics where step = {STEP} and rank = {STALLED} "
        "order by gap_deviation_ns desc nulls last limit 1",
        arrow=True,
    ).to_pylist()
    assert [(row["kernel_index"], row["kernel_name"]) for row in metrics] == [expected]


def test_json_report(root: Path, expected: tuple[int, str], capsys: pytest.CaptureFixture[str]):
    report = json_of(capsys, "report", root, "--json")
    began = next(step["divergence"] for step in report["steps"] if step["step"] == STEP)
    assert (began["kernel_index"], began["kernel_name"]) == expected
    assert [one["kernel_index"] for one in differing(report)] == [{"first": expected[0], "last": expected[0]}]


@pytest.mark.parametrize("form", ["--markdown", "--plain"])
def test_text_reports(root: Path, expected: tuple[int, str], form: str, capsys: pytest.CaptureFixture[str]):
    arguments = ["report", str(root)] + ([form] if form == "--markdown" else [])
    said = output_of(capsys, *arguments)
    assert f"kernel {expected[0]}" in said or f"| {expected[0]} " in said
    assert f"kernel {expected[0] - 1}" not in said
    assert f"| {expected[0] - 1} " not in said


def test_page_marks(root: Path, expected: tuple[int, str]):
    lake = jitter.open(root)
    number = [key.step for key in lake.step_keys].index(STEP)
    view = view_of(lake, number)
    gap = view.series["gap"]
    assert view.max_rank == STALLED
    assert view.divergence == int(gap.kernel_index[np.nanargmax(gap.max)]) == expected[0]
    assert StepGrid(lake, lake.diagnose().steps[number]).names[view.divergence] == expected[1]


def test_a_kernel_that_one_rank_lacks_moves_no_index(tmp_path: Path):
    """In a step where the stalled rank alone runs one kernel more, the index is that of the other ranks."""
    extra = f"extra_kernel:rank={STALLED},step={STEP},kernel=7"
    root = make_lake(tmp_path, [extra, f"cpu_stall:rank={STALLED},step={STEP},kernel=17,ms=1.5"])
    lake = jitter.open(root)
    step = next(step for step in lake.diagnose().steps if step.key.step == STEP)
    gap = lake.table("gap", step=STEP, deviation=True)
    worst = gap[f"rank_{STALLED}"].astype(float).idxmax()
    assert worst == 17
    assert step.divergence is not None
    assert (step.divergence.kernel_index, step.divergence.kernel_name) == (worst, gap["kernel_name"][worst])
