"""Size of a collective operation as nccl-tests states it, and its bandwidth.

Formulas: NVIDIA/nccl-tests, doc/PERFORMANCE.md.
"""

from typing import Final

_SHARE_OF_OTHERS: Final = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
_ELEMENT_BYTES: Final = {
    **dict.fromkeys(("int8", "uint8", "char", "byte", "bool"), 1),
    **dict.fromkeys(("int16", "uint16", "short", "float16", "half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "int", "float32", "float", "complexhalf"), 4),
    **dict.fromkeys(("int64", "uint64", "long", "float64", "double", "complexfloat"), 8),
    "complexdouble": 16,
}
NCCL_TYPES: Final = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16"),
    *("float8_e4m3", "float8_e5m2"),
)
"""`ncclDataType_t` of nccl.h, by number."""


def bus_factor(collective: str | None, ranks: int) -> float:
    """Return what the algorithm bandwidth is multiplied with to get the bus bandwidth."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in _SHARE_OF_OTHERS else 1.0


def bandwidth(
    collective: str | None, size_bytes: int, duration_ns: float, ranks: int
) -> tuple[float, float] | tuple[None, None]:
    """Return algorithm and bus bandwidth in GB/s (1e9 bytes a second), or Nones where they are undefined."""
    if duration_ns <= 0 or ranks < 1 or collective is None:
        return None, None
    algorithm = size_bytes / duration_ns
    return algorithm, algorithm * bus_factor(collective, ranks)


def element_bytes(dtype: str) -> int | None:
    """Return the bytes of an element of a type as PyTorch or NCCL names it; None if the type is unknown.

    >>> element_bytes("BFloat16"), element_bytes("ncclFloat8e4m3"), element_bytes("tensor")
    (2, 1, None)
    """
    name = dtype.strip().lower().removeprefix("nccl")
    return 1 if name.startswith(("float8", "fp8")) else _ELEMENT_BYTES.get(name)


def size_of_input(collective: str | None, input_bytes: int, ranks: int | None) -> int | None:
    """Return size S from the bytes of a rank's input buffer, as PyTorch records it; None if `ranks` is needed for it.

    A rank's input of an all-gather is its part of the result, which S spans.
    """
    if collective != "all_gather":
        return input_bytes
    return input_bytes * ranks if ranks else None


def size_of_message(collective: str | None, message_bytes: int, ranks: int | None) -> int | None:
    """Return size S from a message's count x type, as NCCL's profiler plug-ins and the Inspector record it.

    They record the elements per peer of an all-gather, a reduce-scatter and an all-to-all; S spans all peers.
    """
    if collective not in _SHARE_OF_OTHERS:
        return message_bytes
    return message_bytes * ranks if ranks else None
