"""Recordings too large for memory: their rows go to files, and come out the same."""

from pathlib import Path

import pytest

import jitter
from jitter.ingestion.transform import sorted_rows
from jitter.simulate import Job, simulate, write
from tests.support.lake_content import content

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["nsys", "kineto"])
def test_on_disk_as_in_memory(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    traces = tmp_path / "traces"
    write(simulate(Job(ranks=2, steps=5, kernels=40)), traces, kind)
    jitter.ingest([traces], tmp_path / "memory")
    monkeypatch.setattr(sorted_rows, "RUN_BYTES", 4096)
    spilled = _watch(monkeypatch)
    jitter.ingest([traces], tmp_path / "disk")
    assert len({*map(id, spilled)}) == 2 * len(("activities", "calls", "activities in launch order"))
    assert content(tmp_path / "disk") == content(tmp_path / "memory")


def test_a_small_one_writes_no_file(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spilled = _watch(monkeypatch)
    jitter.ingest([traces], tmp_path / "lake")
    assert spilled == []


def _watch(monkeypatch: pytest.MonkeyPatch) -> list[sorted_rows.SortedRows]:
    """The tables that go to disk, once for each run."""
    spilled: list[sorted_rows.SortedRows] = []
    really = sorted_rows.SortedRows._write
    monkeypatch.setattr(sorted_rows.SortedRows, "_write", lambda self, rows: spilled.append(self) or really(self, rows))
    return spilled
