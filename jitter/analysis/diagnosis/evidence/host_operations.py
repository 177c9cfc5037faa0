"""What hosts do between launches: operations in which nothing is launched, as far as recordings have them.

API calls, operators, annotations, Python functions and system calls of 50 µs or more, and suspensions, of the thread
that makes the next launch. Time in synchronising calls within them is not counted: there the host waits for its GPU.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from jitter.analysis.diagnosis.diagnosed_lake import DiagnosedLake
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import abbreviate_start
from jitter.core.names.kernels import COMPUTE, KINDS
from jitter.core.numeric.arrays import Ints
from jitter.core.schema import OFF_CPU, SHORTEST_LAUNCH_NS
from jitter.core.step_key import StepKey
from jitter.lake.host_events import OPERATIONS

Gap = Literal["before the first kernel", "between launches", "after the last launch"]
"""Of a step. Before the launch of the main stream's first kernel is after the last launch of the step before."""
RankStep = tuple[StepKey, int]
"""A step of a rank."""
_ENDLESS: Final = np.iinfo(np.int64).max
_MOST_KEPT: Final = 16
"""Steps of ranks whose launches are kept, 16 bytes each: a step may have a million."""


class LongOperation(NamedTuple):
    """An operation that takes much of a gap."""

    outer: str
    """Its name."""
    inner: str
    """The name of the innermost operation within it that takes as much; its own without any."""
    own_ns: float
    """How long it takes per step."""
    others_ns: float | None
    """What it takes elsewhere; None where nothing else is recorded."""

    @property
    def values(self) -> dict[str, str]:
        """What texts name of it."""
        # advice is cut where what to do begins, at its last ": "
        outer, inner = (
            abbreviate_start(name.replace(": ", ":"), THRESHOLDS.sentences.max_scope_characters)
            for name in (self.outer, self.inner)
        )
        inside = "off the CPU" if self.inner == OFF_CPU else f"in `{inner}`"
        return {"name": outer, "inside": "" if self.inner == self.outer else f", most of it {inside}"}


class HostGaps:
    """The operations in the gaps between launches of any rank."""

    def __init__(self, reader: RunReader, traces: DiagnosedLake) -> None:
        self._reader, self._records = reader, reader.records
        self._launches = lru_cache(_MOST_KEPT)(lambda key, rank: _read_launches(traces, key, rank))

    def find_operation(
        self, late: Sequence[RankStep], others: Sequence[RankStep], gap: Gap, least_ns: float
    ) -> LongOperation | None:
        """Return the longest operation that takes so much more in steps of ranks than in others; None if none does.

        `least_ns` is at least half of what is to be explained.
        """
        own_ns = self.usual_times_ns(late, gap)
        long = [name for name, ns in own_ns.items() if ns >= least_ns]
        # the others' files are read only where they matter
        others_ns = self.usual_times_ns(others, gap) if long else {}
        longer = sorted(
            (name for name in long if own_ns[name] - others_ns.get(name, 0.0) >= least_ns), key=own_ns.__getitem__
        )
        if not longer:
            return None
        outer, inner = longer[-1], longer[0]  # each takes half of the excess or more, so one lies within the other
        return LongOperation(outer, inner, own_ns[outer], others_ns.get(outer, 0.0) if others else None)

    def list_operations(self, sampled: Sequence[RankStep], gap: Gap, paused_ns: float) -> list[tuple[str, float]]:
        """Return the names of operations, none within another one, that together take most of a pause; else none.

        With what each takes per step; the longest first, and no shorter ones than need be.
        """
        times_ns = self.usual_times_ns(sampled, gap, outermost=True)
        names = sorted(times_ns, key=lambda name: (-times_ns[name], name))
        sums_ns = np.cumsum([times_ns[name] for name in names])
        count = 1 + int(np.searchsorted(sums_ns, THRESHOLDS.main_share * paused_ns))
        return [(name, times_ns[name]) for name in names[:count]] if count <= len(names) else []

    def usual_times_ns(self, steps: Sequence[RankStep], gap: Gap, *, outermost: bool = False) -> dict[str, float]:
        """Return the median over steps of ranks of what the operations of each name take; 0 where there are none.

        Of all operations, or of the `outermost`, which lie in no other one.
        """
        of_steps = [self._times_ns(key, rank, gap, outermost=outermost) for key, rank in steps]
        names = sorted(set[str]().union(*of_steps))
        return {name: float(np.median([times.get(name, 0) for times in of_steps])) for name in names}

    def _times_ns(self, key: StepKey, rank: int, gap: Gap, *, outermost: bool = False) -> dict[str, int]:
        rows = self._operations(key, rank, gap)
        times, until = defaultdict[str, int](int), dict[str, int]()
        columns = (rows[name].to_pylist() for name in ("name", "end_ns", "took_ns"))
        for name, end_ns, took_ns in zip(*columns, strict=True):
            # else it is within another one, or one of its name, as of a function that calls itself
            counted = "" if outermost else name
            if counted not in until or end_ns > until[counted]:
                times[name] += took_ns
                until[counted] = end_ns
        return times

    def _operations(self, key: StepKey, rank: int, gap: Gap) -> pa.Table:
        """Return the operations in a gap, in order of start (`OPERATIONS`); none of a step that is not recorded."""
        if rank not in self._records.get(key, {}):
            return OPERATIONS.empty_table()
        launches, operations = self._launches(key, rank), self._reader.host(key, rank).operations
        if not len(launches.start_ns):
            return OPERATIONS.empty_table()
        since_ns, until_ns, after = launches.first_kernel_ns, int(launches.start_ns[-1]), launches
        if gap == "before the first kernel":
            since_ns, until_ns = self._edge(key, rank, -1), launches.first_kernel_ns
        elif gap == "after the last launch":
            since_ns, until_ns, after = until_ns, self._edge(key, rank, 1), self._beside(key, rank, 1)
        first, last = np.searchsorted(operations["start_ns"].to_numpy(), (since_ns, until_ns)).tolist()
        rows = operations.slice(first, last - first)
        start_ns, end_ns = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy() - SHORTEST_LAUNCH_NS
        is_inside = end_ns <= until_ns
        is_inside &= np.searchsorted(launches.start_ns, start_ns) == np.searchsorted(launches.start_ns, end_ns)
        launching = np.append(after.thread, -1)[np.searchsorted(after.start_ns, end_ns)]
        thread = rows["thread"].fill_null(-1).to_numpy()
        is_inside &= (thread == launching) | (thread < 0) | (launching < 0)
        return rows.filter(pa.array(is_inside))

    def _beside(self, key: StepKey, rank: int, by: Literal[-1, 1]) -> "_Launches":
        """Return the launches of the step before or after; none of one that the rank did not record."""
        beside = StepKey(key.epoch, key.step + by)
        is_known = rank in self._records.get(beside, {})
        return self._launches(beside, rank) if is_known else _NO_LAUNCHES

    def _edge(self, key: StepKey, rank: int, by: Literal[-1, 1]) -> int:
        """Return the last launch of the step before, or the first one of the step after; else the step's own edge."""
        launches_ns = self._beside(key, rank, by).start_ns
        if len(launches_ns):
            return int(launches_ns[-1 if by < 0 else 0])
        step = self._records[key][rank].step
        return step.start_ns if by < 0 else _ENDLESS if step.end_ns is None else step.end_ns


class _Launches(NamedTuple):
    """Launches of a rank in one step, in order of start; the thread is -1 where it is unknown."""

    start_ns: Ints
    thread: Ints
    first_kernel_ns: int
    """The launch of the first kernel on the stream with most compute kernels; of a step without any the first one."""


_NO_LAUNCHES: Final = _Launches(np.empty(0, np.int64), np.empty(0, np.int64), 0)


def _read_launches(traces: DiagnosedLake, key: StepKey, rank: int) -> _Launches:
    read = traces.step_columns(key, ("kind", "stream", "launch_start_ns", "launch_thread"), [rank])
    is_known = read.known("launch_start_ns")
    start_ns = read.values("launch_start_ns")[is_known]
    thread = np.where(read.known("launch_thread"), read.values("launch_thread"), -1)[is_known]
    order = np.argsort(start_ns, kind="stable")
    is_compute = read.equals("kind", KINDS[COMPUTE])[is_known]
    streams, of_stream = np.unique(read.values("stream")[is_known][is_compute], return_inverse=True)
    is_main = of_stream == np.bincount(of_stream).argmax() if len(streams) else np.empty(0, np.bool_)
    first_kernel_ns = min(start_ns[is_compute][is_main].tolist() or start_ns.tolist(), default=0)
    return _Launches(start_ns[order], thread[order], first_kernel_ns)
