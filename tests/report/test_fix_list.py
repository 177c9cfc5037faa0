"""The fix list: all items over all rungs by time; what would help and saves, where to look, how to export it."""

from dataclasses import replace
from pathlib import Path

import pytest

from jitter.analysis.diagnosis.model import CodeLocation
from jitter.analysis.diagnosis.verdict import name_culprit
from jitter.core.formatting import format_numbers, format_time
from jitter.report.text.fix_list import (
    costliest_step,
    describe_cost,
    describe_jitter,
    describe_remedy,
    exported_ranks,
    list_fixes,
)
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small

LAKE = Path("/runs/my lake")
COHORTS = dict.fromkeys(range(40), 0)


@pytest.fixture(scope="module")
def diagnosis(sample_lake):
    return sample_lake.diagnose()


def finding(diagnosis, **changes):
    (one,) = diagnosis.culprits[:1]
    return replace(one, **{"confidence": "high", **changes})


def test_the_remedy_says_what_is_saved_and_how_much_of_it_a_step(diagnosis):
    counted = [step for step in diagnosis.steps if step.loss_ns is not None]
    one = finding(diagnosis, cause="gpu_compute", gain_ns=1_500_000 * len(counted))
    whole = diagnosis.loss.ns / diagnosis.loss.fraction
    share = f"{100 * one.gain_ns / whole:.2f}"[:3]
    text = describe_remedy(one, diagnosis)
    assert text.startswith("A GPU at full speed")
    assert "would save about 6.00 ms (" in text
    assert text.endswith("%), 1.50 ms a step")
    assert f"({share}" in text


def test_a_stalled_input_pipeline_has_its_own_remedy(diagnosis):
    stalled = finding(diagnosis, cause="late_start", evidence=("its ranges take 3 ms: the input pipeline stalled",))
    other = finding(diagnosis, cause="late_start", evidence=("no data-loading range was recorded",))
    assert describe_remedy(stalled, diagnosis).startswith("More loader workers or prefetching would save")
    assert describe_remedy(other, diagnosis).startswith("Less host work before the first kernel")


def test_a_lead_is_worded_as_one(diagnosis):
    assert "no pauses) might save about" in describe_remedy(finding(diagnosis, confidence="low"), diagnosis)
    unmeasured = finding(diagnosis, confidence="low", gain_ns=0, loss_ns=0)
    assert "no pauses) might help;" in describe_remedy(unmeasured, diagnosis)


def test_what_other_faults_hide_is_not_promised(diagnosis):
    assert "alone is too small to measure" in describe_remedy(finding(diagnosis, gain_ns=0, loss_ns=0), diagnosis)
    hidden = describe_remedy(finding(diagnosis, gain_ns=0, loss_ns=400_000), diagnosis)
    assert hidden.endswith("would save about 400 µs (3.82%), 100 µs a step, if the other findings are fixed too")


def test_a_cause_without_a_remedy_of_its_own_is_fixed(diagnosis):
    assert describe_remedy(finding(diagnosis, cause="none"), diagnosis).startswith("Fixing it would save")


def item_of(diagnosis, name="Rank 5 (node0001)"):
    return next(one for one in list_fixes(diagnosis, COHORTS, LAKE) if one.name == name)


def test_an_item_says_where_to_look_and_how_to_export_it(diagnosis):
    item = item_of(diagnosis)
    number = 1 + [one.cause for one in diagnosis.findings].index("cpu_launch")
    step = costliest_step(diagnosis.culprits[0], diagnosis)
    assert step.key.step == 2003
    assert item.words == "late kernel launches (CPU), kernel 17, 1 of 5 steps: epoch 1, step 2003"
    assert "rank5.sqlite, 76.0565 s to 76.0580 s" in item.file
    ranks = format_numbers({5, step.min_rank})
    command = f"jitter export '/runs/my lake' --perfetto finding-{number}.json.gz --step 2003 --epoch 1 --ranks"
    assert item.export == f"{command} {ranks}"


def test_items_are_the_findings_over_all_rungs_most_time_first(diagnosis):
    items = list_fixes(diagnosis, COHORTS, LAKE)
    assert [(one.loss_ns, one.fraction) for one in items] == [(one.loss_ns, one.fraction) for one in diagnosis.findings]
    assert len(items) > len(diagnosis.culprits) == sum(one.is_jitter for one in items)
    assert [one.loss_ns for one in items] == sorted((one.loss_ns for one in items), reverse=True)


def test_few_ranks_of_a_group_are_exported(diagnosis):
    whole_host = finding(diagnosis, ranks=tuple(range(40)), rank=5)
    step = costliest_step(whole_host, diagnosis)
    ranks = exported_ranks(whole_host, step, COHORTS)
    assert ranks[:2] == [5, step.min_rank]
    assert len(ranks) == len(set(ranks)) == 8


def test_ranks_of_another_cohort_are_not_exported(diagnosis):
    pipeline = finding(diagnosis, ranks=(4, 5, 6), rank=5)
    step = costliest_step(pipeline, diagnosis)
    assert exported_ranks(pipeline, step, {4: 1, 5: 1, 6: 2, step.min_rank: 0}) == [5, 4]


def test_an_item_has_the_code_that_launches_the_kernel_once(diagnosis):
    code = CodeLocation(17, "aten::add_", "model/mlp", "backward", "train.py(12): step")
    words = "kernel 17 is launched by `aten::add_` in `model/mlp` at `train.py(12): step`, backward"
    one = finding(diagnosis, code=code, evidence=(words, "3 ms late"))
    item = item_of(replace(diagnosis, culprits=(one,)))
    assert item.code == words
    assert item.evidence == ("3 ms late",)
    assert item_of(replace(diagnosis, culprits=(finding(diagnosis, code=None),))).code == ""


def test_a_cost_is_said_once(tmp_path: Path):
    """Neither the saving nor the whole loss of jitter stands beside a cost that they nearly equal."""
    lake = ingest_run(simulate(small(ranks=4, steps=6), [Fault.parse("slow_gpu:rank=2,factor=1.6")]), tmp_path)
    diagnosis = lake.diagnose()
    (culprit,) = diagnosis.culprits
    assert abs(culprit.gain_ns - culprit.loss_ns) < 0.05 * culprit.loss_ns
    assert "would save" not in describe_cost(culprit, diagnosis)
    half = replace(culprit, gain_ns=round(0.8 * culprit.loss_ns))
    assert f"fixing it would save about {format_time(half.gain_ns)}" in describe_cost(half, diagnosis)
    alone = replace(diagnosis, loss=replace(diagnosis.loss, ns=culprit.loss_ns))
    assert "all jitter" not in describe_cost(culprit, alone)
    assert "all jitter" in describe_cost(
        culprit, replace(diagnosis, loss=replace(diagnosis.loss, ns=2 * culprit.loss_ns))
    )


def test_what_costs_little_is_no_headline_before_a_larger_loss_of_all_ranks(diagnosis):
    (late,), (of_all, *_) = diagnosis.culprits[:1], diagnosis.of_all_ranks
    small = replace(late, fraction=0.002, loss_ns=of_all.loss_ns // 50)
    assert replace(diagnosis, culprits=(small,)).headline == of_all
    assert replace(diagnosis, culprits=(small,), of_all_ranks=()).headline == small
    assert diagnosis.headline == late


def test_jitter_that_no_finding_holds_is_told_by_class_and_rank(diagnosis):
    assert ": " not in describe_jitter(diagnosis)
    unheld = describe_jitter(replace(diagnosis, culprits=()))
    assert unheld.startswith(describe_jitter(diagnosis) + ": ")
    assert unheld.endswith("rank 5 (nearly all)")


def test_part_of_the_ranks_is_named_within_a_sentence(diagnosis):
    some = finding(diagnosis, scope="job", ranks=(6, 7), is_part_of_job=True)
    assert name_culprit(some) == "Ranks 6-7"
