"""More late ranks than are priced one by one: those late in the same steps are one finding, and none is left out."""

from pathlib import Path

import pytest

from jitter.analysis.detection import findings
from jitter.analysis.detection.findings import join_late_ranks, of_one_rank
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small, true_gain_ns

MOST = THRESHOLDS.max_priced_outliers


def late(rank: int, *steps: int, part: TimePart = TimePart.GPU, excess_ns: float = 1e6) -> Outlier:
    return Outlier(0, rank, part, steps, excess_ns + rank, 9.0, 0.001 * (rank + 1))


def test_few_late_ranks_stay_apart():
    found = [late(rank, 1, 2) for rank in range(MOST)]
    assert join_late_ranks(found) == [of_one_rank(one) for one in found[::-1]]


def test_many_ranks_late_in_the_same_steps_are_one():
    found = [late(rank, 1, 2) for rank in range(MOST - 2)] + [late(rank, 7, 9) for rank in range(50, 53)]
    others = [late(rank, 1, 2, part=TimePart.CPU, excess_ns=5.0) for rank in (3, 60)]
    (joined, *single) = join_late_ranks([*found, *others])
    assert joined.kind == "late_together"
    assert joined.ranks == tuple(range(MOST - 2))
    assert joined.steps_of_rank[4] == (1, 2)
    assert joined.excess_ns == sum(one.excess_ns for one in found[: MOST - 2])
    assert joined.chance == found[MOST - 3].chance
    assert single == [of_one_rank(one) for one in (*found[:-4:-1], *others[::-1])]


def test_unrelated_late_ranks_are_cut_to_those_with_the_most_excess():
    found = [late(rank, rank) for rank in range(40)]
    assert join_late_ranks(found) == [of_one_rank(one) for one in found[: -MOST - 1 : -1]]


DEVICE_1 = "+".join(map(str, range(1, 24, 3)))


@pytest.mark.parametrize(
    ("size", "gpus_per_node", "ranks", "scope", "said"),
    [
        (20, 4, "0-7", "ranks", "they are all ranks of 2 hosts"),
        (24, 3, DEVICE_1, "device", "device 1 is late on 8 hosts"),
    ],
)
def test_many_late_ranks_are_found_with_what_fixing_all_saves(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    gpus_per_node: int,
    ranks: str,
    scope: str,
    said: str,
):
    """Many are more than are priced one by one; here that is a quarter of the usual number."""
    monkeypatch.setattr(findings, "THRESHOLDS", THRESHOLDS._replace(max_priced_outliers=MOST // 4))
    fault = Fault.parse(f"slow_gpu:ranks={ranks},factor=1.3")
    run = simulate(small(ranks=size, gpus_per_node=gpus_per_node, steps=3, kernels=24, noise=0.005, seed=8), [fault])
    found = ingest_run(run, tmp_path).diagnose()
    (culprit, *_) = found.culprits
    assert (culprit.scope, set(culprit.ranks), culprit.cause) == (scope, set(fault.ranks), "gpu_compute")
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, fault), rel=0.1)
    assert any(said in sentence for sentence in culprit.evidence), culprit.evidence


def test_two_ranks_that_stall_in_the_same_step_are_one_event(tmp_path: Path):
    """Mending one of them saves nothing: the other one is as late."""
    stalls = [Fault.parse(f"cpu_stall:rank={rank},step=5,kernel=20,ms=60") for rank in (1, 4)]
    run = simulate(small(ranks=8, steps=12), stalls)
    (culprit,) = [one for one in ingest_run(run, tmp_path, "kineto").diagnose().culprits if one.rung == "ranks"]
    assert (culprit.ranks, culprit.cause, [key.step for key in culprit.steps]) == ((1, 4), "cpu_launch", [5])
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run), rel=0.05)
