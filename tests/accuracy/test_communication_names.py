"""Jobs with nothing changed but the names of the collectives' kernels: verdicts as with NCCL's, or careful ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

import jitter
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.simulate import Fault, Job, simulate, write
from jitter.simulate.kernel_names import COLLECTIVE_KERNELS

pytestmark = pytest.mark.slow

FLASHINFER = {"all_reduce": "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<int>(int)"}
DEEP_EP = {
    "all_to_all": "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*, long*, float*, int4 const*)"
}
UNKNOWN = {
    operation: f"void mycorp::ring_{operation[::-1]}_kernel(float*)" for operation in ("all_reduce", "all_to_all")
}
"""Names of no known library, from which nobody can tell that they communicate."""
FAULTS = {"stall": "cpu_stall:rank=2,kernel=17,ms=3", "slow_gpu": "slow_gpu:rank=2,factor=1.25"}


@contextmanager
def kernel_names(names: dict[str, str]) -> Iterator[None]:
    """Let the simulator give the collectives' kernels these names, by operation."""
    with patch.dict(COLLECTIVE_KERNELS, names):
        yield


def diagnose(
    folder: Path, names: dict[str, str], shape: str, fault: str, form: str = "nsys", collective: str | None = None
) -> Diagnosis:
    """Simulate a job with these kernel names, ingest its traces and return the diagnosis."""
    job = Job(ranks=4, steps=5, kernels=80, seed=4, shape=shape)  # type: ignore[arg-type]
    with kernel_names(names):
        write(simulate(job, [Fault.parse(FAULTS[fault])]), folder / "traces", form)
    jitter.ingest([folder / "traces"], folder / "lake", collective=collective)
    return jitter.open(folder / "lake").diagnose()


def essence(diagnosis: Diagnosis) -> tuple[object, ...]:
    """Return what two diagnoses of the same job must agree in; kernels' names are not part of it."""
    culprits = [replace(one, evidence=(), look_at=None) for one in diagnosis.culprits]
    steps = [replace(one, divergence=None) for one in diagnosis.steps]
    return diagnosis.loss, culprits, steps, diagnosis.verdict


@pytest.mark.parametrize(
    ("names", "shape", "fault", "form"),
    [
        (FLASHINFER, "data_parallel", "stall", "nsys"),
        # NCCL's name for an all-to-all is that of sends: only with recorded operations are both jobs told the same
        (DEEP_EP, "expert", "slow_gpu", "kineto"),
    ],
)
def test_known_names_give_the_same_verdict(tmp_path: Path, names: dict[str, str], shape: str, fault: str, form: str):
    with_nccl = diagnose(tmp_path / "nccl", {}, shape, fault, form)
    assert essence(diagnose(tmp_path / "other", names, shape, fault, form)) == essence(with_nccl)


def test_unknown_names_clear_and_blame_nobody_and_can_be_declared(tmp_path: Path):
    with_nccl = diagnose(tmp_path / "nccl", {}, "data_parallel", "stall")
    assert [(one.ranks, one.cause, one.confidence) for one in with_nccl.culprits] == [((2,), "cpu_launch", "high")]
    unknown = diagnose(tmp_path / "unknown", UNKNOWN, "data_parallel", "stall")
    assert all(one.confidence == "low" for one in unknown.culprits)
    assert "no rank can be blamed or cleared" in unknown.verdict
    declared = diagnose(tmp_path / "declared", UNKNOWN, "data_parallel", "stall", collective="mycorp::ring")
    assert [(one.ranks, one.cause, one.confidence) for one in declared.culprits] == [((2,), "cpu_launch", "high")]
    assert declared.loss == with_nccl.loss


def test_arguments_tell_communication_of_any_name(tmp_path: Path):
    with_nccl = diagnose(tmp_path / "nccl", {}, "tensor_data", "slow_gpu", form="kineto")
    unknown = diagnose(tmp_path / "unknown", UNKNOWN, "tensor_data", "slow_gpu", form="kineto")
    assert [(one.ranks, one.cause, one.confidence) for one in with_nccl.culprits] == [((2,), "gpu_compute", "high")]
    assert essence(unknown) == essence(with_nccl)
