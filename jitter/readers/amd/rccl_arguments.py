"""Message size of an RCCL call, from the arguments that a profiler recorded."""

import re
from collections.abc import Mapping
from typing import Final

from jitter.core.bandwidth import element_bytes

_COUNTS: Final = ("count", "sendcount", "recvcount")
_BYTES: Final = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Bytes of an element by the number of `ncclDataType_t` (nccl.h)."""
_LARGEST: Final = 2**62


def message_bytes(arguments: Mapping[str, str]) -> int | None:
    """Return count × element size of a call with these arguments (name to text); None if one of them is unknown."""
    counts = [int(text) for name in _COUNTS if (text := arguments.get(name, "")).isdecimal()]
    size = _element_bytes(arguments.get("datatype", ""))
    if len(counts) != 1 or size is None or counts[0] * size > _LARGEST:
        return None
    return counts[0] * size


def _element_bytes(datatype: str) -> int | None:
    """Return the bytes of an element of a data type: `7`, `ncclFloat32`, `(ncclDataType_t) 7`."""
    if found := re.search(r"(?:^|[\s)=])(\d{1,2})$", datatype):
        number = int(found[1])
        return _BYTES[number] if number < len(_BYTES) else None
    return element_bytes(datatype)
