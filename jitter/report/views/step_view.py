"""The data that the figures of one step draw: ranks selected, kernels downsampled; nothing else is computed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.model import StepAnswer
from jitter.core.step_key import StepKey
from jitter.report.views.collective_waits import CollectiveWaits, measure_collective_waits
from jitter.report.views.downsample import keep_extremes
from jitter.report.views.self_excess import SELF_EXCESS, SELF_EXCESS_SERIES, measure_self_excess
from jitter.report.views.step_grid import METRICS, StepGrid

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
MAX_POINTS = 4000
"""Most kernels that are drawn without downsampling."""
PIXEL_COLUMNS = 500
"""Pixel columns of a figure for downsampling."""
CUMULATIVE_COLUMNS = 200
"""The same for cumulative lines, which are smoother."""
SERIES = (*SELF_EXCESS_SERIES, *METRICS)
"""All that is drawn along the kernel index."""
MIN_WAIT_FRACTION = 0.01
"""Shortest wait in a collective that gets a line, as a fraction of the step time."""


@dataclass
class KernelNames:
    """A table of distinct kernel names; figures refer to names by position."""

    names: list[str] = field(default_factory=list)
    _codes: dict[str, int] = field(default_factory=dict)

    def code(self, name: str) -> int:
        """Return the position of a name; add the name if it is new."""
        if name not in self._codes:
            self._codes[name] = len(self.names)
            self.names.append(name)
        return self._codes[name]


@dataclass(frozen=True)
class MetricSeries:
    """One metric over the kernel index; arrays of one length, in ns, NaN for the unknown.

    `max` and `min` are the values of the max rank and the min rank; `high` and `low` the extremes of all other ranks,
    `high_rank` and `low_rank` the ranks of these extremes.
    """

    kernel_index: Ints
    code: Ints
    max: Floats
    min: Floats
    high: Floats
    low: Floats
    high_rank: Floats
    low_rank: Floats


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
    series: dict[str, MetricSeries]
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
        own = self.series[SELF_EXCESS]
        return any(bool(np.isfinite(line).any()) for line in (own.max, own.min, own.high))

    @property
    def top_of_others(self) -> int | None:
        """The other rank that reaches the most excess of own time, if the max rank reaches less."""
        own = self.series[SELF_EXCESS]
        high = np.nan_to_num(own.high, nan=-np.inf)
        if not high.size or high.max() <= np.nan_to_num(own.max).max():
            return None
        return int(own.high_rank[high.argmax()])


def build_step_view(
    grid: StepGrid, examined: RunAnalysis, step: StepAnswer, waited_ns: Mapping[int, float], names: KernelNames
) -> StepView:
    """Return the data of the figures of a step; `grid` is the grid of that step and is not empty."""
    ranks: list[int] = grid.ranks.tolist()
    max_rank = ranks[0] if grid.single else step.max_rank
    min_rank = None if grid.single else _least_late(step, waited_ns, set(ranks) - {max_rank})
    codes = np.array([names.code(grid.names[at]) for at in grid.kernel_index.tolist()], dtype=np.int32)
    grid.add(measure_self_excess(examined, step.key, grid))
    shown = _Shown(grid, codes, max_rank, min_rank)
    series = {name: _thinned(shown.series(name), _columns(name)) for name in SERIES}
    collectives = measure_collective_waits(examined, step.key, grid)
    began = step.divergence
    return StepView(
        key=step.key,
        cohort=grid.cohort,
        ranks=len(ranks),
        max_rank=max_rank,
        min_rank=min_rank,
        others=int(shown.others.sum()),
        values=grid.single,
        kernels=grid.kernel_index.size,
        points=max(len(series[metric].kernel_index) for metric in METRICS),
        series=series,
        collectives=collectives,
        recorded_collectives=grid.collectives,
        waited_ns=max((waited_ns.get(rank, 0.0) for rank in ranks), default=0.0),
        waits=_waits(collectives, step.step_time_ns or grid.span_ns),
        divergence=began.kernel_index if began is not None and began.cohort == grid.cohort else None,
        alignment=grid.alignment,
        negative_latencies=grid.negative_latencies,
    )


def build_rank_line(grid: StepGrid, rank: int, metric: str) -> tuple[Ints, Floats]:
    """Return one rank's line, downsampled: kernel indices and values in ns; raises as `StepGrid.of`."""
    at, values = grid.kernel_index, grid.of(rank, metric)
    if at.size <= _columns(metric) * MAX_POINTS // PIXEL_COLUMNS:
        return at, values
    kept = keep_extremes(at, (values,), _columns(metric))
    return at[kept], values[kept]


def _columns(name: str) -> int:
    return CUMULATIVE_COLUMNS if name in SELF_EXCESS_SERIES else PIXEL_COLUMNS


def _least_late(step: StepAnswer, waited_ns: Mapping[int, float], among: set[int]) -> int | None:
    """Return the step's min rank; if it is of another cohort, the rank in `among` that waits longest."""
    if step.min_rank in among:
        return step.min_rank
    waited = {rank: ns for rank, ns in waited_ns.items() if rank in among and ns > 0}
    return max(waited, key=lambda rank: (waited[rank], -rank), default=None)


def _waits(met: CollectiveWaits, step_ns: float) -> tuple[int, ...]:
    """Return the positions of collectives with long waits, longest wait first."""
    order = np.argsort(-met.waited_ns, kind="stable")
    return tuple(int(at) for at in order if met.waited_ns[at] >= MIN_WAIT_FRACTION * step_ns)


class _Shown:
    """The columns of the grid that are max rank, min rank and the other ranks."""

    def __init__(self, grid: StepGrid, codes: Ints, max_rank: int | None, min_rank: int | None) -> None:
        self._grid, self._codes = grid, codes
        ranks: list[int] = grid.ranks.tolist()
        self._max, self._min = (None if rank is None else ranks.index(rank) for rank in (max_rank, min_rank))
        self.others = ~np.isin(np.arange(len(ranks)), [i for i in (self._max, self._min) if i is not None])

    def series(self, metric: str) -> MetricSeries:
        values = self._grid.metric(metric)
        high, high_rank = self._extreme(values, 1.0)
        low, low_rank = self._extreme(values, -1.0)
        at, codes = self._grid.kernel_index, self._codes
        return MetricSeries(
            at, codes, self._of(values, self._max), self._of(values, self._min), high, low, high_rank, low_rank
        )

    def _extreme(self, values: Floats, sign: float) -> tuple[Floats, Floats]:
        """Return the other ranks' highest (sign 1) or lowest (-1) value of each kernel, and its rank."""
        nothing = np.full(values.shape[0], np.nan)
        if not self.others.any() or not values.shape[0]:
            return nothing, nothing
        mine = sign * values[:, self.others]
        mine[np.isnan(mine)] = -np.inf
        at = mine.argmax(axis=1)
        found = mine[np.arange(at.size), at]
        known = np.isfinite(found)
        ranks = self._grid.ranks[self.others][at]
        return np.where(known, sign * found, np.nan), np.where(known, ranks, np.nan)

    def _of(self, values: Floats, column: int | None) -> Floats:
        return np.full(values.shape[0], np.nan) if column is None else values[:, column].copy()


def _thinned(series: MetricSeries, columns: int) -> MetricSeries:
    if series.kernel_index.size <= columns * MAX_POINTS // PIXEL_COLUMNS:
        return series
    kept = keep_extremes(series.kernel_index, (series.max, series.min, series.high, series.low), columns)
    return MetricSeries(**{name: values[kept] for name, values in vars(series).items()})
