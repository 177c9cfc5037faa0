"""A large run examined by several processes: the same answers, whatever becomes of the others; none stays behind."""

import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest

import jitter
from jitter.analysis.detection import pool_executor
from jitter.analysis.detection.passes import PassesHere
from jitter.analysis.detection.pricing import Pricing
from jitter.core.errors import LakeError
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small

pytestmark = pytest.mark.slow

FAULTS = ["cpu_stall:rank=2,step=3,kernel=9,ms=2", "slow_gpu:rank=1,factor=1.3"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = simulate(small(steps=6, ranks=5), [Fault.parse(fault) for fault in FAULTS])
    return ingest_run(run, tmp_path_factory.mktemp("beside")).root


@pytest.fixture(scope="module")
def wanted(root: Path) -> "jitter.Diagnosis":
    return jitter.open(root).diagnose()


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_executor, "LARGE", 0)
    monkeypatch.setattr(pool_executor, "cpu_count", lambda: 3)


def kill_the_others() -> None:
    others = multiprocessing.active_children()
    assert others
    for one in others:
        one.kill()
        one.join()


def test_the_same_answers(root: Path, wanted: "jitter.Diagnosis"):
    lake = jitter.open(root)
    assert lake.diagnose() == wanted
    assert isinstance(lake.analyze()._passes, pool_executor.PassesBeside)
    assert wanted.culprits
    assert not multiprocessing.active_children()


def test_the_same_paths(root: Path, wanted: "jitter.Diagnosis"):
    alone = jitter.open(root).analyze()
    paths = alone.paths
    assert isinstance(alone._passes, pool_executor.PassesBeside)
    assert not multiprocessing.active_children()
    whole = jitter.open(root).analyze()
    assert Pricing(whole).findings
    assert whole.paths == paths


def test_others_die_looking(root: Path, wanted: "jitter.Diagnosis", monkeypatch: pytest.MonkeyPatch):
    look, killed = pool_executor.look, []

    def killing(*stretch: Any) -> Any:
        if not killed:
            kill_the_others()
            killed.append(True)
        return look(*stretch)

    monkeypatch.setattr(pool_executor, "look", killing)
    assert jitter.open(root).diagnose() == wanted
    assert killed
    assert not multiprocessing.active_children()


def test_others_die_between(root: Path, wanted: "jitter.Diagnosis", monkeypatch: pytest.MonkeyPatch):
    go = pool_executor.PassesBeside.go

    def killing(self: pool_executor.PassesBeside, *told: Any, walk: bool) -> Any:
        kill_the_others()
        return go(self, *told, walk=walk)

    monkeypatch.setattr(pool_executor.PassesBeside, "go", killing)
    assert jitter.open(root).diagnose() == wanted
    assert not multiprocessing.active_children()


def test_others_die_walking(root: Path, wanted: "jitter.Diagnosis", monkeypatch: pytest.MonkeyPatch):
    go, killed = PassesHere.go, []

    def killing(self: PassesHere, *told: Any, walk: bool) -> Any:
        if not killed:
            kill_the_others()
            killed.append(True)
        return go(self, *told, walk=walk)

    monkeypatch.setattr(PassesHere, "go", killing)
    assert jitter.open(root).diagnose() == wanted
    assert killed
    assert not multiprocessing.active_children()


def test_what_they_cannot_read_is_said_here(root: Path, tmp_path: Path):
    copy = tmp_path / "lake"
    shutil.copytree(root, copy)
    shutil.rmtree(copy / "derived")
    lake = jitter.open(copy)
    last = copy / f"kernels/step={lake.steps[-1].step}"
    for path in last.iterdir():
        path.write_bytes(b"")
    with pytest.raises(LakeError, match=r"rank=\d\.parquet"):
        lake.diagnose()


@pytest.mark.parametrize(("processors", "activities", "steps"), [(1, 10**9, 9), (8, 4, 9), (8, 10**9, 1)])
def test_what_is_small_is_done_here(
    root: Path, processors: int, activities: int, steps: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pool_executor, "LARGE", 5)
    monkeypatch.setattr(pool_executor, "cpu_count", lambda: processors)
    assert pool_executor.passes(root, activities, steps) is PassesHere
