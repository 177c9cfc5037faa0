"""The compiled pass against the tape: every share of every rank and class, to the nanosecond."""

from collections import Counter
from dataclasses import fields

import numpy as np
import pytest

from jitter.analysis.account.losses import LossClass, Losses
from jitter.analysis.account.step_account import Account
from jitter.analysis.detection.run_analysis import RunAnalysis
from tests.account.graph import tape_run
from tests.account.jobs import JOBS, PAUSE, SLOW_GPU_ONCE, Case, analyzed
from tests.support.loops import WAYS, run_loops

NS = 1.0
"""Largest difference of a share."""
Sums = Counter[tuple[int, int | None, str]]
"""ns by (step of the self time, number of the rank, class)."""


def compiled_sums(analysis: RunAnalysis) -> list[tuple[float, Sums]]:
    """Return the loss of each step and its shares."""
    account = Account(analysis.run, analysis.ends, analysis.baseline_transfers, analysis.noise)
    found = []
    for step in analysis.steps.steps():
        one = account.step(step, analysis.steps.baseline(step))
        rows, sums = one.losses, Sums()
        columns = (rows.origin.tolist(), rows.rank.tolist(), rows.loss_class.tolist(), rows.loss_ns.tolist())
        for origin, rank, loss_class, share in zip(*columns, strict=True):
            kind = LossClass(loss_class).label
            number = None if rank < 0 else analysis.run.number_of[rank]
            sums[-1 if kind in ("carried", "unexplained") else origin, number, kind] += share
        found.append((one.loss_ns, sums))
    return found


@pytest.mark.parametrize("job", ["data", "tensor and data", "queue"])
def test_steps_that_a_thread_divides_are_the_same(job: str):
    with analyzed(Case(job, (PAUSE, SLOW_GPU_ONCE))) as analysis:
        given = analysis.run, analysis.ends, analysis.baseline_transfers, analysis.noise
        one_by_one, beside = Account(*given), Account(*given)
        steps = [(step, analysis.steps.baseline(step)) for step in analysis.steps.steps()]
        expected = [one_by_one.step(*step) for step in steps]
        found = list(beside.steps(steps))
    assert [one.number for one in found] == [one.number for one in expected]
    assert any(one.loss_ns > 1e6 for one in expected)
    for one, other in zip(found, expected, strict=True):
        assert one.loss_ns == other.loss_ns
        for column in fields(Losses):
            np.testing.assert_array_equal(getattr(one.losses, column.name), getattr(other.losses, column.name))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("job", JOBS)
def test_every_share(job: str, way: str):
    with JOBS[job]() as analysis, run_loops(way):
        taped = tape_run(analysis)
        for step, (loss_ns, sums) in zip(taped, compiled_sums(analysis), strict=True):
            expected = Sums()
            for charge, share in step.shares.items():
                known = -1 if charge.kind in ("carried", "unexplained") else charge.step
                expected[known, charge.rank, charge.kind] += share
            assert loss_ns == pytest.approx(step.loss_ns, abs=NS)
            assert sum(sums.values()) == pytest.approx(loss_ns, abs=NS)
            for key in expected.keys() | sums.keys():
                assert sums[key] == pytest.approx(expected[key], abs=NS), key
