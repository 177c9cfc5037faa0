"""A step's ranks on one aligned timeline, as Chrome's trace JSON, which ui.perfetto.dev opens.

Each rank is a process; its step, launching threads, streams and waits in collectives are tracks; an arrow leads from
each launch to its kernels; the deviations of gap and time to kernel end are counters. Viewers give slices of equal
names equal colours. Format: "Trace Event Format" of Chromium's trace viewer, times in microseconds.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jitter.analysis.diagnosis.model import StepAnswer
from jitter.analysis.metrics.collective_calls import COLUMNS, UNKNOWN, match_calls
from jitter.analysis.metrics.step_metrics import StepMetrics
from jitter.api import Lake
from jitter.core.compression import sniff_head
from jitter.core.errors import UsageError
from jitter.core.files import atomic_file
from jitter.core.formatting import format_numbers
from jitter.core.names.kernels import short_name
from jitter.core.schema import HOST
from jitter.core.step_key import StepKey
from jitter.lake.host_events import read_host_events
from jitter.lake.records import records_by_step
from jitter.lake.step_reader import read_step


def assign_tracks(spans: Iterable[tuple[int, int]]) -> list[int]:
    """Assign each span (start, end) to the first track that is free at its start.

    `spans` come in any order; the result has the track of each span, from 0.
    """
    given = list(spans)
    free_from: list[int] = []
    tracks = [0] * len(given)
    for number in sorted(range(len(given)), key=lambda n: given[n]):
        start, end = given[number]
        track = next((track for track, free in enumerate(free_from) if free <= start), len(free_from))
        if track == len(free_from):
            free_from.append(end)
        free_from[track] = max(free_from[track], end)
        tracks[number] = track
    return tracks


class Wait(NamedTuple):
    """A rank's wait in a collective for its last rank. Times in ns on the rank's clock."""

    start_ns: int
    end_ns: int
    last_rank: int


class AlignedStep:
    """One step of some ranks, aligned."""

    def __init__(self, lake: Lake, key: StepKey, ranks: Sequence[int]) -> None:
        """Raise `UsageError` if a rank lacks the step or the clocks of the ranks cannot be aligned."""
        self._lake = lake
        self.key = key
        self.held = records_by_step(lake.sources)[key]
        """The record of each rank that has the step."""
        self.ranks = sorted(set(ranks))
        missing = [rank for rank in self.ranks if rank not in self.held]
        if missing:
            raise UsageError(f"{lake.root}: {key} has no rank {missing[0]}", f"it has {format_numbers(self.held)}")
        measured = lake.metrics(key)
        self._rows = measured.rows
        self.zeros, self.method = self._shared(measured)
        """The common reference on each rank's clock, and the alignment method."""

    def activities(self, rank: int) -> list[dict[str, Any]]:
        """Return the rows of a rank's step, in launch order."""
        rows: list[dict[str, Any]] = read_step(self._lake.root, self.key, self.held, ranks=[rank]).table.to_pylist()
        return rows

    def metrics(self, rank: int) -> list[dict[str, Any]]:
        """Return the rows of `StepMetrics.rows` of a rank, by position; copies and fills have none."""
        rows: list[dict[str, Any]] = (
            self._rows.filter(pc.equal(self._rows["rank"], rank)).sort_by("position").to_pylist()
        )
        return rows

    def calls(self, rank: int) -> pa.Table:
        """Return synchronizing calls, data loading and long operations of a rank: rows of `schema.HOST`."""
        rows = read_host_events(self._lake.root, self.held[rank].record, HOST.names)
        if rows is None:
            return HOST.empty_table()
        epoch = pc.is_null(rows["epoch"]) if self.key.epoch is None else pc.equal(rows["epoch"], self.key.epoch)
        return rows.filter(pc.and_(pc.equal(rows["step"], self.key.step), epoch))

    @cached_property
    def waits(self) -> dict[int, list[Wait]]:
        """The waits of each rank in collectives of which all ranks were recorded."""
        read = read_step(self._lake.root, self.key, self.held, COLUMNS)
        calls = match_calls(self._lake.inferred_groups().filled(self.key, read))
        waits_of_rank: dict[int, list[Wait]] = {}
        columns = (calls.kernels.call, calls.kernels.rank, calls.kernels.start_ns, calls.kernels.end_ns)
        for call, place, start_ns, end_ns in zip(*(column.tolist() for column in columns), strict=True):
            rank, last_rank, time_ns = read.ranks[place], int(calls.last_rank[call]), int(calls.time_ns[call])
            if UNKNOWN not in (last_rank, time_ns) and rank != last_rank and end_ns - time_ns > start_ns:
                waits_of_rank.setdefault(rank, []).append(Wait(start_ns, end_ns - time_ns, last_rank))
        return waits_of_rank

    def earliest_ns(self) -> int:
        """Return the start of the first event of all ranks, in ns relative to the reference."""
        candidates_ns: list[int] = []
        for rank in self.ranks:
            read = read_step(self._lake.root, self.key, self.held, ["start_ns", "launch_start_ns"], [rank]).table
            starts = [read["start_ns"], read["launch_start_ns"], self.calls(rank)["start_ns"]]
            candidates_ns.append(self.held[rank].step.start_ns - self.zeros[rank])
            candidates_ns += [
                first - self.zeros[rank] for column in starts if (first := pc.min(column).as_py()) is not None
            ]
        return min(candidates_ns)

    def _shared(self, measured: StepMetrics) -> tuple[dict[int, int], str]:
        cohorts = {self._lake.cohorts[rank] for rank in self.ranks}
        if len(cohorts) > 1:
            raise UsageError(
                f"{self._lake.root}: ranks {format_numbers(self.ranks)} are of several cohorts: no common clock",
                "choose ranks of one cohort with --ranks",
            )
        moment = measured.alignments[cohorts.pop()]
        moments = moment.moments_ns
        if len(self.ranks) == 1:
            return {rank: moments.get(rank, self.held[rank].step.start_ns) for rank in self.ranks}, "its own clock"
        unaligned = [rank for rank in self.ranks if rank not in moments]
        if unaligned:
            raise UsageError(
                f"{self._lake.root}: {self.key}: the clock of rank {unaligned[0]} cannot be aligned "
                "(no collective that all ranks leave together, or its recording ends before it)",
                "choose one rank with --ranks",
            )
        return (
            moments,
            "the last collective that all ranks leave together" if moment.method == "collective" else moment.method,
        )


def choose_ranks(lake: Lake, step: StepAnswer) -> list[int]:
    """Return min rank and max rank of a step and their neighbours; the first four ranks if neither is known.

    Only ranks of the max rank's cohort: the clocks of different cohorts cannot be aligned.
    """
    ends = [rank for rank in (step.max_rank, step.min_rank) if rank is not None]
    left_out = {rank for index in lake.kernel_indices(step.key) for rank in index.left_out}
    ends = [rank for rank in ends if rank not in left_out]
    whole = [rank for rank in lake.ranks_of(step.key) if rank not in left_out]
    if not whole:
        return lake.ranks_of(step.key)[:1]
    cohort = lake.cohorts[(ends or whole)[0]]
    present = [rank for rank in whole if lake.cohorts[rank] == cohort]
    places = {
        place for rank in ends if rank in present for place in range(present.index(rank) - 1, present.index(rank) + 2)
    }
    return [present[place] for place in sorted(places) if 0 <= place < len(present)] or present[:4]


Event = dict[str, Any]
_HEAD = b'{"otherData":{"made_by":"jitter"'
"""The first bytes of a timeline that jitter wrote."""
_TRACKS = 10_000  # tracks per rank: a thread's number must be unique in the file
_METRICS = ("duration", "gap", "ttke", "launch_latency")
_DETAILS = (
    *("operator", "scope", "phase", "source_line", "correlation_id"),
    *("collective", "message_bytes", "group_name", "group_size"),
)
"""Columns of a kernel that a click shows as they are."""
_SHAPES = {"grid": ("grid_x", "grid_y", "grid_z"), "block": ("block_x", "block_y", "block_z")}


def write_perfetto(path: Path, step: AlignedStep) -> None:
    """Write the timeline with one rank in memory at a time; compressed if the name ends in `.gz`.

    Raises `JitterError` if the file cannot be written.
    """
    with atomic_file(path) as half, _opened(half, path) as file:
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
        yield from _Process(step, rank, name, number, origin_ns, arrows).events()


def is_perfetto_export(path: Path) -> bool:
    """Return whether a file is a timeline that jitter wrote."""
    return sniff_head(path, len(_HEAD)) == _HEAD


def _json(value: Event) -> bytes:
    # no escapes: Perfetto shows an escaped character in its escaped form
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


@contextmanager
def _opened(path: Path, name: Path) -> "Iterator[IO[bytes] | gzip.GzipFile]":
    """Open a file to write, compressed if `name` ends in `.gz`; the same events give the same bytes."""
    # the header holds neither the name, which is that of a temporary file, nor the time
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) if name.suffix == ".gz" else nullcontext(file) as opened,
    ):
        yield opened


class _Process:
    """The events of one rank: the process of this number and name in the file."""

    def __init__(
        self, step: AlignedStep, rank: int, name: str, number: int, origin_ns: int, arrows: "count[int]"
    ) -> None:
        held = step.held[rank]
        self._title, self._step, self._record = str(step.key), held.step, held.record
        self._rows, self._metrics, self._calls = step.activities(rank), step.metrics(rank), step.calls(rank).to_pylist()
        self._of_waits = step.waits.get(rank, [])
        self._name = name
        self._pid = (number + 1) * _TRACKS  # not 0, which is the idle process
        self._number = number
        self._zero_ns = step.zeros[rank] + origin_ns
        self._arrows = arrows
        self._tracks: dict[str, int] = {}
        self._found: list[tuple[int, Event]] = []

    def events(self) -> Iterator[Event]:
        """Yield the names of process and tracks, then the events."""
        self._slice(self._title, "step", self._track("step", 0), self._step.start_ns, self._step.end_ns, {})
        launched = self._launches()
        self._activities(launched)
        self._waits()
        self._counters()
        host = "" if self._record.host is None else f" · {self._record.host}"
        device = "" if self._record.device is None else f" · GPU {self._record.device}"
        yield self._named("process_name", self._pid, {"name": f"{self._name}{host}{device}"})
        yield self._named("process_sort_index", self._pid, {"sort_index": self._number})
        for place, (name, tid) in enumerate(self._tracks.items()):
            yield self._named("thread_name", tid, {"name": name})
            yield self._named("thread_sort_index", tid, {"sort_index": place})
        for _, event in sorted(self._found, key=lambda pair: pair[0]):  # stable sort: a slice comes before its arrows
            yield event

    def _waits(self) -> None:
        lanes = assign_tracks((wait.start_ns, wait.end_ns) for wait in self._of_waits)
        for wait, lane in zip(self._of_waits, lanes, strict=True):
            track = self._track("waiting", lane)
            self._slice(f"waiting for rank {wait.last_rank}", "waiting", track, wait.start_ns, wait.end_ns, {})

    def _launches(self) -> dict[tuple[Any, ...], int]:
        """Add the host calls to the tracks of their threads; return the track of each launch."""
        calls: dict[int | None, dict[tuple[Any, ...], tuple[str, str, int | None]]] = {}
        for row in self._rows:
            if row["launch_start_ns"] is not None:
                calls_of_thread = calls.setdefault(row["launch_thread"], {})
                calls_of_thread[_launch(row)] = (row["launch_name"] or "launch", "launch", row["launch_end_ns"])
        for row in self._calls:
            calls_of_thread = calls.setdefault(row["thread"], {})
            calls_of_thread[row["thread"], row["start_ns"], row["name"]] = (row["name"], row["kind"], row["end_ns"])
        tracks: dict[tuple[Any, ...], int] = {}
        for thread, calls_of_thread in sorted(calls.items(), key=lambda item: (item[0] is None, item[0])):
            label = "thread unknown" if thread is None else f"thread {thread}"
            spans = [(call[1], end if end is not None else call[1]) for call, (_, _, end) in calls_of_thread.items()]
            for (call, (name, kind, end)), lane in zip(calls_of_thread.items(), assign_tracks(spans), strict=True):
                tracks[call] = self._track(label, lane)
                self._slice(name, kind, tracks[call], call[1], end, {})
        return tracks

    def _activities(self, launched: dict[tuple[Any, ...], int]) -> None:
        """Add the GPU activities to the tracks of their streams, each with an arrow from its launch."""
        measured = iter(self._metrics)
        of = {row["ordinal"]: next(measured, None) for row in self._rows if row["kind"] != "memory"}
        streams: dict[int | None, list[dict[str, Any]]] = {}
        for row in self._rows:
            streams.setdefault(row["stream"], []).append(row)
        main = self._record.main_stream
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
        for row in self._metrics:
            for metric, at in (("gap", "start_ns"), ("ttke", "end_ns")):
                deviation = row[f"{metric}_deviation_ns"]
                if row["on_main"] and deviation is not None:
                    value = {"µs": round(deviation / 1000, 3)}
                    self._add(row[at], {"name": f"{metric} deviation", "ph": "C", "pid": self._pid, "args": value})

    def _track(self, label: str, lane: int) -> int:
        name = label if lane == 0 else f"{label} [{lane + 1}]"
        return self._tracks.setdefault(name, self._pid + 1 + len(self._tracks))

    def _slice(self, name: str, kind: str, track: int, start_ns: int, end_ns: int | None, args: Event) -> None:
        if end_ns is None:
            end_ns, args = start_ns, {"end": "not recorded"}
        event = {"name": name, "cat": kind, "ph": "X", "pid": self._pid, "tid": track}
        event["dur"] = (end_ns - start_ns) / 1000
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
    details |= {name: row[name] for name in _DETAILS}
    return {name: value for name, value in details.items() if value is not None}
