"""The rungs below `ranks`: what each costs is what the simulated job without that loss saves."""

from pathlib import Path
from typing import Any

import pytest

import jitter
from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run, step_ns

SHORT: dict[str, Any] = {"ranks": 4, "steps": 8, "kernels": 80, "seed": 5, "noise": 0.0}


def waterfall(job: Job, folder: Path, *faults: str) -> dict[str, tuple[int | None, int | None]]:
    """(step time, loss) of each rung, ns."""
    diagnosis = ingest_run(simulate(job, [Fault.parse(fault) for fault in faults]), folder, "nsys").diagnose()
    rungs = diagnosis.waterfall
    judged = [one for one in rungs if one.step_time_ns is not None]
    recorded, *lower = judged
    assert recorded.step_time_ns == judged[-1].step_time_ns + sum(one.loss_ns or 0 for one in lower)
    return {one.rung: (one.step_time_ns, one.loss_ns) for one in rungs}


def test_steps_that_are_slow_for_all_ranks(tmp_path: Path) -> None:
    fault = "slow_gpu:ranks=0-3,steps=3+5,factor=1.5"
    found = waterfall(Job(**SHORT), tmp_path, fault)
    more = step_ns(Job(**SHORT), fault) - step_ns(Job(**SHORT))
    assert found["steps"][1] == pytest.approx(more, rel=0.1)
    assert abs(found["ranks"][1] or 0) < 0.05 * more  # no rank is late


def test_calls_that_wait_for_the_gpu(tmp_path: Path) -> None:
    plain, waiting = Job(**SHORT), Job(**SHORT, syncs=frozenset({"loss", "before", "after"}))
    before, after = waterfall(plain, tmp_path / "plain"), waterfall(waiting, tmp_path / "waiting")
    more = step_ns(waiting) - step_ns(plain)
    assert more > 0.02 * step_ns(plain)
    assert (after["sync"][1] or 0) - (before["sync"][1] or 0) == pytest.approx(more, rel=0.2)
    assert after["sync"][0] == pytest.approx(before["sync"][0], rel=0.01)


def test_a_host_that_is_slower_than_its_gpu(tmp_path: Path) -> None:
    bound = waterfall(Job(**SHORT, cpu_bound=True), tmp_path / "bound")
    assert bound["launch"][1] == pytest.approx(bound["recorded"][0] - bound["launch"][0], rel=0.1)
    free = waterfall(Job(**SHORT), tmp_path / "free")
    assert abs(free["launch"][1] or 0) < 0.01 * (free["recorded"][0] or 0)


def test_a_network_is_judged_by_a_benchmark_alone(tmp_path: Path) -> None:
    found = waterfall(Job(**SHORT), tmp_path)
    assert found["network"] == (None, None)
    assert found["sync"][0] is not None


def test_communication_and_unequal_stages(tmp_path: Path) -> None:
    alike = waterfall(Job(**SHORT), tmp_path / "alike")
    assert (alike["overlap"][1] or 0) > 0
    assert abs(alike["balance"][1] or 0) <= 1
    job = Job(ranks=4, steps=6, kernels=120, seed=5, noise=0.0, shape="pipeline")
    stages = waterfall(job, tmp_path / "stages")
    lake = jitter.open(tmp_path / "stages" / "lake")
    rows = lake.sql(
        "select rank, sum(duration_ns) as ns from kernels where kind = 'compute' group by rank", arrow=True
    ).to_pylist()
    busy = [float(row["ns"]) / 6 for row in rows]
    # the longest stage takes this much longer than the mean one, and the step is no shorter than the mean
    assert (stages["balance"][1] or 0) > 0.3 * (max(busy) - sum(busy) / 4) > 0
    assert (stages["balance"][0] or 0) > sum(busy) / 4


def test_a_slow_stage_costs_its_rung_what_it_costs_the_step(tmp_path: Path) -> None:
    """The mean of all stages alone is above what the others take, so less would be lost than its finding says."""
    job, fault = Job(ranks=4, shape="pipeline", stages=2, steps=6, kernels=240, seed=1), "slow_gpu:rank=2-3,factor=1.3"
    before, after = waterfall(job, tmp_path / "before"), waterfall(job, tmp_path / "after", fault)
    more = (after["balance"][1] or 0) - (before["balance"][1] or 0)
    assert more == pytest.approx(step_ns(job, fault) - step_ns(job), rel=0.05)
    (stage,) = jitter.open(tmp_path / "after" / "lake").diagnose().culprits
    assert stage.ranks == (2, 3)
    assert stage.loss_ns / stage.seen.of <= (after["balance"][1] or 0)


def test_no_rung_costs_less_than_nothing(tmp_path: Path) -> None:
    found = waterfall(Job(**(SHORT | {"noise": 0.05})), tmp_path)
    assert min(loss_ns for rung, (_, loss_ns) in found.items() if loss_ns is not None and rung != "ranks") >= 0


def test_a_single_step_has_rungs_too(tmp_path: Path) -> None:
    found = waterfall(Job(**(SHORT | {"steps": 1})), tmp_path)
    assert found["balance"][0] is not None
