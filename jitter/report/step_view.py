"""One cohort's step, ready to be drawn: rows selected and reduced by min and max, nothing else computed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jitter.analysis import Lake
from jitter.diagnosis import StepAnswer
from jitter.examination import Examination, StepPath
from jitter.report.collectives import Collectives, collectives_of
from jitter.report.thinning import thin
from jitter.steps import StepKey

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
METRICS = ("duration", "gap", "ttke", "launch_latency")
MOST_POINTS = 4000
"""Kernels of a step that are drawn one by one; more are thinned."""
COLUMNS = 500
"""Pixel columns that a figure is taken to have when it is thinned."""
WAIT_SHARE = 0.01
"""Of a step's time: waiting less in a collective is not worth a line."""
_COLUMNS = ["rank", "cohort", "kernel_index", "position", "start_ns", "end_ns", "message_bytes"]
_COLUMNS += [f"{metric}_{what}" for metric in METRICS for what in ("ns", "deviation_ns")]


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
    """What the figures of one cohort's step draw."""

    key: StepKey
    cohort: int
    ranks: int
    max_rank: int | None
    """The rank drawn as max rank; of a single rank, that rank."""
    min_rank: int | None
    """The one of the cohort that waits longest."""
    others: int
    """Ranks in the band."""
    values: bool
    """A single rank has no deviations: its values are drawn instead."""
    kernels: int
    points: int
    """The most points drawn in a figure; fewer than `kernels` where they were thinned."""
    series: dict[str, Series]
    collectives: Collectives
    waits: tuple[int, ...]
    """Which of the collectives others waited in, as positions in them."""
    divergence: int | None
    """The kernel index from which the max rank leaves the others."""
    alignment: str
    """How the ranks were aligned: collective, wall clock or none."""
    negative_latencies: int
    """Kernels that start before their own launch, which cannot be."""


def step_view(
    lake: Lake, examined: Examination, step: StepAnswer, path: StepPath, names: KernelNames
) -> StepView | None:
    """Select what the figures of a step show, of the cohort that its max rank is in (the first, where it has none).

    None where no rank recorded the step whole.
    """
    measured = lake.metrics_of(step.key)
    every_row = measured.rows.select(_COLUMNS)  # names are long, and the same on every rank
    cohorts: list[int] = sorted(every_row["cohort"].unique().to_pylist())
    if not cohorts:
        return None
    cohort = cohorts[0] if step.max_rank is None else lake.cohorts[step.max_rank]
    every = every_row.filter(pc.equal(every_row["cohort"], cohort))
    named = next(index.names for index in measured.indices if index.cohort == cohort)
    rows = every.filter(pc.is_valid(every["kernel_index"]))
    ranks: list[int] = sorted(rows["rank"].unique().to_pylist())
    single = len(ranks) == 1
    max_rank = ranks[0] if single else step.max_rank
    min_rank = None if single else _least_late(step, path, set(ranks) - {max_rank})
    indices = np.unique(rows["kernel_index"].to_numpy()).astype(np.int32)
    codes = np.array([names.code(named[at]) for at in indices.tolist()], dtype=np.int32)
    shown = _Ranks(rows, indices, ranks, max_rank, min_rank)
    series = {}
    for metric in METRICS:
        deviates = metric != "launch_latency" and not single
        column = f"{metric}_deviation_ns" if deviates else f"{metric}_ns"
        series[metric] = _thinned(shown.series(column, indices, codes))
    collectives = collectives_of(examined, step.key, every, named)
    return StepView(
        key=step.key,
        cohort=cohort,
        ranks=len(ranks),
        max_rank=max_rank,
        min_rank=min_rank,
        others=int(shown.others.sum()),
        values=single,
        kernels=indices.size,
        points=max(len(one.kernel_index) for one in series.values()),
        series=series,
        collectives=collectives,
        waits=_waits(collectives, step.step_time_ns or _span(every)),
        divergence=None if step.divergence is None else step.divergence.kernel_index,
        alignment=measured.moments[cohort].method,
        negative_latencies=pc.sum(pc.less(every["launch_latency_ns"], 0)).as_py() or 0,
    )


def _least_late(step: StepAnswer, path: StepPath, among: set[int]) -> int | None:
    """The run's min rank, or if it runs other kernels the one of these that waits longest."""
    if step.min_rank in among:
        return step.min_rank
    waited = {rank: ns for rank, ns in path.waited_ns.items() if rank in among and ns > 0}
    return max(waited, key=lambda rank: (waited[rank], -rank), default=None)


def _waits(met: Collectives, step_ns: float) -> tuple[int, ...]:
    """The collectives that others waited in for a part of the step that counts, longest first."""
    order = np.argsort(-met.waited_ns, kind="stable")
    return tuple(int(at) for at in order if met.waited_ns[at] >= WAIT_SHARE * step_ns)


def _span(rows: pa.Table) -> float:
    """How long the step's kernels take on the rank that takes longest."""
    of_ranks = rows.group_by("rank").aggregate([("start_ns", "min"), ("end_ns", "max")])
    return float(pc.max(pc.subtract(of_ranks["end_ns_max"], of_ranks["start_ns_min"])).as_py())


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


def _thinned(series: Series) -> Series:
    if series.kernel_index.size <= MOST_POINTS:
        return series
    kept = thin(series.kernel_index, (series.max, series.min, series.high, series.low), COLUMNS)
    return Series(**{name: values[kept] for name, values in vars(series).items()})
