"""Steps that were inferred from repetition: what is found in them has low confidence, and the report says why."""

from pathlib import Path

import jitter
from jitter.simulate import Fault, Job, simulate, write


def test_guessed_steps_cap_the_confidence(tmp_path: Path):
    job = Job(ranks=4, steps=8, kernels=60, marker="none")
    write(simulate(job, [Fault.parse("slow_gpu:rank=2,factor=1.6")]), tmp_path / "traces", "nsys")
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake", executor=jitter.LocalExecutor())
    lake = jitter.open(tmp_path / "lake")
    assert all(record.has_guessed_steps for record in lake.sources)
    found = lake.diagnose()
    assert found.culprits
    assert {culprit.confidence for culprit in found.culprits} == {"low"}
    assert any("no step markers" in note for note in found.notes)
