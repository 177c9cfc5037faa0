"""Reader of rocpd, rocprofv3's databases: table names end with a guid, one set of tables per session."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import map_distinct
from jitter.core.errors import UnreadableTraceError
from jitter.core.grouping import by_key
from jitter.core.names.launchers import RANK_VARIABLES, SIZE_VARIABLES, first_number
from jitter.readers import Files, Process
from jitter.readers.amd.rocprofv3.csv import is_companion_csv
from jitter.readers.amd.rows import (
    BATCH_ROWS,
    SHAPE,
    Agents,
    AmdReader,
    Columns,
    Kind,
    RowBuilder,
    columns_of,
    decode_text,
    message_bytes,
    sibling_files,
)
from jitter.readers.columns import ColumnMap, Progress, parse_integer
from jitter.readers.sqlite import Database, StringTable, sniff_tables, where_in

_OTHER_FORMS: Final = (".json", ".json.gz", ".pftrace", ".otf2")
_DISPATCH: Final = re.compile(r"rocpd_kernel_dispatch(?P<suffix>(?:_[0-9A-Za-z_]+)?)")
_READ: Final = ("kernel_dispatch", "memory_copy", "region")
_PLACE: Final = ("pid", "tid", "agent_id", "queue_id", "stream_id")
_ALL: Final = {"start_ns": "start", "end_ns": "end", "process": "pid", "correlation": "stack_id"}
_REGIONS: Final = ColumnMap({**_ALL, "thread": "tid", "name": "name_id", "event": "event_id"})
_KERNELS: Final = ColumnMap(
    {
        **_ALL,
        "agent": "agent_id",
        "stream": ("stream_id", "queue_id"),
        "queue": "queue_id",
        "name": "kernel_id",
        **SHAPE,
    }
)
_COPIES: Final = ColumnMap(
    {**_ALL, "stream": "stream_id", "name": "name_id", "size_bytes": "size", "from": "src_agent_id"}
    | {"to": "dst_agent_id"}
)
_NUMBERS: Final = frozenset({"id", "nid", "pid", "tid", "absolute_index"})
_MARKERS: Final = "MARKER_CORE"


class RocpdReader(AmdReader):
    """Reads databases of rocprofv3 and rocprof-sys, not RPD's, whose table names start with rocpd_ as well."""

    name = "rocpd"

    def sniff(self, path: Path) -> bool:
        return bool(find_sessions(sniff_tables(path)))

    def files(self, path: Path) -> Files:
        prefix = path.stem.removesuffix("results")
        others = [path.with_name(path.stem + form) for form in _OTHER_FORMS]
        if prefix != path.stem:
            # the same run as CSV, if both were recorded
            others += [file for file in sibling_files(path, prefix) if is_companion_csv(prefix, file.name)]
        return Files((path,), tuple(file for file in others if file.is_file()))

    def parts(self, path: Path, rows: RowBuilder, progress: Progress) -> Iterator[tuple[Kind, Columns]]:
        database = Database(path)
        sessions = [Session(database, suffix, rows) for suffix in find_sessions(database.tables)]
        if not any(database.count(session.table("kernel_dispatch")) for session in sessions):
            raise UnreadableTraceError(
                f"{path}: no kernels in this database", "did the process use a GPU? record with --kernel-trace"
            )
        database.report(progress, sum(session.size for session in sessions))
        rows.stem = path.stem.removesuffix("results")
        for session in sessions:
            yield from session.parts()
        rows.problems = [*dict.fromkeys(rows.problems), *database.problems()]


READER: Final = RocpdReader()


def find_sessions(tables: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the suffixes of a database's sessions; RPD's tables have neither a guid nor these columns."""
    suffixes = set()
    for table in tables:
        match = _DISPATCH.fullmatch(table)
        if match and {"guid", "kernel_id", "event_id"} <= tables[table]:
            suffixes.add(match["suffix"])
    # a table without a guid is a view of the others, if there are any
    return sorted(suffixes - {""} or suffixes)


class Session:
    """The tables of one guid, in the layouts of several schema versions; `stack_id` joins kernels and calls."""

    def __init__(self, database: Database, suffix: str, rows: RowBuilder) -> None:
        """Check the schema and read the small tables; `suffix` ends each table name: `_` and the guid.

        Raises UnreadableTraceError for a damaged database, and for a schema in which times, processes or agents of
        kernels are not found.
        """
        self._database = database
        self._suffix = suffix
        self._rows = rows
        kernels = "kernel_dispatch"
        has_times = self.has(kernels, "start", "end") or (
            self.has(kernels, "start_id", "end_id") and self.has("timestamp", "value")
        )
        has_places = self.has(kernels, "pid", "agent_id") or (
            self.has(kernels, "track_id") and self.has("track", "pid", "agent_id")
        )
        if not has_times or not has_places:
            raise UnreadableTraceError(
                f"{database.path}: a rocpd schema that jitter does not know", "record as CSV: rocprofv3 -f csv"
            )
        self._strings = StringTable(database, self.table("string"))
        self._packed = 0
        self._processes: dict[int | None, Process] = {}
        """By the row id of info_process; of the environment only the rank."""
        self._threads = {row["id"]: row["tid"] for row in self.rows("info_thread", "id", "tid")}
        """Thread ids by the row id of info_thread."""
        self._agents: dict[int, int] = {}
        """Ordinals of GPUs by the row id of info_agent."""
        self._kernels = {
            row["id"]: _text(row["display_name"]) or _text(row["kernel_name"])
            for row in self.rows("info_kernel_symbol", "id", "display_name", "kernel_name")
        }
        """Names by the row id of info_kernel_symbol."""
        self._read_small_tables()

    @property
    def size(self) -> int:
        """The approximate number of rows to read."""
        return sum(self._database.count(self.table(name)) for name in _READ if self.has(name))

    def table(self, name: str) -> str:
        """Return the full name of a table: `region` gives `rocpd_region_0199…`."""
        return f"rocpd_{name}{self._suffix}"

    def has(self, name: str, *columns: str) -> bool:
        """Return whether the table exists with these columns."""
        return self._database.has(self.table(name), *columns)

    def source(self, name: str) -> tuple[str, dict[str, str]]:
        """Return the SQL after FROM to read a table, and expressions for its columns and for those in other tables.

        All joins use row ids, so none needs an index. The alias of the table is `x`, of its event `e`.
        """
        source = f'"{self.table(name)}" AS x'
        expressions = {column: f'x."{column}"' for column in self._database.tables[self.table(name)]}
        for column in ("start", "end"):
            if column not in expressions:
                source += f' LEFT JOIN "{self.table("timestamp")}" AS {column}s ON {column}s.id = x.{column}_id'
                expressions[column] = f"{column}s.value"
        if self.has(name, "track_id") and self.has("track", "id"):
            source += f' LEFT JOIN "{self.table("track")}" AS t ON t.id = x.track_id'
            expressions |= {
                place: f't."{place}"' for place in _PLACE if place not in expressions and self.has("track", place)
            }
        if self.has("event", "id", "stack_id"):
            source += f' LEFT JOIN "{self.table("event")}" AS e ON e.id = x.event_id'
            expressions |= {"stack_id": "e.stack_id", "category_id": "e.category_id", "extdata": "e.extdata"}
        return source, expressions

    def rows(self, table: str, *wanted: str) -> list[dict[str, Any]]:
        """Return all rows of a small table, none if it does not exist; columns that this version lacks are None."""
        present = [column for column in wanted if self.has(table, column)]
        if not present:
            return []
        columns = ", ".join(f'"{column}"' for column in present)
        return [
            dict.fromkeys(wanted)
            | {name: parse_integer(v) if name in _NUMBERS else v for name, v in zip(present, row, strict=True)}
            for row in self._database.rows(f'SELECT {columns} FROM "{self.table(table)}"')
        ]

    def _read_small_tables(self) -> None:
        recording = self._rows.recording
        hosts = {row["id"]: row["hostname"] for row in self.rows("info_node", "id", "hostname")}
        for row in self.rows("info_process", "id", "nid", "pid", "environment"):
            process = Process(row["pid"], _text(hosts.get(row["nid"])))
            variables = read_variables(row["environment"])
            process.rank, process.rank_from = first_number(variables, RANK_VARIABLES)
            recording.world_size = recording.world_size or first_number(variables, SIZE_VARIABLES)[0] or None
            self._processes[row["id"]] = process
        # the GPUs of each process are numbered separately, because each process lists all agents of its node
        rows = self.rows("info_agent", "id", "nid", "pid", "type", "absolute_index")
        agents = by_key(((row["nid"], row["pid"]), row) for row in rows if row["absolute_index"] is not None)
        for listed in agents.values():
            ordinals = Agents.of((str(agent["type"] or ""), agent["absolute_index"], None) for agent in listed).by_node
            self._agents |= {
                agent["id"]: ordinals[agent["absolute_index"]]
                for agent in listed
                if agent["absolute_index"] in ordinals
            }
        for row in self.rows("metadata", "tag", "value"):
            if row["tag"] == "schema_version":
                recording.profiler_version = recording.profiler_version or f"rocpd schema {row['value']}"

    def parts(self) -> Iterator[tuple[Kind, Columns]]:
        """Yield the columns of each table."""
        rows, kernels = self._rows, self._kernels
        before = rows.counts.copy()
        for read in self._regions("RCCL_"):
            yield "rccl", self._named(read) | {"size_bytes": pa.array(self._message_sizes(read), pa.int64())}
        for read in self._regions("HIP_", "HSA_"):
            yield "calls", self._named(read)
        for read in self._activities("kernel_dispatch", _KERNELS):
            columns = self._columns(read)
            columns["device"] = pc.coalesce(self._gpus(read["agent"]), read["agent"])
            columns["name"] = map_distinct(
                read["name"],
                lambda symbol: rows.name(kernels.get(symbol) or f"[kernel {symbol} is not in the database]"),
                pa.int32(),
            )
            yield "kernels", columns
        for read in self._activities("memory_copy", _COPIES) if self.has("memory_copy") else ():
            device = pc.coalesce(*(self._gpus(read[end]) for end in ("to", "from")))
            yield "copies", self._named(read) | {"device": device}
        for read in self._regions(_MARKERS, texts=True):
            texts = map(self._message, read["extdata"].to_pylist(), read["own"].to_pylist())
            yield "ranges", self._columns(read) | {"text": pa.array(list(texts), pa.string())}
        rows.need("calls", before)
        rows.need("ranges", before)
        if self._packed:
            rows.problems.append(f"{self._packed} roctx ranges' texts are packed (lz4) or damaged and cannot be read")

    def _regions(self, *words: str, texts: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield regions of the categories whose names start with these words."""
        if not self.has("region"):
            return
        source, expressions = self.source("region")
        ids = [str(id_) for word in words for id_ in self._category_ids(word)]
        if not ids or "category_id" not in expressions:
            return
        source += f" WHERE {expressions['category_id']} IN ({', '.join(ids)})"
        text_columns = {"extdata": expressions["extdata"], "own": "x.extdata"} if texts else {}
        yield from self._database.stream(_REGIONS.select(expressions)[0], text_columns, source, BATCH_ROWS)

    def _category_ids(self, word: str) -> list[int]:
        table, column = "string", "string"
        if self.has("info_category", "id", "name"):
            table, column = "info_category", "name"
        query = f'SELECT id FROM "{self.table(table)}" WHERE "{column}" LIKE ? ESCAPE ?'
        return [id_ for (id_,) in self._database.rows(query, word.replace("_", r"\_") + "%", "\\")]

    def _activities(self, table: str, wanted: ColumnMap) -> Iterator[pa.RecordBatch]:
        """Yield GPU activities; columns that this version lacks are null."""
        source, expressions = self.source(table)
        yield from self._database.stream(*wanted.select(expressions), source, BATCH_ROWS)

    def _columns(self, read: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the columns with positions of processes and ids of threads, which stand in other tables."""
        columns = columns_of(read)
        columns["process"] = map_distinct(columns["process"], self._process, pa.int32())
        if "thread" in columns:
            columns["thread"] = map_distinct(columns["thread"], self._threads.get, pa.int64())
        return columns

    def _named(self, read: pa.RecordBatch) -> dict[str, pa.Array]:
        return self._columns(read) | {"name": self._strings.texts(read["name"])}

    def _process(self, row: int | None) -> int:
        return self._rows.process((self._suffix, row), lambda: self._processes.get(row) or Process(None))

    def _gpus(self, agents: pa.Array) -> pa.Array:
        """Return GPU ordinals; null for processors and unknown agents."""
        return map_distinct(agents, self._agents.get, pa.int64())

    def _message_sizes(self, calls: pa.RecordBatch) -> list[int | None]:
        """Return the message size of each RCCL call, bytes, from its arguments; None where they are not recorded."""
        if not self.has("arg", "event_id", "name", "value"):
            return [None] * calls.num_rows
        events = calls["event"].to_pylist()
        arguments: dict[int, dict[str, str]] = defaultdict(dict)
        query = f'SELECT event_id, name, value FROM "{self.table("arg")}"'
        for condition in where_in("event_id", (event for event in events if event is not None)):
            for event, name, value in self._database.rows(query + condition):
                arguments[event][decode_text(name)] = decode_text(value)
        return [message_bytes(arguments.get(event, {})) for event in events]

    def _message(self, *extdata: bytes | None) -> str | None:
        for data in extdata:
            if not data or data == b"{}":
                continue
            try:
                said: Any = msgspec.json.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._packed += 1
                return None
            if isinstance(said, dict) and isinstance(said.get("message"), str):
                return str(said["message"])
        return None


def read_variables(environment: object) -> dict[str, Any]:
    """Return the environment of a process, which is JSON; empty if it is not recorded or damaged."""
    try:
        variables = json.loads(environment) if isinstance(environment, str | bytes) else None
    except ValueError:
        variables = None
    return variables if isinstance(variables, dict) else {}


def _text(value: object) -> str | None:
    return decode_text(value) if isinstance(value, str | bytes) else None
