"""Findings that others mask, and what late ranks carry into the steps that follow."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitter.analysis.detection.findings import Finding
from jitter.analysis.diagnosis.causes import Judgement
from jitter.analysis.diagnosis.diagnose import _decisive, _select_worth_fixing
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.finding_groups import FindingGroup, RankGroup
from jitter.analysis.execution.self_times import TimePart
from jitter.simulate import Fault, Job, simulate
from tests.support.findings import evidence_of, late_rank
from tests.support.simulated import ingest_run, run_ns, small, true_gain_ns


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return evidence_of(ingest_run(simulate(small(steps=3)), tmp_path_factory.mktemp("healthy")))


@pytest.mark.parametrize(("gain", "is_kept"), [(0.0, True), (-0.5, True), (-2.3, False)])
def test_a_masked_rank_that_is_charged_for_is_no_less_guilty_for_the_error_of_replay(
    healthy: Evidence, monkeypatch: pytest.MonkeyPatch, gain: float, is_kept: bool
):
    """Behind a slower link its repair alone changed the run by -157 ns: a slow GPU with 4% of the run was cleared.

    The gain is in units of the least that is worth a report; the account charges 3.2 of them to the rank.
    """
    gpu = late_rank(2, steps=(0, 1, 2))
    least_ns = healthy.pricing.min_gain_ns(gpu.steps)
    for gains in ("gains", "bound_gains"):
        monkeypatch.setattr(healthy.analysis, gains, lambda scenarios: [gain * least_ns for _ in scenarios])
    monkeypatch.setattr(healthy.analysis.account, "loss_of", lambda scenario: 3.2 * least_ns)
    assert _select_worth_fixing(healthy, [gpu]) == ([gpu] if is_kept else [])


@pytest.mark.parametrize(("factor", "are_alike"), [(2.8, True), (1.0, False)])
def test_a_rank_that_is_nearly_as_late_is_named_with_the_one_that_masks_it(
    tmp_path: Path, factor: float, are_alike: bool
):
    """All of the loss was charged to the later one, whose repair alone saves a tenth of it."""
    job = Job(ranks=8, steps=6, kernels=60, seed=3, shape="tensor_parallel", cpu_bound=True)
    faults = [Fault.parse(f"slow_cpu:rank={rank},factor={by}") for rank, by in ((4, 3), (5, factor)) if by > 1]
    run = simulate(job, faults)
    found = ingest_run(run, tmp_path).diagnose()
    assert {one.ranks for one in found.culprits if one.rung == "ranks"} == {(4,), *([(5,)] if are_alike else [])}
    assert found.what_if.culprits_repaired_ns == pytest.approx(true_gain_ns(run, *faults), rel=0.02)


@pytest.mark.parametrize(
    ("stalls", "cause"),
    [
        (((4, 2, 9), (5, 3, 9), (6, 5, 9), (7, 7, 9), (4, 9, 9), (6, 10, 9)), "cpu_launch"),
        # some in the same steps, before the step and within
        (((4, 2, 0), (5, 2, 0), (6, 4, 9), (7, 6, 9), (4, 8, 0), (5, 8, 0), (6, 10, 9)), "late_start"),
    ],
)
def test_ranks_of_a_node_that_stall_in_different_steps_are_one_finding(tmp_path: Path, stalls, cause: str):
    """Each was a rank to examine, at a part of the price, or they were random pauses of the job."""
    faults = [Fault.parse(f"cpu_stall:rank={rank},step={step},kernel={at},ms=3") for rank, step, at in stalls]
    run = simulate(Job(ranks=16, steps=12, kernels=20, seed=5, shape="data_parallel", gpus_per_node=4), faults)
    found = ingest_run(run, tmp_path).diagnose()
    (node,) = (one for one in found.culprits if one.rung == "ranks")
    assert (node.scope, node.ranks, node.cause) == ("host", (4, 5, 6, 7), cause)
    assert any("are late in different steps" in sentence for sentence in node.evidence)
    assert node.gain_ns == pytest.approx(true_gain_ns(run, *faults), rel=0.02)


def test_ranks_of_a_node_that_later_ones_mask_are_of_its_finding(tmp_path: Path):
    """Most ranks of the node stall, and others hide it: two were named, at half of the price, one of them at none."""
    longer, masked = {1: (1, 2), 2: (3, 4), 3: (5, 6)}, {4: (1, 3, 5), 5: (2, 4, 6), 6: (1, 4, 6)}
    faults = [
        Fault.parse(f"cpu_stall:rank={rank},step={step},kernel=9,ms={ms}")
        for stalls, ms in ((longer, 4), (masked, 2))
        for rank, steps in stalls.items()
        for step in steps
    ]
    run = simulate(Job(ranks=16, steps=8, kernels=40, seed=5, shape="sharded", gpus_per_node=8), faults)
    (node,) = (one for one in ingest_run(run, tmp_path).diagnose().culprits if one.rung == "ranks")
    assert (node.scope, node.ranks, node.recurs) == ("host", (1, 2, 3, 4, 5, 6), "yes")
    assert node.gain_ns == pytest.approx(true_gain_ns(run, *faults), rel=0.02)


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_host_of_slow_gpus_is_told_with_its_slowest(tmp_path: Path, factor: float):
    """The half of the GPUs is 1.5 times as slow, and one of them by a tenth more: it was named nowhere."""
    of_host = [Fault.parse(f"slow_gpu:rank={rank},factor={1.5 * (factor if rank == 6 else 1)}") for rank in range(4, 8)]
    run = simulate(Job(ranks=8, steps=8, kernels=60, seed=3, gpus_per_node=4), of_host)
    (host,) = (one for one in ingest_run(run, tmp_path).diagnose().culprits if one.rung == "ranks")
    assert (host.scope, host.ranks) == ("host", (4, 5, 6, 7))
    told = [sentence for sentence in host.evidence if "is later than the others" in sentence]
    if factor == 1:
        assert not told
        return
    assert host.rank == 6
    of_host = [Fault.parse(f"slow_gpu:rank={rank},factor=1.5") for rank in range(4, 8)]
    (saved_ms,) = (re.fullmatch(r"rank 6 is later .* would save (.*) ms", sentence) for sentence in told)
    assert saved_ms is not None
    true_ns = run_ns(run) - run_ns(simulate(run.job, of_host))
    assert 1e6 * float(saved_ms[1]) == pytest.approx(true_ns, rel=0.02)


def test_of_a_rank_that_is_later_than_its_host_the_steps_are_said(tmp_path: Path):
    job = Job(ranks=8, steps=9, kernels=60, seed=3, gpus_per_node=4)
    factors = {(rank, step): 1.5 for rank in range(4, 8) for step in range(9)} | {(6, 2): 1.9, (6, 5): 1.9}
    faults = [Fault.parse(f"slow_gpu:rank={rank},step={step},factor={x}") for (rank, step), x in factors.items()]
    (host,) = (one for one in ingest_run(simulate(job, faults), tmp_path).diagnose().culprits if one.rung == "ranks")
    assert (host.scope, host.ranks) == ("host", (4, 5, 6, 7))
    assert any(
        line.startswith("rank 6 is later than the others, nearly all of it in steps 2,5:") for line in host.evidence
    )


@pytest.mark.parametrize("seed", [3, 4])
def test_a_slower_gpu_hides_no_slow_host_of_which_it_is_one(tmp_path: Path, seed: int):
    """Rank 11 takes 12% longer and the other ranks of its host 5%, half of all: the host was named nowhere."""
    factors = {rank: 1.12 if rank == 11 else 1.05 for rank in range(8, 16)}
    gpus = [Fault.parse(f"slow_gpu:rank={rank},factor={factor}") for rank, factor in factors.items()]
    run = simulate(Job(ranks=16, steps=8, kernels=60, seed=seed, gpus_per_node=8), gpus)
    found = ingest_run(run, tmp_path).diagnose()
    slow = {one.scope: one for one in found.culprits if one.rung == "ranks"}
    assert slow["rank"].ranks == (11,) if "rank" in slow else slow["host"].rank == 11
    assert all(one.recurs == "yes" for one in slow.values())
    assert found.what_if.culprits_repaired_ns == pytest.approx(true_gain_ns(run), rel=0.1)


def test_groups_whose_networks_are_as_slow_are_one_finding(tmp_path: Path):
    """Each was a finding that saves 20 to 40 µs: repaired alone, the step waits for the other group."""
    links = [Fault.parse("slow_link:ranks=8-15,factor=3")]
    run = simulate(Job(ranks=32, steps=5, kernels=60, seed=3, shape="expert", experts=4), links)
    (slow,) = (one for one in ingest_run(run, tmp_path, "kineto").diagnose().culprits if one.rung == "ranks")
    assert (slow.scope, slow.ranks, slow.cause) == ("host", tuple(range(8, 16)), "communication")
    # their exchanges between groups are as slow as those of all others, which nothing tells
    assert 0.5 * true_gain_ns(run) < slow.gain_ns == pytest.approx(slow.loss_ns, rel=0.05)
    assert any("2 groups (ranks 8-11, ranks 12-15)" in sentence for sentence in slow.evidence)


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
    gpu = late_rank(6)
    transfers = Finding("slow_transfers", TimePart.TRANSFER, {12: (0,), 13: (0,)}, 1e6, 9.0)
    link = FindingGroup((transfers,), RankGroup("ranks", (12, 13)), Judgement("communication", "likely"))
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
    run = simulate(job, [Fault.parse("slow_gpu:ranks=8-15,factor=1.06")])
    (culprit,) = ingest_run(run, tmp_path, "nsys").diagnose().culprits
    assert (culprit.scope, culprit.ranks, culprit.cause) == ("host", tuple(range(8, 16)), "gpu_compute")
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run), rel=0.05)
