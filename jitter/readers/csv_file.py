"""CSV files as a source: columns by name in any case, incomplete rows are left out."""

import csv
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from jitter.core.arrow import map_distinct
from jitter.core.errors import UnreadableTraceError, reason_of
from jitter.readers import Advance, first_line
from jitter.readers.columns import ColumnMap, to_int64

_BLOCK_BYTES = 1 << 21
_HEADER_BYTES = 1 << 16


class CsvFile:
    """A CSV file with a header."""

    def __init__(self, path: Path) -> None:
        """Read the header. Raises UnreadableTraceError for a file that cannot be opened."""
        self.path = path
        try:
            names = read_header(path)
        except OSError as error:
            raise UnreadableTraceError(
                f"{path}: cannot be read ({reason_of(error)})", "check the path and its permissions"
            ) from error
        self.columns = [name.lower() for name in names]
        """Column names in lower case, in the file's order."""
        self.cut_rows = 0
        """Number of rows with too few or too many cells, so far."""

    def has(self, *columns: str) -> bool:
        """Return whether the file has all these columns (lower case)."""
        return set(self.columns).issuperset(columns)

    def require(self, *columns: str) -> None:
        """Raise UnreadableTraceError unless the file has all these columns (lower case)."""
        missing = [column for column in columns if column not in self.columns]
        if missing:
            raise UnreadableTraceError(f"{self.path}: no column {', '.join(missing)}", "record again")

    def read(self, columns: ColumnMap, advance: Advance) -> Iterator[dict[str, pa.Array]]:
        """Yield the columns (there: lower case) by name, some rows at a time: int64, null where unknown, and binary.

        Columns that the file lacks are null. Raises UnreadableTraceError for damage beyond single rows.
        """
        integers, texts = columns.select(dict(zip(self.columns, self.columns, strict=True)))
        reported = 0
        try:
            with self.path.open("rb") as file:
                file.readline()
                wanted = {name for name in (*integers.values(), *texts.values()) if name is not None}
                for batch in self._stream(file, wanted) if wanted and file.peek(1) else ():
                    done = file.tell()
                    if batch.num_rows:
                        arrays = dict.fromkeys(integers, pa.nulls(batch.num_rows, pa.int64()))
                        arrays |= dict.fromkeys(texts, pa.nulls(batch.num_rows, pa.binary()))
                        arrays |= {ours: to_int64(batch[theirs]) for ours, theirs in integers.items() if theirs}
                        yield arrays | {ours: _as_utf8(batch[theirs]) for ours, theirs in texts.items() if theirs}
                    advance(done - reported)
                    reported = done
        except pa.ArrowException as error:
            if "Empty CSV" not in str(error):  # nothing but blank lines
                raise UnreadableTraceError(
                    f"{self.path}: no CSV that can be read ({first_line(error)})", "copy it again, or record again"
                ) from error
        advance(self.path.stat().st_size - reported)

    @property
    def is_cut(self) -> bool:
        """Whether the file ends within a row: its last line has no line break."""
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 1))
            return bool(self.cut_rows) and file.read(1) not in (b"\n", b"\r")

    def problems(self) -> list[str]:
        """Return a sentence about incomplete rows, if there are any."""
        if not self.cut_rows:
            return []
        return [f"{self.path.name}: {self.cut_rows} rows are cut or have the wrong number of cells; they were left out"]

    def _stream(self, file: BinaryIO, wanted: set[str]) -> Iterator[pa.RecordBatch]:
        def cut(_row: object) -> str:
            self.cut_rows += 1
            return "skip"

        reader = pa.csv.open_csv(
            file,
            # not UTF-8: Arrow cannot report an incomplete row that is invalid in it
            read_options=pa.csv.ReadOptions(
                use_threads=False, block_size=_BLOCK_BYTES, column_names=self.columns, encoding="latin-1"
            ),
            parse_options=pa.csv.ParseOptions(invalid_row_handler=cut),
            convert_options=pa.csv.ConvertOptions(
                check_utf8=False,
                column_types={name: pa.binary() for name in self.columns},
                include_columns=sorted(wanted),
                strings_can_be_null=False,
            ),
        )
        with closing(reader):
            yield from reader


def _as_utf8(texts: pa.Array) -> pa.Array:
    """Return texts (binary) as the file has them: they were read as Latin-1, and invalid UTF-8 is replaced."""
    words = texts.cast(pa.string())
    if pc.all(pc.string_is_ascii(words)).as_py():
        return texts
    return map_distinct(words, lambda word: word.encode("latin-1").decode("utf-8", "replace").encode(), pa.binary())


def read_header(path: Path) -> list[str]:
    """Return the cells of the first line; empty if there is none or it is not UTF-8. Raises OSError."""
    with path.open("rb") as file:
        first = file.readline(_HEADER_BYTES)
    try:
        cells = next(csv.reader([first.decode("utf-8-sig")]), [])
    except (UnicodeDecodeError, csv.Error):
        return []
    return [cell.strip() for cell in cells]


def sniff_columns(path: Path) -> frozenset[str]:
    """Return the column names of a `.csv` file in lower case; empty for other files and those that cannot be read."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        return frozenset()
    try:
        return frozenset(name.lower() for name in read_header(path))
    except OSError:
        return frozenset()
