"""The shares of a loss: a slow tape, and the compiled pass, against replays and exact Shapley values."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.replay.replay import Change, replay_step
from tests.account.exact import LINK, exact_shares
from tests.account.graph import TapedStep, baseline_transfers, tape_run
from tests.account.jobs import (
    CASES,
    HIDDEN,
    JOBS,
    LATE,
    LATE_TOO,
    PAUSE,
    SHAPES,
    SLOW_GPU_ONCE,
    Case,
    analyzed,
)
from tests.account.tape import Shares
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.replay_assertions import unknown_of

NS = 1.0
"""Shares add up to this."""


class StepAccount(NamedTuple):
    loss_ns: float
    shares: Shares


def tape_account(analysis: RunAnalysis) -> list[StepAccount]:
    return [StepAccount(one.loss_ns, one.shares) for one in tape_run(analysis)]


Account = Callable[[RunAnalysis], list[StepAccount]]
ACCOUNTS: dict[str, Account] = {"tape": tape_account}


@pytest.fixture(params=ACCOUNTS)
def account(request: pytest.FixtureRequest) -> Account:
    return ACCOUNTS[request.param]


def by_player(steps: list[StepAccount]) -> Counter[int]:
    """Sum the shares of each rank, by number, and of the transfers."""
    found: Counter[int] = Counter()
    for one in steps:
        for charge, share in one.shares.items():
            found[LINK if charge.rank is None else charge.rank] += share  # type: ignore[assignment]
    return found


def by_class(step: StepAccount) -> Counter[tuple[int | None, str]]:
    found: Counter[tuple[int | None, str]] = Counter()
    for charge, share in step.shares.items():
        found[charge.rank, charge.kind] += share  # type: ignore[assignment]
    return found


@fuzz
@pytest.mark.parametrize("job", some_of(JOBS, 3))
def test_the_tape_is_the_replay_in_both_settings(job: str):
    with JOBS[job]() as analysis:
        assert_replayed(analysis, tape_run(analysis))


def assert_replayed(analysis: RunAnalysis, steps: list[TapedStep]) -> None:
    run, instructions, ranks = analysis.run, analysis.run.schedule.array(), len(analysis.run.rank_numbers)
    recorded_state, baseline_state, saved = unknown_of(run), unknown_of(run), 0.0
    for step, taped in zip(analysis.steps.steps(), steps, strict=True):
        took, nothing = step.transfers.took, np.zeros(len(step.transfers.took))
        for name, state, is_baseline, transfer in (
            ("r", recorded_state, False, took),
            ("b", baseline_state, True, baseline_transfers(analysis, step)),
        ):
            change = Change(np.full((3, ranks), is_baseline), transfer, nothing, saved if is_baseline else 0.0)
            ends = replay_step(run.job, instructions, step, analysis.steps.baseline(step), change, state).end
            own = [getattr(taped.ends[cell], name) if cell in taped.ends else np.nan for cell in range(len(ends))]
            np.testing.assert_allclose(own, ends, rtol=0, atol=1e-3)
        assert taped.end is not None
        saved = taped.end.change


@fuzz
@pytest.mark.parametrize("case", some_of(CASES, 3), ids=str)
def test_shares_add_up_and_are_shapley_values(case: Case, account: Account):
    with analyzed(case) as analysis:
        steps = account(analysis)
        exact, losses = exact_shares(analysis)
    for step, loss in zip(steps, losses, strict=True):
        assert step.loss_ns == pytest.approx(loss, abs=NS)
        assert sum(step.shares.values()) == pytest.approx(step.loss_ns, abs=NS)
    # when the first step began is unknown
    found, loss = by_player(steps[1:]), losses[1:].sum()
    worst = max(abs(found[player] - exact[player][1:].sum()) for player in exact)
    assert worst <= case.limit * loss, {one: (found[one], exact[one][1:].sum()) for one in exact}


@pytest.mark.parametrize("shape", ["data", "overlapped", "tensor", "sharded", "expert", "tensor and data", "queue"])
def test_faults_in_two_steps_are_each_charged_in_their_own(shape: str, account: Account):
    with analyzed(Case(shape, (PAUSE, SLOW_GPU_ONCE))) as analysis:
        steps = account(analysis)
    for at, rank in ((1, 1), (3, 2)):
        own = sum(share for charge, share in steps[at].shares.items() if charge.rank == rank and charge.step == at)
        assert own == pytest.approx(steps[at].loss_ns, rel=0.05)
    assert max(abs(steps[at].loss_ns) for at in (2, 4)) < 0.1 * steps[3].loss_ns


@pytest.mark.parametrize("shape", ["data", "overlapped", "tensor", "sharded", "expert", "tensor and data", "queue"])
def test_a_pause_long_before_changes_no_later_share(shape: str, account: Account):
    found = []
    for earlier in ((), ("late_start:rank=1,step=100,ms=20",)):
        with analyzed(Case(shape, (*earlier, SLOW_GPU_ONCE))) as analysis:
            found.append(by_class(account(analysis)[3]))
    usual, moved = found
    loss = sum(usual.values())
    for key in usual | moved:
        assert moved[key] == pytest.approx(usual[key], abs=0.01 * loss), key


@pytest.mark.parametrize("shape", ["data", "overlapped", "interference", "queue"])
def test_two_equally_late_ranks_have_equal_shares(shape: str, account: Account):
    with analyzed(Case(shape, (LATE, LATE_TOO))) as analysis:
        found = by_player(account(analysis)[3:4])
    one, other = found[1], found[3]
    assert one == pytest.approx(other, rel=0.05)
    assert one + other == pytest.approx(sum(found.values()), rel=0.05)


@pytest.mark.parametrize("shape", SHAPES)
def test_shares_do_not_depend_on_the_order_of_ranks(shape: str, account: Account):
    case = Case(shape, (SLOW_GPU_ONCE,), HIDDEN)
    numbers = list(range(case.job.ranks))[::-1]
    found = []
    for order in ((), numbers):
        with analyzed(case, order) as analysis:
            names = analysis.run.rank_numbers.tolist()
            found.append(
                [
                    {
                        (None if rank is None else numbers[names[rank]] if order else names[rank], kind): share
                        for (rank, kind), share in by_class(step).items()
                    }
                    for step in account(analysis)
                ]
            )
    for one, other in zip(*found, strict=True):
        for key in one.keys() | other.keys():
            assert one.get(key, 0.0) == pytest.approx(other.get(key, 0.0), abs=NS), key
