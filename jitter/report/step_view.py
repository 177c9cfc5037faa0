"""One cohort's step, ready to be drawn: rows selected and reduced by min and max, nothing else computed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jitter.analysis import Lake
from jitter.report.thinning import thin
from jitter.summary import StepSummary

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
METRICS = ("duration", "gap", "ttke", "launch_latency")
MOST_POINTS = 4000
"""Kernels of a step that are drawn one by one; more are thinned."""
COLUMNS = 1000
"""Pixel columns that a figure is taken to have when it is thinned."""


@dataclass
class KernelNames:
    """Every distinct kernel name once; figures carry positions in it."""

    names: list[str] = field(default_factory=list)
    _codes: dict[str, int] = field(default_factory=dict)

    def code(self, name: str) -> int:
        """The position of this name, added if it is new."""
        if name not in self._codes:
            self._codes[name] = len(self.names)
            self.names.append(name)
        return self._codes[name]


@dataclass(frozen=True)
class Series:
    """One metric along the kernel index; arrays of one length, ns, NaN for the unknown.

    `max` and `min` are the max and the min rank's values; `high` and `low` the extremes of all other ranks, with the
    ranks they belong to.
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
    """What the figures of one step draw."""

    summary: StepSummary
    max_rank: int | None
    """The rank drawn as max rank; of a single rank, that rank."""
    min_rank: int | None
    others: int
    """Ranks in the band."""
    values: bool
    """A single rank has no deviations: its values are drawn instead."""
    kernels: int
    points: int
    """The most points drawn in a figure; fewer than `kernels` where they were thinned."""
    series: dict[str, Series]
    collectives: Ints
    """Kernel indices of collectives."""


def step_view(lake: Lake, summary: StepSummary, names: KernelNames) -> StepView:
    """Select what one cohort's step shows."""
    measured = lake.metrics(summary.step.step, summary.step.epoch)
    rows = measured.rows.filter(pc.equal(measured.rows["cohort"], summary.cohort))
    rows = rows.filter(pc.is_valid(rows["kernel_index"]))
    ranks: list[int] = sorted(rows["rank"].unique().to_pylist())
    single = len(ranks) == 1
    max_rank = ranks[0] if single else summary.max_rank
    indices, codes, is_collective = _kernels(rows, names)
    shown = _Ranks(rows, indices, ranks, max_rank, summary.min_rank)
    series = {}
    for metric in METRICS:
        deviates = metric != "launch_latency" and not single
        column = f"{metric}_deviation_ns" if deviates else f"{metric}_ns"
        series[metric] = _thinned(shown.series(column, indices, codes))
    return StepView(
        summary=summary,
        max_rank=max_rank,
        min_rank=summary.min_rank,
        others=int(shown.others.sum()),
        values=single,
        kernels=indices.size,
        points=max(len(one.kernel_index) for one in series.values()),
        series=series,
        collectives=indices[is_collective],
    )


class _Ranks:
    """Rows as (kernels, ranks); which column is the max rank's, which the min rank's, which are of the others."""

    def __init__(
        self, rows: pa.Table, indices: Ints, ranks: Sequence[int], max_rank: int | None, min_rank: int | None
    ) -> None:
        self._rows = rows
        self.ranks = np.array(ranks, dtype=np.int64)
        self._max, self._min = (None if rank is None else ranks.index(rank) for rank in (max_rank, min_rank))
        self._place = (
            np.searchsorted(indices, rows["kernel_index"].to_numpy()),
            np.searchsorted(self.ranks, rows["rank"].to_numpy()),
        )
        self._shape = (indices.size, len(ranks))
        self.others = ~np.isin(np.arange(len(ranks)), [i for i in (self._max, self._min) if i is not None])

    def series(self, column: str, indices: Ints, codes: Ints) -> Series:
        values = np.full(self._shape, np.nan)
        values[self._place] = self._rows[column].cast(pa.float64()).to_numpy(zero_copy_only=False)
        high, high_rank = self._extreme(values, 1.0)
        low, low_rank = self._extreme(values, -1.0)
        return Series(
            indices, codes, self._of(values, self._max), self._of(values, self._min), high, low, high_rank, low_rank
        )

    def _extreme(self, values: Floats, sign: float) -> tuple[Floats, Floats]:
        """The others' greatest (sign 1) or least (-1) value of each kernel, and the rank that has it."""
        nothing = np.full(values.shape[0], np.nan)
        if not self.others.any() or not values.shape[0]:
            return nothing, nothing
        mine = sign * values[:, self.others]
        mine[np.isnan(mine)] = -np.inf
        at = mine.argmax(axis=1)
        found = mine[np.arange(at.size), at]
        known = np.isfinite(found)
        ranks = self.ranks[self.others][at]
        return np.where(known, sign * found, np.nan), np.where(known, ranks, np.nan)

    def _of(self, values: Floats, column: int | None) -> Floats:
        return np.full(values.shape[0], np.nan) if column is None else values[:, column].copy()


def _kernels(rows: pa.Table, names: KernelNames) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Each kernel index once: indices in order, name codes, whether it is a collective."""
    indices, first = np.unique(rows["kernel_index"].to_numpy(), return_index=True)
    of_each = rows.select(["kernel_name", "kind"]).take(pa.array(first))
    codes = [names.code(name) for name in of_each["kernel_name"].to_pylist()]
    collective = pc.equal(of_each["kind"], "collective").to_numpy(zero_copy_only=False).astype(np.bool_)
    return indices.astype(np.int32), np.array(codes, dtype=np.int32), collective


def _thinned(series: Series) -> Series:
    if series.kernel_index.size <= MOST_POINTS:
        return series
    kept = thin(series.kernel_index, (series.max, series.min, series.high, series.low), COLUMNS)
    return Series(**{name: values[kept] for name, values in vars(series).items()})
