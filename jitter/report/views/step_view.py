"""The data that the figures of one step draw: ranks selected, kernels downsampled; nothing else is computed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.model import StepAnswer
from jitter.analysis.execution.step_times import of_team
from jitter.analysis.replay.replay import accumulate_excess
from jitter.analysis.replay.run_steps import RecordedStep
from jitter.core.numeric.arrays import Codes, Floats, Ints
from jitter.core.step_key import StepKey
from jitter.report.views.collective_waits import CollectiveWaits, measure_collective_waits
from jitter.report.views.step_grid import METRICS, StepGrid

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
    def has_self_excess(self) -> bool:
        """Whether the cumulative excess of own time is known for any rank."""
        return is_known(self.series[SELF_EXCESS])

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


def build_step_view(
    grid: StepGrid, examined: RunAnalysis, step: StepAnswer, waited_ns: Mapping[int, float]
) -> StepView:
    """Return the data of the figures of a step; `grid` is the grid of that step and is not empty."""
    ranks: list[int] = grid.ranks.tolist()
    max_rank = ranks[0] if grid.single else step.max_rank
    others = {rank: waited_ns.get(rank, 0.0) for rank in ranks if rank != max_rank}
    min_rank = step.min_rank
    if min_rank not in others:  # it is of another cohort: the rank that waits longest
        waiting = [rank for rank, ns in others.items() if ns > 0]
        min_rank = max(waiting, key=lambda rank: (others[rank], -rank), default=None)
    names, codes = np.unique([grid.names[at] for at in grid.kernel_index.tolist()], return_inverse=True)
    grid.add({SELF_EXCESS: measure_self_excess(examined, step.key, grid)})
    grid.waits_for_collective = find_waiting_kernels(examined, grid)
    step_ns = float(step.step_time_ns or grid.span_ns)
    drawn = [None if rank is None else ranks.index(rank) for rank in (max_rank, min_rank)]
    is_other = ~np.isin(np.arange(len(ranks)), [column for column in drawn if column is not None])
    collectives = measure_collective_waits(examined, step.key, grid)
    series = {}
    for name in SERIES:
        values = own_values(grid, name)
        most, least = (np.full(len(values), np.nan) if column is None else values[:, column].copy() for column in drawn)
        band, band_ranks = values[:, is_other], grid.ranks[is_other]
        (high, high_rank), (low, low_rank) = (_extreme(band, band_ranks, sign) for sign in (1.0, -1.0))
        whole = MetricSeries(grid.kernel_index, codes.astype(np.int32), most, least, high, low, high_rank, low_rank)
        series[name] = downsample(whole, _columns(name))
    waits = np.argsort(-collectives.waited_ns, kind="stable").tolist()
    began = step.divergence
    return StepView(
        key=step.key,
        cohort=grid.cohort,
        ranks=len(ranks),
        max_rank=max_rank,
        min_rank=min_rank,
        others=int(is_other.sum()),
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
        recorded_collectives=grid.collectives,
        waited_ns=max((waited_ns.get(rank, 0.0) for rank in ranks), default=0.0),
        waits=tuple(at for at in waits if collectives.waited_ns[at] >= MIN_WAIT_FRACTION * step_ns),
        divergence=began.kernel_index if began is not None and began.cohort == grid.cohort else None,
        alignment=grid.alignment,
        negative_latencies=grid.negative_latencies,
    )


def measure_self_excess(examined: RunAnalysis, key: StepKey, grid: StepGrid) -> Floats:
    """Return the excess of own time built up to the end of each kernel, (kernels, ranks) of the grid, ns.

    Kernels of other streams and collectives carry the value of the main stream. A rank starts the step at 0. A single
    rank is compared with its other steps; NaN without any.
    """
    if grid.single and len(examined.keys) == 1:
        return np.full((grid.kernel_index.size, grid.ranks.size), np.nan)
    number = examined.keys.index(key)
    step = next(iter(examined.steps.steps(number, number + 1)))
    usual = examined.baseline_transfers[number]
    excess = accumulate_excess(examined.run, step, examined.steps.baseline(step), usual)
    cells = _main_stream_cells(examined, step, grid)
    last = np.maximum.accumulate(np.where(cells < 0, -1, np.arange(len(cells))[:, None]), axis=0)
    kernel_excess: Floats = np.where(last < 0, 0.0, excess[np.take_along_axis(cells, np.maximum(last, 0), axis=0)])
    kernel_excess[:, (cells < 0).all(axis=0)] = np.nan
    return kernel_excess


def find_waiting_kernels(examined: RunAnalysis, grid: StepGrid) -> npt.NDArray[np.bool_]:
    """Return which kernels, (kernels,) of the grid, wait for a collective of another stream, or their host does."""
    run = examined.run
    is_waiting = np.zeros(grid.kernel_index.size, np.bool_)
    for team, program in run.programs.items():
        collective = {place for place, op in enumerate(program.operations) if op.collective is not None}
        waiting = {wait.op_index for wait in run.dependencies[team].waits if wait.on_op_index in collective}
        places = sorted(place for place in waiting if program.operations[place].is_kernel)
        if not places:
            continue
        index, _ = grid.of_operations(program, run.team_times(grid.key, team))
        is_waiting |= np.isin(grid.kernel_index, index[places])
    return is_waiting


def _main_stream_cells(examined: RunAnalysis, step: RecordedStep, grid: StepGrid) -> Ints:
    """Return, (kernels, ranks) of the grid, the cell of the step if the main stream ran the kernel; else -1."""
    run = examined.run
    kernel_cells = np.full((grid.kernel_index.size, grid.ranks.size), -1, np.int64)
    for team, program in run.programs.items():
        times = of_team(step.times, run.rank_numbers, team, len(program.operations))
        kernels = np.array([op.is_kernel for op in program.operations], np.bool_)
        places = np.flatnonzero([op.on_main for op in program.operations])
        position = (np.cumsum(times.present & kernels[:, None], axis=0) - 1)[places]
        index, _ = grid.at(times.ranks, position)
        index[~times.present[places] | ~np.isin(times.ranks, grid.ranks)] = -1
        place, rank = np.nonzero(index >= 0)
        row = np.searchsorted(grid.kernel_index, np.arange(1 + int(grid.kernel_index.max(initial=0))))
        column = np.searchsorted(grid.ranks, times.ranks)
        first = step.times.row[[run.number_of[member] for member in times.ranks.tolist()]]
        kernel_cells[row[index[place, rank]], column[rank]] = first[rank] + places[place]
    return kernel_cells


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
    middle = np.nanmedian(values, axis=1)
    highest = grid.ranks[np.where(np.isnan(values), -np.inf, values).argmax(axis=1)]
    lowest = grid.ranks[np.where(np.isnan(values), np.inf, values).argmin(axis=1)]
    row_columns = []
    apart = np.nanmax(values, axis=1) - middle, middle - np.nanmin(values, axis=1)
    for row, (rank, spread) in enumerate(zip((highest, lowest), apart, strict=True)):
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
    added = np.full((grid.ranks.size, 1 + int(grid.kernel_index[-1])), np.nan)
    has_times = ~(np.isnan(gap) & np.isnan(duration))
    added[:, grid.kernel_index] = np.where(has_times, np.nan_to_num(gap) + np.nan_to_num(duration), np.nan).T
    tall = -(-added.shape[0] // MAX_MAP_ROWS)
    rows = np.arange(0, added.shape[0], tall)
    wide = -(-added.shape[1] // (MAX_MAP_CELLS // rows.size))
    columns = np.arange(0, added.shape[1], wide)
    folded = np.fmax.reduceat(np.fmax.reduceat(added, rows, axis=0), columns, axis=1)
    ranks: list[int] = grid.ranks.tolist()
    return KernelMap(
        tuple(tuple(ranks[at : at + tall]) for at in rows.tolist()),
        tuple((at, min(at + wide, added.shape[1]) - 1) for at in columns.tolist()),
        folded.astype(np.float32),
    )


def own_values(grid: StepGrid, metric: str) -> Floats:
    """Return a metric of a step without values that include waiting for other ranks.

    Those are durations of collectives, and gaps of kernels that wait for a collective. A single rank's are all kept.
    """
    hidden = {"duration": grid.is_collective, "gap": grid.waits_for_collective}.get(metric)
    if hidden is None or grid.single:
        return grid.metric(metric)
    return np.where(hidden[:, None], np.nan, grid.metric(metric))


def build_rank_line(grid: StepGrid, rank: int, metric: str) -> tuple[Codes, Floats]:
    """Return one rank's line, downsampled: kernel indices and values in ns; raises as `StepGrid.of`."""
    at, values = grid.kernel_index, own_values(grid, metric)[:, grid.column(rank)]
    columns = _columns(metric)
    kept = np.arange(at.size) if at.size <= _most_points(columns) else keep_extremes(at, (values,), columns)
    return at[kept], values[kept]


def downsample(series: MetricSeries, columns: int) -> MetricSeries:
    """Return a series with each line's lowest and highest point in every pixel column, if it has too many points."""
    if series.kernel_index.size <= _most_points(columns):
        return series
    kept = keep_extremes(series.kernel_index, (series.max, series.min, series.high, series.low), columns)
    return MetricSeries(**{name: values[kept] for name, values in vars(series).items()})


def _columns(name: str) -> int:
    return CUMULATIVE_COLUMNS if name == SELF_EXCESS else PIXEL_COLUMNS


def _most_points(columns: int) -> int:
    return columns * MAX_POINTS // PIXEL_COLUMNS


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
