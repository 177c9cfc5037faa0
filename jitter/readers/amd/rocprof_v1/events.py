"""Events of rocprof's Chrome trace, read one by one; rocprof writes each on separate lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from jitter.core.errors import UnreadableTraceError
from jitter.readers import Advance
from jitter.readers.integers import Integer64, parse_integer

FLOW_EVENT: Final = b'"DataFlow"'
"""Text that occurs only in the ends of flow events."""
_HEAD: Final = 4096
_CHUNK: Final = 1 << 21
_MOST_UNCUT: Final = 1 << 27
_MOST_EVENT: Final = 1 << 24
_BETWEEN: Final = b"\n,{"


class Args(msgspec.Struct, rename={"begin_ns": "BeginNs", "end_ns": "EndNs", "name": "Name", "stream": "stream-id",
                                    "device": "dev-id", "queue": "queue-id"}):  # fmt: skip
    """Arguments of an event that are read."""

    begin_ns: Integer64 | None = None
    end_ns: Integer64 | None = None
    pid: Integer64 | None = None
    tid: Integer64 | None = None
    device: Integer64 | None = None
    queue: Integer64 | None = None
    stream: Integer64 | None = None
    name: str | None = None


class Event(msgspec.Struct):
    """An event; its numbers may be strings."""

    ph: str | None = None
    name: str | None = None
    pid: Integer64 | None = None
    tid: Integer64 | None = None
    ts: Integer64 | None = None
    dur: Integer64 | None = None
    id: Integer64 | None = None
    args: Args | None = None


class _Loose(msgspec.Struct):
    """An event with invalid numbers."""

    ph: str | None = None
    name: str | None = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    id: Any = None
    args: dict[str, Any] | None = None


class _Trace(msgspec.Struct):
    """A whole file that lacks rocprof's line layout."""

    events: list[msgspec.Raw] = msgspec.field(name="traceEvents")


_DECODER: Final = msgspec.json.Decoder(Event, strict=False)
_LOOSE: Final = msgspec.json.Decoder(_Loose)


def is_rocprof_v1_json(path: Path) -> bool:
    """Return whether it starts like rocprof's traces: an empty event, then processes named after HIP and HSA."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    squeezed = head.replace(b" ", b"").replace(b"\n", b"")
    return squeezed.startswith(b'{"traceEvents":[{}') and (b'"CPUH' in squeezed or b'"MarkersandRanges' in squeezed)


def read_events(path: Path, advance: Advance, problems: list[str], only: bytes = b"") -> Iterator[Event]:
    """Yield all events, or only events that contain the bytes `only`; invalid events are counted in `problems`."""
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
            if len(held) > _MOST_EVENT:
                problems.append(f"no event ends in {_MOST_EVENT >> 20} MB: the trace was read to byte {file.tell():,}")
                held = b""
                break
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
            problems.append("the trace is cut: its last event and all later ones are missing")
        # the first part is the start of the file, not an event
        broken -= not only
        if broken > 0:
            problems.append(f"{broken} events are invalid JSON and were left out")


def _decoded(event: bytes | msgspec.Raw) -> Event | None:
    try:
        return _DECODER.decode(event)
    except msgspec.ValidationError:
        return _forgiven(event)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _forgiven(event: bytes | msgspec.Raw) -> Event | None:
    """Decode an event with invalid numbers, which become unknown; None if it is no event."""
    try:
        loose = _LOOSE.decode(event)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None
    plain = {name: parse_integer(getattr(loose, name)) for name in ("pid", "tid", "ts", "dur", "id")}
    args = {name: value if name == "Name" else parse_integer(value) for name, value in (loose.args or {}).items()}
    if not isinstance(args.get("Name"), str):
        args["Name"] = None
    return msgspec.convert({**plain, "ph": loose.ph, "name": loose.name, "args": args}, Event)


def _uncut(path: Path, advance: Advance) -> Iterator[Event]:
    size = path.stat().st_size
    if size > _MOST_UNCUT:
        raise UnreadableTraceError(
            f"{path}: not in the line layout of rocprof, and too large to be read at once", "give the .db of this run"
        )
    try:
        trace = msgspec.json.decode(path.read_bytes(), type=_Trace)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableTraceError(f"{path}: no valid JSON ({error})", "copy it again, or record again") from error
    yield from filter(None, map(_decoded, trace.events))
    advance(size)
