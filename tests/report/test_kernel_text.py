"""The kernel named with a finding lies in its range; steps, findings and places agree."""

from pathlib import Path

import jitter
from jitter.core.names.kernels import short_name
from jitter.report.text.fix_list import describe_place, name_first_kernel
from jitter.report.text.questions import answer_questions
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small


def lake_of(folder: Path, *faults: str, **job: object) -> "jitter.Lake":
    return ingest_run(simulate(small(**job), [Fault.parse(fault) for fault in faults]), folder)


def test_the_kernel_named_is_that_of_the_range(tmp_path: Path):
    lake = lake_of(tmp_path, "late_start:ranks=4-7,ms=5", ranks=16, steps=5, gpus_per_node=4)
    found = lake.diagnose()
    (culprit,) = found.culprits
    assert culprit.kernel_index is not None
    assert describe_place(culprit) == "kernel 0"
    name = next(s.divergence.kernel_name for s in found.steps if s.divergence and s.divergence.kernel_index == 0)
    assert name_first_kernel(culprit, found) == short_name(name)


def test_time_after_the_last_launch_begins_at_no_kernel(tmp_path: Path):
    found = lake_of(tmp_path, "late_end:rank=1,ms=4", ranks=4, steps=6).diagnose()
    (culprit,) = found.culprits
    assert describe_place(culprit) == "after the last launch of the step"
    assert not any("launched in" in line for line in culprit.evidence)


def test_steps_of_a_single_rank_have_the_cause_of_its_finding(tmp_path: Path):
    found = lake_of(tmp_path, "cpu_stall:rank=0,step=4,kernel=9,ms=5", ranks=1, steps=8).diagnose()
    (culprit,) = found.culprits
    assert {step.key.step: step.cause for step in found.steps if step.cause != "none"} == {
        key.step: culprit.cause for key in culprit.steps
    }


def test_several_findings_each_name_their_evidence(tmp_path: Path):
    faults = ("slow_gpu:rank=1,factor=1.5", "cpu_stall:rank=5,step=3,kernel=20,ms=8")
    lake = lake_of(tmp_path, *faults, ranks=8, steps=8)
    found = lake.diagnose()
    assert len(found.culprits) == 2
    evidence = next(one.evidence for one in answer_questions(found, lake.hosts) if one.question == "CPU or GPU?")
    assert all(line.startswith(("Rank 1", "Rank 5")) for line in evidence)


def test_a_node_without_a_name_is_still_the_answer(tmp_path: Path):
    lake = lake_of(tmp_path, "late_start:ranks=4-7,ms=5", ranks=16, steps=5, gpus_per_node=4)
    assert lake.diagnose().culprits[0].scope == "host"
    node = next(one.answer for one in answer_questions(lake.diagnose(), {}) if one.question == "Which node?")
    assert node == "The node of ranks 4-7: all its ranks are slow. The traces do not name the hosts."


def test_a_finding_begins_where_its_steps_first_diverge(tmp_path: Path):
    """A slow GPU loses a little in every kernel: finding, steps and figures name one kernel."""
    found = lake_of(tmp_path, "slow_gpu:rank=3,factor=1.2", ranks=8, steps=5).diagnose()
    (culprit,) = found.culprits
    late = [step for step in found.steps if step.key in culprit.steps and step.max_rank == culprit.rank]
    began = [step.divergence.kernel_index for step in late if step.divergence is not None]
    assert len(began) == len(late) > 1
    assert culprit.kernel_index is not None
    assert min(began) == culprit.kernel_index.first
    assert max(began) <= culprit.kernel_index.last
