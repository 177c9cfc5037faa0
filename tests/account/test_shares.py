"""What the account charges to ranks: host and GPU late in a step, teams in any order, and between two usual steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitter.analysis.account.losses import CLASSES_OF_PART, RANK_CLASSES, LossClass
from jitter.analysis.account.usual_step import UsualStep, find_usual_step
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.replay.what_if import Scenario, together
from jitter.simulate import Fault, simulate
from tests.accuracy.layouts.job import LayoutJob
from tests.accuracy.layouts.traces import ingest_job
from tests.support.simulated import ingest_run, small

RANK, STEP = 2, 3


LATE = frozenset({STEP})
HOST = Scenario(parts={(RANK, int(part)): LATE for part in (TimePart.START, TimePart.CPU)})
GPU = Scenario(parts={(RANK, int(TimePart.GPU)): LATE})


def analyzed(folder: Path, kernels: int, gpu: float, host: float) -> RunAnalysis:
    """A job whose launches bind; in one step a rank's GPU and host are slower."""
    faults = [f"slow_gpu:rank={RANK},step={STEP},factor={gpu}"]
    faults += [f"slow_cpu:rank={RANK},step={STEP},factor={host}"] * (host > 1)
    job = small(ranks=4, steps=6, kernels=kernels, cpu_bound=True)
    return ingest_run(simulate(job, [Fault.parse(fault) for fault in faults]), folder).analyze()


@pytest.mark.parametrize("kernels", [30, 480])
@pytest.mark.parametrize(("gpu", "host"), [(60, 3), (60, 1)])
def test_a_gpu_that_falls_behind_its_host(tmp_path: Path, kernels: int, gpu: float, host: float):
    analysis = analyzed(tmp_path, kernels, gpu, host)
    alone_host, alone_gpu, both = analysis.gains([HOST, GPU, together([HOST, GPU])])
    loss_ns = float(analysis.account.loss_ns[STEP])
    assert both > 0.9 * loss_ns
    exact_gpu = (alone_gpu + both - alone_host) / 2
    assert analysis.account.loss_of(GPU) == pytest.approx(exact_gpu, abs=0.15 * loss_ns)
    assert analysis.account.loss_of(HOST) == pytest.approx(both - exact_gpu, abs=0.15 * loss_ns)


@pytest.mark.parametrize("kernels", [30, 480])
def test_a_slow_gpu_that_its_host_masks_at_every_kernel_has_next_to_no_share(tmp_path: Path, kernels: int):
    """By exact Shapley values it would have up to a third: documented in `jitter explain account`."""
    analysis = analyzed(tmp_path, kernels, 20, 6)
    loss_ns = float(analysis.account.loss_ns[STEP])
    assert analysis.account.loss_of(HOST) > 0.85 * loss_ns
    assert analysis.account.loss_of(GPU) < 0.15 * loss_ns
    own = analysis.account.of_steps[STEP].losses.of([LossClass.GPU], RANK)
    assert np.nansum(own.excess_ns) > 0.5 * loss_ns


def test_each_rank_is_charged_its_own_losses_whatever_the_order_of_teams(tmp_path: Path):
    # the first stage has two programs, so a later stage is the commonest, and the first team
    job = LayoutJob(7, shape="pipeline", slow=(2, 1.2), naming="peers", logs=0)
    analysis = ingest_job(job, tmp_path).analyze()
    assert analysis.run.rank_numbers.tolist() != sorted(analysis.run.rank_numbers.tolist())
    timed = [account for account in analysis.account.of_steps if account.losses is not None][1:]
    every = frozenset(range(len(analysis.keys)))
    for rank in analysis.run.rank_numbers.tolist():
        for part in OWN_PARTS:
            charged = sum(one.losses.of(CLASSES_OF_PART[part], rank).loss_ns.sum() for one in timed)
            assert analysis.account.loss_of(Scenario({(rank, part): every})) == pytest.approx(charged, abs=1)
    assert analysis.account.loss_of(Scenario({(2, part): every for part in OWN_PARTS})) > 100e3
    # the pace costs something in the steps in which the GPU's whole time is not repaired
    whole, pace, rest = {(2, int(TimePart.GPU)): frozenset({3})}, {2: (1.2, every)}, {2: (1.2, every - {3})}
    of_both = analysis.account.loss_of(Scenario(whole, paces=pace))
    assert of_both == analysis.account.loss_of(Scenario(whole)) + analysis.account.loss_of(Scenario(paces=rest))
    assert of_both >= analysis.account.loss_of(Scenario(paces=pace)) > 50e3
    # what a lead is weighed by: the first step, of unknown time, lost its part too, and does not count
    of_ranks = [sum(one.losses.of(RANK_CLASSES, rank).loss_ns.sum() for one in timed) for rank in analysis.run.team_of]
    transfers = sum(one.losses.of([LossClass.TRANSFER]).loss_ns.sum() for one in timed)
    assert len(analysis.account.of_steps[0].losses)
    assert analysis.account.charges.all_ns() == pytest.approx(sum(max(ns, 0.0) for ns in (*of_ranks, transfers)), abs=1)


JOBS: dict[str, dict[str, Any]] = {
    "data_parallel": {},
    "tensor_data": {"tensor": 2},
    "pipeline": {"stages": 2, "microbatches": 3},
}


@pytest.mark.parametrize("shape", JOBS)
def test_one_rank_of_each_block_is_enough(shape: str, tmp_path):
    """Its step is that of the waterfall's rung `steps`, a replay of all ranks."""
    lake = ingest_run(simulate(small(shape, steps=6, **JOBS[shape])), tmp_path)
    analysis, diagnosis = lake.analyze(), lake.diagnose()
    numbers = np.arange(len(analysis.keys))
    usual = find_usual_step(analysis.run, analysis.steps.baselines, numbers, analysis.transfers.baseline[0])
    assert len(usual.program.blocks) < len(analysis.run.team_of)
    assert usual.program.time_ns(usual.step) == pytest.approx(diagnosis.lower_rungs["steps"], rel=1e-6)

    slower = UsualStep(usual.step.self_times._replace(gpu=1.3 * usual.step.self_times.gpu), 2 * usual.step.transfers)
    found = usual.program.account(slower, usual.step)
    assert found.upper_ns == pytest.approx(usual.program.time_ns(slower))
    assert found.losses.loss_ns.sum() == pytest.approx(found.upper_ns - found.lower_ns, abs=1)
    by_class = found.losses.by_class()
    assert by_class[[LossClass.GPU, LossClass.TRANSFER]].sum() == pytest.approx(by_class.sum(), rel=0.01)
    alone = [
        usual.program.account(UsualStep(*one), usual.step).losses.loss_ns.sum()
        for one in ((slower.self_times, usual.step.transfers), (usual.step.self_times, slower.transfers))
    ]
    assert np.all(by_class[[LossClass.GPU, LossClass.TRANSFER]] >= 0.9 * np.array(alone))
