"""Tables of an Nsight Systems export, SQLite or parquet (`--type parquetdir`), as streams of batches; their names."""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jitter.core.errors import UnreadableTraceError
from jitter.core.numeric.arrays import Ints, distinct_rows
from jitter.readers.columns import ColumnMap, Interner, complete_columns, look_up, to_int64
from jitter.readers.sqlite import (
    DAMAGE,
    Database,
    connect,
    damage_error,
    describe_no_integers,
    is_sqlite,
    where_in,
)

KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH_TRACE: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
OSRT: Final = "OSRT_API"
SCHEDULING: Final = "SCHED_EVENTS"
OVERHEAD: Final = "PROFILER_OVERHEAD"
CUPTI_OVERHEAD: Final = "CUPTI_ACTIVITY_KIND_OVERHEAD"
CALL_CHAINS: Final = "CUDA_CALLCHAINS"
NVTX: Final = "NVTX_EVENTS"
STRINGS: Final = "StringIds"

_BATCH_ROWS: Final = 65_536
_TEXT_BATCH_ROWS: Final = 16_384
"""Rows of a batch with texts (NVTX), which are long: fewer rows make the same few MB."""
_OF_NSYS: Final = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "TARGET_INFO_", "META_DATA_", "EXPORT_META_DATA")
_HEAD_BYTES: Final = 1 << 18
_BUFFER_BYTES: Final = 1 << 20
_AGAIN: Final = "copy it again, or export the report again: nsys export --type {} REPORT.nsys-rep"


class RowFilter(NamedTuple):
    """Keeps the rows whose integer `column` is one of `values`; all rows of a table without the column."""

    column: str
    values: Sequence[int]


def is_export(path: Path) -> bool:
    """Return whether a file or folder is such an export, possibly damaged. Raises OSError if it cannot be opened."""
    if path.is_dir():
        return _are_of_nsys([file.stem for file in path.glob("*.parquet")])
    if not is_sqlite(path):
        return False
    try:
        with closing(connect(path)) as connection:
            return _are_of_nsys([name for (name,) in connection.execute("SELECT name FROM sqlite_master")])
    except (sqlite3.Error, UnicodeDecodeError):
        # too damaged to list its tables: look for their definitions in the first pages
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        return b"CREATE TABLE StringIds" in head and (b"CUPTI_ACTIVITY_KIND_" in head or b"TARGET_INFO_" in head)


def _are_of_nsys(tables: Sequence[str]) -> bool:
    """Return whether these are tables of Nsight Systems; nvprof and rocpd have no StringIds."""
    return STRINGS in tables and any(table.startswith(_OF_NSYS) for table in tables)


def small_rows(
    tables: "Tables", table: str, integers: Collection[str], texts: Collection[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a small table."""
    for batch in tables.read(table, [*integers], [*texts]):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class SqliteTables(Database):
    """The tables of one SQLite export. Methods raise UnreadableTraceError where it is damaged."""

    export_type = "sqlite"
    """Name of this kind in `nsys export --type`."""
    what = "export"
    if_damaged = _AGAIN.format(export_type)
    if_unfinished = "let `nsys export` finish, or export the report again"

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table; empty if the export has no such table."""
        return self.tables.get(table, frozenset())

    def read(
        self, table: str, integers: Sequence[str], texts: Sequence[str] = (), only: RowFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield non-empty batches: integers as int64, texts as binary, null where unknown or this version lacks them.

        None of a table that this version lacks, or of which it has none of these columns.
        """
        wheres = [""]
        if only is not None and only.column in self.columns(table):
            wheres = where_in(*only)
        columns = ColumnMap(*({name: name for name in names} for names in (integers, texts)))
        for where in wheres:
            yield from self.read_table(table, columns, _TEXT_BATCH_ROWS if texts else _BATCH_ROWS, where)


class ParquetTables:
    """The tables of one parquetdir export, as `SqliteTables`. The path is the folder."""

    export_type = "parquetdir"

    def __init__(self, folder: Path) -> None:
        """List the files without reading them."""
        self.path = folder
        self._files = {file.stem: file for file in sorted(folder.glob("*.parquet"))}
        self.size = sum(file.stat().st_size for file in self._files.values())
        self._no_integers: Counter[str] = Counter()
        self._columns: dict[str, frozenset[str]] = {}

    def columns(self, table: str) -> frozenset[str]:
        if table not in self._files:
            return frozenset()
        if table not in self._columns:
            with self._open(table) as file:
                self._columns[table] = frozenset(file.schema_arrow.names)
        return self._columns[table]

    def count(self, table: str) -> int:
        with self._open(table) as file:
            return int(file.metadata.num_rows)

    def read(
        self, table: str, integers: Sequence[str], texts: Sequence[str] = (), only: RowFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        has = self.columns(table)
        if has.isdisjoint((*integers, *texts)):
            return
        only = only if only is not None and only.column in has else None
        columns = [name for name in {*integers, *texts, *([only.column] if only else [])} if name in has]
        try:
            with self._open(table) as file:
                for batch in file.iter_batches(_TEXT_BATCH_ROWS if texts else _BATCH_ROWS, columns=columns):
                    rows = self._typed(batch, columns, texts)
                    if only is not None:
                        rows = rows.filter(pc.is_in(rows[only.column], value_set=pa.array(only.values, pa.int64())))
                    if rows.num_rows:
                        yield complete_columns(rows, integers, texts)
        except DAMAGE as error:
            raise self._damaged(self._files[table], error) from error

    def problems(self) -> list[str]:
        return describe_no_integers(self._no_integers)

    def _typed(self, batch: pa.RecordBatch, columns: Sequence[str], texts: Sequence[str]) -> pa.RecordBatch:
        arrays = []
        for name in columns:
            array = batch.column(name)
            array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
            arrays.append(array.cast(pa.binary()) if name in texts else to_int64(array))
            self._no_integers[name] += arrays[-1].null_count - array.null_count
        return pa.RecordBatch.from_arrays(arrays, list(columns))

    def _open(self, table: str) -> pq.ParquetFile:
        path = self._files[table]
        try:
            # buffered: without it a whole row group, here possibly the table, is loaded before its first row
            return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except DAMAGE as error:
            raise self._damaged(path, error) from error

    def _damaged(self, path: Path, error: BaseException) -> UnreadableTraceError:
        return damage_error(path, error, "export", _AGAIN.format(self.export_type))


Tables = SqliteTables | ParquetTables
NameKey = int | str | None
"""The key of a name until it is looked up: an id of StringIds, or the name itself."""
_DIRECTIONS: Final = (
    *("Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array"),
    *("Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer"),
    *("Unified Host-to-Device", "Unified Device-to-Host", "Unified Device-to-Device"),
)
_MEMORY_KINDS: Final = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
_OF_COPIES: Final = ("copyKind", "srcKind", "dstKind")
_HOST_KINDS: Final = frozenset({"Pageable", "Pinned"})


class ExportStrings:
    """Rows of StringIds by id."""

    def __init__(self, tables: Tables, ids: Ints) -> None:
        """Read the rows with these ids (any order, no duplicates). Raises what `tables` raises."""
        batches: list[Any] = []
        if len(ids):
            batches = list(tables.read(STRINGS, ["id"], ["value"], RowFilter("id", ids.tolist())))
        strings = pa.Table.from_batches(batches, pa.schema([("id", pa.int64()), ("value", pa.binary())]))
        strings = strings.filter(strings["id"].is_valid()).sort_by("id").combine_chunks()
        self._ids = strings["id"].to_numpy()
        self._values = pa.concat_arrays(strings["value"].chunks) if len(strings) else pa.array([], pa.binary())

    def at(self, ids: pa.Array) -> pa.Array:
        """Return the strings (binary) of ids (int64); null where the id is null or absent."""
        places = look_up(self._ids, np.arange(len(self._ids)), ids.fill_null(0).to_numpy())
        absent = (places < 0) | ids.is_null().to_numpy(zero_copy_only=False)
        return self._values.take(pa.array(places, pa.int64(), mask=absent))


def read_registered_strings(tables: Tables, table: str, only: RowFilter) -> ExportStrings:
    """Return the strings that a table's `textId` refers to, from a first pass over that column."""
    ids = np.array([], np.int64)
    for batch in tables.read(table, ["textId"], only=only):
        ids = np.union1d(ids, pc.drop_null(batch.column(0)).to_numpy())
    return ExportStrings(tables, ids)


def decode_utf8(values: pa.Array) -> tuple[pa.Array, int]:
    """Return binary values as strings, and how many were invalid UTF-8 (invalid bytes are replaced). Nulls stay."""
    try:
        return values.cast(pa.string()), 0
    except pa.ArrowInvalid:
        words = values.to_pylist()
        texts = [None if word is None else word.decode("utf-8", "replace") for word in words]
        invalid = sum(text is not None and text.encode() != word for word, text in zip(words, texts, strict=True))
        return pa.array(texts, pa.string()), invalid


def resolve_names(tables: Tables, keys: Sequence[NameKey]) -> tuple[list[str], int, int]:
    """Return the names of keys.

    Returns the names, how many ids have none (the name then says so), and how many names were invalid UTF-8.
    """
    ids = np.array(sorted(key for key in keys if isinstance(key, int)), np.int64)
    texts, invalid = decode_utf8(ExportStrings(tables, ids).at(pa.array(ids)))
    by_id = dict(zip(ids.tolist(), texts.to_pylist(), strict=True))
    names = [key if isinstance(key, str) else by_id.get(key) for key in keys]
    resolved = [
        f"[name {key} is not in the export]" if name is None else name for key, name in zip(keys, names, strict=True)
    ]
    return resolved, names.count(None), invalid


def name_copies(rows: pa.RecordBatch, names: Interner[NameKey], labels: Mapping[int, str]) -> pa.Array:
    """Return the numbers in `names` of copies: `[CUDA memcpy Host-to-Device (Pageable -> Device)]`.

    The name has the direction, and the memory of both ends where one is host memory. `labels` are the export's own
    names of directions that are not known here.
    """
    columns = [rows[name].fill_null(-1).to_numpy() for name in _OF_COPIES]
    first, copy = distinct_rows(*columns)

    def name(kind: int, *places: int) -> str:
        direction = _DIRECTIONS[kind] if 0 <= kind < len(_DIRECTIONS) else labels.get(kind, "Unknown")
        ends = [_MEMORY_KINDS[place] for place in places if 0 <= place < len(_MEMORY_KINDS)]
        memory = f" ({' -> '.join(ends)})" if len(ends) == 2 and _HOST_KINDS.intersection(ends) else ""
        return f"[CUDA memcpy {direction}{memory}]"

    numbers = [names.position(name(*(int(column[at]) for column in columns))) for at in first.tolist()]
    return pa.array(np.array(numbers, np.int32)[copy])
