"""Tables of rocprof's database: OPS and COPY (GPU), HIP (calls, joined by "Index"), rocTX (ranges)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from jitter.core.errors import UnreadableTraceError
from jitter.readers import Advance, Batch
from jitter.readers.amd.agents import Agents
from jitter.readers.amd.batches import BatchBuilder, Columns
from jitter.readers.amd.sqlite_tables import Database, RowProgress
from jitter.readers.sqlite import quote_columns

_TABLES: Final = ("OPS", "COPY", "HIP", "rocTX")
_INTEGERS: Final = ("BeginNs", "EndNs", "pid", "tid", "Index", "dev-id", "queue-id", "stream-id")


def read_database(
    path: Path, rows: BatchBuilder, agents: Agents, problems: list[str], advance: Advance
) -> Iterator[Batch]:
    """Yield all rows of a database. Raises UnreadableTraceError for a damaged one."""
    database = Database(path)
    present = [table for table in _TABLES if database.has(table, "BeginNs", "EndNs", "Name")]
    if "HIP" not in present or not database.count("HIP"):
        problems.append("no HIP API calls recorded: the launching calls are unknown; record with --hip-trace")
    if "OPS" not in present:
        raise UnreadableTraceError(f"{path}: no table OPS of kernels", "record again with --hip-trace")
    progress = RowProgress(database.size, sum(database.count(table) for table in present))
    for table in present:
        integers = [name for name in _INTEGERS if database.has(table, name)]
        source = f'"{table}"'
        if table == "HIP":
            source += " WHERE \"Name\" LIKE 'hip%'"
        for read in database.stream(quote_columns(integers), quote_columns(["Name"]), source):
            columns = {name: read[name] for name in read.schema.names}
            yield build_batch(table, columns, rows, agents)
            advance(progress.seen(read.num_rows))
    problems += database.problems()
    advance(progress.rest())


def build_batch(table: str, raw: Columns, rows: BatchBuilder, agents: Agents) -> Batch:
    """Build a batch from rows of a table under its own column names; integers as int64, null where not recorded."""
    count = len(raw["BeginNs"])

    def column(name: str) -> pa.Array:
        return raw[name] if name in raw else pa.nulls(count, pa.int64())

    columns: dict[str, pa.Array] = {
        "process": rows.by_pid(column("pid")),
        "start_ns": raw["BeginNs"],
        "end_ns": raw["EndNs"],
    }
    if table == "rocTX":
        return rows.ranges(columns | {"thread": column("tid"), "text": raw["Name"]})
    columns |= {"name": rows.named(raw["Name"]), "correlation": column("Index")}
    if table == "HIP":
        return rows.calls(columns | {"thread": column("tid")})
    columns["device"] = agents.ordinals(column("dev-id"))
    columns["stream"] = column("stream-id") if "stream-id" in raw else column("queue-id")
    return rows.activities(columns, copies=table == "COPY")
