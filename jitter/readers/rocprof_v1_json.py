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
_MARKERS, _COPIES, _HIP, _HSA, _FIRST_GPU, _FIRST_BARRIERS = 0, 1, 2, 3, 6, 518
_TABLE_OF: Final = {_MARKERS: "rocTX", _COPIES: "COPY", _HIP: "HIP"}
_INTEGERS: Final = ("BeginNs", "EndNs", "pid", "tid", "dev-id", "queue-id", "stream-id", "Index")
_LAUNCHING: Final = re.compile(r"hip\w*(?:Launch|Mem)")
_EVENTS_A_BATCH: Final = 8192


class _Event(msgspec.Struct):
    """An event; numbers are strings in some versions."""

    ph: str | None = None
    name: str | None = None
    cat: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | str | float | None = None
    dur: int | str | float | None = None
    id: int | str | None = None
    args: dict[str, Any] | None = None


class _Trace(msgspec.Struct):
    """A whole file, where it is not laid out as rocprof lays it out."""

    events: list[_Event] = msgspec.field(name="traceEvents")


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
    for event in _events(path, lambda _: None, []):
        if event.ph in ("s", "t"):
            arrows.add(event.ph == "s", _place(event), _number(event.id))
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
    lane = _number(event.pid)
    if lane is None or lane == _HSA:
        return None
    if lane in _TABLE_OF:
        return None if lane == _HIP and not (event.name or "").startswith("hip") else _TABLE_OF[lane]
    return "OPS" if _FIRST_GPU <= lane < _FIRST_BARRIERS else None


def _batch(table: str, events: list[_Event], arrows: Arrows, rows: Rows, agents: Agents) -> Batch:
    columns: dict[str, pa.Array] = {}
    for name in _INTEGERS:
        values = [_number((event.args or {}).get(name)) for event in events]
        if name in ("stream-id", "queue-id") and all(value is None for value in values):
            continue
        columns[name] = pa.array(values, pa.int64())
    _from_microseconds(columns, events)
    names = [str((event.args or {}).get("Name") or event.name or "") for event in events]
    if table == "OPS":
        columns["Index"] = arrows.of_kernels([_place(event) for event in events])
    elif table == "HIP":
        # a call that launches nothing may begin in the microsecond of one that does
        launching = [
            _place(e) if _LAUNCHING.match(n) else (None, None, None) for e, n in zip(events, names, strict=True)
        ]
        columns["Index"] = arrows.of_calls(launching, [_number(event.dur) or 0 for event in events])
    return batch_of(table, columns | {"Name": pa.array(names, pa.string())}, rows, agents)


def _place(event: _Event) -> Place:
    return _number(event.pid), _number(event.tid), _number(event.ts)


def _from_microseconds(columns: dict[str, pa.Array], events: list[_Event]) -> None:
    """Fill in the times that older versions give in whole microseconds only."""
    if columns["BeginNs"].null_count == 0 and columns["EndNs"].null_count == 0:
        return
    starts = pa.array([_number(event.ts) for event in events], pa.int64())
    lasts = pa.array([_number(event.dur) for event in events], pa.int64())
    columns["BeginNs"] = pc.coalesce(columns["BeginNs"], pc.multiply(starts, 1000))
    columns["EndNs"] = pc.coalesce(columns["EndNs"], pc.multiply(pc.add(starts, lasts), 1000))


def _events(path: Path, advance: Advance, problems: list[str]) -> Iterator[_Event]:
    decoder = msgspec.json.Decoder(_Event)
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
                event = _decoded(decoder, piece)
                broken += event is None
                if event is not None:
                    yield event
            advance(len(chunk))
        last, closed, _ = held.partition(b"\n]")
        event = _decoded(decoder, last)
        if event is not None:
            yield event
        if not closed or event is None:
            problems.append("the trace is cut off: its last event and what would have come after it are missing")
        # the first piece is the file's opening, no event
        if broken > 1:
            problems.append(f"{broken - 1} events are no valid JSON and were left out")


def _decoded(decoder: "msgspec.json.Decoder[_Event]", piece: bytes) -> _Event | None:
    try:
        return decoder.decode(b"{" + piece)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None


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
    yield from trace.events
    advance(size)


def _number(value: object) -> int | None:
    if isinstance(value, str):
        value = value.strip()
        return int(value) if value.lstrip("-").isdecimal() else None
    return int(value) if isinstance(value, int | float) else None
