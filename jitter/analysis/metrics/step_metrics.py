"""Duration, gap, time to kernel end and launch latency of one step, for all its ranks, from the lake's parquet."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from jitter.analysis.alignment.kernel_index import KernelIndex
from jitter.analysis.metrics.clock_alignment import (
    ClockAlignment,
    align_by_collective,
    align_by_wall_clock,
    find_cohort_collectives,
)
from jitter.analysis.metrics.step_kernels import (
    Deviations,
    Metric,
    StepKernels,
    align_ranks,
    deviation,
    duration,
    gap,
    launch_latency,
    ttke,
)
from jitter.core.arrow import from_numpy
from jitter.core.errors import LakeError
from jitter.core.step_key import StepKey
from jitter.lake.layout import kernels_file
from jitter.lake.records import RankStepRecord
from jitter.lake.step_reader import StepColumns

METRICS = ("duration", "gap", "ttke", "launch_latency")
_ROW_COLUMNS = ("kernel_name", "kind", "stream", "start_ns", "end_ns", "launch_start_ns", "message_bytes")
_ALIGNMENT_COLUMNS = ("kind", "stream", "start_ns", "end_ns", "collective", "group_ranks", "group_size")
_METRIC_COLUMNS = {
    "duration": ("kind", "start_ns", "end_ns"),
    "gap": _ALIGNMENT_COLUMNS,
    "ttke": _ALIGNMENT_COLUMNS,
    "launch_latency": ("kind", "start_ns", "launch_start_ns", "launch_thread"),
}
"""The columns that each metric needs."""
ALL_COLUMNS = tuple(sorted({*_ROW_COLUMNS, *(name for columns in _METRIC_COLUMNS.values() for name in columns)}))
"""The columns that `StepMetrics` reads for all metrics."""


class StepMetrics:
    """A step's metrics and alignment. Files are read on first use, once."""

    def __init__(
        self,
        root: Path,
        key: StepKey,
        held: Mapping[int, RankStepRecord],
        read: Callable[[Sequence[str], Sequence[int]], StepColumns],
        indices: Sequence[KernelIndex],
        cohort_ranks: Mapping[int, frozenset[int]],
        metrics: Collection[str] = METRICS,
    ) -> None:
        """Measure one step.

        Args:
            root: the lake's folder.
            key: the step.
            held: the record of each rank that has it.
            read: reads columns of some of these ranks, in ascending order.
            indices: the kernel index of each cohort.
            cohort_ranks: each cohort's ranks over the run.
            metrics: to be used; with fewer than all, only their columns are read and `rows` is not available.

        Properties that read raise `LakeError` for a file that is missing, damaged or does not match its record.

        """
        self.indices = tuple(indices)
        """The kernel index of each cohort."""
        self._root, self._key, self._held, self._cohort_ranks = root, key, held, cohort_ranks
        self._read = read
        needed = {name for metric in metrics for name in _METRIC_COLUMNS[metric]}
        self._columns = ALL_COLUMNS if set(metrics) == set(METRICS) else sorted(needed)

    @cached_property
    def kernels(self) -> StepKernels:
        """The step's kernels, of all ranks that are not left out."""
        places = align_ranks(self.indices)
        if places:
            read = self._read(self._columns, sorted(places))
        else:  # every rank is left out: any file gives the columns, without rows
            read = StepColumns(self._read(self._columns, [min(self._held)]).table.slice(0, 0), (), ())
        kernels = StepKernels(
            read, places, {rank: step_record.record.main_stream for rank, step_record in self._held.items()}
        )
        for rank, first, end in zip(kernels.ranks, kernels.bounds[:-1], kernels.bounds[1:], strict=True):
            if end - first != len(places[rank].index):
                raise LakeError(
                    f"{self._root / kernels_file(self._key, rank)}: does not hold the kernels that its record states",
                    "put the file back, or ingest its trace into another lake",
                )
        return kernels

    def metric(self, name: str) -> Metric:
        """Return one of METRICS, of every kernel."""
        if name == "launch_latency":
            return launch_latency(self.kernels)
        if name == "duration":
            return self._duration
        return self._gap if name == "gap" else ttke(self.kernels, self._gap, self._duration)

    @cached_property
    def _duration(self) -> Metric:
        return duration(self.kernels)

    @cached_property
    def _gap(self) -> Metric:
        shared = {rank: ns for moment in self.alignments.values() for rank, ns in moment.moments_ns.items()}
        return gap(self.kernels, shared)

    @cached_property
    def alignments(self) -> dict[int, ClockAlignment]:
        """Alignment of each cohort's ranks."""
        kernels = self.kernels
        first = kernels.first
        starts = {
            kernels.ranks[at]: ns
            for at, ns in zip(kernels.of_rank[first].tolist(), kernels.start_ns[first].tolist(), strict=True)
        }
        return {index.cohort: self._moment(index.cohort, starts) for index in self.indices}

    def _moment(self, cohort: int, starts_ns: Mapping[int, int]) -> ClockAlignment:
        collectives = find_cohort_collectives(self.kernels, cohort, self._cohort_ranks[cohort])
        alignment = align_by_collective(collectives, starts_ns)
        if alignment is not None and alignment.moments_ns:
            return alignment
        unsynchronised = alignment.unsynchronised if alignment is not None else 0
        records = {rank: self._held[rank].record for rank in collectives.ranks}
        clock = align_by_wall_clock(
            {rank: record.utc_offset_ns for rank, record in records.items()},
            {rank: record.file_digest for rank, record in records.items()},
        )
        if clock is None:
            return ClockAlignment("none", {}, unsynchronised=unsynchronised)
        return ClockAlignment(clock.method, clock.moments_ns, None, clock.uncertainty_ns, unsynchronised)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return `rows` for any library that takes Arrow data, such as Polars."""
        return self.rows.__arrow_c_stream__(requested_schema)

    @cached_property
    def rows(self) -> pa.Table:
        """One row a kernel and rank, by cohort, rank and position; times in ns, null where unknown.

        `rank`, `cohort`, `kernel_index` (null: unmatched), `position` (in the rank's own step), `kernel_name`, `kind`,
        `stream`, `on_main` (a compute kernel of the main stream: its gap and duration count), `start_ns`, `end_ns` and
        `launch_start_ns` (on the rank's own clock), `message_bytes` (of collectives, where recorded), `duration_ns`,
        `gap_ns`, `ttke_ns`, `launch_latency_ns`, and of these four the deviations from the cohort's mean:
        `duration_deviation_ns`….
        """
        kernels = self.kernels
        metrics = {name: self.metric(name) for name in METRICS}
        cohort = kernels.cohort_of[kernels.of_rank]
        rows = pa.table(
            {
                "rank": from_numpy(np.array(kernels.ranks, np.int32)[kernels.of_rank]),
                "cohort": from_numpy(cohort.astype(np.int32)),
                "kernel_index": from_numpy(kernels.index.astype(np.int32), kernels.is_matched),
                "position": from_numpy(kernels.position),
                **{name: kernels.column(name) for name in ("kernel_name", "kind", "stream")},
                "on_main": from_numpy(kernels.on_main),
                **{name: kernels.column(name) for name in ("start_ns", "end_ns", "launch_start_ns", "message_bytes")},
                **{f"{name}_ns": from_numpy(*metric) for name, metric in metrics.items()},
                **{f"{name}_deviation_ns": from_numpy(*self.deviation(metric)) for name, metric in metrics.items()},
            }
        )
        if len(np.unique(kernels.cohort_of)) > 1:
            rows = rows.take(from_numpy(np.argsort(cohort, kind="stable")))
        return rows

    def deviation(self, metric: Metric) -> Deviations:
        """Return a metric's deviations from the mean over the cohort's ranks."""
        return deviation(self.kernels, metric)
