"""A trace that was ingested while it was being written: its finished form, at the same path, replaces it."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.simulate import Job, simulate, write
from tests.support.lake_content import kernel_files, records

pytestmark = pytest.mark.slow

JOB = Job(ranks=2, steps=6, kernels=16, marker="profiler", epoch=None)


def ingest(folder: Path, lake: Path) -> int:
    return main(["ingest", str(folder), "-o", str(lake)])


def check_whole(traces: Path, lake: Path, scratch: Path) -> None:
    jitter.ingest(traces, scratch)
    assert kernel_files(lake) == kernel_files(scratch)
    for one, other in zip(records(lake), records(scratch), strict=True):
        assert one["digest"] == other["digest"]


def test_a_longer_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    traces, lake = tmp_path / "traces", tmp_path / "lake"
    write(simulate(JOB), traces, "kineto", zipped=False)
    path = traces / "rank-1.pt.trace.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert ingest(traces, lake) == 0
    longer, shorter = records(lake)
    assert 0 < shorter["kernels"] < longer["kernels"]
    path.write_bytes(whole)
    capsys.readouterr()
    assert ingest(traces, lake) == 0
    err = capsys.readouterr().err
    assert f"has grown from {len(whole) // 2:,} to {len(whole):,} bytes" in err
    assert "left out" not in err
    check_whole(traces, lake, tmp_path / "other")


def test_a_longer_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A database changes at its beginning when it grows."""
    traces, lake = tmp_path / "traces", tmp_path / "lake"
    write(simulate(JOB), traces, "nsys")
    path = traces / "rank1.sqlite"
    shutil.copy(path, tmp_path / "whole.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        (middle,) = connection.execute("SELECT start FROM NVTX_EVENTS WHERE text LIKE '%#4%'").fetchone()
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
            connection.execute(f"DELETE FROM {table} WHERE start >= ?", (middle,))
        connection.commit()
        connection.execute("VACUUM")
    assert path.stat().st_size < (tmp_path / "whole.sqlite").stat().st_size
    assert ingest(traces, lake) == 0
    shutil.copy(tmp_path / "whole.sqlite", path)
    capsys.readouterr()
    assert ingest(traces, lake) == 0
    assert "has grown" in capsys.readouterr().err
    check_whole(traces, lake, tmp_path / "other")


def test_another_longer_trace_at_the_path_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    traces, lake = tmp_path / "traces", tmp_path / "lake"
    write(simulate(JOB), traces, "nsys")
    assert ingest(traces, lake) == 0
    before = kernel_files(lake)
    write(simulate(Job(ranks=2, steps=9, kernels=16, marker="profiler", epoch=None, seed=9)), tmp_path / "b", "nsys")
    shutil.copy(tmp_path / "b" / "rank1.sqlite", traces / "rank1.sqlite")
    capsys.readouterr()
    assert ingest(traces, lake) == 0
    err = capsys.readouterr().err
    assert "has grown" not in err
    assert "rank 1 has 6 steps" in err
    assert kernel_files(lake) == before
