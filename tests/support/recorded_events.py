"""The events in the files of one rank, in any format that the simulator writes: listed, and removed from the files."""

import csv
import gzip
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.databases import open_database

_TIME_COLUMNS = (("start", "end"), ("BeginNs", "EndNs"), ("Start_Timestamp", "End_Timestamp"))


class Event(NamedTuple):
    """One timed row of a recording. Times in ns on the recording's clock; an open range ends where it starts."""

    table: str
    """Table, category, or file: kernels, calls and markers are apart in every format."""
    start_ns: float
    end_ns: float


def list_events(files: Iterable[Path]) -> list[Event]:
    """Return the events of all files of a rank."""
    found: list[Event] = []
    for path in files:
        _remove(path, lambda event: bool(found.append(event)))
    return found


def remove_events(files: Iterable[Path], is_lost: Callable[[Event], bool]) -> None:
    """Rewrite the files without the lost events."""
    for path in files:
        _remove(path, is_lost)


def open_ranges(path: Path, is_open: Callable[[Event], bool]) -> None:
    """Take the ends from ranges of an Nsight Systems export, as it writes ranges that the recording did not see end."""
    with open_database(path) as database:
        rows = database.execute("SELECT rowid, start, end FROM NVTX_EVENTS WHERE end IS NOT NULL").fetchall()
        chosen = [(row,) for row, start, end in rows if is_open(Event("NVTX_EVENTS", start, end))]
        database.executemany("UPDATE NVTX_EVENTS SET end = NULL WHERE rowid = ?", chosen)


def _remove(path: Path, is_lost: Callable[[Event], bool]) -> None:
    if path.suffix in (".sqlite", ".db"):
        _remove_rows(path, is_lost)
    elif path.suffix in (".json", ".gz"):
        _remove_trace_events(path, is_lost)
    elif path.suffix == ".csv":
        _remove_lines(path, is_lost)


def _remove_rows(path: Path, is_lost: Callable[[Event], bool]) -> None:
    with open_database(path) as database:
        for table, start, end in list(_timed_tables(database)):
            rows = database.execute(f'SELECT rowid, "{start}", coalesce("{end}", "{start}") FROM "{table}"').fetchall()
            lost = [(row,) for row, first, last in rows if is_lost(Event(table, first, last))]
            database.executemany(f'DELETE FROM "{table}" WHERE rowid = ?', lost)


def _timed_tables(database: sqlite3.Connection) -> Iterator[tuple[str, str, str]]:
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        columns = {row[1] for row in database.execute(f'PRAGMA table_info("{table}")')}
        for start, end in _TIME_COLUMNS:
            # processes and threads have times too, and are no events
            if {start, end} <= columns and "_info_" not in table:
                yield table, start, end


def _remove_trace_events(path: Path, is_lost: Callable[[Event], bool]) -> None:
    content = path.read_bytes()
    document = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    events = document["traceEvents"]
    kept = [event for event in events if "ts" not in event or not is_lost(_trace_event(event))]
    if len(kept) < len(events):
        text = json.dumps(document | {"traceEvents": kept}).encode()
        path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)


def _trace_event(event: dict[str, object]) -> Event:
    start = float(str(event["ts"])) * 1000
    return Event(str(event.get("cat", "")), start, start + float(str(event.get("dur", 0))) * 1000)


def _remove_lines(path: Path, is_lost: Callable[[Event], bool]) -> None:
    lines = path.read_text().splitlines(keepends=True)
    header, *rows = list(csv.reader(lines))
    if "Start_Timestamp" not in header:
        return
    start, end = header.index("Start_Timestamp"), header.index("End_Timestamp")
    table = path.stem.split("_", 1)[1]
    kept = [
        line
        for line, row in zip(lines[1:], rows, strict=True)
        if not is_lost(Event(table, float(row[start]), float(row[end])))
    ]
    path.write_text("".join([lines[0], *kept]))
