"""A copy of the module's lake."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def root(ingested: Path, tmp_path: Path) -> Path:
    """Return a copy of the module's lake that the test may change."""
    return Path(shutil.copytree(ingested, tmp_path / "lake"))
