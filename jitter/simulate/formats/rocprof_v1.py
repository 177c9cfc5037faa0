"""rocprof v1: a database and a Chrome trace per rank."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from jitter.core.files import atomic_file, write_text
from jitter.simulate.capture import CaptureOptions, apply_capture
from jitter.simulate.formats.rocprof_csv import CPU_NODES, RocprofRecords, collect_records
from jitter.simulate.job import Job
from jitter.simulate.recording import RankRecording

_OPS: Final = ("BeginNs", "EndNs", "dev-id", "queue-id", "Name", "pid", "tid", "roctx-range", "stream-id", "Index")
_CALLS: Final = ("BeginNs", "EndNs", "pid", "tid", "Name", "args", "Index")
_ROCTX: Final = ("BeginNs", "EndNs", "pid", "tid", "Name", "Index")
_TEXTS: Final = frozenset({"Name", "args", "roctx-range"})
_TABLES: Final = {"rocTX": _ROCTX, "HIP": _CALLS, "HSA": _CALLS, "COPY": _OPS, "OPS": _OPS}
_LANES: Final = {"rocTX": 0, "COPY": 1, "HIP": 2}
_COPY_NAMES: Final = {"HOST_TO_DEVICE": "CopyHostToDevice", "DEVICE_TO_HOST": "CopyDeviceToHost"}
Rows = dict[str, list[dict[str, Any]]]
"""By table, each row by column."""


@dataclass(frozen=True)
class Options(CaptureOptions):
    profiler = "rocprof"
    forms: Literal["both", "db", "json"] = "both"
    nanoseconds: bool = True
    """Whether the Chrome trace has nanoseconds in addition to whole microseconds; early versions had not."""
    names: Literal["rank", "number"] = "number"
    """myprofile-3.db or rank-3.db."""


def write(ranks: list[RankRecording], number: int, folder: Path, options: Options, job: Job) -> Path:
    """Write the files of a rank; return its database, or its Chrome trace without databases."""
    recording = apply_capture(ranks[0], options)
    stem = f"{'myprofile' if options.names == 'number' else 'rank'}-{recording.rank}"
    rows = _rows(recording, collect_records(recording))
    if options.forms != "json":
        _write_database(folder / f"{stem}.db", rows)
    if options.forms != "db":
        _write_json(folder / f"{stem}.json", rows, options.nanoseconds)
    write_text(folder / f"{stem}.sysinfo.txt", _sysinfo())
    return folder / f"{stem}.{'json' if options.forms == 'json' else 'db'}"


def _rows(recording: RankRecording, rows: RocprofRecords) -> Rows:
    def row(one: Any, name: str, index: int, **more: object) -> dict[str, Any]:
        place = {"pid": recording.pid, "tid": one.thread}
        return {"BeginNs": one.start_ns, "EndNs": one.end_ns, **place, "Name": name, "Index": index, **more}

    def on_gpu(one: Any, name: str, queue: int) -> dict[str, Any]:
        place = {"dev-id": CPU_NODES + recording.device, "queue-id": queue, "stream-id": one.stream}
        return row(one, name, one.correlation) | place | {"roctx-range": ""}

    return {
        "rocTX": [row(m, m.text, n) for n, m in enumerate(rows.markers)],
        "HIP": [row(c, c.name, c.correlation, args="()") for c in rows.calls],
        "HSA": [],
        "COPY": [on_gpu(c, _COPY_NAMES[c.direction], 0) for c in rows.copies],
        "OPS": [on_gpu(k, k.name, k.queue) for k in rows.kernels],
    }


def _write_database(path: Path, rows: Rows) -> None:
    with closing(sqlite3.connect(":memory:")) as connection, atomic_file(path) as half:
        for table, columns in _TABLES.items():
            typed = ", ".join(f'"{name}" {"TEXT" if name in _TEXTS else "INTEGER"}' for name in columns)
            connection.execute(f'CREATE TABLE "{table}" ({typed})')
            marks = ", ".join("?" * len(columns))
            connection.executemany(
                f'INSERT INTO "{table}" VALUES ({marks})', [[*map(row.get, columns)] for row in rows[table]]
            )
        connection.execute('CREATE TABLE KERN ("Index" INTEGER, "KernelName" TEXT)')
        connection.commit()
        half.write_bytes(connection.serialize())


def _write_json(path: Path, rows: Rows, nanoseconds: bool) -> None:
    with atomic_file(path) as half, half.open("w", encoding="utf-8") as out:
        out.write('{ "traceEvents":[{}\n')
        for lane, name in ((0, "Markers and Ranges"), (2, "CPU HIP API"), (1, "COPY")):
            said = {"args": {"name": name}, "ph": "M", "pid": lane, "name": "process_name", "sort_index": lane}
            out.write(f",{json.dumps(said)}\n")
        for table in _TABLES:
            for row in rows[table]:
                out.write(f",{json.dumps(_event(table, row, nanoseconds))}\n")
        for arrow in _arrows(rows):
            out.write(f",{json.dumps(arrow)}\n")
        out.write('],\n"otherData": {\n    "CMD": "rocminfo"\n  }\n}\n')


def _lane(table: str, row: dict[str, Any]) -> tuple[int, Any]:
    """Return process and thread in the Chrome trace."""
    if table == "OPS":
        return 6 + row["dev-id"], row["stream-id"]
    return _LANES[table], 0 if table == "COPY" else row["tid"]


def _event(table: str, row: dict[str, Any], nanoseconds: bool) -> dict[str, Any]:
    begin, end = row["BeginNs"], row["EndNs"]
    pid, tid = _lane(table, row)
    left_out = {"Index", "roctx-range"} | (set() if nanoseconds else {"BeginNs", "EndNs"})
    args = {name: str(row[name]) for name in _TABLES[table] if name not in left_out}
    times = {"ts": str(begin // 1000), "dur": str(max(1, (end - begin) // 1000))}
    return {"ph": "X", "name": row["Name"], "pid": pid, "tid": tid, **times, "args": args}


def _arrows(rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield flow events from the middle of each call to its kernels."""
    calls = {call["Index"]: call for call in rows["HIP"]}
    for number, kernel in enumerate(rows["OPS"]):
        if (call := calls.get(kernel["Index"])) is None:
            continue
        begin, end = call["BeginNs"], call["EndNs"]
        common = {"cat": "DataFlow", "id": number, "name": "dep"}
        yield {"ts": begin // 1000 + (end - begin) // 2000, "ph": "s", **common, "pid": 2, "tid": call["tid"]}
        pid, tid = _lane("OPS", kernel)
        yield {"ts": kernel["BeginNs"] // 1000, "ph": "t", **common, "pid": pid, "tid": tid}


def _sysinfo() -> str:
    """Return the part of rocminfo's output that distinguishes GPUs from CPUs."""
    kinds = ["CPU"] * CPU_NODES + ["GPU"] * 8
    agents = [
        f"Agent {n + 1}\n  Name:                    {'gfx90a' if kind == 'GPU' else 'AMD EPYC'}\n"
        f"  Node:                    {n}\n  Device Type:             {kind}\n"
        for n, kind in enumerate(kinds)
    ]
    return "CMD: rocminfo\n" + "*******\n".join(agents)
