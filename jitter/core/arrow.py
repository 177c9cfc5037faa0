"""Arrow columns as numpy arrays and back, by their buffers.

Arrow's own conversions do the same, but load pandas first, which takes longer than to read a step.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bools = npt.NDArray[np.bool_]


def to_numpy(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Give a column of integers or floats as they are, shape (rows); what stands where it is null, nobody knows.

    A view of the column where it is in one piece.
    """
    size = column.type.bit_width // 8
    kind = "f" if pa.types.is_floating(column.type) else "u" if pa.types.is_unsigned_integer(column.type) else "i"
    parts = [
        np.frombuffer(chunk.buffers()[1], f"{kind}{size}", len(chunk), chunk.offset * size)
        for chunk in column.chunks
        if len(chunk)
    ]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, f"{kind}{size}")


def is_valid(column: pa.ChunkedArray) -> Bools:
    """Where a column is not null, shape (rows)."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    parts = [
        np.ones(len(chunk), np.bool_)
        if (valid := chunk.buffers()[0]) is None
        else np.unpackbits(np.frombuffer(valid, np.uint8), count=chunk.offset + len(chunk), bitorder="little")[
            chunk.offset :
        ].astype(np.bool_)
        for chunk in column.chunks
    ]
    return np.concatenate(parts)


def encode_lists(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[tuple[int, ...]]]:
    """Give a column of lists of whole numbers as positions, shape (rows), among the distinct ones; -1 where it is null.

    Groups of a thousand ranks are long lists, of which many rows hold few.
    """
    whole = column.combine_chunks()
    values, ends = to_numpy(pa.chunked_array([whole.values])), to_numpy(pa.chunked_array([whole.offsets])).tolist()
    seen: dict[bytes, int] = {}
    distinct: list[tuple[int, ...]] = []
    codes = np.full(len(whole), -1, np.int64)
    for row in np.flatnonzero(is_valid(column)).tolist():
        own = values[ends[row] : ends[row + 1]]
        name = own.tobytes()
        if name not in seen:
            seen[name] = len(distinct)
            distinct.append(tuple(own.tolist()))
        codes[row] = seen[name]
    return codes, distinct


def from_numpy(values: npt.NDArray[Any], known: Bools | None = None) -> pa.Array:
    """Put whole numbers, floats or truths into an Arrow array, null where they are not known (default: nowhere)."""
    told = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(np.ascontiguousarray(values))
    valid = None if known is None or known.all() else _bits(known)
    return pa.Array.from_buffers(_TYPES[values.dtype.name], len(values), [valid, told])


def from_texts(texts: Sequence[str]) -> pa.Array:
    """Put texts into an Arrow array."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(texts), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))])


_TYPES = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
}


def _bits(truths: Bools) -> pa.Buffer:
    return pa.py_buffer(np.packbits(truths, bitorder="little"))


def hide_pandas() -> None:
    """Keep pyarrow from loading pandas for the first array it makes.

    It looks once whether there is pandas, and is told no. From then on `pyarrow.array` takes a pandas Series for any
    sequence, until something asks for pandas by name (`to_pandas` does, and works): so this is for the command and
    its workers, never for a process of the user's.
    """
    absent = _PandasFinder()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(absent)


class _PandasFinder(MetaPathFinder):
    """Report pandas as not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is hidden", name=fullname)
        return None
