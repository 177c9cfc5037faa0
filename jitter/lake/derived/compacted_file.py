"""One compacted file of a step: the rows of many ranks in one parquet file, and what each rank's rows were made from.

The columns are those of `schema.KERNELS` except `duration_ns`, which is end − start. Measured on a step of 960 ranks ×
904 rows: packed differences (DELTA_BINARY_PACKED) without compression are read as fast as plain int64 and take 9.5
instead of 32 bytes for the four times of a row. Values that repeat from rank to rank (names, launch shapes, groups)
take almost no space under snappy, so storing them once per sequence of kernels would gain nothing.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from jitter.core.schema import KERNELS
from jitter.lake.integrity.checksums import file_checksum
from jitter.lake.parquet import PACKED, TYPES_AS_READ, open_kernels, select_columns

GROUP_ROWS = 65_536
"""A row group holds complete ranks and about this number of rows, which bounds memory and lets few ranks be read."""
COLUMNS = tuple(field.name for field in KERNELS if field.name != "duration_ns")
_SCHEMA = pa.schema([pa.field(f.name, TYPES_AS_READ[f.name], f.nullable) for f in KERNELS if f.name in COLUMNS])
_PACKED = {name: PACKED[name] for name in COLUMNS if name in PACKED}
_REPEATING = [name for name in COLUMNS if name not in _PACKED and name != "group_ranks"] + ["group_ranks.list.element"]
_SPANS_KEY = b"jitter.ranks"


class RankSpan(NamedTuple):
    """The rows of one rank in a compacted file, in the file's order."""

    rank: int
    rows: int
    made_from: str
    """See `freshness.made_from`."""


_decode = msgspec.json.Decoder(tuple[RankSpan, ...]).decode


def write_compacted_file(path: Path, groups: Iterable[tuple[Sequence[RankSpan], pa.Table]]) -> None:
    """Write row groups, each with the rows of some ranks in ascending order, as one file."""
    spans: list[RankSpan] = []
    with pq.ParquetWriter(
        path,
        _SCHEMA,
        compression={name: "none" if name in _PACKED else "snappy" for name in COLUMNS},
        use_dictionary=_REPEATING,
        column_encoding=_PACKED,
        write_statistics=["rank"],
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        for own, rows in groups:
            spans += own
            writer.write_table(rows.select(COLUMNS).cast(_SCHEMA).unify_dictionaries(), row_group_size=rows.num_rows)
        writer.add_key_value_metadata({_SPANS_KEY: msgspec.json.encode(spans)})


class CompactedFile:
    """An open compacted file, whose name ends with the checksum of its content.

    Raises `OSError` or `ValueError` if the file is missing, damaged or of another kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.stem.partition(".")[2] != file_checksum(path):
            raise ValueError(f"{path}: is damaged")
        self._file = open_kernels(path)
        metadata = self._file.metadata
        self.spans = _decode((metadata.metadata or {}).get(_SPANS_KEY, b""))
        if sum(span.rows for span in self.spans) != metadata.num_rows:
            raise ValueError(f"{path}: its list of ranks does not fit its rows")
        bounds = accumulate((span.rows for span in self.spans), initial=0)
        self._rows = {span.rank: rows for span, rows in zip(self.spans, pairwise(bounds), strict=True)}
        sizes = (metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
        self._groups = list(pairwise(accumulate(sizes, initial=0)))

    def row_counts(self, ranks: Iterable[int]) -> list[int]:
        """Return the number of rows of each of these ranks."""
        return [last - first for first, last in (self._rows[rank] for rank in ranks)]

    def read(self, ranks: Iterable[int], columns: Sequence[str]) -> pa.Table:
        """Read columns of these ranks, in the order given; only the row groups that hold them are read.

        A column that the file lacks is null, as in `parquet.read_kernels`.
        """
        wanted: list[tuple[int, int]] = []
        for first, last in (self._rows[rank] for rank in ranks):
            if wanted and wanted[-1][1] == first:
                wanted[-1] = (wanted[-1][0], last)
            else:
                wanted.append((first, last))
        touched = [
            number
            for number, (first, last) in enumerate(self._groups)
            if any(first < end and begin < last for begin, end in wanted)
        ]
        rows = select_columns(self._file.read_row_groups(touched, columns=list(columns)), columns)
        offsets = accumulate((self._groups[number][1] - self._groups[number][0] for number in touched), initial=0)
        located = [(*self._groups[number], offset) for number, offset in zip(touched, offsets, strict=False)]
        return pa.concat_tables(
            rows.slice(next(at + first - begin for begin, end, at in located if begin <= first < end), last - first)
            for first, last in wanted
        )
