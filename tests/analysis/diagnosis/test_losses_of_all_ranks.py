"""What all ranks lose alike, and a slow network."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitter
from jitter.analysis.diagnosis.loss import all_ranks
from jitter.analysis.diagnosis.loss.waterfall import choose_steps
from jitter.analysis.diagnosis.model import SAVES_MORE, Culprit, IndexRange, Seen
from jitter.analysis.diagnosis.verdict import describe_advice, describe_saving, name_cause
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.replay.ladder import ProgramChange, price_changes
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import SYNC
from jitter.report.json_report import report_document
from jitter.report.text.fix_list import answer_questions
from jitter.report.views.run_overview import build_run_overview
from jitter.simulate import Fault, Job, simulate, write
from jitter.simulate.job_logs import write_logs
from tests.accuracy.layouts.job import LayoutJob
from tests.accuracy.layouts.traces import ingest_job
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.real_recordings import TRACES, needs_traces
from tests.support.simulated import ingest_run, ingest_traces, small, step_ns, true_gain_ns

SHORT: dict[str, Any] = {"ranks": 4, "steps": 6, "kernels": 60, "seed": 3}


def losses(job: Job, folder: Path, form: str = "kineto", *faults: str) -> dict[str, Culprit]:
    lake = ingest_run(simulate(job, [Fault.parse(fault) for fault in faults]), folder, form)
    return {one.cause: one for one in lake.diagnose().of_all_ranks}


@pytest.mark.parametrize("form", ["kineto", "nsys"])
def test_the_price_of_synchronising_calls_is_what_the_job_without_them_saves(tmp_path: Path, form: str):
    without, syncs = Job(**SHORT), frozenset({"loss", "before", "after"})
    with_calls = Job(**SHORT, syncs=syncs)
    (before, after) = (
        losses(job, tmp_path / name, form)["sync_calls"] for name, job in (("a", without), ("b", with_calls))
    )
    more = step_ns(with_calls) - step_ns(without)
    assert (after.gain_ns - before.gain_ns) / 5 == pytest.approx(more, rel=0.2)
    assert (after.loss_ns - before.loss_ns) / 5 == pytest.approx(more, rel=0.2)
    assert "cudaStreamSynchronize before kernel" in after.evidence[1]


@pytest.mark.parametrize(
    ("form", "told"),
    [("kineto", "3 of 3 copies per step between host and GPU use pageable"), ("nsys", "all use pinned host memory")],
)
def test_copies_state_the_host_memory_that_they_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, told: str
):
    monkeypatch.setattr(all_ranks, "_LIMITS", THRESHOLDS.efficiency._replace(min_share=-1.0))
    copies = losses(Job(**SHORT), tmp_path, form)["serial_copies"]
    assert copies.evidence[2].startswith(told)


@pytest.mark.parametrize(("ranks", "steps"), [(4, 4), (1, 3), (1, 1)])
def test_a_job_of_small_kernels_is_bound_by_their_launches(tmp_path: Path, ranks: int, steps: int):
    """So is one rank in a few steps, whose jitter is unknown."""
    run = simulate(Job(ranks=ranks, steps=steps, kernels=60, seed=3, cpu_bound=True), [])
    diagnosis = ingest_run(run, tmp_path, "kineto").diagnose()
    (found,) = (one for one in diagnosis.of_all_ranks if one.cause == "launch_bound")
    assert found.fraction is not None
    assert found.fraction > 0.5
    assert (found.confidence, found.recurs) == ("high", "yes" if steps > 1 else "unknown")
    of_rungs = {rung.rung: rung for rung in diagnosis.waterfall}
    assert (of_rungs["ranks"].step_time_ns is None) == (ranks == 1)
    assert (of_rungs["launch"].loss_ns or 0) > 0.5 * (of_rungs["recorded"].step_time_ns or 0)


def test_where_gaps_may_be_waits_the_least_cost_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A gap of this job may be a wait, of too little time to make prices doubtful by itself."""
    run = simulate(Job(ranks=4, steps=8, kernels=20, seed=3, cpu_bound=True), [])
    lake = ingest_run(run, tmp_path, "kineto")
    (sure,) = lake.diagnose().of_all_ranks
    monkeypatch.setattr(RunModel, "is_unexplained", True)
    shutil.rmtree(lake.root / "derived", ignore_errors=True)  # the answer that was kept
    diagnosis = jitter.open(lake.root).diagnose()
    (least,) = diagnosis.of_all_ranks
    assert (least.cause, least.confidence, sure.confidence) == ("launch_bound", "medium", "high")
    assert sure.loss_ns / 2 < least.loss_ns < sure.loss_ns
    assert least.gain_range_ns is not None
    assert least.gain_ns == least.gain_range_ns[0] <= least.gain_range_ns[1]
    assert all(rung.step_time_ns is None for rung in diagnosis.waterfall[2:])


def test_a_pause_of_one_recorded_step_may_not_recur(tmp_path: Path):
    pause = losses(Job(ranks=1, steps=1, kernels=60, seed=3), tmp_path, "kineto", "cpu_stall:rank=0,kernel=30,ms=4")
    assert (pause["cpu_launch"].confidence, pause["cpu_launch"].recurs) == ("medium", "unknown")


def test_hosts_that_wait_for_data_wait_for_no_gpu(tmp_path: Path):
    """Their gaps vary, and ends on their GPUs lie in them: what the loading costs was a range, and no finding."""
    job, chance = small("sharded", ranks=16, steps=6, kernels=120), np.random.default_rng(3)
    loads = [f"late_start:rank={rank},step={step},ms={chance.uniform(0, 6)}" for step in range(6) for rank in range(16)]
    run = simulate(job, list(map(Fault.parse, loads)))
    diagnosis = ingest_run(run, tmp_path, "kineto").diagnose()
    assert diagnosis.unexplained_fraction == 0
    late = next(finding for finding in diagnosis.findings if finding.cause == "late_start")
    assert late.gain_ns == pytest.approx(true_gain_ns(run, *map(Fault.parse, loads)), rel=0.1)


@pytest.mark.parametrize(
    ("form", "loading", "once"), [("kineto", "yes", []), ("nsys", "no", []), ("kineto", "yes", ["rank=1,step=3,ms=60"])]
)
def test_hosts_that_begin_every_step_late_are_a_finding(tmp_path: Path, form: str, loading: str, once: list[str]):
    """The call that waits for the GPU keeps data loading from being hidden: the loading is what takes the time.

    What one rank is late `once` was told of every step.
    """
    faults = f"late_start:rank=0-3,ms=4,loading={loading}"
    more_ns = step_ns(Job(**SHORT), faults) - step_ns(Job(**SHORT))
    found = losses(Job(**SHORT), tmp_path, form, faults, *(f"late_start:{late}" for late in once))
    late = found["late_start"]
    assert late.loss_ns / 5 == pytest.approx(more_ns, rel=0.1)
    assert late.gain_ns / 5 == pytest.approx(more_ns, rel=0.1)
    is_known = loading == "yes"
    assert (late.rung, late.scope, late.confidence) == ("launch", "job", "high" if is_known else "medium")
    assert any("input pipeline is too slow" in line for line in late.evidence) == is_known
    assert any("wait for another one" in line for line in late.evidence) != is_known
    assert "sync_calls" not in found
    assert "cpu_launch" not in found


def test_a_pause_of_all_hosts_in_every_step_is_a_finding(tmp_path: Path):
    faults = "cpu_stall:rank=0-3,kernel=30,ms=4"
    more_ns = step_ns(Job(**SHORT), faults) - step_ns(Job(**SHORT))
    pause = losses(Job(**SHORT), tmp_path, "kineto", faults)["cpu_launch"]
    assert pause.gain_ns / 5 == pytest.approx(more_ns, rel=0.1)
    assert pause.kernel_index == IndexRange(30, 30)
    assert any("4.0" in line and line.endswith("before kernel 30") for line in pause.evidence)


@pytest.mark.parametrize(("ms", "is_said"), [(0.1, False), (0.4, True)])
def test_a_pause_of_all_hosts_is_a_finding_from_3_percent_of_a_step_on(tmp_path: Path, ms: float, is_said: bool):
    """From 5% on it was, though it was seen in each step. Hosts begin a step some 0.1 ms late without a fault."""
    job, fault = Job(**SHORT | {"kernels": 300}), f"late_start:rank=0-3,ms={ms}"
    found = ingest_run(simulate(job, [Fault.parse(fault)]), tmp_path).diagnose()
    shares = [one.fraction for one in found.of_all_ranks if one.cause == "late_start"]
    paused = 1 - step_ns(job) / step_ns(job, fault)
    assert shares == ([pytest.approx(paused, abs=0.01)] if is_said else [])


def test_of_pauses_that_may_begin_with_a_wait_what_is_left_after_it_is_a_finding(tmp_path: Path):
    """No wait that varies as these pauses do explains them, so they cost nothing that was said."""
    chance = np.random.default_rng(4)
    stalls = [(rank, step, chance.uniform(4.0, 6.0)) for step in range(10) for rank in range(4)]
    faults = [f"cpu_stall:rank={rank},step={step},kernel=150,ms={ms:.3f}" for rank, step, ms in stalls]
    job = Job(ranks=4, steps=10, kernels=300, seed=3)
    found = ingest_run(simulate(job, [Fault.parse(fault) for fault in faults]), tmp_path).diagnose()
    assert found.unexplained_fraction is not None
    assert found.unexplained_fraction > 0.1
    (paused,) = [one for one in found.of_all_ranks if one.cause == "cpu_launch"]
    true_ns = step_ns(job, *faults) - step_ns(job)
    assert 0.4 * true_ns <= paused.loss_ns / len(paused.steps) <= true_ns


def test_many_pauses_are_no_wait_for_one_rank(tmp_path: Path):
    faults = [f"cpu_stall:rank=0-3,kernel={kernel},ms=2" for kernel in (20, 30, 40)]
    pauses = losses(Job(**SHORT), tmp_path, "kineto", *faults)["cpu_launch"]
    assert pauses.confidence == "high"
    assert not any("wait for another one" in line for line in pauses.evidence)


def test_a_step_loses_to_pauses_what_its_rungs_lose(tmp_path: Path):
    faults = [Fault.parse(fault) for fault in ("late_start:rank=0-3,ms=4", "cpu_stall:rank=0-3,kernel=30,ms=1")]
    diagnosis = ingest_run(simulate(Job(**SHORT), faults), tmp_path, "kineto").diagnose()
    of_rungs = {rung.rung: rung.loss_ns or 0 for rung in diagnosis.waterfall}
    told_ns = sum(one.loss_ns for one in diagnosis.of_all_ranks if one.rung in ("sync", "launch")) / 5
    assert of_rungs["sync"] < 0.1 * of_rungs["launch"]
    assert told_ns == pytest.approx(of_rungs["sync"] + of_rungs["launch"], rel=0.1)


HEALTHY: dict[str, Job] = {
    "data parallel": Job(ranks=8, steps=4, kernels=120, seed=3),
    "of large kernels": Job(ranks=4, steps=4, kernels=120, seed=4, gpu_scale=3.0),
    "tensor parallel": Job(ranks=4, steps=4, kernels=120, seed=5, shape="tensor_parallel"),
    "expert": Job(ranks=4, steps=4, kernels=120, seed=6, shape="expert"),
    "with a side stream": Job(ranks=4, steps=4, kernels=120, seed=7, side_stream=21, gpu_scale=2.0),
    "one rank": Job(ranks=1, steps=4, kernels=120, seed=8),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_fast_job_has_no_such_finding(name: str, tmp_path: Path):
    assert set(losses(HEALTHY[name], tmp_path)) <= {"exposed_communication"}


def test_a_fault_of_one_rank_is_no_property_of_the_program(tmp_path: Path):
    found = losses(HEALTHY["data parallel"], tmp_path, "kineto", "slow_gpu:rank=3,factor=1.5")
    assert set(found) <= {"exposed_communication"}


@fuzz
@pytest.mark.parametrize(
    "shape", some_of(["data_parallel", "tensor_parallel", "sharded", "pipeline", "expert"], 2, first=1)
)
def test_an_unchanged_program_saves_nothing(shape: str, tmp_path: Path):
    job = Job(ranks=4, steps=4, kernels=100, seed=2, shape=shape, launch_queue=24, syncs=frozenset({"loss"}))
    analysis = ingest_run(simulate(job, []), tmp_path).analyze()
    assert len(analysis.measured.statistics.qualities) == 4
    unchanged = ProgramChange("host_time", np.zeros(len(analysis.run.job.kind), np.bool_))
    assert price_changes(analysis.steps, [unchanged], 0, 4) == [pytest.approx(0.0, abs=1e-3)]


def test_the_steps_that_are_replayed_follow_each_other(tmp_path: Path):
    lake = ingest_run(simulate(Job(ranks=1, steps=30, kernels=20), []), tmp_path)
    keys = [key for key in lake.step_keys if key.step not in (4, 20)]
    first, last = choose_steps(lake.run_reader(keys))
    assert [key.step for key in keys[first:last]] == [8, 9, 10, 11, 12, 13, 14, 15]


@needs_traces
def test_real_pair_waits_in_one_call_a_step(tmp_path: Path):
    """One cudaStreamSynchronize of 9.8 ms in a step of 16.7 ms; independently: its GPUs idle for 2.2 ms a step."""
    lake = ingest_traces(tmp_path, TRACES / "nsys" / "nsysai_mfu_2gpu_before.sqlite")
    diagnosis, analysis = lake.diagnose(), lake.analyze()
    (waiting,) = (one for one in diagnosis.of_all_ranks if one.cause == "sync_calls")
    run_ns = sum(step.step_time_ns or 0 for step in diagnosis.steps)
    assert THRESHOLDS.efficiency.min_share < waiting.gain_ns / run_ns < 0.13
    assert waiting.evidence[1].startswith("1 call per step; cudaStreamSynchronize after the last kernel takes 9.")
    kinds = analysis.run.job.kind
    assert int((kinds == SYNC).sum()) == 1


@needs_traces
def test_real_copies_that_run_alone(tmp_path: Path):
    """Eight copies to the GPU on the stream of the kernels take 27.9 of 29.3 ms."""
    lake = ingest_traces(tmp_path, TRACES / "nsys" / "nsysai_h100_2gpu_1s.sqlite")
    found = {one.cause: one for one in lake.diagnose().of_all_ranks}
    copied = lake.sql(
        "select avg(ns) as ns from (select sum(duration_ns) as ns from kernels where rank = 0 and "
        "copy_direction = 'host_to_device' group by step)",
        arrow=True,
    ).to_pylist()[0]["ns"]
    copies = found["serial_copies"]
    assert copies.evidence[2] == "all use pinned host memory"
    assert copies.gain_ns == pytest.approx(8 * copied, rel=0.1)


@needs_traces
def test_real_small_kernels(tmp_path: Path):
    """Of 1,025 kernels a step most take 4 µs, and the host launches one in 37 µs."""
    lake = ingest_traces(tmp_path, TRACES / "kineto" / "amd-4rank")
    diagnosis = lake.diagnose()
    found = {one.cause: one for one in diagnosis.of_all_ranks}
    # idle, or in a collective that waits for another rank's host
    most = "select sum(idle_ns + waiting_ns) / sum(step_ns) as share from breakdown"
    not_busy = lake.sql(most, arrow=True).to_pylist()[0]["share"]
    assert set(found) == {"launch_bound", "cpu_launch"}
    run_ns = sum(step.step_time_ns or 0 for step in diagnosis.steps)
    assert 0.25 < found["launch_bound"].gain_ns / run_ns < not_busy
    # of 1,025 kernels a few come after pauses of up to 0.9 ms, and two operations come after pauses before the second
    told = "the hosts pause 6.64 ms per step: 1.30 ms before kernel 1, 891 µs before kernel 1025"
    assert any(line.startswith(told) for line in found["cpu_launch"].evidence)
    # without any late launch no rank waits in collectives for another one's host either
    assert sum(one.loss_ns for one in found.values()) > found["launch_bound"].gain_ns


def test_transfers_of_some_ranks_may_hold_waits_for_the_others(tmp_path: Path):
    write(simulate(Job(**SHORT), [Fault.parse("slow_collective:factor=8")]), tmp_path / "traces", "kineto")
    found = {}
    for name, traces in (("all", "*.json*"), ("two", "rank-[01].*"), ("one", "rank-0.*")):
        shown = ingest_traces(tmp_path / name, *(tmp_path / "traces").glob(traces)).diagnose().of_all_ranks
        found[name] = next(one for one in shown if one.cause == "exposed_communication")
    assert {name: one.confidence for name, one in found.items()} == {"all": "medium", "two": "low", "one": "low"}
    assert [any("waiting" in text for text in one.evidence) for one in found.values()] == [False, True, True]
    # the first thing to do about it is to record them
    assert ["record or ingest the ranks that are missing" in describe_advice(one) for one in found.values()] == [
        False,
        True,
        True,
    ]
    assert ["unrecorded" in name_cause(one) for one in found.values()] == [False, True, True]


def test_transfers_without_partners_may_hold_waits_for_them(tmp_path: Path):
    """Ranks leave a message so far apart that their ends match none: all waits seem transfers."""
    job = LayoutJob(12, shape="pipeline", naming="column", end_spread_ns=3e4)
    (found,) = (one for one in ingest_job(job, tmp_path).diagnose().of_all_ranks if one.rung == "overlap")
    assert found.confidence == "low"
    assert name_cause(found).endswith(", or waiting for partners")
    assert "record which ranks exchange" in describe_advice(found)


def test_the_only_rank_of_a_job_waits_for_no_other(tmp_path: Path):
    """The groups of its collectives have one member: there is none to record, and nothing to transfer."""
    lake = ingest_run(simulate(Job(**{**SHORT, "ranks": 1}), [Fault.parse("slow_collective:factor=8")]), tmp_path)
    (found,) = (one for one in lake.diagnose().of_all_ranks if one.cause == "exposed_communication")
    assert found.confidence == "medium"
    assert not any("waiting" in text for text in found.evidence)
    assert describe_advice(found).startswith("runs collectives of which it is the only member")


def test_a_saving_counts_no_step_that_leads_from_the_recording_to_the_changed_program(tmp_path: Path):
    """All that is left to gain in a job without jitter is what its program loses; it was a third more."""
    found = losses(Job(ranks=4, steps=4, kernels=120), tmp_path, "kineto", "slow_collective:factor=6")
    communication = found["exposed_communication"]
    assert communication.gain_ns == pytest.approx(communication.loss_ns, rel=0.05)


def test_a_saving_above_the_loss_says_that_jitter_is_part_of_it(tmp_path: Path):
    """Without the call that every step waits in, a pause of one rank is hidden, too."""
    job = Job(**SHORT, syncs=frozenset({"loss", "before", "after"}))
    calls = losses(job, tmp_path, "kineto", *(f"cpu_stall:rank=2,step={step},kernel=17,ms=2" for step in (1, 3, 4)))
    found = calls["sync_calls"]
    assert found.gain_ns > found.loss_ns
    assert found.evidence[0].endswith(" per step" + SAVES_MORE)
    assert describe_saving(found).endswith(SAVES_MORE)


JOB = Job(ranks=8, steps=4, kernels=120, seed=3)
SLOW = Fault.parse("slow_collective:factor=6")


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, "jitter.Lake"]:
    """The job with a slow network, in two formats, and with a healthy one; each with its benchmark."""
    found = {}
    for name, faults, form in (("kineto", [SLOW], "kineto"), ("nsys", [SLOW], "nsys"), ("healthy", [], "kineto")):
        run, folder = simulate(JOB, faults), tmp_path_factory.mktemp(name)
        write(run, folder / "traces", form, **({"layout": "2026.2"} if form == "nsys" else {}))
        write_logs(run, folder / "traces")
        found[name] = ingest_traces(folder)
    return found


@pytest.mark.parametrize("form", ["kineto", "nsys"])
def test_a_slow_network_is_one_finding_of_the_job(lakes: dict[str, "jitter.Lake"], form: str):
    found = lakes[form].diagnose()
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.ranks, culprit.cause) == ("job", tuple(range(8)), "slow_network")
    assert (culprit.rung, culprit.loss_class, culprit.is_beyond_loss) == ("network", "transfer", True)
    assert (culprit.confidence, culprit.recurs, culprit.seen) == ("high", "yes", Seen(4, 4))
    assert culprit.gain_ns == pytest.approx(true_gain_ns(simulate(JOB, [SLOW])), rel=0.1)
    assert {step.cause for step in found.steps} == {"none"}  # it slows no step more than another one
    assert "All ranks communicate more slowly than the benchmark" in found.verdict
    (bound,) = [one for one in found.efficiency if one.kind == "communication"]
    assert bound.sentence.startswith("communication without compute takes ")
    assert " GB/s (all_reduce of 26,214,400 B)" in bound.sentence
    assert bound.sentence in culprit.evidence


def test_what_a_slow_network_costs_is_the_loss_of_its_rung(lakes: dict[str, "jitter.Lake"]):
    """Jitter is what differs between ranks: it is that of the same job with a network as fast as its benchmark."""
    found, fast = lakes["kineto"].diagnose(), lakes["healthy"].diagnose()
    (culprit,), timed = found.culprits, [step for step in found.steps if step.loss_ns is not None]
    rungs = {one.rung: one for one in found.waterfall}
    assert rungs["steps"].step_time_ns is not None
    assert rungs["network"].step_time_ns is not None
    per_step = rungs["steps"].step_time_ns - rungs["network"].step_time_ns
    assert rungs["network"].loss_ns == per_step
    assert culprit.loss_ns == pytest.approx(per_step * len(timed), abs=len(timed))
    assert culprit.loss_ns == pytest.approx(culprit.gain_ns, rel=0.05)
    time_ns = sum(step.step_time_ns or 0 for step in timed)
    assert culprit.fraction == pytest.approx(culprit.loss_ns / time_ns)
    # recorded step time = what is left at the last rung + the losses of all rungs
    judged = [one for one in rungs.values() if one.step_time_ns is not None]
    assert rungs["recorded"].step_time_ns == sum(one.loss_ns or 0 for one in judged) + (judged[-1].step_time_ns or 0)
    assert rungs["recorded"].step_time_ns == pytest.approx(time_ns / len(timed), abs=1)
    assert found.loss.ns == pytest.approx(fast.loss.ns, abs=0.01 * time_ns)
    assert found.what_if.all_repaired_ns == found.loss.ns
    assert (found.what_if.culprits_repaired_ns or 0) <= (found.loss.ns or 0)


def test_the_healthy_network_is_silent(lakes: dict[str, "jitter.Lake"]):
    found = lakes["healthy"].diagnose()
    assert found.culprits == ()
    assert found.conclusion.status == "within_noise"
    assert found.conclusion.cleared == ("rank", "host", "link")
    assert [one.kind for one in found.efficiency] == ["compute_bound"]


def test_a_job_whose_ranks_wait_for_one_is_not_compute_bound(tmp_path: Path):
    found = ingest_run(simulate(JOB, [Fault.parse("slow_gpu:rank=2,factor=1.5")]), tmp_path).diagnose()
    assert found.loss.fraction == pytest.approx(0.31, abs=0.03)
    assert found.efficiency == ()


def test_without_a_benchmark_no_link_is_cleared(tmp_path: Path):
    """A network that is slow for all ranks in every step looks like a healthy one: the report must say so.

    So does one rank's link that all wait for: neither is any rank or host cleared.
    """
    lake = ingest_run(simulate(JOB, [SLOW]), tmp_path)
    found, facts = lake.diagnose(), build_run_overview(lake, lake.step_keys)
    assert found.conclusion.cleared == ()
    said = report_document(found, facts)
    assert said["conclusion"]["cleared"] == []
    assert said["conclusion"]["unverified_transfers"] > 0.02
    assert "a network that is slow for all ranks in every step is not excluded" in found.verdict
    (limit,) = (note for note in found.notes if "nccl-tests" in note)
    assert limit in said["run"]["warnings"]
    assert "jitter compare" in limit
    answers = {one.question: one.answer for one in answer_questions(found, lake.hosts)}
    assert answers["CPU or GPU?"] == "Neither: the network (communication that nothing hides)."
    assert answers["When in the step does it begin?"] == "At no single kernel."


def test_transfers_that_take_no_time_need_no_benchmark(tmp_path: Path):
    """Slow or not, transfers that take less than 2% of the time cannot cost more."""
    found = ingest_run(simulate(JOB, []), tmp_path).diagnose()
    assert found.conclusion.cleared == ("rank", "host", "link")
    assert found.conclusion.unverified_transfers is None
    assert "network" not in found.verdict


def test_pauses_of_all_hosts_cost_the_steps_that_have_them(tmp_path: Path):
    paused = Fault.parse("cpu_stall:rank=0-3,kernel=30,ms=4,step=1-6+8-9")
    run = simulate(small(ranks=4, steps=10, kernels=60), [paused])
    (loss,) = [one for one in ingest_run(run, tmp_path).diagnose().of_all_ranks if one.cause == "cpu_launch"]
    assert (loss.seen, [key.step for key in loss.steps]) == (Seen(8, 9), [1, 2, 3, 4, 5, 6, 8, 9])
    assert loss.step_pattern.words == "nearly every step (8 of 9)"
    assert loss.loss_ns == pytest.approx(true_gain_ns(run, paused), rel=0.01)
    assert any("in each of these steps: 4.01 ms before kernel 30" in line for line in loss.evidence)


def test_pauses_of_all_hosts_in_half_of_the_recorded_steps_are_slow_steps(tmp_path: Path):
    """The first step has no time, so of those that have one most are slow."""
    paused = Fault.parse("cpu_stall:rank=0-3,kernel=30,ms=4,step=1+2+5")
    run = simulate(small(ranks=4, steps=6, kernels=60), [paused])
    found = ingest_run(run, tmp_path).diagnose()
    (slow,) = [one for one in found.culprits if one.rung == "steps"]
    assert (slow.ranks, slow.cause, [key.step for key in slow.steps]) == ((0, 1, 2, 3), "cpu_launch", [1, 2, 5])
    assert slow.gain_ns == pytest.approx(true_gain_ns(run, paused), rel=0.02)
    assert not [one for one in found.of_all_ranks if one.cause == "cpu_launch"]
