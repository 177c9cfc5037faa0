"""Host time after the last launch of a step is a cause of its own; data loading counts for one step."""

from pathlib import Path

import pytest

from jitter.query.diagnosis_rows import steps_table
from jitter.report.text.step_table import format_steps
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small


@pytest.mark.parametrize("form", ["nsys", "kineto"])
@pytest.mark.parametrize(
    ("fault", "cause", "part"),
    [
        ("late_end:rank=2,ms=4", "cpu_after", "after"),
        ("late_start:rank=2,ms=4,loading=no", "late_start", "start"),
        ("late_start:rank=2,ms=4", "late_start", "start"),
    ],
)
def test_a_pause_before_the_end_of_a_step_is_no_late_start(
    tmp_path: Path, fault: str, cause: str, part: str, form: str
):
    run = simulate(small(ranks=4, steps=6), [Fault.parse(fault)])
    found = ingest_run(run, tmp_path, form).diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause) == ((2,), cause)
    shares = {share.loss_class: share for share in found.split}
    assert found.loss.ns is not None
    assert shares[part].ns >= 0.9 * found.loss.ns
    assert [one.rank for one in shares[part].ranks][:1] == [2]
    # the step's loss is in the class that the finding names
    losses = [step.by_class for step in found.steps if step.by_class is not None and step.cause == cause]
    mine = [one.after_ns if part == "after" else one.start_ns for one in losses]
    assert sum(mine) >= 0.9 * sum(sum(one) for one in losses) > 0
    assert sum(one.launch_ns for one in losses) <= 0.1 * sum(mine)
    heads = format_steps(steps_table(found.steps), width=160).splitlines()[0]
    assert ("after ms" in heads) == (part == "after")


def test_data_loading_counts_once(tmp_path: Path):
    run = simulate(small(ranks=4, steps=6), [Fault.parse("late_start:rank=2,ms=4")])
    lake = ingest_run(run, tmp_path, "kineto")
    (culprit,) = lake.diagnose().culprits
    (told,) = (line for line in culprit.evidence if "data-loading ranges" in line)
    assert told.startswith("its data-loading ranges take 4.")
