"""The harness itself: jobs are as it says, gains are true, and an analysis that is wrong is seen to be."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.model import Culprit, Loss, WhatIf
from jitter.core.step_key import StepKey
from jitter.simulate import Fault, Job, Run, simulate, write
from jitter.simulate.shapes import SHAPES
from tests.accuracy import cases, scoring
from tests.accuracy.cases import JOBS, REPORTED, TUNING, Case, tenth
from tests.accuracy.fault_kinds import KINDS
from tests.accuracy.scoring import Score, score
from tests.accuracy.table import misses, table, targets
from tests.accuracy.waits import _reach, _Wait, broken, compare
from tests.support import findings
from tests.support.fuzz_depth import IS_WHOLE, fuzz, some_of
from tests.support.simulated import PartialRun, run_ns, true_gain_ns
from tests.support.true_dependencies import true_dependencies

SOME = some_of(tenth(REPORTED), 3)
SMALL = {"ranks": 4, "gpus_per_node": 2, "steps": 5, "kernels": 110, "seed": 8, "epoch": None, "marker": "profiler"}


def small(shape: str, *faults: Fault) -> Run:
    return simulate(Job(**SMALL, shape=shape), faults)  # type: ignore[arg-type]


@cache
def case(seed: int) -> Case:
    """Return the job of this seed; several tests ask for the same."""
    return cases.case(seed)


@dataclass
class FakeLake:
    """Answers as it is told to."""

    cohorts: dict[int, int]
    told: dict[int, list[Any]] = field(default_factory=dict)
    said: Any = None

    def dependencies(self, cohort: int) -> list[Any]:
        return self.told[cohort]

    def diagnose(self) -> Any:
        return self.said


def truthful(run: Run) -> FakeLake:
    """One cohort a stage, and all that is true."""
    lake = FakeLake({rank: int(stage) for rank, stage in enumerate(run.plan.stage)})
    for stage, found in true_dependencies(run).items():
        lake.told[stage] = [wait for wait in found if not wait.steps_back]
    return lake


@fuzz
@pytest.mark.skipif(not IS_WHOLE, reason="simulates all jobs: make fuzz")
def test_jobs_are_of_every_kind_and_their_seeds_are_apart():
    assert range(REPORTED, REPORTED + JOBS).stop < TUNING
    every = [case(seed) for seed in range(REPORTED, REPORTED + JOBS)]
    assert len(every) >= 300
    assert {one.run.job.shape for one in every} == set(SHAPES)
    assert {kind for one in every for kind in one.kind.split(" + ")} == {*KINDS, "healthy"}
    assert {one.run.job.noise for one in every} == {0.005, 0.02, 0.05}
    assert 0.28 < sum(one.is_healthy for one in every) / len(every) < 0.38
    assert sum(" + " in one.kind for one in every) > 30
    assert min(one.run.job.ranks for one in every) == 2
    assert max(one.run.job.ranks for one in every) == 64
    for modifier in ("launch_queue", "cpu_bound", "syncs", "variable_work", "autotuned", "side_stream"):
        assert sum(bool(getattr(one.run.job, modifier)) for one in every) > 20, modifier
    for loss in ("absent", "late", "early"):
        assert sum(bool(getattr(one, loss)) for one in every) > 20, loss
    few = [case(seed) for seed in tenth(REPORTED)]
    assert {one.run.job.shape for one in few} == set(SHAPES)
    assert {one.run.job.noise for one in few} == {0.005, 0.02, 0.05}
    causes = {"late_start", "cpu_launch", "gpu_compute", "workload_imbalance", "communication"}
    assert {fault.cause for one in few for fault in one.run.faults} == causes
    assert 0.2 < sum(one.is_healthy for one in few) / len(few) < 0.45


def test_culprits_are_recorded():
    for seed in SOME:
        one = case(seed)
        touched = {rank for fault in one.run.faults for rank in fault.ranks}
        assert not touched & (one.absent | one.late | one.early)
        for stage in range(len(one.run.plan.programs)):
            ranks = set(one.run.plan.ranks_of(stage).tolist())
            assert len(ranks - one.absent) >= min(2, len(ranks))


@pytest.mark.parametrize("form", ["nsys", "kineto"])
def test_what_is_not_recorded_is_not_written(tmp_path: Path, form: str):
    run = small("tensor_data")
    recorded = PartialRun(run, frozenset({2}), lambda rank, step: (rank, step) != (1, 0) and step != 4)
    assert len(write(recorded, tmp_path, form)) == 3  # type: ignore[arg-type]
    seen = {(one.rank, step.step) for one in recorded.ranks() for step in one.steps}
    assert seen == set(product((0, 1, 3), (0, 1, 2, 3))) - {(1, 0)}
    for one in recorded.ranks():
        assert {(one.rank, step) for step in one.step.tolist()} <= seen
        assert {call.step for call in one.calls} <= {step for rank, step in seen if rank == one.rank}


def test_reach_by_hand():
    #          0 -> 2 -> 4 on stream 7, 1 -> 3 on stream 20; 3 waits for 2; a call after 3 waited for 1
    reach = _reach([7, 20, 7, 20, 7], [_Wait(3, 2, "event"), _Wait(4, 1, "sync")])
    assert [{at for at in range(5) if mask >> at & 1} for mask in reach] == [{2, 3, 4}, {3, 4}, {3, 4}, set(), set()]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_truth_fits_itself_and_what_is_wrong_does_not(shape: str):
    run = simulate(Job(**SMALL, shape=shape, syncs=frozenset({"loss", "before"})))  # type: ignore[arg-type]
    lake = truthful(run)
    found = compare(run, lake)
    assert found.right == found.inferred > 0
    assert found.seen == found.binding > 0
    assert broken(run, lake, list(run.job.step_numbers))[0] == 0
    # a wait that is not: the first collective for what is launched after it on the main stream
    (program, *_) = run.plan.programs
    gpu = [op for op in program.step if op.kind in ("compute", "collective", "memory")]
    first = next(at for at, op in enumerate(gpu) if op.kind == "collective")
    behind = next(at for at, op in enumerate(gpu) if at > first + 1 and op.stream == gpu[0].stream)
    lake.told[0] = [*lake.told[0], _Wait(behind, behind - 1, "event"), _Wait(first + 1, first, "event")]
    lake.told[0] = [wait for wait in lake.told[0] if wait.kind != "event" or wait.ordinal > first]
    worse = compare(run, lake)
    assert worse.seen < worse.binding or worse.right < worse.inferred


def test_a_wait_that_is_not_there_is_no_part_of_the_truth():
    run = small("data_parallel")
    lake = truthful(run)
    (program,) = run.plan.programs
    gpu = [op for op in program.step if op.kind in ("compute", "collective", "memory")]
    first, *others = [at for at, op in enumerate(gpu) if op.kind == "collective"]
    assert others
    lake.told[0] = [*lake.told[0], _Wait(first + 1, first, "event")]
    found = compare(run, lake)
    assert found.right == found.inferred - 1
    assert broken(run, lake, [0, 1, 2])[0] == 1


@fuzz
def test_who_knows_everything_meets_every_target(monkeypatch: pytest.MonkeyPatch):
    scores = []
    for seed in SOME:
        one = case(seed)
        gains = scoring._gains(one.run)
        known = [fault for fault, gain in gains.items() if gain > 0.01 * run_ns(one.run)]
        said = [culprit(fault.cause, *sorted(fault.ranks), gain_ns=gains[fault]) for fault in known]
        repaired = true_gain_ns(one.run, *known) if known else 0
        scores.append(scored(monkeypatch, one.run, *said, repaired=repaired, made=one))
    assert [target for target in targets(scores) if not target.met] == []
    assert {verdict.kind for one in scores for verdict in one.verdicts} >= {"slow_gpu", "late_start", "slow_cpu"}
    assert misses(scores) == []


def scored(
    monkeypatch: pytest.MonkeyPatch, run: Run, *culprits: Culprit, repaired: int = 0, made: Case | None = None
) -> Score:
    """The score of a diagnosis that says this."""
    lake = truthful(run)
    lake.said = Diagnosis(Loss(None, None), (), culprits, WhatIf(repaired, None), run.job.ranks)
    monkeypatch.setattr(scoring, "_traces", lambda one, folder, wanted: folder)
    monkeypatch.setattr(scoring, "ingest_traces", lambda folder: lake)
    nobody: frozenset[int] = frozenset()
    one = made or Case(1, run, "made", "nsys", nobody, nobody, nobody)
    monkeypatch.setattr(scoring, "case", lambda seed: one)
    return score(1)


def culprit(cause: str, *ranks: int, gain_ns: int = 0, steps: Sequence[int] = ()) -> Culprit:
    keys = tuple(StepKey(None, step) for step in steps)
    return findings.culprit(ranks[0], cause=cause, ranks=ranks, scope="ranks", gain_ns=gain_ns, steps=keys)


def test_verdicts(monkeypatch: pytest.MonkeyPatch):
    run = small("tensor_parallel", Fault.parse("slow_gpu:rank=2,factor=1.5"))
    gain = sum(time or 0 for time in run.step_times().values()) - sum(
        time or 0 for time in run.without().step_times().values()
    )
    right = scored(monkeypatch, run, culprit("gpu_compute", 2, gain_ns=gain), repaired=gain)
    assert [verdict.right for verdict in right.verdicts] == [True]
    assert right.innocent
    assert right.gain_ns == right.told_ns == right.verdicts[0].told_ns == gain > 0
    assert misses([right]) == []
    for said in (
        [],
        [culprit("gpu_compute", 1)],
        [culprit("cpu_launch", 2)],
        [culprit("gpu_compute", 1, 2)],
        [culprit("gpu_compute", 2), culprit("late_start", 0)],
    ):
        wrong = scored(monkeypatch, run, *said)
        assert [verdict.right for verdict in wrong.verdicts] == [False]
        assert misses([wrong])
    off = scored(monkeypatch, run, culprit("gpu_compute", 2), repaired=2 * gain)
    assert not {target.name: target.met for target in targets([off])}["what-if off, median"]


def test_steps(monkeypatch: pytest.MonkeyPatch):
    run = small("tensor_parallel", Fault.parse("slow_gpu:rank=2,factor=2,steps=2-3"))
    for steps, right in (([2, 3], True), ([0, 2, 3], True), ([2], False), ([1, 2, 3], False)):
        one = scored(monkeypatch, run, culprit("gpu_compute", 2, steps=steps))
        assert [verdict.steps_right for verdict in one.verdicts] == [right]
    assert scored(monkeypatch, run, culprit("gpu_compute", 1)).verdicts[0].steps_right is None


def test_two_faults_of_one_cause_may_be_told_together(monkeypatch: pytest.MonkeyPatch):
    run = small(
        "tensor_parallel",
        Fault.parse("slow_gpu:rank=2,factor=1.5,steps=1-2"),
        Fault.parse("slow_gpu:rank=0,factor=2,steps=3-4"),
    )
    both = scored(monkeypatch, run, culprit("gpu_compute", 0, 2))
    assert [verdict.right for verdict in both.verdicts] == [True, True]
    one = scored(monkeypatch, run, culprit("gpu_compute", 2))
    assert [verdict.right for verdict in one.verdicts] == [True, False]


def test_ranks_that_are_late_together_are_one_culprit(monkeypatch: pytest.MonkeyPatch):
    pair = small("tensor_parallel", Fault.parse("slow_gpu:ranks=0+2,factor=1.5"))
    apart = culprit("gpu_compute", 0), culprit("gpu_compute", 2)
    assert scored(monkeypatch, pair, culprit("gpu_compute", 0, 2)).verdicts[0].right
    assert scored(monkeypatch, pair, *apart).verdicts[0].right
    assert not scored(monkeypatch, pair, apart[0]).verdicts[0].right
    three = small("tensor_parallel", Fault.parse("slow_gpu:ranks=0-2,factor=1.5"))
    assert scored(monkeypatch, three, culprit("gpu_compute", 0, 1, 2)).verdicts[0].right
    assert not scored(monkeypatch, three, *apart, culprit("gpu_compute", 1)).verdicts[0].right


def test_a_slow_link_is_its_ranks_or_its_groups(monkeypatch: pytest.MonkeyPatch):
    run = small("tensor_data", Fault.parse("slow_link:rank=2,factor=6"))
    assert scored(monkeypatch, run, culprit("communication", 2)).verdicts[0].right
    assert scored(monkeypatch, run, culprit("communication", 2, 3)).verdicts[0].right
    assert not scored(monkeypatch, run, culprit("communication", 0, 1)).verdicts[0].right


def test_healthy_jobs_and_jobs_that_the_analysis_dies_of(monkeypatch: pytest.MonkeyPatch):
    run = small("sharded")
    silent, loud = scored(monkeypatch, run), scored(monkeypatch, run, culprit("gpu_compute", 1))
    assert (silent.innocent, loud.innocent) == (True, False)
    assert misses([silent]) == []
    monkeypatch.setattr(FakeLake, "diagnose", lambda self: 1 / 0)
    dead = scored(monkeypatch, run)
    assert dead.error == "ZeroDivisionError: division by zero"
    assert not dead.innocent
    met = {target.name: target.met for target in targets([silent, loud, dead])}
    assert not met["no culprit in healthy jobs"]
    assert not met["jobs diagnosed"]
    assert any("made" in line for line in table([silent, loud]))


def test_gains_are_those_of_step_times():
    run = small("expert", Fault.parse("late_start:rank=1,ms=4,step=3"), Fault.parse("slow_gpu:rank=2,factor=1.4"))
    times = [time for time in run.step_times().values() if time is not None]
    for fault, gain in scoring._gains(run).items():
        healthy = [time for time in run.without(fault).step_times().values() if time is not None]
        assert gain == sum(times) - sum(healthy)
    assert median(times) > 0
