"""One step's rows of many ranks: from its compacted parts where they are fresh, else from the ranks' own files.

A part is fresh for a rank if the rank's stamp in it is that of the recording which holds the step now. Nothing else is
asked, and nothing stale is ever read: what no part holds comes from the lake's small files.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jitter.core import arrow
from jitter.core.prefetch import announce_reads
from jitter.core.step_key import StepKey
from jitter.lake.derived.compacted_file import COLUMNS, TEXTS, CompactedFile
from jitter.lake.layout import compacted_folder, kernels_file
from jitter.lake.parquet import read_columns
from jitter.lake.records import RankStepRecord

_VERSION = 2
"""Of what a part holds: parts of another version are stale."""


@dataclass(frozen=True)
class StepColumns:
    """Some columns of one step: by rank, then by ordinal. Texts are dictionary-encoded."""

    table: pa.Table
    ranks: tuple[int, ...]
    rows: tuple[int, ...]
    """How many each of `ranks` has."""

    @cached_property
    def bounds(self) -> npt.NDArray[np.int64]:
        """Shape (ranks + 1): `table[bounds[i]:bounds[i + 1]]` is of `ranks[i]`."""
        return np.fromiter(accumulate(self.rows, initial=0), np.int64)

    def values(self, column: str) -> npt.NDArray[np.int64]:
        """Give a column of whole numbers as int64, shape (rows), with 0 where it is null (`known` tells)."""
        found = self.table[column]
        values = arrow.to_numpy(found).astype(np.int64, copy=False)
        return np.where(arrow.is_valid(found), values, 0) if found.null_count else values

    def known(self, column: str) -> npt.NDArray[np.bool_]:
        """Where a column is not null, shape (rows)."""
        return arrow.is_valid(self.table[column])

    def codes(self, column: str) -> tuple[npt.NDArray[np.int32], list[str]]:
        """Give a column of texts as positions, shape (rows), in the list of distinct ones; -1 where it is null."""
        whole = self.table[column].combine_chunks()
        indices = pa.chunked_array([whole.indices])
        codes: npt.NDArray[np.int32] = arrow.to_numpy(indices)
        return np.where(arrow.is_valid(indices), codes, np.int32(-1)), whole.dictionary.to_pylist()

    def grid(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Lay values, shape (rows), out by rank: a view, shape (ranks, rows of each).

        Raises `ValueError` where ranks have different numbers of rows.
        """
        if len(set(self.rows)) > 1:
            raise ValueError("ranks have different numbers of rows")
        return values.reshape(len(self.ranks), -1)


def read_step(
    root: Path,
    key: StepKey,
    held: Mapping[int, RankStepRecord],
    columns: Sequence[str] | None = None,
    ranks: Sequence[int] | None = None,
) -> StepColumns:
    """Read columns (of `schema.KERNELS`; default: all) of one step, for the ranks given or all that hold it.

    Raises `LakeError` for a rank's file that is missing or damaged, `KeyError` for a rank that lacks the step.
    """
    chosen = sorted(set(held if ranks is None else ranks))
    return StepFiles(root, key, held).read(chosen, (*COLUMNS, "duration_ns") if columns is None else columns)


class StepFiles:
    """The files that one step's rows are read from: found once, read as often as needed."""

    def __init__(self, root: Path, key: StepKey, held: Mapping[int, RankStepRecord]) -> None:
        self._root = root
        self._key = key
        self.stamps = {rank: stamp(its) for rank, its in held.items()}
        self.paths = sorted((root / compacted_folder(key)).glob("*.parquet"))
        self.parts = [part for path in self.paths if (part := _opened(path)) is not None]
        self.holder: dict[int, CompactedFile] = {}
        """The part that is fresh for a rank."""
        for part in self.parts:
            for piece in part.pieces:
                if self.stamps.get(piece.rank) == piece.stamp:
                    self.holder.setdefault(piece.rank, part)

    def read(self, ranks: Sequence[int], columns: Sequence[str]) -> StepColumns:
        """Read columns of these ranks, which must ascend."""
        stored = [name for name in columns if name != "duration_ns"]
        if "duration_ns" in columns:
            stored += [name for name in ("start_ns", "end_ns") if name not in stored]
        tables: list[pa.Table] = []
        rows: list[int] = []
        for part, run in groupby(ranks, self.holder.get):
            for table, sizes in self._read_run(part, list(run), stored):
                tables.append(table)
                rows += sizes
        table = pa.concat_tables(tables).unify_dictionaries()
        if "duration_ns" in columns:
            duration_ns = arrow.to_numpy(table["end_ns"]) - arrow.to_numpy(table["start_ns"])
            table = table.append_column("duration_ns", arrow.from_numpy(duration_ns))
        return StepColumns(table.select(list(columns)), tuple(ranks), tuple(rows))

    def _read_run(
        self, part: CompactedFile | None, ranks: Sequence[int], columns: Sequence[str]
    ) -> Iterable[tuple[pa.Table, list[int]]]:
        if part is not None:
            try:
                return [(part.read(ranks, columns), part.rows_of(ranks))]
            except (OSError, ValueError):  # damaged: then it is as good as absent
                self.holder = {rank: holder for rank, holder in self.holder.items() if holder is not part}
        announce_reads(self._root / kernels_file(self._key, rank) for rank in ranks)
        found = (self._read_small(rank, columns) for rank in ranks)
        return [(table, [table.num_rows]) for table in found]

    def _read_small(self, rank: int, columns: Sequence[str]) -> pa.Table:
        if rank not in self.stamps:
            raise KeyError(rank)
        return read_columns(self._root / kernels_file(self._key, rank), columns, TEXTS)


def stamp(held: RankStepRecord) -> str:
    """Name what a rank's rows of a step are made from: another reading of another source gives another stamp."""
    told = (_VERSION, held.record.digest, held.record.reader_version, held.record.step_pattern, held.step)
    return hashlib.blake2b(msgspec.json.encode(told), digest_size=8).hexdigest()


def _opened(path: Path) -> CompactedFile | None:
    """Open a part, if it is one: another process may have merged it into another meanwhile, damage is no part."""
    try:
        return CompactedFile(path)
    except (OSError, ValueError):
        return None
