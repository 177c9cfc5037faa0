"""What one step tells, in the talk's reading: who came first and last, by how much, from which kernel on, and why.

It holds where the ranks synchronise once a step, at its last collective. Where every collective blocks, lateness is
paid along the way and the times to kernel end meet again before the end: little is seen here then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.analysis.metrics.clock_alignment import ClockAlignment, ClockReading
from jitter.core.arrays import Floats
from jitter.core.stats import MAD_TO_SIGMA, lower_median
from jitter.core.step_key import StepKey

NOISE = 5.0
"""How many standard deviations of a kernel's own time, summed as of a random walk, count as noise."""
_FLOOR_NS = 2_000.0  # profilers' own resolution: less is never called divergence
_ENOUGH_RANKS = 4  # fewer do not tell one kernel's noise from one rank's lateness: then that of all kernels counts


@dataclass(frozen=True)
class Divergence:
    """The kernel from which the max rank's lateness leaves the noise and does not come back."""

    kernel_index: int
    kernel_name: str


@dataclass(frozen=True)
class Split:
    """The max rank's deviation at k*, in ns and without remainder: before its first kernel, in gaps, in durations."""

    start_ns: float
    cpu_ns: float
    gpu_ns: float


@dataclass(frozen=True)
class TtkeReading:
    """One cohort's step. Times in ns; null where the step does not tell."""

    step: StepKey
    cohort: int
    ranks: int
    kernels: int
    """Kernels of the index."""
    unmatched_kernels: int
    unmatched_ns: int
    """How much time kernels without a partner took."""
    alignment: ClockAlignment
    left_out: tuple[int, ...]
    """Ranks whose recording was cut before the step's last collective."""
    negative_latencies: int
    """Kernels that start before their own launch, which cannot be."""
    step_ends: dict[int, ClockReading]
    """Where each rank's step ends: its last aligning collective, else its last kernel."""
    last_index: int | None = None
    """k*: the last main-stream compute kernel that all ranks start before the last aligning collective ends."""
    min_rank: int | None = None
    max_rank: int | None = None
    min_deviation_ns: float | None = None
    """The min rank's time to kernel end at k* against the mean: how early."""
    max_deviation_ns: float | None = None
    """The max rank's: the talk's magnitude of jitter."""
    lateness_ns: dict[int, float] = field(default_factory=dict)
    """Each rank's time to kernel end at k* less the median rank's."""
    loss_ns: int | None = None
    """The latest time to kernel end at k* less the sum of the medians of every kernel's gap and duration."""
    divergence: Divergence | None = None
    split: Split | None = None


def read_ttke(
    step: StepKey,
    cohort: int,
    rows: pa.Table,
    moment: ClockAlignment,
    clocks: Mapping[int, tuple[str, int | None]],
    left_out: Sequence[int] = (),
) -> TtkeReading:
    """Sum up one cohort's step from its metrics (rows as of `StepMetrics.rows`, one cohort's).

    `clocks` names each rank's clock and what added to it gives UTC (None: unknown).
    """
    unmatched = rows.filter(pc.is_null(rows["kernel_index"]))
    main = rows.filter(pc.and_(rows["on_main"], pc.is_valid(rows["kernel_index"])))
    ranks = sorted(rows["rank"].unique().to_pylist())
    silent = TtkeReading(
        step=step,
        cohort=cohort,
        ranks=len(ranks),
        kernels=0 if (top := pc.max(rows["kernel_index"]).as_py()) is None else top + 1,
        unmatched_kernels=unmatched.num_rows,
        unmatched_ns=pc.sum(unmatched["duration_ns"]).as_py() or 0,
        alignment=moment,
        left_out=tuple(left_out),
        negative_latencies=pc.sum(pc.less(rows["launch_latency_ns"], 0)).as_py() or 0,
        step_ends={rank: ClockReading(*clocks[rank], ns) for rank, ns in _step_ends(rows, moment).items()},
    )
    last = _last_index(main, moment, ranks)
    if last is None or len(ranks) < 2:
        return silent
    own = _Own(main, ranks, last)
    late = own.ttke_at_last()
    if np.isnan(late).any():
        return silent
    deviation = late - late.mean()
    worst, best = int(deviation.argmax()), int(deviation.argmin())
    return replace(
        silent,
        last_index=last,
        min_rank=ranks[best],
        max_rank=ranks[worst],
        min_deviation_ns=float(deviation[best]),
        max_deviation_ns=float(deviation[worst]),
        lateness_ns=dict(zip(ranks, (late - float(lower_median(late[None, :])[0, 0])).tolist(), strict=True)),
        loss_ns=round(float(late[worst] - own.typical().sum())),
        divergence=own.divergence(worst, _names(main)),
        split=own.split(worst, float(deviation[worst])),
    )


class _Own:
    """Gaps and durations of the main stream up to k*, as arrays (kernels, ranks); NaN where a rank has none."""

    def __init__(self, main: pa.Table, ranks: list[int], last: int) -> None:
        main = main.filter(pc.less_equal(main["kernel_index"], last))
        self.indices, row = np.unique(main["kernel_index"].to_numpy(), return_inverse=True)
        column = np.searchsorted(np.array(ranks), main["rank"].to_numpy())
        shape = (self.indices.size, len(ranks))
        self._place = (row, column)
        self.gap = self._array(main["gap_ns"], shape)
        self.duration = self._array(main["duration_ns"], shape)
        self.ttke = self._array(main["ttke_ns"], shape)
        first = np.argsort(main["start_ns"].to_numpy(), kind="stable")
        _, begins = np.unique(column[first], return_index=True)
        self._first_rows = row[first][begins]

    def _array(self, values: pa.ChunkedArray, shape: tuple[int, int]) -> Floats:
        array = np.full(shape, np.nan)
        array[self._place] = values.to_numpy()
        return array

    def ttke_at_last(self) -> Floats:
        """Each rank's time to kernel end at k*, or at the last kernel before it that the rank has."""
        last = self.indices.size - 1 - (~np.isnan(self.ttke))[::-1].argmax(axis=0)
        at_last: Floats = self.ttke[last, np.arange(self.ttke.shape[1])]
        return at_last

    def typical(self) -> Floats:
        """The median rank's gap plus duration, kernel by kernel."""
        both: Floats = lower_median(self.gap) + lower_median(self.duration)
        return both[:, 0]

    def divergence(self, worst: int, names: dict[int, str]) -> Divergence | None:
        """Where the worst rank leaves the cohort's noise for good."""
        excess = self.gap + self.duration - self.typical()[:, None]
        lateness = np.nancumsum(excess[:, worst])
        spread = np.abs(excess)
        sigma = np.full(lateness.size, MAD_TO_SIGMA * float(np.nanmedian(spread)))
        if spread.shape[1] >= _ENOUGH_RANKS:
            sigma = np.maximum(sigma, MAD_TO_SIGMA * np.nan_to_num(lower_median(spread)[:, 0]))
        noise = np.maximum(NOISE * np.sqrt((sigma**2).cumsum()), _FLOOR_NS)
        outside = lateness > noise
        if not outside[-1]:
            return None
        inside = np.flatnonzero(~outside)
        at = int(self.indices[inside[-1] + 1 if inside.size else 0])
        return Divergence(at, names[at])

    def split(self, worst: int, deviation_ns: float) -> Split:
        """The worst rank's deviation from the mean, by where it arose.

        What kernels without a partner took, or did not, is time of the GPU: it is what is left.
        """
        gap = np.nan_to_num(self.gap[:, worst] - np.nanmean(self.gap, axis=1))
        first = self._first_rows[worst]
        start_ns, cpu_ns = float(gap[first]), float(gap.sum() - gap[first])
        return Split(start_ns, cpu_ns, deviation_ns - start_ns - cpu_ns)


def _names(main: pa.Table) -> dict[int, str]:
    return dict(zip(main["kernel_index"].to_pylist(), main["kernel_name"].to_pylist(), strict=True))


def _step_ends(rows: pa.Table, moment: ClockAlignment) -> dict[int, int]:
    if moment.method == "collective":
        return moment.moments_ns
    main = rows.filter(rows["on_main"]).group_by("rank").aggregate([("end_ns", "max")])
    return dict(zip(main["rank"].to_pylist(), main["end_ns_max"].to_pylist(), strict=True))


def _last_index(main: pa.Table, moment: ClockAlignment, ranks: list[int]) -> int | None:
    """Find k*: with no aligning collective, the last main-stream compute kernel that all ranks have."""
    if moment.method == "collective":
        ends = pa.table(
            {"rank": pa.array(list(moment.moments_ns), pa.int32()), "until_ns": list(moment.moments_ns.values())}
        )
        joined = main.select(["rank", "kernel_index", "start_ns"]).join(ends, "rank")
        main = joined.filter(pc.less(joined["start_ns"], joined["until_ns"]))
    last = main.group_by("rank").aggregate([("kernel_index", "max")])
    if last.num_rows < len(ranks):
        return None
    found: int | None = pc.min(last["kernel_index_max"]).as_py()
    return found
