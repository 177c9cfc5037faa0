"""What a kernel's name means: compute or collective, which operation, its short form."""

import re
from functools import lru_cache
from typing import Final, Literal

Kind = Literal["compute", "collective", "memory"]

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
ALIGNING_OPERATIONS: Final = frozenset(OPERATIONS[:5])
"""All ranks of a group end these at the same time, which is not so for broadcasts and reduces."""

# NCCL to 2.7 `ncclAllReduceRingLLKernel_sum_f16`, to 2.18 `ncclKernel_AllReduce_RING_LL_Sum_half`, then
# `ncclDevKernel_AllReduce_Sum_f16_RING_LL`, symmetric memory `ncclSymkDevKernel_AllReduce_…`; RCCL the same
# names or `rcclKernel_…`, and one kernel for everything: `ncclDevKernel_Generic`.
_COLLECTIVE = re.compile(r"^(?:void\s+)?(?:\w+::)*(?:nccl|rccl)(?:Symk)?(?:Dev)?(?:Kernel|[A-Z]\w*Kernel)(?![a-z])")
_OPERATION_WORDS: Final = (
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("bcast", "broadcast"),
    ("sendrecv", "send_recv"),
    ("barrier", "barrier"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("send", "send_recv"),
    ("recv", "send_recv"),
)


@lru_cache(maxsize=65536)
def is_collective(name: str) -> bool:
    """Return whether this is a device kernel of NCCL or RCCL, in any version's spelling."""
    return _COLLECTIVE.match(name) is not None


def parse_operation(text: str) -> str | None:
    """Return the operation in a profiler's text ("_allgather_base", "AllReduce"); None if it names none."""
    squeezed = re.sub(r"[^a-z]", "", text.lower())
    return next((op for word, op in _OPERATION_WORDS if word in squeezed), None)


@lru_cache(maxsize=65536)
def collective_operation(name: str) -> str | None:
    """Return the operation in a collective kernel's name; None for RCCL's generic kernel."""
    if not is_collective(name):
        return None
    own = re.sub(r"^.*?(?:nccl|rccl)", "", name, count=1)
    own = re.sub(r"\(.*", "", own)
    # the reduction operator ("Sum", "PreMulSum") never contains an operation's word, so a search is enough
    return parse_operation(own.replace("Kernel", ""))


_DIRECTION: Final = re.compile(
    r"(host|device|array|peer|[hdap])[\W_]*(?:to|2)[\W_]*(host|device|array|peer|[hdap])(?![a-z])", re.I
)


@lru_cache(maxsize=1024)
def copy_direction(name: str) -> str | None:
    """Return the direction that a copy's name states: host_to_device, device_to_host, …; None if it states none.

    >>> copy_direction("Memcpy HtoD (Pinned -> Device)"), copy_direction("[CUDA memcpy Peer-to-Peer]")
    ('host_to_device', 'device_to_device')
    """
    found = _DIRECTION.search(name)
    if found is None:
        return None
    source, target = ("host" if end[0] in "hH" else "device" for end in found.groups())
    return f"{source}_to_{target}"


@lru_cache(maxsize=65536)
def short_name(name: str) -> str:
    """Return a kernel's name without return type, namespaces, template arguments and parameters.

    >>> short_name("void at::native::elementwise_kernel<128, 4, Foo<a::b>>(int, Foo)")
    'elementwise_kernel'
    """
    depth = 0
    kept: list[str] = []
    for char in name.replace("(anonymous namespace)::", "").replace("operator()", "operator"):
        if char in "<([":
            depth += 1
        elif char in ">)]":
            depth -= 1
        elif depth == 0:
            kept.append(char)
    words = "".join(kept).split()
    return words[-1].rpartition("::")[2] if words else name


KINDS: Final = ("compute", "collective", "memory")
COMPUTE, COLLECTIVE, MEMORY, SYNC = range(len(KINDS) + 1)
"""Codes: positions in `KINDS`, then that of a synchronising call, which is also an operation of a program."""
