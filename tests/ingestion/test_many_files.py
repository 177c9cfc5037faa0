"""A lake of very many files says what they cost."""

from pathlib import Path

import pytest

import jitter
from jitter.simulate import Job, simulate, write


def test_a_lake_that_passes_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jitter.ingestion.ingest.MANY_FILES", 7)
    for first in (0, 10):
        write(simulate(Job(ranks=2, steps=2, kernels=16, first_step=first)), tmp_path / str(first), "nsys")
    few = jitter.ingest(tmp_path / "0", tmp_path / "lake")
    assert not any("files of kernels" in line for line in few.warnings)
    many = jitter.ingest(tmp_path / "10", tmp_path / "lake")
    (line,) = [line for line in many.warnings if "files of kernels" in line]
    assert "the lake comes to 8 files of kernels, one per GPU and step" in line
    assert "record fewer steps" in line
    again = jitter.ingest(tmp_path / "10", tmp_path / "lake")
    assert not any("files of kernels" in line for line in again.warnings)
