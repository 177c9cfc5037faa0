"""Recordings too large for memory: their rows go to disk, a part of their steps at a time, and come out the same."""

import subprocess
import sys
from pathlib import Path

import pytest

import jitter
from jitter.ingestion.transform import capture
from jitter.ingestion.transform.joins import duckdb_join
from jitter.simulate import Job, simulate, write
from tests.support.lake_content import content

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["nsys", "kineto"])
def test_on_disk_as_in_memory(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    traces = tmp_path / "traces"
    write(simulate(Job(ranks=2, steps=5, kernels=40)), traces, kind)
    jitter.ingest([traces], tmp_path / "memory", executor=jitter.LocalExecutor())
    monkeypatch.setattr(capture, "SPILL_BYTES", 4096)
    monkeypatch.setattr(duckdb_join, "ROWS_AN_INSERT", 50)
    monkeypatch.setattr(duckdb_join, "STEP_ROWS_AT_ONCE", 70)
    monkeypatch.setattr(duckdb_join, "ROWS_AT_ONCE", 60)
    spilled = _watch(monkeypatch)
    jitter.ingest([traces], tmp_path / "disk", executor=jitter.LocalExecutor())
    assert len(spilled) == 2
    assert content(tmp_path / "disk") == content(tmp_path / "memory")


def test_the_command_says_nothing_else(traces: Path, tmp_path: Path):
    """The database's library tells of whatever outlives the interpreter."""
    words = f"['ingest', {str(traces)!r}, '-o', {str(tmp_path / 'lake')!r}, '--jobs', '1']"
    code = (
        "import sys, jitter.ingestion.transform.capture as c; c.SPILL_BYTES = 4096\n"
        f"from jitter.cli import main; sys.exit(main({words}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert done.stdout == ""
    said = done.stderr.splitlines()
    assert all(line.startswith("note: ") for line in said[:-1])
    assert " added to " in said[-1]


def test_a_small_one_writes_no_database(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spilled = _watch(monkeypatch)
    jitter.ingest([traces], tmp_path / "lake", executor=jitter.LocalExecutor())
    assert spilled == []


def _watch(monkeypatch: pytest.MonkeyPatch) -> list[capture.Capture]:
    """The recordings that go to disk."""
    spilled: list[capture.Capture] = []
    really = capture.Capture._spill
    monkeypatch.setattr(capture.Capture, "_spill", lambda self: spilled.append(self) or really(self))
    return spilled
