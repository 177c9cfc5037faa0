"""NCCL's example profiler plug-in (2.23 on): a Chrome trace of begin and end events, one a line.

NVIDIA/nccl ext-profiler/example/print_event.cc: category COLL with SeqNum, CommHash, Rank, Count, Datatype, Algorithm,
Protocol; category P2P without a sequence. Times are µs since the plug-in's start, taken on the host.
"""

from typing import Any, Final

import msgspec

from jitter.core.bandwidth import element_bytes, size_of_message
from jitter.core.names.kernels import parse_operation
from jitter.logs.line_parser import Context, LineParser
from jitter.logs.values import as_integer, as_text

_MOST_OPEN: Final = 100_000


class ProfilerPluginParser(LineParser):
    """Collectives and point-to-point operations: a begin event waits for its end."""

    format = "nccl-profiler"
    triggers = (b'"cat": "COLL"', b'"cat": "P2P"', b'"cat":"COLL"', b'"cat":"P2P"')

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._begun: dict[tuple[object, ...], dict[str, Any]] = {}

    def line(self, line: bytes, number: int) -> None:
        """Read an event."""
        text = line.strip().lstrip(b"[").rstrip(b"],").strip()
        try:
            event = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError("not an event") from error
        if not isinstance(event, dict):
            raise ValueError("not an event")
        key = (event.get("cat"), str(event.get("id")), str(event.get("pid")), str(event.get("tid")))
        if event.get("ph") == "b" and isinstance(event.get("args"), dict):
            if key in self._begun or len(self._begun) >= _MOST_OPEN:
                self._add(self._begun.pop(key if key in self._begun else next(iter(self._begun))), None)
            self._begun[key] = event
        elif event.get("ph") == "e" and key in self._begun:
            self._add(self._begun.pop(key), event)

    def finish(self) -> None:
        """Add the operations that have no end."""
        for event in self._begun.values():
            try:
                self._add(event, None)
            except (ValueError, OverflowError):
                self.context.problems.note(self.format, "an operation without an end cannot be read")

    def _add(self, begin: dict[str, Any], end: dict[str, Any] | None) -> None:
        found = begin["args"]
        collective = parse_operation(str(begin.get("name", "")))
        width = element_bytes(str(found.get("Datatype", "")))
        count = found.get("Count")
        size = count * width if isinstance(count, int) and width else None
        start = begin.get("ts")
        stop = end.get("ts") if end else None
        duration = None
        if isinstance(start, int | float) and isinstance(stop, int | float) and stop >= start:
            duration = round((stop - start) * 1e3)
        self.add(
            "recorded",
            rank=as_integer(found.get("Rank")),
            group_name=str(found["CommHash"]) if "CommHash" in found else None,
            sequence=as_integer(found.get("SeqNum")),
            collective=collective,
            size_bytes=size_of_message(collective, size, None) if size is not None else None,
            start_ns=round(start * 1e3) if isinstance(start, int | float) else None,
            duration_ns=duration,
            timing="host" if duration is not None else None,
            algorithm=as_text(found.get("Algorithm")),
            protocol=as_text(found.get("Protocol")),
            state="completed" if end else "started",
        )
