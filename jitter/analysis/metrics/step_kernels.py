"""A step's kernels as arrays, their duration, gap, time to kernel end and launch latency (guide: topic `metrics`).

In numpy and not in SQL: on a step of 960 ranks × 903 kernels one SQL statement took 4 to 6 s of processor time and
1.7 GB; this takes under a second and a third of the memory, because launch order is nearly always start order, and
sorted rows are not sorted again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from jitter.analysis.alignment.kernel_index import UNMATCHED, KernelIndex
from jitter.core.arrow import from_numpy
from jitter.core.numeric.arrays import Bools, Codes, Floats, Ints
from jitter.lake.step_reader import StepColumns


@dataclass(frozen=True)
class AlignedRank:
    """One rank's cohort and kernel index in one step."""

    cohort: int
    index: Ints
    """Shape (kernels): the kernel index of each of its kernels; UNMATCHED without a partner in the reference."""


def align_ranks(indices: Sequence[KernelIndex]) -> dict[int, AlignedRank]:
    """Return the kernel index of every rank that is not left out, by rank."""
    return {
        member.rank: AlignedRank(index.cohort, index.indices[member.sequence])
        for index in indices
        for member in index.members
    }


class StepKernels:
    """The kernels of some ranks, by rank, then in launch order, without memory operations.

    Arrays have the shape (kernels) unless stated otherwise.
    """

    def __init__(
        self, read: StepColumns, places: Mapping[int, AlignedRank], main_streams: Mapping[int, int | None]
    ) -> None:
        """Wrap the columns that were read: `kind`, and the columns that the properties in use need."""
        self.ranks = read.ranks
        self._read = read
        self._kept = ~read.equals("kind", "memory")
        self.is_collective: Bools = read.equals("kind", "collective")[self._kept]
        of_rank = read.of_rank[self._kept]
        counts = np.bincount(of_rank, minlength=len(read.ranks))
        self.of_rank: Ints = of_rank
        """Position in `ranks`."""
        self.bounds: Ints = np.concatenate([[0], np.cumsum(counts)])
        """Shape (ranks + 1): kernels `bounds[i]:bounds[i + 1]` are of `ranks[i]`."""
        self.position: Ints = np.arange(len(of_rank)) - np.repeat(self.bounds[:-1], counts)
        """In the rank's own step."""
        self.cohort_of: Ints = np.array([places[rank].cohort for rank in read.ranks], np.int64)
        """Shape (ranks)."""
        self.index: Ints = np.concatenate([np.zeros(0, np.int64), *(places[rank].index for rank in read.ranks)])
        """Kernel index, or UNMATCHED."""
        streams = [main_streams[rank] for rank in read.ranks]
        self._main_stream = np.array([0 if stream is None else stream for stream in streams], np.int64)
        self._has_main = np.array([stream is not None for stream in streams], np.bool_)

    def __len__(self) -> int:
        """Return the number of kernels."""
        return len(self.of_rank)

    def values(self, column: str) -> Ints:
        """Return an integer column, with 0 where it is null."""
        values: Ints = self._read.values(column)[self._kept]
        return values

    def known(self, column: str) -> Bools:
        """Return where a column is not null."""
        is_known: Bools = self._read.known(column)[self._kept]
        return is_known

    def codes(self, column: str) -> tuple[Codes, list[str]]:
        """Return a text column as positions in the list of distinct texts, with -1 where it is null, and that list."""
        codes, names = self._read.codes(column)
        return codes[self._kept], names

    def column(self, name: str, rows: Ints | None = None) -> pa.ChunkedArray:
        """Return a column as it was read, for these kernels (None: all)."""
        if rows is None:
            return self._read.table[name].filter(from_numpy(self._kept))
        return self._read.table[name].take(from_numpy(np.flatnonzero(self._kept)[rows]))

    @cached_property
    def start_ns(self) -> Ints:
        """On the rank's own clock."""
        return self.values("start_ns")

    @cached_property
    def end_ns(self) -> Ints:
        """On the rank's own clock."""
        return self.values("end_ns")

    @cached_property
    def is_matched(self) -> Bools:
        """Whether the kernel has an index."""
        matched: Bools = self.index != UNMATCHED
        return matched

    @cached_property
    def group(self) -> Ints:
        """A number for each (cohort, kernel index), from 0; UNMATCHED where a kernel has no index."""
        width = int(self.index.max(initial=0)) + 1
        return np.where(self.is_matched, self.cohort_of[self.of_rank] * width + self.index, UNMATCHED)

    @cached_property
    def _of_main_stream(self) -> Bools:
        """Whether on the rank's main stream."""
        same: Bools = self.values("stream") == self._main_stream[self.of_rank]
        return same & self.known("stream") & self._has_main[self.of_rank]

    @cached_property
    def on_main(self) -> Bools:
        """Whether a compute kernel of the main stream: its gap and duration count."""
        return self._of_main_stream & ~self.is_collective

    @cached_property
    def main_stream_order(self) -> Ints:
        """Rows of the main stream's kernels and collectives: by rank, then by start, then in launch order."""
        rows = np.flatnonzero(self._of_main_stream)
        start, rank = self.start_ns[rows], self.of_rank[rows]
        if ((np.diff(start) >= 0) | (np.diff(rank) > 0)).all():
            return rows
        return rows[np.lexsort((start, rank))]

    @cached_property
    def first(self) -> Ints:
        """Row of each rank's first compute kernel of its main stream, shape (ranks with one)."""
        rows = self.main_stream_order[self.on_main[self.main_stream_order]]
        return rows[np.concatenate([[True], np.diff(self.of_rank[rows]) > 0])] if len(rows) else rows


class Metric(NamedTuple):
    """One metric or its deviations, shape (kernels), in ns; values where `known` is false have no meaning."""

    values: Ints | Floats
    known: Bools


def duration(kernels: StepKernels) -> Metric:
    """Return end − start."""
    return Metric(kernels.end_ns - kernels.start_ns, np.ones(len(kernels), np.bool_))


def gap(kernels: StepKernels, first_ns: Mapping[int, int]) -> Metric:
    """Return start − end of the previous kernel on the main stream; for the first, start − the earliest rank's start.

    `first_ns` is, by rank, the gap of its first kernel, where it is known.
    """
    values, is_known = np.zeros(len(kernels), np.int64), np.ones(len(kernels), np.bool_)
    order = kernels.main_stream_order
    values[order[1:]] = kernels.start_ns[order[1:]] - kernels.end_ns[order[:-1]]
    values[~kernels.on_main] = 0
    first = kernels.first
    ranks = [kernels.ranks[at] for at in kernels.of_rank[first].tolist()]
    is_known[first] = [rank in first_ns for rank in ranks]
    values[first] = [first_ns.get(rank, 0) for rank in ranks]
    return Metric(values, is_known)


def ttke(kernels: StepKernels, gaps: Metric, durations: Metric) -> Metric:
    """Return the sum of gaps and durations of the main stream's compute kernels up to each kernel, in launch order."""
    spent_ns = np.where(kernels.on_main, gaps.values + durations.values, 0)
    return Metric(_so_far(kernels, spent_ns), _so_far(kernels, ~gaps.known) == 0)


def launch_latency(kernels: StepKernels) -> Metric:
    """Return start − start of the launching call; of kernels that share a launch only the first to start has one."""
    launch, is_known = kernels.values("launch_start_ns"), kernels.known("launch_start_ns")
    shares = _sharing(kernels, launch, np.flatnonzero(is_known))
    # by launch, then by start; stable, so of equal starts the one launched first comes first
    keys = (kernels.values("launch_thread"), kernels.known("launch_thread"), launch, kernels.of_rank)
    shares = shares[np.lexsort((kernels.start_ns[shares], *(key[shares] for key in keys)))]
    later = np.logical_and.reduce([key[shares[1:]] == key[shares[:-1]] for key in keys])
    is_known[shares[1:][later]] = False
    return Metric(kernels.start_ns - launch, is_known)


def deviation(kernels: StepKernels, metric: Metric) -> Metric:
    """Return value − mean over the cohort's ranks with a value for this kernel; unmatched kernels have none."""
    rows = np.flatnonzero(metric.known & kernels.is_matched)
    group, values = kernels.group[rows], metric.values[rows]
    # exact: sums of int64, divided once
    sums, counts = np.zeros(int(group.max(initial=0)) + 1, np.int64), np.bincount(group)
    np.add.at(sums, group, values)
    deviation_ns, is_known = np.zeros(len(kernels)), np.zeros(len(kernels), np.bool_)
    deviation_ns[rows] = values - sums[group] / counts[group]
    is_known[rows] = True
    return Metric(deviation_ns, is_known)


def _so_far(kernels: StepKernels, values: Ints | Bools) -> Ints:
    """Return each rank's running sum up to each of its kernels."""
    total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    so_far: Ints = total[1:] - total[kernels.bounds[:-1]][kernels.of_rank]
    return so_far


def _sharing(kernels: StepKernels, launch: Ints, rows: Ints) -> Ints:
    """Return the rows that may share a launch with another: all that do, and few that do not."""
    rank = kernels.of_rank[rows]
    step = np.where(np.diff(rank) > 0, 1, np.diff(launch[rows]))
    same = np.concatenate([[False], step == 0, [False]])
    # where launches are not in order, equal ones need not be neighbours
    unordered = np.isin(rank, rank[1:][step < 0])
    return rows[same[1:] | same[:-1] | unordered] if len(rows) else rows
