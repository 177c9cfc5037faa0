"""Files that no reader accepts: formats that jitter does not read, by content or name, and the nearest format."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from jitter.core.errors import JitterError
from jitter.readers.compression import read_head
from jitter.readers.sqlite import connect, is_sqlite

_HEAD_BYTES: Final = 1 << 16
_SHOWN: Final = 5
"""Names of tables, columns or members of a file that a message shows."""
_SHOWN_CHARACTERS: Final = 40
_PACKED: Final = r"(?:\.gz|\.zst)?$"
_EXPORT: Final = "export the report as SQLite: `nsys export -t sqlite --lazy=false REPORT.nsys-rep`"
_AMD: Final = "record with `rocprofv3 --sys-trace -f rocpd` or `-f csv`"
_XPROF: Final = "give the .xplane.pb, which JAX writes beside it and which has all events"
_PYTORCH: Final = "export PyTorch profiles with `prof.export_chrome_trace(...)`"
_EXECUTION: Final = (
    "it holds the operators and no times of GPUs: give the PyTorch profiler's trace of the same steps, which "
    "`prof.export_chrome_trace(...)` writes"
)
_NSYS_TABLE: Final = r"CUPTI_ACTIVITY_KIND_|TARGET_INFO_|NVTX_EVENTS|StringIds"


class UnsupportedFormat(NamedTuple):
    """A profile format that jitter does not read. A file has it if all patterns that are set match."""

    files: str
    """Name of the kind of files, in the plural."""
    instead: str
    """Advice on recording or exporting a format that jitter reads."""
    name: re.Pattern[str] | None = None
    """Pattern of the file's name."""
    head: re.Pattern[bytes] | None = None
    """Pattern at the beginning of the unpacked contents."""
    tails: tuple[re.Pattern[bytes], ...] = ()
    """Patterns of the contents' last part."""


def _name(pattern: str) -> re.Pattern[str]:
    return re.compile(f"(?i){pattern}")


def _head(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode("latin-1"), re.DOTALL)


_FORMATS: Final = (
    UnsupportedFormat(
        "Chakra execution traces",
        _EXECUTION,
        head=_head(r'\s*\{\s*"schema"\s*:\s*"[^"]{0,40}chakra'),
    ),
    UnsupportedFormat(
        "PyTorch execution traces",
        _EXECUTION,
        head=_head(r'\s*\{\s*"schema"\s*:\s*"[\d.]{1,20}"\s*,\s*"pid"\s*:.{0,400}?"nodes"\s*:\s*\['),
    ),
    UnsupportedFormat("Chakra execution traces", _EXECUTION, _name(r"\.et$")),
    UnsupportedFormat(
        "traces of JAX or TensorFlow",
        _XPROF,
        head=_head(r'\s*\{.{0,400}?"traceEvents".{0,8000}?"/(?:device:[GTC]PU:\d+|host:CPU)'),
    ),
    UnsupportedFormat(
        "Nsight Systems exports as JSON", _EXPORT, head=_head(rf'\s*\{{.{{0,60000}}?"[^"]{{0,80}}(?:{_NSYS_TABLE})')
    ),
    UnsupportedFormat(
        "Nsight Systems exports as JSON",
        _EXPORT,
        head=_head(r'\s*\{.{0,60000}?"(?:CudaEvent|NvtxEvent|TraceProcessEvent|GlobalVid|globalTid)"'),
    ),
    UnsupportedFormat(
        "Nsight Systems exports as HDF5", _EXPORT, head=_head(rf"\x89HDF\r\n\x1a\n.{{0,65000}}?(?:{_NSYS_TABLE})")
    ),
    UnsupportedFormat(
        "Nsight Systems exports as Arrow",
        _EXPORT,
        _name(r"^(?:(?:CUPTI_|TARGET_INFO_|NVTX_|META_DATA_|ENUM_|OSRT_).*|StringIds)\.arrow$"),
    ),
    UnsupportedFormat(
        "Nsight Systems exports as Arrow",
        _EXPORT,
        head=_head(rf"(?:ARROW1|\xff\xff\xff\xff).{{0,65000}}?(?:{_NSYS_TABLE})"),
    ),
    UnsupportedFormat(
        "unfinished Nsight Systems reports", "convert with `QdstrmImporter -i FILE`", _name(r"\.qdstrm$")
    ),
    UnsupportedFormat("Nsight Compute reports", "record with `nsys profile -t cuda,nvtx`", _name(r"\.ncu-rep$")),
    UnsupportedFormat(
        "Perfetto traces of other tools, or packed",
        _AMD,
        _name(rf"\.(?:pftrace|perfetto-trace){_PACKED}|perfetto[^/]*\.proto{_PACKED}"),
    ),
    UnsupportedFormat("OTF2 traces", _AMD, _name(r"\.otf2$")),
    UnsupportedFormat("OTF2 traces", _AMD, head=_head(r"OTF2")),
    UnsupportedFormat("protobuf files", _PYTORCH, _name(r"(?<!\.xplane)\.pb$")),
    UnsupportedFormat(
        "Parquet tables of events",
        "give the profiler's own traces, or a folder of `nsys export -t parquetdir`",
        _name(r"\.parquet$"),
        # a table of operators or kernels has columns of both kinds
        tails=(re.compile(rb"(?i)dur|(?:end|stop)_?(?:ns|time)"), re.compile(rb"(?i)kernel|\bop_|operator")),
    ),
)


def unsupported_format(path: Path) -> UnsupportedFormat | None:
    """Return the format of a file; None if it is none of these or unreadable."""
    try:
        head = _beginning(path)
        return next((one for one in _FORMATS if _has(path, head, one)), None)
    except (OSError, JitterError):
        return None


def describe_nearest(path: Path) -> str:
    """Return what a file that no reader accepts resembles, and why it is not that."""
    size = path.stat().st_size
    if not size:
        return "it is empty"
    if is_sqlite(path):
        return _describe_database(path)
    head = _beginning(path)
    if not head:
        return "its packed data is damaged from the beginning on"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith((b"{", b"[")):
        return _describe_json(text)
    return _describe_text(text)


def _describe_text(text: bytes) -> str:
    if b"\0" in text or _is_binary(text):
        return f"binary data of no known kind, which begins with {text[:8].hex(' ')}"
    columns = [word.strip().strip('"') for word in text.partition(b"\n")[0].decode("utf-8", "replace").split(",")]
    if len(columns) > 1:
        return f"a table with the columns {_listed(columns)}, where rocprof's have a kernel's name and its times in ns"
    return "text, and neither JSON nor CSV of a profiler"


def _describe_database(path: Path) -> str:
    try:
        with closing(connect(path)) as connection:
            found = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') LIMIT 1000")
            tables = sorted(str(name) for (name,) in found)
    except (sqlite3.Error, UnicodeDecodeError):
        return "an SQLite database that is damaged"
    if not tables:
        return "an SQLite database without tables"
    return (
        f"an SQLite database with the tables {_listed(tables)}, where nsys' have CUPTI_ACTIVITY_KIND_… and StringIds, "
        "and rocprof's rocpd_…"
    )


def _describe_json(text: bytes) -> str:
    if b'"traceEvents"' in text or (text.startswith(b"[") and b'"ph"' in text):
        kinds = dict.fromkeys(
            found.decode("utf-8", "replace") for found in re.findall(rb'"cat"\s*:\s*"([^"]{1,40})"', text)
        )
        has = f"of the categories {_listed(list(kinds))}" if kinds else "without categories"
        return f"a Chrome trace of another tool: events {has}, where PyTorch's have kernel, cpu_op, cuda_runtime, …"
    members = [_unquoted(name) for name in re.findall(rb'[{,]\s*("(?:[^"\\]|\\.){1,80}")\s*:', text[:4096])]
    has = f" with the members {_listed(list(dict.fromkeys(members)))}" if members else ""
    return f"JSON{has}, and no list of trace events (traceEvents)"


def _unquoted(text: bytes) -> str:
    try:
        return str(json.loads(text))
    except (ValueError, UnicodeDecodeError):
        return text.decode("utf-8", "replace").strip('"')


def _listed(names: list[str]) -> str:
    shown = [name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}…" for name in names[:_SHOWN]]
    return ", ".join([*shown, "…"] if len(names) > _SHOWN else shown)


def _is_binary(head: bytes) -> bool:
    return head[: _HEAD_BYTES // 2].decode("utf-8", "replace").count("\ufffd") > 8


def _has(path: Path, head: bytes, kind: UnsupportedFormat) -> bool:
    if kind.name is not None and not kind.name.search(path.name):
        return False
    if kind.head is not None and not kind.head.match(head):
        return False
    tail = _end(path) if kind.tails else b""
    return all(column.search(tail) for column in kind.tails)


def _beginning(path: Path) -> bytes:
    return read_head(path, _HEAD_BYTES)


def _end(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _HEAD_BYTES))
        return file.read(_HEAD_BYTES)
