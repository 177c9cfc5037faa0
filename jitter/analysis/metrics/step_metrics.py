"""Duration, gap, time to kernel end and launch latency of one step, for all ranks; tables of them; the talk's reading.

The talk reads the ranks' times to kernel end (ttke) at the last kernel before they synchronise. That holds for jobs
that synchronise once per step, at the last collective. Where every collective blocks, the ranks' times to kernel end
are equal again before the end of the step; the account answers there.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from jitter.analysis.alignment.kernel_index import UNMATCHED, KernelIndex
from jitter.analysis.metrics.clock_alignment import (
    ClockAlignment,
    CohortCollectives,
    align_by_collective,
    align_by_wall_clock,
    find_cohort_collectives,
    join_collectives,
)
from jitter.analysis.metrics.step_kernels import (
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
from jitter.core.errors import LakeError, UsageError
from jitter.core.formatting import format_numbers
from jitter.core.numeric.arrays import begins_of, distinct_values, pieces_of
from jitter.core.parallel.prefetch import ROWS_PER_PIECE
from jitter.core.step_key import StepKey
from jitter.lake.layout import kernels_file
from jitter.lake.records import RankStepRecord
from jitter.lake.step_reader import StepColumns

if TYPE_CHECKING:
    import pandas as pd

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
        self._ranks: Sequence[int] | None = None
        needed = {name for metric in metrics for name in _METRIC_COLUMNS[metric]}
        self._columns = ALL_COLUMNS if set(metrics) == set(METRICS) else sorted(needed)

    @cached_property
    def kernels(self) -> StepKernels:
        """The step's kernels, of all ranks that are not left out."""
        places = align_ranks(self.indices)
        if self._ranks is not None:
            places = {rank: places[rank] for rank in self._ranks}
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
        return gap(self.kernels, self._first_gaps)

    @cached_property
    def _starts(self) -> dict[int, int]:
        """By rank the start of the first compute kernel of its main stream, on its own clock, ns."""
        kernels = self.kernels
        ranks, starts = kernels.of_rank[kernels.first].tolist(), kernels.start_ns[kernels.first].tolist()
        return {kernels.ranks[at]: ns for at, ns in zip(ranks, starts, strict=True)}

    @cached_property
    def _first_gaps(self) -> dict[int, int]:
        """By rank the gap of its first kernel, ns; without the ranks that share no moment with their cohort."""
        gaps: dict[int, int] = {}
        for alignment in self.alignments.values():
            moments = alignment.moments_ns
            until = {rank: ns - self._starts[rank] for rank, ns in moments.items() if rank in self._starts}
            gaps |= {rank: max(until.values()) - ns for rank, ns in until.items()}
        return gaps

    @cached_property
    def alignments(self) -> dict[int, ClockAlignment]:
        """Alignment of each cohort's ranks."""
        return {index.cohort: self._moment(index.cohort, self._collectives(index.cohort)) for index in self.indices}

    def in_pieces(self, cohort: int) -> Iterator["StepMetrics"]:
        """Yield the metrics of some ranks of a cohort, then of others, aligned as all are, in less memory than all.

        Deviations are not to be asked for, as they are from the mean over all ranks.
        """
        ranks = sorted(member.rank for index in self.indices if index.cohort == cohort for member in index.members)
        pieces = pieces_of(begins_of(self._held[rank].step.rows for rank in ranks), ROWS_PER_PIECE) if ranks else []
        whole, collectives = self._part(cohort, ranks, METRICS), []
        whole._starts = {}
        for part in (self._part(cohort, ranks[piece], ("gap",)) for piece in pieces):
            whole._starts |= part._starts
            collectives.append(part._collectives(cohort))
        whole.alignments = {cohort: whole._moment(cohort, join_collectives(collectives))}
        for piece in pieces:
            part = self._part(cohort, ranks[piece], METRICS)
            part.alignments, part._first_gaps = whole.alignments, whole._first_gaps
            yield part

    def _part(self, cohort: int, ranks: Sequence[int], metrics: Collection[str]) -> "StepMetrics":
        indices = [index for index in self.indices if index.cohort == cohort]
        part = StepMetrics(self._root, self._key, self._held, self._read, indices, self._cohort_ranks, metrics)
        part._ranks = ranks
        return part

    def _collectives(self, cohort: int) -> CohortCollectives:
        return find_cohort_collectives(self.kernels, cohort, self._cohort_ranks[cohort])

    def _moment(self, cohort: int, collectives: CohortCollectives) -> ClockAlignment:
        alignment = align_by_collective(collectives, self._starts)
        if alignment.moments_ns:
            return alignment
        records = {rank: self._held[rank].record for rank in collectives.ranks}
        clock = align_by_wall_clock(
            {rank: record.utc_offset_ns for rank, record in records.items()},
            {rank: record.file_digest for rank, record in records.items()},
        )
        return alignment if clock is None else replace(clock, unsynchronised=alignment.unsynchronised)

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
        if len(distinct_values(kernels.cohort_of)) > 1:
            rows = rows.take(from_numpy(np.argsort(cohort, kind="stable")))
        return rows

    def deviation(self, metric: Metric) -> Metric:
        """Return a metric's deviations from the mean over the cohort's ranks."""
        return deviation(self.kernels, metric)


def build_metric_table(
    measured: StepMetrics, metric: str, cohort: int, deviation: bool, ranks: Sequence[int] | None
) -> pa.Table:
    """Return one metric of one cohort's step, ns, or its deviations from the mean: one row a kernel.

    Columns: `kernel_index`, `kernel_name`, `mean` over all ranks of the cohort, `rank_<R>` of each of `ranks` (None:
    all); null where unknown. Raises `UsageError` for a rank without the step.
    """
    kernels = measured.kernels
    members = np.flatnonzero(kernels.cohort_of == cohort)
    present = np.array(kernels.ranks, np.int64)[members]
    chosen = present if ranks is None else np.array(sorted(set(ranks)), np.int64)
    missing = sorted(set(chosen.tolist()) - set(present.tolist()))
    if missing:
        raise UsageError(
            f"no rank {missing[0]} in this step of cohort {cohort}", f"it has {format_numbers(present.tolist())}"
        )
    names = next((index.names for index in measured.indices if index.cohort == cohort), ())
    measurement = measured.metric(metric)
    row_of = np.full(len(kernels.ranks), -1)
    row_of[members] = np.arange(len(members))
    at = row_of[kernels.of_rank]
    here = (at >= 0) & kernels.is_matched
    # by rank as the kernels are: what is written in order is written fast
    grid = np.zeros((len(members), len(names)), np.int64)
    is_known, there = np.zeros(grid.shape, np.bool_), np.zeros(len(names), np.bool_)
    there[kernels.index[here]] = True
    here &= measurement.known
    place = (at[here], kernels.index[here])
    grid[place] = measurement.values[here]
    is_known[place] = True
    # exact: sums of int64 nanoseconds, divided once
    count = is_known.sum(axis=0)
    with np.errstate(invalid="ignore"):
        mean = np.where(count > 0, grid.sum(axis=0) / count, np.nan)
    index = np.flatnonzero(there)
    values, is_shown = grid[np.searchsorted(present, chosen)], is_known[np.searchsorted(present, chosen)]
    if len(index) < len(names):
        values, is_shown = values[:, index], is_shown[:, index]
    shown = values - mean[index] if deviation else values
    return pa.table(
        {
            "kernel_index": from_numpy(index),
            "kernel_name": pa.array([names[at] for at in index.tolist()], pa.string()),
            "mean": from_numpy(mean[index], ~np.isnan(mean[index])),
            **{
                f"rank_{rank}": from_numpy(*of_rank)
                for rank, *of_rank in zip(chosen.tolist(), shown, is_shown, strict=True)
            },
        }
    )


def frame_metric(table: pa.Table) -> "pd.DataFrame":
    """Return the columns of `build_metric_table` with the kernel index as index and NA where unknown."""
    import pandas as pd

    nullable = {pa.int64(): pd.Int64Dtype(), pa.float64(): pd.Float64Dtype()}
    frame: pd.DataFrame = table.drop_columns("kernel_index").to_pandas(types_mapper=nullable.get)
    return frame.set_index(pd.Index(table["kernel_index"].to_numpy(), name="kernel_index"))


def select_unmatched(rows: pa.Table) -> pa.Table:
    """Return the rows of `StepMetrics.rows` without a kernel index; texts as plain strings."""
    names = ["rank", "cohort", "position", "kernel_name", "kind", "stream", "start_ns", "duration_ns", "gap_ns"]
    unmatched = rows.filter(rows["kernel_index"].is_null()).select(names)
    texts = [unmatched.schema.get_field_index(name) for name in ("kernel_name", "kind")]
    for at in texts:
        unmatched = unmatched.set_column(at, names[at], unmatched[at].cast(pa.string()))
    return unmatched


@dataclass(frozen=True)
class TtkeReading:
    """One cohort's step. Times in ns; None and empty where the step does not tell."""

    step: StepKey
    cohort: int
    last_index: int | None = None
    """k*: the last main-stream compute kernel that every rank starts before the last aligning collective ends."""
    deviation_ns: Mapping[int, float] | None = None
    """By rank: ttke at k* − the mean over ranks."""
    min_rank: int | None = None
    """The rank with the least ttke at k*."""
    max_rank: int | None = None
    """The rank with the greatest ttke at k*."""

    @property
    def magnitude_ns(self) -> float | None:
        """The max rank's deviation: the talk's magnitude of jitter."""
        if self.deviation_ns is None or self.max_rank is None:
            return None
        return self.deviation_ns[self.max_rank]


def read_ttke(step: StepKey, measured: StepMetrics, cohort: int) -> TtkeReading:
    """Return the reading of one cohort's step; without an aligning collective k* is the last kernel that all have."""
    kernels, alignment, ttke = measured.kernels, measured.alignments[cohort], measured.metric("ttke")
    is_here = kernels.cohort_of[kernels.of_rank] == cohort
    columns = distinct_values(kernels.of_rank[is_here])
    ranks = [kernels.ranks[at] for at in columns.tolist()]
    rows = np.flatnonzero(is_here & kernels.on_main & kernels.is_matched)
    index, rank = kernels.index[rows], np.searchsorted(columns, kernels.of_rank[rows])
    is_before = np.ones(len(rows), np.bool_)
    if alignment.method == "collective":
        is_before = kernels.start_ns[rows] < np.array([alignment.moments_ns[one] for one in ranks], np.int64)[rank]
    last_of_rank = np.full(len(ranks), UNMATCHED, np.int64)
    np.maximum.at(last_of_rank, rank[is_before], index[is_before])
    if len(ranks) < 2 or (last_of_rank == UNMATCHED).any():
        return TtkeReading(step, cohort)
    # at k*, or at the rank's last kernel before it: the last assignment of a rank is its largest index
    last, ttke_ns = int(last_of_rank.min()), np.full(len(ranks), np.nan)
    until = np.flatnonzero(ttke.known[rows] & (index <= last))
    until = until[np.argsort(index[until], kind="stable")]
    ttke_ns[rank[until]] = ttke.values[rows[until]]
    if np.isnan(ttke_ns).any():
        return TtkeReading(step, cohort)
    deviation = ttke_ns - ttke_ns.mean()
    min_rank, max_rank = ranks[int(deviation.argmin())], ranks[int(deviation.argmax())]
    return TtkeReading(step, cohort, last, dict(zip(ranks, deviation.tolist(), strict=True)), min_rank, max_rank)
