"""What is concluded of a finding: its cause, its confidence, whether it recurs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jitter.analysis.detection.findings import of_one_rank
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.diagnosis.causes import Judgement
from jitter.analysis.diagnosis.confidence import judge_confidence
from jitter.analysis.diagnosis.evidence.workload import WorkloadComparison, compare_launch_shapes
from jitter.analysis.diagnosis.grouping.finding_groups import FindingGroup
from jitter.analysis.diagnosis.grouping.scopes import RankGroup
from jitter.analysis.diagnosis.model import Culprit, Seen
from jitter.analysis.execution.run_reader import LaunchShapes
from jitter.analysis.execution.self_times import TimePart
from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run


def comparison(factors: tuple[float, ...], noise: float = 0.01, seed: int = 0) -> WorkloadComparison:
    """Return one with a kernel name per factor, 12 operations each; the last name has a tenth of the time."""
    rng = np.random.default_rng(seed)
    times = []
    for name, factor in enumerate(factors):
        usual = 10_000.0 if name == len(factors) - 1 else 90_000.0 / (len(factors) - 1)
        times += [(name, usual * factor * float(1 + noise * rng.standard_normal()), usual) for _ in range(12)]
    return WorkloadComparison(times=tuple(times))


@pytest.mark.parametrize("seed", range(10))
def test_a_slow_clock_slows_all_kernels(seed: int):
    assert comparison((1.2, 1.2, 1.1, 1.1), 0.03, seed).unaffected_share(0.3) == 0.0


@pytest.mark.parametrize("seed", range(10))
def test_more_work_leaves_the_optimizer_as_it_is(seed: int):
    assert comparison((1.2, 1.2, 1.44, 1.0), 0.03, seed).unaffected_share(0.3) == pytest.approx(0.1, abs=0.02)


def test_nothing_is_unaffected_of_what_is_not_slower():
    assert comparison((0.9, 1.0, 0.95, 1.0)).unaffected_share(0.3) == 0.0
    assert WorkloadComparison().unaffected_share(0.3) == 0.0


def test_one_operation_tells_nothing():
    found = WorkloadComparison(times=((0, 120.0, 100.0), (1, 100.0, 100.0)))
    assert found.unaffected_share(0.3) == 0.0


def step_of(names: list[int], factors: list[float]) -> WorkloadComparison:
    """Rank 0 of three, on each of which the same kernels run in launches of the same size."""
    rng = np.random.default_rng(3)
    baseline = np.full(len(names), 50_000.0)
    gpu = baseline * factors * (1 + 0.002 * rng.standard_normal(len(names)))
    shapes = [LaunchShapes(np.array(names), np.full(len(names), 1_024.0)) for _ in range(3)]
    rows = np.repeat(np.arange(len(names))[:, None], 3, axis=1)
    return compare_launch_shapes(rows, gpu, baseline, 0, shapes)


def test_kernels_after_the_last_slow_one_tell_something_if_they_occur_nowhere_else():
    """More work in launches of a fixed size: the optimizer comes last, and has no more of it."""
    found = step_of([0, 1] * 10 + [2, 2], [1.3] * 20 + [1.0] * 2)
    assert found.unaffected_share(0.3) == pytest.approx(2 / 22, abs=0.01)


def test_a_clock_that_is_slow_for_a_part_of_a_step_is_seen_by_kernels_that_occur_in_both_parts():
    found = step_of([0, 1] * 12, [1.0] * 10 + [1.3] * 14)
    assert found.unaffected_share(0.3) == 0.0


JOB = {"ranks": 8, "steps": 10, "kernels": 40, "gpus_per_node": 4, "marker": "profiler", "epoch": None, "seed": 3}


def find(folder: Path, *faults: str, **more: object) -> tuple[Culprit, ...]:
    run = simulate(Job(**{**JOB, **more}), [Fault.parse(fault) for fault in faults])  # type: ignore[arg-type]
    return ingest_run(run, folder).diagnose().culprits


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_one_long_pause_is_certain_and_its_recurrence_unknown(tmp_path: Path, ranks: int):
    """More than 10 standard deviations in one step: few ranks and few steps do not make it less certain."""
    (one,) = find(tmp_path, "cpu_stall:rank=1,step=5,kernel=20,ms=8", ranks=ranks)
    assert (one.scope, one.ranks, one.confidence, one.seen) == ("rank", (1,), "high", Seen(1, 10))
    assert one.recurs == "unknown"
    assert one.more_steps is not None
    assert (one.rung, one.loss_class) == ("ranks", "launch")


def test_the_steps_to_record_do_tell(tmp_path: Path):
    (once,) = find(tmp_path / "short", "cpu_stall:rank=1,step=5,kernel=20,ms=8")
    steps = 10 + (once.more_steps or 0)
    again = "+".join(map(str, range(5, steps, 10)))
    (long,) = find(tmp_path / "long", f"cpu_stall:rank=1,step={again},kernel=20,ms=8", steps=steps)
    assert (long.confidence, long.recurs) == ("high", "yes")
    assert long.seen == Seen(len(range(5, steps, 10)), steps)


def test_a_slow_gpu_recurs(tmp_path: Path):
    (one,) = find(tmp_path, "slow_gpu:rank=5,factor=1.2")
    assert (one.ranks, one.confidence, one.seen, one.recurs) == ((5,), "high", Seen(10, 10), "yes")
    assert (one.cause, one.cause_certainty, one.loss_class) == ("gpu_compute", "likely", "gpu")


def test_of_two_ranks_the_slow_one_is_certain_and_whether_it_is_unusual_unknown(tmp_path: Path):
    (one,) = find(tmp_path, "slow_gpu:rank=1,factor=1.2", ranks=2)
    assert (one.ranks, one.confidence) == ((1,), "high")
    assert (one.recurs, one.more_steps) == ("unknown", None)


def test_pauses_on_random_ranks_could_hit_any(tmp_path: Path):
    hit = [(0, 2), (3, 4), (6, 5), (1, 7), (7, 9), (4, 11), (2, 13), (5, 14)]
    faults = [f"cpu_stall:rank={rank},step={step},kernel=20,ms=5" for rank, step in hit]
    (one,) = find(tmp_path, *faults, steps=16)
    assert (one.scope, one.recurs, one.seen) == ("job", "no", Seen(8, 16))
    assert one.confidence == "high"


def test_ranks_of_a_host_are_late_together(tmp_path: Path):
    found = find(tmp_path, "cpu_stall:rank=4-7,step=5,kernel=20,ms=5", ranks=16)
    assert {rank for one in found for rank in one.ranks} == {4, 5, 6, 7}
    assert {one.recurs for one in found} == {"together"}


def test_a_stalled_loader_is_a_certain_cause_and_a_late_start_without_one_is_not(tmp_path: Path):
    (stalled,) = find(tmp_path / "loading", "late_start:rank=3,ms=5")
    assert (stalled.cause, stalled.cause_certainty, stalled.loss_class) == ("late_start", "certain", "start")
    (late,) = find(tmp_path / "other", "late_start:rank=3,ms=5,loading=no")
    assert (late.cause, late.cause_certainty) == ("late_start", "unknown")


def test_transfers_of_all_ranks_are_slow_together(tmp_path: Path):
    (one,) = find(tmp_path, "slow_collective:steps=4-5,factor=40", shape="tensor_parallel")
    assert (one.cause, one.cause_certainty, one.loss_class) == ("communication", "likely", "transfer")
    assert (one.confidence, one.recurs, one.seen) == ("high", "together", Seen(2, 10))


def judge(
    sigmas: float,
    chance: float,
    gain_ns: float = 1e6,
    other_gain_ns: float = 1e6,
    part: TimePart = TimePart.START,
    **analysis: Any,
) -> str:
    known = {"contradicts_recording": False, "is_unexplained": False, "qualities": [SimpleNamespace(uncertainty_ns=0)]}
    known |= {"gains": lambda _: [gain_ns], "bound_gains": lambda _: [other_gain_ns]}
    run = SimpleNamespace(**(known | analysis))
    run.account = run.measured = run
    evidence: Any = SimpleNamespace(
        analysis=run,
        is_doubtful=lambda _ranks, communication: communication,
        has_launches=lambda _team: True,
        pricing=SimpleNamespace(min_gain_ns=lambda _steps: 1e5),
    )
    late = of_one_rank(Outlier(0, 1, part, (0,), 1e6, sigmas, chance))
    found = FindingGroup((late,), RankGroup("rank", (1,)), Judgement("gpu_compute", "likely"))
    return judge_confidence(found, evidence)


@pytest.mark.parametrize(
    ("sigmas", "chance", "confidence"),
    [
        (3.0, 1e-5, "high"),
        (11.0, 0.04, "high"),
        (5.0, 0.005, "medium"),
        # in few steps six standard deviations occur by chance
        (8.0, 0.04, "low"),
    ],
)
def test_chance_decides_and_more_than_ten_standard_deviations(sigmas: float, chance: float, confidence: str):
    assert judge(sigmas, chance) == confidence


@pytest.mark.parametrize("doubt", ["contradicts_recording", "is_unexplained"])
def test_what_was_not_recorded_leaves_doubt(doubt: str):
    assert judge(50.0, 1e-9, **{doubt: True}) == "low"


def test_clocks_that_err_by_more_than_half_of_the_excess_leave_doubt():
    assert judge(50.0, 1e-9, qualities=[SimpleNamespace(uncertainty_ns=400_000)]) == "high"
    assert judge(50.0, 1e-9, qualities=[SimpleNamespace(uncertainty_ns=600_000)]) == "low"


@pytest.mark.parametrize(
    ("gain_ns", "other_gain_ns", "confidence"),
    [
        (1e6, 2e5, "high"),
        (1e6, 5e4, "low"),
        # masked by other findings, whatever hosts wait for
        (5e4, 5e4, "high"),
    ],
)
def test_waits_that_may_leave_nothing_to_save_leave_doubt(gain_ns: float, other_gain_ns: float, confidence: str):
    assert judge(50.0, 1e-9, gain_ns, other_gain_ns) == confidence
    assert judge(50.0, 1e-9, gain_ns, other_gain_ns, TimePart.GPU) == "high"
