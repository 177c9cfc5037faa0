"""Step markers in whole exports: what lies outside, what is cut, on which thread, without an end, begun anew."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import jitter
from tests.support.databases import run_sql
from tests.support.lake_content import kernel_files, records


def _steps(lake: Path) -> list[tuple[int | None, int, int]]:
    (record,) = records(lake)
    return [(step["epoch"], step["step"], step["kernels"]) for step in record["steps"]]


@pytest.mark.parametrize("marker", ["talk", "profiler", "iteration"])
def test_every_style(simulated_traces: Callable[..., Path], tmp_path: Path, marker: str):
    folder = simulated_traces({"ranks": 1, "marker": marker, "first_step": 7})
    jitter.ingest([folder], tmp_path / "lake")
    assert _steps(tmp_path / "lake") == [(1 if marker == "talk" else None, step, 16) for step in (7, 8)]


def test_a_step_without_marker_is_outside_and_counted(own_traces: Path, tmp_path: Path):
    path = run_sql(own_traces / "rank0.sqlite", "DELETE FROM NVTX_EVENTS WHERE text LIKE 'epoch1_step2001%'")
    whole = jitter.ingest([own_traces / "rank1.sqlite"], tmp_path / "whole").added[0]
    record = jitter.ingest([path], tmp_path / "lake").added[0]
    assert [step.step for step in record.steps] == [2000, 2002]
    assert record.outside_steps == whole.outside_steps + 16
    assert f"{record.outside_steps} kernels lie outside every step" in record.problems


def test_lost_kernels_cut_their_step(own_traces: Path, tmp_path: Path):
    path = run_sql(
        own_traces / "rank0.sqlite",
        "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId IN (SELECT correlationId FROM "
        "CUPTI_ACTIVITY_KIND_RUNTIME WHERE start > (SELECT start FROM NVTX_EVENTS WHERE text LIKE '%step2001-%') "
        "AND start < (SELECT \"end\" FROM NVTX_EVENTS WHERE text LIKE '%step2001-%') ORDER BY start DESC LIMIT 5)",
    )
    record = jitter.ingest([path], tmp_path / "lake").added[0]
    assert [step.cut for step in record.steps] == [False, True, False]
    lost = record.steps[1].launches_without_kernel
    assert 0 < lost <= 5
    assert record.steps[1].kernels == 16 - lost
    assert "1 step is cut (epoch 1, step 2001)" in record.problems


def test_an_open_last_range_is_cut_and_holds_the_rest(own_traces: Path, tmp_path: Path):
    path = run_sql(own_traces / "rank0.sqlite", "UPDATE NVTX_EVENTS SET \"end\" = NULL WHERE text LIKE '%step2002-%'")
    record = jitter.ingest([path], tmp_path / "lake").added[0]
    assert [step.end_ns is None for step in record.steps] == [False, False, True]
    assert [step.cut for step in record.steps] == [False, False, True]
    assert [step.kernels for step in record.steps] == [16, 16, 18]  # two more were launched after its real end
    assert record.outside_steps == 6


def test_numbers_begun_anew(own_traces: Path, tmp_path: Path):
    anew = "UPDATE NVTX_EVENTS SET text = replace(replace(text, 'epoch1_', ''), 'step2002', 'step2000')"
    path = run_sql(own_traces / "rank0.sqlite", anew)
    record = jitter.ingest([path], tmp_path / "lake").added[0]
    assert [(step.epoch, step.step) for step in record.steps] == [(None, 2000), (None, 2001)]
    assert any(problem.startswith("step 2000 is marked 2 times without an epoch") for problem in record.problems)
    assert record.outside_steps == 8 + 16
    run_sql(
        path,
        "UPDATE NVTX_EVENTS SET text = 'epoch2_' || text WHERE start = (SELECT max(start) FROM NVTX_EVENTS "
        "WHERE text LIKE 'step2000%')",
    )
    jitter.ingest([path], tmp_path / "two")
    assert {Path(p).parent.as_posix() for p in kernel_files(tmp_path / "two")} == {
        "kernels/step=2000",
        "kernels/step=2001",
        "kernels/epoch=2/step=2000",
    }


def test_ranges_within_a_step_are_no_steps(own_traces: Path, tmp_path: Path):
    """A library's own `iteration 0` on the same thread and, more of them than steps, on another one within."""
    within = (
        'INSERT INTO NVTX_EVENTS (start, "end", eventType, text, globalTid, domainId) SELECT start + {0}, '
        "start + {0} + 500, 59, 'iteration {1}', globalTid + {2}, 0 FROM NVTX_EVENTS WHERE text LIKE 'epoch%'"
    )
    path = run_sql(
        own_traces / "rank0.sqlite", within.format(1000, 0, 0), within.format(3000, 1, 0), within.format(9000, 2, 5)
    )
    record = jitter.ingest([path], tmp_path / "lake").added[0]
    assert [(step.epoch, step.step, step.kernels) for step in record.steps] == [(1, n, 16) for n in (2000, 2001, 2002)]


def test_pieces_of_a_step_are_one(own_traces: Path, tmp_path: Path):
    """Forward and backward each as `step N`: what is launched between them belongs to the step as well."""
    path = run_sql(
        own_traces / "rank0.sqlite",
        "CREATE TEMP TABLE whole AS SELECT * FROM NVTX_EVENTS WHERE text LIKE 'epoch%'",
        "DELETE FROM NVTX_EVENTS",
        "INSERT INTO NVTX_EVENTS SELECT * FROM whole",
        'UPDATE NVTX_EVENTS SET "end" = start + 20000',
        'UPDATE whole SET start = "end" - 20000',
        "INSERT INTO NVTX_EVENTS SELECT * FROM whole",
    )
    jitter.ingest([path], tmp_path / "lake")
    jitter.ingest([own_traces / "rank1.sqlite"], tmp_path / "whole")
    assert _steps(tmp_path / "lake") == _steps(tmp_path / "whole")


def test_autograds_thread_launches_into_the_step(own_traces: Path, tmp_path: Path):
    jitter.ingest([own_traces / "rank0.sqlite"], tmp_path / "lake")
    for path in kernel_files(tmp_path / "lake"):
        rows = pq.read_table(tmp_path / "lake" / path, partitioning=None)
        assert len(set(rows["launch_thread"].to_pylist())) == 2


def test_without_markers_no_kernel_is_lost(simulated_traces: Callable[..., Path], tmp_path: Path):
    folder = simulated_traces({"ranks": 2, "steps": 5, "kernels": 24, "marker": "none"})
    report = jitter.ingest([folder], tmp_path / "lake")
    assert report.refused == []
    for record in report.added:
        assert record.steps_from == "repetition"
        assert sum(s.kernels for s in record.steps) + record.outside_steps + record.before_capture == record.kernels
        assert any("no step markers" in problem for problem in record.problems)
        assert {step.kernels for step in record.steps[:-1]} == {24}
    assert len({tuple(step.step for step in record.steps) for record in report.added}) == 1
    second = jitter.ingest([folder], tmp_path / "lake")
    assert (second.added, second.unchanged) == ([], 2)
