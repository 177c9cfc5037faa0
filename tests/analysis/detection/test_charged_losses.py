"""What the account charges to what a scenario repairs, where teams are not in the order of ranks."""

from pathlib import Path

import pytest

from jitter.analysis.account.losses import CLASSES_OF_PART, RANK_CLASSES, LossClass
from jitter.analysis.execution.self_times import OWN_PARTS
from jitter.analysis.replay.what_if import Scenario
from tests.accuracy.layouts.job import LayoutJob
from tests.accuracy.layouts.traces import ingest_job


def test_each_rank_is_charged_its_own_losses_whatever_the_order_of_teams(tmp_path: Path):
    # the first stage has two programs, so a later stage is the commonest, and the first team
    job = LayoutJob(7, shape="pipeline", slow=(2, 1.2), naming="peers", logs=0)
    analysis = ingest_job(job, tmp_path).analyze()
    assert analysis.run.rank_numbers.tolist() != sorted(analysis.run.rank_numbers.tolist())
    timed = [account for account in analysis.accounts if account.losses is not None][1:]
    every = frozenset(range(len(analysis.keys)))
    for rank in analysis.run.rank_numbers.tolist():
        for part in OWN_PARTS:
            charged = sum(one.losses.of(CLASSES_OF_PART[part], rank).loss_ns.sum() for one in timed)
            assert analysis.loss_of(Scenario({(rank, part): every})) == pytest.approx(charged, abs=1)
    assert analysis.loss_of(Scenario({(2, part): every for part in OWN_PARTS})) > 100e3
    # what a lead is weighed by: the first step, of unknown time, lost its part too, and does not count
    of_ranks = [sum(one.losses.of(RANK_CLASSES, rank).loss_ns.sum() for one in timed) for rank in analysis.run.team_of]
    transfers = sum(one.losses.of([LossClass.TRANSFER]).loss_ns.sum() for one in timed)
    assert len(analysis.accounts[0].losses)
    assert analysis.charges.all_ns() == pytest.approx(sum(max(ns, 0.0) for ns in (*of_ranks, transfers)), abs=1)
