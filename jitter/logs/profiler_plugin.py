"""NCCL's example profiler plug-in (2.23 on): a Chrome trace of begin and end events, one a line.

NVIDIA/nccl ext-profiler/example/print_event.cc: category COLL with SeqNum, CommHash, Rank, Count, Datatype, Algorithm,
Protocol; category P2P without a sequence. Between the begin and the end of an operation stand its
sends and receives of a channel (PROXY) and its kernels of a channel (GPU). Times are µs since the plug-in's start,
taken on the host.
"""

from typing import Any, Final

from jitter.core.bandwidth import element_bytes, size_of_message
from jitter.core.names.kernels import parse_operation
from jitter.logs.line_parser import Context, LineParser
from jitter.logs.values import as_integer, as_text, decode_json

_IDLE: Final = ("Idle", "Sleep", "Append")
"""Events of the proxy's thread that belong to no operation."""
_MOST_OPEN: Final = 100_000


class ProfilerPluginParser(LineParser):
    """Collectives and point-to-point operations: a begin event waits for its end."""

    format = "nccl-profiler"
    triggers = tuple(
        f'"cat":{space}"{name}"'.encode() for name in ("COLL", "P2P", "PROXY", "GPU") for space in (" ", "")
    )

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._begun: dict[tuple[object, ...], dict[str, Any]] = {}
        self._parts: dict[tuple[object, ...], list[tuple[str, float, float]]] = {}
        """Category, start and end of what belongs to each operation that has begun."""
        self._parts_begun: dict[tuple[object, ...], tuple[tuple[object, ...], float]] = {}

    def line(self, line: bytes, number: int) -> None:
        text = line.strip().lstrip(b"[").rstrip(b"],").strip()
        event = decode_json(text)
        if not isinstance(event, dict):
            raise ValueError("not an event")
        key = (event.get("cat"), str(event.get("id")), str(event.get("pid")), str(event.get("tid")))
        if event.get("cat") in ("PROXY", "GPU"):
            if event.get("name") not in _IDLE:
                self._read_part(event, key)
        elif event.get("ph") == "b" and isinstance(event.get("args"), dict):
            if key in self._begun or len(self._begun) >= _MOST_OPEN:
                first = key if key in self._begun else next(iter(self._begun))
                self._add(self._begun.pop(first), None, self._parts.pop(first, []))
            self._begun[key] = event
        elif event.get("ph") == "e" and key in self._begun:
            self._add(self._begun.pop(key), event, self._parts.pop(key, []))

    def _read_part(self, event: dict[str, Any], key: tuple[object, ...]) -> None:
        """Read a part of the operation of its process that began last."""
        at = event.get("ts")
        if not isinstance(at, int | float):
            return
        key = (*key, event.get("name"))
        if event.get("ph") == "b" and len(self._parts_begun) < _MOST_OPEN:
            operation = next((candidate for candidate in reversed(self._begun) if candidate[2] == key[2]), None)
            if operation is not None:
                self._parts_begun[key] = operation, at
        elif event.get("ph") == "e" and key in self._parts_begun:
            operation, start = self._parts_begun.pop(key)
            if at >= start and operation in self._begun:
                self._parts.setdefault(operation, []).append((str(event["cat"]), start, at))

    def finish(self) -> None:
        for event in self._begun.values():
            try:
                self._add(event, None, [])
            except (ValueError, OverflowError):
                self.context.problems.note(self.format, "an operation without an end cannot be read")

    def _add(self, begin: dict[str, Any], end: dict[str, Any] | None, parts: list[tuple[str, float, float]]) -> None:
        arguments = begin["args"]
        collective = parse_operation(str(begin.get("name", "")))
        width = element_bytes(str(arguments.get("Datatype", "")))
        count = arguments.get("Count")
        size = count * width if isinstance(count, int) and width else None
        start = begin.get("ts")
        stop = end.get("ts") if end else None
        duration = None
        if isinstance(start, int | float) and isinstance(stop, int | float) and stop >= start:
            duration = round((stop - start) * 1e3)
        self.add(
            "recorded",
            rank=as_integer(arguments.get("Rank")),
            group_name=str(arguments["CommHash"]) if "CommHash" in arguments else None,
            sequence=as_integer(arguments.get("SeqNum")),
            collective=collective,
            size_bytes=size_of_message(collective, size, None) if size is not None else None,
            start_ns=round(start * 1e3) if isinstance(start, int | float) else None,
            duration_ns=duration,
            kernel_ns=max((round((last - first) * 1e3) for cat, first, last in parts if cat == "GPU"), default=None),
            proxy_ns=_covered_ns([(first, last) for cat, first, last in parts if cat == "PROXY"]),
            timing="host" if duration is not None else None,
            algorithm=as_text(arguments.get("Algorithm")),
            protocol=as_text(arguments.get("Protocol")),
            state="completed" if end else "started",
        )


def _covered_ns(spans: list[tuple[float, float]]) -> int | None:
    """Return the time that spans in µs cover; None without any."""
    covered, until = 0.0, float("-inf")
    for first, last in sorted(spans):
        covered += max(last - max(first, until), 0.0)
        until = max(until, last)
    return round(covered * 1e3) if spans else None
