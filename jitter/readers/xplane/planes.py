"""Planes of an XPlane file (`.xplane.pb`): one process, all its GPUs. Python frames are left out.

The format is tsl/profiler/protobuf/xplane.proto. A file is a sequence of planes; a plane has lines of events, and after
them the names of its events and statistics by number. GPU planes (`/device:GPU:0`) have a line per stream, host planes
one per thread. Times are ps after the line's time in ns, which counts from the beginning of the session.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from jitter.core.compression import sniff_head
from jitter.core.formatting import format_count
from jitter.readers import Batch, Recording
from jitter.readers.columns import LARGEST_NS, Progress
from jitter.readers.protobuf import MORE, Span, fields, mapped, message, signed, spans, text_at, varint
from jitter.readers.xplane.replica_groups import HLO, METADATA, PROGRAM
from jitter.readers.xplane.rows import GPU, HOST, STREAM, WANTED, XlaRows

_PLANE: Final = re.compile(rb"/(?:device|host):|Task Environment")

_EVENT_NAME, _EVENT_OFFSET, _EVENT_DURATION, _EVENT_STAT, _EVENT_COUNT = 0x08, 0x10, 0x18, 0x22, 0x28
_STAT_NUMBER, _STAT_REFERENCE = 0x08, 0x38
_STAT_INTEGERS: Final = frozenset({0x18, 0x20, _STAT_REFERENCE})
"""First bytes of fields: number and kind."""


def is_xplane(path: Path) -> bool:
    """Return whether a file begins with a plane of XLA's profiler."""
    head = sniff_head(path, 512)
    if head[:1] != b"\x0a":
        return False
    try:
        for number, _, start, stop in fields(head, *message(head, 1)):
            if number == 2:
                return _PLANE.match(head[start:stop]) is not None
    except (ValueError, IndexError):
        pass
    return False


@dataclass
class _Plane:
    """One plane: where its lines lie, and its names."""

    size: int
    name: str = ""
    lines: list[Span] = field(default_factory=list)
    programs: list[Span] = field(default_factory=list)
    """Entries of the programs, in the plane `METADATA` alone."""
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


class XPlaneFile:
    """One file that is being read."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._rows = XlaRows(recording)
        self._unusable = 0
        self._is_cut = False
        self._begun_ns: int | None = None
        """When the session began, ns since 1970."""

    def batches(self, progress: Progress) -> Iterator[Batch]:
        """Yield all rows: host planes first, so that kernels' HLO operations find the calls that launched them."""
        path = self._recording.path
        planes: list[_Plane] = []
        with mapped(path) as data:
            with self._damage():
                self._read_planes(data, planes)
            for plane in planes:
                for program in plane.programs:
                    with self._damage():
                        stats = (_stat(data, *stat) for stat in spans(data, program, 2, 5))
                        named = {plane.stats.get(number): value for number, value in stats}
                        self._rows.groups.add(data, named.get(PROGRAM), named.get(HLO))
            for plane in sorted(planes, key=lambda plane: GPU.fullmatch(plane.name) is not None):
                with self._damage():
                    yield from self._plane(data, plane)
                progress(plane.size)
        yield from self._rows.finish(path, [plane.name for plane in planes])
        self._finish()

    def _finish(self) -> None:
        problems = self._recording.problems
        if self._begun_ns is not None and self._recording.about_ns is not None:
            # some versions write times since 1970
            self._recording.utc_offset_ns = 0 if self._recording.about_ns > self._begun_ns // 2 else self._begun_ns
        if self._is_cut:
            self._recording.is_incomplete = True
            problems.append("the file is cut or damaged: events after that, and names of events before it, are missing")
        if self._unusable:
            problems.append(f"{format_count(self._unusable, 'event')} without a name or a possible time left out")

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
            elif number == 4 and plane.name == METADATA:
                plane.programs.append((start, stop))
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
            plane.own[plane.stats.get(number, "")] = plane.stats.get(value[0]) if type(value) is tuple else value

    def _plane(self, data: memoryview, plane: _Plane) -> Iterator[Batch]:
        gpu = GPU.fullmatch(plane.name)
        if gpu is None and not HOST.fullmatch(plane.name):
            return
        add = self._rows.add_host if gpu is None else partial(self._rows.add_gpu, int(gpu[1]))
        names: dict[int, str] = {}
        for thread, event in self._events(data, plane, only_streams=gpu is not None):
            name = names.get(event.name) or names.setdefault(event.name, text_at(data, plane.events[event.name]))
            add(thread, name, event.start_ns, event.end_ns, event.stats)
            if self._rows.is_full:
                yield from self._rows.flush()

    def _events(self, data: memoryview, plane: _Plane, *, only_streams: bool) -> Iterator[tuple[int, _Event]]:
        """Yield the events of a plane's lines, with the line's number: a stream or a thread."""
        wanted = {number: name for number, name in plane.stats.items() if name in WANTED}
        for line in plane.lines:
            number = time_ns = 0
            for field_number, value, start, stop in fields(data, *line):
                # a line's number, name and time stand before its events
                if field_number == 1:
                    number = signed(value)
                elif field_number == 2 and only_streams and stop > start:
                    if not STREAM.match(text_at(data, (start, stop))):
                        break
                elif field_number == 3:
                    time_ns = signed(value)
                elif field_number == 4 and (event := self._event(bytes(data[start:stop]), plane, time_ns, wanted)):
                    yield number, event

    def _event(self, data: bytes, plane: _Plane, time_ns: int, wanted: Mapping[int, str]) -> _Event | None:
        name, offset, took, raw_stats = _event(data, wanted)
        if name is None:
            return None
        if name not in plane.events:
            self._unusable += 1
            return None
        start_ns = time_ns + offset // 1000
        end_ns = time_ns + (offset + max(took, 0)) // 1000
        if max(abs(start_ns), end_ns) >= LARGEST_NS:
            self._unusable += 1
            return None
        stats = {of: plane.stats.get(value[0], "") if type(value) is tuple else value for of, value in raw_stats}
        return _Event(name, start_ns, end_ns, stats)


def _map_entry(data: memoryview, at: int, end: int) -> tuple[int, Span]:
    """Return the key of a map's entry, and where the name (field 2) of its value lies."""
    key = next((value for number, value, *_ in fields(data, at, end) if number == 1), 0)
    return key, next(spans(data, (at, end), 2, 2), (at, at))


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
                    stats.append((of, (integer,) if kind == _STAT_REFERENCE else signed(integer)))
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
    """Return a statistic's number and value: an integer, a text, (number of the text,), the place of bytes, or None."""
    stat_number = 0
    stat_value: Any = None
    for number, value, start, stop in fields(data, at, end):
        if number == 1:
            stat_number = value
        elif number in (3, 4):
            stat_value = signed(value)
        elif number == 5:
            stat_value = text_at(data, (start, stop))
        elif number == 6:
            stat_value = slice(start, stop)
        elif number == 7:
            stat_value = (value,)
    return stat_number, stat_value
