"""What is concluded of a finding: its cause, its confidence, whether it recurs."""

import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jitter.analysis.detection.awaited_ranks import MAY_WAIT
from jitter.analysis.detection.findings import Finding
from jitter.analysis.detection.run_account import RunAccount
from jitter.analysis.diagnosis.causes import Judgement
from jitter.analysis.diagnosis.culprits import judge_confidence
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.evidence.workload import WorkloadComparison, compare_launch_shapes
from jitter.analysis.diagnosis.finding_groups import FindingGroup, RankGroup, join_as_slow
from jitter.analysis.diagnosis.model import Culprit, Seen
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.run_reader import LaunchShapes
from jitter.analysis.execution.self_times import TimePart
from jitter.simulate import Fault, Job, Run, simulate
from tests.support.findings import evidence_of, late_rank
from tests.support.simulated import ingest_run, ingest_traces, small, write_traces


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


def step_of(names: list[int], factors: list[float], copy: int | None = None) -> WorkloadComparison:
    """Rank 0 of three, on each of which the same kernels run in launches of the same size."""
    rng = np.random.default_rng(3)
    baseline = np.full(len(names), 50_000.0)
    gpu = baseline * factors * (1 + 0.002 * rng.standard_normal(len(names)))
    shapes = [LaunchShapes(np.array(names), np.full(len(names), 1_024.0)) for _ in range(3)]
    rows = np.repeat(np.arange(len(names))[:, None], 3, axis=1)
    return compare_launch_shapes(rows, gpu, baseline, np.array([name == copy for name in names]), 0, shapes)


def test_kernels_after_the_last_slow_one_tell_something_if_they_occur_nowhere_else():
    """More work in launches of a fixed size: the optimizer comes last, and has no more of it."""
    found = step_of([0, 1] * 10 + [2, 2], [1.3] * 20 + [1.0] * 2)
    assert found.unaffected_share(0.3) == pytest.approx(2 / 22, abs=0.01)


def test_copies_between_host_and_gpu_do_not_tell_whether_all_kernels_are_slower():
    """A slow GPU whose job offloads its optimizer was taken for more work."""
    names, factors = [0, 1] * 10 + [2, 2], [1.3] * 20 + [1.0] * 2
    assert step_of(names, factors, copy=2).unaffected_share(0.3) == 0.0


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


def test_a_rank_of_more_micro_batches_has_more_work(tmp_path: Path):
    """A quarter more kernels before the same all-reduces are no other program."""
    faults = [Fault.parse(f"extra_kernel:rank=3,kernel={kernel}") for kernel in range(4, 34, 2)]
    run = simulate(small("data_parallel", kernels=60, ranks=8), faults)
    (found,) = ingest_run(run, tmp_path).diagnose().culprits
    assert (found.rank, found.cause) == (3, "workload_imbalance")
    lost_ns = sum(
        np.diff(one.last_collective_ends()).sum() * sign for one, sign in ((run, 1), (run.without(*faults), -1))
    )
    assert found.gain_ns == pytest.approx(lost_ns, rel=0.05)


def test_pauses_on_random_ranks_could_hit_any(tmp_path: Path):
    hit = [(0, 2), (3, 4), (6, 5), (1, 7), (7, 9), (4, 11), (2, 13), (5, 14)]
    faults = [f"cpu_stall:rank={rank},step={step},kernel=20,ms=5" for rank, step in hit]
    (one,) = find(tmp_path, *faults, steps=16)
    assert (one.scope, one.recurs, one.seen) == ("job", "no", Seen(8, 16))
    assert one.confidence == "high"


def test_pauses_of_a_third_of_the_ranks_in_each_step_are_no_barrier(tmp_path: Path):
    (one,) = find(tmp_path, "pause:every=3,ms=4", steps=12)
    assert (one.scope, one.recurs, one.confidence, MAY_WAIT in one.evidence) == ("job", "no", "high", False)


def test_random_pauses_are_judged_by_the_one_that_cost_most(tmp_path: Path):
    """Not by a longer one of a host that was further ahead of its GPU."""
    pauses = ("rank=2,step=3,kernel=20,ms=12", "rank=7,step=8,kernel=30,ms=8", "rank=5,step=13,kernel=10,ms=15")
    faults = [f"cpu_stall:{pause}" for pause in pauses]
    (one,) = find(tmp_path, *faults, shape="sharded", kernels=60, steps=20)
    assert (one.scope, one.ranks) == ("job", (2, 5, 7))
    assert "late launches are 100.0% of what the job loses to it" in one.evidence


def test_ranks_of_a_host_are_late_together(tmp_path: Path):
    found = find(tmp_path, "cpu_stall:rank=4-7,step=5,kernel=20,ms=5", ranks=16)
    assert {rank for one in found for rank in one.ranks} == {4, 5, 6, 7}
    assert {one.recurs for one in found} == {"together"}


def test_a_stalled_loader_is_a_certain_cause_and_a_late_start_without_one_is_not(tmp_path: Path):
    (stalled,) = find(tmp_path / "loading", "late_start:rank=3,ms=5")
    assert (stalled.cause, stalled.cause_certainty, stalled.loss_class) == ("late_start", "certain", "start")
    assert "check the data loading" in stalled.advice
    assert stalled.remedy == "more loader workers or prefetching"
    (late,) = find(tmp_path / "other", "late_start:rank=3,ms=5,loading=no")
    assert (late.cause, late.cause_certainty, late.remedy) == ("late_start", "unknown", "")
    assert "check the host" in late.advice


def test_of_three_steps_two_tell_who_starts_late(tmp_path: Path):
    (one,) = find(tmp_path, "late_start:rank=3,step=2,ms=5", steps=3)
    assert (one.ranks, one.cause, one.seen, one.recurs) == ((3,), "late_start", Seen(1, 3), "unknown")


def test_transfers_of_all_ranks_are_slow_together(tmp_path: Path):
    (one,) = find(tmp_path, "slow_collective:steps=4-5,factor=40", shape="tensor_parallel")
    assert (one.cause, one.cause_certainty, one.loss_class) == ("communication", "likely", "transfer")
    assert (one.confidence, one.recurs, one.seen) == ("high", "together", Seen(2, 10))


@pytest.mark.parametrize(("steps", "cause"), [("2+5+8+11", "gpu_time"), ("2+5+9+11", "gpu_compute")])
def test_kernels_of_all_ranks_that_take_longer_in_every_third_step_may_have_more_work(
    tmp_path: Path, steps: str, cause: str
):
    """As those of a program that does something else in every third step."""
    (one,) = find(tmp_path, f"slow_gpu:rank=0-7,step={steps},factor=1.6", steps=12)
    assert (one.ranks, one.cause) == (tuple(range(8)), cause)
    assert ("what the program does otherwise" in one.advice) == (cause == "gpu_time")


@pytest.mark.parametrize(
    ("work", "has_sizes", "said", "certainty", "confidence"),
    [
        ((), True, "NVLink", "likely", "high"),
        (("unequal_work:rank=5,factor=1.6",), True, "NVLink", "likely", "high"),
        (("unequal_work:rank=5,factor=1.6",), False, "router", "unknown", "low"),
    ],
)
def test_all_to_alls_of_a_rank_with_more_work_may_carry_more(
    tmp_path: Path, work: tuple[str, ...], has_sizes: bool, said: str, certainty: str, confidence: str
):
    """As of a hot expert, if no recorded size shows that they do not. The fault is in those of ranks 4 to 7."""
    slow = replace(Fault.parse("slow_link:rank=5,factor=6"), kernels=frozenset({6, 11, 23, 33}))
    run = simulate(Job(**JOB, shape="expert", experts=4), [slow, *map(Fault.parse, work)])  # type: ignore[arg-type]
    for path in write_traces(run, tmp_path / "traces"):
        path.write_text(path.read_text() if has_sizes else re.sub(r"(In|Out) msg nelems", "size", path.read_text()))
    (one,) = (one for one in ingest_traces(tmp_path).diagnose().culprits if one.cause == "communication")
    assert (one.ranks, one.cause_certainty, one.confidence) == ((4, 5, 6, 7), certainty, confidence)
    assert said in one.advice


def with_slower_host(factor: float, spread: float, steps: int = 8) -> Run:
    """A job whose hosts pause before each third of the kernels, those of the first node `factor` times as long."""
    pauses = np.random.default_rng(0).lognormal(0.0, spread, (16, steps, 4))
    faults = [
        Fault.parse(
            f"cpu_stall:rank={rank},step={step},kernel={9 * part + 9},ms={ms * (factor if rank < 8 else 1):.4f}"
        )
        for (rank, step, part), ms in np.ndenumerate(pauses)
    ]
    return simulate(Job(**{**JOB, "ranks": 16, "gpus_per_node": 8, "steps": steps}), faults)  # type: ignore[arg-type]


def test_a_host_whose_ranks_are_the_slower_half_is_named_with_what_each_takes_longer(tmp_path: Path):
    (one,) = ingest_run(with_slower_host(1.5, 0.2), tmp_path, "nsys").diagnose().culprits
    assert (one.scope, one.host, one.ranks, one.cause) == ("host", "node0000", tuple(range(8)), "cpu_launch")
    # 4 pauses of 1 ms, half as long again
    assert one.evidence[0].startswith("2.0"), one.evidence


def test_a_host_that_loses_nearly_all_is_named_though_no_rank_stands_out(tmp_path: Path):
    """Noise explains as much, but not that it always meets the same host."""
    (one,) = ingest_run(with_slower_host(1.4, 0.35), tmp_path / "slower", "nsys").diagnose().culprits
    assert (one.scope, one.host, one.ranks, one.confidence) == ("host", "node0000", tuple(range(8)), "low")
    assert any("8 of 16 ranks hold up the job in turn" in text for text in one.evidence)
    assert one.recurs == "yes"
    assert ingest_run(with_slower_host(1.0, 0.35), tmp_path / "equal", "nsys").diagnose().culprits == ()


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """A job that nothing ails: what is judged by it is a finding that a test states."""
    return evidence_of(ingest_run(simulate(Job(**JOB)), tmp_path_factory.mktemp("healthy")))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("groups", "joined"),
    [
        # as those of experts and of pairs of tensor parallelism
        ([("a", (0, 1)), ("a", (2, 3)), ("a", (0, 2))], [("host", (0, 1, 2, 3))]),
        ([("a", (0, 1)), ("a", (2, 3)), ("b", (4, 5))], [("ranks", (0, 1, 2, 3, 4, 5))]),
        ([(None, (0, 4)), (None, (1, 5))], [("ranks", (0, 1, 4, 5))]),
        ([(None, (0, 4)), (None, (0, 5))], [("ranks", (0, 4)), ("ranks", (0, 5))]),
    ],
)
def test_links_that_are_slow_in_the_same_steps_are_one_finding_if_each_alone_saves_nothing(
    healthy: Evidence, groups: list[tuple[str | None, tuple[int, ...]]], joined: list[tuple[str, tuple[int, ...]]]
):
    def slow_group(host: str | None, ranks: tuple[int, ...]) -> FindingGroup:
        steps = dict.fromkeys(ranks, (1, 2))
        transfers = Finding("slow_transfers", TimePart.TRANSFER, steps, 1e6, 20.0, transfers=(0,))
        place = RankGroup("ranks" if host is None else "host", ranks, host)
        return FindingGroup((transfers,), place, Judgement("communication", "likely"))

    slow = [slow_group(*of_host) for of_host in groups]
    assert [(one.group.scope, one.group.ranks) for one in join_as_slow(slow, healthy)] == joined


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
def test_chance_decides_and_more_than_ten_standard_deviations(
    healthy: Evidence, sigmas: float, chance: float, confidence: str
):
    stated = late_rank(1, TimePart.START, (1,), sigmas=sigmas, chance=chance)
    assert judge_confidence(stated, healthy) == confidence


@pytest.mark.parametrize(("owner", "doubt"), [(RunAccount, "contradicts_recording"), (RunModel, "is_unexplained")])
def test_what_was_not_recorded_leaves_doubt(
    healthy: Evidence, monkeypatch: pytest.MonkeyPatch, owner: type, doubt: str
):
    assert judge_confidence(late_rank(1, sigmas=50.0), healthy) == "high"
    monkeypatch.setattr(owner, doubt, True)
    healthy.analysis.account.__dict__.pop(doubt, None)  # known from before
    assert judge_confidence(late_rank(1, sigmas=50.0), healthy) == "low"


def test_clocks_that_err_by_more_than_half_of_the_excess_leave_doubt(
    healthy: Evidence, monkeypatch: pytest.MonkeyPatch
):
    measured = healthy.analysis.measured
    for uncertainty_ns, confidence in ((400_000, "high"), (600_000, "low")):
        qualities = [replace(quality, uncertainty_ns=uncertainty_ns) for quality in measured.statistics.qualities]
        with monkeypatch.context() as patched:
            patched.setattr(measured, "statistics", measured.statistics._replace(qualities=qualities))
            assert judge_confidence(late_rank(1, excess_ns=1e6, sigmas=50.0), healthy) == confidence


@pytest.mark.parametrize(
    ("gain", "other_gain", "confidence"),
    [
        (10.0, 2.0, "high"),
        (10.0, 0.5, "low"),
        # masked by other findings, whatever hosts wait for
        (0.5, 0.5, "high"),
    ],
)
def test_waits_that_may_leave_nothing_to_save_leave_doubt(
    healthy: Evidence, monkeypatch: pytest.MonkeyPatch, gain: float, other_gain: float, confidence: str
):
    """Gains are in units of the least that is worth a report."""
    least_ns = healthy.pricing.min_gain_ns((1,))
    monkeypatch.setattr(healthy.analysis, "gains", lambda _: [gain * least_ns])
    monkeypatch.setattr(healthy.analysis, "bound_gains", lambda _: [other_gain * least_ns])
    assert judge_confidence(late_rank(1, TimePart.START, (1,), sigmas=50.0), healthy) == confidence
    assert judge_confidence(late_rank(1, TimePart.GPU, (1,), sigmas=50.0), healthy) == "high"


@pytest.mark.parametrize(("work", "differing"), [(1.0, 4), (1.2, 0)])
def test_larger_launches_of_a_larger_batch_are_no_more_work_than_the_baseline(work: float, differing: int):
    """A rank without peers is compared with its usual times for batches of this size."""
    threads = [np.full(4, of_step) for of_step in (1_200.0, 1_000.0, 1_000.0)]
    rows, shapes = np.repeat(np.arange(4)[:, None], 3, axis=1), [LaunchShapes(np.arange(4), of) for of in threads]
    usual_ns = np.full(4, 50_000.0)
    found = compare_launch_shapes(rows, 1.3 * usual_ns, usual_ns, np.zeros(4, np.bool_), 0, shapes, work)
    assert (found.operations, found.differing) == (4, differing)


def test_a_slow_host_that_costs_most_before_the_first_kernel_has_the_class_of_that_loss(tmp_path: Path):
    faults = ["slow_cpu:rank=1,factor=3", "late_start:rank=1,ms=1,loading=no"]
    run = simulate(small(ranks=4, steps=8), [Fault.parse(fault) for fault in faults])
    found = ingest_run(run, tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.cause, culprit.loss_class) == ("cpu_launch", "start")
    assert max(found.split, key=lambda share: share.ns).loss_class == "start"
    assert "late launches are 29.8% of what the job loses to it, late step starts 69.7%" in culprit.evidence


@pytest.mark.parametrize(("others", "steps", "is_said"), [(1, "", True), (4, "", False), (1, ",steps=4", False)])
def test_a_gpu_of_another_model_than_most_that_is_always_slow_is_said_to_be_one(
    tmp_path: Path, others: int, steps: str, is_said: bool
):
    run = simulate(small(steps=6), [Fault.parse(f"slow_gpu:rank=2,factor=1.4{steps}")])
    for file in sorted(write_traces(run, tmp_path / "traces", "nsys"), key=lambda file: "2" not in file.stem)[:others]:
        with closing(sqlite3.connect(file)) as recording, recording:
            recording.execute("UPDATE TARGET_INFO_GPU SET name = 'NVIDIA A100'")
    (slow,) = ingest_traces(tmp_path).diagnose().culprits
    assert (slow.ranks, slow.cause) == ((2,), "gpu_compute")
    assert slow.cause_certainty == ("certain" if is_said else "likely")
    assert ("its GPU is NVIDIA A100, and that of most ranks NVIDIA H100 80GB HBM3" in slow.evidence) == is_said


def test_ranks_that_share_their_work_show_that_it_is_uneven(tmp_path: Path):
    """Sequences of unlike lengths, one for each tensor-parallel group and step, in launches of one size."""
    longer = np.random.default_rng(3).uniform(1.0, 1.6, (4, 10)).round(2).tolist()
    lengths = [
        Fault.parse(f"slow_gpu:ranks={4 * group}-{4 * group + 3},steps={step},factor={factor}")
        for group, of_steps in enumerate(longer)
        for step, factor in enumerate(of_steps)
    ]
    run = simulate(Job(ranks=16, steps=10, kernels=60, seed=3, shape="tensor_data", tensor=4), lengths)
    uneven = next(one for one in ingest_run(run, tmp_path).diagnose().culprits if one.rung == "ranks")
    assert (uneven.scope, uneven.cause, uneven.cause_certainty) == ("job", "workload_imbalance", "likely")
    assert "ranks that share their work take longer in the same steps" in uneven.evidence
