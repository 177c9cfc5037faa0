"""Reader of rocprof (version 1): `NAME.db`, `NAME.json`, `NAME.csv` of a run are one recording; .db has the most."""

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.compression import sniff_head
from jitter.core.errors import UnreadableTraceError
from jitter.core.numeric.arrays import Ints
from jitter.readers import Files
from jitter.readers.amd.rows import (
    BATCH_ROWS,
    NAMING_HINT,
    NO_CALLS,
    Agents,
    AmdReader,
    Kind,
    RowBuilder,
    columns_of,
)
from jitter.readers.chrome_trace import EventList, event_decoder, has_phase
from jitter.readers.columns import ColumnMap, Progress, look_up, parse_integer
from jitter.readers.csv_file import CsvFile, sniff_columns
from jitter.readers.sqlite import Database, sniff_tables

_TIMES: Final = {"process": "pid", "start_ns": "BeginNs", "end_ns": "EndNs"}
_ON_GPU: Final = ColumnMap(
    {**_TIMES, "device": "dev-id", "stream": ("stream-id", "queue-id"), "correlation": "Index"}, {"name": "Name"}
)
_TABLES: Final[Mapping[str, tuple[Kind, ColumnMap]]] = {
    "OPS": ("kernels", _ON_GPU),
    "COPY": ("copies", _ON_GPU),
    "HIP": ("calls", ColumnMap({**_TIMES, "thread": "tid", "correlation": "Index"}, {"name": "Name"})),
    "rocTX": ("ranges", ColumnMap({**_TIMES, "thread": "tid"}, {"text": "Name"})),
}
"""The tables of a database; the Chrome trace has the same columns as arguments of events."""
_CSV: Final = ColumnMap(
    {"process": "pid", "device": "gpu-id", "stream": "queue-id", "start_ns": "beginns", "end_ns": "endns"}
    | {"grid_x": "grd", "block_x": "wgr"},
    {"name": "kernelname"},
)
_CSV_COLUMNS: Final = frozenset({"index", "kernelname", "gpu-id", "queue-id"})
"""Columns that are always present, in lower case."""
_OPS: Final = frozenset({"BeginNs", "EndNs", "dev-id", "queue-id", "Name"})
_FORMS: Final = (".db", ".json", ".csv")
_SUMS: Final = (".stats.csv", ".hip_stats.csv", ".hsa_stats.csv", ".copy_stats.csv")
_MOST_SYSINFO: Final = 1 << 24
_HEAD: Final = 4096
_LANES: Final[Mapping[int | None, Kind]] = {0: "ranges", 1: "copies", 2: "calls"}
"""What events of a Chrome trace are, by the number that they have as process; GPUs have further numbers."""
_GPU_LANES: Final = range(6, 518)
"""Later numbers are barriers."""
_LAUNCHING: Final = re.compile(r"hip\w*(?:Launch|Mem)")
_EVENTS_A_BATCH: Final = 8192


Parts = Iterator[tuple[Kind, dict[str, pa.Array]]]


class RocprofV1Reader(AmdReader):
    """Reads the database, the Chrome trace or the CSV, in that order of preference."""

    name = "rocprof-v1"
    rank_hint = f"or name rocprof's output after it: `rocprof -o rank-$RANK.csv …`; with rocprofv3, {NAMING_HINT}"

    def sniff(self, path: Path) -> bool:
        form = path.suffix.lower()
        if form == ".json":
            # an empty event, then processes named after HIP and HSA
            head = sniff_head(path, _HEAD).replace(b" ", b"").replace(b"\n", b"")
            return head.startswith(b'{"traceEvents":[{}') and (b'"CPUH' in head or b'"MarkersandRanges' in head)
        if form == ".db":
            return sniff_tables(path).get("OPS", frozenset()) >= _OPS
        return sniff_columns(path) >= _CSV_COLUMNS

    def files(self, path: Path) -> Files:
        sysinfo = path.with_suffix(".sysinfo.txt")
        worse = _FORMS[_FORMS.index(path.suffix.lower()) + 1 :]
        siblings = [path.with_suffix(form) for form in (*worse, *_SUMS)]
        read = (path, sysinfo) if sysinfo.is_file() else (path,)
        return Files(read, tuple(file for file in siblings if file.is_file()))

    def parts(self, path: Path, rows: RowBuilder, progress: Progress) -> Parts:
        rows.option = "--hip-trace"
        agents = Agents()
        sysinfo = path.with_suffix(".sysinfo.txt")
        if sysinfo.is_file():
            progress(sysinfo.stat().st_size)
            with sysinfo.open("rb") as file:
                agents = Agents.of_rocminfo(file.read(_MOST_SYSINFO).decode("utf-8", "replace"))
        read = {".db": _read_database, ".json": _read_chrome_trace, ".csv": _read_csv}[path.suffix.lower()]
        for kind, columns in read(path, rows, progress):
            if kind in ("kernels", "copies"):
                columns["device"] = agents.ordinals(columns["device"])
            yield kind, columns


READER: Final = RocprofV1Reader()


def _read_database(path: Path, rows: RowBuilder, progress: Progress) -> Parts:
    """Yield all rows of a database. Raises UnreadableTraceError for a damaged one."""
    database = Database(path)
    present = [table for table in _TABLES if database.has(table, "BeginNs", "EndNs", "Name")]
    if "HIP" not in present or not database.count("HIP"):
        rows.problems.append(NO_CALLS)
    if "OPS" not in present:
        raise UnreadableTraceError(f"{path}: no table OPS of kernels", "record again with --hip-trace")
    database.report(progress, sum(database.count(table) for table in present))
    for table, (kind, wanted) in _TABLES.items():
        for read in database.read_table(table, wanted, BATCH_ROWS) if table in present else ():
            yield kind, columns_of(read)
    rows.problems += database.problems()


def _read_csv(path: Path, rows: RowBuilder, progress: Progress) -> Parts:
    """Yield all kernels; counters stand between the columns, and names are quoted or bare."""
    file = CsvFile(path)
    if not file.has("beginns", "endns"):
        raise UnreadableTraceError(
            f"{path}: counters only, without times of kernels", "record again with `rocprof --timestamp on`"
        )
    rows.problems.append("a CSV file of kernels states neither their launching calls nor their steps")
    for columns in file.read(_CSV, progress):
        yield "kernels", columns
    rows.problems += file.problems()


class _Owner(msgspec.Struct):
    """The process of an event, among its arguments."""

    pid: Any = None


class _FlowEvent(msgspec.Struct):
    """The members of an event that a flow needs."""

    ph: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    id: Any = None
    name: Any = None
    dur: Any = None
    args: _Owner | None = None


class _Event(_FlowEvent):
    """An event; its arguments have the names of a database's columns, and numbers may be texts."""

    args: dict[str, Any] | None = None  # type: ignore[assignment]


_TIME_BITS = 47
_MOST_LANES = 1 << 16
_SIDES: Final = ("s", "t")
"""Kinds of events at which a flow starts, in a call, and ends, at a kernel."""


class Flows:
    """Flows from calls to kernels, about 48 bytes each: call `add` for each event, then `close`, then the look-ups.

    Each end is identified by process, thread and microsecond. A flow starts in the middle of the call, so all flows of
    one call (the kernels of a graph) start at one location. That location is the correlation of the call and its
    kernels. Copies have no flows: where a process has as many as calls that copy, each is of the call at its place.
    """

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, int], int] = {}
        self._places = {side: array("q") for side in _SIDES}
        self._numbers = {side: array("q") for side in _SIDES}
        self._copies: defaultdict[int | None, dict[str, list[tuple[int, int]]]] = defaultdict(
            lambda: {"s": [], "t": []}
        )
        """For each process the times and locations of calls that copy, and of copies, as ends of flows."""
        self._begins: Ints = np.array([], np.int64)
        self._ends: Ints = np.array([], np.int64)
        self._begin_of_end: Ints = np.array([], np.int64)
        self._added = 0
        """Number of copies' flows."""
        self.ambiguous = 0
        """Number of kernels whose flows are ambiguous."""

    def place(self, event: _FlowEvent) -> int:
        """Return process, thread and microsecond of an event as one number; -1 if one of them is unknown."""
        process, thread, at_us = map(parse_integer, (event.pid, event.tid, event.ts))
        if process is None or thread is None or at_us is None:
            return -1
        lane = self._lanes.setdefault((process, thread), len(self._lanes))
        return lane << _TIME_BITS | at_us if lane < _MOST_LANES and 0 <= at_us < 1 << _TIME_BITS else -1

    def add(self, event: _FlowEvent) -> None:
        """Add an event, if it is an end of a flow."""
        if event.ph in _SIDES:
            place, number = self.place(event), parse_integer(event.id)
            if place >= 0 and number is not None:
                self._places[event.ph].append(place)
                self._numbers[event.ph].append(number)
        elif event.ph == "X" and (side := self._side_of_copy(event)) is not None:
            at_us, owner = parse_integer(event.ts), None if event.args is None else parse_integer(event.args.pid)
            middle_us = (parse_integer(event.dur) or 0) // 2 if side == "s" else 0
            if (place := self.place(event)) >= 0 and at_us is not None:
                self._copies[owner][side].append((at_us, place + middle_us))

    @staticmethod
    def _side_of_copy(event: _FlowEvent) -> str | None:
        kind = _LANES.get(parse_integer(event.pid))
        is_call = kind == "calls" and str(event.name).startswith("hipMemcpy")
        return "s" if is_call else "t" if kind == "copies" else None

    def _add_copies(self) -> None:
        """Add flows from calls that copy, and launch no kernel, to the copies of their process."""
        launching = set(self._places["s"])
        for sides in self._copies.values():
            calls = sorted(call for call in sides["s"] if call[1] not in launching)
            copies = sorted(sides["t"])
            if len(calls) == len(copies) and all(call[0] <= copy[0] for call, copy in zip(calls, copies, strict=True)):
                for side, places in zip(_SIDES, (calls, copies), strict=True):
                    self._places[side].extend(place for _, place in places)
                    # no number of the file's own flows is negative
                    self._numbers[side].extend(range(-self._added - len(places), -self._added))
                self._added += len(copies)

    def close(self) -> None:
        """Match the ends of flows; call once, after the last `add`."""
        self._add_copies()
        (begins, ends), (of_begins, of_ends) = (
            [np.frombuffer(values[side], np.int64) for side in _SIDES] for values in (self._places, self._numbers)
        )
        order = np.argsort(of_begins, kind="stable")
        from_place = look_up(of_begins[order], begins[order], of_ends)
        from_place, to_place = from_place[from_place >= 0], ends[from_place >= 0]
        places, first, count = np.unique(to_place, return_index=True, return_counts=True)
        # several kernels of a thread in one microsecond cannot be distinguished
        self.ambiguous = int(count[count > 1].sum())
        self._ends, self._begin_of_end = places[count == 1], from_place[first[count == 1]]
        self._begins = np.unique(begins)

    def of_kernels(self, events: Sequence[_FlowEvent]) -> pa.Array:
        """Return the correlation (int64) of kernels; null for none or several."""
        begins = look_up(self._ends, self._begin_of_end, np.array([self.place(event) for event in events], np.int64))
        return pa.array(begins, mask=begins < 0)

    def of_calls(self, places: Ints, durations_us: Ints) -> pa.Array:
        """Return the correlation (int64) of calls at these places (-1: none); null if they launch nothing."""
        if not len(self._begins):
            return pa.nulls(len(places), pa.int64())
        lasts = places + durations_us
        at = np.searchsorted(self._begins, (places + lasts) // 2 - 1).clip(max=len(self._begins) - 1)
        # the middle is rounded to a microsecond but never outside the call
        inside = (self._begins[at] >= places) & (self._begins[at] <= lasts) & (places >= 0)
        return pa.array(self._begins[at], mask=~inside)


def _read_chrome_trace(path: Path, rows: RowBuilder, progress: Progress) -> Parts:
    """Yield all rows; kernels without a flow event have no correlation.

    Flow events (`s` from the call, `t` to the kernel) are at the end of the file and are read in a first pass.
    """
    flows = Flows()
    for some in EventList.of_file(path, event_decoder(_FlowEvent), has_phase, lambda _: None, [])[0]:
        for event in some:
            flows.add(event)
    flows.close()
    waiting: dict[Kind, list[_Event]] = {}
    events, *_ = EventList.of_file(path, event_decoder(_Event), has_phase, progress, rows.problems)
    for some in events:
        for event in some:
            if event.ph == "X" and event.args is not None:
                process = parse_integer(event.pid)
                kind = "kernels" if process in _GPU_LANES else _LANES.get(process)
                if kind is not None:
                    waiting.setdefault(kind, []).append(event)
        for kind, held in waiting.items():
            if len(held) >= _EVENTS_A_BATCH:
                yield kind, _event_columns(kind, held, flows)
                held.clear()
    rows.problems += events.problems()
    for kind, held in waiting.items():
        if held:
            yield kind, _event_columns(kind, held, flows)
    if flows.ambiguous:
        rows.problems.append(
            f"{flows.ambiguous} kernels start in the same microsecond as another: their launching calls are unknown; "
            "keep the .db in the folder of the .json"
        )


def _event_columns(kind: Kind, events: list[_Event], flows: Flows) -> dict[str, pa.Array]:
    args = [event.args or {} for event in events]
    names = [
        next((name for name in (arg.get("Name"), event.name) if name and isinstance(name, str)), "")
        for arg, event in zip(args, events, strict=True)
    ]

    def column(values: Iterable[Any]) -> pa.Array:
        return pa.array(list(map(parse_integer, values)), pa.int64())

    # older versions record times only in microseconds
    starts, lasts = (column(getattr(event, name) for event in events) for name in ("ts", "dur"))
    columns = {
        "process": column(arg.get("pid") for arg in args),
        "start_ns": pc.coalesce(column(arg.get("BeginNs") for arg in args), pc.multiply(starts, 1000)),
        "end_ns": pc.coalesce(column(arg.get("EndNs") for arg in args), pc.multiply(pc.add(starts, lasts), 1000)),
        "text" if kind == "ranges" else "name": pa.array(names, pa.string()),
    }
    if kind in ("ranges", "calls"):
        columns["thread"] = column(arg.get("tid") for arg in args)
    else:
        streams, queues, columns["device"] = (
            column(arg.get(name) for arg in args) for name in ("stream-id", "queue-id", "dev-id")
        )
        columns["stream"] = streams if streams.null_count < len(streams) else queues
    if kind == "calls":
        # a call that launches nothing may start in the same microsecond as one that does
        places = [flows.place(e) if _LAUNCHING.match(n) else -1 for e, n in zip(events, names, strict=True)]
        columns["correlation"] = flows.of_calls(np.array(places, np.int64), lasts.fill_null(0).to_numpy())
    elif kind in ("kernels", "copies"):
        columns["correlation"] = flows.of_kernels(events)
    return columns
