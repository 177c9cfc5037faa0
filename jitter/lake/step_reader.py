"""Read one step's rows of many ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from jitter.core import arrow
from jitter.core.numeric.arrays import Bools, Codes, Ints, begins_of, pieces_of
from jitter.core.parallel.prefetch import announce_reads
from jitter.core.schema import KERNELS
from jitter.core.step_key import StepKey
from jitter.lake.layout import kernels_file
from jitter.lake.parquet import read_rank_step, select_columns
from jitter.lake.records import RankStepRecord

_ROWS_PER_PIECE: Final = 1 << 16
"""Rows of small files that are joined while they are in the processor's cache; a large file is a piece by itself."""
_ALL: Final = (*(field.name for field in KERNELS if field.name != "duration_ns"), "duration_ns")


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

    def beside(self, others: "StepColumns") -> "StepColumns":
        """Return these columns and others of the same rows."""
        columns = (*self.table.itercolumns(), *others.table.itercolumns())
        names = self.table.column_names + others.table.column_names
        return replace(self, table=pa.table(list(columns), names))

    def of_kinds(self, kinds: Sequence[str]) -> "StepColumns":
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
        is_equal: Bools = codes == (texts.index(text) if text in texts else len(texts))
        return is_equal


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
    chosen, wanted = sorted(set(held if ranks is None else ranks)), _ALL if columns is None else columns
    stored = [name for name in wanted if name != "duration_ns"]
    if "duration_ns" in wanted:
        stored += [name for name in ("start_ns", "end_ns") if name not in stored]
    announce_reads(root / kernels_file(key, rank) for rank in chosen)
    empty = set(stored).intersection(*(held[rank].empty_columns for rank in chosen))
    filled = [name for name in stored if name not in empty] or stored[:1]  # a table needs a column to have rows
    rows = [held[rank].step.rows for rank in chosen]
    pieces = []
    for piece in pieces_of(begins_of(rows), _ROWS_PER_PIECE):
        tables = [read_rank_step(root, held[rank], filled) for rank in chosen[piece]]
        pieces.append(pa.concat_tables(tables).unify_dictionaries().combine_chunks() if len(tables) > 1 else tables[0])
    table = select_columns(pa.concat_tables(pieces), stored).unify_dictionaries()
    if "duration_ns" in wanted:
        duration_ns = arrow.to_numpy(table["end_ns"]) - arrow.to_numpy(table["start_ns"])
        table = table.append_column("duration_ns", arrow.from_numpy(duration_ns))
    return StepColumns(table.select(list(wanted)), tuple(chosen), tuple(rows))
