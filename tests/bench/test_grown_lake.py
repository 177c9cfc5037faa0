"""The lake that the benchmarks grow is a sound one: its copies agree with their records, and a report reads them."""

from pathlib import Path

import jitter
from jitter.cli import main
from tests.bench.grown_lake import grow


def test_a_grown_lake_is_intact_and_holds_what_was_asked_for(tmp_path: Path) -> None:
    grow(tmp_path / "lake", ranks=18, steps=8, kernels=60, jobs=1)
    assert main(["verify", str(tmp_path / "lake")]) == 0
    lake = jitter.open(tmp_path / "lake")
    assert len(lake.ranks) == 18
    lake.diagnose()
