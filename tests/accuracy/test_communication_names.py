"""A part of the jobs with other names of communication kernels: verdicts as with NCCL's, or careful ones."""

from pathlib import Path

import pytest

from tests.accuracy.communication_names import FAMILIES, UNKNOWN, diagnose, essence

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("family", "shape", "fault", "form"),
    [
        ("flashinfer", "data_parallel", "stall", "nsys"),
        # NCCL's name for an all-to-all is that of sends: only with recorded operations are both jobs told the same
        ("deep_ep", "expert", "slow_gpu", "kineto"),
    ],
)
def test_known_names_give_the_same_verdict(tmp_path: Path, family: str, shape: str, fault: str, form: str):
    with_nccl = diagnose(tmp_path / "nccl", {}, shape, fault, form)
    assert essence(diagnose(tmp_path / family, FAMILIES[family], shape, fault, form)) == essence(with_nccl)


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
