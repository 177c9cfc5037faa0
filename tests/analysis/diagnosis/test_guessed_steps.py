"""Steps that were inferred from repetition: the report says that these are inferred."""

from pathlib import Path

import pytest

import jitter
from jitter.simulate import Fault, Job, simulate, write


def test_guessed_steps_are_named_as_such(tmp_path: Path):
    job = Job(ranks=4, steps=8, kernels=60, marker="none")
    write(simulate(job, [Fault.parse("slow_gpu:rank=2,factor=1.6")]), tmp_path / "traces", "nsys")
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake", executor=jitter.LocalExecutor())
    lake = jitter.open(tmp_path / "lake")
    assert all(record.has_guessed_steps for record in lake.sources)
    found = lake.diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause, culprit.recurs) == ((2,), "gpu_compute", "yes")
    assert any("no step markers: where steps begin is inferred" in note for note in found.notes)


@pytest.mark.parametrize("form", ["nsys", "kineto"])
def test_a_pause_before_the_inputs_are_copied_is_of_the_step_that_needs_them(tmp_path: Path, form: str):
    """The copies to the GPU come before a step's first kernel: without them there it began in the step before."""
    job = Job(ranks=4, steps=8, kernels=60, marker="none")
    write(simulate(job, [Fault.parse("late_start:rank=2,every=2,ms=3")]), tmp_path / "traces", form)
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake", executor=jitter.LocalExecutor())
    found = jitter.open(tmp_path / "lake").diagnose()
    (culprit,) = found.culprits
    slow = [step.key for step in found.steps if (step.loss_fraction or 0) > 0.3]
    assert [key.step for key in slow] == [2, 4, 6]
    assert (culprit.ranks, culprit.cause, list(culprit.steps)) == ((2,), "late_start", slow)
    assert {step.cause for step in found.steps if step.key in slow} == {"late_start"}
