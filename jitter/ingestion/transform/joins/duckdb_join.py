"""Launch join on disk (DuckDB), for captures larger than memory; `launch_join.py` says why there are two joins.

Launches and activities are joined one range of correlations or times after another. Both tables may exceed memory. Rows
are roughly ordered by correlation and by time, so a range of either touches a small part of the tables, and the join or
sort of a range fits in memory whatever the size of the tables.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from jitter.core.arrow import table_of_rows
from jitter.core.schema import ACTIVITIES, CALLS
from jitter.core.sql import load_sql, open_duckdb
from jitter.ingestion.transform.collective_calls import Communication
from jitter.ingestion.transform.joins.launch_join import (
    Gpu,
    GpuUsage,
    HostRange,
    JoinedCapture,
    Steps,
    flag_names,
    locate_in_steps,
)
from jitter.ingestion.transform.steps.step_markers import StepRange

ROWS_AT_ONCE = 250_000
_NO_CALL = (
    "SELECT *, NULL::INTEGER AS launch_name, NULL::BIGINT AS launch_start_ns, NULL::BIGINT AS launch_end_ns, "
    "NULL::BIGINT AS launch_thread FROM activities"
)


def join_launches(db: duckdb.DuckDBPyConnection) -> None:
    """Create the tables `placed` (activities with launch and place) and `unanswered` (launches without a kernel).

    Needs the tables `activities`, `calls` and `names`.
    """
    ranges = _ranges(db, "calls", "correlation")
    _join(db, ranges)
    if count_rows(db, "launched") > count_rows(db, "activities"):
        _fill(db, "outermost_calls", "outermost", ranges)
        db.execute("INSERT INTO outermost_calls FROM calls WHERE correlation IS NULL")
        db.execute("DROP TABLE calls; ALTER TABLE outermost_calls RENAME TO calls")
        _join(db, ranges)
    _fill(db, "unanswered", "unanswered", ranges)
    if count_rows(db, "launched WHERE launch_start_ns IS NULL"):
        _place_unlaunched(db)
    else:
        db.execute(
            "CREATE VIEW placed AS SELECT *, launch_start_ns AS place_ns, launch_start_ns AS latest_ns FROM launched"
        )


def count_rows(db: duckdb.DuckDBPyConnection, rows: str) -> int:
    """Return the number of rows of a table, or of a table with a WHERE clause."""
    return int(db.execute(f"SELECT count(*) FROM {rows}").fetchall()[0][0])


def _join(db: duckdb.DuckDBPyConnection, ranges: list[tuple[int, int]]) -> None:
    _fill(db, "launched", "launched", ranges)
    if ranges:
        outside = f"correlation IS NULL OR correlation < {ranges[0][0]} OR correlation >= {ranges[-1][1]}"
        db.execute(f"INSERT INTO launched {_NO_CALL} WHERE {outside}")
    else:
        db.execute(f"INSERT INTO launched {_NO_CALL}")


def _place_unlaunched(db: duckdb.DuckDBPyConnection) -> None:
    db.execute("CREATE TABLE with_launches AS SELECT DISTINCT process FROM launched WHERE launch_start_ns IS NOT NULL")
    stretches = _ranges(db, "launched", "start_ns")
    for number, (start, until) in enumerate(stretches):
        db.execute(f"CREATE OR REPLACE TABLE carried AS {load_sql(__package__, 'carried')}", {"until": start})
        db.execute(f"CREATE OR REPLACE TABLE following AS {load_sql(__package__, 'following')}", {"from": until})
        head = "INSERT INTO placed" if number else "CREATE TABLE placed AS"
        db.execute(f"{head} {load_sql(__package__, 'placed')}", {"from": start, "until": until})
    db.execute("DROP TABLE launched")


def _fill(db: duckdb.DuckDBPyConnection, table: str, relation: str, ranges: list[tuple[int, int]]) -> None:
    """Create a table from a relation, one range after the other."""
    head = f"CREATE OR REPLACE TABLE {table} AS"
    for start, until in ranges or [(0, 0)]:
        db.execute(f"{head} {load_sql(__package__, relation)}", {"from": start, "until": until})
        head = f"INSERT INTO {table}"


def _ranges(db: duckdb.DuckDBPyConnection, table: str, column: str) -> list[tuple[int, int]]:
    """Cut a column's values into ranges [from, until) of about `ROWS_AT_ONCE` rows each; none for an empty one."""
    (bounds,) = db.execute(f"SELECT min({column}), max({column}), count({column}) FROM {table}").fetchall()
    low, high, rows = bounds
    if not rows:
        return []
    parts = -(-rows // ROWS_AT_ONCE)
    inner: list[int] = []
    if parts > 1:
        quantiles = [number / parts for number in range(1, parts)]
        ((cuts,),) = db.execute(f"SELECT approx_quantile({column}, {quantiles}) FROM {table}").fetchall()
        inner = [int(cut) for cut in cuts]
    return list(pairwise(sorted({low, *inner, high + 1})))


ROWS_AN_INSERT = 122_880  # a row group of DuckDB: fewer go through its log first
STEP_ROWS_AT_ONCE = 49_152
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "memory_limit": "400MB",
    "preserve_insertion_order": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
_NO_DEVICE = -1 << 31
_NAMES = pa.schema(
    [
        ("name", pa.int32()),
        ("is_collective", pa.bool_()),
        ("may_be_in_framework_call", pa.bool_()),
        ("is_launch", pa.bool_()),
        ("is_synchronising", pa.bool_()),
        ("is_operation", pa.bool_()),
        ("is_capture_edge", pa.bool_()),
    ]
)
_COLLECTIVE_CALLS = pa.schema(
    [
        ("process", pa.int32()),
        ("thread", pa.int64()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("operation", pa.string()),
        ("of_library", pa.bool_()),
    ]
)


class DuckDbJoin(JoinedCapture):
    """See `launch_join.JoinedCapture`. Call `add` for each batch, `join` once, and `close` at the end."""

    def __init__(self, folder: Path) -> None:
        """Create a database in an empty folder."""
        # not in memory: in-memory tables cannot be evicted, so nothing is left for joins once they fill the limit
        self._db = open_duckdb(folder / "capture.duckdb", _CONFIG | {"temp_directory": str(folder)})
        self._db.execute("PRAGMA disable_checkpoint_on_shutdown")  # the file is never opened again
        self._held: dict[str, list[pa.RecordBatch]] = {"activities": [], "calls": []}
        for table, schema in (("activities", ACTIVITIES), ("calls", CALLS)):
            self._create(table, schema.empty_table())

    def close(self) -> None:
        """Close the database; its folder can then be removed."""
        self._db.close()

    def add(self, table: str, rows: pa.RecordBatch) -> None:
        """Add rows of the table `activities` or `calls`."""
        held = self._held[table]
        if held and held[0].schema != rows.schema:
            self._insert(table)
        held.append(rows)
        if sum(rows.num_rows for rows in held) >= ROWS_AN_INSERT:
            self._insert(table)

    def join(self, host_ranges: Sequence[HostRange], names: Sequence[str], communication: Communication) -> None:
        """Join activities with their launching calls; call once, after the last `add`."""
        for table in self._held:
            self._insert(table)
        self._names, self._host_ranges = names, host_ranges
        rows = {"name": range(len(names)), **flag_names(names, communication)}
        self._create("names", pa.table(rows, schema=_NAMES))
        self._create("collective_calls", table_of_rows(communication.calls, _COLLECTIVE_CALLS))
        join_launches(self._db)
        self._db.execute(load_sql(__package__, "enclosed"))
        self._db.execute(load_sql(__package__, "typed"))
        self._db.execute("DROP TABLE activities")
        self.has_launches = frozenset(
            process
            for (process,) in self._db.execute(
                "SELECT DISTINCT process FROM placed WHERE launch_start_ns IS NOT NULL"
            ).fetchall()
        )

    def gpus(self) -> list[GpuUsage]:
        rows = self._db.execute(load_sql(__package__, "streams")).fetchall()
        return [GpuUsage(Gpu(process, device), *totals) for process, device, *totals in rows]

    def sequence(self, gpu: Gpu, kind: str, stream: int | None = None) -> pa.Table:
        bound = {
            "process": gpu.process,
            "device": gpu.device,
            "is_collective": kind == "collective",
            "stream": stream,
        }
        return self._db.sql(load_sql(__package__, "sequence"), params=bound).to_arrow_table()

    def in_steps(self, steps: Steps) -> Iterator[tuple[Gpu, pa.Table]]:
        rows = max(map(len, steps.values()), default=0)
        steps_at_once = max(1, STEP_ROWS_AT_ONCE * rows // max(1, count_rows(self._db, "placed")))
        for first in range(0, rows, steps_at_once):
            some = range(first, first + steps_at_once)
            ranges = [step for found in steps.values() for step in found[some.start : some.stop]]
            untils = [step.until_ns for step in ranges if step.until_ns is not None]
            bound = {
                "from": min(step.start_ns for step in ranges),
                "until": max(untils) if len(untils) == len(ranges) else None,
            }
            for gpu, found in _by_gpu(self._db.sql(load_sql(__package__, "in_order"), params=bound).to_arrow_table()):
                in_steps = _of_steps(found, steps.get(gpu.process, ()), some)
                if in_steps.num_rows:
                    yield gpu, in_steps

    def before_capture(self) -> dict[Gpu, int]:
        return {
            Gpu(process, device): kernels
            for process, device, kernels in self._db.execute(
                "SELECT process, device, count(*) FROM placed WHERE place_ns IS NULL AND NOT is_memory GROUP BY ALL"
            ).fetchall()
        }

    def _doubtful(self) -> pa.RecordBatchReader:
        doubtful = "SELECT process, device, place_ns, latest_ns FROM placed WHERE latest_ns > place_ns"
        return self._db.sql(doubtful).to_arrow_reader(ROWS_AN_INSERT)

    def _unanswered(self) -> pa.Table:
        return self._db.sql("FROM unanswered").to_arrow_table()

    def _calls_of(self, flag: str, least_ns: int | None = None) -> pa.Table:
        took = "" if least_ns is None else f" AND end_ns - start_ns >= {least_ns}"
        return self._db.sql(f"FROM calls WHERE name IN (SELECT name FROM names WHERE {flag}){took}").to_arrow_table()

    def _insert(self, table: str) -> None:
        for _, some in groupby(self._held[table], key=attrgetter("schema")):
            rows = pa.Table.from_batches(list(some))
            self._db.register("_batch", rows)
            self._db.execute(f"INSERT INTO {table} BY NAME SELECT {', '.join(rows.schema.names)} FROM _batch")
            self._db.unregister("_batch")
        self._held[table].clear()
        pa.default_memory_pool().release_unused()  # else Arrow keeps the memory of rows that the database now holds

    def _create(self, table: str, rows: pa.Table) -> None:
        self._db.register("_rows", rows)
        self._db.execute(f"CREATE OR REPLACE TABLE {table} AS FROM _rows")
        self._db.unregister("_rows")


def _of_steps(rows: pa.Table, steps: Sequence[StepRange], some: range) -> pa.Table:
    """Return the rows that lie in the steps `some`, with `step_row`; numpy is several times faster here than SQL."""
    step_rows = locate_in_steps(rows["place_ns"].to_numpy(), steps)
    inside = (step_rows >= some.start) & (step_rows < some.stop)
    rows = rows.drop_columns(["process", "place_ns", "latest_ns"]).append_column("step_row", pa.array(step_rows))
    return rows if inside.all() else rows.filter(inside)


def _by_gpu(rows: pa.Table) -> Iterator[tuple[Gpu, pa.Table]]:
    """Split rows, ordered by process and device, into GPUs."""
    device = rows["device"].fill_null(_NO_DEVICE).to_numpy()
    is_new = (np.diff(rows["process"].to_numpy()) != 0) | (np.diff(device) != 0)
    for first, end in pairwise([0, *(np.flatnonzero(is_new) + 1).tolist(), len(rows)]):
        if end > first:
            yield Gpu(rows["process"][first].as_py(), rows["device"][first].as_py()), rows.slice(first, end - first)
