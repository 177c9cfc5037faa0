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
from jitter.readers import Advance, Batch, Files, Process, Reader, Recording, TableName, make_batch
from jitter.readers.columns import CaptureTimes

_ROWS: Final = 20_000
"""Rows of a batch."""
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
"""Wire types of protobuf."""
_GPU: Final = re.compile(r"/device:GPU:(\d{1,9})")
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
_MORE: Final = 0x80
"""Bytes of an integer from this one on are not its last."""
_STAT_INTEGERS: Final = frozenset({0x18, 0x20, _STAT_REFERENCE})
"""First bytes of fields: number and kind."""

_Span = tuple[int, int]


class XPlaneReader:
    """Reads the activities of GPUs, the calls and annotations of host threads; Python frames are left out."""

    name = "xplane"
    version = 1

    def sniff(self, path: Path) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(512)
        if head[:1] != b"\x0a":
            return False
        try:
            for number, _, start, stop in _fields(head, *_message(head, 1)):
                if number == 2:
                    return _PLANE.match(head[start:stop]) is not None
        except (ValueError, IndexError):
            pass
        return False

    def files(self, path: Path) -> Files:
        return Files((path,))

    def open(self, path: Path) -> tuple[Recording, Callable[[Advance], Iterator[Batch]]]:
        """Return the recording and its batches; raises OSError."""
        host = path.name.removesuffix(".pb").removesuffix(".xplane")
        recording = Recording(
            path,
            "xplane",
            processes=[Process(None, host or None)],
            rank_in_name=_rank_of_folder(path),
            rank_hint="give each process a log folder of its own, named after its rank: "
            "jax.profiler.start_trace(f'traces/rank{jax.process_index()}'); or --rank-map",
        )
        return recording, _File(recording).batches


READER: Reader = XPlaneReader()


def _rank_of_folder(path: Path) -> int | None:
    folders = path.absolute().parts[:-1]
    if tuple(folders[-3:-1]) == _SESSION_FOLDERS and len(folders) > 3:
        found = _RANK_FOLDER.fullmatch(folders[-4])
        return int(found[1]) if found else None
    return None


@dataclass
class _Plane:
    """One plane: where its lines lie, and its names."""

    size: int
    name: str = ""
    lines: list[_Span] = field(default_factory=list)
    events: dict[int, _Span] = field(default_factory=dict)
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
        self._names: dict[str, int] = {}
        recording.names = []
        self._rows: dict[TableName, list[tuple[Any, ...]]] = {}
        self._count = 0
        self._calls = [array("q") for _ in range(4)]
        """Correlation, thread, begin and return of each call."""
        self._of_hlo = [array("q") for _ in range(3)]
        """Correlation, name of the HLO operation, name of the framework's operation of each kernel; -1: none."""
        self._times = CaptureTimes()
        self._impossible = self._nameless = 0
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
                for plane in sorted(planes, key=lambda one: _GPU.fullmatch(one.name) is not None):
                    with self._damage():
                        yield from self._plane(data, plane)
                    advance(plane.size)
                    size -= plane.size
            finally:
                data.release()
        if not any(_GPU.fullmatch(plane.name) for plane in planes):
            raise UnreadableTraceError(
                f"{path}: no plane of a GPU", "was the program run on GPUs, with jaxlib's CUDA or ROCm plug-in?"
            )
        yield from self._operators()
        yield from self._flush()
        self._finish()
        advance(size)

    def _finish(self) -> None:
        problems = self._recording.problems
        if self._begun_ns is not None and self._times.about_ns is not None:
            # some versions write times since 1970
            self._recording.utc_offset_ns = 0 if self._times.about_ns > self._begun_ns // 2 else self._begun_ns
        if self._is_cut:
            self._recording.is_incomplete = True
            problems.append("the file is cut or damaged: events after that, and names of events before it, are missing")
        if self._nameless:
            problems.append(f"{format_count(self._nameless, 'event')} without a name left out")
        if self._impossible:
            problems.append(f"{format_count(self._impossible, 'event')} with impossible times left out")

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Note damage in the block: what was read before counts."""
        try:
            yield
        except (ValueError, IndexError) as error:
            self._is_cut = True
            self._recording.problems.append(f"damaged: {error}")

    def _read_planes(self, data: memoryview, found: list[_Plane]) -> None:
        """Add the planes to `found`; take host name, process and wall clock from the file."""
        for number, _, start, stop in self._clamped(data, 0, len(data)):
            if number == 1:
                found.append(plane := _Plane(stop - start))
                with self._damage():
                    self._read_plane(data, plane, start, stop)
            elif number == 4 and stop > start:
                self._recording.processes[0].host = _text(data, (start, stop))
        for plane in found:
            process = plane.own.get("process_id")
            if isinstance(process, int) and self._recording.processes[0].pid is None:
                self._recording.processes[0].pid = process
            begun = plane.own.get("profile_start_time")
            if isinstance(begun, int) and plane.name == "Task Environment":
                self._begun_ns = begun

    def _clamped(self, data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield fields; the last one of a cut file ends with the file."""
        for number, value, start, stop in _fields(data, at, end, clamp=True):
            self._is_cut |= stop > end
            yield number, value, start, min(stop, end)

    def _read_plane(self, data: memoryview, plane: _Plane, at: int, end: int) -> None:
        stats: list[_Span] = []
        for number, _, start, stop in self._clamped(data, at, end):
            if number == 2:
                plane.name = _text(data, (start, stop))
            elif number == 3:
                plane.lines.append((start, stop))
            elif number == 4:
                key, name = _map_entry(data, start, stop)
                plane.events[key] = name
            elif number == 5:
                key, name = _map_entry(data, start, stop)
                plane.stats[key] = _text(data, name)
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
                name = names.get(event.name) or names.setdefault(event.name, _text(data, plane.events[event.name]))
                if gpu is None:
                    self._add_host(head.number, name, event)
                else:
                    self._add_gpu(int(gpu[1]), head.number, name, event)
                if self._count >= _ROWS:
                    yield from self._flush()

    def _line(self, data: memoryview, line: _Span) -> tuple["_Line", Iterator[_Span]]:
        """Return a line's number, name and time, which stand before its events, and where the events lie."""
        number = time_ns = 0
        name = ""
        at = line[0]
        for which, value, start, stop in _fields(data, *line):
            if which == 4:
                break
            at = stop
            number = _signed(value) if which == 1 else number
            name = _text(data, (start, stop)) if which == 2 else name
            time_ns = _signed(value) if which == 3 else time_ns
        events = ((start, stop) for which, _, start, stop in _fields(data, at, line[1]) if which == 4)
        return _Line(number, name, time_ns), events

    def _events(self, data: memoryview, plane: _Plane, line: "_Line", spans: Iterator[_Span]) -> Iterator[_Event]:
        wanted = {number: name for number, name in plane.stats.items() if name in _WANTED}
        for start, stop in spans:
            name, offset, took, found = _event(bytes(data[start:stop]), wanted)
            if name is None:
                continue
            if name not in plane.events:
                self._nameless += 1
                continue
            begin = line.time_ns + offset // 1000
            end_ns = line.time_ns + (offset + max(took, 0)) // 1000
            if not -(2**62) < begin <= end_ns < 2**62:
                self._impossible += 1
                continue
            stats = {of: plane.stats.get(value[1], "") if type(value) is tuple else value for of, value in found}
            yield _Event(name, begin, end_ns, stats)

    def _add_host(self, thread: int, name: str, event: _Event) -> None:
        stats, times = event.stats, (event.start_ns, event.end_ns)
        correlation, step = stats.get("correlation_id"), stats.get("step_num")
        if isinstance(correlation, int):
            self._add("calls", 0, thread, self._name(name), *times, _signed(correlation))
            for column, value in zip(self._calls, (_signed(correlation), thread, *times), strict=True):
                column.append(value)
        elif step is not None:
            number = step if isinstance(step, str) else str(_signed(step))
            self._add("ranges", 0, thread, f"{name}#step_num={number}#", *times)
        elif "_src" not in stats and not name.startswith("$"):  # neither the runtime's own nor a Python frame
            self._add("ranges", 0, thread, name, *times)

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
        number = _signed(correlation) if isinstance(correlation, int) and correlation else None
        self._add(
            "activities",
            0,
            device,
            stream,
            self._name(name),
            is_memory,
            event.start_ns,
            event.end_ns,
            number,
            *shape,
            size,
        )
        operations = [stats.get(of) for of in ("hlo_op", "tf_op")]
        if number is not None and any(operations):
            names = [self._name(one) if isinstance(one, str) and one else -1 for one in operations]
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
        known = place < len(order)
        call = order[place[known]]
        launched = first[known][calls[0][call] == of_hlo[0][first][known]]
        call = call[calls[0][call] == of_hlo[0][first][known]]
        for names, is_module in ((of_hlo[2][launched], True), (of_hlo[1][launched], False)):
            for at in np.array_split(np.flatnonzero(names >= 0), max(1, len(names) // _ROWS)):
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

    def _name(self, name: str) -> int:
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = len(self._names)
            self._recording.names.append(name)  # type: ignore[attr-defined]
        return known

    def _add(self, table: TableName, *row: Any) -> None:
        self._rows.setdefault(table, []).append(row)
        self._count += 1

    def _flush(self) -> Iterator[Batch]:
        """Yield the rows that are held, a batch a table."""
        held, self._rows, self._count = self._rows, {}, 0
        for table, rows in held.items():
            yield self._batch(table, rows)

    def _batch(self, table: TableName, rows: list[tuple[Any, ...]]) -> Batch:
        arrays = [pa.array(column) for column in zip(*rows, strict=True)]
        columns = dict(zip(_COLUMNS[table], arrays, strict=True))
        possible = self._times.check(columns["start_ns"], columns["end_ns"])
        self._impossible += len(rows) - possible.true_count
        return make_batch(table, {name: column.filter(possible) for name, column in columns.items()})


_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "activities": (
        *("process", "device", "stream", "name", "is_memory", "start_ns", "end_ns", "correlation"),
        *("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "size_bytes"),
    ),
    "calls": ("process", "thread", "name", "start_ns", "end_ns", "correlation"),
    "ranges": ("process", "thread", "text", "start_ns", "end_ns"),
}


class _Line(NamedTuple):
    number: int
    """A stream, or a thread."""
    name: str
    time_ns: int


@lru_cache(maxsize=65536)
def _shape(details: str) -> tuple[int | None, ...]:
    found = _SHAPE.search(details)
    return (None,) * 6 if found is None else tuple(map(int, found.groups()))


@lru_cache(maxsize=65536)
def _size(details: str) -> int | None:
    found = _SIZE.search(details)
    return int(found[1]) if found else None


def _text(data: memoryview | bytes, span: _Span) -> str:
    return bytes(data[span[0] : span[1]]).decode("utf-8", "replace")


def _map_entry(data: memoryview, at: int, end: int) -> tuple[int, _Span]:
    """Return the key of a map's entry, and where the name (field 2) of its value lies."""
    key, name = 0, (at, at)
    for number, value, start, stop in _fields(data, at, end):
        if number == 1:
            key = value
        elif number == 2:
            for of, _, first, last in _fields(data, start, stop):
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
    found: list[tuple[str, Any]] = []
    end = len(data)
    while at < end:
        tag, value, at = data[at], data[at + 1], at + 2
        if value >= _MORE:  # else a call of `_varint` for each would take a third of the time
            value, at = _varint(data, at - 1)
        if tag == _EVENT_STAT:
            stop, number, after = at + value, data[at + 1], at + 2
            if number >= _MORE:
                number, after = _varint(data, at + 1)
            of = wanted.get(number) if data[at] == _STAT_NUMBER else wanted.get(_stat(data, at, stop)[0])
            if of is not None:
                kind = data[after] if after < stop else 0
                if data[at] == _STAT_NUMBER and kind in _STAT_INTEGERS:
                    integer, after = _varint(data, after + 1)
                    found.append((of, ("ref", integer) if kind == _STAT_REFERENCE else integer))
                else:
                    found.append((of, _stat(data, at, stop)[1]))
            at = stop
        elif tag == _EVENT_NAME:
            name = value
        elif tag == _EVENT_OFFSET:
            offset = _signed(value)
        elif tag == _EVENT_DURATION:
            took = _signed(value)
        elif tag == _EVENT_COUNT:
            name = None
        else:
            raise ValueError(f"an event has a field {tag >> 3} of kind {tag & 7}")
        if at > end:
            raise ValueError("a field ends after its event")
    return name, offset, took, found


def _stat(data: memoryview | bytes, at: int, end: int) -> tuple[int, Any]:
    """Return a statistic's number and value: an integer, a text, None, or ("ref", number of the text)."""
    which = 0
    found: Any = None
    for number, value, start, stop in _fields(data, at, end):
        if number == 1:
            which = value
        elif number in (3, 4):
            found = value
        elif number == 5:
            found = _text(data, (start, stop))
        elif number == 7:
            found = ("ref", value)
    return which, found


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _varint(data: memoryview | bytes, at: int) -> tuple[int, int]:
    """Return the integer at a place, and the place after it."""
    byte = data[at]
    if byte < _MORE:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + 1
        shift += 7
        if shift > 63:
            raise ValueError(f"no integer ends at byte {at:,}")


def _message(data: bytes, at: int) -> _Span:
    """Return where the message at a place lies, whose length comes first; cut where the data end."""
    length, start = _varint(data, at)
    return start, min(start + length, len(data))


def _fields(data: memoryview | bytes, at: int, end: int, *, clamp: bool = False) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number, integer, and where a text or message begins and ends.

    Raises `ValueError` where the bytes are no message, or a field ends after it; with `clamp` the latter is yielded.
    """
    while at < end:
        tag, at = _varint(data, at)
        kind, value, start = tag & 7, 0, at
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind == _BYTES:
            length, start = _varint(data, at)
            at = start + length
        elif kind == _EIGHT:
            at += 8
        elif kind == _FOUR:
            at += 4
        else:
            raise ValueError(f"no field at byte {start:,}")
        if at > end and not clamp:
            raise ValueError(f"a field ends after its message, at byte {start:,}")
        yield tag >> 3, value, start, at
