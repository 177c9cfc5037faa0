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
