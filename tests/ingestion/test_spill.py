"""Recordings too large for memory: their rows go to files, and come out the same."""

from pathlib import Path

import pytest

import jitter
from jitter.ingestion.transform import capture
from jitter.simulate import Job, simulate, write
from tests.support.lake_content import content

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["nsys", "kineto"])
def test_on_disk_as_in_memory(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    traces = tmp_path / "traces"
    write(simulate(Job(ranks=2, steps=5, kernels=40)), traces, kind)
    jitter.ingest([traces], tmp_path / "memory", executor=jitter.LocalExecutor())
    monkeypatch.setattr(capture, "SPILL_BYTES", 4096)
    spilled = _watch(monkeypatch)
    jitter.ingest([traces], tmp_path / "disk", executor=jitter.LocalExecutor())
    assert len({*map(id, spilled)}) == 2
    assert content(tmp_path / "disk") == content(tmp_path / "memory")


def test_a_small_one_writes_no_file(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spilled = _watch(monkeypatch)
    jitter.ingest([traces], tmp_path / "lake", executor=jitter.LocalExecutor())
    assert spilled == []


def _watch(monkeypatch: pytest.MonkeyPatch) -> list[capture.Capture]:
    """The recordings that go to disk."""
    spilled: list[capture.Capture] = []
    really = capture.Capture._spill
    monkeypatch.setattr(capture.Capture, "_spill", lambda self: spilled.append(self) or really(self))
    return spilled
