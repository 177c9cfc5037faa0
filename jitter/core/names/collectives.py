"""Names of communication kernels: one table of patterns, each with its library, a public source and an example.

A pattern is matched with the kernel's qualified name as a whole: `deep_ep::intranode::dispatch` for
`void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, …)`. Kernels of other names are recognised by their arguments
or by the library call that launched them (`ingestion.transform.collective_calls`), or declared by the user.

Gloo and copy engines have no row: their transfers are copies of memory, which have no kernel name.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

OPERATIONS: Final = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send_recv",
)
_BY_WORDS: Final = "by words"
"""The operation is the one that the name's own words state ("AllReduce"), if any."""


class CollectiveName(NamedTuple):
    """One row: a pattern of qualified kernel names. `operation` is None where the name does not state it."""

    pattern: str
    operation: str | None
    library: str
    source: str
    """Public project and file that define the kernels, or "unverified" and where the name is reported."""
    example: str
    """The name of one such kernel as profilers record it."""


_EP: Final = r"(?:\w+::)*(?:deep_ep|uccl|nccl_ep|hybrid_ep|mscclpp::ep)::(?:\w+::)*"
_SYMM_MEM: Final = "pytorch/pytorch torch/csrc/distributed/c10d/symm_mem/"
_TRTLLM: Final = "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/"
_MSCCLPP: Final = "microsoft/mscclpp src/ext/collectives/"
_NVSHMEM: Final = "NVIDIA/nvshmem src/host/stream/coll/"
_TE: Final = "NVIDIA/TransformerEngine transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers.cu"

# fmt: off
COLLECTIVE_NAMES: Final = (
    # NCCL to 2.7 `ncclAllReduceRingLLKernel_sum_f16`, to 2.18 `ncclKernel_…`, then `ncclDevKernel_…`, symmetric
    # memory `ncclSymDevKernel_…` (2.27) and `ncclSymkDevKernel_…` (2.28); RCCL the same or `rcclKernel_…`, and one
    # kernel for all operations: `ncclDevKernel_Generic`, `rcclGenericKernel`; CTran `ncclKernelAllGatherCtranDirect`
    CollectiveName(
        r"(?:\w+::)*(?:nccl|rccl|mccl)(?:Symk?)?(?:Dev)?(?:Kernel|[A-Z]\w*Kernel)(?![a-z])\w*", _BY_WORDS,
        "NCCL, RCCL, CTran, MCCL", "NVIDIA/nccl src/device/generate.py",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ),
    CollectiveName(
        r"ncclSymkRun_\w+", _BY_WORDS, "NCCL", "NVIDIA/nccl src/device/symmetric/all_gather_gin.cuh",
        "ncclSymkRun_AllGather_RailRing_LsaSTMC(ncclSymkDevWorkArgs const*)",
    ),
    CollectiveName(
        r"(?:\w+::)*mscclKernel_\w+", None, "MSCCL", "ROCm/rccl src/device/msccl_kernel_impl.h",
        "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
    ),
    CollectiveName(
        r"mscclpp::(?:\w+::)*(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|bcast)\w*", _BY_WORDS,
        "MSCCL++", _MSCCLPP + "allreduce/allreduce_packet.cu",
        "void mscclpp::collective::allreducePacket<(mscclpp::ReduceOp)0, __half, false>(__half*, __half*)",
    ),
    CollectiveName(
        r"(?:allreduce|allgather|broadcast)(?:\d{1,2}|(?:AllPairs?|Nvls|Packet|Fullmesh|RsAg|AllToAll)\w*)",
        _BY_WORDS, "MSCCL++", "microsoft/mscclpp apps/nccl/src/allreduce.hpp",
        "void allreduceAllPairs<(Op)0, __half>(__half*, __half*, __half*, mscclpp::DeviceHandle<…>*)",
    ),
    CollectiveName(
        r"(?:mscclpp::)?executionKernel", None, "MSCCL++", "microsoft/mscclpp src/executor/execution_kernel.cu",
        "void mscclpp::executionKernel<__half, mscclpp::LL8Packet, true>(int, __half*, __half*, __half*)",
    ),
    CollectiveName(
        r"(?:\w+::)*(?:sm\d\d_)?cross_device_reduce_(?:sum2_)?[12]stage(?:_\w+)?", "all_reduce", "vLLM, SGLang, aiter",
        "vllm-project/vllm csrc/custom_all_reduce.cuh",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, vllm::Signal*)",
    ),
    CollectiveName(
        r"(?:\w+::)*all_reduce_(?:[12]shot|(?:one|two)_shot)_(?:(?:push|pull)_)?kernel"
        r"|sglang::(?:\w+::)*all_reduce_kernel|(?:\w+::)*ar_fusion_(?:push|pull)_kernel", "all_reduce",
        "SGLang", "sgl-project/sglang python/sglang/kernels/jit/csrc/distributed/custom_all_reduce.cuh",
        "void (anonymous namespace)::all_reduce_1shot_push_kernel<LoadStoreImpl, __nv_bfloat16, 8u, true>("
        "AllReducePushParams<8u>)",
    ),
    CollectiveName(
        r"(?:\w+::)*ar_ll128_\w+", "all_reduce", "aiter", "ROCm/aiter csrc/include/custom_all_reduce.cuh",
        "void aiter::ar_ll128_vec_unroll2<__hip_bfloat16, 8, 512>(__hip_bfloat16 const*, __hip_bfloat16*)",
    ),
    CollectiveName(
        r"allreduce_\w+_(?:intra|inter)_node_kernel", "all_reduce", "Triton-distributed",
        "ByteDance-Seed/Triton-distributed python/triton_dist/kernels/nvidia/allreduce.py",
        "allreduce_one_shot_push_intra_node_kernel",
    ),
    CollectiveName(
        r"_all_gather_kernel_inner", "all_gather", "SGLang",
        "sgl-project/sglang python/sglang/srt/distributed/device_communicators/triton_symm_mem_ag.py",
        "_all_gather_kernel_inner",
    ),
    CollectiveName(
        r"(?:aiter::)?reduce_scatter_cross_device_store(?:_\w+)?", "reduce_scatter", "aiter",
        "ROCm/aiter csrc/include/custom_all_reduce.cuh",
        "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*, aiter::RankSignals)",
    ),
    CollectiveName(
        r"aiter::allgather_(?:vec|lastdim|naive)", "all_gather", "aiter",
        "ROCm/aiter csrc/include/custom_all_reduce.cuh",
        "void aiter::allgather_lastdim<__hip_bfloat16, 8>(aiter::RankData*, aiter::RankSignals, aiter::Signal*)",
    ),
    CollectiveName(
        r"(?:\w+::)*allreduce_prototype_(?:one|two)shot", "all_reduce", "QuickReduce (vLLM, SGLang, aiter)",
        "vllm-project/vllm csrc/quickreduce/quick_reduce.h",
        "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 8>, true>, __half>()",
    ),
    CollectiveName(
        r"(?:\w+::)*(?:(?:one|two)ShotAllReduceKernel|hybridCubeMeshAllReduceKernel)", "all_reduce",
        "TensorRT-LLM, FasterTransformer, PyTorch", _TRTLLM + "customAllReduceKernels.cu",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true, true>(AllReduceParams)",
    ),
    CollectiveName(
        r"(?:\w+::)*(?:lamport_style_)?one_shot_all_reduce_norm_kernel", "all_reduce", "TensorRT-LLM, FlashInfer",
        "flashinfer-ai/flashinfer include/flashinfer/comm/trtllm_allreduce.cuh",
        "void tensorrt_llm::kernels::reduce_fusion::lamport_style_one_shot_all_reduce_norm_kernel<__half, 8, true>(…)",
    ),
    CollectiveName(
        r"(?:\w+::)*(?:moereduction_|moefinalize_)?allreduce_fusion_kernel_\w+", "all_reduce",
        "FlashInfer, TensorRT-LLM", "flashinfer-ai/flashinfer include/flashinfer/comm/trtllm_allreduce_fusion.cuh",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
        "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, true>(…)",
    ),
    CollectiveName(
        r"(?:\w+::)*(?:oneshotAllreduceFusionKernel|twoshotAllreduceKernel)", "all_reduce",
        "FlashInfer, TensorRT-LLM", _TRTLLM + "communicationKernels/mnnvlAllreduceKernels.cu",
        "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8, __nv_bfloat16, true>(…)",
    ),
    CollectiveName(
        r"(?:\w+::)*lowPrecision(?:One|Two)Shot\w*Kernel", "all_reduce", "TensorRT-LLM",
        "unverified: " + _TRTLLM + "communicationKernels/customLowPrecisionAllReduceKernels.cu",
        "void tensorrt_llm::kernels::lowPrecisionTwoShotHierKernel<__half, 8>(LowPrecisionAllReduceParams)",
    ),
    CollectiveName(
        r"(?:\w+::)*(?:moeA2A(?:Dispatch|Combine)Kernel|moeAll[tT]oAllKernel)", "all_to_all",
        "TensorRT-LLM, FlashInfer", _TRTLLM + "communicationKernels/moeAlltoAllKernels.cu",
        "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<WarpPolicy, 8>(int const*, DispatchKernelPointers)",
    ),
    CollectiveName(
        r"(?:multimem_|one_shot_|two_shot_|multimem_(?:one|two)_shot_)(?:all_reduce|reduce_scatter|reduce|all_gather)"
        r"(?:_\w+)?_kernel(?:_inplace|_\d\w*)?|all_reduce_kernel", _BY_WORDS, "PyTorch symmetric memory",
        _SYMM_MEM + "CUDASymmetricMemoryOps.cu",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
    ),
    CollectiveName(
        r"(?:\w+::)*(?:all_to_all_v(?:dev\w*)?|allToAll(?:V|Get)(?:_\w+)?|exchangeSplitAndOffset(?:_\w+)?)",
        "all_to_all", "PyTorch symmetric memory", _SYMM_MEM + "nvshmem_extension.cu",
        "void c10d::nvshmem_extension::allToAllV(void*, void*, long*, long*, unsigned long, int, int)",
    ),
    CollectiveName(
        r"c10d::symmetric_memory::(?:barrier_kernel|put_signal_kernel|wait_signal_kernel)", "barrier",
        "PyTorch symmetric memory", _SYMM_MEM + "CUDASymmetricMemory.cu",
        "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)",
    ),
    CollectiveName(
        _EP + r"(?:cached_)?(?:notify_)?(?:dispatch|combine)(?:_(?:impl|kernel))?|" + _EP + r"cached_notify",
        "all_to_all", "DeepEP, UCCL, NCCL EP, MSCCL++ EP", "deepseek-ai/DeepEP csrc/kernels/intranode.cu",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*, long*, float*, int4 const*)",
    ),
    CollectiveName(
        _EP + r"(?:barrier|device_sync_kernel|clean_low_latency_buffer)", "barrier", "DeepEP, UCCL",
        "deepseek-ai/DeepEP csrc/kernels/intranode.cu",
        "void deep_ep::intranode::barrier<8>(int**, int)",
    ),
    CollectiveName(
        r"(?:mori::moe::)?Ep(?:Dispatch|Combine)(?:(?:Intra|Inter)Node|LowLatencyAsync(?:Send|Recv)(?!Copy))\w*",
        "all_to_all", "mori", "ROCm/mori src/ops/dispatch_combine/intranode.hpp",
        "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs<hip_bfloat16>)",
    ),
    CollectiveName(
        r"(?:mori::moe::)?EpCombineSyncBarrier\w*", "barrier", "mori",
        "ROCm/mori src/ops/dispatch_combine/internode_v1.cpp",
        "void mori::moe::EpCombineSyncBarrier<hip_bfloat16>(mori::moe::EpDispatchCombineArgs<hip_bfloat16>)",
    ),
    CollectiveName(
        r"(?:\w+::)*a2a_(?:dispatch|combine)_(?:send|recv)_kernel", "all_to_all", "pplx-garden",
        "perplexityai/pplx-garden p2p-all-to-all/a2a-kernels/src/a2a/a2a_dispatch_send.cu",
        "void a2a_dispatch_send_kernel<true, 16, NotFixed>(unsigned long, unsigned long, unsigned long)",
    ),
    CollectiveName(
        r"k?userbuffers_\w*_rs(?:_\w+)?", "reduce_scatter", "TransformerEngine", _TE,
        "void userbuffers_fp16_sum_inplace_gpu_mc_rs_oop<8>(int, int, int, int, int, int, int, void**, int)",
    ),
    CollectiveName(
        r"k?userbuffers_\w*_ag(?:_\w+)?", "all_gather", "TransformerEngine", _TE,
        "void userbuffers_fp16_sum_inplace_gpu_mc_ag<8>(int, int, int, int, int, int, int, void**, int)",
    ),
    CollectiveName(
        r"kuserbuffers_(?:push|alltoall)\w*", "send_recv", "TransformerEngine", _TE,
        "kuserbuffers_pushrecv(int, int, int, int, int*, int*, int, unsigned long)",
    ),
    CollectiveName(
        r"userbuffers_\w+", "all_reduce", "TransformerEngine", _TE,
        "void userbuffers_fp16_sum_inplace_gpu_rr<8>(int, int, int, int, int, int, int, void**, int)",
    ),
    CollectiveName(
        r"(?:nvshmem\w*_)?(?:barrier|sync)(?:_all)?_on_stream_kernel(?:_\w+)?", "barrier", "NVSHMEM",
        _NVSHMEM + "barrier/barrier.cu",
        "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)",
    ),
    CollectiveName(
        r"(?:nvshmem\w*_)?alltoall_on_stream_kernel", "all_to_all", "NVSHMEM", _NVSHMEM + "alltoall/alltoall.cu",
        "void alltoall_on_stream_kernel<float>(int, float*, float const*, unsigned long)",
    ),
    CollectiveName(
        r"(?:nvshmem\w*_)?(?:broadcast|fcollect|rdxn|reducescatter)_on_stream_kernel(?:_\w+)?", _BY_WORDS, "NVSHMEM",
        _NVSHMEM + "rdxn/reduce_common.cuh",
        "void rdxn_on_stream_kernel<float, (rdxn_ops)4>(int, float*, float const*, unsigned long)",
    ),
    CollectiveName(
        r"(?:nvshmemi?x?|rocshmem)_\w+", _BY_WORDS, "NVSHMEM, rocSHMEM", _NVSHMEM + "rdxn/reduce_team.cu",
        "void nvshmemi_reduce_kernel<int, (rdxn_ops)4>(int, int, int, int*, int const*, unsigned long, int*)",
    ),
    CollectiveName(
        r"allreduce_kernel|reduce_scatter_kernel|allgatherv_kernel(?:_\w+)?", _BY_WORDS, "UCC",
        "openucx/ucc src/components/tl/cuda/kernels/allreduce_kernel.cu",
        "allreduce_kernel(float*, unsigned long, unsigned int, unsigned int)",
    ),
    CollectiveName(
        r"oneccl_(?:all|reduce|broadcast|bcast|send|recv|barrier|scatter|gather)\w*", _BY_WORDS, "oneCCL",
        "uxlfoundation/oneCCL src/coll/algorithms/allreduce/sycl/allreduce_pcie.hpp",
        "oneccl_allreduce_pcie<sycl::half, Rt64_128_PCIE, RingTransmit>",
    ),
    CollectiveName(
        r"stream_executor::gpu::(?:OneShot|TwoShot)?AllReduceKernelImpl", "all_reduce", "XLA",
        "openxla/xla xla/stream_executor/gpu/all_reduce_kernel_lib.cu.h",
        "void stream_executor::gpu::AllReduceKernelImpl<float, xla::ReductionKind::SUM>(AllReduceKernelParams<float>)",
    ),
    CollectiveName(
        r"stream_executor::gpu::RaggedAllToAll\w*KernelImpl", "all_to_all", "XLA",
        "openxla/xla xla/stream_executor/gpu/ragged_all_to_all_device_kernel_lib.cu.h",
        "void stream_executor::gpu::RaggedAllToAllKernelImpl<8l>(void const*, std::array<void*, 64ul>)",
    ),
    CollectiveName(
        r"stream_executor::gpu::MultiGpuBarrierKernel\w*", "barrier", "XLA",
        "unverified: openxla/xla xla/stream_executor/gpu/multi_gpu_barrier_kernel.cu.h",
        "void stream_executor::gpu::MultiGpuBarrierKernelImpl<8>(long, std::array<void*, 8ul>)",
    ),
    CollectiveName(
        r"(?:\w+::)*push_pull_halos_1d_kernel", "send_recv", "Apex",
        "NVIDIA/apex apex/contrib/csrc/peer_memory/peer_memory_cuda.cu",
        "void push_pull_halos_1d_kernel<__half, true, true, true>(__half const*, int, int, int, __half*)",
    ),
)
# fmt: on

_OPERATION_WORDS: Final = (
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("fcollect", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("bcast", "broadcast"),
    ("sendrecv", "send_recv"),
    ("barrier", "barrier"),
    ("rdxn", "all_reduce"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("send", "send_recv"),
    ("recv", "send_recv"),
)
_ANY: Final = re.compile("|".join(f"(?P<r{number}>{row.pattern})" for number, row in enumerate(COLLECTIVE_NAMES)))
_UNNAMED: Final = r"\(anonymous namespace\)|<unnamed>|\{anonymous\}|_GLOBAL__N_\d*"
_QUALIFIED: Final = re.compile(rf"(?:(?:void|static|inline)\s+)*((?:{_UNNAMED}|\w|::)+)")
_UNNAMED_PART: Final = re.compile(rf"^::|(?:{_UNNAMED})(?:::)?")
_WORDS_OF_ALL_ROWS: Final = (
    *("ccl", "reduce", "gather", "alltoall", "all_to_all", "dispatch", "combine", "barrier", "broadcast", "shmem"),
    *("userbuffers", "a2a", "on_stream", "signal_kernel", "shot", "exchangesplit", "cached_notify", "device_sync"),
    *("low_latency", "_halos_", "executionkernel", "ar_fusion", "ar_ll128"),
)
"""Every name of the table holds one of these words: other names are decided 20 times faster."""
_LONGEST_NAME: Final = 4096
"""Characters of a name that are compared; the names of the table are far shorter."""
_MANGLED: Final = re.compile(r"_ZL?N?[KVL]*(?=\d)")
_MANGLED_PART: Final = re.compile(r"L?(\d{1,4})")


def parse_operation(words: str) -> str | None:
    """Return the operation that a profiler's words name ("_allgather_base", "AllReduce"); None if they name none."""
    letters = re.sub(r"[^a-z]", "", words.lower())
    return next((operation for word, operation in _OPERATION_WORDS if word in letters), None)


def find_collective_name(name: str) -> CollectiveName | None:
    """Return the row of the table that a kernel's name matches; None for other kernels."""
    return _find_row(name[:_LONGEST_NAME])


def collective_operation(name: str) -> str | None:
    """Return the operation that a communication kernel's name states; None for other kernels and unstated ones."""
    return _find_operation(name[:_LONGEST_NAME])


@lru_cache(maxsize=65536)
def _find_row(name: str) -> CollectiveName | None:
    qualified = _qualified_name(name)
    lower = qualified.lower()
    match = _ANY.fullmatch(qualified) if any(word in lower for word in _WORDS_OF_ALL_ROWS) else None
    return None if match is None else COLLECTIVE_NAMES[int(str(match.lastgroup)[1:])]


@lru_cache(maxsize=65536)
def _find_operation(name: str) -> str | None:
    row = _find_row(name)
    if row is None or row.operation != _BY_WORDS:
        return None if row is None else row.operation
    bare_name = re.sub(r"^.*?(?:nccl|rccl)", "", _qualified_name(name).rpartition("::")[2], count=1)
    # the reduction operator ("Sum", "PreMulSum") never contains an operation's word, so a search is enough
    return parse_operation(bare_name.replace("Kernel", ""))


def _qualified_name(name: str) -> str:
    """Return a kernel's name with its namespaces, without return type, template arguments and parameters."""
    if name.startswith("_Z"):
        return _demangled(name)
    match = _QUALIFIED.match(name)
    return _UNNAMED_PART.sub("", match[1]) if match else ""


def _demangled(name: str) -> str:
    """Return the qualified name of a mangled one: `aiter::allgather_vec` for `_ZN5aiter13allgather_vecIfEEvPv`."""
    start = _MANGLED.match(name)
    at, parts = start.end() if start else len(name), []
    while (length := _MANGLED_PART.match(name, at)) is not None:
        at = length.end() + int(length[1])
        parts.append(name[length.end() : at])
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N"))
