"""Steps that were inferred from repetition: the report says that these are inferred."""

from pathlib import Path

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
