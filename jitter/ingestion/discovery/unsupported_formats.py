"""Profile formats that jitter does not read, with the command that records or exports a supported one."""

import re
from pathlib import Path
from typing import Final, NamedTuple

_HEAD_BYTES: Final = 1 << 16
_CHAKRA_HEAD: Final = re.compile(rb'"schema"\s*:\s*"[^"]*chakra')

_EVENT_COLUMNS: Final = (re.compile(rb"(?i)dur|(?:end|stop)_?(?:ns|time)"), re.compile(rb"(?i)kernel|\bop_|operator"))
"""A table of operators or kernels has columns of both kinds."""


class UnsupportedFormat(NamedTuple):
    """A profile format that jitter does not read."""

    pattern: re.Pattern[str]
    files: str
    """Name of the kind of files, in the plural."""
    instead: str
    """Advice on recording or exporting a format that jitter reads."""


_FORMATS: Final = (
    UnsupportedFormat(
        re.compile(r"\.xplane\.pb$"),
        "XProf profiles of JAX or TensorFlow",
        "record with `nsys profile -t cuda,nvtx` or `rocprofv3 --sys-trace`",
    ),
    UnsupportedFormat(
        re.compile(r"\.pb$"), "protobuf files", "export PyTorch profiles with `prof.export_chrome_trace(...)`"
    ),
    UnsupportedFormat(
        re.compile(r"\.qdstrm$"), "unfinished Nsight Systems reports", "convert with `QdstrmImporter -i FILE`"
    ),
    UnsupportedFormat(re.compile(r"\.ncu-rep$"), "Nsight Compute reports", "record with `nsys profile -t cuda,nvtx`"),
    UnsupportedFormat(
        re.compile(r"\.(?:pftrace|perfetto-trace)$"),
        "Perfetto traces",
        "record with `rocprofv3 --sys-trace -f rocpd` or `-f csv`",
    ),
    UnsupportedFormat(
        re.compile(r"\.otf2$"), "OTF2 traces", "record with `rocprofv3 --sys-trace -f rocpd` or `-f csv`"
    ),
    _CHAKRA := UnsupportedFormat(
        re.compile(r"\.et$"), "Chakra execution traces", "export PyTorch profiles with `prof.export_chrome_trace(...)`"
    ),
)


_PARQUET: Final = UnsupportedFormat(
    re.compile(r"\.parquet$"),
    "Parquet tables of events",
    "give the profiler's own traces, or a folder of `nsys export -t parquetdir`",
)


def unsupported_format(path: Path) -> UnsupportedFormat | None:
    """Return the format of a file; None if it is none of these or unreadable.

    JSON is known by its beginning, Parquet by the column names at its end, other formats by their names.
    """
    try:
        if path.suffix == ".json":
            return _CHAKRA if _CHAKRA_HEAD.search(_part(path, at_end=False)) else None
        if path.suffix == ".parquet":
            tail = _part(path, at_end=True)
            return _PARQUET if all(column.search(tail) for column in _EVENT_COLUMNS) else None
    except OSError:
        return None
    return next((one for one in _FORMATS if one.pattern.search(path.name)), None)


def _part(path: Path, *, at_end: bool) -> bytes:
    with path.open("rb") as file:
        if at_end:
            file.seek(max(0, path.stat().st_size - _HEAD_BYTES))
        return file.read(_HEAD_BYTES)
