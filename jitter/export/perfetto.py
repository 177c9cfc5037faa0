"""A step's ranks on one aligned timeline, as Chrome's trace JSON, which ui.perfetto.dev opens.

Each rank is a process; its step, launching threads, streams and waits in collectives are tracks; an arrow leads from
each launch to its kernels; the deviations of gap and time to kernel end are counters. Viewers give slices of equal
names equal colours. Format: "Trace Event Format" of Chromium's trace viewer, times in microseconds.
"""

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import IO, Any, Literal

from jitter.core.files import atomic_file
from jitter.core.names.kernels import short_name
from jitter.export.aligned_step import AlignedStep, RankStep, assign_tracks

Event = dict[str, Any]
_HEAD = b'{"otherData":{"made_by":"jitter"'
"""The first bytes of a timeline that jitter wrote."""
_TRACKS = 10_000  # tracks per rank: a thread's number must be unique in the file
_METRICS = ("duration", "gap", "ttke", "launch_latency")
_SHAPES = {"grid": ("grid_x", "grid_y", "grid_z"), "block": ("block_x", "block_y", "block_z")}


def write_perfetto(path: Path, step: AlignedStep) -> None:
    """Write the timeline with one rank in memory at a time; compressed if the name ends in `.gz`.

    Raises `JitterError` if the file cannot be written.
    """
    with atomic_file(path) as half, _opened(half, "wb", path) as file:
        about = _json({"made_by": "jitter", "step": str(step.key), "aligned by": step.method})
        file.write(b'{"otherData":' + about + b',"displayTimeUnit":"ns","traceEvents":[\n')
        before = b""
        for event in trace_events(step):
            file.write(before + _json(event))
            before = b",\n"
        file.write(b"\n]}\n")


def trace_events(step: AlignedStep) -> Iterator[Event]:
    """Yield all events, rank by rank, each rank's in order of time. The first begins at 0."""
    origin_ns = step.earliest_ns()
    arrows = count(1)
    for number, rank in enumerate(step.ranks):
        name = f"rank {rank:0{len(str(step.ranks[-1]))}}"  # zero-padded: Perfetto sorts by name
        yield from _Process(step.of(rank), name, number, origin_ns, arrows, str(step.key)).events()


def is_perfetto_export(path: Path) -> bool:
    """Return whether a file is a timeline that jitter wrote."""
    if not path.is_file():  # reading a pipe would block
        return False
    try:
        with _opened(path, "rb", path) as file:
            return file.read(len(_HEAD)) == _HEAD
    except (OSError, EOFError):
        return False


def _json(value: Event) -> bytes:
    # no escapes: Perfetto shows an escaped character in its escaped form
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


@contextmanager
def _opened(path: Path, mode: Literal["rb", "wb"], name: Path) -> "Iterator[IO[bytes] | gzip.GzipFile]":
    """Open a file, compressed if `name` ends in `.gz`; the same events give the same bytes."""
    # the header holds neither the name, which is that of a temporary file, nor the time
    with (
        path.open(mode) as file,
        gzip.GzipFile("", mode, 6, file, mtime=0) if name.suffix == ".gz" else nullcontext(file) as opened,
    ):
        yield opened


class _Process:
    def __init__(
        self, rank: RankStep, name: str, number: int, origin_ns: int, arrows: "count[int]", title: str
    ) -> None:
        self._rank = rank
        self._title = title
        self._name = name
        self._pid = (number + 1) * _TRACKS  # not 0, which is the idle process
        self._number = number
        self._zero_ns = rank.zero_ns + origin_ns
        self._arrows = arrows
        self._tracks: dict[str, int] = {}
        self._found: list[tuple[int, Event]] = []

    def events(self) -> Iterator[Event]:
        """Yield the names of process and tracks, then the events."""
        start_ns, end_ns = self._rank.step_start_ns, self._rank.step_end_ns
        args = {} if end_ns is not None else {"end": "not recorded"}
        self._slice(self._title, "step", self._track("step", 0), start_ns, start_ns if end_ns is None else end_ns, args)
        launched = self._launches()
        self._activities(launched)
        self._waits()
        self._counters()
        host = "" if self._rank.host is None else f" · {self._rank.host}"
        device = "" if self._rank.device is None else f" · GPU {self._rank.device}"
        yield self._named("process_name", self._pid, {"name": f"{self._name}{host}{device}"})
        yield self._named("process_sort_index", self._pid, {"sort_index": self._number})
        for place, (name, tid) in enumerate(self._tracks.items()):
            yield self._named("thread_name", tid, {"name": name})
            yield self._named("thread_sort_index", tid, {"sort_index": place})
        for _, event in sorted(self._found, key=lambda pair: pair[0]):  # stable sort: a slice comes before its arrows
            yield event

    def _waits(self) -> None:
        waits = self._rank.waits
        for wait, lane in zip(waits, assign_tracks((wait.start_ns, wait.end_ns) for wait in waits), strict=True):
            track = self._track("waiting", lane)
            self._slice(f"waiting for rank {wait.last_rank}", "waiting", track, wait.start_ns, wait.end_ns, {})

    def _launches(self) -> dict[tuple[Any, ...], int]:
        """Add the host calls to the tracks of their threads; return the track of each launch."""
        calls: dict[int | None, dict[tuple[Any, ...], tuple[str, str, int | None]]] = {}
        for row in self._rank.activities:
            if row["launch_start_ns"] is not None:
                calls_of_thread = calls.setdefault(row["launch_thread"], {})
                calls_of_thread[_launch(row)] = (row["launch_name"] or "launch", "launch", row["launch_end_ns"])
        for row in self._rank.calls:
            calls_of_thread = calls.setdefault(row["thread"], {})
            calls_of_thread[row["thread"], row["start_ns"], row["name"]] = (row["name"], row["kind"], row["end_ns"])
        tracks: dict[tuple[Any, ...], int] = {}
        for thread, calls_of_thread in sorted(calls.items(), key=lambda item: (item[0] is None, item[0])):
            label = "thread unknown" if thread is None else f"thread {thread}"
            spans = [(call[1], end if end is not None else call[1]) for call, (_, _, end) in calls_of_thread.items()]
            for (call, (name, kind, end)), lane in zip(calls_of_thread.items(), assign_tracks(spans), strict=True):
                tracks[call] = self._track(label, lane)
                args = {} if end is not None else {"end": "not recorded"}
                self._slice(name, kind, tracks[call], call[1], end if end is not None else call[1], args)
        return tracks

    def _activities(self, launched: dict[tuple[Any, ...], int]) -> None:
        """Add the GPU activities to the tracks of their streams, each with an arrow from its launch."""
        measured = iter(self._rank.metrics)
        of = {row["ordinal"]: next(measured, None) for row in self._rank.activities if row["kind"] != "memory"}
        streams: dict[int | None, list[dict[str, Any]]] = {}
        for row in self._rank.activities:
            streams.setdefault(row["stream"], []).append(row)
        main = self._rank.main_stream
        for stream, rows in sorted(streams.items(), key=lambda item: (item[0] != main, item[0] is None, item[0])):
            label = "stream unknown" if stream is None else f"stream {stream}{' (main)' if stream == main else ''}"
            for row, lane in zip(rows, assign_tracks((row["start_ns"], row["end_ns"]) for row in rows), strict=True):
                track = self._track(label, lane)
                args = _details(row, of.get(row["ordinal"]))
                self._slice(short_name(row["kernel_name"]), row["kind"], track, row["start_ns"], row["end_ns"], args)
                self._arrow(row, track, launched)

    def _arrow(self, row: dict[str, Any], track: int, launched: dict[tuple[Any, ...], int]) -> None:
        if row["launch_start_ns"] is None or row["launch_start_ns"] > row["start_ns"]:
            return  # an arrow cannot go back in time
        arrow = next(self._arrows)
        common = {"name": "launch", "cat": "launch", "id": arrow, "pid": self._pid}
        self._add(row["launch_start_ns"], common | {"ph": "s", "tid": launched[_launch(row)]})
        self._add(row["start_ns"], common | {"ph": "f", "bp": "e", "tid": track})

    def _counters(self) -> None:
        """Add counters of the main stream's deviations: of the gap at its end, of ttke at the kernel's end."""
        for row in self._rank.metrics:
            for metric, at in (("gap", "start_ns"), ("ttke", "end_ns")):
                deviation = row[f"{metric}_deviation_ns"]
                if row["on_main"] and deviation is not None:
                    value = {"µs": round(deviation / 1000, 3)}
                    self._add(row[at], {"name": f"{metric} deviation", "ph": "C", "pid": self._pid, "args": value})

    def _track(self, label: str, lane: int) -> int:
        name = label if lane == 0 else f"{label} [{lane + 1}]"
        return self._tracks.setdefault(name, self._pid + 1 + len(self._tracks))

    def _slice(self, name: str, kind: str, track: int, start_ns: int, end_ns: int, args: Event) -> None:
        event = {
            "name": name,
            "cat": kind,
            "ph": "X",
            "pid": self._pid,
            "tid": track,
            "dur": (end_ns - start_ns) / 1000,
        }
        self._add(start_ns, event | ({"args": args} if args else {}))

    def _add(self, at_ns: int, event: Event) -> None:
        ns = at_ns - self._zero_ns
        self._found.append((ns, event | {"ts": ns / 1000}))

    def _named(self, what: str, track: int, args: Event) -> Event:
        return {"name": what, "ph": "M", "pid": self._pid, "tid": track, "ts": 0, "args": args}


def _launch(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the key of a launching call; the kernels of one graph launch share it."""
    return row["launch_thread"], row["launch_start_ns"], None


def _details(row: dict[str, Any], metrics: dict[str, Any] | None) -> Event:
    """Return the details of a kernel, shown on a click; times in ns."""
    details: Event = {"kernel_name": row["kernel_name"]}
    if metrics is not None:
        details["kernel_index"] = "unmatched" if metrics["kernel_index"] is None else metrics["kernel_index"]
        details |= {f"{name}_ns": metrics[f"{name}_ns"] for name in _METRICS}
    for name, sides in _SHAPES.items():
        if all(row[side] is not None for side in sides):
            details[name] = " × ".join(str(row[side]) for side in sides)
    for name in (
        "operator",
        "scope",
        "phase",
        "source_line",
        "correlation_id",
        "collective",
        "message_bytes",
        "group_name",
        "group_size",
    ):
        details[name] = row[name]
    return {name: value for name, value in details.items() if value is not None}
