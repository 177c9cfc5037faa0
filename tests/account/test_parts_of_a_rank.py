"""A rank whose host and GPU are both late in a step: each has about its Shapley value, however long the step is."""

from pathlib import Path

import numpy as np
import pytest

from jitter.analysis.account.losses import LossClass
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.replay.what_if import Scenario, together
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small

RANK, STEP = 2, 3


LATE = frozenset({STEP})
HOST = Scenario(own={(RANK, int(part)): LATE for part in (TimePart.START, TimePart.CPU)})
GPU = Scenario(own={(RANK, int(TimePart.GPU)): LATE})


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
    loss_ns = float(analysis.loss_ns[STEP])
    assert both > 0.9 * loss_ns
    exact_gpu = (alone_gpu + both - alone_host) / 2
    assert analysis.loss_of(GPU) == pytest.approx(exact_gpu, abs=0.15 * loss_ns)
    assert analysis.loss_of(HOST) == pytest.approx(both - exact_gpu, abs=0.15 * loss_ns)


@pytest.mark.parametrize("kernels", [30, 480])
def test_a_slow_gpu_that_its_host_masks_at_every_kernel_has_next_to_no_share(tmp_path: Path, kernels: int):
    """By exact Shapley values it would have up to a third: documented in `jitter explain account`."""
    analysis = analyzed(tmp_path, kernels, 20, 6)
    loss_ns = float(analysis.loss_ns[STEP])
    assert analysis.loss_of(HOST) > 0.85 * loss_ns
    assert analysis.loss_of(GPU) < 0.15 * loss_ns
    own = analysis.accounts[STEP].losses.of([LossClass.GPU], RANK)
    assert np.nansum(own.excess_ns) > 0.5 * loss_ns
