"""Rows of a table in the order of a key, by an external merge sort.

Rows are collected in memory; many are written to a temporary file as sorted runs. A range of keys is a slice of each
run, so memory holds one range at a time, whatever the number of rows and their order.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from mmap import ACCESS_READ, MADV_DONTNEED, mmap
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from jitter.core.numeric.arrays import Codes, Ints

GROUP: Final = "group"
KEY: Final = "key"
RUN_BYTES = 8 << 20
"""Bytes of rows that are held in memory, those of some 70,000 kernels; then they become a run in a file."""
STRIDE = 1024
"""Rows of a run per key of its sample."""


class _Span(NamedTuple):
    """The rows of one group in a run: positions, and their least and largest key."""

    start: int
    end: int
    least: int
    largest: int


class _Run(NamedTuple):
    rows: pa.Table
    """Sorted by group and key."""
    key: Ints
    spans: dict[int, _Span]
    """By group."""
    sample: Ints
    """Every `STRIDE`th key."""
    mapped: mmap | None
    """The file that holds the rows; None if they are in memory."""

    def positions(self, group: int, low: int | None, high: int | None) -> tuple[int, int]:
        """Return the positions of the rows of a group with `low` <= key < `high`; no page is read in vain."""
        span = self.spans.get(group)
        if span is None or (high is not None and span.least >= high) or (low is not None and span.largest < low):
            return 0, 0
        key = self.key[span.start : span.end]
        first = 0 if low is None or low <= span.least else int(np.searchsorted(key, low))
        last = len(key) if high is None or high > span.largest else int(np.searchsorted(key, high))
        return span.start + first, span.start + last


class SortedRows:
    """Collects rows with an int64 column `KEY` and an int32 column `GROUP`; then returns ranges of them."""

    def __init__(self, scratch: Path, least: pa.Schema) -> None:
        """Start empty; `scratch` is a folder for temporary files, `least` columns that rows always have."""
        self._scratch = scratch
        self._least = pa.schema([*least, (KEY, pa.int64()), (GROUP, pa.int32())]).empty_table()
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return sum(len(run.key) for run in self._runs) + sum(map(len, self._held))

    def add(self, rows: pa.Table, key: pa.Array | Ints, group: Codes | None = None) -> None:
        """Add rows with their keys and, without `group`, in group 0; nullable columns may be absent."""
        groups = np.zeros(len(rows), np.int32) if group is None else group
        self._held.append(rows.append_column(KEY, pa.array(key)).append_column(GROUP, pa.array(groups)))
        self._held_bytes += self._held[-1].nbytes
        if self._held_bytes > RUN_BYTES:
            self._end_run(in_file=True)

    def finish(self) -> None:
        """Sort the rows that are still held; call it before rows are read."""
        if self._held:
            self._end_run(in_file=False)

    def _end_run(self, *, in_file: bool) -> None:
        rows = pa.concat_tables(self._held, promote_options="default").combine_chunks()
        self._held, self._held_bytes = [], 0
        key, group = rows[KEY].to_numpy(), rows[GROUP].to_numpy()
        if (group == group[:1]).all():
            order = None if (key[1:] >= key[:-1]).all() else np.argsort(key, kind="stable")
        else:
            order = np.lexsort((key, group))
        if order is not None:
            rows = rows.take(pa.array(order))
        key, group = rows[KEY].to_numpy(), rows[GROUP].to_numpy()
        edges = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)]
        spans = {
            int(group[start]): _Span(start, end, int(key[start]), int(key[end - 1])) for start, end in pairwise(edges)
        }
        sample, mapped = key[::STRIDE].copy(), None
        if in_file:
            rows, mapped = self._write(rows)
        self._runs.append(_Run(rows, rows[KEY].to_numpy(), spans, sample, mapped))

    def _write(self, rows: pa.Table) -> tuple[pa.Table, mmap]:
        """Return the rows as a file's, mapped into memory. The file has no name: it ends with its mapping."""
        with TemporaryFile(dir=self._scratch) as file:
            with pa.ipc.new_stream(file, rows.schema) as writer:
                writer.write_table(rows)
            file.flush()
            mapped = mmap(file.fileno(), 0, access=ACCESS_READ)
        return pa.ipc.open_stream(pa.py_buffer(mapped)).read_all(), mapped

    def count(self, group: int, keys: Ints) -> Ints:
        """Return for each of the keys (n,) the number of rows of a group whose key is smaller, shape (n,)."""
        counts = np.zeros(len(keys), np.int64)
        for run in self._runs:
            if (span := run.spans.get(group)) is not None:
                counts[keys > span.largest] += span.end - span.start
                inside = (keys > span.least) & (keys <= span.largest)
                if inside.any():
                    counts[inside] += np.searchsorted(run.key[span.start : span.end], keys[inside])
        self._leave_memory()
        return counts

    def rows(self, low: int | None, high: int | None, group: int = 0, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a group with `low` <= key < `high` (None: no bound), or only these columns of them.

        The order is that of the runs, and in each that of the keys.
        """
        self._leave_memory()
        parts = [self._least if columns is None else self._least.select(list(columns))]
        for run in self._runs:
            first, last = run.positions(group, low, high)
            if last > first:
                rows = run.rows if columns is None else run.rows.select(list(columns))
                parts.append(rows.slice(first, last - first))
        return pa.concat_tables(parts, promote_options="default").combine_chunks()

    def runs(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield these columns of all rows, in no order."""
        for run in self._runs:
            yield run.rows.select(list(columns))
            self._leave_memory()

    def _leave_memory(self) -> None:
        """Let what was read of the files leave memory; it is read again where it is still in use."""
        for run in self._runs:
            if run.mapped is not None:
                run.mapped.madvise(MADV_DONTNEED)

    @property
    def samples(self) -> Ints:
        """One key of about every `STRIDE` rows, in no order."""
        return np.concatenate([np.empty(0, np.int64), *(run.sample for run in self._runs)])


def windows(tables: Sequence[SortedRows], rows_at_once: int) -> list[tuple[int | None, int | None]]:
    """Return bounds of key ranges that together hold all keys, and about `rows_at_once` rows of these tables each.

    Rows of equal keys are in one range.
    """
    samples = np.sort(np.concatenate([table.samples for table in tables]))
    every = max(1, rows_at_once // STRIDE)
    cuts = np.unique(samples[every::every]).tolist()
    return list(zip([None, *cuts], [*cuts, None], strict=True))
