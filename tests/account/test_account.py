"""The account of a loss: the compiled pass against the tape, to the nanosecond, and against exact Shapley values."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from jitter.analysis.account.losses import LossClass
from jitter.analysis.account.step_account import Account
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.job_arrays import state_before
from jitter.analysis.execution.step_times import StepTimes
from jitter.analysis.replay.replay import Change, no_shift, replay_steps
from tests.account.changed_jobs import CHANGED, analyzed_changed
from tests.account.exact import LINK, exact_shares
from tests.account.graph import TapedStep, baseline_transfers, tape_run
from tests.account.jobs import (
    CASES,
    CROSSED,
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
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.loops import WAYS, run_loops

NS = 1.0
"""Largest difference of a share."""
Sums = Counter[tuple[int, int | None, str]]
"""ns by (step of the self time, number of the rank, class); the step of what is carried or unexplained is -1."""
TAPED = [*dict.fromkeys((*some_of(JOBS, 5), CROSSED)), *CHANGED]
SOME_SHAPES = ["data", "overlapped", "tensor", "sharded", "expert", "tensor and data", "queue"]


class StepAccount(NamedTuple):
    loss_ns: float
    sums: Sums

    def by_class(self) -> Counter[tuple[int | None, str]]:
        found: Counter[tuple[int | None, str]] = Counter()
        for (_, rank, kind), share in self.sums.items():
            found[rank, kind] += share  # type: ignore[assignment]
        return found


class TapedJob(NamedTuple):
    analysis: RunAnalysis
    tape: list[TapedStep]


def account(analysis: RunAnalysis) -> list[StepAccount]:
    """Return the loss of each step and its shares by the compiled pass."""
    made = Account(analysis.run, analysis.transfers.baseline, analysis.measured.noise, own_row_ns=0.0)
    found = []
    for step in analysis.steps.steps():
        one = made.step(step, analysis.steps.find_baselines(step))
        rows, sums = one.losses, Sums()
        columns = (rows.origin.tolist(), rows.rank.tolist(), rows.loss_class.tolist(), rows.loss_ns.tolist())
        for origin, rank, loss_class, share in zip(*columns, strict=True):
            kind = LossClass(loss_class).label
            number = None if rank < 0 else analysis.run.number_of[rank]
            sums[-1 if kind in ("carried", "unexplained") else origin, number, kind] += share
        found.append(StepAccount(one.loss_ns, sums))
    return found


def by_player(steps: list[StepAccount]) -> Counter[int]:
    """Sum the shares of each rank, by number, and of the transfers."""
    found: Counter[int] = Counter()
    for one in steps:
        for (_, rank, _), share in one.sums.items():
            found[LINK if rank is None else rank] += share  # type: ignore[assignment]
    return found


@pytest.fixture(scope="module")
def job(request: pytest.FixtureRequest) -> Iterator[TapedJob]:
    name = request.param
    with analyzed_changed(name) if name in CHANGED else JOBS[name]() as analysis:
        yield TapedJob(analysis, tape_run(analysis))


@pytest.mark.parametrize("job", TAPED[:2], indirect=True)
def test_steps_in_files_have_the_same_account(job: TapedJob):
    steps, run = job.analysis.steps, job.analysis.run
    given = run, job.analysis.transfers.baseline, job.analysis.measured.noise
    accounts = [Account(*given, is_spilled=is_spilled) for is_spilled in (False, True)]
    for step in steps.steps():
        made = []
        for one in accounts:
            own = replace(step, times=StepTimes(*(values.copy() for values in step.times)))
            compared = one.compare(own, steps.find_baselines(step))
            assert (compared.pages is None) == (one is accounts[0])
            made += one.divide(compared)
        np.testing.assert_equal(vars(made[1].losses), vars(made[0].losses))
        np.testing.assert_equal(vars(made[1].largest), vars(made[0].largest))
        assert made[0].loss_ns == pytest.approx(made[1].loss_ns, abs=0, nan_ok=True)


@pytest.mark.parametrize("job", TAPED, indirect=True)
def test_steps_together_have_the_same_account(job: TapedJob):
    steps = job.analysis.steps
    given = job.analysis.run, job.analysis.transfers.baseline, job.analysis.measured.noise
    together, alone = Account(*given), Account(*given)
    ends = 0
    for stretch in steps.stretches():
        ends += len(stretch) > 1
        made = together.divide(together.compare(stretch, steps.find_baselines(stretch)))
        for at, one in enumerate(made):
            step = stretch.part(at, at + 1)
            expected = alone.step(step, steps.find_baselines(step))
            np.testing.assert_equal(vars(one.losses), vars(expected.losses))
            np.testing.assert_equal(vars(one.largest), vars(expected.largest))
            np.testing.assert_equal([one.groups, one.passed], [expected.groups, expected.passed])
            assert (one.number, one.noise_ns) == (expected.number, expected.noise_ns)
            assert one.loss_ns == pytest.approx(expected.loss_ns, abs=0, nan_ok=True)
    assert ends


@fuzz
@pytest.mark.parametrize("job", TAPED, indirect=True)
def test_the_tape_is_the_replay_in_both_settings(job: TapedJob):
    analysis, steps = job
    run, instructions, ranks = analysis.run, analysis.run.schedule.array(), len(analysis.run.rank_numbers)
    recorded_state, baseline_state, saved = state_before(run.job), state_before(run.job), 0.0
    for step, taped in zip(analysis.steps.steps(), steps, strict=True):
        took, nothing = step.transfers.took, np.zeros_like(step.transfers.took)
        for name, state, is_baseline, transfer in (
            ("r", recorded_state, False, took),
            ("b", baseline_state, True, baseline_transfers(analysis, step)[None]),
        ):
            change = Change(np.full((1, 3, ranks), is_baseline), transfer, nothing)
            shift = no_shift(ranks)
            shift.mean_ns[0] = saved if is_baseline else 0.0
            replayed = run.job, instructions, step, analysis.steps.find_baselines(step), change, state, shift
            ends = replay_steps(*replayed).nodes.end
            own = [getattr(taped.ends[cell], name) if cell in taped.ends else np.nan for cell in range(len(ends))]
            np.testing.assert_allclose(own, ends, rtol=0, atol=1e-3)
        assert taped.end is not None
        saved = taped.end.change


@fuzz
@pytest.mark.parametrize("job", [one for one in TAPED if one != "a slow host"], indirect=True)
def test_every_share_is_that_of_the_tape(job: TapedJob):
    for way in WAYS:
        with run_loops(way):
            steps = account(job.analysis)
        for taped, (loss_ns, sums) in zip(job.tape, steps, strict=True):
            expected = Sums()
            for charge, share in taped.shares.items():
                known = -1 if charge.kind in ("carried", "unexplained") else charge.step
                expected[known, charge.rank, charge.kind] += share
            assert loss_ns == pytest.approx(taped.loss_ns, abs=NS)
            assert sum(sums.values()) == pytest.approx(loss_ns, abs=NS)
            for key in expected.keys() | sums.keys():
                assert sums[key] == pytest.approx(expected[key], abs=NS), key


@fuzz
@pytest.mark.parametrize("job", [str(case) for case in some_of(CASES, 3)], indirect=True)
def test_shares_are_shapley_values(job: TapedJob, request: pytest.FixtureRequest):
    case = next(case for case in CASES if str(case) == request.node.callspec.params["job"])
    steps = account(job.analysis)
    exact, losses = exact_shares(job.analysis)
    assert [step.loss_ns for step in steps] == pytest.approx(losses.tolist(), abs=NS)
    # when the first step began is unknown
    found, loss = by_player(steps[1:]), losses[1:].sum()
    worst = max(abs(found[player] - exact[player][1:].sum()) for player in exact)
    assert worst <= case.limit * loss, {one: (found[one], exact[one][1:].sum()) for one in exact}


@fuzz
@pytest.mark.parametrize("shape", some_of(SOME_SHAPES, 2))
def test_faults_in_two_steps_are_each_charged_in_their_own(shape: str):
    with analyzed(Case(shape, (PAUSE, SLOW_GPU_ONCE))) as analysis:
        steps = account(analysis)
    for at, rank in ((1, 1), (3, 2)):
        own = sum(share for (step, number, _), share in steps[at].sums.items() if (step, number) == (at, rank))
        assert own == pytest.approx(steps[at].loss_ns, rel=0.05)
    assert max(abs(steps[at].loss_ns) for at in (2, 4)) < 0.1 * steps[3].loss_ns


@fuzz
@pytest.mark.parametrize("shape", some_of(SOME_SHAPES, 3, first=1))
def test_a_pause_long_before_changes_no_later_share(shape: str):
    found = []
    for earlier in ((), ("late_start:rank=1,step=100,ms=20",)):
        with analyzed(Case(shape, (*earlier, SLOW_GPU_ONCE))) as analysis:
            found.append(account(analysis)[3].by_class())
    usual, moved = found
    loss = sum(usual.values())
    for key in usual | moved:
        assert moved[key] == pytest.approx(usual[key], abs=0.01 * loss), key


@pytest.mark.parametrize("shape", ["data", "overlapped", "interference", "queue"])
def test_two_equally_late_ranks_have_equal_shares(shape: str):
    with analyzed(Case(shape, (LATE, LATE_TOO))) as analysis:
        found = by_player(account(analysis)[3:4])
    one, other = found[1], found[3]
    assert one == pytest.approx(other, rel=0.05)
    assert one + other == pytest.approx(sum(found.values()), rel=0.05)


@fuzz
@pytest.mark.parametrize("shape", some_of(SHAPES, 3))
def test_shares_do_not_depend_on_the_order_of_ranks(shape: str):
    case = Case(shape, (SLOW_GPU_ONCE,), HIDDEN)
    numbers = list(range(case.job.ranks))[::-1]
    found = []
    for renumbered in ((), numbers):
        with analyzed(case, renumbered) as analysis:
            found.append([step.by_class() for step in account(analysis)])
    for usual, moved in zip(*found, strict=True):
        back = {(None if rank is None else numbers[rank], kind): share for (rank, kind), share in moved.items()}
        for key in usual.keys() | back.keys():
            assert back.get(key, 0.0) == pytest.approx(usual.get(key, 0.0), abs=NS), key
