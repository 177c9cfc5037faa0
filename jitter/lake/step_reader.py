"""Read one step's rows for many ranks: from its compacted files where they are fresh, else from the ranks' own files.

A compacted file is fresh for a rank if the digest it carries for the rank is that of the record which holds the step
now (`freshness.made_from`). Rows that no fresh file holds are read from the rank's own file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jitter.core import arrow
from jitter.core.numeric.arrays import Bools, Codes, Ints, begins_of, pieces_of
from jitter.core.parallel.prefetch import announce_reads
from jitter.core.step_key import StepKey
from jitter.lake.derived.compacted_file import COLUMNS, CompactedFile
from jitter.lake.derived.freshness import made_from, reading_of
from jitter.lake.integrity.rank_files import read_rank_step
from jitter.lake.layout import compacted_folder, kernels_file
from jitter.lake.parquet import select_columns
from jitter.lake.records import RankStepRecord

_COMPACTED_LAYOUT: Final = made_from(3, COLUMNS)
"""The layout of compacted files: a new column makes older files stale."""
_ROWS_PER_PIECE: Final = 1 << 16
"""Rows of small files that are joined while they are in the processor's cache; a large file is a piece by itself."""


@dataclass(frozen=True)
class StepColumns:
    """Some columns of one step: rows in order of rank, then of launch. Texts are dictionary-encoded."""

    table: pa.Table
    ranks: tuple[int, ...]
    rows: tuple[int, ...]
    """Number of rows of each of `ranks`."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the table for any library that takes Arrow data, such as Polars."""
        return self.table.__arrow_c_stream__(requested_schema)

    def joined(self) -> "StepColumns":
        """Return the same with each column in one piece: every use of a column in many pieces joins them."""
        return replace(self, table=self.table.combine_chunks())

    def of_kinds(self, kinds: Sequence[str]) -> "StepColumns":
        """Return the rows of these kinds."""
        chosen = np.logical_or.reduce([self.equals("kind", kind) for kind in kinds])
        rows = np.bincount(self.of_rank[chosen], minlength=len(self.ranks))
        return StepColumns(self.table.filter(pa.array(chosen)), self.ranks, tuple(rows.tolist()))

    @cached_property
    def bounds(self) -> Ints:
        """Shape (ranks + 1): `table[bounds[i]:bounds[i + 1]]` belongs to `ranks[i]`."""
        return begins_of(self.rows)

    @cached_property
    def of_rank(self) -> Ints:
        """Shape (rows): position in `ranks` of the rank of each row."""
        return np.repeat(np.arange(len(self.ranks)), self.rows)

    def values(self, column: str) -> Ints:
        """Return an integer column as int64, shape (rows), with 0 where it is null (see `known`)."""
        return arrow.to_numpy(self.table[column]).astype(np.int64, copy=False)

    def known(self, column: str) -> Bools:
        """Return where a column is not null, shape (rows)."""
        return arrow.is_valid(self.table[column])

    def codes(self, column: str) -> tuple[Codes, list[str]]:
        """Return a text column as positions, shape (rows), in the list of distinct texts; -1 where it is null."""
        texts = self.table[column].combine_chunks()
        codes: Codes = arrow.to_numpy(texts.indices, null=-1)
        return codes, texts.dictionary.to_pylist()

    def equals(self, column: str, text: str) -> Bools:
        """Return where a text column has this text, shape (rows)."""
        codes, texts = self.codes(column)
        found: Bools = codes == (texts.index(text) if text in texts else len(texts))
        return found

    def grid(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Return a view of values, shape (rows), with shape (ranks, rows of each).

        Raises `ValueError` if ranks have different numbers of rows.
        """
        if len(set(self.rows)) > 1:
            raise ValueError("ranks have different numbers of rows")
        return values.reshape(len(self.ranks), -1)


def join_ranks(parts: Sequence[StepColumns]) -> StepColumns:
    """Return the rows of all parts, which hold the same columns of other ranks each, in ascending order."""
    table = pa.concat_tables([part.table for part in parts]).unify_dictionaries()
    return StepColumns(table, sum((part.ranks for part in parts), ()), sum((part.rows for part in parts), ()))


def read_step(
    root: Path,
    key: StepKey,
    held: Mapping[int, RankStepRecord],
    columns: Sequence[str] | None = None,
    ranks: Sequence[int] | None = None,
) -> StepColumns:
    """Read columns (of `schema.KERNELS`; default: all) of one step, for the ranks given or all ranks of `held`.

    Raises `LakeError` if a rank's file is missing or damaged, `KeyError` if a rank lacks the step.
    """
    chosen = sorted(set(held if ranks is None else ranks))
    return StepFiles(root, key, held).read(chosen, (*COLUMNS, "duration_ns") if columns is None else columns)


class StepFiles:
    """The files that hold one step's rows; they are found once and read as often as needed."""

    def __init__(self, root: Path, key: StepKey, held: Mapping[int, RankStepRecord]) -> None:
        self._root = root
        self._key = key
        self._held = held
        self.digests = {rank: _made_from(found) for rank, found in held.items()}
        """The files that each rank's rows are read from."""
        paths = sorted((root / compacted_folder(key)).glob("*.parquet"))
        opened = [file for path in paths if (file := _open(path)) is not None]
        self.compacted = sorted(opened, key=self._count_fresh, reverse=True)
        """The step's compacted files, stale ones included; a file that has taken in others comes before them."""
        self.file_of_rank: dict[int, CompactedFile] = {}
        """The compacted file that is fresh for a rank."""
        for file in self.compacted:
            for span in file.spans:
                if self.digests.get(span.rank) == span.made_from:
                    self.file_of_rank.setdefault(span.rank, file)

    def _count_fresh(self, file: CompactedFile) -> int:
        return sum(self.digests.get(span.rank) == span.made_from for span in file.spans)

    def read(self, ranks: Sequence[int], columns: Sequence[str]) -> StepColumns:
        """Read columns of these ranks, which must be in ascending order."""
        stored = [name for name in columns if name != "duration_ns"]
        if "duration_ns" in columns:
            stored += [name for name in ("start_ns", "end_ns") if name not in stored]
        tables: list[pa.Table] = []
        rows: list[int] = []
        for file, run in groupby(ranks, self.file_of_rank.get):
            table, counts = self._read_run(file, list(run), stored)
            tables.append(table)
            rows += counts
        table = pa.concat_tables(tables).unify_dictionaries()
        if "duration_ns" in columns:
            duration_ns = arrow.to_numpy(table["end_ns"]) - arrow.to_numpy(table["start_ns"])
            table = table.append_column("duration_ns", arrow.from_numpy(duration_ns))
        return StepColumns(table.select(list(columns)), tuple(ranks), tuple(rows))

    def _read_run(
        self, file: CompactedFile | None, ranks: Sequence[int], columns: Sequence[str]
    ) -> tuple[pa.Table, list[int]]:
        if file is not None:
            try:
                return file.read(ranks, columns), file.row_counts(ranks)
            except (OSError, ValueError):  # damaged: treated as absent
                self.file_of_rank = {rank: holder for rank, holder in self.file_of_rank.items() if holder is not file}
        announce_reads(self._root / kernels_file(self._key, rank) for rank in ranks)
        empty = set(columns).intersection(*(self._held[rank].empty_columns for rank in ranks))
        filled = [name for name in columns if name not in empty] or columns[:1]  # a table needs a column to have rows
        rows = [self._held[rank].step.rows for rank in ranks]
        read = [self._read_piece(ranks[own], filled) for own in pieces_of(begins_of(rows), _ROWS_PER_PIECE)]
        return select_columns(pa.concat_tables(read), columns), rows

    def _read_piece(self, ranks: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Read the own files of some ranks as one chunk per column."""
        tables = [read_rank_step(self._root, self._held[rank], columns) for rank in ranks]
        return pa.concat_tables(tables).unify_dictionaries().combine_chunks() if len(tables) > 1 else tables[0]


def _made_from(held: RankStepRecord) -> str:
    return made_from(_COMPACTED_LAYOUT, reading_of(held.record), held.step)


def _open(path: Path) -> CompactedFile | None:
    """Open a compacted file; None if it is damaged, or another process has replaced it just now."""
    try:
        return CompactedFile(path)
    except (OSError, ValueError):
        return None
