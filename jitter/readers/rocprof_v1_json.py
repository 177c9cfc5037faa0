"""rocprof's Chrome trace: an event a few lines, times as strings; the arguments carry the nanoseconds."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from jitter.errors import UnreadableTraceError
from jitter.readers import Advance, Batch
from jitter.readers.rocprof_agents import Agents
from jitter.readers.rocprof_arrows import Arrows, Place
from jitter.readers.rocprof_rows import Rows
from jitter.readers.rocprof_v1_db import batch_of

_HEAD: Final = 4096
_CHUNK: Final = 1 << 21
_MOST_UNCUT: Final = 1 << 27
_BETWEEN: Final = b"\n,{"
_ARROW: Final = b'"DataFlow"'
_MARKERS, _COPIES, _HIP, _HSA, _FIRST_GPU, _FIRST_BARRIERS = 0, 1, 2, 3, 6, 518
_TABLE_OF: Final = {_MARKERS: "rocTX", _COPIES: "COPY", _HIP: "HIP"}
_LAUNCHING: Final = re.compile(r"hip\w*(?:Launch|Mem)")
_EVENTS_A_BATCH: Final = 8192


class _Args(msgspec.Struct, rename={"begin_ns": "BeginNs", "end_ns": "EndNs", "name": "Name", "stream": "stream-id",
                                    "device": "dev-id", "queue": "queue-id"}):  # fmt: skip
    """An event's arguments, as far as they are read."""

    begin_ns: int | None = None
    end_ns: int | None = None
    pid: int | None = None
    tid: int | None = None
    device: int | None = None
    queue: int | None = None
    stream: int | None = None
    name: str | None = None


class _Event(msgspec.Struct):
    """An event; its numbers may be written as strings."""

    ph: str | None = None
    name: str | None = None
    pid: int | None = None
    tid: int | None = None
    ts: int | None = None
    dur: int | None = None
    id: int | None = None
    args: _Args | None = None


class _Loose(msgspec.Struct):
    """An event some of whose numbers are none."""

    ph: str | None = None
    name: str | None = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    id: Any = None
    args: dict[str, Any] | None = None


class _Trace(msgspec.Struct):
    """A whole file, where it is not laid out as rocprof lays it out."""

    events: list[msgspec.Raw] = msgspec.field(name="traceEvents")


_DECODER: Final = msgspec.json.Decoder(_Event, strict=False)
_LOOSE: Final = msgspec.json.Decoder(_Loose)


def is_v1_json(path: Path) -> bool:
    """Whether it begins as rocprof's traces do: an empty event, then processes named after HIP and HSA."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    squeezed = head.replace(b" ", b"").replace(b"\n", b"")
    return squeezed.startswith(b'{"traceEvents":[{}') and (b'"CPUH' in squeezed or b'"MarkersandRanges' in squeezed)


def read_json(path: Path, rows: Rows, agents: Agents, problems: list[str], advance: Advance) -> Iterator[Batch]:
    """Yield all rows; kernels that no arrow leads to have no correlation.

    Arrows (`s` from the call, `t` to the kernel) come last, so they are read first. Raises UnreadableTraceError where
    the file is no JSON.
    """
    arrows = Arrows()
    for event in _events(path, lambda _: None, [], only=_ARROW):
        if event.ph in ("s", "t"):
            arrows.add(event.ph == "s", _place(event), event.id)
    arrows.close()
    raw: dict[str, list[_Event]] = {}
    for event in _events(path, advance, problems):
        table = _table(event)
        if table is None:
            continue
        held = raw.setdefault(table, [])
        held.append(event)
        if len(held) == _EVENTS_A_BATCH:
            yield _batch(table, held, arrows, rows, agents)
            held.clear()
    for table, held in raw.items():
        if held:
            yield _batch(table, held, arrows, rows, agents)
    if arrows.ambiguous:
        problems.append(
            f"{arrows.ambiguous} kernels start in the microsecond of another: which calls launched them is unknown; "
            "keep the .db beside the .json"
        )


def _table(event: _Event) -> str | None:
    """The table of rocprof's database that the event is in."""
    if event.ph != "X" or event.args is None:
        return None
    lane = event.pid
    if lane is None or lane == _HSA:
        return None
    if lane in _TABLE_OF:
        return None if lane == _HIP and not (event.name or "").startswith("hip") else _TABLE_OF[lane]
    return "OPS" if _FIRST_GPU <= lane < _FIRST_BARRIERS else None


def _batch(table: str, events: list[_Event], arrows: Arrows, rows: Rows, agents: Agents) -> Batch:
    args = [event.args or _Args() for event in events]
    names = [arg.name or event.name or "" for arg, event in zip(args, events, strict=True)]
    columns: dict[str, pa.Array] = {
        "BeginNs": pa.array([arg.begin_ns for arg in args], pa.int64()),
        "EndNs": pa.array([arg.end_ns for arg in args], pa.int64()),
        "pid": pa.array([arg.pid for arg in args], pa.int64()),
        "tid": pa.array([arg.tid for arg in args], pa.int64()),
        "dev-id": pa.array([arg.device for arg in args], pa.int64()),
        "queue-id": pa.array([arg.queue for arg in args], pa.int64()),
        "Name": pa.array(names, pa.string()),
    }
    streams = pa.array([arg.stream for arg in args], pa.int64())
    if streams.null_count < len(streams):
        columns["stream-id"] = streams
    _from_microseconds(columns, events)
    if table == "OPS":
        columns["Index"] = arrows.of_kernels([_place(event) for event in events])
    elif table == "HIP":
        # a call that launches nothing may begin in the microsecond of one that does
        launching = [
            _place(e) if _LAUNCHING.match(n) else (None, None, None) for e, n in zip(events, names, strict=True)
        ]
        columns["Index"] = arrows.of_calls(launching, [event.dur or 0 for event in events])
    return batch_of(table, columns, rows, agents)


def _place(event: _Event) -> Place:
    return event.pid, event.tid, event.ts


def _from_microseconds(columns: dict[str, pa.Array], events: list[_Event]) -> None:
    """Fill in the times that older versions give in whole microseconds only."""
    if columns["BeginNs"].null_count == 0 and columns["EndNs"].null_count == 0:
        return
    starts = pa.array([event.ts for event in events], pa.int64())
    lasts = pa.array([event.dur for event in events], pa.int64())
    columns["BeginNs"] = pc.coalesce(columns["BeginNs"], pc.multiply(starts, 1000))
    columns["EndNs"] = pc.coalesce(columns["EndNs"], pc.multiply(pc.add(starts, lasts), 1000))


def _events(path: Path, advance: Advance, problems: list[str], only: bytes = b"") -> Iterator[_Event]:
    """All events, or those with these bytes in them; what is no event of rocprof's is counted."""
    with path.open("rb") as file:
        if _BETWEEN not in file.read(_HEAD):
            yield from _uncut(path, advance)
            return
        file.seek(0)
        held = b""
        broken = 0
        while chunk := file.read(_CHUNK):
            pieces = (held + chunk).split(_BETWEEN)
            held = pieces.pop()
            for piece in pieces:
                if only not in piece:
                    continue
                event = _decoded(b"{" + piece)
                broken += event is None
                if event is not None:
                    yield event
            advance(len(chunk))
        last, closed, _ = held.partition(b"\n]")
        event = _decoded(b"{" + last)
        if event is not None:
            yield event
        if not closed or event is None:
            problems.append("the trace is cut off: its last event and what would have come after it are missing")
        # the first piece is the file's opening, no event
        broken -= not only
        if broken > 0:
            problems.append(f"{broken} events are no valid JSON and were left out")


def _decoded(event: bytes | msgspec.Raw) -> _Event | None:
    try:
        return _DECODER.decode(event)
    except msgspec.ValidationError:
        return _forgiven(event)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _forgiven(event: bytes | msgspec.Raw) -> _Event | None:
    """An event of which some numbers are fractions or no numbers at all: those are unknown."""
    try:
        loose = _LOOSE.decode(event)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None
    args = loose.args or {}
    numbers = [
        _number(args.get(name)) for name in ("BeginNs", "EndNs", "pid", "tid", "dev-id", "queue-id", "stream-id")
    ]
    named = args.get("Name")
    own = [_number(value) for value in (loose.pid, loose.tid, loose.ts, loose.dur, loose.id)]
    return _Event(loose.ph, loose.name, *own, _Args(*numbers, named if isinstance(named, str) else None))


def _uncut(path: Path, advance: Advance) -> Iterator[_Event]:
    size = path.stat().st_size
    if size > _MOST_UNCUT:
        raise UnreadableTraceError(
            f"{path}: not laid out as rocprof writes it, and too large to be read at once", "give the .db of this run"
        )
    try:
        trace = msgspec.json.decode(path.read_bytes(), type=_Trace)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableTraceError(f"{path}: no valid JSON ({error})", "copy it again, or record again") from error
    yield from filter(None, map(_decoded, trace.events))
    advance(size)


def _number(value: object) -> int | None:
    if isinstance(value, str):
        value = value.strip()
        return int(value) if value.lstrip("-").isdecimal() else None
    return int(value) if isinstance(value, int | float) else None
