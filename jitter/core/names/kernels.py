"""Meaning of names of kernels and copies: compute or collective, the operation, the short form.

Communication kernels are one table of patterns, each with the operation, its library and a public source. A pattern is
matched with the kernel's qualified name as a whole: `deep_ep::intranode::dispatch` for
`void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, …)`. Kernels of other names are recognised by their arguments
or by the library call that launched them (`ingestion.transform.collective_calls`), or declared by the user.

Gloo and copy engines have no row: their transfers are copies of memory, which have no kernel name.
"""

import re
from functools import cache, lru_cache
from typing import Final

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
SEND_RECV: Final = "send_recv"
"""The collective operation of a send or a receive."""
ALIGNING_OPERATIONS: Final = frozenset(OPERATIONS[:5])
"""All ranks of a group end these at the same time, which is not so for broadcasts and reduces."""
REDUCTIONS: Final = frozenset({"all_reduce", "reduce_scatter", "reduce"})
"""What they add up, as gradients, was computed just before; what others send may be there long before."""
WHOLE_GRAPH: Final = "CUDA graph"
"""Start of the name of an activity that stands for a whole graph."""
KINDS: Final = ("compute", "collective", "memory")
COMPUTE, COLLECTIVE, MEMORY, SYNC, HOST_BARRIER = range(len(KINDS) + 2)
"""Codes: positions in `KINDS`, then those of host calls that are operations of a program, too: a call that waits for
the GPU, or for the hosts' barrier before it; and the arrival at a barrier, where hosts meet as GPUs do in a collective.
"""
MEETINGS: Final = (COLLECTIVE, HOST_BARRIER)
"""What ends on all of its ranks when the last of them has come."""

_BY_WORDS: Final = "by words"
"""The operation is the one that the name's own words state ("AllReduce"), if any."""


_EP: Final = r"(?:\w+::)*(?:deep_ep|uccl|nccl_ep|hybrid_ep|mscclpp::ep)::(?:\w+::)*"

# fmt: off
COLLECTIVE_NAMES: Final = (
    # NCCL to 2.7 `ncclAllReduceRingLLKernel_sum_f16`, to 2.18 `ncclKernel_…`, then `ncclDevKernel_…`, symmetric
    # memory `ncclSymDevKernel_…` (2.27) and `ncclSymkDevKernel_…` (2.28); RCCL the same or `rcclKernel_…`, and one
    # kernel for all operations: `ncclDevKernel_Generic`, `rcclGenericKernel`; CTran `ncclKernelAllGatherCtranDirect`
    # NCCL, RCCL, CTran, MCCL: NVIDIA/nccl src/device/generate.py
    (_BY_WORDS, r"(?:\w+::)*(?:nccl|rccl|mccl)(?:Symk?)?(?:Dev)?(?:Kernel|[A-Z]\w*Kernel)(?![a-z])\w*"),
    # NCCL: NVIDIA/nccl src/device/symmetric/all_gather_gin.cuh
    (_BY_WORDS, r"ncclSymkRun_\w+"),
    # MSCCL: ROCm/rccl src/device/msccl_kernel_impl.h
    (None, r"(?:\w+::)*mscclKernel_\w+"),
    # MSCCL++: microsoft/mscclpp src/ext/collectives/allreduce/allreduce_packet.cu
    (_BY_WORDS, r"mscclpp::(?:\w+::)*(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|bcast)\w*"),
    # MSCCL++: microsoft/mscclpp apps/nccl/src/allreduce.hpp
    (_BY_WORDS, r"(?:allreduce|allgather|broadcast)(?:\d{1,2}|(?:AllPairs?|Nvls|Packet|Fullmesh|RsAg|AllToAll)\w*)"),
    # MSCCL++: microsoft/mscclpp src/executor/execution_kernel.cu
    (None, r"(?:mscclpp::)?executionKernel"),
    # vLLM, SGLang, aiter: vllm-project/vllm csrc/custom_all_reduce.cuh
    ("all_reduce", r"(?:\w+::)*(?:sm\d\d_)?cross_device_reduce_(?:sum2_)?[12]stage(?:_\w+)?"),
    # SGLang: sgl-project/sglang python/sglang/kernels/jit/csrc/distributed/custom_all_reduce.cuh
    ("all_reduce", r"(?:\w+::)*all_reduce_(?:[12]shot|(?:one|two)_shot)_(?:(?:push|pull)_)?kernel"
                   r"|sglang::(?:\w+::)*all_reduce_kernel|(?:\w+::)*ar_fusion_(?:push|pull)_kernel"),
    # aiter: ROCm/aiter csrc/include/custom_all_reduce.cuh
    ("all_reduce", r"(?:\w+::)*ar_ll128_\w+"),
    # Triton-distributed: ByteDance-Seed/Triton-distributed python/triton_dist/kernels/nvidia/allreduce.py
    ("all_reduce", r"allreduce_\w+_(?:intra|inter)_node_kernel"),
    # SGLang: sgl-project/sglang python/sglang/srt/distributed/device_communicators/triton_symm_mem_ag.py
    ("all_gather", r"_all_gather_kernel_inner"),
    # aiter: ROCm/aiter csrc/include/custom_all_reduce.cuh
    ("reduce_scatter", r"(?:aiter::)?reduce_scatter_cross_device_store(?:_\w+)?"),
    ("all_gather", r"aiter::allgather_(?:vec|lastdim|naive)"),
    # QuickReduce (vLLM, SGLang, aiter): vllm-project/vllm csrc/quickreduce/quick_reduce.h
    ("all_reduce", r"(?:\w+::)*allreduce_prototype_(?:one|two)shot"),
    # TensorRT-LLM, FasterTransformer, PyTorch: NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/customAllReduceKernels.cu
    ("all_reduce", r"(?:\w+::)*(?:(?:one|two)ShotAllReduceKernel|hybridCubeMeshAllReduceKernel)"),
    # TensorRT-LLM, FlashInfer: flashinfer-ai/flashinfer include/flashinfer/comm/trtllm_allreduce.cuh
    ("all_reduce", r"(?:\w+::)*(?:lamport_style_)?one_shot_all_reduce_norm_kernel"),
    # FlashInfer, TensorRT-LLM: flashinfer-ai/flashinfer include/flashinfer/comm/trtllm_allreduce_fusion.cuh
    ("all_reduce", r"(?:\w+::)*(?:moereduction_|moefinalize_)?allreduce_fusion_kernel_\w+"),
    # FlashInfer, TensorRT-LLM: NVIDIA/TensorRT-LLM …/mnnvlAllreduceKernels.cu
    ("all_reduce", r"(?:\w+::)*(?:oneshotAllreduceFusionKernel|twoshotAllreduceKernel)"),
    # TensorRT-LLM: unverified, NVIDIA/TensorRT-LLM …/customLowPrecisionAllReduceKernels.cu
    ("all_reduce", r"(?:\w+::)*lowPrecision(?:One|Two)Shot\w*Kernel"),
    # TensorRT-LLM, FlashInfer: NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/communicationKernels/moeAlltoAllKernels.cu
    ("all_to_all", r"(?:\w+::)*(?:moeA2A(?:Dispatch|Combine)Kernel|moeAll[tT]oAllKernel)"),
    # PyTorch symmetric memory: pytorch/pytorch torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu
    (_BY_WORDS,
     r"(?:multimem_|one_shot_|two_shot_|multimem_(?:one|two)_shot_)(?:all_reduce|reduce_scatter|reduce|all_gather)"
     r"(?:_\w+)?_kernel(?:_inplace|_\d\w*)?|all_reduce_kernel"),
    # PyTorch symmetric memory: pytorch/pytorch torch/csrc/distributed/c10d/symm_mem/nvshmem_extension.cu
    ("all_to_all", r"(?:\w+::)*(?:all_to_all_v(?:dev\w*)?|allToAll(?:V|Get)(?:_\w+)?|exchangeSplitAndOffset(?:_\w+)?)"),
    # PyTorch symmetric memory: pytorch/pytorch torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory.cu
    ("barrier", r"c10d::symmetric_memory::(?:barrier_kernel|put_signal_kernel|wait_signal_kernel)"),
    # DeepEP, UCCL, NCCL EP, MSCCL++ EP: deepseek-ai/DeepEP csrc/kernels/intranode.cu
    ("all_to_all",
     _EP + r"(?:cached_)?(?:notify_)?(?:dispatch|combine)(?:_(?:impl|kernel))?|" + _EP + r"cached_notify"),
    # DeepEP, UCCL: deepseek-ai/DeepEP csrc/kernels/intranode.cu
    ("barrier", _EP + r"(?:barrier|device_sync_kernel|clean_low_latency_buffer)"),
    # mori: ROCm/mori src/ops/dispatch_combine/intranode.hpp
    ("all_to_all",
     r"(?:mori::moe::)?Ep(?:Dispatch|Combine)(?:(?:Intra|Inter)Node|LowLatencyAsync(?:Send|Recv)(?!Copy))\w*"),
    # mori: ROCm/mori src/ops/dispatch_combine/internode_v1.cpp
    ("barrier", r"(?:mori::moe::)?EpCombineSyncBarrier\w*"),
    # pplx-garden: perplexityai/pplx-garden p2p-all-to-all/a2a-kernels/src/a2a/a2a_dispatch_send.cu
    ("all_to_all", r"(?:\w+::)*a2a_(?:dispatch|combine)_(?:send|recv)_kernel"),
    # TransformerEngine: NVIDIA/TransformerEngine transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers.cu
    ("reduce_scatter", r"k?userbuffers_\w*_rs(?:_\w+)?"),
    ("all_gather", r"k?userbuffers_\w*_ag(?:_\w+)?"),
    ("send_recv", r"kuserbuffers_(?:push|alltoall)\w*"),
    ("all_reduce", r"userbuffers_\w+"),
    # NVSHMEM: NVIDIA/nvshmem src/host/stream/coll/barrier/barrier.cu
    ("barrier", r"(?:nvshmem\w*_)?(?:barrier|sync)(?:_all)?_on_stream_kernel(?:_\w+)?"),
    # NVSHMEM: NVIDIA/nvshmem src/host/stream/coll/alltoall/alltoall.cu
    ("all_to_all", r"(?:nvshmem\w*_)?alltoall_on_stream_kernel"),
    # NVSHMEM: NVIDIA/nvshmem src/host/stream/coll/rdxn/reduce_common.cuh
    (_BY_WORDS, r"(?:nvshmem\w*_)?(?:broadcast|fcollect|rdxn|reducescatter)_on_stream_kernel(?:_\w+)?"),
    # NVSHMEM, rocSHMEM: NVIDIA/nvshmem src/host/stream/coll/rdxn/reduce_team.cu
    (_BY_WORDS, r"(?:nvshmemi?x?|rocshmem)_\w+"),
    # UCC: openucx/ucc src/components/tl/cuda/kernels/allreduce_kernel.cu
    (_BY_WORDS, r"allreduce_kernel|reduce_scatter_kernel|allgatherv_kernel(?:_\w+)?"),
    # oneCCL: uxlfoundation/oneCCL src/coll/algorithms/allreduce/sycl/allreduce_pcie.hpp
    (_BY_WORDS, r"oneccl_(?:all|reduce|broadcast|bcast|send|recv|barrier|scatter|gather)\w*"),
    # XLA: openxla/xla xla/stream_executor/gpu/all_reduce_kernel_lib.cu.h
    ("all_reduce", r"stream_executor::gpu::(?:OneShot|TwoShot)?AllReduceKernelImpl"),
    # XLA: openxla/xla xla/stream_executor/gpu/ragged_all_to_all_device_kernel_lib.cu.h
    ("all_to_all", r"stream_executor::gpu::RaggedAllToAll\w*KernelImpl"),
    # XLA: unverified, openxla/xla xla/stream_executor/gpu/multi_gpu_barrier_kernel.cu.h
    ("barrier", r"stream_executor::gpu::MultiGpuBarrierKernel\w*"),
    # Apex: NVIDIA/apex apex/contrib/csrc/peer_memory/peer_memory_cuda.cu
    ("send_recv", r"(?:\w+::)*push_pull_halos_1d_kernel"),
)
# fmt: on
"""Operation and pattern of qualified names, below the libraries and a public file that define such kernels."""

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


def is_collective(name: str) -> bool:
    """Return whether this is the name of a communication kernel of any known library."""
    return _find_operation(name[:_LONGEST_NAME]) is not None


def collective_operation(name: str) -> str | None:
    """Return the operation that a communication kernel's name states; None for other kernels and unstated ones."""
    return _find_operation(name[:_LONGEST_NAME]) or None


@lru_cache(maxsize=65536)
def _find_operation(name: str) -> str | None:
    """Return the operation of a communication kernel, empty where its name states none; None for other kernels."""
    qualified = _qualified_name(name)
    lower = qualified.lower()
    match = _any_name().fullmatch(qualified) if any(word in lower for word in _WORDS_OF_ALL_ROWS) else None
    if match is None or match.lastindex is None:
        return None
    operation, _ = COLLECTIVE_NAMES[match.lastindex - 1]
    if operation != _BY_WORDS:
        return operation or ""
    bare_name = re.sub(r"^.*?(?:nccl|rccl)", "", qualified.rpartition("::")[2], count=1)
    # the reduction operator ("Sum", "PreMulSum") never contains an operation's word, so a search is enough
    return parse_operation(bare_name.replace("Kernel", "")) or ""


@cache
def _any_name() -> re.Pattern[str]:
    """Return the pattern of all rows: most commands read a lake, which states what each kernel is, and need it not."""
    return re.compile("|".join(f"({pattern})" for _, pattern in COLLECTIVE_NAMES))


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


_EXPERTS: Final = re.compile(
    r"(?i)fused_moe_kernel|moe_?gemm|moefcgemm|moe_wna16"  # vLLM, SGLang, TensorRT-LLM, Marlin, CK
    r"|(?<![a-z])fmoe_"  # aiter
    r"|group(?:ed)?_?(?:gemm|matmul|mm)(?![a-z])|gemm_?grouped|GroupProblemShape|ragged_dot"  # CUTLASS, PyTorch, JAX
    r"|deep_gemm::(?:.{0,999}GemmType\)[1-9]|\w{0,99}grouped)"  # DeepGEMM; type 0 is no grouped one
    r"|(?<![a-z])p?_matmul_ogs_|bmm_\w{0,199}dynBatch"  # Triton's kernels of gpt-oss, TensorRT-LLM's and FlashInfer's
    r"|(?<![a-z])_(?:sdd|dsd|dds)_kernel"  # MegaBlocks
)


@lru_cache(maxsize=65536)
def is_expert_kernel(name: str) -> bool:
    """Return whether this is the name of a matrix product of the experts of a mixture of experts.

    >>> is_expert_kernel("fused_moe_kernel"), is_expert_kernel("ampere_bf16_s16816gemm_bf16_128x128_ldg8_stages_tn")
    (True, False)
    """
    return _EXPERTS.search(name) is not None


_DIRECTION: Final = re.compile(
    r"(host|device|array|peer|[hdap])[\W_]*(?:to|2)[\W_]*(host|device|array|peer|[hdap])(?![a-z])", re.I
)


@lru_cache(maxsize=1024)
def copy_direction(name: str) -> str | None:
    """Return the direction that a copy's name states: host_to_device, device_to_host, …; None if it states none.

    >>> copy_direction("Memcpy HtoD (Pinned -> Device)"), copy_direction("[CUDA memcpy Peer-to-Peer]")
    ('host_to_device', 'device_to_device')
    """
    match = _DIRECTION.search(name)
    if match is None:
        return None
    source, target = ("host" if end[0] in "hH" else "device" for end in match.groups())
    return f"{source}_to_{target}"


_HOST_MEMORY: Final = re.compile(r"\b(pageable|pinned)\b", re.I)


def host_memory(name: str) -> str | None:
    """Return the host memory that a copy's name states, pageable or pinned; None if it states none.

    >>> host_memory("Memcpy HtoD (Pageable -> Device)"), host_memory("CopyHostToDevice")
    ('pageable', None)
    """
    match = _HOST_MEMORY.search(name)
    return None if match is None else match[1].lower()


_COMPILED: Final = re.compile(r"(?:triton_\w*fused_|\w{0,200}fusion(?![a-z])|wrapped_)[\w.]*")
"""Names that PyTorch's compiler and XLA make from what they fuse."""
_COUNT: Final = re.compile(r"(?:[._]\d{1,9}){1,3}(?:d[dec\d]{0,99})?$")
"""The compiler's number at the end of such a name, and Triton's letters for its arguments."""


@lru_cache(maxsize=65536)
def uncounted_name(name: str) -> str:
    """Return a kernel's name without the number that PyTorch's compiler or XLA gave it in the order of compilation.

    Processes that compile in another order, or one graph more, give the same kernel another number.

    >>> uncounted_name("triton_poi_fused_add_mul_3"), uncounted_name("loop_add_fusion_12")
    ('triton_poi_fused_add_mul', 'loop_add_fusion')
    >>> uncounted_name("gemm_fusion_dot_7_0"), uncounted_name("fused_rope_kernel_64")
    ('gemm_fusion_dot', 'fused_rope_kernel_64')
    """
    return name if _COMPILED.fullmatch(name) is None else _COUNT.sub("", name)


_WRAPPED: Final = re.compile(r"[^<]*\b(?:device_)?[Kk]ernel\d?<\s*(?:\w+::){0,9}(\w*[A-Za-z]\w*_\w+)")
"""A function template that says nothing, as CUTLASS has, and what it runs."""


@lru_cache(maxsize=65536)
def short_name(name: str) -> str:
    """Return a kernel's name without return type, namespaces, template arguments and parameters.

    >>> short_name("void at::native::elementwise_kernel<128, 4, Foo<a::b>>(int, Foo)")
    'elementwise_kernel'
    >>> short_name("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>(cutlass_80_tensorop_s1688gemm::Params)")
    'cutlass_80_tensorop_s1688gemm'
    >>> short_name("Memcpy DtoH (Device -> Pinned)")
    'Memcpy DtoH'
    """
    if (wrapped := _WRAPPED.match(name)) is not None:
        return wrapped[1]
    depth = 0
    kept: list[str] = []
    for char in name.replace("(anonymous namespace)::", "").replace("operator()", "operator").replace("->", ""):
        if char in "<([":
            depth += 1
        elif char in ">)]":
            depth -= 1
        elif depth == 0:
            kept.append(char)
    words = "".join(kept).split()
    if words[:1] == ["Memcpy"]:
        return " ".join(words)
    # a graph that was recorded as a whole has a number in place of a name: "CUDA graph 3"
    return words[-1].rpartition("::")[2] if words and not words[-1].isdecimal() else name
