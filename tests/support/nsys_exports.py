"""Hand-made Nsight Systems exports of a few rows, in SQLite and in parquetdir."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jitter.readers import Recording
from jitter.readers.nsys import READER
from tests.support.databases import open_database, run_sql
from tests.support.reading import Row, read_rows

Tables = Mapping[str, list[Row]]
FORMS = ("sqlite", "parquetdir")
_UNSIGNED = {"globalPid", "globalTid", "globalVid"}


def global_id(pid: int, thread: int = 0, machine: int = 1) -> int:
    return (machine << 48) | (pid << 24) | thread


def kernel(start: int = 100, end: int = 200, name: int = 1, pid: int = 7, **other: Any) -> Row:
    row = {
        "start": start,
        "end": end,
        "deviceId": 0,
        "contextId": 1,
        "streamId": 7,
        "correlationId": 5,
        "globalPid": global_id(pid),
        "demangledName": name,
        "shortName": name,
    }
    row |= dict(zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), (2, 3, 4, 32, 8, 1), strict=True))
    return row | other


def memory(start: int = 300, end: int = 310, pid: int = 7, **other: Any) -> Row:
    row = {"start": start, "end": end, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 6}
    return row | {"globalPid": global_id(pid), "bytes": 4096} | other


def call(start: int = 50, end: int = 60, name: int = 2, pid: int = 7, thread: int = 70, **other: Any) -> Row:
    row = {"start": start, "end": end, "eventClass": 0, "globalTid": global_id(pid, thread), "correlationId": 5}
    return row | {"nameId": name, "returnValue": 0, "callchainId": None} | other


def marker(start: int = 40, end: int | None = 90, kind: int = 59, pid: int = 7, **other: Any) -> Row:
    row = {"start": start, "end": end, "eventType": kind, "text": None, "globalTid": global_id(pid, 70)}
    return row | {"textId": None, "domainId": 0} | other


def string(id_: int, value: str | bytes) -> Row:
    return {"id": id_, "value": value}


STRINGS = [string(1, "void gemm<float>(int)"), string(2, "cudaLaunchKernel_v7000"), string(3, "ncclDevKernel_X")]


def export(**tables: list[Row]) -> dict[str, list[Row]]:
    """An export with one kernel, one call and their names; `tables` replaces or adds whole tables."""
    whole = {"StringIds": STRINGS, "CUPTI_ACTIVITY_KIND_KERNEL": [kernel()], "CUPTI_ACTIVITY_KIND_RUNTIME": [call()]}
    return {name: rows for name, rows in (whole | tables).items() if rows}


def write(path: Path, form: str, tables: Tables) -> Path:
    """Write the tables to `path` (a file, or a folder for parquetdir) and return it."""
    if form == "sqlite":
        write_sqlite(path, tables)
    else:
        write_parquet(path, tables)
    return path


def write_sqlite(path: Path, tables: Tables) -> None:
    path.unlink(missing_ok=True)
    with open_database(path) as connection:
        for table, rows in tables.items():
            key = {"id": " INTEGER PRIMARY KEY"} if table == "StringIds" else {}
            columns = ", ".join(f'"{name}"{key.get(name, "")}' for name in rows[0])
            connection.execute(f"CREATE TABLE {table} ({columns})")
            values = ", ".join("CAST(? AS TEXT)" if _is_text(rows, name) else "?" for name in rows[0])
            connection.executemany(f"INSERT INTO {table} VALUES ({values})", _tuples(rows))


def write_parquet(folder: Path, tables: Tables) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for table, rows in tables.items():
        columns = {name: pa.array([row[name] for row in rows], _type(table, rows, name)) for name in rows[0]}
        pq.write_table(pa.table(columns), folder / f"{table}.parquet")


def add_empty(path: Path, form: str, table: str, columns: list[str]) -> None:
    """Add a table without rows."""
    if form == "parquetdir":
        pq.write_table(pa.table({name: pa.array([], pa.int64()) for name in columns}), path / f"{table}.parquet")
        return
    names = ", ".join(f'"{name}"' for name in columns)
    run_sql(path, f"CREATE TABLE {table} ({names})")


def read(path: Path) -> tuple[Recording, dict[str, list[Row]]]:
    """Everything the reader makes of an export: the recording, and the rows of each table."""
    return read_rows(READER, path)


def _is_text(rows: Iterable[Row], name: str) -> bool:
    return any(isinstance(row[name], str | bytes) for row in rows)


def _tuples(rows: Iterable[Row]) -> Iterable[tuple[Any, ...]]:
    return (tuple(row.values()) for row in rows)


def _type(table: str, rows: Iterable[Row], name: str) -> pa.DataType:
    if any(isinstance(row[name], bytes) for row in rows):
        return pa.binary()
    if _is_text(rows, name) or name == "text":
        return pa.string()
    if name in _UNSIGNED:
        return pa.uint64()
    return pa.int32() if (table, name) == ("StringIds", "id") else pa.int64()
