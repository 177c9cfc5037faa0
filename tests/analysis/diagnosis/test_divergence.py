"""A step diverges at the kernel at which the fault struck, not the one before and not the one after."""

from pathlib import Path

import pytest

from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small

STEP = 2


@pytest.mark.parametrize("kernel", [3, 9, 17, 26])
@pytest.mark.parametrize(
    "fault", ["cpu_stall:rank=2,step=2,kernel={},ms=4", "slow_gpu:rank=2,step=2,kernels={},factor=150"]
)
def test_it_is_the_faults_kernel(tmp_path: Path, fault: str, kernel: int):
    run = simulate(small("data_parallel", gpus_per_node=4), [Fault.parse(fault.format(kernel))])
    answers = ingest_run(run, tmp_path).diagnose().steps
    assert answers[STEP].max_rank == 2
    began = answers[STEP].divergence
    assert began is not None
    assert began.kernel_index == kernel
    assert [answer.divergence for number, answer in enumerate(answers) if number != STEP] == [None] * 3


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_first_step_of_few_ranks_diverges(tmp_path: Path, ranks: int):
    """Their noise of host time is not known before the first launch: what is known decides."""
    faults = [Fault.parse(f"cpu_stall:rank=1,step={step},kernel=17,ms=1.5") for step in (0, 1)]
    answers = ingest_run(simulate(small(ranks=ranks), faults), tmp_path).diagnose().steps[:2]
    assert [answer.max_rank for answer in answers] == [1, 1]
    assert [answer.divergence and answer.divergence.kernel_index for answer in answers] == [17, 17]
