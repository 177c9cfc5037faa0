"""Meaning of a kernel's name: compute or collective, the operation, its short form."""

import re
from functools import lru_cache
from typing import Final

from jitter.core.names.collectives import OPERATIONS, collective_operation, is_collective, parse_operation

__all__ = [
    "ALIGNING_OPERATIONS",
    "COLLECTIVE",
    "COMPUTE",
    "KINDS",
    "MEMORY",
    "OPERATIONS",
    "REDUCTIONS",
    "SEND_RECV",
    "SYNC",
    "collective_operation",
    "is_collective",
    "is_expert_kernel",
    "parse_operation",
    "short_name",
]

SEND_RECV: Final = "send_recv"
"""The collective operation of a send or a receive."""
ALIGNING_OPERATIONS: Final = frozenset(OPERATIONS[:5])
"""All ranks of a group end these at the same time, which is not so for broadcasts and reduces."""
REDUCTIONS: Final = frozenset({"all_reduce", "reduce_scatter", "reduce"})
"""What they add up, as gradients, was computed just before; what others send may be there long before."""


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


@lru_cache(maxsize=65536)
def short_name(name: str) -> str:
    """Return a kernel's name without return type, namespaces, template arguments and parameters.

    >>> short_name("void at::native::elementwise_kernel<128, 4, Foo<a::b>>(int, Foo)")
    'elementwise_kernel'
    >>> short_name("Memcpy DtoH (Device -> Pinned)")
    'Memcpy DtoH'
    """
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


WHOLE_GRAPH: Final = "CUDA graph"
"""Start of the name of an activity that stands for a whole graph."""
KINDS: Final = ("compute", "collective", "memory")
COMPUTE, COLLECTIVE, MEMORY, SYNC = range(len(KINDS) + 1)
"""Codes: positions in `KINDS`, then that of a synchronising call, which is also an operation of a program."""
