"""Reader of RPD, the database of AMD's rocmProfileData (`.rpd`): GPU operations and their calls."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.errors import UnreadableTraceError
from jitter.readers import Advance, Batch, Files, Reader, Recording
from jitter.readers.amd.batches import BatchBuilder
from jitter.readers.amd.sqlite_tables import Database, RowProgress, StringTable, list_tables

_OP: Final = frozenset({"gpuId", "queueId", "start", "end", "description_id", "opType_id"})
_API: Final = frozenset({"pid", "tid", "start", "end", "apiName_id", "args_id"})
_SHAPE: Final = {
    f"{column}_{axis}": f"{source}{axis.upper()}"
    for column, source in (("grid", "grid"), ("block", "workgroup"))
    for axis in "xyz"
}
_TEXT_ROWS: Final = 8_192


class RpdReader:
    """Reads RPD's tables; rocprofv3's rocpd uses the same prefix for other tables."""

    name = "rpd"
    version = 1

    def sniff(self, path: Path) -> bool:
        if path.suffix.lower() not in (".rpd", ".db", ".sqlite", ".sqlite3") or not path.is_file():
            return False
        tables = list_tables(path)
        return tables.get("rocpd_op", frozenset()) >= _OP and tables.get("rocpd_api", frozenset()) >= _API

    def files(self, path: Path) -> Files:
        return Files((path,))

    def open(self, path: Path) -> tuple[Recording, Callable[[Advance], Iterator[Batch]]]:
        """Return the recording and its batches.

        Raises UnreadableTraceError for a damaged database and for one without GPU operations.
        """
        database = Database(path)
        if not database.count("rocpd_op"):
            raise UnreadableTraceError(
                f"{path}: no GPU operations in this database", "was it recorded with `runTracer.sh -o trace.rpd …`?"
            )
        recording = Recording(
            path=path, format=self.name, rank_hint="name it after the rank: runTracer.sh -o rank-$RANK.rpd"
        )
        return recording, _Trace(database, recording).batches


READER: Reader = RpdReader()


class _Trace:
    """One open database: its batches."""

    def __init__(self, database: Database, recording: Recording) -> None:
        self._database = database
        self._recording = recording
        self._rows = BatchBuilder()
        self._strings = StringTable(database, "rocpd_string")
        self._without_call = 0
        self._ranges = 0

    def batches(self, advance: Advance) -> Iterator[Batch]:
        """Yield all rows, then complete the recording. Raises UnreadableTraceError for a damaged database."""
        tables = ("rocpd_op", "rocpd_api", "rocpd_api")
        progress = RowProgress(self._database.size, sum(self._database.count(table) for table in tables))
        for part in (self._calls, self._operations, self._markers):
            for batch, read in part():
                advance(progress.seen(read))
                if batch.rows.num_rows:
                    yield batch
        recording = self._recording
        versions = dict(self._database.rows("SELECT tag, value FROM rocpd_metadata"))
        recording.profiler_version = (
            f"RPD schema {versions['schema_version']}" if "schema_version" in versions else None
        )
        if self._without_call:
            recording.problems.append(f"{self._without_call} GPU operations have no call: their launches are unknown")
        if not self._ranges:
            recording.problems.append("no user markers recorded: steps have no names")
        self._rows.complete(recording, recording.path.stem, self._database.problems())
        advance(progress.rest())

    def _calls(self) -> Iterator[tuple[Batch, int]]:
        integers = {
            "id": "a.id",
            "pid": "a.pid",
            "tid": "a.tid",
            "start": "a.start",
            "end": 'a."end"',
            "name": "a.apiName_id",
        }
        source = "rocpd_api AS a JOIN rocpd_string AS s ON s.id = a.apiName_id WHERE s.string LIKE 'hip%'"
        for read in self._database.stream(integers, {}, source):
            columns = {
                "process": self._rows.by_pid(read["pid"]),
                "thread": read["tid"],
                "name": self._rows.named(self._strings.texts(read["name"])),
                "start_ns": read["start"],
                "end_ns": read["end"],
                "correlation": read["id"],
            }
            yield self._rows.calls(columns), read.num_rows

    def _operations(self) -> Iterator[tuple[Batch, int]]:
        integers = {
            "device": "o.gpuId",
            "queue": "o.queueId",
            "start": "o.start",
            "end": 'o."end"',
            "api": "l.api_id",
            "pid": "a.pid",
            "name": "o.description_id",
            "kind": "o.opType_id",
        }
        # a join by a column without an index: SQLite makes a temporary one for the query
        source = (
            "rocpd_op AS o LEFT JOIN rocpd_api_ops AS l ON l.op_id = o.id LEFT JOIN rocpd_api AS a ON a.id = l.api_id"
        )
        if self._database.has("rocpd_kernelapi", "api_ptr_id", *_SHAPE.values()):
            source += " LEFT JOIN rocpd_kernelapi AS k ON k.api_ptr_id = l.api_id"
            integers |= {name: f'k."{column}"' for name, column in _SHAPE.items()}
        if self._database.has("rocpd_copyapi", "api_ptr_id", "size"):
            # the size of a call that made several operations is no operation's own
            source += (
                " LEFT JOIN (SELECT api_id FROM rocpd_api_ops GROUP BY api_id HAVING count(*) = 1) AS u "
                "ON u.api_id = l.api_id LEFT JOIN rocpd_copyapi AS c ON c.api_ptr_id = u.api_id"
            )
            integers["size"] = "c.size"
        for read in self._database.stream(integers, {}, source):
            kinds = self._strings.texts(read["kind"])
            described = self._strings.texts(read["name"])
            names = pc.if_else(pc.equal(described, ""), kinds, described)
            self._without_call += read["api"].null_count
            copies = pc.or_(pc.starts_with(kinds, "Copy"), pc.starts_with(kinds, "Fill"))
            columns = {
                "process": self._processes(read["pid"]),
                "device": read["device"],
                "stream": read["queue"],
                "name": self._rows.named(names),
                "start_ns": read["start"],
                "end_ns": read["end"],
                "correlation": read["api"],
            }
            for is_copy in (False, True):
                which = copies if is_copy else pc.invert(copies)
                own = {name: column.filter(which) for name, column in columns.items()}
                if not is_copy:
                    # as given to the call, in work groups; nodes of a graph have none
                    own |= {name: read[name].filter(which) for name in _SHAPE if name in read.schema.names}
                elif "size" in read.schema.names:
                    own["size_bytes"] = read["size"].filter(which)
                yield self._rows.activities(own, copies=is_copy, grids_in_items=False), len(own["name"])

    def _markers(self) -> Iterator[tuple[Batch, int]]:
        integers = {"pid": "a.pid", "tid": "a.tid", "start": "a.start", "end": 'a."end"'}
        source = (
            "rocpd_api AS a JOIN rocpd_string AS s ON s.id = a.apiName_id "
            "LEFT JOIN rocpd_string AS t ON t.id = a.args_id WHERE s.string = 'UserMarker'"
        )
        for read in self._database.stream(integers, {"text": "t.string"}, source, _TEXT_ROWS):
            self._ranges += read.num_rows
            columns = {
                "process": self._rows.by_pid(read["pid"]),
                "thread": read["tid"],
                "text": read["text"],
                "start_ns": read["start"],
                "end_ns": read["end"],
            }
            yield self._rows.ranges(columns), read.num_rows

    def _processes(self, pids: pa.Array) -> pa.Array:
        """Return the processes of operations; one without a call belongs to the only process, if there is one."""
        if pids.null_count and len(self._rows.processes) == 1:
            pids = pc.coalesce(pids, pa.scalar(self._rows.processes[0].pid, pa.int64()))
        return self._rows.by_pid(pids)
