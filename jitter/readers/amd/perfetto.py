"""Reader of Perfetto traces of rocprofv3 (`.pftrace`) and rocprof-sys (`perfetto-trace-0.proto`).

A trace is a sequence of packets (perfetto/trace/trace_packet.proto). Slices state kernel, agent, queue, thread,
correlation and their times in annotations; their names are interned per sequence of packets.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from jitter.core.compression import sniff_head
from jitter.core.errors import UnreadableTraceError
from jitter.core.formatting import format_count
from jitter.readers import Batch, Process, Recording, SourceReader
from jitter.readers.columns import Progress
from jitter.readers.protobuf import RowBatches, Span, fields, mapped, message, signed, spans, text_at, varint

_NAME: Final = re.compile(r"(?i)\.(?:pftrace|perfetto-trace)$|perfetto[^/]*\.proto$")
_PACKET: Final = b"\x0a"
_KERNELS, _COPIES, _MARKERS = "kernel_dispatch", "memory_copy", "marker"
_CATEGORIES: Final = {
    **dict.fromkeys(("kernel_dispatch", "rocm_kernel_dispatch", "device_hip", "device_activity"), _KERNELS),
    **dict.fromkeys(("memory_copy", "rocm_memory_copy"), _COPIES),
    **dict.fromkeys(("marker_api", "rocm_marker_api", "rocm_roctx", "user"), _MARKERS),
    **dict.fromkeys(("hip_api", "rocm_hip_api", "host_hip"), "calls"),
}
"""Categories of slices that are read, and what they are; others (HSA, RCCL calls, counters) are not."""
_SLICE_BEGIN, _SLICE_END = 1, 2
_INTERNED: Final = {1: "category", 2: "event", 3: "annotation"}
"""Fields of InternedData that are read."""
_STATED: Final = frozenset(
    ("begin_ns", "end_ns", "corr_id", "stack_id", "tid", "agent", "src_agent", "dst_agent", "queue", "copy_bytes")
)
"""Annotations that are read."""
_ANNOTATION_NUMBER: Final = 0x08
_INTEGERS: Final = frozenset({0x18, 0x20, 0x38})
"""First bytes of fields: number and kind."""
_STATE_CLEARED: Final = 1
"""Flag of a packet: names that its sequence has interned before are void."""
_REALTIME, _BOOTTIME = 1, 6
"""Clocks; rocprofiler's times are of the latter."""
_HEAD_BYTES: Final = 4096
_FIRST_FIELDS: Final = frozenset(range(1, 120)) | {1000}


class PerfettoReader(SourceReader):
    """Reads the kernels, copies, HIP calls and markers of rocprofv3 and rocprof-sys."""

    name = "rocprof-perfetto"
    rank_hint = "name it after the rank: rocprofv3 -o rank%env{RANK}%"

    def sniff(self, path: Path) -> bool:
        head = sniff_head(path, _HEAD_BYTES) if _NAME.search(path.name) else b""
        if not head.startswith(_PACKET):
            return False
        try:
            return all(number in _FIRST_FIELDS for number, *_ in fields(head, *message(head, 1), clamp=True))
        except (ValueError, IndexError):
            return False

    def recording(self, path: Path) -> Recording:
        recording = super().recording(path)
        recording.processes = [Process(None)]
        return recording

    def batches(self, recording: Recording, progress: Progress) -> Iterator[Batch]:
        return _Trace(recording).batches(progress)


READER: Final = PerfettoReader()


@dataclass
class _Sequence:
    """Names that a sequence of packets has interned."""

    category: dict[int, str] = field(default_factory=dict)
    event: dict[int, str] = field(default_factory=dict)
    annotation: dict[int, str] = field(default_factory=dict)
    open: dict[int, list["_Slice"]] = field(default_factory=dict)
    """By track the slices that have not ended."""


@dataclass
class _Slice:
    kind: str
    name: str
    track: int
    stated: dict[str, int]


class _Trace:
    """One trace that is being read."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._rows = RowBatches(recording)
        self._sequences: dict[int, _Sequence] = {}
        self._kernels = self._endless = 0

    def batches(self, progress: Progress) -> Iterator[Batch]:
        """Yield the rows of the slices as they end."""
        path, problems = self._recording.path, self._recording.problems
        with mapped(path) as data:
            progress.expect(len(data))
            read = 0
            try:
                for number, _, start, stop in fields(data, 0, len(data), clamp=True):
                    self._recording.is_incomplete |= stop > len(data)
                    if number == 1:
                        self._packet(bytes(data[start:stop]))
                    if self._rows.is_full:
                        yield from self._rows.flush()
                        progress.rows(stop - read)
                        read = stop
            except (ValueError, IndexError) as error:
                self._recording.is_incomplete = True
                problems.append(f"the file is cut or damaged ({error}): what follows was not read")
        yield from self._rows.flush()
        self._endless += sum(len(slices) for sequence in self._sequences.values() for slices in sequence.open.values())
        if self._endless:
            self._recording.is_incomplete = True
            problems.append(f"{format_count(self._endless, 'slice')} without an end left out")
        if not self._kernels:
            raise UnreadableTraceError(
                f"{path}: a Perfetto trace without kernels of rocprofv3 or rocprof-sys",
                "record with `rocprofv3 --sys-trace -f rocpd` or `-f pftrace`",
            )

    def _packet(self, data: bytes) -> None:
        event: Span | None = None
        interned: Span | None = None
        sequence_number = flags = 0
        for number, value, start, stop in fields(data, 0, len(data)):
            if number == 11:
                event = start, stop
            elif number == 12:
                interned = start, stop
            elif number == 10:
                sequence_number = value
            elif number == 13:
                flags = value
            elif number == 6 and self._recording.utc_offset_ns is None:
                listed = (_integers(data, clock) for clock in spans(data, (start, stop), 1))
                clocks = {clock.get(1, 0): clock.get(2, 0) for clock in listed}
                if _REALTIME in clocks and _BOOTTIME in clocks:
                    self._recording.utc_offset_ns = clocks[_REALTIME] - clocks[_BOOTTIME]
            elif number == 60 and self._recording.processes[0].pid is None:
                # of a process, or of a thread of it
                processes = [*spans(data, (start, stop), 3), *spans(data, (start, stop), 4)]
                self._recording.processes[0].pid = _integers(data, processes[0]).get(1) if processes else None
        sequence = self._sequences.get(sequence_number)
        if sequence is None or flags & _STATE_CLEARED:
            opened = {} if sequence is None else sequence.open
            sequence = self._sequences[sequence_number] = _Sequence(open=opened)
        if interned is not None:
            _intern(data, interned, sequence)
        if event is not None:
            self._event(data, event, sequence)

    def _event(self, data: bytes, event: Span, sequence: _Sequence) -> None:
        kind = track = 0
        name, category = "", None
        stated: list[Span] = []
        for number, value, start, stop in fields(data, *event):
            if number == 9:
                kind = value
            elif number == 11:
                track = value
            elif number == 10:
                name = sequence.event.get(value, "")
            elif number == 23:
                name = text_at(data, (start, stop))
            elif number == 3:
                iid = value if start == stop or value else varint(data, start)[0]
                category = category or _CATEGORIES.get(sequence.category.get(iid, ""))
            elif number == 22:
                category = category or _CATEGORIES.get(text_at(data, (start, stop)))
            elif number == 4:
                stated.append((start, stop))
        if kind == _SLICE_BEGIN:
            annotations = dict(_annotations(data, stated, sequence.annotation)) if category else {}
            new_slice = _Slice(category or "", name, track, annotations)
            sequence.open.setdefault(track, []).append(new_slice)
        elif kind == _SLICE_END and (opened := sequence.open.get(track)):
            ended = opened.pop()
            if ended.kind:
                ended.stated.update(_annotations(data, stated, sequence.annotation))
                self._add(ended)

    def _add(self, ended_slice: _Slice) -> None:
        stated = ended_slice.stated
        start_ns, end_ns = stated.get("begin_ns"), stated.get("end_ns")
        if start_ns is None or end_ns is None:
            self._endless += 1
            return
        name, times = self._rows.name(ended_slice.name), (start_ns, end_ns)
        correlation, thread = stated.get("corr_id", stated.get("stack_id")), stated.get("tid", ended_slice.track >> 1)
        if ended_slice.kind == "calls":
            self._rows.add("calls", 0, thread, name, *times, correlation)
        elif ended_slice.kind == _MARKERS:
            self._rows.add("ranges", 0, thread, ended_slice.name, *times)
        else:
            is_memory = ended_slice.kind == _COPIES
            agents = [stated.get(agent_name) for agent_name in ("agent", "src_agent", "dst_agent")]
            device = agents[1] if is_memory and "TO_HOST" in ended_slice.name else agents[2] if is_memory else agents[0]
            queue = stated.get("queue") if not is_memory else None
            size = stated.get("copy_bytes")
            self._rows.add(
                "activities", 0, device, queue, name, is_memory, *times, correlation, *[None] * 6, size, None, None
            )
            self._kernels += not is_memory


def _integers(data: bytes, message: Span) -> dict[int, int]:
    return {number: value for number, value, _, _ in fields(data, *message)}


def _intern(data: bytes, span: Span, sequence: _Sequence) -> None:
    for number, _, start, stop in fields(data, *span):
        if (kind := _INTERNED.get(number)) is not None:
            iid, name = 0, ""
            for member, value, at, end in fields(data, start, stop):
                if member == 1:
                    iid = value
                elif member == 2:
                    name = text_at(data, (at, end))
            if kind != "annotation" or name in _STATED:
                getattr(sequence, kind)[iid] = name


def _annotations(data: bytes, spans: Iterable[Span], names: Mapping[int, str]) -> Iterator[tuple[str, int]]:
    """Yield name and value of the integers among annotations; `names` are the names that are read, by number."""
    for at, end in spans:
        if data[at] == _ANNOTATION_NUMBER:  # the common form, and many of them are not read
            number, value = varint(data, at + 1)
            if number not in names:
                continue
            if value < end and data[value] in _INTEGERS:
                yield names[number], signed(varint(data, value + 1)[0])
                continue
        name, integer = "", None
        for number, value, start, stop in fields(data, at, end):
            if number == 1:
                name = names.get(value, "")
            elif number == 10:
                name = text_at(data, (start, stop))
            elif number in (3, 4, 7):
                integer = signed(value)
        if integer is not None and name in _STATED:
            yield name, integer
