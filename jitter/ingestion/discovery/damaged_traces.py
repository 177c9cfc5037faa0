"""Evidence in the name or contents of a file that no reader accepts: it is a damaged trace, not another file."""

import re
from pathlib import Path
from typing import Final

from jitter.readers.compression import is_packed, read_head

_HEAD_BYTES: Final = 1 << 16
_TRACE_SUFFIX: Final = re.compile(
    r"(?i)\.(?:sqlite3?|db|rpd|rocpd)$|\.pt\.trace\.json(?:\.gz|\.zst)?$|kernel_trace\.csv$|(?:^|_)results(?:_.*)?\.csv$"
    r"|(?:^|_)results\.json(?:\.gz)?$|(?:trace|rank|kineto|profile|worker)[^/]*\.json(?:\.gz|\.zst)?$"
)
"""Names that only traces have; an empty file of such a name is a damaged trace."""
_TRACES_ONLY: Final = (".pt.trace.json", ".pt.trace.json.gz", ".pt.trace.json.zst", ".rpd", "kernel_trace.csv")
"""Endings of names that are a trace's, whatever the contents."""
_TRACE_START: Final = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"(?:traceEvents|schemaVersion|rocprofiler-sdk-tool)"')
_ROCPROF_JSON: Final = re.compile(rb'"(?:rocprofiler-sdk-tool|buffer_records|kernel_dispatch)"')
_PACKED_JSON: Final = (".json.gz", ".json.zst")
_DATABASES: Final = (".sqlite", ".sqlite3", ".db", ".rpd", ".rocpd")
_TABLES: Final = re.compile(rb"rocpd_(?:op|api|string|kernel_dispatch|info_)|CUPTI_ACTIVITY_KIND_|\bBeginNs\b")
"""Names of tables and columns of profilers' databases."""
_CSV_COLUMNS: Final = (
    re.compile(rb"(?i)kernel_?name|dispatch_?id"),
    re.compile(rb"(?i)(?:begin|start|end)_?(?:ns|timestamp)"),
)
"""Columns of which a trace has at least one each."""


def is_damaged_trace(path: Path) -> bool:
    """Return whether the contents or the name of a file that no reader accepts show that it is a trace."""
    if path.stat().st_size == 0:
        return path.suffix != ".sqlite" and _TRACE_SUFFIX.search(path.name) is not None
    name = path.name.lower()
    if name.endswith(_TRACES_ONLY):
        return True
    if name.endswith((".json", *_PACKED_JSON)):
        return _is_invalid_pack(path) or _is_json_trace(read_head(path, _HEAD_BYTES))
    return _is_table_of_trace(name, _head(path))


def describe_damage(path: Path) -> str:
    """Return what is wrong with a damaged trace, for a message."""
    size = path.stat().st_size
    if size == 0:
        return "0 bytes"
    if _is_invalid_pack(path):
        return f"{size:,} bytes that are not valid {'zstd' if path.suffix.lower() == '.zst' else 'gzip'} data"
    return f"{size:,} bytes; no reader recognizes them"


def _is_json_trace(head: bytes) -> bool:
    if _ROCPROF_JSON.search(head):
        return True
    # with events, it is a trace of another tool
    return _TRACE_START.match(head) is not None and b'"ph"' not in head


def _is_table_of_trace(name: str, head: bytes) -> bool:
    """Return whether a database or CSV file with this name and beginning is a trace."""
    if name.endswith(_DATABASES):
        return _TABLES.search(head) is not None
    header = head.partition(b"\n")[0]
    return (
        name.endswith(".csv")
        and _TRACE_SUFFIX.search(name) is not None
        and all(column.search(header) for column in _CSV_COLUMNS)
    )


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)


def _is_invalid_pack(path: Path) -> bool:
    """Return whether the name says that the data is packed, and nothing can be unpacked."""
    return path.name.lower().endswith(_PACKED_JSON) and not (is_packed(path) and read_head(path, _HEAD_BYTES))
