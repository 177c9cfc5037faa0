"""Tables of an Nsight Systems export as a folder of parquet files (`--type=parquetdir`), one per table."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jitter.readers.integers import to_int64
from jitter.readers.nsys.tables import BATCH_ROWS, TEXT_BATCH_ROWS, RowFilter, damage_error, looks_like_nsys
from jitter.readers.sqlite import DAMAGE

_BUFFER_BYTES = 1 << 20


def is_parquet_export(folder: Path) -> bool:
    """Return whether a folder is such an export. Raises OSError if it cannot be listed."""
    return looks_like_nsys([file.stem for file in folder.glob("*.parquet")])


class ParquetTables:
    """The tables of one parquetdir export; see `tables.Tables`. Its path is the folder."""

    export_type = "parquetdir"

    def __init__(self, folder: Path) -> None:
        """List the files without reading them."""
        self.path = folder
        self._files = {file.stem: file for file in sorted(folder.glob("*.parquet"))}
        self.size = sum(file.stat().st_size for file in self._files.values())
        self.no_integers: Counter[str] = Counter()
        self._columns: dict[str, frozenset[str]] = {}

    def columns(self, table: str) -> frozenset[str]:
        if table not in self._files:
            return frozenset()
        if table not in self._columns:
            with self._open(table) as file:
                self._columns[table] = frozenset(file.schema_arrow.names)
        return self._columns[table]

    def has_rows(self, table: str) -> bool:
        return self.rows(table) > 0

    def rows(self, table: str) -> int:
        with self._open(table) as file:
            return int(file.metadata.num_rows)

    def read(
        self, table: str, integers: Sequence[str], texts: Sequence[str] = (), only: RowFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        names = [*integers, *texts]
        kept = None if only is None else pa.array(only.values, pa.int64())
        columns = names if only is None or only.column in names else [*names, only.column]
        with self._open(table) as file:
            for batch in file.iter_batches(TEXT_BATCH_ROWS if texts else BATCH_ROWS, columns=columns):
                arrays = {name: to_int64(_plain(batch.column(name))) for name in columns if name not in texts}
                for name, array in arrays.items():
                    self.no_integers[name] += array.null_count - batch.column(name).null_count
                arrays |= {name: _plain(batch.column(name)).cast(pa.binary()) for name in texts}
                rows = pa.RecordBatch.from_arrays([arrays[name] for name in names], names)
                if only is not None:
                    rows = rows.filter(pc.is_in(arrays[only.column], value_set=kept))
                if rows.num_rows:
                    yield rows

    def _open(self, table: str) -> pq.ParquetFile:
        path = self._files[table]
        try:
            # buffered: without it a whole row group, here possibly the table, is loaded before its first row
            return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except DAMAGE as error:
            raise damage_error(path, error, self.export_type) from error


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
