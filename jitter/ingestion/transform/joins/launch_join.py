"""The launch join: each GPU activity of a capture with the call that launched it, and its place in launch order.

Two implementations match launches with equal results: `MemoryJoin` (numpy) in captures of up to `capture.SPILL_BYTES`,
`DuckDbJoin` in larger ones. The ingest of 60,000 kernels takes 0.23 s of processor time with the first and 0.53 s with
the second; the first needs about 250 bytes per kernel on top of the rows, the second 400 MB whatever their number.
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import table_of_rows
from jitter.core.numeric.arrays import Bools, Codes, Ints
from jitter.core.schema import HOST
from jitter.ingestion.transform.api_calls import (
    LONG_OPERATION_NS,
    capture_boundary,
    is_launch,
    is_operation,
    is_synchronising,
)
from jitter.ingestion.transform.collective_calls import Communication
from jitter.ingestion.transform.steps.step_markers import StepRange
from jitter.ingestion.transform.steps.step_names import HostRangeKind

COLLECTIVE_COLUMNS = ("collective", "group_name", "group_size")
"""Columns of `schema.ACTIVITIES` that only communication has: a kernel with one of them is communication."""
_NEVER = np.iinfo(np.int64).max


class Gpu(NamedTuple):
    """One GPU used by one process; it becomes a rank."""

    process: int
    device: int | None


@dataclass(frozen=True)
class GpuUsage:
    """Totals of one process on one GPU over the whole capture; times in ns."""

    gpu: Gpu
    kernels: int
    compute_kernels: int
    main_stream: int | None
    """The stream with the most compute kernels (ties: the lowest id)."""
    first_ns: int
    last_ns: int


class HostRange(NamedTuple):
    """A host range of a known kind. Times in ns; `end_ns` is None if the recording ended first."""

    process: int
    kind: HostRangeKind
    text: str
    thread: int | None
    start_ns: int
    end_ns: int | None


Steps = Mapping[int, Sequence[StepRange]]
"""The steps of each process, in order; they do not overlap."""


class JoinedCapture(ABC):
    """The activities of a capture, each with its launch and its place in launch order."""

    has_launches: Set[int]
    """The processes whose launches were recorded."""
    _names: Sequence[str]
    _host_ranges: Sequence[HostRange]

    @abstractmethod
    def gpus(self) -> list[GpuUsage]:
        """Return the usage of each GPU, ordered by process and device."""

    @abstractmethod
    def sequence(self, gpu: Gpu, kind: str, stream: int | None = None) -> pa.Table:
        """Return the kernels of one GPU in launch order: `name` (index into the recording's names), `place_ns`.

        `kind` is compute or collective; `stream` None means all streams. Copies and fills are not included.
        """

    @abstractmethod
    def in_steps(self, steps: Steps) -> Iterator[tuple[Gpu, pa.Table]]:
        """Yield complete steps of one GPU at a time, in order, with rows in launch order.

        Columns: those of `schema.ACTIVITIES` (nullable ones optional), `launch_name`, `launch_start_ns`,
        `launch_end_ns`, `launch_thread`, `is_collective`, and `step_row`, the index into the process's steps.
        """

    @abstractmethod
    def before_capture(self) -> dict[Gpu, int]:
        """Count the kernels launched before the capture began, per GPU; they belong to no step."""

    @abstractmethod
    def _doubtful(self) -> Iterable[pa.Table | pa.RecordBatch]:
        """Yield the activities that may be launched after their place: `process`, `device`, `place_ns`, `latest_ns`."""

    @abstractmethod
    def _unanswered(self) -> pa.Table:
        """Return the launches without a kernel: `process`, `thread`, `start_ns`."""

    @abstractmethod
    def _calls_of(self, flag: str, least_ns: int | None = None) -> pa.Table:
        """Return the calls of `flag_names`' names with this flag, and of this duration: columns of `schema.CALLS`."""

    def uncertain(self, steps: Steps) -> dict[Gpu, int]:
        """Count the activities without a launch that may be of a later step than their predecessor, per GPU.

        Such an activity was launched after its predecessor on its stream, and before it started and its successor was
        launched. It counts in the step of its predecessor.
        """
        counts: Counter[Gpu] = Counter()
        for rows in self._doubtful():
            process = rows["process"].to_numpy()
            first, last = (_step_rows(process, rows[name].to_numpy(), steps) for name in ("place_ns", "latest_ns"))
            differs = pa.array(first != last)
            gpus = (rows[name].filter(differs).to_pylist() for name in ("process", "device"))
            counts.update(map(Gpu._make, zip(*gpus, strict=True)))
        return dict(counts)

    def lost_launches(self, steps: Steps) -> dict[tuple[int, int], int]:
        """Count the launches without a kernel by (process, index into its steps).

        Launches during a graph capture of their thread run nothing and do not count.
        """
        launches = self._unanswered()
        process = launches["process"].to_numpy()
        step_rows = _step_rows(process, launches["start_ns"].to_numpy(), steps)
        counts = (step_rows >= 0) & ~self._in_graph_capture(launches)
        return dict(Counter(zip(process[counts].tolist(), step_rows[counts].tolist(), strict=True)))

    def _in_graph_capture(self, launches: pa.Table) -> Bools:
        found = np.zeros(len(launches), np.bool_)
        edges = self._calls_of("is_capture_edge")
        if not len(edges):
            return found
        process, start_ns = launches["process"].to_numpy(), launches["start_ns"].to_numpy()
        of_thread: dict[tuple[int, int], list[tuple[int, bool]]] = defaultdict(list)
        columns = (edges[name].to_pylist() for name in ("process", "thread", "start_ns", "name"))
        for one, thread, at_ns, name in zip(*columns, strict=True):
            if thread is not None:
                of_thread[one, thread].append((at_ns, capture_boundary(self._names[name]) == "begin"))
        for (one, thread), begins in of_thread.items():
            on_thread = pc.equal(launches["thread"], thread).fill_null(False).to_numpy() & (process == one)
            times, is_begin = zip(*sorted(begins), strict=True)
            edge = np.searchsorted(np.array(times, np.int64), start_ns[on_thread], side="right")
            found[on_thread] = np.array([False, *is_begin])[edge]
        return found

    def host(self, steps: Steps) -> pa.Table:
        """Return synchronising calls and host ranges: `process`, `step_row` (null: none), columns of `schema.HOST`."""
        names = pa.array(self._names, pa.string())
        parts = [table_of_rows(self._host_ranges, _HOST)]
        for kind, calls in (
            ("sync", self._calls_of("is_synchronising")),
            ("operation", self._calls_of("is_operation", LONG_OPERATION_NS)),
        ):
            columns = {name: calls[name] for name in ("process", "thread", "start_ns", "end_ns")}
            columns |= {"kind": pa.repeat(kind, len(calls)), "name": names.take(calls["name"])}
            parts.append(pa.table([columns[field.name] for field in _HOST], schema=_HOST))
        rows = pa.concat_tables(parts)
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in _HOST_ORDER]))
        step_rows = _step_rows(rows["process"].to_numpy(), rows["start_ns"].to_numpy(), steps)
        return rows.append_column("step_row", pa.array(step_rows, mask=step_rows < 0))


_HOST = pa.schema([pa.field("process", pa.int32()), *(HOST.field(name) for name in HOST.names[2:])])
_HOST_ORDER = ("process", "start_ns", "thread", "name", "end_ns", "kind")


def flag_names(names: Sequence[str], communication: Communication) -> dict[str, Sequence[bool]]:
    """Return what each name says of its kernels or calls, by flag."""
    return {
        "is_collective": communication.of_names(names),
        "may_be_in_framework_call": communication.may_be_in_framework_call(names),
        "is_launch": [is_launch(name) for name in names],
        "is_synchronising": [is_synchronising(name) for name in names],
        "is_operation": [is_operation(name) for name in names],
        "is_capture_edge": [capture_boundary(name) is not None for name in names],
    }


def locate_in_steps(times_ns: Ints, steps: Sequence[StepRange]) -> Codes:
    """Return for each time (n,) in ns the index of the step that contains it; -1 if none does."""
    starts = np.array([step.start_ns for step in steps], np.int64)
    untils = np.array([_NEVER if step.until_ns is None else step.until_ns for step in steps], np.int64)
    rows = np.searchsorted(starts, times_ns, side="right") - 1
    inside = rows >= 0
    inside[inside] = times_ns[inside] < untils[rows[inside]]
    return np.where(inside, rows, -1).astype(np.int32)


def _step_rows(process: Codes, times_ns: Ints, steps: Steps) -> Codes:
    """Return for each time the index into its process's steps; -1 if no step contains it."""
    rows = np.full(len(times_ns), -1, np.int32)
    for one in np.unique(process).tolist():
        rows[process == one] = locate_in_steps(times_ns[process == one], steps.get(one, ()))
    return rows
