"""rocpd databases, schema 3, one per rank: tables with a guid in their names, views without, no index."""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from jitter.core.files import atomic_file
from jitter.simulate.capture import CaptureOptions, apply_capture
from jitter.simulate.formats.rocprof_csv import CPU_NODES, RocprofRecords, collect_records
from jitter.simulate.job import Job
from jitter.simulate.recording import RankRecording

_PLACE: Final = "nid INTEGER, pid INTEGER, tid INTEGER"
_SPAN: Final = "start BIGINT, end BIGINT"
_SHAPE: Final = ", ".join(f"{what}_size_{axis} INTEGER" for what in ("workgroup", "grid") for axis in "xyz")
_TABLES: Final = {
    "metadata": "tag TEXT, value TEXT",
    "string": "string TEXT UNIQUE",
    "info_node": "hash BIGINT, machine_id TEXT, system_name TEXT, hostname TEXT",
    "info_process": f"nid INTEGER, ppid INTEGER, pid INTEGER, init BIGINT, fini BIGINT, {_SPAN}, command TEXT, "
    "environment JSONB, extdata JSONB",
    "info_thread": f"nid INTEGER, ppid INTEGER, pid INTEGER, tid INTEGER, name TEXT, {_SPAN}, extdata JSONB",
    "info_agent": "nid INTEGER, pid INTEGER, type TEXT, absolute_index INTEGER, logical_index INTEGER, "
    "type_index INTEGER, name TEXT, extdata JSONB",
    "info_stream": "nid INTEGER, pid INTEGER, name TEXT, extdata JSONB",
    "info_queue": "nid INTEGER, pid INTEGER, name TEXT, extdata JSONB",
    "info_kernel_symbol": "nid INTEGER, pid INTEGER, code_object_id INTEGER, kernel_name TEXT, display_name TEXT",
    "event": "category_id INTEGER, stack_id INTEGER, parent_stack_id INTEGER, correlation_id INTEGER, extdata JSONB",
    "region": f"{_PLACE}, {_SPAN}, name_id INTEGER, event_id INTEGER, extdata JSONB",
    "sample": "track_id INTEGER, timestamp BIGINT, event_id INTEGER, extdata JSONB",
    "kernel_dispatch": f"{_PLACE}, agent_id INTEGER, kernel_id INTEGER, dispatch_id INTEGER, queue_id INTEGER, "
    f"stream_id INTEGER, {_SPAN}, {_SHAPE}, region_name_id INTEGER, event_id INTEGER, extdata JSONB",
    "memory_copy": f"{_PLACE}, {_SPAN}, name_id INTEGER, dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER, "
    "queue_id INTEGER, stream_id INTEGER, region_name_id INTEGER, event_id INTEGER, extdata JSONB",
}
SECRET: Final = "7061737377307264"
"""A secret in the environment of every process; it must not appear in anything made from the trace."""


@dataclass(frozen=True)
class Options(CaptureOptions):
    profiler = "rocprofv3"
    environment: Literal["torchrun", "srun", "mpirun", "none"] = "torchrun"
    """Launcher whose environment variables state the rank."""
    names: Literal["rank", "process"] = "rank"
    """rank-3_results.db, or a folder per host with files named by process, the default of rocprofv3."""


_VARIABLE: Final = {"torchrun": "RANK", "srun": "SLURM_PROCID", "mpirun": "OMPI_COMM_WORLD_RANK"}


def write(ranks: list[RankRecording], number: int, folder: Path, options: Options, job: Job) -> Path:
    recording = apply_capture(ranks[0], options)
    place = folder / recording.host if options.names == "process" else folder
    place.mkdir(exist_ok=True)
    path = place / f"{recording.pid if options.names == 'process' else f'rank-{recording.rank}'}_results.db"
    _write_database(path, recording, job.ranks, options)
    return path


class _Database:
    """A database that is being written."""

    def __init__(self, connection: sqlite3.Connection, guid: str) -> None:
        self._connection = connection
        self._guid = guid
        self._suffix = "_" + guid.replace("-", "_")
        self._strings: dict[str, int] = {}
        self._events: list[tuple[object, ...]] = []
        for name, columns in _TABLES.items():
            table = f"rocpd_{name}{self._suffix}"
            # SQL keywords as names need quotes
            typed = columns.replace("start ", '"start" ').replace("end BIGINT", '"end" BIGINT')
            connection.execute(f'CREATE TABLE "{table}" ("id" INTEGER NOT NULL PRIMARY KEY, "guid" TEXT, {typed})')
            connection.execute(f'CREATE VIEW "rocpd_{name}" AS SELECT * FROM "{table}"')

    def add(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Add rows, numbered from 1."""
        listed = ", ".join(f'"{column}"' for column in ("id", "guid", *columns))
        marks = ", ".join("?" * (len(columns) + 2))
        statement = f'INSERT INTO "rocpd_{name}{self._suffix}" ({listed}) VALUES ({marks})'
        self._connection.executemany(statement, ((n, self._guid, *row) for n, row in enumerate(rows, start=1)))

    def string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings) + 1)

    def event(self, category: str, stack: int, extdata: str = "{}") -> int:
        self._events.append((self.string(category), stack, 0, 0, extdata))
        return len(self._events)

    def close(self) -> None:
        """Write the collected events and strings."""
        self.add("event", ["category_id", "stack_id", "parent_stack_id", "correlation_id", "extdata"], self._events)
        self.add("string", ["string"], [(text,) for text in self._strings])


def _write_database(path: Path, recording: RankRecording, world: int, options: Options) -> None:
    guid = f"01990000-0000-7000-8000-{recording.rank:012d}"
    with closing(sqlite3.connect(":memory:")) as connection, atomic_file(path) as half:
        database = _Database(connection, guid)
        database.add("metadata", ["tag", "value"], [("schema_version", "3"), ("guid", guid)])
        _add_origin(database, recording, world, options)
        _add_rows(database, recording, collect_records(recording))
        database.close()
        connection.commit()
        half.write_bytes(connection.serialize())


def _add_origin(database: _Database, recording: RankRecording, world: int, options: Options) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PMI_SHARED_SECRET": SECRET, "LOCAL_RANK": str(recording.device)}
    if options.environment != "none":
        environment |= {_VARIABLE[options.environment]: str(recording.rank), "WORLD_SIZE": str(world)}
    if options.environment == "torchrun":
        # the launcher's: one number per node
        environment["SLURM_PROCID"] = str(recording.rank // 8)
    database.add("info_node", ["hash", "machine_id", "system_name", "hostname"], [(7, "m7", "Linux", recording.host)])
    process = (1, 1, recording.pid, "python train.py", json.dumps(environment), "{}")
    database.add("info_process", ["nid", "ppid", "pid", "command", "environment", "extdata"], [process])
    threads = [(1, 1, 1, thread, "python") for thread in recording.threads]
    database.add("info_thread", ["nid", "ppid", "pid", "tid", "name"], threads)
    cpus = [(1, 1, "CPU", node, node, node, "AMD EPYC") for node in range(CPU_NODES)]
    gpus = [(1, 1, "GPU", CPU_NODES + n, CPU_NODES + n, n, "gfx942") for n in range(8)]
    columns = ["nid", "pid", "type", "absolute_index", "logical_index", "type_index", "name"]
    database.add("info_agent", columns, [*cpus, *gpus])


def _add_rows(database: _Database, recording: RankRecording, rows: RocprofRecords) -> None:
    agent = CPU_NODES + recording.device + 1
    thread = {tid: row for row, tid in enumerate(recording.threads, start=1)}
    symbols = {name: n for n, name in enumerate(dict.fromkeys(k.name for k in rows.kernels), start=1)}
    names = [(1, 1, 1, name, name) for name in symbols]
    database.add("info_kernel_symbol", ["nid", "pid", "code_object_id", "kernel_name", "display_name"], names)
    shape = [f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz"]
    place = ["nid", "pid", "tid", "start", "end", "event_id"]
    database.add(
        "kernel_dispatch",
        [*place, "agent_id", "kernel_id", "dispatch_id", "queue_id", "stream_id", *shape, "extdata"],
        [
            (
                *(1, 1, thread[k.thread], k.start_ns, k.end_ns, database.event("KERNEL_DISPATCH", k.correlation)),
                *(agent, symbols[k.name], n, k.queue, k.stream, k.group, 1, 1, k.items, 1, 1, "{}"),
            )
            for n, k in enumerate(rows.kernels, start=1)
        ],
    )
    copies = []
    for c in rows.copies:
        ends = (agent, 1) if c.direction == "HOST_TO_DEVICE" else (1, agent)
        event = database.event("MEMORY_COPY", c.correlation)
        name = database.string(f"MEMORY_COPY_{c.direction}")
        copies.append((1, 1, thread[c.thread], c.start_ns, c.end_ns, event, name, *ends, c.n_bytes, c.stream, "{}"))
    ends_of = ["name_id", "dst_agent_id", "src_agent_id", "size", "stream_id", "extdata"]
    database.add("memory_copy", [*place, *ends_of], copies)
    regions: list[tuple[object, ...]] = []
    for category, calls in (("HIP_RUNTIME_API_EXT", rows.calls), ("RCCL_API", rows.rccl)):
        for call in calls:
            event = database.event(category, call.correlation)
            regions.append(
                (1, 1, thread[call.thread], call.start_ns, call.end_ns, event, database.string(call.name), "{}")
            )
    for n, marker in enumerate(rows.markers, start=1):
        event = database.event("MARKER_CORE_RANGE_API", n, json.dumps({"message": marker.text}))
        name = database.string("roctxThreadRangeA")
        regions.append((1, 1, thread[marker.thread], marker.start_ns, marker.end_ns, event, name, "{}"))
    database.add("region", [*place, "name_id", "extdata"], regions)
