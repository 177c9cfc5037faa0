"""A late GPU's launches are compared with those of some other ranks, of many: their files alone are read."""

from pathlib import Path

import pytest

import jitter
from jitter.analysis.diagnosis.evidence import workload
from jitter.analysis.diagnosis.evidence.workload import _with_peers
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.thresholds import THRESHOLDS
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small


@pytest.mark.parametrize(
    ("rank", "ranks", "chosen"),
    [
        (5, [5], [5]),
        (2, [0, 2, 3], [0, 2, 3]),
        (9, [0, 1, 2, 9], [0, 1, 2, 9]),
        (9, [*range(100), 200], [0, 9, 100 // 2, 200]),
        (0, range(8), [0, 1, 4, 7]),
    ],
)
def test_the_rank_and_others_from_first_to_last(rank: int, ranks: list[int], chosen: list[int]):
    assert _with_peers(rank, list(ranks), 3) == chosen


@pytest.mark.parametrize(
    ("fault", "cause"),
    [("unequal_work:rank=6,factor=1.8", "workload_imbalance"), ("slow_gpu:rank=6,factor=1.5", "gpu_compute")],
)
def test_few_tell_the_cause_as_all_do(fault: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lake = ingest_run(simulate(small(ranks=12, steps=5), [Fault.parse(fault)]), tmp_path)
    with_all = lake.diagnose()
    assert [(one.ranks, one.cause) for one in with_all.culprits] == [((6,), cause)]
    asked: list[list[int]] = []
    launch_shapes = RunReader.launch_shapes
    monkeypatch.setattr(
        RunReader, "launch_shapes", lambda self, key, ranks: asked.append(ranks) or launch_shapes(self, key, ranks)
    )
    few = jitter.open(lake.root)
    monkeypatch.setattr(workload, "THRESHOLDS", THRESHOLDS._replace(sampled_ranks=3))
    assert few.diagnose() == with_all
    assert asked == [[0, 5, 6, 11]] * 3
