"""Operations of RCCL's kernels, from the calls that launched them: `ncclDevKernel_Generic` states no operation."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.kernels import collective_operation, parse_operation
from jitter.readers.amd.batches import decode_text


class RcclCalls:
    """RCCL calls of one recording by process and thread; a launch inside a call has its operation."""

    def __init__(self) -> None:
        """Start without calls."""
        self._calls: dict[tuple[int, int | None], list[tuple[int, int, str]]] = defaultdict(list)
        self._sorted = False
        self._operations: dict[tuple[int, int], str] = {}

    def add(self, processes: pa.Array, threads: pa.Array, names: pa.Array, starts: pa.Array, ends: pa.Array) -> None:
        """Add calls; columns of equal length, names as binary."""
        columns = (column.to_pylist() for column in (processes, threads, names, starts, ends))
        for process, thread, name, start, end in zip(*columns, strict=True):
            said = parse_operation(decode_text(name).removeprefix("nccl"))
            if said is not None and start is not None and end is not None:
                self._calls[process, thread].append((start, end, said))
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
                at = bisect_right(around, (start, 2**63, "")) - 1
                if at >= 0 and start <= around[at][1]:
                    self._operations[process, correlation] = around[at][2]

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
