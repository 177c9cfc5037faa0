"""The split of the loss: exact sums, scaling where excess is hidden, and the time after a step's last collective."""

from pathlib import Path

import pytest

from jitter.analysis.diagnosis.loss.parts import describe_ranks, describe_split
from jitter.analysis.diagnosis.loss.split import split_loss
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small


def shares(charged, loss: int, time: int | None = 1000):
    found = split_loss(charged, loss, time)
    assert sum(share.ns for share in found) == loss
    return {share.part: (share.ns, [(one.rank, one.ns) for one in share.ranks]) for share in found if share.ns}


def test_charges_that_make_up_the_loss():
    charged = {("cpu_launch", 3): 60.0, ("gpu", 3): 10.0, ("gpu", 1): 25.0, ("communication", None): 5.0}
    assert shares(charged, 100) == {
        "cpu_launch": (60, [(3, 60)]),
        "gpu": (35, [(1, 25), (3, 10)]),
        "communication": (5, []),
    }


def test_excess_that_other_work_hides_is_scaled_to_the_loss():
    assert shares({("cpu_launch", 0): 300.0, ("gpu", 1): 100.0}, 200) == {
        "cpu_launch": (150, [(0, 150)]),
        "gpu": (50, [(1, 50)]),
    }


def test_time_below_the_baseline_shortens_the_path():
    assert shares({("cpu_launch", 0): 120.0, ("gpu", 0): -20.0}, 100) == {"cpu_launch": (100, [(0, 100)])}


def test_what_the_path_does_not_charge_is_unexplained():
    assert shares({("gpu", 0): 30.0}, 100) == {"gpu": (30, [(0, 30)]), "unexplained": (70, [])}
    assert shares({}, 100) == {"unexplained": (100, [])}
    assert shares({("gpu", 0): 30.0}, -40) == {"unexplained": (-40, [])}


def test_rounding_leaves_nothing_unexplained():
    assert shares({("gpu", rank): 1 / 3 for rank in range(3)} | {("gpu", 5): 9.0}, 10) == {"gpu": (10, [(5, 10)])}


def test_an_unknown_loss_has_no_split():
    assert split_loss({("gpu", 0): 30.0}, None, None) == ()


def test_words():
    found = split_loss({("cpu_launch", 6): 48.0, ("cpu_launch", 0): 45.0, ("cpu_launch", 1): 7.0}, 100, 1000)
    assert describe_ranks(found[1]) == "ranks 6 (48%), 0 (45%), 1 (7%)"
    assert describe_split(found) == (
        "late kernel launches (CPU) 100 ns (10.0% of the run), ranks 6 (48%), 0 (45%), 1 (7%)"
    )


@pytest.mark.parametrize("fault", [None, "slow_cpu:rank=1,factor=4", "slow_gpu:rank=1,factor=1.5"])
def test_the_path_of_a_simulated_job_explains_its_loss(tmp_path: Path, fault: str | None):
    """Nearly all of the loss lies on the path, also what precedes a step's first launch."""
    faults = [] if fault is None else [Fault.parse(fault)]
    found = ingest_run(simulate(small(ranks=8, steps=5), faults), tmp_path, "nsys").diagnose()
    by_part = {share.part: share for share in found.split}
    assert found.loss.ns is not None
    assert abs(by_part["unexplained"].ns) <= 0.02 * found.loss.ns
    if fault is not None:
        part = by_part["cpu_launch" if "cpu" in fault else "gpu"]
        assert part.ranks[0].rank == 1
        assert part.ns + by_part["late_start"].ns >= 0.9 * found.loss.ns
