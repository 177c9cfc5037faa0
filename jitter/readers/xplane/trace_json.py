"""Traces of XLA's profiler as JSON (`HOST.trace.json.gz`), which TensorBoard's viewer shows.

XLA makes them of the planes (tsl/profiler/convert): a process a plane, a thread a line, statistics as texts in `args`,
times in µs with digits down to ps. They hold the first million events, and neither the wall clock nor the process.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from jitter.core.compression import sniff_head
from jitter.core.formatting import format_count
from jitter.readers import Batch, Recording
from jitter.readers.chrome_trace import EventList, event_decoder, has_phase
from jitter.readers.columns import LARGEST_NS, Progress, parse_integer
from jitter.readers.xplane.rows import GPU, HOST, STREAM, WANTED, XlaRows

_HEAD: Final = re.compile(
    rb'\s*\{.{0,400}?"traceEvents".{0,60000}?"process_name".{0,100}?"/(?:device:[A-Z]{1,16}:\d|host:CPU)', re.DOTALL
)
_HEAD_BYTES: Final = 1 << 16
_MOST_EVENTS: Final = 1_000_000
"""Events that XLA writes, the first by their start; it leaves the rest out and says nothing."""
_PS_PER_US: Final = 1_000_000


class _Event(msgspec.Struct, gc=False):
    """An event; the list that XLA writes ends with one without members."""

    ph: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    name: Any = None
    args: Any = None


def is_trace_json(path: Path) -> bool:
    """Return whether a JSON file, maybe packed, is a trace of XLA's profiler."""
    return _HEAD.match(sniff_head(path, _HEAD_BYTES)) is not None


class TraceJson:
    """One trace that is being read."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._rows = XlaRows(recording)
        self._planes: dict[int, str] = {}
        """Names of planes by the number of the process."""
        self._lines: dict[tuple[int, int], str] = {}
        self._events = self._invalid = 0

    def batches(self, progress: Progress) -> Iterator[Batch]:
        """Yield all rows, then complete the recording."""
        path, problems = self._recording.path, self._recording.problems
        events, *_ = EventList.of_file(path, event_decoder(_Event), has_phase, progress, problems)
        for some in events:
            for event in some:
                self._add(event)
                if self._rows.is_full:
                    yield from self._rows.flush()
        yield from self._rows.finish(path, self._planes.values())
        self._recording.is_incomplete = self._events >= _MOST_EVENTS or events.tail is None or bool(events.damage)
        problems += [*events.problems(), *self._problems()]

    def _add(self, event: _Event) -> None:
        kind, name = event.ph, event.name
        process, thread = parse_integer(event.pid), parse_integer(event.tid)
        args = event.args if isinstance(event.args, dict) else {}
        if kind == "M" and process is not None and isinstance(args.get("name"), str):
            if name == "process_name":
                self._planes[process] = args["name"]
            elif name == "thread_name" and thread is not None:
                self._lines[process, thread] = args["name"]
        if kind != "X":
            return
        self._events += 1
        if process is None or thread is None or not isinstance(name, str):
            self._invalid += 1
            return
        plane, line = self._planes.get(process, ""), self._lines.get((process, thread), "")
        gpu = GPU.fullmatch(plane)
        if gpu is None and not HOST.fullmatch(plane):
            return
        if gpu is not None and line and not STREAM.match(line):
            return
        times = _times_ns(event.ts, event.dur)
        if times is None:
            self._invalid += 1
            return
        stats = {key: args[key] for key in WANTED if key in args}
        if gpu is None:
            self._rows.add_host(thread, name, *times, stats)
        else:
            self._rows.add_gpu(int(gpu[1]), thread, name, *times, stats)

    def _problems(self) -> Iterator[str]:
        yield (
            "read from the viewer's JSON, without the .xplane.pb that XLA writes beside it: the time of day and the "
            "process are unknown"
        )
        if self._events >= _MOST_EVENTS:
            yield (
                f"XLA writes the first {_MOST_EVENTS:,} events to this file, and it has as many: events after them are "
                "missing, the .xplane.pb has all"
            )
        if self._invalid:
            yield f"{format_count(self._invalid, 'event')} without a possible time, thread or name left out"


def _times_ns(ts: object, dur: object) -> tuple[int, int] | None:
    """Return start and end, ns, of an event's time and duration, µs; None for no possible ones."""
    if not isinstance(ts, int | float) or not isinstance(dur, int | float) or dur < 0:
        return None
    if not abs(ts) < LARGEST_NS // 1000 or not dur < LARGEST_NS // 1000:
        return None
    start_ps = round(ts * _PS_PER_US)
    return start_ps // 1000, (start_ps + round(dur * _PS_PER_US)) // 1000
