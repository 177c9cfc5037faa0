"""The compiled pass against the tape: every share of every rank and class, to the nanosecond."""

from collections import Counter

import pytest

from jitter.analysis.account.losses import LossClass
from jitter.analysis.account.step_account import Account
from jitter.analysis.detection.run_analysis import RunAnalysis
from tests.account.graph import TapedStep, tape_run
from tests.account.jobs import JOBS
from tests.support.fuzz_depth import fuzz, some_of
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


@fuzz
@pytest.mark.parametrize("job", some_of(JOBS, 3))
def test_every_share(job: str):
    with JOBS[job]() as analysis:
        taped = tape_run(analysis)
        for way in WAYS:
            with run_loops(way):
                compiled = compiled_sums(analysis)
            assert_equal(taped, compiled)


def assert_equal(taped: list[TapedStep], compiled: list[tuple[float, Sums]]) -> None:
    for step, (loss_ns, sums) in zip(taped, compiled, strict=True):
        expected = Sums()
        for charge, share in step.shares.items():
            known = -1 if charge.kind in ("carried", "unexplained") else charge.step
            expected[known, charge.rank, charge.kind] += share
        assert loss_ns == pytest.approx(step.loss_ns, abs=NS)
        assert sum(sums.values()) == pytest.approx(loss_ns, abs=NS)
        for key in expected.keys() | sums.keys():
            assert sums[key] == pytest.approx(expected[key], abs=NS), key
