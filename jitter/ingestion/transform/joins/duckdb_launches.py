"""Join launches and activities in DuckDB, one range of correlations or times after another, in bounded memory.

Both tables may exceed memory. Rows are roughly ordered by correlation and by time, so a range of either touches a
small part of the tables, and the join or sort of a range fits in memory whatever the size of the tables.
"""

from itertools import pairwise

import duckdb

from jitter.core.sql import load_sql

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
