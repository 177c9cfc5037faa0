"""Reader of RPD, the database of AMD's rocmProfileData (`.rpd`): GPU operations and their calls."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.errors import UnreadableTraceError
from jitter.readers.amd.rows import BATCH_ROWS, AmdReader, Columns, Kind, RowBuilder, columns_of
from jitter.readers.columns import Progress
from jitter.readers.sqlite import Database, StringTable, sniff_tables

_OP: Final = frozenset({"gpuId", "queueId", "start", "end", "description_id", "opType_id"})
_API: Final = frozenset({"pid", "tid", "start", "end", "apiName_id", "args_id"})
_SHAPE: Final = {
    f"{column}_{axis}": f"{source}{axis.upper()}"
    for column, source in (("grid", "grid"), ("block", "workgroup"))
    for axis in "xyz"
}
_HOST: Final = {"process": "a.pid", "thread": "a.tid", "start_ns": "a.start", "end_ns": 'a."end"'}
_CALLS: Final = {**_HOST, "name": "a.apiName_id", "correlation": "a.id"}
_OPERATIONS: Final = {
    "process": "a.pid",
    "device": "o.gpuId",
    "stream": "o.queueId",
    "name": "o.description_id",
    "kind": "o.opType_id",
    "start_ns": "o.start",
    "end_ns": 'o."end"',
    "correlation": "l.api_id",
}
_NAMED: Final = "rocpd_api AS a JOIN rocpd_string AS s ON s.id = a.apiName_id"
_TEXT_ROWS: Final = 8_192


class RpdReader(AmdReader):
    """Reads RPD's tables; rocprofv3's rocpd uses the same prefix for other tables."""

    name = "rpd"
    rank_hint = "name it after the rank: runTracer.sh -o rank-$RANK.rpd"

    def sniff(self, path: Path) -> bool:
        tables = sniff_tables(path)
        return tables.get("rocpd_op", frozenset()) >= _OP and tables.get("rocpd_api", frozenset()) >= _API

    def parts(self, path: Path, rows: RowBuilder, progress: Progress) -> Iterator[tuple[Kind, Columns]]:
        database = Database(path)
        if not database.count("rocpd_op"):
            raise UnreadableTraceError(
                f"{path}: no GPU operations in this database", "was it recorded with `runTracer.sh -o trace.rpd …`?"
            )
        database.report(progress, database.count("rocpd_op") + 2 * database.count("rocpd_api"))
        rows.grids_in_items = False  # as given to the call, in work groups
        strings = StringTable(database, "rocpd_string")
        for read in database.stream(_CALLS, {}, f"{_NAMED} WHERE s.string LIKE 'hip%'", BATCH_ROWS):
            yield "calls", columns_of(read) | {"name": strings.texts(read["name"])}
        without_call = 0
        for columns in _operations(database):
            kinds, described = (strings.texts(columns.pop(name)) for name in ("kind", "name"))
            columns["name"] = pc.if_else(pc.equal(described, ""), kinds, described)
            without_call += columns["correlation"].null_count
            if len(rows.processes) == 1 and rows.processes[0].pid is not None:
                # an operation without a call belongs to the only process, if there is one
                columns["process"] = columns["process"].fill_null(rows.processes[0].pid)
            is_copy = pc.or_(pc.starts_with(kinds, "Copy"), pc.starts_with(kinds, "Fill"))
            copies = {name: column.filter(is_copy) for name, column in columns.items() if name not in _SHAPE}
            columns.pop("size_bytes", None)
            yield "kernels", {name: column.filter(pc.invert(is_copy)) for name, column in columns.items()}
            yield "copies", copies
        source = f"{_NAMED} LEFT JOIN rocpd_string AS t ON t.id = a.args_id WHERE s.string = 'UserMarker'"
        for read in database.stream(_HOST, {"text": "t.string"}, source, _TEXT_ROWS):
            yield "ranges", columns_of(read)
        versions = dict(database.rows("SELECT tag, value FROM rocpd_metadata"))
        if "schema_version" in versions:
            rows.recording.profiler_version = f"RPD schema {versions['schema_version']}"
        if without_call:
            rows.problems.append(f"{without_call} GPU operations have no call: their launches are unknown")
        if not rows.counts["ranges"]:
            rows.problems.append("no user markers recorded: steps have no names")
        rows.problems += database.problems()


READER: Final = RpdReader()


def _operations(database: Database) -> Iterator[dict[str, pa.Array]]:
    # a join by a column without an index: SQLite makes a temporary one for the query
    source = "rocpd_op AS o LEFT JOIN rocpd_api_ops AS l ON l.op_id = o.id LEFT JOIN rocpd_api AS a ON a.id = l.api_id"
    integers = dict(_OPERATIONS)
    if database.has("rocpd_kernelapi", "api_ptr_id", *_SHAPE.values()):  # nodes of a graph have no shape
        source += " LEFT JOIN rocpd_kernelapi AS k ON k.api_ptr_id = l.api_id"
        integers |= {name: f'k."{column}"' for name, column in _SHAPE.items()}
    if database.has("rocpd_copyapi", "api_ptr_id", "size"):
        # the size of a call that made several operations is no operation's own
        source += (
            " LEFT JOIN (SELECT api_id FROM rocpd_api_ops GROUP BY api_id HAVING count(*) = 1) AS u "
            "ON u.api_id = l.api_id LEFT JOIN rocpd_copyapi AS c ON c.api_ptr_id = u.api_id"
        )
        integers["size_bytes"] = "c.size"
    for read in database.stream(integers, {}, source, BATCH_ROWS):
        yield columns_of(read)
