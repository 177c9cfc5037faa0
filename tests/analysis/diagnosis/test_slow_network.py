"""A network that is slow for all ranks in all steps is seen by the bandwidth benchmark in the lake."""

from pathlib import Path

import pytest

import jitter
from jitter.simulate import Fault, Job, Run, simulate, write
from jitter.simulate.job_logs import write_logs

JOB = Job(ranks=8, steps=4, kernels=120, seed=3)
SLOW = Fault.parse("slow_collective:factor=6")


def lake_of(run: Run, folder: Path) -> "jitter.Lake":
    traces = folder / "traces"
    write(run, traces, "kineto")
    write_logs(run, traces)
    assert jitter.ingest([traces], folder / "lake", executor=jitter.LocalExecutor()).refused == []
    return jitter.open(folder / "lake")


def test_a_slow_network_is_one_finding_of_the_job(tmp_path: Path):
    run = simulate(JOB, [SLOW])
    found = lake_of(run, tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.ranks, culprit.cause) == ("job", tuple(range(8)), "communication")
    ends, without = run.last_collective_ends(), run.without().last_collective_ends()
    true_gain = ends[-1] - ends[0] - (without[-1] - without[0])
    assert culprit.gain_ns == pytest.approx(true_gain, rel=0.1)
    assert found.loss.ns is not None
    assert culprit.gain_ns <= found.loss.ns
    by_part = {share.part: share for share in found.split}
    assert by_part["communication"].ns >= 0.9 * found.loss.ns
    assert {step.cause for step in found.steps} == {"communication"}
    assert "All ranks communicate slowly" in found.verdict


def test_the_healthy_network_is_silent(tmp_path: Path):
    found = lake_of(simulate(JOB, []), tmp_path).diagnose()
    assert found.culprits == ()
    assert found.conclusion.status == "within_noise"
