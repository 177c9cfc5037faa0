"""The data that the figures of one step draw: grids of kernels by ranks, waits in collectives, durations of kernels.

Ranks are selected and kernels downsampled; nothing else is computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from jitter.analysis.collectives.matching import CollectiveArrays
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.model import StepAnswer
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.step_times import StepTimes
from jitter.analysis.metrics.step_kernels import align_ranks
from jitter.analysis.metrics.step_metrics import METRICS as MEASURED
from jitter.analysis.metrics.step_metrics import StepMetrics
from jitter.analysis.replay.replay import accumulate_excess
from jitter.analysis.replay.run_steps import RecordedSteps, cells_of
from jitter.api import Lake
from jitter.core.errors import UsageError
from jitter.core.formatting import format_numbers
from jitter.core.memory import release_freed_memory
from jitter.core.numeric.arrays import Codes, Floats, Ints
from jitter.core.step_key import StepKey

METRICS = tuple(MEASURED)


class StepGrid:
    """The metrics of a cohort in one step. Times in ns, NaN for the unknown."""

    def __init__(self, lake: Lake, step: StepAnswer) -> None:
        """Choose the cohort of the step's max rank; the first cohort if the step has no max rank.

        The step is read on first use of a metric, some ranks after others.
        """
        self._metrics = lake.metrics(step.key)
        places = align_ranks(self._metrics.indices)
        self.empty = not places
        """Whether no rank recorded the step completely; nothing else is set then."""
        if self.empty:
            return
        self.key = step.key
        cohorts = (place.cohort for place in places.values())
        self.cohort: int = min(cohorts) if step.max_rank is None else lake.cohorts[step.max_rank]
        self.names = next(index.names for index in self._metrics.indices if index.cohort == self.cohort)
        """Kernel names by kernel index."""
        held = [rank for rank in sorted(places) if places[rank].cohort == self.cohort]
        self._held: Ints = np.array(held, np.int64)
        self._index = np.full((len(held), 1 + max(max(len(places[rank].index) - 1, 0) for rank in held)), -1, np.int32)
        for row, rank in enumerate(held):
            self._index[row, : len(places[rank].index)] = places[rank].index
        is_matched = self._index >= 0
        self.kernel_index: Codes = np.unique(self._index[is_matched])
        self.ranks: Ints = self._held[is_matched.any(axis=1)]
        self.added: dict[str, Floats] = {}
        """Further series that are read as metrics are, (kernels, ranks), ns; filled in by the analysis."""
        self.waits_for_collective = np.zeros(self.kernel_index.size, np.bool_)
        """Of each kernel: whether its gap includes waiting for a collective; filled in by the analysis."""

    @cached_property
    def measured(self) -> "MeasuredStep":
        """What is measured of the cohort's kernels: deviations, or the values of a single rank."""
        measured = MeasuredStep(self.kernel_index, self.ranks, self._held, self._index.shape[1])
        for part in self._metrics.in_pieces(self.cohort):
            measured.add(part, self.cohort)
        for name, values in measured.grids.items():
            if not self.single and name != "launch_latency":
                with np.errstate(invalid="ignore"):  # exact: sums of whole ns, divided once
                    mean = np.nansum(values, axis=1) / (~np.isnan(values)).sum(axis=1)
                values -= mean[:, None]  # noqa: PLW2901  # in place
        return measured

    @property
    def single(self) -> bool:
        """Whether the cohort has one rank: values take the place of deviations."""
        return self.ranks.size == 1

    def metric(self, name: str) -> Floats:
        """Return the deviations of a metric, shape (kernels, ranks); values of launch latency and of a single rank."""
        return self.added[name] if name in self.added else self.measured.grids[name]

    def column(self, rank: int) -> int:
        """Return the column of a rank; raise `UsageError` for a rank that is not in the cohort's step."""
        at = int(np.searchsorted(self.ranks, rank))
        if at == self.ranks.size or self.ranks[at] != rank:
            raise UsageError(
                f"no rank {rank} among those that {self.key} shows", f"it has {format_numbers(self.ranks.tolist())}"
            )
        return at

    def locate(self, run: RunModel, times: StepTimes) -> Codes:
        """Return, (2, cells) of `times`, kernel index and position of each operation of the step.

        The index is -1 for what is no kernel of the cohort with an index; the position is then that of one before.
        """
        located = index, position = np.full((2, times.start.size), -1, np.int32)
        kernels = {team: [one.is_kernel for one in program.operations] for team, program in run.programs.items()}
        for row, rank in enumerate(self._held.tolist()):
            if (cells := _cells_of_rank(run, times, rank)) is not None:
                is_kernel = ~np.isnan(times.start[cells]) & kernels[run.team_of[rank]]
                position[cells] = np.cumsum(is_kernel) - 1
                index[cells] = np.where(is_kernel, self._index[row, position[cells]], -1)
        return located

    def sizes_at(self, ranks: Ints, positions: Ints) -> Floats:
        """Return the message size (bytes) of kernels given by rank and position; NaN where there is none."""
        here = np.isin(ranks, self._held)
        sizes = np.full(positions.shape, np.nan)
        sizes[here] = self.measured.message_bytes[np.searchsorted(self._held, ranks[here]), positions[here]]
        return sizes


class MeasuredStep:
    """What is measured of a cohort's step, as some ranks after others are read; see `StepGrid`."""

    alignment = "none"
    """Alignment method: collective, wall clock or none."""
    negative_latencies = 0
    span_ns = 0.0
    """Longest time from first start to last end of a rank's kernels."""
    collectives = 0
    """The most collectives of a rank, whether they are matched across ranks or not."""

    def __init__(self, kernel_index: Codes, ranks: Ints, held: Ints, positions: int) -> None:
        """Make room: `ranks` have a kernel with an index, `held` recorded the step with up to so many `positions`."""
        self._row_of = np.full(1 + int(kernel_index.max(initial=0)), -1, np.int64)
        self._row_of[kernel_index] = np.arange(kernel_index.size)
        self._ranks, self._held = ranks, held
        self.grids = {name: np.full((kernel_index.size, ranks.size), np.nan) for name in METRICS}
        self.is_collective = np.zeros(kernel_index.size, np.bool_)
        """Of each kernel: whether it is a collective, whose duration includes waiting."""
        # most recordings state no size: one NaN stands for all
        self.message_bytes: Floats = np.broadcast_to(np.nan, (held.size, positions))

    def add(self, part: StepMetrics, cohort: int) -> None:
        """Add the metrics of some ranks."""
        kernels = part.kernels
        self.alignment = part.alignments[cohort].method
        rows = np.flatnonzero(kernels.is_matched)
        row = self._row_of[kernels.index[rows]]
        at = row, np.searchsorted(self._ranks, np.array(kernels.ranks, np.int64))[kernels.of_rank[rows]]
        for name in METRICS:
            values, is_known = part.metric(name)
            self.grids[name][at] = np.where(is_known[rows], values[rows], np.nan)
            if name == "launch_latency":
                self.negative_latencies += int((is_known & (values < 0)).sum())
        for first, end in pairwise(kernels.bounds.tolist()):
            if end > first:
                span_ns = kernels.end_ns[first:end].max() - kernels.start_ns[first:end].min()
                self.span_ns = max(self.span_ns, float(span_ns))
        self.is_collective[row[kernels.is_collective[rows]]] = True
        collectives = np.bincount(kernels.of_rank[kernels.is_collective], minlength=1)
        self.collectives = max(self.collectives, int(collectives.max()))
        has_size = np.flatnonzero(kernels.known("message_bytes"))
        if has_size.size:
            if not self.message_bytes.flags.writeable:
                self.message_bytes = self.message_bytes.copy()
            held = np.searchsorted(self._held, np.array(kernels.ranks, np.int64))[kernels.of_rank[has_size]]
            self.message_bytes[held, kernels.position[has_size]] = kernels.values("message_bytes")[has_size]


UNKNOWN_OPERATION = "collective"


@dataclass(frozen=True)
class CollectiveWaits:
    """The collectives of a cohort's step, one entry each, ordered by kernel index. Times in ns, NaN for the unknown.

    If several groups run a collective at once, an entry holds the longest wait, the fastest group and the slowest.
    """

    kernel_index: Codes
    operation: tuple[str, ...]
    waited_ns: Floats
    """Longest wait of a rank of the cohort for the last rank to arrive."""
    waiter: Codes
    """Rank that waited longest."""
    waiter_ns: Floats
    """How long that rank was in the collective: its wait and the transfer."""
    last: Codes
    """Rank that it waited for: the last of its group to arrive."""
    least_ns: Floats
    """Time from the last arrival to the end, in the fastest group."""
    most_ns: Floats
    """The same in the slowest group."""
    usual_ns: Floats
    """Median of that time over the run."""
    expected_ns: Floats
    """What a benchmark gives the slowest group: the time of its message at the measured bandwidth."""
    bytes: Floats
    """Message size of the slowest group, as its last rank recorded it."""

    @property
    def sized(self) -> bool:
        """Whether any message size was recorded."""
        return bool((~np.isnan(self.bytes)).any())


def measure_collective_waits(
    examined: RunAnalysis, number: int, grid: StepGrid, arrays: CollectiveArrays, took: Floats, located: Codes
) -> CollectiveWaits:
    """Measure the collectives of one step, by its number, and cohort, those of `grid`.

    `took` (attendances,) are the times in collectives, `located` (2, attendances) kernel indices and positions.
    """
    run, rank = examined.run, examined.run.rank_numbers[arrays.rank]
    usual, expected = examined.transfers.baseline[number], examined.transfers.expected[number]
    index, sizes = located[0], grid.sizes_at(rank, located[1])
    rows: list[tuple[Any, ...]] = []
    for at, (first, end) in enumerate(pairwise(arrays.first.tolist())):
        came = first + np.flatnonzero(~np.isnan(took[first:end]))
        has_index = index[came] >= 0
        if not has_index.any():
            continue
        first_group, end_group = arrays.first_group[at : at + 2].tolist()
        group, took_ns = arrays.group[came], took[came]
        least = np.full(end_group - first_group, np.inf)
        np.minimum.at(least, group - first_group, took_ns)
        transfer = least[group - first_group]
        waiter = int(np.where(has_index, took_ns - transfer, -np.inf).argmax())
        fastest, slowest = int(transfer.argmin()), int(transfer.argmax())
        # the last member of a group to arrive spent the shortest time in the collective
        last, last_of_slowest = (
            came[int(np.where(group == group[member], took_ns, np.inf).argmin())] for member in (waiter, slowest)
        )
        team = run.team_of[int(rank[first])]
        operation = run.programs[team].operations[int(arrays.place[first])].collective
        rows.append(
            (
                int(index[came[has_index][0]]),
                operation or UNKNOWN_OPERATION,
                float(took_ns[waiter] - transfer[waiter]),
                int(rank[came[waiter]]),
                float(took_ns[waiter]),
                int(rank[last]),
                float(transfer[fastest]),
                float(transfer[slowest]),
                float(usual[first_group]),
                float(expected[group[slowest]]),
                float(sizes[last_of_slowest]),
            )
        )
    columns = list(zip(*sorted(rows), strict=True)) or [()] * len(fields(CollectiveWaits))
    ranks = ("kernel_index", "waiter", "last")
    values: dict[str, Any] = {
        one.name: column if one.name == "operation" else np.array(column, np.int32 if one.name in ranks else float)
        for one, column in zip(fields(CollectiveWaits), columns, strict=True)
    }
    return CollectiveWaits(**values)


MAX_POINTS = 2800
"""Most kernels that are drawn without downsampling."""
PIXEL_COLUMNS = 350
"""Pixel columns of a figure for downsampling."""
CUMULATIVE_COLUMNS = 175
"""The same for the cumulative line, which is smoother."""
SELF_EXCESS: Final = "self_excess"
"""Cumulative excess of own time: time to kernel end without waiting for other ranks, above the median's."""
SERIES: Final = (SELF_EXCESS, *METRICS)
"""All that is drawn along the kernel index."""
MIN_WAIT_FRACTION = 0.01
"""Shortest wait in a collective that gets a line, as a fraction of the step time."""
MIN_SCALE_FRACTION: Final = 0.01
"""Of the step time: no figure along the kernels has a finer scale, so that noise stays flat."""
MAX_RUNS = 300
"""Most pieces in the band of ranks; else each equal part of the step shows its clearest kernel."""
MAX_MAP_ROWS, MAX_MAP_CELLS = 96, 20_000


@dataclass(frozen=True)
class MetricSeries:
    """One metric over the kernel index; arrays of one length, in ns, NaN for the unknown.

    `max` and `min` are the values of the max rank and the min rank; `high` and `low` the extremes of all other ranks,
    `high_rank` and `low_rank` the ranks of these extremes.
    """

    kernel_index: Codes
    code: Codes
    """Position in the view's `names`."""
    max: Floats
    min: Floats
    high: Floats
    low: Floats
    high_rank: Floats
    low_rank: Floats


class RankRuns(NamedTuple):
    """Stretches of kernels with one rank furthest behind (row 0) or furthest ahead (row 1); arrays of one length."""

    row: Codes
    left: Floats
    """Kernel index of the first kernel − 0.5."""
    right: Floats
    rank: Codes
    is_clear: npt.NDArray[np.bool_]
    """Whether the rank is at least the finest scale away from the median rank."""


class KernelMap(NamedTuple):
    """Ranks by kernels: what gap and duration add, above their mean over the ranks; a cell shows its highest value."""

    ranks: tuple[tuple[int, ...], ...]
    """Ranks of each row."""
    kernels: tuple[tuple[int, int], ...]
    """First and last kernel index of each column."""
    added_ns: npt.NDArray[np.float32]
    """(rows, columns); NaN: unknown. What includes waiting for other ranks is left out."""


@dataclass(frozen=True)
class StepView:
    """The data of the figures of one cohort's step."""

    key: StepKey
    cohort: int
    ranks: int
    max_rank: int | None
    """The rank drawn as max rank; a single rank is its own max rank."""
    min_rank: int | None
    """The rank of the cohort that waits longest."""
    others: int
    """Number of other ranks, drawn as a band."""
    values: bool
    """Whether values are drawn instead of deviations: for a single rank."""
    kernels: int
    points: int
    """Most points drawn in a figure; less than `kernels` after downsampling."""
    scale_ns: float
    """Finest scale of the figures."""
    is_calm: bool
    """Whether no rank stands out in the step."""
    names: tuple[str, ...]
    series: dict[str, MetricSeries]
    runs: RankRuns
    map: KernelMap | None
    """None for a single rank."""
    collectives: CollectiveWaits
    recorded_collectives: int
    """The most collectives that a rank of the cohort recorded; `collectives` has those with a kernel index."""
    waited_ns: float
    """Longest sum of a rank's waits in the collectives."""
    waits: tuple[int, ...]
    """Collectives with long waits, as positions in `collectives`, longest wait first."""
    divergence: int | None
    """Kernel index at which the max rank begins to diverge."""
    alignment: str
    """Method by which the ranks were aligned: collective, wall clock or none."""
    negative_latencies: int
    """Kernels that start before their own launch: a sign of disagreeing clocks."""

    @property
    def top_of_others(self) -> int | None:
        """The other rank that reaches the most excess of own time, if the max rank reaches less."""
        excess = self.series[SELF_EXCESS]
        high = np.nan_to_num(excess.high, nan=-np.inf)
        if not high.size or high.max() <= np.nan_to_num(excess.max).max():
            return None
        return int(excess.high_rank[high.argmax()])


def is_known(series: MetricSeries) -> bool:
    """Return whether a series has any value."""
    return any(bool(np.isfinite(line).any()) for line in (series.max, series.min, series.high))


def build_step_view(grid: StepGrid, examined: RunAnalysis, step: StepAnswer) -> StepView:
    """Return the data of the figures of a step; `grid` is the grid of that step and is not empty."""
    number = examined.keys.index(step.key)
    of_ranks = examined.measured.statistics.arrivals.waited_ns[number].tolist()
    waited_of_run = dict(zip(examined.run.rank_numbers.tolist(), of_ranks, strict=True))
    waited_ns = {rank: waited_of_run.get(rank, 0.0) for rank in grid.ranks.tolist()}
    max_rank, min_rank = _choose_drawn_ranks(step, waited_ns)
    names, codes = np.unique([grid.names[at] for at in grid.kernel_index.tolist()], return_inverse=True)
    recorded = next(iter(examined.steps.steps(number, number + 1)))
    located = grid.locate(examined.run, recorded.times)
    arrays, took = recorded.collectives, recorded.in_collectives[0]
    cells = cells_of(recorded.times, arrays)
    attended = np.where(cells < 0, -1, located[:, cells])
    grid.waits_for_collective = find_waiting_kernels(examined, recorded.times, grid, located[0])
    grid.added[SELF_EXCESS] = measure_self_excess(examined, recorded, grid, located[0])
    del recorded, located  # not in memory while the step's metrics are read
    release_freed_memory()
    step_ns = float(step.step_time_ns or grid.measured.span_ns)
    collectives = measure_collective_waits(examined, number, grid, arrays, took, attended)
    series = {name: _build_series(grid, name, codes.astype(np.int32), max_rank, min_rank) for name in SERIES}
    waits = np.argsort(-collectives.waited_ns, kind="stable").tolist()
    began = step.divergence
    return StepView(
        key=step.key,
        cohort=grid.cohort,
        ranks=grid.ranks.size,
        max_rank=max_rank,
        min_rank=min_rank,
        others=len(waited_ns.keys() - {max_rank, min_rank}),
        values=grid.single,
        kernels=grid.kernel_index.size,
        points=max(len(series[metric].kernel_index) for metric in METRICS),
        scale_ns=MIN_SCALE_FRACTION * step_ns,
        is_calm=step.cause == "none",
        names=tuple(names.tolist()),
        series=series,
        runs=find_rank_runs(grid, MIN_SCALE_FRACTION * step_ns),
        map=None if grid.single else build_kernel_map(grid),
        collectives=collectives,
        recorded_collectives=grid.measured.collectives,
        waited_ns=max(waited_ns.values(), default=0.0),
        waits=tuple(at for at in waits if collectives.waited_ns[at] >= MIN_WAIT_FRACTION * step_ns),
        divergence=began.kernel_index if began is not None and began.cohort == grid.cohort else None,
        alignment=grid.measured.alignment,
        negative_latencies=grid.measured.negative_latencies,
    )


def _choose_drawn_ranks(step: StepAnswer, waited_ns: Mapping[int, float]) -> tuple[int | None, int | None]:
    """Return the ranks that are drawn as max and as min rank; `waited_ns` are the waits of the cohort's ranks."""
    max_rank = next(iter(waited_ns)) if len(waited_ns) == 1 else step.max_rank
    others = {rank: ns for rank, ns in waited_ns.items() if rank != max_rank}
    if step.min_rank in others:
        return max_rank, step.min_rank
    # it is of another cohort: the rank that waits longest
    waiting = [rank for rank, ns in others.items() if ns > 0]
    return max_rank, max(waiting, key=lambda rank: (others[rank], -rank), default=None)


def _build_series(grid: StepGrid, name: str, codes: Codes, max_rank: int | None, min_rank: int | None) -> MetricSeries:
    """Return the points to draw of a metric; `codes` (kernels,) are the positions of the kernels' names."""
    values = own_values(grid, name)
    most, least = (
        np.full(len(values), np.nan) if rank is None else values[:, grid.column(rank)].copy()
        for rank in (max_rank, min_rank)
    )
    is_other = ~np.isin(grid.ranks, [rank for rank in (max_rank, min_rank) if rank is not None])
    band, band_ranks = values[:, is_other], grid.ranks[is_other]
    (high, high_rank), (low, low_rank) = (_extreme(band, band_ranks, sign) for sign in (1.0, -1.0))
    kept = choose_points(name, grid.kernel_index, (most, least, high, low))
    columns = grid.kernel_index, codes, most, least, high, low, high_rank, low_rank
    thinned: list[Any] = [column[kept] for column in columns]
    return MetricSeries(*thinned)


def measure_self_excess(examined: RunAnalysis, step: RecordedSteps, grid: StepGrid, index: Codes) -> Floats:
    """Return the excess of own time built up to the end of each kernel, (kernels, ranks) of the grid, ns.

    Kernels of other streams and collectives carry the value of the main stream. A rank starts the step at 0. A single
    rank is compared with its other steps; NaN without any. `index` (cells,) are the kernel indices.
    """
    shape = grid.kernel_index.size, grid.ranks.size
    if grid.single and len(examined.keys) == 1:
        return np.full(shape, np.nan)
    run, times, usual = examined.run, step.times, examined.transfers.baseline[step.first]
    excess = accumulate_excess(run, step, examined.steps.find_baselines(step), usual)
    row_of = np.full(1 + int(grid.kernel_index.max(initial=0)), -1, np.int64)
    row_of[grid.kernel_index] = np.arange(grid.kernel_index.size)
    on_main = {team: [one.on_main for one in program.operations] for team, program in run.programs.items()}
    kernel_excess = np.full(shape, np.nan)
    for column, rank in enumerate(grid.ranks.tolist()):
        if (of_rank := _cells_of_rank(run, times, rank)) is None:
            continue
        chosen = np.flatnonzero((index[of_rank] >= 0) & on_main[run.team_of[rank]])
        if chosen.size:
            rows, last, built_up = row_of[index[of_rank][chosen]], np.full(shape[0], -1), np.zeros(shape[0] + 1)
            last[rows], built_up[rows] = rows, excess[of_rank][chosen]
            kernel_excess[:, column] = built_up[np.maximum.accumulate(last)]  # 0, which is last, before the first
    return kernel_excess


def find_waiting_kernels(
    examined: RunAnalysis, times: StepTimes, grid: StepGrid, index: Codes
) -> npt.NDArray[np.bool_]:
    """Return which kernels, (kernels,) of the grid, wait for a collective of another stream, or their host does.

    `index` (cells,) of `times` are the kernel indices.
    """
    run = examined.run
    is_waiting = np.zeros(grid.kernel_index.size, np.bool_)
    for team, program in run.programs.items():
        collective = {place for place, op in enumerate(program.operations) if op.collective is not None}
        waiting = {wait.op_index for wait in run.dependencies[team].waits if wait.on_op_index in collective}
        is_waiting |= np.isin(grid.kernel_index, _by_rank(index, times, team, sorted(waiting)))
    return is_waiting


def _cells_of_rank(run: RunModel, times: StepTimes, rank: int) -> slice | None:
    """Return where a rank's operations lie in a step; None if the run has not the rank, or the rank not the step."""
    number = run.number_of.get(rank)
    return None if number is None or times.row[number] < 0 else run.job.slices(times, number)[1]


def _by_rank(values: Codes, times: StepTimes, team: int, places: Sequence[int]) -> Codes:
    """Return, (ranks, places), those of the cells of a step that a team's ranks have at places of its program."""
    row = times.row[(times.team == team) & (times.row >= 0)]
    of_team: Codes = values[row[:, None] + np.array(places, np.int64)]
    return of_team


def find_rank_runs(grid: StepGrid, scale_ns: float) -> RankRuns:
    """Return which rank is furthest behind and furthest ahead at each kernel, equal neighbours as one piece.

    By the cumulative excess of own time; where that is unknown by the time to kernel end.
    """
    values = grid.metric(SELF_EXCESS)
    if not np.isfinite(values).any():
        values = grid.metric("ttke")
    at = np.flatnonzero(np.isfinite(values).any(axis=1))
    if grid.single or not at.size:
        nothing = np.empty(0, np.int32)
        return RankRuns(nothing, np.empty(0), np.empty(0), nothing, np.empty(0, np.bool_))
    values, edges = values[at], np.append(grid.kernel_index[at], grid.kernel_index[-1] + 1) - 0.5
    middle, row_columns = np.nanmedian(values, axis=1), []
    for row, sign in enumerate((1.0, -1.0)):
        extreme, rank = _extreme(values, grid.ranks, sign)
        spread = sign * (extreme - middle)
        piece = np.flatnonzero(np.diff(2 * rank + (spread >= scale_ns), prepend=-1))
        widest = piece
        if piece.size > MAX_RUNS:
            piece = np.unique(np.arange(MAX_RUNS) * at.size // MAX_RUNS)
            widest = np.array([a + spread[a:b].argmax() for a, b in zip(piece, [*piece[1:], at.size], strict=True)])
        right = edges[np.append(piece[1:], at.size)]
        row_columns.append((np.full(piece.size, row), edges[piece], right, rank[widest], spread[widest] >= scale_ns))
    rows, left, right, ranks, clear = (np.concatenate(parts) for parts in zip(*row_columns, strict=True))
    return RankRuns(rows.astype(np.int32), left, right, ranks.astype(np.int32), clear)


def build_kernel_map(grid: StepGrid) -> KernelMap:
    """Return the map of a step; neighbouring ranks and kernels share a cell where there are too many to see."""
    gap, duration = own_values(grid, "gap"), own_values(grid, "duration")
    ranks, kernels = grid.ranks.tolist(), 1 + int(grid.kernel_index[-1])
    tall = -(-len(ranks) // MAX_MAP_ROWS)
    rows = np.arange(0, len(ranks), tall)
    wide = -(-kernels // (MAX_MAP_CELLS // rows.size))
    columns = np.arange(0, kernels, wide)
    folded = np.full((rows.size, columns.size), np.nan)
    for column, (of_gap, of_duration) in enumerate(zip(gap.T, duration.T, strict=True)):
        added = np.full(kernels, np.nan)
        has_times = ~(np.isnan(of_gap) & np.isnan(of_duration))
        added[grid.kernel_index] = np.where(has_times, np.nan_to_num(of_gap) + np.nan_to_num(of_duration), np.nan)
        np.fmax(folded[column // tall], np.fmax.reduceat(added, columns), out=folded[column // tall])
    return KernelMap(
        tuple(tuple(ranks[at : at + tall]) for at in rows.tolist()),
        tuple((at, min(at + wide, kernels) - 1) for at in columns.tolist()),
        folded.astype(np.float32),
    )


def own_values(grid: StepGrid, metric: str) -> Floats:
    """Return a metric of a step without values that include waiting for other ranks.

    Those are durations of collectives, and gaps of kernels that wait for a collective. A single rank's are all kept.
    """
    hidden = {"duration": grid.measured.is_collective, "gap": grid.waits_for_collective}.get(metric)
    if hidden is None or grid.single:
        return grid.metric(metric)
    return np.where(hidden[:, None], np.nan, grid.metric(metric))


def build_rank_line(grid: StepGrid, rank: int, metric: str) -> tuple[Codes, Floats]:
    """Return one rank's line, downsampled: kernel indices and values in ns; raises as `StepGrid.column`."""
    values = own_values(grid, metric)[:, grid.column(rank)]
    kept = choose_points(metric, grid.kernel_index, (values,))
    return grid.kernel_index[kept], values[kept]


def choose_points(name: str, x: Codes, lines: Sequence[Floats]) -> Ints:
    """Return the positions to draw of a series: all, or where they are too many, the extremes in each pixel column."""
    columns = CUMULATIVE_COLUMNS if name == SELF_EXCESS else PIXEL_COLUMNS
    return np.arange(x.size) if x.size <= columns * MAX_POINTS // PIXEL_COLUMNS else keep_extremes(x, lines, columns)


def keep_extremes(x: Codes, lines: Sequence[Floats], columns: int) -> Ints:
    """Return the positions to keep, ascending: first, last, and each line's extremes in `columns` equal parts of x.

    `x` ascends; each line has the length of `x`, with NaN for the unknown. Nothing is averaged: spikes are the signal.
    """
    if x.size == 0:
        return np.empty(0, dtype=np.int64)
    column = ((x - x[0]).astype(np.int64) * columns) // (int(x[-1]) - int(x[0]) + 1)
    _, begins = np.unique(column, return_index=True)
    part = np.repeat(np.arange(begins.size), np.diff(np.append(begins, x.size)))
    kept = [np.array([0, x.size - 1], dtype=np.int64)]
    for line in lines:
        positions = np.flatnonzero(~np.isnan(line))
        # sorted by part, then value: each part begins with its lowest and ends with its highest
        order = positions[np.lexsort((line[positions], part[positions]))]
        edges = np.flatnonzero(np.diff(part[order])) + 1
        kept += [order[np.append(0, edges)], order[np.append(edges - 1, order.size - 1)]] if order.size else []
    return np.unique(np.concatenate(kept))


def _extreme(values: Floats, ranks: Ints, sign: float) -> tuple[Floats, Floats]:
    """Return the highest (sign 1) or lowest (-1) value of each kernel, and its rank; NaN where there is none."""
    if not ranks.size or not values.shape[0]:
        nothing = np.full(values.shape[0], np.nan)
        return nothing, nothing
    comparable = np.where(np.isnan(values), -np.inf, sign * values)
    at = comparable.argmax(axis=1)
    highest = comparable[np.arange(at.size), at]
    is_finite = np.isfinite(highest)
    return np.where(is_finite, sign * highest, np.nan), np.where(is_finite, ranks[at], np.nan)


MAX_VALUES: Final = 40_000
"""Most durations that a written page holds, over all kernels."""


class KernelDurations(NamedTuple):
    """Durations of kernels, (kernels, ranks, steps), ns; NaN where a rank lacks the kernel in a step."""

    kernel_index: tuple[int, ...]
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    steps: tuple[StepKey, ...]
    duration_ns: npt.NDArray[np.float32]


def choose_kernels(grid: StepGrid, first: Sequence[int], steps: int) -> list[int]:
    """Return the kernels of a step that a written page holds, ascending.

    They are the `first` ones, then those with the widest spread of gap and duration over the ranks.
    """
    most = max(1, MAX_VALUES // max(1, steps * grid.ranks.size))
    spread = np.zeros(grid.kernel_index.size)
    for metric in ("gap", "duration"):
        values = np.nan_to_num(own_values(grid, metric))
        spread += values.max(axis=1) - values.min(axis=1)
    by_spread: list[int] = grid.kernel_index[
        np.argsort(-np.where(grid.measured.is_collective, -1.0, spread), kind="stable")
    ].tolist()
    return sorted(list(dict.fromkeys([*(index for index in first if index in set(by_spread)), *by_spread]))[:most])


def measure_kernel_durations(examined: RunAnalysis, grid: StepGrid, kernels: Sequence[int]) -> KernelDurations:
    """Read kernels, given by their index in the step of the grid, in every step of the run.

    The same operation of the program is the same kernel in every step.
    """
    run, wanted = examined.run, np.asarray(kernels, np.int64)
    durations_ns = np.full((wanted.size, grid.ranks.size, len(examined.keys)), np.nan, np.float32)
    for team, size in run.operation_counts.items():
        index, pieces = np.full(size, -1, np.int32), run.pieces_of_team(team)
        for ranks in pieces:
            times = run.step_times(grid.key, ranks)
            of_ranks = _by_rank(grid.locate(run, times)[0], times, team, range(size))
            np.maximum(index, of_ranks.max(axis=0, initial=-1), out=index)
        place_of = {kernel: place for place, kernel in enumerate(index.tolist()) if kernel >= 0}
        if not place_of:
            continue
        rows = [row for row, kernel in enumerate(wanted.tolist()) if kernel in place_of]
        places = [place_of[int(wanted[row])] for row in rows]
        for number, key in enumerate(examined.keys):
            for ranks in pieces:
                step = run.team_times(key, team, ranks)
                here = np.isin(step.ranks, grid.ranks)
                column = np.searchsorted(grid.ranks, step.ranks[here])
                took = step.end[places] - step.start[places]  # NaN where the rank lacks the kernel
                durations_ns[np.array(rows, np.int64)[:, None], column, number] = took[:, here]
    names = tuple(grid.names[int(index)] for index in wanted)
    return KernelDurations(
        tuple(wanted.tolist()), names, tuple(grid.ranks.tolist()), tuple(examined.keys), durations_ns
    )
