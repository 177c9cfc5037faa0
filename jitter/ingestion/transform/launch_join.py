"""The launch join: each GPU activity of a capture with the call that launched it, and its place in launch order.

It computes with arrays of the columns that it matches and sorts by, about 80 bytes per kernel (rows are numbered in 32
bits: more would be a recording of hundreds of GB); the rows themselves may lie in files mapped into memory (`Capture`).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import table_of_rows
from jitter.core.numeric.arrays import Bools, Codes, Ints
from jitter.core.schema import HOST
from jitter.ingestion.transform.collective_calls import Communication, find_enclosing_calls
from jitter.ingestion.transform.steps.step_markers import StepRange
from jitter.ingestion.transform.steps.step_names import HostRangeKind

COLLECTIVE_COLUMNS = ("collective", "group_name", "group_size")
"""Columns of `schema.ACTIVITIES` that only communication has: a kernel with one of them is communication."""
STEP_ROWS_AT_ONCE = 49_152
_NEVER = np.iinfo(np.int64).max
_NONE = -1
_DENSE = 4
_LAUNCH_COLUMNS = {
    "launch_name": "name",
    "launch_start_ns": "start_ns",
    "launch_end_ns": "end_ns",
    "launch_thread": "thread",
}


LONG_OPERATION_NS = 50_000
"""Duration in ns from which host operations that launch nothing are kept: shorter ones explain no gap."""
_LAUNCH = re.compile(
    r"^(?:cuda|cu|hip)(?:Ext|Hcc)?(?:Module)?Launch(?!Host)\w*|^(?:cuda|cu|hip)GraphLaunch|^hipExtLaunch"
)
_SYNCHRONISE = re.compile(
    r"^(?:cuda|cu|hip)(?:Device|Stream|Event|Ctx|Context|Thread)Synchronize"
    r"|^(?:cuda|cu|hip)Memcpy(?!\w*Async)"
    r"|^(?:cuda|cu|hip)Free(?!\w*Async)"
)
_BEGIN_CAPTURE = re.compile(r"^(?:cuda|cu|hip)StreamBeginCapture")
_END_CAPTURE = re.compile(r"^(?:cuda|cu|hip)StreamEndCapture")


@lru_cache(maxsize=8192)
def is_launch(name: str) -> bool:
    """Return whether the call enqueues a kernel or a graph of kernels on a stream."""
    return _LAUNCH.match(name) is not None


@lru_cache(maxsize=8192)
def is_synchronising(name: str) -> bool:
    """Return whether the call blocks its thread until the GPU has done something: synchronise, blocking copy, free."""
    return _SYNCHRONISE.match(name) is not None


@lru_cache(maxsize=8192)
def is_operation(name: str) -> bool:
    """Return whether the call neither launches nor synchronises: an allocation, a module load, an enqueued copy."""
    return not is_launch(name) and not is_synchronising(name)


def capture_boundary(name: str) -> str | None:
    """Return `begin` or `end` for calls that begin or end a graph capture, in which launches run nothing; else None."""
    if _BEGIN_CAPTURE.match(name):
        return "begin"
    return "end" if _END_CAPTURE.match(name) else None


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


class JoinedCapture:
    """The activities of a capture, each with its launch and its place in launch order."""

    def __init__(
        self,
        activities: pa.Table,
        calls: pa.Table,
        host_ranges: Sequence[HostRange],
        names: Sequence[str],
        communication: Communication,
        leave_memory: Callable[[], None],
    ) -> None:
        """Join rows as readers yield them; `names` are the names of the recording.

        `leave_memory` is called where most of the rows are not needed for a while.
        `activities` have the columns `device`, `stream` and `correlation`, `calls` all of `schema.CALLS`.
        """
        self._activities, self._calls = activities, calls
        self._host_ranges = host_ranges
        self._names = names
        self._communication = communication
        self._flags = flag_names(names, communication)
        self._streams = Streams(self._activities)
        self._process = self._activities["process"].to_numpy()
        self._is_kernel = ~self._activities["is_memory"].to_numpy()
        self._call, self._counts, self._is_answered = match_launches(self._activities, self._calls)
        self.has_launches = frozenset(np.unique(self._process[self._call >= 0]).tolist())
        """The processes whose launches were recorded."""
        self._place_ns, self._latest_ns, self._is_placed = self._placed()
        self._is_collective = self._find_collectives()
        self._leave_memory = leave_memory
        leave_memory()

    @property
    def _start_ns(self) -> Ints:
        found: Ints = self._activities["start_ns"].to_numpy()
        return found

    @property
    def _end_ns(self) -> Ints:
        found: Ints = self._activities["end_ns"].to_numpy()
        return found

    def gpus(self) -> list[GpuUsage]:
        """Return the usage of each GPU, ordered by process and device."""
        return self._streams.uses(self._is_kernel, self._of_kind("compute"), self._start_ns, self._end_ns)

    def sequence(self, gpu: Gpu, kind: str, stream: int | None = None) -> pa.Table:
        """Return the kernels of one GPU in launch order: `name` (index into the recording's names), `place_ns`.

        `kind` is compute or collective; `stream` None means all streams. Copies and fills are not included.
        """
        wanted = self._of_kind(kind)
        if stream is not None:
            wanted &= pc.equal(self._activities["stream"], stream).fill_null(False).to_numpy()
        rows = self._in_order(gpu)
        rows = rows[wanted[rows]]
        return pa.table({"name": self._activities["name"].to_numpy()[rows], "place_ns": self._place_ns[rows]})

    def in_steps(self, steps: Steps) -> Iterator[tuple[Gpu, pa.Table]]:
        """Yield complete steps of one GPU at a time, in order, with rows in launch order.

        Columns: those of `schema.ACTIVITIES` (nullable ones optional), `launch_name`, `launch_start_ns`,
        `launch_end_ns`, `launch_thread`, `is_collective`, and `step_row`, the index into the process's steps.
        """
        for gpu in self._streams.gpus:
            rows = self._in_order(gpu)
            step_rows = locate_in_steps(self._place_ns[rows], steps.get(gpu.process, ()))
            rows, step_rows = rows[step_rows >= 0], step_rows[step_rows >= 0]
            begun = 0
            for last, end in _stretches(step_rows):
                if end - begun > STEP_ROWS_AT_ONCE and last > begun:
                    yield gpu, self._rows(rows[begun:last], step_rows[begun:last])
                    begun = last
                    self._leave_memory()
            if len(rows) > begun:
                yield gpu, self._rows(rows[begun:], step_rows[begun:])

    def before_capture(self) -> dict[Gpu, int]:
        """Count the kernels launched before the capture began, per GPU; they belong to no step."""
        return self._count_by_gpu(self._is_kernel & ~self._is_placed)

    def uncertain(self, steps: Steps) -> dict[Gpu, int]:
        """Count the activities without a launch that may be of a later step than their predecessor, per GPU.

        Such an activity was launched after its predecessor on its stream, and before it started and its successor was
        launched. It counts in the step of its predecessor.
        """
        rows = np.flatnonzero(self._is_placed & (self._latest_ns > self._place_ns))
        process = self._process[rows]
        first, last = (_step_rows(process, times[rows], steps) for times in (self._place_ns, self._latest_ns))
        return self._count_by_gpu(rows[first != last])

    def _count_by_gpu(self, rows: Bools | Ints) -> dict[Gpu, int]:
        counts = Counter(self._streams.gpu_of_row[rows].tolist())
        return {self._streams.gpus[number]: count for number, count in counts.items()}

    def _calls_of(self, flag: str, least_ns: int | None = None) -> pa.Table:
        """Return the calls of `flag_names`' names with this flag, and of this duration: columns of `schema.CALLS`."""
        wanted = self._counts & _at(self._calls, self._flags[flag])
        if least_ns is not None:
            took = self._calls["end_ns"].fill_null(0).to_numpy() - self._calls["start_ns"].to_numpy()
            wanted &= took >= least_ns
        return self._calls.filter(pa.array(wanted))

    def _placed(self) -> tuple[Ints, Ints, Bools]:
        """Return each activity's place in launch order, the latest possible one (ns), and whether a place is known.

        An activity without a launching call takes the place of its predecessor on the stream; before any launched one,
        it was launched before the capture and has no place. It was launched at the latest when it started, or when its
        successor on the stream was launched. In a process without recorded launches, its own start is its place.
        """
        launched = self._call >= 0
        launch_ns = np.zeros(len(launched), np.int64)
        launch_ns[launched] = self._calls["start_ns"].to_numpy()[self._call[launched]]
        if launched.all():
            return launch_ns, launch_ns, launched
        stream, start_ns = self._streams.of_row, self._start_ns
        order = np.lexsort((launch_ns, ~launched, self._end_ns, start_ns, stream))
        numbers = np.arange(len(order))
        before = order[np.maximum.accumulate(np.where(launched[order], numbers, 0))]
        after = order[np.minimum.accumulate(np.where(launched[order], numbers, len(order) - 1)[::-1])[::-1]]
        place_ns, latest_ns, is_placed = np.empty_like(launch_ns), start_ns.copy(), np.empty_like(launched)
        place_ns[order] = launch_ns[before]
        is_placed[order] = launched[before] & (stream[before] == stream[order])
        is_bounded = launched[after] & (stream[after] == stream[order])
        latest_ns[order[is_bounded]] = np.minimum(latest_ns[order], launch_ns[after])[is_bounded]
        latest_ns[launched] = launch_ns[launched]
        by_start = ~np.isin(self._process, list(self.has_launches))
        place_ns[by_start] = latest_ns[by_start] = start_ns[by_start]
        return place_ns, latest_ns, is_placed | by_start

    @cached_property
    def _order(self) -> Codes:
        """Activities with a known place, ordered by GPU and launch.

        Ties, as in one graph launch, are ordered by stream, then start.
        """
        rows = np.flatnonzero(self._is_placed)
        gpu, place_ns = self._streams.gpu_of_row[rows], self._place_ns[rows]
        order = np.lexsort((place_ns, gpu))
        if ((np.diff(place_ns[order]) == 0) & (np.diff(gpu[order]) == 0)).any():
            correlation = self._activities["correlation"]
            ties = (
                correlation.fill_null(0).to_numpy(),
                correlation.is_null().to_numpy(),
                self._activities["name"].to_numpy(),
                self._end_ns,
                self._start_ns,
                self._streams.of_row,
            )
            order = np.lexsort((*(column[rows] for column in ties), place_ns, gpu))
        return rows[order].astype(np.int32)

    def _in_order(self, gpu: Gpu) -> Codes:
        if gpu not in self._streams.gpus:
            return self._order[:0]
        number = self._streams.gpus.index(gpu)
        gpus = self._streams.gpu_of_row[self._order]
        return self._order[np.searchsorted(gpus, number) : np.searchsorted(gpus, number, side="right")]

    def _rows(self, rows: Codes, step_rows: Codes) -> pa.Table:
        found = _take(self._activities, rows).drop_columns("process")
        launches = _take(self._calls.select(list(_LAUNCH_COLUMNS.values())), self._call[rows])
        for name, source in _LAUNCH_COLUMNS.items():
            found = found.append_column(name, launches[source])
        found = found.append_column("is_collective", pa.array(self._is_collective[rows]))
        if len(self._operations):
            number = self._enclosing[rows]
            operations = self._operations.take(pa.array(number, mask=number < 0))
            told = found["collective"] if "collective" in found.schema.names else pa.nulls(len(found), pa.string())
            found = found.drop_columns([name for name in found.schema.names if name == "collective"])
            found = found.append_column("collective", pc.coalesce(told, operations))
        return found.append_column("step_row", pa.array(step_rows))

    def _of_kind(self, kind: str) -> Bools:
        found: Bools = self._is_kernel & (self._is_collective == (kind == "collective"))
        return found

    def _find_collectives(self) -> Bools:
        """Return which kernels are communication: by their arguments, by the call around their launch, by name."""
        found = _at(self._activities, self._flags["is_collective"])
        for column in COLLECTIVE_COLUMNS:
            if column in self._activities.schema.names:
                found |= self._activities[column].is_valid().to_numpy()
        if len(self._operations):
            of_library = np.array([call.of_library for call in self._communication.calls], np.bool_)
            open_to_framework = _at(self._activities, self._flags["may_be_in_framework_call"])
            self._enclosing[(self._enclosing >= 0) & ~of_library[self._enclosing] & ~(open_to_framework | found)] = -1
            found |= self._enclosing >= 0
            self._enclosing[~(found & self._is_kernel)] = -1
        found &= self._is_kernel
        return found

    @cached_property
    def _operations(self) -> pa.Array:
        return pa.array([call.operation for call in self._communication.calls], pa.string())

    @cached_property
    def _enclosing(self) -> Ints:
        """Each activity's enclosing communication call (index); -1 if none."""
        calls, threads = self._calls, self._calls["thread"]
        around = find_enclosing_calls(
            self._communication.calls,
            calls["process"].to_numpy(),
            threads.fill_null(0).to_numpy(),
            threads.is_valid().to_numpy(),
            calls["start_ns"].to_numpy(),
        )
        return np.where(self._call >= 0, np.append(around, -1)[self._call], -1)

    def lost_launches(self, steps: Steps) -> dict[tuple[int, int], int]:
        """Count the launches without a kernel by (process, index into its steps).

        Launches during a graph capture of their thread run nothing and do not count.
        """
        wanted = self._counts & ~self._is_answered & _at(self._calls, self._flags["is_launch"])
        launches = self._calls.select(["process", "thread", "start_ns"]).filter(pa.array(wanted))
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


def _take(table: pa.Table, rows: Codes) -> pa.Table:
    """Return rows of a table, nulls for -1. Of a table in pieces only those with the rows are touched, not joined."""
    known = rows >= 0
    first = int(rows[known].min()) if known.any() else 0
    part = table.slice(first, int(rows.max(initial=-1)) + 1 - first)
    return part.take(pa.array(rows - first, mask=None if known.all() else ~known))


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


class LaunchMatch(NamedTuple):
    """The matching of activities and calls."""

    call: Codes
    """For each activity the index of its launching call; -1 if there is none."""
    is_outer: Bools
    """For each call whether it counts: of the calls with the correlation of one activity only the outermost does."""
    is_answered: Bools
    """For each call whether an activity has its correlation; True for calls without a correlation."""


def match_launches(activities: pa.Table, calls: pa.Table) -> LaunchMatch:
    """Match activities and calls within each process by correlation.

    Needs `process` and `correlation` of both tables, and the other columns of `schema.CALLS` of `calls`.
    """
    call_keys, activity_keys, size = _keys(calls, activities)
    numbers = np.arange(len(call_keys), dtype=np.int32)
    first = np.full(size + 1, _NONE, np.int32)  # the last entry stands for rows without a correlation
    first[call_keys] = numbers
    first[size] = _NONE
    launching = np.zeros(size + 1, np.bool_)
    launching[activity_keys] = True
    is_repeated = (first[call_keys] != numbers) & (call_keys != size)
    is_outer = np.ones(len(call_keys), np.bool_)
    if launching[call_keys[is_repeated]].any():
        # the outermost call is written last, so it stays
        first[call_keys] = _NONE
        order = _outermost_first(calls)[::-1]
        first[call_keys[order]] = order
        first[size] = _NONE
        is_outer = (first[call_keys] == numbers) | (call_keys == size)
    launching[size] = True
    return LaunchMatch(first[activity_keys], is_outer, launching[call_keys])


def _keys(calls: pa.Table, activities: pa.Table) -> tuple[Codes, Codes, int]:
    """Return keys of calls and activities below `size`, equal where process and correlation are equal.

    Rows without a correlation have the key `size`.
    """
    tables = calls, activities
    codes, size = _codes([table["correlation"] for table in tables])
    of_process, number = _codes([table["process"] for table in tables])
    if number > 1:
        both = [one.astype(np.int64) * number + own for one, own in zip(codes, of_process, strict=True)]
        known = [pa.array(keys, mask=one == size) for keys, one in zip(both, codes, strict=True)]
        codes, size = _codes([pa.chunked_array([keys]) for keys in known])
    return codes[0], codes[1], size


def _codes(columns: Sequence[pa.ChunkedArray]) -> tuple[list[Codes], int]:
    """Return equal codes for equal values of all columns, and the number of codes, which is the code of null."""
    bounds = [one for one in map(pc.min_max, columns) if one["min"].is_valid]
    low = min((one["min"].as_py() for one in bounds), default=0)
    size = max((one["max"].as_py() for one in bounds), default=low) - low + 1
    if size <= _DENSE * sum(map(len, columns)):
        # profilers count correlations up, so values are dense and serve as codes
        return [_dense_codes(column, low, size) for column in columns], size
    encoded = pa.chunked_array([chunk for column in columns for chunk in column.chunks]).combine_chunks()
    encoded = encoded.dictionary_encode()
    size = len(encoded.dictionary)
    codes: Codes = encoded.indices.fill_null(size).to_numpy()
    return np.split(codes, np.cumsum([len(column) for column in columns])[:-1]), size


def _dense_codes(column: pa.ChunkedArray, low: int, size: int) -> Codes:
    """Return how far each value is above `low`, and `size` for nulls; piece by piece, for memory."""
    codes, begun = np.empty(len(column), np.int32), 0
    for chunk in column.chunks:
        own = codes[begun : begun + len(chunk)]
        own[:] = chunk.fill_null(low).to_numpy() - low
        if chunk.null_count:
            own[chunk.is_null().to_numpy(zero_copy_only=False)] = size
        begun += len(chunk)
    return codes


def _outermost_first(calls: pa.Table) -> Codes:
    """Return call indices by start, longest first: a driver call lies inside its runtime call."""
    keys = [("start_ns", "ascending"), ("end_ns", "descending"), ("thread", "ascending"), ("name", "ascending")]
    order: npt.NDArray[np.uint64] = pc.sort_indices(calls, sort_keys=keys).to_numpy()
    return order.astype(np.int32)


class Stream(NamedTuple):
    """One stream of one GPU of one process."""

    gpu: Gpu
    stream: int | None


class Streams:
    """Number the streams and GPUs of activities, in order of process, device and stream; unknown ones last."""

    def __init__(self, activities: pa.Table) -> None:
        """Number the streams of `activities`; needs the columns `process`, `device` and `stream`."""
        processes, process = _numbered(activities["process"])
        devices, device = _numbered(activities["device"])
        streams, stream = _numbered(activities["stream"])
        both, gpu = _numbered(pa.array(process.astype(np.int64) * len(devices) + device))
        self.gpus = [Gpu(processes[number // len(devices)], devices[number % len(devices)]) for number in both]
        self.gpu_of_row = gpu
        """For each activity the position of its GPU in `gpus`."""
        all_three, self.of_row = _numbered(pa.array(gpu.astype(np.int64) * len(streams) + stream))
        """For each activity the position of its stream in `streams`."""
        self.streams = [
            Stream(self.gpus[number // len(streams)], streams[number % len(streams)]) for number in all_three
        ]

    def uses(self, is_kernel: Bools, is_compute: Bools, start_ns: Ints, end_ns: Ints) -> list[GpuUsage]:
        """Return the totals of each GPU in order, without GPUs that ran no kernel; arrays (activities,)."""
        stream = self.of_row[is_kernel]
        kernels = np.bincount(stream, minlength=len(self.streams)).tolist()
        compute = np.bincount(self.of_row[is_compute], minlength=len(self.streams)).tolist()
        first_ns = np.full(len(self.streams), np.iinfo(np.int64).max)
        np.minimum.at(first_ns, stream, start_ns[is_kernel])
        last_ns = np.full(len(self.streams), np.iinfo(np.int64).min)
        np.maximum.at(last_ns, stream, end_ns[is_kernel])
        uses = []
        for gpu in self.gpus:
            own = [number for number, one in enumerate(self.streams) if one.gpu == gpu and kernels[number]]
            if own:
                main = max(own, key=lambda number: (compute[number], -number))
                uses.append(
                    GpuUsage(
                        gpu,
                        sum(kernels[number] for number in own),
                        sum(compute[number] for number in own),
                        self.streams[main].stream if compute[main] else None,
                        int(first_ns[own].min()),
                        int(last_ns[own].max()),
                    )
                )
        return uses


def _numbered(column: Any) -> tuple[list[Any], Codes]:
    """Return the distinct values in order, null last, and for each row the index of its value."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    bounds = pc.min_max(values)
    if len(values) and values.null_count == 0 and bounds["min"] == bounds["max"]:
        return [bounds["min"].as_py()], np.zeros(len(values), np.int32)
    encoded = values.dictionary_encode("encode")
    found = encoded.dictionary.to_pylist()
    order = sorted(range(len(found)), key=lambda at: (found[at] is None, found[at] or 0))
    positions = np.empty(len(found), np.int32)
    positions[order] = np.arange(len(found))
    return [found[at] for at in order], positions[encoded.indices.to_numpy()]


def _at(rows: pa.Table, of_names: Sequence[bool]) -> Bools:
    """Return for each row the value of its name in `of_names`."""
    found: Bools = np.array(of_names, np.bool_)[rows["name"].to_numpy()]
    return found


def _stretches(step_rows: Codes) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end of each step."""
    bounds = [0, *(np.flatnonzero(np.diff(step_rows)) + 1).tolist(), len(step_rows)]
    return pairwise(bounds)
