"""The talk's reading of a step: the ranks' times to kernel end (ttke) at the last kernel before they synchronise.

It holds for jobs that synchronise once per step, at the last collective. Where every collective blocks, the ranks'
times to kernel end are equal again before the end of the step; the account answers there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.analysis.metrics.clock_alignment import ClockAlignment
from jitter.core.numeric.arrays import Floats
from jitter.core.step_key import StepKey


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


def read_ttke(step: StepKey, cohort: int, rows: pa.Table, alignment: ClockAlignment) -> TtkeReading:
    """Return the reading of one cohort's step.

    Args:
        step: the step.
        cohort: its number.
        rows: the cohort's rows of `StepMetrics.rows`.
        alignment: how the cohort's ranks are aligned.

    """
    main = rows.filter(pc.and_(rows["on_main"], pc.is_valid(rows["kernel_index"])))
    ranks = sorted(rows["rank"].unique().to_pylist())
    last = _last_index(main, alignment, ranks)
    if last is None or len(ranks) < 2:
        return TtkeReading(step, cohort)
    ttke = _ttke_at(main, ranks, last)
    if np.isnan(ttke).any():
        return TtkeReading(step, cohort)
    deviation = ttke - ttke.mean()
    return TtkeReading(
        step,
        cohort,
        last,
        dict(zip(ranks, deviation.tolist(), strict=True)),
        ranks[int(deviation.argmin())],
        ranks[int(deviation.argmax())],
    )


def _ttke_at(main: pa.Table, ranks: list[int], last: int) -> Floats:
    """Return (ranks,) ttke at kernel index `last`, or at the rank's last kernel before it; NaN if unknown."""
    until = main.filter(pc.less_equal(main["kernel_index"], last)).sort_by("kernel_index")
    column = np.searchsorted(np.array(ranks), until["rank"].to_numpy())
    values = until["ttke_ns"].to_numpy().astype(np.float64)
    ttke_ns = np.full(len(ranks), np.nan)
    is_known = ~np.isnan(values)
    ttke_ns[column[is_known]] = values[is_known]  # the last assignment of a rank is its largest index
    return ttke_ns


def _last_index(main: pa.Table, alignment: ClockAlignment, ranks: list[int]) -> int | None:
    """Return k*; without an aligning collective, the last main-stream compute kernel that all ranks have."""
    if alignment.method == "collective":
        ends = pa.table(
            {"rank": pa.array(list(alignment.moments_ns), pa.int32()), "until_ns": list(alignment.moments_ns.values())}
        )
        joined = main.select(["rank", "kernel_index", "start_ns"]).join(ends, "rank")
        main = joined.filter(pc.less(joined["start_ns"], joined["until_ns"]))
    last = main.group_by("rank").aggregate([("kernel_index", "max")])
    if last.num_rows < len(ranks):
        return None
    last_index: int | None = pc.min(last["kernel_index_max"]).as_py()
    return last_index
