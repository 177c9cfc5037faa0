"""A network that is slow for all ranks in all steps is seen by the bandwidth benchmark in the lake."""

from pathlib import Path

import pytest

import jitter
from jitter.analysis.diagnosis.loss.waterfall import build_waterfall
from jitter.analysis.diagnosis.model import Seen
from jitter.report.json_report import report_document
from jitter.report.text.questions import answer_questions
from jitter.report.views.run_overview import build_run_overview
from jitter.simulate import Fault, Job, Run, simulate, write
from jitter.simulate.job_logs import write_logs
from tests.support.simulated import ingest_run

JOB = Job(ranks=8, steps=4, kernels=120, seed=3)
SLOW = Fault.parse("slow_collective:factor=6")


def lake_of(run: Run, folder: Path, form: str = "kineto", **options: str) -> "jitter.Lake":
    traces = folder / "traces"
    write(run, traces, form, **options)
    write_logs(run, traces)
    assert jitter.ingest([traces], folder / "lake", executor=jitter.LocalExecutor()).refused == []
    return jitter.open(folder / "lake")


@pytest.mark.parametrize(("form", "options"), [("kineto", {}), ("nsys", {"layout": "2026.2"})])
def test_a_slow_network_is_one_finding_of_the_job(tmp_path: Path, form: str, options: dict[str, str]):
    run = simulate(JOB, [SLOW])
    found = lake_of(run, tmp_path, form, **options).diagnose()
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.ranks, culprit.cause) == ("job", tuple(range(8)), "slow_network")
    assert (culprit.rung, culprit.loss_class, culprit.is_beyond_loss) == ("network", "transfer", True)
    assert (culprit.confidence, culprit.recurs, culprit.seen) == ("high", "yes", Seen(4, 4))
    ends, without = run.last_collective_ends(), run.without().last_collective_ends()
    true_gain = ends[-1] - ends[0] - (without[-1] - without[0])
    assert culprit.gain_ns == pytest.approx(true_gain, rel=0.1)
    assert {step.cause for step in found.steps} == {"none"}  # it slows no step more than another one
    assert "All ranks communicate more slowly than the benchmark" in found.verdict
    (bound,) = [one for one in found.efficiency if one.kind == "communication"]
    assert bound.sentence.startswith("communication without compute takes ")
    assert " GB/s (all_reduce of 26,214,400 B)" in bound.sentence
    assert bound.sentence in culprit.evidence


def test_what_a_slow_network_costs_is_the_loss_of_its_rung(tmp_path: Path):
    """Jitter is what differs between ranks: it is that of the same job with a network as fast as its benchmark."""
    found = lake_of(simulate(JOB, [SLOW]), tmp_path / "slow").diagnose()
    fast = lake_of(simulate(JOB, []), tmp_path / "fast").diagnose()
    (culprit,), timed = found.culprits, [step for step in found.steps if step.loss_ns is not None]
    rungs = {one.rung: one for one in build_waterfall(found.steps, found.lower_rungs)}
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


def test_the_healthy_network_is_silent(tmp_path: Path):
    found = lake_of(simulate(JOB, []), tmp_path).diagnose()
    assert found.culprits == ()
    assert found.conclusion.status == "within_noise"
    assert found.conclusion.cleared == ("rank", "host", "link")
    assert [one.kind for one in found.efficiency] == ["compute_bound"]


def test_without_a_benchmark_no_link_is_cleared(tmp_path: Path):
    """A network that is slow for all ranks in every step looks like a healthy one: the report must say so."""
    lake = ingest_run(simulate(JOB, [SLOW]), tmp_path)
    found, facts = lake.diagnose(), build_run_overview(lake, lake.step_keys)
    assert found.conclusion.cleared == ("rank", "host")
    said = report_document(found, facts)
    assert said["conclusion"]["cleared"] == ["rank", "host"]
    assert said["conclusion"]["unverified_transfers"] > 0.02
    assert "a network that is slow for all ranks in every step is not excluded" in found.verdict
    (limit,) = (note for note in found.notes if "nccl-tests" in note)
    assert limit in said["run"]["warnings"]
    assert "jitter compare" in limit
    side = next(one.answer for one in answer_questions(found, lake.hosts) if one.question == "CPU or GPU?")
    assert "is not excluded" in side


def test_transfers_that_take_no_time_need_no_benchmark(tmp_path: Path):
    """Slow or not, transfers that take less than 2% of the time cannot cost more."""
    found = ingest_run(simulate(JOB, []), tmp_path).diagnose()
    assert found.conclusion.cleared == ("rank", "host", "link")
    assert found.conclusion.unverified_transfers is None
    assert "network" not in found.verdict
