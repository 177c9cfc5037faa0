"""The small lake together with a trace that the ingest rejected."""

import shutil
from pathlib import Path

import pytest

import jitter


@pytest.fixture(scope="session")
def lake_root(small_lake: Path, traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of `small_lake` that also holds the record of a damaged trace."""
    folder = tmp_path_factory.mktemp("rejected")
    root = Path(shutil.copytree(small_lake, folder / "lake"))
    (folder / "broken.sqlite").write_bytes((traces / "rank0.sqlite").read_bytes()[:20_000])
    assert len(jitter.ingest([folder / "broken.sqlite"], root).refused) == 1
    return root


@pytest.fixture
def lake(lake_root: Path) -> "jitter.Lake":
    return jitter.open(lake_root)
