"""Batches of one session of a rocpd database; `stack_id` is the correlation of kernels and calls."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import column_or_nulls, map_distinct
from jitter.readers import Batch
from jitter.readers.amd.batches import SHAPE_COLUMNS, BatchBuilder, decode_text
from jitter.readers.amd.rccl import RcclCalls, message_bytes
from jitter.readers.amd.rocpd.metadata import SessionMetadata
from jitter.readers.amd.rocpd.tables import Session
from jitter.readers.amd.sqlite_tables import VALUES_PER_QUERY, Database, StringTable

_HSA_LAUNCH: Final = ("hsa_signal_store", "hsa_queue_store_write", "hsa_queue_add_write", "hsa_queue_cas_write")
_MARKERS: Final = "MARKER_CORE"


class SessionBatches:
    """Batches of the tables of one guid."""

    def __init__(self, database: Database, session: Session, origin: SessionMetadata, rows: BatchBuilder) -> None:
        """Read the names of categories."""
        self._database = database
        self._session = session
        self._origin = origin
        self._rows = rows
        self._rccl = RcclCalls()
        self._strings = StringTable(database, session.table("string"))
        self._count = {"calls": 0, "ranges": 0}
        self._packed = 0
        self._categories = self._read_categories()

    def batches(self) -> Iterator[tuple[Batch, int]]:
        """Yield each batch with the number of rows read for it; calls come before kernels."""
        if self._session.has(self._database, "region"):
            yield from self._calls()
        yield from self._kernels()
        if self._session.has(self._database, "memory_copy"):
            yield from self._copies()
        if self._session.has(self._database, "region"):
            yield from self._ranges()

    def problems(self) -> list[str]:
        """Return what is missing, one sentence each."""
        found = []
        if not self._count["calls"]:
            found.append("no HIP API calls recorded: the launching calls are unknown; record with --hip-trace")
        if not self._count["ranges"]:
            found.append("no roctx ranges recorded; record with --marker-trace")
        if self._packed:
            found.append(f"{self._packed} roctx ranges' texts are packed (lz4) or damaged and cannot be read")
        return found

    def _read_categories(self) -> dict[str, list[int]]:
        """Return the ids of categories by name prefix."""
        table, column = "string", "string"
        if self._session.has(self._database, "info_category", "id", "name"):
            table, column = "info_category", "name"
        name = self._session.table(table)
        found: dict[str, list[int]] = {}
        for word in (_MARKERS, "HIP_", "HSA_", "RCCL_"):
            pattern = word.replace("_", r"\_") + "%"
            query = f'SELECT id FROM "{name}" WHERE "{column}" LIKE ? ESCAPE ?'
            found[word] = [row for (row,) in self._database.rows(query, pattern, "\\")]
        return found

    def _regions(self, *words: str, texts: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield regions of these categories."""
        source, column = self._session.source(self._database, "region")
        ids = [id_ for word in words for id_ in self._categories[word]]
        if not ids or "category_id" not in column:
            return
        wanted: tuple[str, ...] = ("start", "end", "pid", "tid", "stack_id")
        integers = {name: column[name] for name in wanted if name in column}
        source += f" WHERE {column['category_id']} IN ({', '.join(map(str, ids))})"
        more = {"extdata": column["extdata"], "own": "x.extdata"} if texts else {}
        yield from self._database.stream({**integers, "name": "x.name_id", "event": "x.event_id"}, more, source)

    def _calls(self) -> Iterator[tuple[Batch, int]]:
        for read in self._regions("RCCL_"):
            columns = self._columns(read)
            names, sizes = self._strings.texts(read["name"]), self._message_sizes(read)
            self._rccl.add(columns["process"], columns["thread"], names, read["start"], read["end"], sizes)
        for read in self._regions("HIP_", "HSA_"):
            names = self._strings.texts(read["name"])
            wanted = pc.starts_with(names, "hip")
            for word in _HSA_LAUNCH:
                wanted = pc.or_(wanted, pc.starts_with(names, word))
            batch = read.filter(wanted)
            self._count["calls"] += batch.num_rows
            columns = self._columns(batch) | {
                "name": self._rows.named(names.filter(wanted)),
                "correlation": self._column(batch, "stack_id"),
            }
            self._rccl.note_launches(columns)
            yield self._rows.calls(columns), read.num_rows

    def _kernels(self) -> Iterator[tuple[Batch, int]]:
        for read in self._activities("kernel_dispatch", {"name": "x.kernel_id"}, shaped=True):
            columns = self._placed(read, "agent_id")
            columns["stream"] = self._column(read, "stream_id" if "stream_id" in read.schema.names else "queue_id")
            columns["name"] = self._kernel_names(read["name"])
            columns |= {column: read[source] for column, source in SHAPE_COLUMNS.items() if source in read.schema.names}
            columns["collective"] = self._rccl.operations(columns, self._rows.names)
            columns |= self._rccl.sizes(columns)
            yield self._rows.activities(columns, copies=False), read.num_rows

    def _copies(self) -> Iterator[tuple[Batch, int]]:
        ends = {"from": "x.src_agent_id", "to": "x.dst_agent_id", "name": "x.name_id"}
        if self._session.has(self._database, "memory_copy", "size"):
            ends["size"] = "x.size"
        for read in self._activities("memory_copy", ends, shaped=False):
            gpus = [self._gpus(read[end]) for end in ("to", "from")]
            columns = self._placed(read, None)
            columns["stream"] = self._column(read, "stream_id")
            columns["name"] = self._rows.named(self._strings.texts(read["name"]))
            columns["device"] = pc.coalesce(*gpus)
            columns["size_bytes"] = self._column(read, "size")
            yield self._rows.activities(columns, copies=True), read.num_rows

    def _ranges(self) -> Iterator[tuple[Batch, int]]:
        for read in self._regions(_MARKERS, texts=True):
            self._count["ranges"] += read.num_rows
            texts = [
                self._message(*data) for data in zip(read["extdata"].to_pylist(), read["own"].to_pylist(), strict=True)
            ]
            columns = self._columns(read) | {"text": pa.array(texts, pa.string())}
            yield self._rows.ranges(columns), read.num_rows

    def _activities(self, table: str, own: dict[str, str], *, shaped: bool) -> Iterator[pa.RecordBatch]:
        source, column = self._session.source(self._database, table)
        wanted = ("start", "end", "pid", "agent_id", "queue_id", "stream_id", "stack_id")
        integers = {name: column[name] for name in wanted if name in column}
        if shaped:
            present = [c for c in SHAPE_COLUMNS.values() if self._session.has(self._database, table, c)]
            integers |= {c: f'x."{c}"' for c in present}
        yield from self._database.stream({**integers, **own}, {}, source)

    def _placed(self, read: pa.RecordBatch, agent: str | None) -> dict[str, pa.Array]:
        found = {
            "process": self._processes(self._column(read, "pid")),
            "start_ns": read["start"],
            "end_ns": read["end"],
            "correlation": self._column(read, "stack_id"),
        }
        if agent is not None:
            agents = self._column(read, agent)
            found["device"] = pc.coalesce(self._gpus(agents), agents)
        return found

    def _columns(self, read: pa.RecordBatch) -> dict[str, pa.Array]:
        return {
            "process": self._processes(self._column(read, "pid")),
            "thread": map_distinct(self._column(read, "tid"), self._origin.threads.get, pa.int64()),
            "start_ns": read["start"],
            "end_ns": read["end"],
        }

    def _processes(self, rows: pa.Array) -> pa.Array:
        def process(row: int | None) -> int:
            return self._rows.process((self._session.suffix, row), lambda: self._origin.process(row))

        return map_distinct(rows, process, pa.int32())

    def _gpus(self, agents: pa.Array) -> pa.Array:
        """Return GPU ordinals; null for processors and unknown agents."""
        return map_distinct(agents, self._origin.gpus.get, pa.int64())

    def _kernel_names(self, symbols: pa.Array) -> pa.Array:
        def name(symbol: int | None) -> int:
            return self._rows.name(self._origin.kernels.get(symbol) or f"[kernel {symbol} is not in the database]")

        return map_distinct(symbols, name, pa.int32())

    def _message_sizes(self, calls: pa.RecordBatch) -> list[int | None]:
        """Return the message size of each RCCL call, bytes, from its arguments; None where they are not recorded."""
        if not self._session.has(self._database, "arg", "event_id", "name", "value"):
            return [None] * calls.num_rows
        events = calls["event"].to_pylist()
        arguments: dict[int, dict[str, str]] = defaultdict(dict)
        for first in range(0, len(events), VALUES_PER_QUERY):
            some = ", ".join(str(event) for event in events[first : first + VALUES_PER_QUERY] if event is not None)
            query = f'SELECT event_id, name, value FROM "{self._session.table("arg")}" WHERE event_id IN ({some})'
            for event, name, value in self._database.rows(query):
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

    @staticmethod
    def _column(read: pa.RecordBatch, name: str) -> pa.Array:
        return column_or_nulls(read, name, pa.int64())
