"""Simulated jobs with nothing changed but the names of the collectives' kernels: their verdicts must not change."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import jitter
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.simulate import Fault, Job, simulate, write

_ALL_REDUCE = {
    "vllm": "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
    "flashinfer": "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<int>(int)",
    "tensorrt_llm": "void tensorrt_llm::kernels::twoShotAllReduceKernel<__half, 8, true>(AllReduceParams)",
    "symmetric_memory": "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
    "nccl_symmetric": "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs)",
    "mscclpp": "void mscclpp::collective::allreducePacket<(mscclpp::ReduceOp)0, __half>(__half*, __half*)",
    "quickreduce": "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>(__half const*)",
    "userbuffers": "void userbuffers_fp16_sum_inplace_gpu_rr<8>(int, int, int, int, int, int, int, void**, int)",
    "msccl": "mscclKernel_Sum_hip_bfloat16_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
    "nvshmem": "void rdxn_on_stream_kernel<float, (rdxn_ops)4>(int, float*, float const*, unsigned long)",
    "oneccl": "oneccl_allreduce_pcie<sycl::half, Rt64_128_PCIE, RingTransmit>",
}
_ALL_TO_ALL = {
    "deep_ep": "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*, long*, float*, int4 const*)",
    "mori": "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs<hip_bfloat16>)",
    "moe_a2a": "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<int, 8>(int const*)",
    "nvshmem_a2a": "all_to_all_vdev(void*, void*, long*, long*, unsigned long, int, int)",
}
FAMILIES: dict[str, dict[str, str]] = {
    **{family: {"all_reduce": name} for family, name in _ALL_REDUCE.items()},
    **{family: {"all_to_all": name} for family, name in _ALL_TO_ALL.items()},
}
"""Kernel names by family and operation; the job's other operations keep NCCL's names."""
UNKNOWN = {
    operation: f"void mycorp::ring_{operation[::-1]}_kernel(float*)" for operation in ("all_reduce", "all_to_all")
}
"""Names of no known library, from which nobody can tell that they communicate."""
FAULTS = {
    "stall": "cpu_stall:rank=2,kernel=17,ms=3",
    "slow_gpu": "slow_gpu:rank=2,factor=1.25",
    "late_start": "late_start:rank=2,ms=4",
}


@contextmanager
def kernel_names(names: dict[str, str]) -> Iterator[None]:
    """Let the simulator give the collectives' kernels these names, by operation."""
    from jitter.simulate import kernel_names as module

    known = module.collective_kernel_name
    with patch.object(
        module, "collective_kernel_name", lambda era, operation: names.get(operation) or known(era, operation)
    ):
        yield


def diagnose(
    folder: Path, names: dict[str, str], shape: str, fault: str, form: str = "nsys", collective: str | None = None
) -> Diagnosis:
    """Simulate a job with these kernel names, ingest its traces and return the diagnosis."""
    job = Job(ranks=8, steps=5, kernels=80, seed=4, shape=shape)  # type: ignore[arg-type]
    with kernel_names(names):
        write(simulate(job, [Fault.parse(FAULTS[fault])]), folder / "traces", form)
    jitter.ingest([folder / "traces"], folder / "lake", collective=collective, executor=jitter.LocalExecutor())
    return jitter.open(folder / "lake").diagnose()


def essence(diagnosis: Diagnosis) -> tuple[object, ...]:
    """Return what two diagnoses of the same job must agree in; kernels' names are not part of it."""
    culprits = [replace(one, evidence=(), look_at=None) for one in diagnosis.culprits]
    steps = [replace(one, divergence=None) for one in diagnosis.steps]
    return diagnosis.loss, culprits, steps, diagnosis.verdict
