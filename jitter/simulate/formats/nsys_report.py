"""Rows of a report, and the two containers that Nsight Systems exports to."""

from collections.abc import Sequence
from contextlib import closing
from itertools import repeat
from pathlib import Path
from typing import Any

from jitter.simulate.complete_file import complete_file
from jitter.simulate.formats.nsys_tables import Column, parse_columns


class NsysReport:
    """The rows of a report, by table."""

    def __init__(self, tables: dict[str, str]) -> None:
        self.columns: dict[str, list[Column]] = {name: parse_columns(spec) for name, spec in tables.items()}
        self.rows: dict[str, list[Sequence[Any]]] = {name: [] for name in tables}
        self.strings: dict[str | bytes, int] = {}

    def string(self, text: str | bytes) -> int:
        """Return the id of a string."""
        return self.strings.setdefault(text, len(self.strings) + 1)

    def add(self, table: str, count: int, **values: object) -> None:
        """Add rows: a list holds a value per row, another value is for all rows. A missing one is null or 0."""
        if table not in self.rows:
            return
        given = []
        for column in self.columns[table]:
            value = values.get(column.name, ("" if column.kind == "text" else 0) if column.required else None)
            given.append(value if isinstance(value, list) else repeat(value, count))
        self.rows[table] += zip(*given, strict=False)


def write_sqlite(report: NsysReport, path: Path) -> Path:
    """Write a SQLite file, replacing an existing one."""
    import sqlite3

    path.unlink(missing_ok=True)
    with complete_file(path), closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA journal_mode = OFF")
        file.execute("PRAGMA synchronous = OFF")
        file.execute("BEGIN")
        for table, described in report.columns.items():
            file.execute(f"CREATE TABLE {table} ({', '.join(map(_declared, described))})")
            # invalid UTF-8 is stored as its bytes, declared as text
            marks = ["CAST(? AS TEXT)" if c.kind == "text" and table == "StringIds" else "?" for c in described]
            file.executemany(f"INSERT INTO {table} VALUES ({', '.join(marks)})", report.rows[table])
        file.execute("COMMIT")
    return path


def _declared(column: Column) -> str:
    key = " PRIMARY KEY" if column.is_key else ""
    # the exports declare bytes as text, too
    kind = "TEXT" if column.kind == "blob" else column.kind.upper()
    return f'"{column.name}" {kind}{" NOT NULL" if column.required else ""}{key}'


def write_parquet(report: NsysReport, folder: Path) -> Path:
    """Write a folder with one Parquet file per table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    kinds = {"integer": pa.int64(), "text": pa.string(), "real": pa.float64(), "blob": pa.binary()}
    special = {
        "globalTid": pa.uint64(),
        "endGlobalTid": pa.uint64(),
        "globalPid": pa.uint64(),
        "globalVid": pa.uint64(),
    }
    for table, described in report.columns.items():
        rows = report.rows[table]
        by_column = list(zip(*rows, strict=True)) or [()] * len(described)
        arrays, fields = [], []
        for column, values in zip(described, by_column, strict=True):
            kind = special.get(column.name, kinds[column.kind])
            if table == "StringIds" and column.name == "id":
                kind = pa.int32()
            if column.kind == "text" and any(isinstance(v, bytes) for v in values):
                raw = [v if isinstance(v, bytes) else v.encode() for v in values]
                arrays.append(pa.array(raw, pa.binary()).view(pa.string()))
            else:
                arrays.append(pa.array(values, kind))
            fields.append(pa.field(column.name, kind, nullable=not column.required))
        with complete_file(folder / f"{table}.parquet") as path:
            pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path)
    return folder
