"""Operations and message sizes of RCCL's kernels, from the calls that launched them.

`ncclDevKernel_Generic` states no operation.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.bandwidth import size_of_message
from jitter.core.kernels import collective_operation, parse_operation
from jitter.readers.amd.batches import decode_text

_UNKNOWN = -1


class RcclCalls:
    """RCCL calls of one recording by process and thread; a launch inside a call has its operation."""

    def __init__(self) -> None:
        """Start without calls."""
        self._calls: dict[tuple[int, int | None], list[tuple[int, int, str, int]]] = defaultdict(list)
        self._sorted = False
        self._operations: dict[tuple[int, int], str] = {}
        self._sizes: dict[tuple[int, int], int] = {}

    def add(
        self,
        processes: pa.Array,
        threads: pa.Array,
        names: pa.Array,
        starts: pa.Array,
        ends: pa.Array,
        sizes: Sequence[int | None] | None = None,
    ) -> None:
        """Add calls; columns of equal length, names as binary; `sizes` are message sizes in bytes, where recorded."""
        columns = (column.to_pylist() for column in (processes, threads, names, starts, ends))
        sizes = [None] * len(names) if sizes is None else sizes
        for process, thread, name, start, end, size in zip(*columns, sizes, strict=True):
            said = parse_operation(decode_text(name).removeprefix("nccl"))
            if said is not None and start is not None and end is not None:
                self._calls[process, thread].append((start, end, said, _UNKNOWN if size is None else size))
        self._sorted = False

    def note_launches(self, calls: Mapping[str, pa.Array]) -> None:
        """Record which HIP calls (columns of CALLS) lie inside an RCCL call; call after the last `add`."""
        if not self._calls:
            return
        if not self._sorted:
            for found in self._calls.values():
                found.sort()
            self._sorted = True
        columns = (calls[name].to_pylist() for name in ("process", "thread", "start_ns", "correlation"))
        for process, thread, start, correlation in zip(*columns, strict=True):
            around = self._calls.get((process, thread))
            if around and start is not None and correlation is not None:
                at = bisect_right(around, (start, 2**63, "", 0)) - 1
                if at >= 0 and start <= around[at][1]:
                    _, _, operation, size = around[at]
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
        keys = zip(
            kernels["process"].to_pylist(), kernels["correlation"].to_pylist(), is_unnamed.to_pylist(), strict=True
        )
        return pa.array([self._operations.get(key[:2]) if key[2] else None for key in keys], pa.string())

    def sizes(self, kernels: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        """Return `message_bytes` and `size_bytes` (int64) of kernels (columns of ACTIVITIES), by column name.

        The number of ranks is not recorded, so S is null for collectives of which a rank's message is one part.
        """
        if not self._sizes:
            return {}
        keys = list(zip(kernels["process"].to_pylist(), kernels["correlation"].to_pylist(), strict=True))
        messages = [self._sizes.get(key) for key in keys]
        wholes = [
            None if size is None else size_of_message(self._operations[key], size, None)
            for key, size in zip(keys, messages, strict=True)
        ]
        return {"message_bytes": pa.array(messages, pa.int64()), "size_bytes": pa.array(wholes, pa.int64())}
