"""Which ranks are one pipeline stage: by what sends to what, and which collectives they share."""

from pathlib import Path

from jitter.analysis.diagnosis.evidence.stages import _join, stages_of_ranks
from jitter.simulate import Job, simulate
from tests.support.simulated import ingest_run


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
