"""Findings that others mask, and what late ranks carry into the steps that follow."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jitter.analysis.diagnosis.diagnose import _select_worth_fixing
from jitter.analysis.diagnosis.step_answers import _decisive
from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run


def group(name: str, *ranks: int, steps: tuple[int, ...] = (0, 1, 2)) -> Any:
    return SimpleNamespace(scenario=name, steps=steps, group=SimpleNamespace(ranks=ranks))


def analysis_of(gains: dict[str, float], losses: dict[str, float]) -> Any:
    return SimpleNamespace(
        gains=lambda names: [gains[name] for name in names],
        account=SimpleNamespace(loss_of=losses.__getitem__),
        run=SimpleNamespace(matching=SimpleNamespace(unpaired=0)),
    )


@pytest.mark.parametrize(("gain_ns", "is_kept"), [(0.0, True), (-157.0, True), (-700.0, False)])
def test_a_masked_rank_that_is_charged_for_is_no_less_guilty_for_the_error_of_replay(gain_ns: float, is_kept: bool):
    """Behind a slower link its repair alone changed the run by -157 ns: a slow GPU with 4% of the run was cleared."""
    pricing = SimpleNamespace(most=lambda scenarios, gains: gains, min_gain_ns=lambda steps: 300.0)
    evidence: Any = SimpleNamespace(analysis=analysis_of({"gpu": gain_ns}, {"gpu": 966.0}), pricing=pricing)
    gpu = group("gpu", 5)
    assert _select_worth_fixing(evidence, [gpu]) == ([gpu] if is_kept else [])


@pytest.mark.parametrize("shape", ["data_parallel", "sharded"])
def test_a_finding_costs_what_its_rank_loses_by_its_class(tmp_path: Path, shape: str):
    """A host that falls behind step by step is late by earlier steps: up to half of the loss was `carried`."""
    job = Job(ranks=4, steps=6, kernels=60, seed=1, shape=shape)
    found = ingest_run(simulate(job, [Fault.parse("slow_cpu:rank=1,factor=6")]), tmp_path, "kineto").diagnose()
    culprit = found.culprits[0]
    assert found.loss.ns is not None
    by_class = {part.loss_class: {one.rank: one.ns for one in part.ranks} for part in found.split}
    assert (culprit.ranks, culprit.cause) == ((1,), "cpu_launch")
    host_ns = sum(by_class[loss_class].get(1, 0) for loss_class in ("start", "launch", "after"))
    assert culprit.loss_ns == pytest.approx(host_ns, rel=1e-3)
    assert host_ns > 0.97 * found.loss.ns
    assert sum(map(abs, by_class["carried"].values())) < 0.01 * found.loss.ns


def test_a_step_is_of_the_network_where_that_loses_more_than_its_max_rank():
    gpu: Any = SimpleNamespace(group=SimpleNamespace(ranks=(6,)), parts={2})
    link: Any = SimpleNamespace(group=SimpleNamespace(ranks=(12, 13)), parts=(), known_gain_ns=None)
    for is_of_transfers, group in ((True, link), (False, gpu)):
        assert _decisive(6, [link, gpu], False, is_of_transfers=is_of_transfers) is group
        assert _decisive(6, [gpu], False, is_of_transfers=is_of_transfers) is gpu
        assert _decisive(1, [link], False, is_of_transfers=is_of_transfers) is link


def test_what_is_slow_at_the_end_of_the_steps_is_named_there(tmp_path: Path):
    """The step after it loses the time of the last kernels: those of that step, slow by noise alone, were named."""
    job = Job(ranks=4, steps=5, kernels=60, seed=1)
    faults = [Fault.parse("slow_gpu:rank=1,factor=4,kernels=57-59")]
    found = ingest_run(simulate(job, faults), tmp_path, "kineto").diagnose()
    (culprit,) = found.culprits
    assert culprit.kernel_index is not None
    assert (culprit.ranks, culprit.kernel_index.last) == ((1,), 59)
    began = [step.divergence.kernel_index for step in found.steps if step.divergence is not None]
    assert np.median(began) in (57, 58)


@pytest.mark.parametrize("shape", [{"shape": "tensor_data", "tensor": 8}, {}])
def test_a_slow_node_is_named_though_each_of_its_gpus_has_an_eighth_of_the_loss(tmp_path: Path, shape: dict[str, Any]):
    job = Job(ranks=16, steps=4, kernels=80, seed=1, **shape)
    faults = [Fault.parse("slow_gpu:ranks=8-15,factor=1.06")]
    slow, healthy = (
        ingest_run(simulate(job, injected), tmp_path / name, "nsys").diagnose()
        for name, injected in (("slow", faults), ("healthy", []))
    )
    (culprit,) = slow.culprits
    assert (culprit.scope, culprit.ranks, culprit.cause) == ("host", tuple(range(8, 16)), "gpu_compute")
    slow_ns, healthy_ns = (sum(step.step_time_ns or 0 for step in found.steps) for found in (slow, healthy))
    assert culprit.gain_ns == pytest.approx(slow_ns - healthy_ns, rel=0.05)
