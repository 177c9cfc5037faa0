"""Pipeline stages: which ranks are one, and a slow stage, all its ranks or one of them."""

from pathlib import Path
from typing import Any

import pytest

from jitter.analysis.diagnosis.evidence.locations import _join, stages_of_ranks
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


def test_ranks_are_joined():
    assert _join([]) == {}
    joined = _join([(1, 2), (5, 4), (2, 4), (7,), (8, 9)])
    assert len({joined[rank] for rank in (1, 2, 4, 5)}) == 1
    assert joined[8] == joined[9]
    assert len(set(joined.values())) == 3


def test_ranks_of_replicas_are_one_stage_and_of_no_pipeline_none(tmp_path: Path):
    job = Job(ranks=8, shape="pipeline", stages=4, steps=3, kernels=240, seed=1)
    run = ingest_run(simulate(job, []), tmp_path / "pipeline", "kineto").analyze().run
    stages = {frozenset({0, 1}), frozenset({2, 3}), frozenset({4, 5}), frozenset({6, 7})}
    assert stages_of_ranks(run) == {rank: stage for stage in stages for rank in stage}
    run = ingest_run(simulate(Job(ranks=4, steps=3, kernels=60, seed=1), []), tmp_path / "data", "kineto").analyze().run
    assert stages_of_ranks(run) == {}
