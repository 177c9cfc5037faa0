"""Parquet files of one rank: its kernels in one step, and the events on its host; held against their record."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jitter.core.errors import DamagedFileError, reason_of
from jitter.core.files import errors_name
from jitter.core.names.kernels import KINDS, MEMORY
from jitter.core.parallel.executors import cpu_count
from jitter.core.schema import HOST, KERNELS
from jitter.lake.integrity.checksums import checksum, file_checksum
from jitter.lake.integrity.containment import read_lake_file
from jitter.lake.layout import host_file, kernels_file
from jitter.lake.records import RankStepRecord, SourceRecord

KERNEL_TEXTS: Final = tuple(
    field.name for field in KERNELS if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type)
)
"""The columns of `schema.KERNELS` that are read as dictionaries: a step has few distinct texts."""
TYPES_AS_READ: Final = {
    field.name: pa.dictionary(pa.int32(), pa.string()) if field.name in KERNEL_TEXTS else field.type
    for field in KERNELS
}
_KERNEL_FIELDS: Final = {field.name: field.with_type(TYPES_AS_READ[field.name]) for field in KERNELS}
_HOST_FIELDS: Final = {field.name: field for field in HOST}
HOW_TO_READ_AGAIN: Final = "put the file back, or read its trace again: jitter ingest TRACES -o LAKE --replace"
_MOST_ROWS_PER_BYTE: Final = 16
"""A file that states more would fill the memory: rows of a lake take 20 bytes and more each."""
# a lake is many small files: these encodings take half the time and two thirds of the bytes of the defaults
PACKED: Final = {
    field.name: "DELTA_BINARY_PACKED"
    for field in KERNELS
    if field.name.endswith("_ns") or field.name in {"ordinal", "correlation_id"}
}


class WrittenFile(NamedTuple):
    """What a record states of a file."""

    checksum: str
    size: int
    """Bytes."""


def write_kernels(path: Path, rows: pa.Table) -> WrittenFile:
    """Write one rank's step (`schema.KERNELS`) as one row group; make its folder if it is missing."""
    return _write(
        path,
        rows,
        KERNELS,
        compression="snappy",
        use_dictionary=list(KERNEL_TEXTS),
        column_encoding=PACKED,
        write_statistics=False,
    )


def write_host(path: Path, rows: pa.Table) -> WrittenFile:
    """Write the events on a rank's host (`schema.HOST`); make the folder if it is missing."""
    return _write(path, rows, HOST, compression="zstd")


def read_kernels(path: Path, columns: Sequence[str], recorded: str | None = None) -> pa.Table:
    """Read columns of `schema.KERNELS`, in the order given, with texts dictionary-encoded.

    A column that the file lacks, because an older version wrote it, is null. Raises `LakeError` if the file is missing
    or damaged, or its checksum is not the recorded one.
    """
    return _read(path, columns, open_kernels, recorded, _KERNEL_FIELDS)


def read_host(path: Path, columns: Sequence[str], recorded: str | None = None) -> pa.Table:
    """Read columns of `schema.HOST`, in the order given; raise the errors of `read_kernels`."""
    return _read(path, columns, partial(pq.ParquetFile, pre_buffer=False), recorded, _HOST_FIELDS)


def open_kernels(source: Path | pa.BufferReader) -> pq.ParquetFile:
    """Open a parquet file of kernels, with texts read as dictionaries and checksums of pages verified."""
    opened = partial(pq.ParquetFile, source, pre_buffer=False, page_checksum_verification=True)
    try:
        return opened(read_dictionary=list(KERNEL_TEXTS))
    except KeyError:  # an older version wrote it without one of the columns
        present = pq.ParquetFile(source).schema_arrow.names
        return opened(read_dictionary=[name for name in KERNEL_TEXTS if name in present])


def select_columns(rows: pa.Table, columns: Sequence[str], fields: Mapping[str, pa.Field] = _KERNEL_FIELDS) -> pa.Table:
    """Return columns (of `schema.KERNELS` unless `fields` are others), in the order given; those it lacks are null."""
    if rows.num_columns < len(columns):
        zeros = pa.py_buffer(bytes(8 * rows.num_rows))
        for name in columns:
            if name not in rows.schema.names:
                rows = rows.append_column(name, _unknown(rows.num_rows, fields[name].type, zeros))
    return rows.select(list(columns))


def _unknown(rows: int, of_type: pa.DataType, zeros: pa.Buffer) -> pa.Array:
    """Return nulls of this type; `zeros` are 8 bytes a row, which all columns of numbers and texts share."""
    if pa.types.is_dictionary(of_type):
        return pa.DictionaryArray.from_arrays(
            _unknown(rows, of_type.index_type, zeros), pa.array([], of_type.value_type)
        )
    if not pa.types.is_primitive(of_type):
        return pa.nulls(rows, of_type)
    return pa.Array.from_buffers(of_type, rows, [zeros, zeros], null_count=rows)


def unreadable_file_error(path: Path, error: Exception) -> DamagedFileError:
    """Return the error for a file of the lake that is missing, cut off or damaged."""
    return DamagedFileError(path, f"cannot be read ({reason_of(error)})", HOW_TO_READ_AGAIN)


def incomplete_file_error(path: Path) -> DamagedFileError:
    """Return the error for a file that is missing, or of another size than its record states."""
    return DamagedFileError(path, "is missing, or not as its record states", HOW_TO_READ_AGAIN)


def wrong_checksum_error(path: Path) -> DamagedFileError:
    """Return the error for a file that has changed since it was written, or lies in the place of another."""
    return unreadable_file_error(path, ValueError("its checksum is not the recorded one"))


def _write(path: Path, rows: pa.Table, schema: pa.Schema, **options: Any) -> WrittenFile:
    # through memory: what pyarrow does to open a path takes as long as to write a step
    content = pa.BufferOutputStream()
    rows = rows if rows.schema.equals(schema) else rows.cast(schema)
    pq.write_table(rows, content, store_schema=False, write_page_checksum=True, **options)
    written = content.getvalue()
    with errors_name(path):
        try:
            path.write_bytes(written)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(written)
    return WrittenFile(checksum(memoryview(written)), written.size)


def _read(
    path: Path,
    columns: Sequence[str],
    open_file: Callable[[pa.BufferReader], pq.ParquetFile],
    recorded: str | None,
    fields: Mapping[str, pa.Field],
) -> pa.Table:
    try:
        content = read_lake_file(path)
        if recorded is not None and checksum(content) != recorded:
            raise wrong_checksum_error(path)
        # twice as fast as by path; threads gain nothing on files this small, nor does Arrow's own reading ahead
        file = open_file(pa.BufferReader(content))
        if file.metadata.num_rows > _MOST_ROWS_PER_BYTE * len(content):
            raise unreadable_file_error(path, ValueError(f"it states {file.metadata.num_rows} rows"))
        rows = file.read(list(columns), use_threads=False)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise unreadable_file_error(path, error) from None
    rows = select_columns(rows, columns, fields)
    for name, column in zip(columns, rows.columns, strict=True):
        if column.type != fields[name].type or (column.null_count and not fields[name].nullable):
            raise unreadable_file_error(path, ValueError(f"its column {name} is not as an ingest writes it"))
    return rows


_THREADS: Final = 8
_FILES_PER_CALL: Final = 64
_PARQUET: Final = b"PAR1"
"""A parquet file begins and ends with it."""


def read_rank_step(root: Path, held: RankStepRecord, columns: Sequence[str]) -> pa.Table:
    """Read columns of one rank's step, as `parquet.read_kernels` does.

    Raises `LakeError` if the file is missing or damaged, or holds something else than its record states.
    """
    step, rank = held.step, held.record.rank
    assert rank is not None
    path = root / kernels_file(step.key, rank)
    # a record without checksums was written by an older version: the column of ranks is read instead
    extra = ["rank"] if step.checksum is None and "rank" not in columns else []
    rows = read_kernels(path, [*columns, *extra], step.checksum)
    if rows.num_rows != step.rows:
        raise unreadable_file_error(path, ValueError(f"holds {rows.num_rows} rows, and its record {step.rows}"))
    if "kind" in columns:
        counts = {
            value_count["values"]: value_count["counts"] for value_count in pc.value_counts(rows["kind"]).to_pylist()
        }
        if counts.pop(KINDS[MEMORY], 0) != step.memory_activities or not counts.keys() <= set(KINDS):
            raise unreadable_file_error(path, ValueError("its kinds of activities are not those of its record"))
    if step.checksum is None and rows.num_rows:
        rank_bounds = pc.min_max(rows["rank"]).as_py()
        if rank_bounds != {"min": rank, "max": rank}:
            raise unreadable_file_error(
                path, ValueError(f"holds rank {rank_bounds['max']}, and its record rank {rank}")
            )
    return rows.select(list(columns)) if extra else rows


def find_incomplete(root: Path, records: Sequence[SourceRecord]) -> dict[str, Path]:
    """Return the first incomplete parquet file of each recording that has one, by digest.

    A file is incomplete if it is missing, has another size than its record states, or does not begin and end as parquet
    does: a power cut can leave zeros. Contents are not read: 48,000 files took 3 s on two busy cores.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        paths = pool.map(partial(_first_incomplete, root), records, chunksize=1)
        return {record.digest: path for record, path in zip(records, paths, strict=True) if path is not None}


def _first_incomplete(root: Path, record: SourceRecord) -> Path | None:
    assert record.rank is not None
    files = [(kernels_file(step.key, record.rank), step.size) for step in record.steps]
    if record.host_rows:
        files.append((host_file(record.rank, record.digest), record.host_size))
    return next((path for path, size in files if not _is_complete(f"{root}/{path}", size)), None)


def _is_complete(path: str, size: int | None) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        actual_size = os.fstat(file).st_size
        is_parquet = (
            os.pread(file, len(_PARQUET), 0) == _PARQUET == os.pread(file, len(_PARQUET), actual_size - len(_PARQUET))
        )
        return is_parquet and size in (None, actual_size)
    except OSError:
        return False
    finally:
        os.close(file)


def check_files(files: Iterable[tuple[Path, str | None]]) -> None:
    """Raise `LakeError` for the first file that is missing or whose checksum is not the recorded one.

    Files without a recorded checksum pass. For a reader other than this package, such as DuckDB.
    """
    checked_files = [(path, recorded) for path, recorded in files if recorded is not None]
    chunks = [checked_files[first : first + _FILES_PER_CALL] for first in range(0, len(checked_files), _FILES_PER_CALL)]
    with ThreadPoolExecutor(min(cpu_count(), _THREADS)) as pool:
        for _ in pool.map(_check_all, chunks):
            pass


def _check_all(files: Sequence[tuple[Path, str]]) -> None:
    for path, recorded in files:
        try:
            is_intact = file_checksum(path) == recorded
        except OSError as error:
            raise unreadable_file_error(path, error) from None
        if not is_intact:
            raise wrong_checksum_error(path)
