"""The loss: its parts, what noise alone causes of it, and a late rank that costs little."""

from pathlib import Path

import numpy as np
import pytest

from jitter.analysis.account.losses import LossClass, Losses
from jitter.analysis.account.noise import expected_lower_median, expected_maximum
from jitter.analysis.diagnosis.loss.split import describe_ranks, describe_split, round_shares, split_loss, split_step
from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run, run_ns, small, true_gain_ns

START, LAUNCH, GPU, TRANSFER, UNEXPLAINED = (
    LossClass.START,
    LossClass.LAUNCH,
    LossClass.GPU,
    LossClass.TRANSFER,
    LossClass.UNEXPLAINED,
)


def losses_of(*rows: tuple[LossClass, int, float]) -> Losses:
    classes, ranks, shares = (np.array(column) for column in zip(*rows, strict=True))
    nothing = np.full(len(rows), -1)
    numbers = np.stack([np.zeros(len(rows), np.int64), ranks, nothing, classes, nothing, nothing])
    return Losses(numbers, np.stack([shares.astype(float), shares]))


def shares(loss: int, *steps: Losses):
    found = split_loss(steps, loss, 1000)
    assert [share.loss_class for share in found] == [one.label for one in LossClass]
    assert sum(share.ns for share in found) == loss
    return {
        LossClass[share.loss_class.upper()]: (share.ns, [(one.rank, one.ns) for one in share.ranks])
        for share in found
        if share.ns
    }


def test_rows_of_several_steps_are_added():
    one = losses_of((LAUNCH, 3, 60.0), (GPU, 3, 10.0), (GPU, 1, 20.0), (TRANSFER, -1, 5.0))
    other = losses_of((GPU, 1, 5.0))
    assert shares(100, one, other) == {LAUNCH: (60, [(3, 60)]), GPU: (35, [(1, 25), (3, 10)]), TRANSFER: (5, [])}


def test_a_rank_that_shortens_the_run_has_less_than_nothing():
    rows = losses_of((LAUNCH, 0, 120.0), (GPU, 0, -20.0), (UNEXPLAINED, 0, 3.0))
    assert shares(103, rows) == {LAUNCH: (120, [(0, 120)]), GPU: (-20, [(0, -20)]), UNEXPLAINED: (3, [])}


def test_the_largest_share_takes_the_error_of_rounding():
    thirds = losses_of(*((GPU, rank, 1 / 3) for rank in range(3)), (GPU, 5, 9.0))
    assert shares(10, thirds) == {GPU: (10, [(5, 10)])}
    assert round_shares({}, 3) == {}
    assert tuple(split_step(losses_of((START, 1, 0.4), (GPU, 2, 2.4), (TRANSFER, -1, 0.4)), 3)) == (
        0,
        0,
        0,
        3,
        0,
        0,
        0,
        0,
    )


def test_an_unknown_loss_has_no_split():
    assert split_loss([losses_of((GPU, 0, 30.0))], None, None) == ()


def test_words():
    found = split_loss([losses_of((LAUNCH, 6, 48.0), (LAUNCH, 0, 45.0), (LAUNCH, 1, 7.0), (LAUNCH, 2, -9.0))], 91, 1000)
    assert describe_ranks(found[LAUNCH]) == "ranks 6 (48%), 0 (45%), 1 (7%)"
    assert describe_split(found) == (
        "late kernel launches (CPU) 91 ns (9.10% of the run), ranks 6 (48%), 0 (45%), 1 (7%)"
    )


@pytest.mark.parametrize("fault", [None, "slow_cpu:rank=1,factor=4", "slow_gpu:rank=1,factor=1.5"])
def test_the_classes_of_a_simulated_job_explain_its_loss(tmp_path: Path, fault: str | None):
    """Nearly all of the loss has a rank or a transfer, also what precedes a step's first launch."""
    faults = [] if fault is None else [Fault.parse(fault)]
    found = ingest_run(simulate(small(ranks=8, steps=5), faults), tmp_path, "nsys").diagnose()
    by_class = {LossClass[share.loss_class.upper()]: share for share in found.split}
    assert found.loss.ns is not None
    assert abs(by_class[UNEXPLAINED].ns) <= 0.02 * found.loss.ns
    if fault is not None:
        own = by_class[LAUNCH if "cpu" in fault else GPU]
        assert own.ranks[0].rank == 1
        assert own.ns + by_class[START].ns >= 0.9 * found.loss.ns


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 16])
def test_expected_order_statistics(count: int):
    draws = np.sort(np.random.default_rng(count).normal(size=(200_000, count)), axis=1)
    assert expected_lower_median(count) == pytest.approx(draws[:, (count - 1) // 2].mean(), abs=0.03)
    assert expected_maximum(count) == pytest.approx(draws[:, -1].mean(), abs=0.03)


@pytest.mark.parametrize(
    ("shape", "ranks", "seed"), [("data_parallel", 4, 2), ("tensor_parallel", 2, 1), ("expert", 2, 2)]
)
def test_noise_of_launches_on_few_ranks_is_no_finding(shape: str, ranks: int, seed: int, tmp_path: Path):
    """The lower median of few ranks lies below the mean, at every launch: most of this loss is no delay of anybody."""
    job = Job(ranks=ranks, steps=8, kernels=200, noise=0.03, seed=seed, shape=shape, cpu_bound=True)
    assert ingest_run(simulate(job), tmp_path, "nsys").diagnose().culprits == ()


LATE = "late_start:rank=3,step=0,ms=3,loading=no"
"""In the first step: the hosts wait for nothing, so that the rank stays behind."""


@pytest.mark.parametrize(("fault", "named"), [(None, []), (LATE, []), ("slow_cpu:rank=3,factor=1.1", [3])])
def test_a_rank_is_named_that_is_slower_and_none_that_only_stays_behind(
    tmp_path: Path, fault: str | None, named: list[int]
):
    run = simulate(
        small(steps=3, kernels=120, cpu_bound=True, cpu_noise=0.2, seed=3), [Fault.parse(fault)] if fault else []
    )
    found = ingest_run(run, tmp_path).diagnose()
    assert [one.rank for one in found.culprits] == named
    if named:
        (lead,) = found.culprits
        assert (lead.cause, lead.confidence) == ("cpu_launch", "low")
        assert lead.gain_ns == pytest.approx(true_gain_ns(run), rel=0.02)
    elif fault:
        assert true_gain_ns(run) < 0.01 * run_ns(run)
        assert "none stands out above the run's noise: late kernel launches (CPU)" in found.verdict


def test_what_the_first_step_lost_may_be_given_back(tmp_path: Path):
    """In the first step every host pauses before the all-reduces and after them, 5 ms in all; the usual ones are 2 ms.

    The all-reduces wait for the longest of 4 ms, so the first step loses 2 ms; but then each host is 1 ms late only.
    """
    job = small("data_parallel", ranks=4, steps=4)
    stalls = [
        Fault("cpu_stall", frozenset({rank}), frozenset({0}), kernel=kernel, ms=ms)
        for kernel, pauses in ((10, (1, 2, 3, 4)), (job.kernels - 2, (4, 3, 2, 1)))
        for rank, ms in enumerate(pauses)
    ]
    diagnosis = ingest_run(simulate(job, stalls), tmp_path).diagnose()
    first, *_ = (step.loss_ns or 0 for step in diagnosis.steps[1:])
    assert first == pytest.approx(-1e6, rel=0.4)
    assert diagnosis.loss.ns is not None
    assert "longer than recorded" not in diagnosis.verdict
