"""One part of a compacted step: many ranks' rows in one parquet file, and which recordings they came from.

The columns are the lake's (`schema.KERNELS`) but for `duration_ns`, which is end − start. Measured on a step of 960
ranks × 904 rows: differences packed (DELTA_BINARY_PACKED) without compression are read as fast as plain int64 and
take 9.5 instead of 32 bytes for the four times of a row; what repeats from rank to rank (names, launch shapes,
groups) shrinks to nothing under snappy, so that keeping it once for ranks of one sequence would gain nothing.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from jitter.core.schema import KERNELS

GROUP_ROWS = 65_536
"""A row group holds whole ranks, and about this many rows: memory is bounded by it, a few ranks are read alone."""
COLUMNS = tuple(field.name for field in KERNELS if field.name != "duration_ns")
TEXTS = tuple(f.name for f in KERNELS if pa.types.is_dictionary(f.type) or pa.types.is_string(f.type))
"""Read as dictionary codes: a step has few distinct texts."""
_SCHEMA = pa.schema(
    [
        pa.field(f.name, pa.dictionary(pa.int32(), pa.string()) if f.name in TEXTS else f.type, f.nullable)
        for f in KERNELS
        if f.name in COLUMNS
    ]
)
_PACKED = {
    name: "DELTA_BINARY_PACKED" for name in COLUMNS if name.endswith("_ns") or name in {"ordinal", "correlation_id"}
}
_REPEATING = [name for name in COLUMNS if name not in _PACKED and name != "group_ranks"] + ["group_ranks.list.element"]
_PIECES = b"jitter.pieces"


class RankSpan(NamedTuple):
    """One rank's rows in a part; `stamp` names the recording they came from."""

    rank: int
    rows: int
    stamp: str


_decode = msgspec.json.Decoder(tuple[RankSpan, ...]).decode


def write_compacted_file(path: Path, groups: Iterable[tuple[Sequence[RankSpan], pa.Table]]) -> None:
    """Write row groups, each some ranks' rows in ascending order, as one file."""
    pieces: list[RankSpan] = []
    with pq.ParquetWriter(
        path,
        _SCHEMA,
        compression={name: "none" if name in _PACKED else "snappy" for name in COLUMNS},
        use_dictionary=_REPEATING,
        column_encoding=_PACKED,
        write_statistics=["rank"],
        store_schema=False,
    ) as writer:
        for its, rows in groups:
            pieces += its
            writer.write_table(rows.select(COLUMNS).cast(_SCHEMA).unify_dictionaries(), row_group_size=rows.num_rows)
        writer.add_key_value_metadata({_PIECES: msgspec.json.encode(pieces)})


class CompactedFile:
    """A part, opened; what it holds is found by rank. Raises `OSError` or `ValueError` if it is none of ours."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = pq.ParquetFile(path, read_dictionary=list(TEXTS))
        metadata = self._file.metadata
        self.pieces = _decode((metadata.metadata or {}).get(_PIECES, b""))
        if sum(piece.rows for piece in self.pieces) != metadata.num_rows:
            raise ValueError(f"{path}: its list of ranks does not fit its rows")
        ends = accumulate((piece.rows for piece in self.pieces), initial=0)
        self._spans = {piece.rank: span for piece, span in zip(self.pieces, pairwise(ends), strict=True)}
        sizes = (metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
        self._groups = list(pairwise(accumulate(sizes, initial=0)))

    def rows_of(self, ranks: Iterable[int]) -> list[int]:
        """How many rows each of these ranks has."""
        return [end - first for first, end in (self._spans[rank] for rank in ranks)]

    def read(self, ranks: Iterable[int], columns: Sequence[str]) -> pa.Table:
        """Read these columns of these ranks, in the order given; only the row groups that hold them are touched."""
        spans: list[tuple[int, int]] = []
        for first, end in (self._spans[rank] for rank in ranks):
            if spans and spans[-1][1] == first:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((first, end))
        touched = [
            number
            for number, (first, end) in enumerate(self._groups)
            if any(first < its_end and its_first < end for its_first, its_end in spans)
        ]
        rows = self._file.read_row_groups(touched, columns=list(columns))
        at = accumulate((self._groups[number][1] - self._groups[number][0] for number in touched), initial=0)
        moved = [(*self._groups[number], row) for number, row in zip(touched, at, strict=False)]
        return pa.concat_tables(
            rows.slice(next(row + first - its for its, until, row in moved if its <= first < until), end - first)
            for first, end in spans
        )
