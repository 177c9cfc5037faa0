"""Reader of XPlane files (`.xplane.pb`), which JAX's and TensorFlow's profiler writes: one process, all its GPUs.

The format is tsl/profiler/protobuf/xplane.proto. A file is a sequence of planes; a plane has lines of events, and after
them the names of its events and statistics by number. GPU planes (`/device:GPU:0`) have a line per stream, host planes
one per thread. Times are ps after the line's time in ns, which counts from the beginning of the session.
"""

import mmap
import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from jitter.core.errors import UnreadableTraceError
from jitter.core.formatting import format_count
from jitter.readers import Advance, Batch, Files, Process, Reader, Recording, make_batch
from jitter.readers.protobuf import MORE, MOST_ROWS, RowBatches, Span, fields, message, signed, text_at, varint

_GPU: Final = re.compile(r"/device:GPU:(\d{1,9})")
_TPU: Final = "/device:TPU:"
_HOST: Final = re.compile(r"/host:(?:CPU|CUPTI|ROCTRACER)")
_PLANE: Final = re.compile(rb"/(?:device|host):|Task Environment")
_STREAM: Final = re.compile(r"Stream ?#?\d*")
"""Lines that xprof derives from the streams' (`Steps`, `XLA Ops`) are other views of the same activities."""
_WANTED: Final = (
    *("correlation_id", "step_num", "hlo_op", "tf_op", "kernel_details", "memcpy_details", "memset_details", "_src"),
)
"""Statistics of events that are read."""
_SHAPE: Final = re.compile(r"grid:(\d{1,10}),(\d{1,10}),(\d{1,10}) block:(\d{1,10}),(\d{1,10}),(\d{1,10})")
_SIZE: Final = re.compile(r"(?:size|num_bytes):(\d{1,18})")
_RANK_FOLDER: Final = re.compile(r"(?i)(?:.*[^a-z])?(?:rank|process|proc|worker|task)[-_.]?(\d{1,6})")
_SESSION_FOLDERS: Final = ("plugins", "profile")
"""A session's file is LOGDIR/plugins/profile/TIME/HOST.xplane.pb."""

_EVENT_NAME, _EVENT_OFFSET, _EVENT_DURATION, _EVENT_STAT, _EVENT_COUNT = 0x08, 0x10, 0x18, 0x22, 0x28
_STAT_NUMBER, _STAT_REFERENCE = 0x08, 0x38
_STAT_INTEGERS: Final = frozenset({0x18, 0x20, _STAT_REFERENCE})
"""First bytes of fields: number and kind."""


class XPlaneReader:
    """Reads the activities of GPUs, the calls and annotations of host threads; Python frames are left out."""

    name = "xplane"
    version = 1

    def sniff(self, path: Path) -> bool:
        try:
            with path.open("rb") as file:
                head = file.read(512)
        except OSError:
            return False
        if head[:1] != b"\x0a":
            return False
        try:
            for number, _, start, stop in fields(head, *message(head, 1)):
                if number == 2:
                    return _PLANE.match(head[start:stop]) is not None
        except (ValueError, IndexError):
            pass
        return False

    def files(self, path: Path) -> Files:
        others = [path.with_name(name) for name in (f"{_host(path)}.trace.json.gz", "perfetto_trace.json.gz")]
        return Files((path,), tuple(other for other in others if other.exists()))

    def open(self, path: Path) -> tuple[Recording, Callable[[Advance], Iterator[Batch]]]:
        """Return the recording and its batches; raises OSError."""
        host = _host(path)
        recording = Recording(
            path,
            "xplane",
            processes=[Process(None, host or None)],
            rank_in_name=_rank_of_folder(path),
            rank_hint="give each process a log folder of its own, named after its rank: "
            "jax.profiler.start_trace(f'traces/rank{jax.process_index()}')",
        )
        return recording, _File(recording).batches


READER: Reader = XPlaneReader()


def _host(path: Path) -> str:
    return path.name.removesuffix(".pb").removesuffix(".xplane")


def _rank_of_folder(path: Path) -> int | None:
    folders = path.absolute().parts[:-1]
    if tuple(folders[-3:-1]) == _SESSION_FOLDERS and len(folders) > 3:
        match = _RANK_FOLDER.fullmatch(folders[-4])
        return int(match[1]) if match else None
    return None


@dataclass
class _Plane:
    """One plane: where its lines lie, and its names."""

    size: int
    name: str = ""
    lines: list[Span] = field(default_factory=list)
    events: dict[int, Span] = field(default_factory=dict)
    """By number the place of the event's name."""
    stats: dict[int, str] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    """The plane's own statistics."""


class _Event(NamedTuple):
    name: int
    start_ns: int
    end_ns: int
    stats: dict[str, Any]


class _File:
    """One file that is being read."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._rows = RowBatches(recording)
        self._calls = [array("q") for _ in range(4)]
        """Correlation, thread, begin and return of each call."""
        self._of_hlo = [array("q") for _ in range(3)]
        """Correlation, name of the HLO operation, name of the framework's operation of each kernel; -1: none."""
        self._nameless = 0
        self._is_cut = False
        self._begun_ns: int | None = None
        """When the session began, ns since 1970."""

    def batches(self, advance: Advance) -> Iterator[Batch]:
        """Yield all rows: host planes first, so that kernels' HLO operations find the calls that launched them."""
        path = self._recording.path
        size = path.stat().st_size
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            data = memoryview(mapped)
            planes: list[_Plane] = []
            try:
                with self._damage():
                    self._read_planes(data, planes)
                for plane in sorted(planes, key=lambda plane: _GPU.fullmatch(plane.name) is not None):
                    with self._damage():
                        yield from self._plane(data, plane)
                    advance(plane.size)
                    size -= plane.size
            finally:
                data.release()
        if not any(_GPU.fullmatch(plane.name) for plane in planes):
            tpus = any(plane.name.startswith(_TPU) for plane in planes)
            raise UnreadableTraceError(
                f"{path}: holds activities of TPUs, which jitter does not read" if tpus else f"{path}: no GPU activity",
                "jitter compares what GPUs do: record on GPUs, with JAX's CUDA or ROCm plug-in (`jitter record jax`)",
            )
        yield from self._operators()
        yield from self._rows.flush()
        self._finish()
        advance(size)

    def _finish(self) -> None:
        problems = self._recording.problems
        if self._begun_ns is not None and self._rows.about_ns is not None:
            # some versions write times since 1970
            self._recording.utc_offset_ns = 0 if self._rows.about_ns > self._begun_ns // 2 else self._begun_ns
        if self._is_cut:
            self._recording.is_incomplete = True
            problems.append("the file is cut or damaged: events after that, and names of events before it, are missing")
        if self._nameless:
            problems.append(f"{format_count(self._nameless, 'event')} without a name left out")
        problems += self._rows.problems()

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Note damage in the block: what was read before counts."""
        try:
            yield
        except (ValueError, IndexError) as error:
            self._is_cut = True
            self._recording.problems.append(f"damaged: {error}")

    def _read_planes(self, data: memoryview, planes: list[_Plane]) -> None:
        """Add the planes to `planes`; take host name, process and wall clock from the file."""
        for number, _, start, stop in self._clamped(data, 0, len(data)):
            if number == 1:
                planes.append(plane := _Plane(stop - start))
                with self._damage():
                    self._read_plane(data, plane, start, stop)
            elif number == 4 and stop > start:
                self._recording.processes[0].host = text_at(data, (start, stop))
        for plane in planes:
            process = plane.own.get("process_id")
            if isinstance(process, int) and self._recording.processes[0].pid is None:
                self._recording.processes[0].pid = process
            begun = plane.own.get("profile_start_time")
            if isinstance(begun, int) and plane.name == "Task Environment":
                self._begun_ns = begun

    def _clamped(self, data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield fields; the last one of a cut file ends with the file."""
        for number, value, start, stop in fields(data, at, end, clamp=True):
            self._is_cut |= stop > end
            yield number, value, start, min(stop, end)

    def _read_plane(self, data: memoryview, plane: _Plane, at: int, end: int) -> None:
        stats: list[Span] = []
        for number, _, start, stop in self._clamped(data, at, end):
            if number == 2:
                plane.name = text_at(data, (start, stop))
            elif number == 3:
                plane.lines.append((start, stop))
            elif number == 4:
                key, name = _map_entry(data, start, stop)
                plane.events[key] = name
            elif number == 5:
                key, name = _map_entry(data, start, stop)
                plane.stats[key] = text_at(data, name)
            elif number == 6:
                stats.append((start, stop))
        for span in stats:
            number, value = _stat(data, *span)
            plane.own[plane.stats.get(number, "")] = plane.stats.get(value[1]) if isinstance(value, tuple) else value

    def _plane(self, data: memoryview, plane: _Plane) -> Iterator[Batch]:
        gpu = _GPU.fullmatch(plane.name)
        if gpu is None and not _HOST.fullmatch(plane.name):
            return
        names: dict[int, str] = {}
        for line in plane.lines:
            head, events = self._line(data, line)
            if gpu is not None and head.name and not _STREAM.match(head.name):
                continue
            for event in self._events(data, plane, head, events):
                name = names.get(event.name) or names.setdefault(event.name, text_at(data, plane.events[event.name]))
                if gpu is None:
                    self._add_host(head.number, name, event)
                else:
                    self._add_gpu(int(gpu[1]), head.number, name, event)
                if self._rows.is_full:
                    yield from self._rows.flush()

    def _line(self, data: memoryview, line: Span) -> tuple["_Line", Iterator[Span]]:
        """Return a line's number, name and time, which stand before its events, and where the events lie."""
        number = time_ns = 0
        name = ""
        at = line[0]
        for field_number, value, start, stop in fields(data, *line):
            if field_number == 4:
                break
            at = stop
            number = signed(value) if field_number == 1 else number
            name = text_at(data, (start, stop)) if field_number == 2 else name
            time_ns = signed(value) if field_number == 3 else time_ns
        events = ((start, stop) for field_number, _, start, stop in fields(data, at, line[1]) if field_number == 4)
        return _Line(number, name, time_ns), events

    def _events(self, data: memoryview, plane: _Plane, line: "_Line", spans: Iterator[Span]) -> Iterator[_Event]:
        wanted = {number: name for number, name in plane.stats.items() if name in _WANTED}
        for start, stop in spans:
            name, offset, took, raw_stats = _event(bytes(data[start:stop]), wanted)
            if name is None:
                continue
            if name not in plane.events:
                self._nameless += 1
                continue
            begin = line.time_ns + offset // 1000
            end_ns = line.time_ns + (offset + max(took, 0)) // 1000
            if not -(2**62) < begin <= end_ns < 2**62:
                self._rows.impossible += 1
                continue
            stats = {of: plane.stats.get(value[1], "") if type(value) is tuple else value for of, value in raw_stats}
            yield _Event(name, begin, end_ns, stats)

    def _add_host(self, thread: int, name: str, event: _Event) -> None:
        stats, times = event.stats, (event.start_ns, event.end_ns)
        correlation, step = stats.get("correlation_id"), stats.get("step_num")
        if isinstance(correlation, int):
            self._rows.add("calls", 0, thread, self._rows.name(name), *times, signed(correlation))
            for column, value in zip(self._calls, (signed(correlation), thread, *times), strict=True):
                column.append(value)
        elif step is not None:
            number = step if isinstance(step, str) else str(signed(step))
            self._rows.add("ranges", 0, thread, f"{name}#step_num={number}#", *times)
        elif "_src" not in stats and not name.startswith("$"):  # neither the runtime's own nor a Python frame
            self._rows.add("ranges", 0, thread, name, *times)

    def _add_gpu(self, device: int, stream: int, name: str, event: _Event) -> None:
        stats = event.stats
        shape: tuple[int | None, ...] = (None,) * 6
        size = None
        copied = stats.get("memcpy_details", stats.get("memset_details"))
        is_memory = copied is not None or name.lower().startswith(("memcpy", "memset"))
        if is_memory and isinstance(copied, str):
            size = _size(copied)
        elif isinstance(stats.get("kernel_details"), str):
            shape = _shape(stats["kernel_details"])
        correlation = stats.get("correlation_id")
        number = signed(correlation) if isinstance(correlation, int) and correlation else None
        times = event.start_ns, event.end_ns
        name_number = self._rows.name(name)
        self._rows.add("activities", 0, device, stream, name_number, is_memory, *times, number, *shape, size)
        operations = [stats.get(of) for of in ("hlo_op", "tf_op")]
        if number is not None and any(operations):
            names = [self._rows.name(each) if isinstance(each, str) and each else -1 for each in operations]
            for column, value in zip(self._of_hlo, (number, *names), strict=True):
                column.append(value)

    def _operators(self) -> Iterator[Batch]:
        """Yield the HLO operation, and around it the framework's, of each call that launched a kernel."""
        calls, of_hlo = (
            [np.frombuffer(column, np.int64) for column in columns] for columns in (self._calls, self._of_hlo)
        )
        order = np.argsort(calls[0], kind="stable")
        _, first = np.unique(of_hlo[0], return_index=True)  # a graph's launch has the operation of its first kernel
        place = np.searchsorted(calls[0][order], of_hlo[0][first])
        has_call = place < len(order)
        call = order[place[has_call]]
        launched = first[has_call][calls[0][call] == of_hlo[0][first][has_call]]
        call = call[calls[0][call] == of_hlo[0][first][has_call]]
        for names, is_module in ((of_hlo[2][launched], True), (of_hlo[1][launched], False)):
            for at in np.array_split(np.flatnonzero(names >= 0), max(1, len(names) // MOST_ROWS)):
                rows = call[at]
                columns = {
                    "process": pa.array(np.zeros(len(at), np.int32)),
                    "thread": pa.array(calls[1][rows]),
                    "name": pa.array(names[at].astype(np.int32)),
                    "is_module": pa.array(np.full(len(at), is_module)),
                    "start_ns": pa.array(calls[2][rows]),
                    "end_ns": pa.array(calls[3][rows]),
                }
                if len(at):
                    yield make_batch("operators", columns)


class _Line(NamedTuple):
    number: int
    """A stream, or a thread."""
    name: str
    time_ns: int


@lru_cache(maxsize=65536)
def _shape(details: str) -> tuple[int | None, ...]:
    match = _SHAPE.search(details)
    return (None,) * 6 if match is None else tuple(map(int, match.groups()))


@lru_cache(maxsize=65536)
def _size(details: str) -> int | None:
    match = _SIZE.search(details)
    return int(match[1]) if match else None


def _map_entry(data: memoryview, at: int, end: int) -> tuple[int, Span]:
    """Return the key of a map's entry, and where the name (field 2) of its value lies."""
    key, name = 0, (at, at)
    for number, value, start, stop in fields(data, at, end):
        if number == 1:
            key = value
        elif number == 2:
            for of, _, first, last in fields(data, start, stop):
                if of == 2:
                    name = (first, last)
    return key, name


def _event(  # noqa: PLR0912  # one branch per field, in one loop: most bytes of a file are here
    data: bytes, wanted: Mapping[int, str]
) -> tuple[int | None, int, int, list[tuple[str, Any]]]:
    """Return an event's name, offset and duration, ps, and its wanted statistics with their values as `_stat` has them.

    The name is None for a sum of several events, which has no time.
    """
    name: int | None = 0
    offset = took = at = 0
    stats: list[tuple[str, Any]] = []
    end = len(data)
    while at < end:
        tag, value, at = data[at], data[at + 1], at + 2
        if value >= MORE:  # else a call of `_varint` for each would take a third of the time
            value, at = varint(data, at - 1)
        if tag == _EVENT_STAT:
            stop, number, after = at + value, data[at + 1], at + 2
            if number >= MORE:
                number, after = varint(data, at + 1)
            of = wanted.get(number) if data[at] == _STAT_NUMBER else wanted.get(_stat(data, at, stop)[0])
            if of is not None:
                kind = data[after] if after < stop else 0
                if data[at] == _STAT_NUMBER and kind in _STAT_INTEGERS:
                    integer, after = varint(data, after + 1)
                    stats.append((of, ("ref", integer) if kind == _STAT_REFERENCE else integer))
                else:
                    stats.append((of, _stat(data, at, stop)[1]))
            at = stop
        elif tag == _EVENT_NAME:
            name = value
        elif tag == _EVENT_OFFSET:
            offset = signed(value)
        elif tag == _EVENT_DURATION:
            took = signed(value)
        elif tag == _EVENT_COUNT:
            name = None
        else:
            raise ValueError(f"an event has a field {tag >> 3} of kind {tag & 7}")
        if at > end:
            raise ValueError("a field ends after its event")
    return name, offset, took, stats


def _stat(data: memoryview | bytes, at: int, end: int) -> tuple[int, Any]:
    """Return a statistic's number and value: an integer, a text, None, or ("ref", number of the text)."""
    stat_number = 0
    stat_value: Any = None
    for number, value, start, stop in fields(data, at, end):
        if number == 1:
            stat_number = value
        elif number in (3, 4):
            stat_value = value
        elif number == 5:
            stat_value = text_at(data, (start, stop))
        elif number == 7:
            stat_value = ("ref", value)
    return stat_number, stat_value
