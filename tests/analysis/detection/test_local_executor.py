"""A large run measured by several threads: the same answers; what a thread cannot read is said."""

import shutil
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import jitter
from jitter.analysis.detection import passes
from jitter.analysis.detection.pricing import Pricing
from jitter.analysis.replay import run_steps
from jitter.core.errors import LakeError
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small

pytestmark = pytest.mark.slow

FAULTS = ["cpu_stall:rank=2,step=3,kernel=9,ms=2", "slow_gpu:rank=1,factor=1.3"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = simulate(small(steps=6, ranks=5), [Fault.parse(fault) for fault in FAULTS])
    return ingest_run(run, tmp_path_factory.mktemp("threads")).root


@pytest.fixture(scope="module")
def wanted(root: Path) -> "jitter.Diagnosis":
    return jitter.open(root).diagnose()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Have even a small run measured by three threads; gives the names of those that did."""
    monkeypatch.setattr(passes, "_LARGE", 0)
    monkeypatch.setattr(passes, "cpu_count", lambda: 3)
    seen: set[str] = set()
    measure = passes.measure_steps

    def watched(*told, **options):
        seen.add(threading.current_thread().name)
        return measure(*told, **options)

    monkeypatch.setattr(passes, "measure_steps", watched)
    return seen


def test_the_same_answers(root: Path, wanted: "jitter.Diagnosis", names: set[str]):
    assert jitter.open(root).diagnose() == wanted
    assert wanted.culprits
    assert names
    assert all(name.startswith("steps") for name in names)


def test_the_same_account(root: Path, names: set[str]):
    first, then = jitter.open(root).analyze(), jitter.open(root).analyze()
    alone = first.accounts
    assert Pricing(then).findings
    np.testing.assert_equal([asdict(one) for one in then.accounts], [asdict(one) for one in alone])
    assert names


@pytest.mark.usefixtures("names")
def test_what_cannot_be_read_is_said(root: Path, tmp_path: Path):
    copy = tmp_path / "lake"
    shutil.copytree(root, copy)
    lake = jitter.open(copy)
    for path in (copy / f"kernels/step={lake.step_keys[-1].step}").iterdir():
        path.write_bytes(b"")
    with pytest.raises(LakeError, match=r"rank=\d\.parquet"):
        lake.diagnose()


@pytest.mark.parametrize(("processors", "large"), [(1, 0), (8, 10**9)])
def test_what_is_small_is_done_by_one(
    root: Path, processors: int, large: int, names: set[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(passes, "_LARGE", large)
    monkeypatch.setattr(passes, "cpu_count", lambda: processors)
    jitter.open(root).diagnose()
    assert names == {threading.current_thread().name}


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize(("small_step", "has_pool"), [(0, True), (10**9, False)])
def test_scenarios_of_tiny_steps_are_replayed_by_one_thread(
    root: Path, small_step: int, has_pool: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_steps, "_SMALL_STEP", small_step)
    replay, pools = passes.replay_steps, []

    def watched(*told):
        pools.append(len(told) == 5 and told[4] is not None)
        return replay(*told)

    monkeypatch.setattr(passes, "replay_steps", watched)
    jitter.open(root).diagnose()
    assert pools[0] is has_pool
