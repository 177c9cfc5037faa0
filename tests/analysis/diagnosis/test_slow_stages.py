"""A slow pipeline stage: all its ranks, or one of them."""

from pathlib import Path
from typing import Any

import pytest

from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run


@pytest.mark.parametrize(
    ("job", "fault", "ranks", "cause"),
    [
        ({"ranks": 8}, "ranks=4-5", (4, 5), "gpu_time"),
        ({"ranks": 8}, "rank=4", (4,), "gpu_compute"),
        ({"ranks": 4}, "rank=2", (2,), "gpu_time"),
    ],
)
def test_a_slow_stage_may_have_more_work(
    tmp_path: Path, job: dict[str, Any], fault: str, ranks: tuple[int, ...], cause: str
):
    """Slow GPUs were named, though every replica of the stage was as slow."""
    described = Job(shape="pipeline", stages=4, steps=5, kernels=240, seed=1, **job)
    lake = ingest_run(simulate(described, [Fault.parse(f"slow_gpu:{fault},factor=1.4")]), tmp_path, "kineto")
    culprit = lake.diagnose().culprits[0]
    assert (culprit.ranks, culprit.cause) == (ranks, cause)
    said = any("more work in launches of a fixed size, or slow GPUs" in sentence for sentence in culprit.evidence)
    assert said == (cause == "gpu_time")
