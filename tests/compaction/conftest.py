"""Tests of compacted steps share the random lakes that lie one folder up."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture
def root(ingested: Path, tmp_path: Path) -> Path:
    """A copy of the module's lake, to be changed."""
    return Path(shutil.copytree(ingested, tmp_path / "lake"))
