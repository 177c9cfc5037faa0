"""The relation of the account: it adds up to what the report says that steps lose, and names whose time it is."""

from pathlib import Path
from typing import Any

import pytest

import jitter
from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run

NS = 1.0


@pytest.fixture(scope="module", params=["data_parallel", "tensor_parallel", "pipeline", "expert"])
def lake_of_slow_gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> jitter.Lake:
    faults, folder = ["slow_gpu:rank=2,factor=1.4"], tmp_path_factory.mktemp("losses")
    return lake_with(faults, folder, ranks=8, kernels=120, shape=request.param)


def lake_with(faults: list[str], folder: Path, **options: Any) -> jitter.Lake:
    job = Job(**{"steps": 5, "first_step": 100, "seed": 4, **options})
    return ingest_run(simulate(job, [Fault.parse(one) for one in faults]), folder)


def test_the_rows_of_a_step_add_up_to_its_loss(lake_of_slow_gpu: jitter.Lake):
    told = {one.key.step: one.loss_ns for one in lake_of_slow_gpu.diagnose().steps if one.loss_ns is not None}
    found = lake_of_slow_gpu.sql(
        "select step, sum(loss_ns) as ns from losses group by step order by step", arrow=True
    ).to_pylist()
    assert [row["step"] for row in found] == sorted(told)
    for row in found:
        assert row["ns"] == pytest.approx(told[row["step"]], abs=NS)


def test_a_slow_gpu_has_most_of_the_loss(lake_of_slow_gpu: jitter.Lake):
    of_ranks = lake_of_slow_gpu.sql(
        "select rank, class, sum(loss_ns) as ns from losses group by all order by ns desc limit 1", arrow=True
    ).to_pylist()
    assert [(row["rank"], row["class"]) for row in of_ranks] == [(2, "gpu")]


def test_a_hidden_rank_has_an_excess_and_hardly_a_share(tmp_path: Path):
    faults = ["late_start:rank=1,step=103,ms=3", "slow_gpu:rank=4,factor=1.2,step=103"]
    rows = lake_with(faults, tmp_path, ranks=6, kernels=60, noise=0.005).sql(
        "select rank, class, sum(loss_ns) as loss_ns, sum(excess_ns) as excess_ns from losses "
        "where step = 103 group by all",
        arrow=True,
    )
    found = {(row["rank"], row["class"]): row for row in rows.to_pylist()}
    hidden, late = found[4, "gpu"], found[1, "start"]
    assert hidden["excess_ns"] > 300_000
    assert hidden["loss_ns"] < hidden["excess_ns"] / 2
    assert late["loss_ns"] == pytest.approx(3e6, rel=0.1)


def test_the_phase_is_that_of_the_kernel(tmp_path: Path):
    fault = Fault.parse("slow_gpu:rank=2,factor=1.4")
    lake = ingest_run(simulate(Job(ranks=4, steps=3, kernels=60, seed=4), [fault]), tmp_path, "kineto")
    recorded = lake.sql("select kernel_name, phase from kernels where rank = 2 group by all", arrow=True).to_pylist()
    phases: dict[str, set[str | None]] = {}
    for row in recorded:
        phases.setdefault(row["kernel_name"], set()).add(row["phase"])
    rows = lake.sql("select kernel_name, phase, operation from losses where rank = 2", arrow=True).to_pylist()
    named = [row for row in rows if row["operation"] is not None and row["kernel_name"] in phases]
    assert len({row["phase"] for row in named}) > 1
    assert all(row["phase"] in phases[row["kernel_name"]] for row in named)
    assert all(row["phase"] is None for row in rows if row["operation"] is None)
