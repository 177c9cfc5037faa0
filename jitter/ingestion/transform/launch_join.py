"""The launch join: each GPU activity of a capture with the call that launched it, and its place in launch order.

Memory holds windows of a capture: activities and calls are matched by ranges of correlation ids, activities without a
launch take their place by ranges of time, and the rows of steps are ranges of places.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import coded, column_or_nulls, table_of_rows
from jitter.core.names.kernels import copy_direction, host_memory
from jitter.core.numeric.arrays import Bools, Codes, Ints
from jitter.core.schema import ACTIVITIES, CALLS, HOST, LONG_OPERATION_NS, NAME_ID
from jitter.ingestion.names import HostRangeKind
from jitter.ingestion.transform.collective_calls import CommunicationFinder
from jitter.ingestion.transform.sorted_rows import GROUP, KEY, SortedRows, windows
from jitter.ingestion.transform.steps.step_markers import StepRange
from jitter.readers.columns import LaunchesWithin

COLLECTIVE_COLUMNS = ("collective", "group_name", "group_size")
"""Columns of `schema.ACTIVITIES` that only communication has: a kernel with one of them is communication."""
STEP_ROWS_AT_ONCE = 49_152
ROWS_AT_ONCE = 65_536
"""Activities and calls that are matched at a time."""
_NEVER = np.iinfo(np.int64).max
_NONE = -1
_LAUNCH_COLUMNS = {
    "launch_name": "name",
    "launch_start_ns": "start_ns",
    "launch_end_ns": "end_ns",
    "launch_thread": "thread",
}

_IS_LAUNCH: Final = re.compile(
    r"^(?:cuda|cu|hip)(?:Ext|Hcc)?(?:Module)?Launch(?!Host)\w*|^(?:cuda|cu|hip)GraphLaunch|^hipExtLaunch"
).match
"""Calls that enqueue a kernel or a graph of kernels on a stream."""
_IS_OF_SEVERAL: Final = re.compile(r"Graph|Multi").search
"""In the name of a launch: it runs several kernels, or one on each of several GPUs."""
_IS_SYNCHRONISING: Final = re.compile(
    r"^(?:cuda|cu|hip)(?:Device|Stream|Event|Ctx|Context|Thread)Synchronize"
    r"|^(?:cuda|cu|hip)Memcpy(?!\w*Async)"
    r"|^(?:cuda|cu|hip)Free(?!\w*Async)"
).match
"""Calls that block their thread until the GPU has done something: synchronise, blocking copy, free."""
_IS_ASYNC_COPY: Final = re.compile(r"^(?:cuda|cu|hip)Memcpy\w*Async").match
"""Calls that enqueue a copy; with pageable host memory they may block their thread, too."""
_IS_CAPTURE_EDGE: Final = re.compile(r"^(?:cuda|cu|hip)Stream(?:Begin|End)Capture").match
"""Calls that begin or end a graph capture, in which launches run nothing."""


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


class Stream(NamedTuple):
    """One stream of one GPU of one process."""

    gpu: Gpu
    stream: int | None


Steps = Mapping[int, Sequence[StepRange]]
"""The steps of each process, in order; they do not overlap."""


def correlation_keys(rows: pa.RecordBatch) -> pa.Array:
    """Return the keys by which `JoinedCapture` matches activities and calls, in windows of rows.

    Rows without a correlation match none: their key is their start, so that they do not all come in one window.
    """
    return (
        pc.coalesce(rows["correlation"], rows["start_ns"]) if "correlation" in rows.schema.names else rows["start_ns"]
    )


class JoinedCapture:
    """The activities of a capture, each with its launch and its place in launch order."""

    def __init__(
        self,
        activities: SortedRows,
        calls: SortedRows,
        host_ranges: Sequence[HostRange],
        names: Sequence[str],
        communication: CommunicationFinder,
        scratch: Path,
        launched_by: Sequence[int] = (),
    ) -> None:
        """Join rows as readers yield them, sorted by `correlation_keys`; `names` are the names of the recording.

        `activities` have the columns `device`, `stream` and `correlation`, `calls` all of `schema.CALLS`. `scratch` is
        a folder for temporary files. `launched_by` is, by process of activities, the process of their calls (default:
        the same).
        """
        self._launched_by = pa.array(launched_by, ACTIVITIES.field("process").type)
        self._host_ranges = host_ranges
        self._names = names
        self._communication = communication
        self._flags = {name: np.array(flags, np.bool_) for name, flags in flag_names(names, communication).items()}
        self._scratch = scratch
        self._streams: dict[Stream, int] = {}
        """The number of each stream."""
        self._totals: Ints = np.empty((4, 0), np.int64)
        """By number of the stream its kernels, its compute kernels, and the first start and last end of kernels, ns."""
        self._gpus: dict[Gpu, int] = {}
        """The number of each GPU."""
        self._in_shared_launches: Counter[Gpu] = Counter()
        self._nested: Counter[Gpu] = Counter()
        self._placed = SortedRows(scratch, _PLACED)
        """Activities with a known place, by number of the GPU and place."""
        self._waiting = SortedRows(scratch, _PLACED)
        """Activities without a launch, by start."""
        self._lost = SortedRows(scratch, _LOST)
        """Launches without an activity, by start."""
        self._host_calls: list[pa.Table] = []
        self._is_nested = False
        """Whether activities were launched by a call within a call."""
        with_launches: set[int] = set()
        for low, high in windows((activities, calls), ROWS_AT_ONCE):
            with_launches |= self._match(activities.rows(low, high), calls.rows(low, high))
        self.has_launches = frozenset(with_launches)
        """The processes whose launches were recorded."""
        self._lost.finish()
        self._placed.finish()
        self.before_capture: Counter[Gpu] = Counter()
        """Number of kernels launched before the capture began, per GPU; they belong to no step."""
        self._beside: tuple[SortedRows, SortedRows] | None = None
        if len(self._waiting):
            self._waiting.finish()
            self._beside = self._place_waiting()
            self._placed.finish()

    def gpus(self) -> list[GpuUsage]:
        """Return the usage of each GPU, ordered by process and device."""
        uses = []
        for gpu in self._ordered_gpus():
            ids = {
                number: id_
                for (of_gpu, id_), number in self._streams.items()
                if of_gpu == gpu and self._totals[0, number]
            }
            if ids:
                kernels, compute, first_ns, last_ns = self._totals[:, list(ids)]
                main = max(ids, key=lambda n: (self._totals[1, n], ids[n] is not None, -(ids[n] or 0)))
                uses.append(
                    GpuUsage(
                        gpu,
                        int(kernels.sum()),
                        int(compute.sum()),
                        ids[main] if self._totals[1, main] else None,
                        int(first_ns.min()),
                        int(last_ns.max()),
                    )
                )
        return uses

    def sequence(self, gpu: Gpu, kind: str, stream: int | None = None) -> pa.Table:
        """Return one GPU's activities in launch order: `name` (index in the recording's names), `place_ns`, `end_ns`.

        `kind` is compute, collective or copy, which includes fills; `stream` None means all streams.
        """
        times = {"place_ns": pa.array([], pa.int64()), "end_ns": pa.array([], pa.int64())}
        parts = [pa.table({"name": pa.array([], NAME_ID), **times})]
        columns = ("name", "is_memory", "is_collective", "stream", "start_ns", "end_ns", "correlation", KEY)
        for low, high in windows((self._placed,), ROWS_AT_ONCE) if gpu in self._gpus else ():
            rows = _in_launch_order(self._placed.rows(low, high, self._gpus[gpu], columns))
            is_kernel = pc.and_(pc.invert(rows["is_memory"]), pc.equal(rows["is_collective"], kind == "collective"))
            wanted = rows["is_memory"] if kind == "copy" else is_kernel
            if stream is not None:
                wanted = pc.and_(wanted, pc.equal(rows["stream"], stream).fill_null(False))
            parts.append(
                rows.select(["name", KEY, "end_ns"])
                .filter(wanted)
                .rename_columns(parts[0].column_names)
                .cast(parts[0].schema)
            )
        return pa.concat_tables(parts).combine_chunks()

    def in_steps(self, steps: Steps) -> Iterator[tuple[Gpu, pa.Table]]:
        """Yield complete steps of one GPU at a time, in order, with rows in launch order.

        Columns: those of `schema.ACTIVITIES` (nullable ones optional), `launch_name`, `launch_start_ns`,
        `launch_end_ns`, `launch_thread`, `is_collective`, and `step_row`, the index into the process's steps.
        """
        for gpu in self._ordered_gpus():
            number, ranges = self._gpus[gpu], steps.get(gpu.process, ())
            starts, untils = _bounds(ranges)
            ends = np.cumsum(self._placed.count(number, untils) - self._placed.count(number, starts))
            for first, last in _stretches(ends):
                rows = self._placed.rows(int(starts[first]), int(untils[last - 1]), number)
                rows = _in_launch_order(rows)
                self._nested[gpu] += self._count_nested(rows)
                step_row = locate_in_steps(rows[KEY].to_numpy(), ranges)
                rows = rows.drop_columns([KEY, GROUP, "stream_number"]).append_column("step_row", pa.array(step_row))
                yield gpu, rows.filter(pa.array(step_row >= 0)) if (step_row < 0).any() else rows

    def foreign_kernels(self) -> dict[Gpu, int]:
        """Count the kernels, per GPU, that no single GPU can have run; after `in_steps` also by their times.

        A call launches one kernel, and a stream runs its kernels one after another: a dependent kernel may begin early,
        but none ends before the one before it. Graphs are left out, and collectives by their times.
        """
        return {gpu: max(self._in_shared_launches[gpu], self._nested[gpu]) for gpu in self._gpus}

    def _count_shared_launches(self, activities: pa.Table, calls: pa.Table, call: Codes, stream: Codes) -> None:
        launched = (call >= 0) & ~activities["is_memory"].to_numpy()
        launched[launched] = self._flags["is_kernel_launch"][calls["name"].to_numpy()[call[launched]]]
        kernels = np.bincount(call[launched], minlength=len(calls))
        if (kernels > 1).any():
            self._in_shared_launches.update(self._gpus_of(stream[launched][kernels[call[launched]] > 1]))

    def _count_nested(self, rows: pa.Table) -> int:
        # AMD's hardware queues, which some profilers record as streams, run collectives beside other streams' kernels
        is_compute = pc.invert(pc.or_(rows["is_memory"], rows["is_collective"]))
        kernels = rows.filter(pc.and_(is_compute, rows["stream"].is_valid()))
        stream, start_ns, end_ns = (kernels[name].to_numpy() for name in ("stream_number", "start_ns", "end_ns"))
        order = np.lexsort((end_ns, start_ns, stream))
        is_nested = (np.diff(stream[order]) == 0) & (np.diff(end_ns[order]) < 0)
        inner = np.flatnonzero(is_nested) + 1
        if not len(inner):
            return 0
        correlation = kernels["correlation"].fill_null(_NONE).to_numpy()[order]
        launch = kernels["launch_name"].fill_null(0).to_numpy()[order[inner]]
        is_alone = self._flags["is_kernel_launch"][launch] & kernels["launch_name"].is_valid().to_numpy()[order[inner]]
        return int(((correlation[inner] != correlation[inner - 1]) | is_alone).sum())

    def uncertain(self, steps: Steps) -> dict[Gpu, int]:
        """Count the activities without a launch that may be of a later step than their predecessor, per GPU.

        Such an activity was launched after its predecessor on its stream, and before it started and its successor was
        launched. It counts in the step of its predecessor.
        """
        counts: Counter[Gpu] = Counter()
        processes = np.array([stream_of_gpu.gpu.process for stream_of_gpu in self._streams])
        following = _NearestLaunches(len(self._streams), backward=True)
        for low, high in reversed(windows(self._beside, ROWS_AT_ONCE)) if self._beside else ():
            launched, waiting = (table.rows(low, high) for table in self._beside or ())
            start_ns, place_ns, stream = (
                waiting[name].to_numpy() for name in ("start_ns", "place_ns", "stream_number")
            )
            latest_ns = np.minimum(start_ns, following.find(launched, waiting))
            first, last = (_step_rows(processes[stream], times_ns, steps) for times_ns in (place_ns, latest_ns))
            counts.update(self._gpus_of(stream[(latest_ns > place_ns) & (first != last)]))
        return dict(counts)

    def lost_launches(self, steps: Steps) -> dict[tuple[int, int], int]:
        """Count the launches without a kernel by (process, index into its steps).

        Launches during a graph capture of their thread run nothing and do not count.
        """
        counts: Counter[tuple[int, int]] = Counter()
        for low, high in windows((self._lost,), ROWS_AT_ONCE):
            launches = self._that_count(self._lost.rows(low, high))
            process = launches["process"].to_numpy()
            step_row = _step_rows(process, launches["start_ns"].to_numpy(), steps)
            counted = (step_row >= 0) & ~self._in_graph_capture(launches)
            counts.update(zip(process[counted].tolist(), step_row[counted].tolist(), strict=True))
        return dict(counts)

    def host(self, steps: Steps) -> pa.Table:
        """Return synchronising calls and host ranges: `process`, `step_row` (null: none), columns of `schema.HOST`."""
        names = pa.array(self._names, pa.string())
        calls = self._that_count(pa.concat_tables(self._host_calls))
        calls = calls.filter(calls["kind"].is_valid())
        calls = calls.set_column(calls.schema.get_field_index("name"), "name", names.take(calls["name"]))
        rows = pa.concat_tables([table_of_rows(self._host_ranges, _HOST), calls.select(_HOST.names).cast(_HOST)])
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in _HOST_ORDER]))
        step_rows = _step_rows(rows["process"].to_numpy(), rows["start_ns"].to_numpy(), steps)
        return rows.append_column("step_row", pa.array(step_rows, mask=step_rows < 0))

    def _match(self, activities: pa.Table, calls: pa.Table) -> set[int]:
        """Take the rows of a range of correlation ids; return the processes of activities with a launch."""
        if len(self._launched_by):
            process = self._launched_by.take(activities["process"])
            activities = activities.set_column(activities.schema.get_field_index("process"), "process", process)
        match = match_launches(activities, calls)
        self._is_nested |= match.is_nested
        waits = self._wait_for_copies(activities, calls, match.call)
        self._keep_calls(calls.append_column("is_outer", pa.array(match.is_outer)), match.is_answered, waits)
        rows, is_collective = self._with_communication(activities, calls, match.call)
        stream = self._number_streams(activities, is_collective)
        self._count_shared_launches(activities, calls, match.call, stream)
        launches = calls.take(pa.array(match.call, mask=match.call < 0))
        for name, source in _LAUNCH_COLUMNS.items():
            rows = rows.append_column(name, launches[source])
        rows = rows.append_column("is_collective", pa.array(is_collective))
        rows = rows.append_column("stream_number", pa.array(stream)).drop_columns([KEY, GROUP])
        launched = match.call >= 0
        if not launched.all():
            waiting = rows.filter(pa.array(~launched))
            self._waiting.add(waiting, waiting["start_ns"])
            rows = rows.filter(pa.array(launched))
        self._add_placed(rows, rows["launch_start_ns"].to_numpy())
        return set(np.unique(activities["process"].to_numpy()[launched]).tolist())

    def _add_placed(self, rows: pa.Table, place_ns: Ints) -> None:
        if len(rows):
            gpus = np.array([self._gpus[stream.gpu] for stream in self._streams], np.int32)
            self._placed.add(rows.drop_columns("process"), place_ns, gpus[rows["stream_number"].to_numpy()])

    def _wait_for_copies(self, activities: pa.Table, calls: pa.Table, call: Codes) -> Bools:
        """Return, (calls,), which enqueue a copy and return when it is done: `call` launches each of the activities.

        Two of three signs show it: the copy is from the device to pageable memory (CUDA's "API synchronization
        behavior"), it begins within the call, the call is long.
        """
        waits, name = np.zeros(len(calls), np.bool_), activities["name"].to_numpy()
        copies = np.flatnonzero((call >= 0) & self._flags["may_block"][name])
        copies = copies[self._flags["is_async_copy"][calls["name"].to_numpy()[call[copies]]]]
        if len(copies):
            of_copies = calls.take(pa.array(call[copies]))
            is_known = of_copies["end_ns"].is_valid().to_numpy()
            begun_ns, ended_ns = (of_copies[side].fill_null(0).to_numpy() for side in ("start_ns", "end_ns"))
            is_long = ended_ns - begun_ns >= LONG_OPERATION_NS
            # clocks of host and GPU differ by microseconds: the start lies well within the call
            is_within = activities["start_ns"].to_numpy()[copies] < ended_ns
            signs = self._flags["blocks"][name[copies]].astype(np.int64) + is_within + is_long
            waits[call[copies[is_known & (signs >= 2)]]] = True
        return waits

    def _keep_calls(self, calls: pa.Table, is_answered: Bools, waits: Bools) -> None:
        """Keep the calls of `lost_launches` and `host`; `waits` are calls whose name does not say that they wait."""
        name = calls["name"].to_numpy()
        lost = calls.filter(pa.array(~is_answered & self._flags["is_launch"][name])).select(_LOST.names)
        if len(lost):
            self._lost.add(lost, lost["start_ns"])
        took_ns = calls["end_ns"].fill_null(0).to_numpy() - calls["start_ns"].to_numpy()
        is_sync = self._flags["is_synchronising"][name] | waits
        has_kind = is_sync | (self._flags["is_operation"][name] & (took_ns >= LONG_OPERATION_NS))
        kinds = pa.array(np.where(is_sync, "sync", "operation"), pa.string(), mask=~has_kind)
        kept = pa.array(has_kind | self._flags["is_capture_edge"][name])
        self._host_calls.append(
            calls.drop_columns([KEY, GROUP, "correlation"]).append_column("kind", kinds).filter(kept)
        )

    def _that_count(self, calls: pa.Table) -> pa.Table:
        return calls.filter(calls["is_outer"]) if self._is_nested else calls

    def _in_graph_capture(self, launches: pa.Table) -> Bools:
        edges = self._that_count(pa.concat_tables(self._host_calls))
        is_edge = self._flags["is_capture_edge"][edges["name"].to_numpy()] & edges["thread"].is_valid().to_numpy()
        columns = ("process", "thread", "start_ns", "name")
        captures = LaunchesWithin()
        for edge in edges.select(columns).filter(pa.array(is_edge)).to_pylist():
            is_begin = "Begin" in self._names[edge["name"]]
            captures.add_call((edge["process"], edge["thread"]), edge["start_ns"], _NEVER, 0 if is_begin else _NONE)
        return captures.around(launches) >= 0

    def _with_communication(self, activities: pa.Table, calls: pa.Table, call: Codes) -> tuple[pa.Table, Bools]:
        """Return the activities with the operations of the calls around their launches, and which are communication.

        A kernel is communication by its arguments, by the call around its launch, or by its name. `call` is the
        launching call of each activity.
        """
        name = activities["name"].to_numpy()
        is_kernel = ~activities["is_memory"].to_numpy()
        is_communication = self._flags["is_collective"][name]
        for column in COLLECTIVE_COLUMNS:
            if column in activities.schema.names:
                is_communication |= activities[column].is_valid().to_numpy()
        around = self._communication
        if around.calls:
            enclosing = np.append(around.launches.around(calls), _NONE)[call]
            open_to_framework = self._flags["may_be_in_framework_call"][name]
            enclosing[(enclosing >= 0) & ~around.of_library[enclosing] & ~(open_to_framework | is_communication)] = (
                _NONE
            )
            is_communication |= enclosing >= 0
            enclosing[~(is_communication & is_kernel)] = _NONE
            operation = around.operation_of_call.take(pa.array(enclosing, mask=enclosing < 0))
            stated = column_or_nulls(activities, "collective", pa.string())
            activities = activities.drop_columns(
                [column for column in activities.schema.names if column == "collective"]
            )
            activities = activities.append_column("collective", pc.coalesce(stated, operation))
        return activities, is_communication & is_kernel

    def _number_streams(self, activities: pa.Table, is_collective: Bools) -> Codes:
        """Return the number of each activity's stream, and count the activities in the totals of the streams."""
        (processes, process), (devices, device), (ids, id_) = (
            coded(activities[name]) for name in ("process", "device", "stream")
        )
        combined, of_row = coded(pa.array((process.astype(np.int64) * len(devices) + device) * len(ids) + id_))
        numbers = []
        for number in combined:
            gpu_number, at = divmod(number, len(ids))
            gpu = Gpu(processes[gpu_number // len(devices)], devices[gpu_number % len(devices)])
            self._gpus.setdefault(gpu, len(self._gpus))
            numbers.append(self._streams.setdefault(Stream(gpu, ids[at]), len(self._streams)))
        grown = len(self._streams) - self._totals.shape[1]
        self._totals = np.append(self._totals, np.tile([[0], [0], [_NEVER], [-_NEVER]], grown), axis=1)
        is_kernel = ~activities["is_memory"].to_numpy()
        stream = np.array(numbers, np.int32)[of_row]
        for total, rows in enumerate((is_kernel, is_kernel & ~is_collective)):
            self._totals[total] += np.bincount(stream[rows], minlength=len(self._streams))
        np.minimum.at(self._totals[2], stream[is_kernel], activities["start_ns"].to_numpy()[is_kernel])
        np.maximum.at(self._totals[3], stream[is_kernel], activities["end_ns"].to_numpy()[is_kernel])
        return stream

    def _gpus_of(self, stream: Codes) -> Iterator[Gpu]:
        """Yield the GPU of each of these streams."""
        gpus = [stream_of_gpu.gpu for stream_of_gpu in self._streams]
        return map(gpus.__getitem__, stream.tolist())

    def _ordered_gpus(self) -> list[Gpu]:
        return sorted(self._gpus, key=lambda gpu: (gpu.process, gpu.device is None, gpu.device or 0))

    def _place_waiting(self) -> tuple[SortedRows, SortedRows]:
        """Place the activities without a launch; return launched activities of their streams, and them, by start.

        An activity without a launch takes the place of its predecessor on the stream; before any launched one, it was
        launched before the capture and has no place. It was launched at the latest when it started, or when its
        successor on the stream was launched. In a process without recorded launches, its start is its place.
        """
        launched, placed = SortedRows(self._scratch, _BESIDE), SortedRows(self._scratch, _BESIDE)
        for rows in self._placed.runs(("stream_number", "start_ns", "end_ns", KEY)):
            beside = rows.rename_columns(_BESIDE.names)
            launched.add(beside, beside["start_ns"])
        launched.finish()
        preceding = _NearestLaunches(len(self._streams))
        by_start = np.array([stream.gpu.process not in self.has_launches for stream in self._streams])
        for low, high in windows((launched, self._waiting), ROWS_AT_ONCE):
            waiting = self._waiting.rows(low, high).drop_columns([KEY, GROUP])
            start_ns, stream = (waiting[name].to_numpy() for name in ("start_ns", "stream_number"))
            place_ns = np.where(by_start[stream], start_ns, preceding.find(launched.rows(low, high), waiting))
            is_placed = place_ns < _NEVER
            self.before_capture.update(self._gpus_of(stream[~is_placed & ~waiting["is_memory"].to_numpy()]))
            self._add_placed(waiting.filter(pa.array(is_placed)), place_ns[is_placed])
            may_be_later = is_placed & ~by_start[stream] & (start_ns > place_ns)
            rows = waiting.select(_BESIDE.names[:3]).append_column("place_ns", pa.array(place_ns))
            rows = rows.filter(pa.array(may_be_later))
            if len(rows):
                placed.add(rows, rows["start_ns"])
        placed.finish()
        return launched, placed


class _NearestLaunches:
    """The launch next to activities on their streams, from one range of time to the next."""

    def __init__(self, streams: int, *, backward: bool = False) -> None:
        self._launch_ns = np.full(streams, _NEVER)
        """By stream the launch of its last launched activity in the ranges of time so far."""
        self._step = -1 if backward else 1

    def find(self, launched: pa.Table, waiting: pa.Table) -> Ints:
        """Return the launch of the last launched activity before each waiting one, `_NEVER` where there is none.

        Call it for ranges of time in their order; where `backward`, in the reverse order: of the first one after it.
        """
        streams = len(self._launch_ns)
        # the launches of the ranges so far come first
        before = (
            np.arange(streams),
            np.full(streams, -_NEVER * self._step),
            np.zeros(streams, np.int64),
            self._launch_ns,
        )
        unknown = waiting.select(_BESIDE.names[:3]).append_column("place_ns", pa.array(np.full(len(waiting), _NEVER)))
        stream, start_ns, end_ns, launch_ns = (
            np.concatenate([of_streams, launched[name].to_numpy(), unknown[name].to_numpy()])
            for name, of_streams in zip(_BESIDE.names, before, strict=True)
        )
        order = np.lexsort((launch_ns, end_ns, start_ns, stream))[:: self._step]  # of equal times, launched ones first
        is_launched = order < streams + len(launched)
        nearest_ns = np.empty_like(launch_ns)
        nearest_ns[order] = launch_ns[order[np.maximum.accumulate(np.where(is_launched, np.arange(len(order)), 0))]]
        self._launch_ns[stream[order]] = nearest_ns[order]  # the last one of each stream stays
        found_ns: Ints = nearest_ns[streams + len(launched) :]
        return found_ns


_HOST = pa.schema([pa.field("process", pa.int32()), *(HOST.field(name) for name in HOST.names[2:])])
_HOST_ORDER = ("process", "start_ns", "thread", "name", "end_ns", "kind")
_PLACED = pa.schema(
    [
        *(ACTIVITIES.field(name) for name in ACTIVITIES.names[1:8]),
        pa.field("is_collective", pa.bool_()),
        pa.field("stream_number", pa.int32()),
    ]
)
_BESIDE = pa.schema(
    [("stream_number", pa.int32()), ("start_ns", pa.int64()), ("end_ns", pa.int64()), ("place_ns", pa.int64())]
)
_LOST = pa.schema([*(CALLS.field(name) for name in ("process", "thread", "start_ns")), ("is_outer", pa.bool_())])


def flag_names(names: Sequence[str], communication: CommunicationFinder) -> dict[str, Sequence[bool]]:
    """Return what each name says of its kernels or calls, by flag."""
    return {
        "is_collective": communication.of_names(names),
        "may_be_in_framework_call": communication.may_be_in_framework_call(names),
        "is_launch": [bool(_IS_LAUNCH(name)) for name in names],
        "is_kernel_launch": [bool(_IS_LAUNCH(name) and not _IS_OF_SEVERAL(name)) for name in names],
        "is_synchronising": [bool(_IS_SYNCHRONISING(name)) for name in names],
        # an allocation, a module load, an enqueued copy
        "is_operation": [not (_IS_LAUNCH(name) or _IS_SYNCHRONISING(name)) for name in names],
        "is_capture_edge": [bool(_IS_CAPTURE_EDGE(name)) for name in names],
        "is_async_copy": [bool(_IS_ASYNC_COPY(name)) for name in names],
        "blocks": [copy_direction(name) == "device_to_host" and host_memory(name) == "pageable" for name in names],
        "may_block": [copy_direction(name) in ("device_to_host", "host_to_device") for name in names],
    }


def locate_in_steps(times_ns: Ints, steps: Sequence[StepRange]) -> Codes:
    """Return for each time (n,) in ns the index of the step that contains it; -1 if none does."""
    starts, untils = _bounds(steps)
    rows = np.searchsorted(starts, times_ns, side="right") - 1
    inside = rows >= 0
    inside[inside] = times_ns[inside] < untils[rows[inside]]
    return np.where(inside, rows, -1).astype(np.int32)


def _bounds(steps: Sequence[StepRange]) -> tuple[Ints, Ints]:
    """Return where steps start and end (ns)."""
    starts = np.array([step.start_ns for step in steps], np.int64)
    return starts, np.array([_NEVER if step.until_ns is None else step.until_ns for step in steps], np.int64)


def _step_rows(process: Codes, times_ns: Ints, steps: Steps) -> Codes:
    """Return for each time the index into its process's steps; -1 if no step contains it."""
    rows = np.full(len(times_ns), -1, np.int32)
    for process_number in np.unique(process).tolist():
        rows[process == process_number] = locate_in_steps(
            times_ns[process == process_number], steps.get(process_number, ())
        )
    return rows


class LaunchMatch(NamedTuple):
    """The matching of activities and calls."""

    call: Codes
    """For each activity the index of its launching call; -1 if there is none."""
    is_outer: Bools
    """For each call whether it is the outermost of those with its correlation."""
    is_answered: Bools
    """For each call whether an activity has its correlation; True for calls without a correlation."""
    is_nested: bool
    """Whether several calls have the correlation of an activity."""


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
    is_outer, is_nested = np.ones(len(call_keys), np.bool_), False
    if is_repeated.any():
        is_nested = bool(launching[call_keys[is_repeated]].any())
        # the outermost call is written last, so it stays
        first[call_keys] = _NONE
        # by start, longest first: a driver call lies inside its runtime call
        keys = [("start_ns", "ascending"), ("end_ns", "descending"), ("thread", "ascending"), ("name", "ascending")]
        order = pc.sort_indices(calls, sort_keys=keys).to_numpy()[::-1].astype(np.int32)
        first[call_keys[order]] = order
        first[size] = _NONE
        is_outer = (first[call_keys] == numbers) | (call_keys == size)
    launching[size] = True
    return LaunchMatch(first[activity_keys], is_outer, launching[call_keys], is_nested)


def _keys(calls: pa.Table, activities: pa.Table) -> tuple[Codes, Codes, int]:
    """Return keys of calls and activities below `size`, equal where process and correlation are equal.

    Rows without a correlation have the key `size`.
    """
    correlation, process = (
        pa.chunked_array([*calls[name].chunks, *activities[name].chunks], calls[name].type).combine_chunks()
        for name in ("correlation", "process")
    )
    encoded = correlation.dictionary_encode()
    if (last := pc.max(process).as_py() or 0) > 0:
        encoded = pc.add(pc.multiply(encoded.indices.cast(pa.int64()), last + 1), process).dictionary_encode()
    size = len(encoded.dictionary)
    of_calls, of_activities = np.split(encoded.indices.fill_null(size).to_numpy(), [len(calls)])
    return of_calls, of_activities, size


def _in_launch_order(rows: pa.Table) -> pa.Table:
    """Return activities of one GPU by their place, `KEY`; ties, as in one graph launch, by stream, then start."""
    place_ns = rows[KEY].to_numpy()
    order = np.argsort(place_ns, kind="stable")
    if (np.diff(place_ns[order]) == 0).any():
        keys = (KEY, "stream", "start_ns", "end_ns", "name", "correlation")
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in keys]).to_numpy()
    return rows if (np.diff(order) == 1).all() else rows.take(pa.array(order))


def _stretches(ends: Ints) -> Iterator[tuple[int, int]]:
    """Yield ranges of steps with about `STEP_ROWS_AT_ONCE` rows; `ends` are the rows up to the end of each step."""
    first = begun = before = 0
    for step, end in enumerate(ends.tolist()):
        if end - begun > STEP_ROWS_AT_ONCE and before > begun:
            yield first, step
            first, begun = step, before
        before = end
    if before > begun:
        yield first, len(ends)
