"""The lake on disk: where things lie, and how they get there whole or not at all.

Files are written into a staging folder under `LAKE/.staging` and renamed into place. A source's record is written
last, so a source without a record did not happen: running ingest again does it again, with the same result.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jitter.core.errors import LakeError
from jitter.core.schema import HOST, KERNELS

# a lake is many small files: these encodings take half the time and two thirds of the bytes of the defaults
_TEXTS = [field.name for field in KERNELS if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type)]
_INCREASING = {
    field.name: "DELTA_BINARY_PACKED"
    for field in KERNELS
    if field.name.endswith("_ns") or field.name in {"ordinal", "correlation_id"}
}


def write_kernels(path: Path, rows: pa.Table) -> None:
    """Write one rank's step (`schema.KERNELS`) as one row group; its folder is made if need be."""
    _write_parquet(
        path,
        rows,
        KERNELS,
        compression="snappy",
        use_dictionary=_TEXTS,
        column_encoding=_INCREASING,
        write_statistics=False,
    )


def write_host(path: Path, rows: pa.Table) -> None:
    """Write what a host did (`schema.HOST`); its folder is made if need be."""
    _write_parquet(path, rows, HOST, compression="zstd")


def _write_parquet(path: Path, rows: pa.Table, schema: pa.Schema, **how: Any) -> None:
    # through memory: what pyarrow does to open a path takes as long as to write a step
    content = pa.BufferOutputStream()
    rows = rows if rows.schema.equals(schema) else rows.cast(schema)
    pq.write_table(rows, content, store_schema=False, **how)
    try:
        path.write_bytes(content.getvalue())
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.getvalue())


def read_columns(path: Path, columns: Sequence[str], as_codes: Sequence[str] = ()) -> pa.Table:
    """Read columns of a file, texts `as_codes` dictionary-encoded; raises `LakeError` if it cannot be read."""
    try:
        # twice as fast as by path; threads gain nothing on files this small
        content = pa.BufferReader(path.read_bytes())
        read = pq.ParquetFile(content, read_dictionary=list(as_codes)).read(list(columns), use_threads=False)
        return read if read.num_columns == len(columns) else _with_later_columns(read, columns, as_codes)
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable_file_error(path, error) from None


def _with_later_columns(read: pa.Table, columns: Sequence[str], as_codes: Sequence[str]) -> pa.Table:
    """Return the table with the columns that an older version did not write, null in all rows."""
    for name in columns:
        if name not in read.column_names:
            kind = pa.dictionary(pa.int32(), pa.string()) if name in as_codes else KERNELS.field(name).type
            read = read.append_column(name, pa.nulls(read.num_rows, kind))
    return read.select(list(columns))


def unreadable_file_error(path: Path, error: Exception) -> LakeError:
    """The error for a file of the lake that is gone, cut or not to be read."""
    why = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
    return LakeError(f"{path}: cannot be read ({why})", "put the file back, or ingest its trace into another lake")
