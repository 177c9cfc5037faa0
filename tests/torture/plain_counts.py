"""The number of kernels in a source, by a plain reading that shares no code with jitter's readers."""

import csv
import gzip
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def is_counted(source: str) -> bool:
    """Return whether a plain reading of this kind of source exists: of binary protobuf there is none."""
    return source in _COUNTS


def count_kernels(source: str, path: Path) -> int | None:
    """Return the number of kernels in the (damaged) source at `path`; None if a plain reading fails."""
    try:
        return _COUNTS[source](path)
    except Exception:  # damage of any kind
        return None


def _sqlite(path: Path, tables: str, column: str) -> int:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        named = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE ?", (tables,))
        rows = [database.execute(f'SELECT {column} FROM "{name}" NOT INDEXED').fetchall() for (name,) in named]
    return len([row for found in rows for row in found])


def _nsys(path: Path) -> int:
    return _sqlite(path, "CUPTI_ACTIVITY_KIND_KERNEL", "start")


def _nsys_parquet(path: Path) -> int:
    return pq.read_table(path / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").num_rows


def _kineto(path: Path) -> int:
    events = json.loads(_text(path))["traceEvents"]
    return sum(isinstance(event, dict) and event.get("cat") == "kernel" for event in events)


def _rocprofv3_json(path: Path) -> int:
    tools: list[dict[str, Any]] = json.loads(_text(path))["rocprofiler-sdk-tool"]
    return sum(len(tool["buffer_records"].get("kernel_dispatch", ())) for tool in tools)


def _text(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


def _csv_rows(path: Path) -> int:
    with path.open(newline="") as file:
        header, *rows = [row for row in csv.reader(file, strict=True) if row]
    return sum(len(row) == len(header) for row in rows)


_COUNTS: dict[str, Callable[[Path], int]] = {
    "nsys sqlite": _nsys,
    "nsys parquetdir": _nsys_parquet,
    "kineto": _kineto,
    "kineto gzip": _kineto,
    "rocpd": lambda path: _sqlite(path, "rocpd_kernel_dispatch%", "start"),
    "rocprofv3 csv": _csv_rows,
    "rocprofv3 json": _rocprofv3_json,
    "rocprof v1": lambda path: _sqlite(path, "OPS", "BeginNs"),
    "rocprof v2": _csv_rows,
    "rpd": lambda path: _sqlite(path, "rocpd_op", "start"),
}
