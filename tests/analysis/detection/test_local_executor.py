"""Steps measured and accounted for on several threads: the same answers; what a thread cannot read is said."""

import shutil
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import jitter
from jitter.analysis.detection import passes
from jitter.analysis.detection.run_analysis import Pricing
from jitter.analysis.execution import run_model, run_reader
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


@pytest.fixture(params=[(2, 0), (3, 10**9), (6, 0)], ids=["2", "3, steps in memory", "6"])
def names(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Have even tiny steps read and computed on threads, of so many processors; gives the names of those threads."""
    processors, kept = request.param
    monkeypatch.setattr(run_model, "_SMALL_STEP", 0)
    monkeypatch.setattr(run_reader, "_ROWS_KEPT", kept)
    monkeypatch.setattr(run_model, "cpu_count", lambda: processors)
    return watch_threads(monkeypatch)


def watch_threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the names of the threads that measure steps from now on."""
    seen: set[str] = set()
    measure = passes.deviations_of_steps

    def watched(*told):
        seen.add(threading.current_thread().name)
        return measure(*told)

    monkeypatch.setattr(passes, "deviations_of_steps", watched)
    return seen


def test_the_same_answers(root: Path, wanted: "jitter.Diagnosis", names: set[str]):
    assert jitter.open(root).diagnose() == wanted
    assert wanted.culprits
    assert names
    assert all(name.startswith("ahead") for name in names)


def test_the_same_account_of_steps_together_and_one_by_one(root: Path, monkeypatch: pytest.MonkeyPatch):
    together = jitter.open(root).analyze()
    assert len(list(together.steps.stretches())) < len(together.keys)
    monkeypatch.setattr(run_steps, "_CELLS_AT_ONCE", 0)
    one_by_one = jitter.open(root).analyze()
    found, wanted = ([asdict(one) for one in each.account.of_steps] for each in (together, one_by_one))
    np.testing.assert_equal(found, wanted)
    assert len(list(one_by_one.steps.stretches())) == len(one_by_one.keys)


def test_the_same_account(root: Path, names: set[str], monkeypatch: pytest.MonkeyPatch):
    then = jitter.open(root).analyze()
    assert Pricing(then).worth_fixing
    assert names
    found = [asdict(one) for one in then.account.of_steps]
    monkeypatch.setattr(run_model, "cpu_count", lambda: 1)
    names.clear()
    np.testing.assert_equal(found, [asdict(one) for one in jitter.open(root).analyze().account.of_steps])
    assert names == {threading.current_thread().name}


@pytest.mark.usefixtures("names")
def test_what_cannot_be_read_is_said(root: Path, tmp_path: Path):
    copy = tmp_path / "lake"
    shutil.copytree(root, copy)
    lake = jitter.open(copy)
    for path in (copy / f"kernels/step={lake.step_keys[-1].step}").iterdir():
        path.write_bytes(b"")
    with pytest.raises(LakeError, match=r"rank=\d\.parquet"):
        lake.diagnose()


@pytest.mark.parametrize(("processors", "small", "large"), [(1, 0, 10**9), (8, 10**9, 10**9), (8, 0, 0)])
def test_tiny_and_large_steps_and_those_of_one_processor_are_computed_by_one_thread(
    root: Path, wanted: "jitter.Diagnosis", processors: int, small: int, large: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_model, "_SMALL_STEP", small)
    monkeypatch.setattr(run_model, "MOST_ROWS", large)
    monkeypatch.setattr(run_model, "cpu_count", lambda: processors)
    names = watch_threads(monkeypatch)
    assert jitter.open(root).diagnose() == wanted
    assert names == {threading.current_thread().name}


@pytest.mark.parametrize(("small_step", "has_pool"), [(0, True), (10**9, False)])
def test_scenarios_of_tiny_steps_are_replayed_by_one_thread(
    root: Path, small_step: int, has_pool: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_model, "_SMALL_STEP", small_step)
    monkeypatch.setattr(run_model, "cpu_count", lambda: 3)
    replay, pools = passes.replay_steps, []

    def watched(*told):
        pools.append(len(told) == 5 and told[4] is not None)
        return replay(*told)

    monkeypatch.setattr(passes, "replay_steps", watched)
    jitter.open(root).diagnose()
    assert pools[0] is has_pool
