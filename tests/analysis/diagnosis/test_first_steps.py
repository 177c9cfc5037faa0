"""Ranks that start apart in the first recorded step: the spread is said, and no rank is charged for it."""

from pathlib import Path

import pytest

from jitter.analysis.diagnosis.limitations import first_start_spread
from jitter.simulate import Fault, simulate
from tests.support.lakes import RankLake, collective, lake_of
from tests.support.simulated import ingest_run, small


def test_a_late_first_start_is_said(tmp_path: Path):
    run = simulate(small(ranks=4, steps=5), [Fault.parse("late_start:rank=1,step=0,ms=7.6,loading=no")])
    lake = ingest_run(run, tmp_path, "nsys")
    assert first_start_spread(lake.analyze()) == (pytest.approx(7.6e6, rel=0.05), 1)
    found = lake.diagnose()
    assert [note for note in found.notes if note.startswith("In the first recorded step, ranks start up to 7.")]


def test_ranks_that_start_together_need_no_note(tmp_path: Path):
    found = ingest_run(simulate(small(ranks=4, steps=5)), tmp_path, "nsys").diagnose()
    assert not [note for note in found.notes if "first recorded step" in note]


def test_ranks_without_a_kernel_on_the_main_stream(tmp_path: Path):
    """Such as a benchmark of collectives: nothing tells when a rank starts, and the run is diagnosed all the same."""
    steps = {
        (None, number): [collective("ncclDevKernel_AllReduce_Sum", 10_000 * number + 10, 10_000 * number + 900)]
        for number in range(3)
    }
    lake = lake_of(tmp_path / "lake", [RankLake(rank, steps) for rank in (0, 1)])
    assert first_start_spread(lake.analyze()) == (0.0, None)
    assert lake.diagnose().conclusion.status == "within_noise"


@pytest.mark.parametrize(("slow", "is_warm_up"), [("1", True), ("1-2", True), ("4", False)])
def test_first_steps_that_are_slow_for_all_ranks_are_a_warm_up(tmp_path: Path, slow: str, is_warm_up: bool):
    """No GPU is at fault, and the ranks are cleared; slow steps in the middle of the run are a finding."""
    run = simulate(small(ranks=4, steps=8), [Fault.parse(f"slow_gpu:ranks=0-3,steps={slow},factor=1.5")])
    lake = ingest_run(run, tmp_path, "nsys")
    found = lake.diagnose()
    assert any("a warm-up (" in note for note in found.notes) is is_warm_up
    assert [one.scope for one in found.culprits] == ([] if is_warm_up else ["job"])
    assert ("a warm-up (" in found.verdict) is is_warm_up
