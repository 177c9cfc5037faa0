"""Operations and message sizes of RCCL's kernels, from the calls that launched them and their recorded arguments.

`ncclDevKernel_Generic` states no operation.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.bandwidth import element_bytes, size_of_message
from jitter.core.names.kernels import collective_operation, parse_operation
from jitter.core.numeric.arrays import Bools, Ints

_UNKNOWN = -1
_COUNTS: Final = ("count", "sendcount", "recvcount")
_BYTES: Final = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Bytes of an element by the number of `ncclDataType_t` (nccl.h)."""
_LARGEST: Final = 2**62


class RcclCalls:
    """RCCL calls of one recording by process and thread; a launch inside a call has its operation."""

    def __init__(self) -> None:
        self._calls: dict[tuple[int, int | None], list[tuple[int, int, str, int]]] = defaultdict(list)
        self._sorted = False
        self._operations: dict[tuple[int, int], str] = {}
        self._sizes: dict[tuple[int, int], int] = {}

    def add(
        self,
        processes: pa.Array,
        threads: pa.Array,
        names: Sequence[str],
        starts: pa.Array,
        ends: pa.Array,
        sizes: Sequence[int | None] | None = None,
    ) -> None:
        """Add calls; columns of equal length; `sizes` are message sizes in bytes, where recorded."""
        columns = (column.to_pylist() for column in (processes, threads, starts, ends))
        sizes = [None] * len(names) if sizes is None else sizes
        for process, thread, start, end, name, size in zip(*columns, names, sizes, strict=True):
            said = parse_operation(name.removeprefix("nccl"))
            if said is not None and start is not None and end is not None:
                self._calls[process, thread].append((start, end, said, _UNKNOWN if size is None else size))
        self._sorted = False

    def note_launches(self, calls: Mapping[str, pa.Array]) -> None:
        """Record which HIP calls (columns of CALLS) lie inside an RCCL call; call after the last `add`."""
        if not self._calls:
            return
        if not self._sorted:
            for process_calls in self._calls.values():
                process_calls.sort()
            self._sorted = True
        processes, threads, starts = calls["process"], calls["thread"], _numbers(calls["start_ns"])
        is_known = calls["start_ns"].is_valid().to_numpy(False) & calls["correlation"].is_valid().to_numpy(False)
        for (process, thread), around in self._calls.items():
            is_own = pc.is_null(threads) if thread is None else pc.equal(threads, thread).fill_null(False)
            rows = np.flatnonzero(is_known & pc.and_(is_own, pc.equal(processes, process)).to_numpy(False))
            at = np.searchsorted([call[0] for call in around], starts[rows], side="right") - 1
            is_inside = (at >= 0) & (starts[rows] <= np.array([call[1] for call in around])[at])
            for correlation, call in zip(
                calls["correlation"].take(pa.array(rows[is_inside])).to_pylist(), at[is_inside].tolist(), strict=True
            ):
                _, _, operation, size = around[call]
                self._operations[process, correlation] = operation
                if size != _UNKNOWN:
                    self._sizes[process, correlation] = size

    def operations(self, kernels: Mapping[str, pa.Array], names: Sequence[str]) -> pa.Array:
        """Return the operation (string) of each kernel (columns of ACTIVITIES) that an RCCL call launched.

        Null for kernels whose name states the operation. Kernels of other names, renamed by markers or of another
        library that RCCL calls, are communication by this operation.
        """
        rows = len(kernels["name"])
        if not self._operations:
            return pa.nulls(rows, pa.string())
        silent = [collective_operation(name) is None for name in names]
        is_unnamed = pa.array(silent, pa.bool_()).take(kernels["name"])
        if not pc.any(is_unnamed).as_py():
            return pa.nulls(rows, pa.string())
        operation_of_row: list[str | None] = [None] * rows
        for row, key in self._launched(kernels, self._operations, is_unnamed.to_numpy(False)):
            operation_of_row[row] = self._operations[key]
        return pa.array(operation_of_row, pa.string())

    def sizes(self, kernels: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return `message_bytes` and `size_bytes` (int64) of kernels (columns of ACTIVITIES), by column name.

        The number of ranks is not recorded, so S is null for collectives of which a rank's message is one part.
        """
        if not self._sizes:
            return {}
        messages: list[int | None] = [None] * len(kernels["name"])
        wholes: list[int | None] = [None] * len(messages)
        for row, key in self._launched(kernels, self._sizes, np.ones(len(messages), np.bool_)):
            messages[row] = self._sizes[key]
            wholes[row] = size_of_message(self._operations[key], self._sizes[key], None)
        return {"message_bytes": pa.array(messages, pa.int64()), "size_bytes": pa.array(wholes, pa.int64())}

    @staticmethod
    def _launched(
        kernels: Mapping[str, pa.Array], known_keys: Mapping[tuple[int, int], object], of: Bools
    ) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the rows of kernels among those `of` whose process and correlation are known, with these two."""
        correlations = _numbers(kernels["correlation"])
        # few are: choose without running Python code for each
        of = of & np.isin(correlations, [correlation for _, correlation in known_keys])
        rows = np.flatnonzero(of & kernels["correlation"].is_valid().to_numpy(False))
        processes = kernels["process"].take(pa.array(rows)).to_pylist()
        for row, key in zip(rows.tolist(), zip(processes, correlations[rows].tolist(), strict=True), strict=True):
            if key in known_keys:
                yield row, key


def _numbers(column: pa.Array) -> Ints:
    """Return a column's integers, 0 where they are null."""
    integers: Ints = column.fill_null(0).to_numpy(zero_copy_only=False)
    return integers


def message_bytes(arguments: Mapping[str, str]) -> int | None:
    """Return count × element size of a call with these arguments (name to text); None if one of them is unknown."""
    counts = [int(text) for name in _COUNTS if (text := arguments.get(name, "")).isdecimal()]
    size = _element_bytes(arguments.get("datatype", ""))
    if len(counts) != 1 or size is None or counts[0] * size > _LARGEST:
        return None
    return counts[0] * size


def _element_bytes(datatype: str) -> int | None:
    """Return the bytes of an element of a data type: `7`, `ncclFloat32`, `(ncclDataType_t) 7`."""
    if match := re.search(r"(?:^|[\s)=])(\d{1,2})$", datatype):
        number = int(match[1])
        return _BYTES[number] if number < len(_BYTES) else None
    return element_bytes(datatype)
