"""Tables of an Nsight Systems export, the same in both export types, read as streams of batches."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from jitter.core.errors import UnreadableTraceError
from jitter.readers import first_line

KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH_TRACE: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
OSRT: Final = "OSRT_API"
SCHEDULING: Final = "SCHED_EVENTS"
CALL_CHAINS: Final = "CUDA_CALLCHAINS"
NVTX: Final = "NVTX_EVENTS"
STRINGS: Final = "StringIds"

BATCH_ROWS: Final = 65_536
TEXT_BATCH_ROWS: Final = 16_384
"""Rows of a batch with texts (NVTX), which are long: fewer rows make the same few MB."""

_OF_NSYS: Final = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "TARGET_INFO_", "META_DATA_", "EXPORT_META_DATA")


class RowFilter(NamedTuple):
    """Keeps the rows whose integer `column` is one of `values`."""

    column: str
    values: Sequence[int]


class Tables(Protocol):
    """The tables of one export. Methods raise `sqlite.DAMAGE` where it is damaged."""

    path: Path
    size: int
    """Bytes of the export."""
    export_type: str
    """Name of this kind in `nsys export --type`."""
    no_integers: Counter[str]
    """Number of values read so far that should be integers and state none, by column."""

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table; empty if the export has no such table."""
        ...

    def has_rows(self, table: str) -> bool:
        """Return whether an existing table has rows."""
        ...

    def rows(self, table: str) -> int:
        """Return the approximate number of rows, for progress, without reading the table."""
        ...

    def read(
        self, table: str, integers: Sequence[str], texts: Sequence[str] = (), only: RowFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield non-empty batches of existing columns: integers as int64, texts as binary, null where unknown."""
        ...


def looks_like_nsys(tables: Sequence[str]) -> bool:
    """Return whether these are tables of Nsight Systems; nvprof and rocpd have no StringIds."""
    return STRINGS in tables and any(table.startswith(_OF_NSYS) for table in tables)


def damage_error(path: Path, error: BaseException, export_type: str) -> UnreadableTraceError:
    """Return the error for an export that a library could not read."""
    if isinstance(error, OSError) and error.strerror:
        return UnreadableTraceError(f"{path}: cannot be read ({error.strerror})", "check the path and its permissions")
    return UnreadableTraceError(
        f"{path}: the export is damaged or cut short ({first_line(error)})",
        f"copy it again, or export the report again: nsys export --type {export_type} REPORT.nsys-rep",
    )
