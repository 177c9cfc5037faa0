"""Names of copies in an Nsight Systems export: direction, and the memory of both ends where one is host memory."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from jitter.core.arrow import column_or_nulls
from jitter.core.numeric.arrays import Ints
from jitter.readers.nsys.names import Interner

_DIRECTIONS: Final = (
    *("Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array"),
    *("Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer"),
    *("Unified Host-to-Device", "Unified Device-to-Host", "Unified Device-to-Device"),
)
_MEMORY_KINDS: Final = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
_UNKNOWN: Final = len(_MEMORY_KINDS)
_HOST_KINDS: Final = frozenset({"Pageable", "Pinned"})


def name_copies(rows: pa.RecordBatch, names: Interner[Any], labels: Mapping[int, str]) -> pa.Array:
    """Return the numbers in `names` of copies: `[CUDA memcpy Host-to-Device (Pageable -> Device)]`.

    `labels` are the export's own names of directions that are not known here.
    """
    directions = rows["copyKind"].dictionary_encode("encode")
    kinds = directions.dictionary.to_pylist()
    source, target = (_memory_kinds(rows, column) for column in ("srcKind", "dstKind"))
    codes = (directions.indices.to_numpy().astype(np.int64) * (_UNKNOWN + 1) + source) * (_UNKNOWN + 1) + target

    def name(code: int | None) -> str:
        ends, at = divmod(code or 0, _UNKNOWN + 1)
        direction, start = divmod(ends, _UNKNOWN + 1)
        return f"[CUDA memcpy {_direction(kinds[direction], labels)}{_memory(start, at)}]"

    return names.positions(pa.array(codes), name)


def _memory_kinds(rows: pa.RecordBatch, column: str) -> Ints:
    values = column_or_nulls(rows, column, pa.int64()).fill_null(_UNKNOWN).to_numpy()
    return np.where((values >= 0) & (values < _UNKNOWN), values, _UNKNOWN)


def _direction(kind: int | None, labels: Mapping[int, str]) -> str:
    if kind is None or not 0 <= kind < len(_DIRECTIONS):
        return labels.get(-1 if kind is None else kind, "Unknown")
    return _DIRECTIONS[kind]


def _memory(source: int, target: int) -> str:
    """Return the memory of both ends in words; empty unless both are known and one is host memory."""
    ends = [_MEMORY_KINDS[end] for end in (source, target) if end != _UNKNOWN]
    return f" ({' -> '.join(ends)})" if len(ends) == 2 and _HOST_KINDS.intersection(ends) else ""
