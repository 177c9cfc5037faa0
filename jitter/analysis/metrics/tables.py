"""Metric tables: one metric of one step, kernels × ranks, as in the talk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from jitter.analysis.metrics.step_metrics import StepMetrics
from jitter.core.arrow import from_numpy
from jitter.core.errors import UsageError
from jitter.core.formatting import format_numbers
from jitter.core.numeric.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class MetricTable:
    """One metric of one cohort's step, in ns: one row per kernel, one column per rank."""

    kernel_index: Ints
    """Shape (kernels)."""
    kernel_names: list[str]
    mean: Floats
    """Shape (kernels), over all ranks of the cohort; NaN where no rank has a value."""
    ranks: list[int]
    """The ranks with a column."""
    values: Ints | Floats
    """Shape (kernels, ranks): the metric in whole ns, or value − mean."""
    known: Bools
    """Shape (kernels, ranks): where `values` has a meaning."""

    def to_arrow(self) -> pa.Table:
        """Return columns `kernel_index`, `kernel_name`, `mean` and `rank_<R>`…, null where unknown."""
        return pa.table(
            {
                "kernel_index": from_numpy(self.kernel_index),
                "kernel_name": pa.array(self.kernel_names, pa.string()),
                "mean": from_numpy(self.mean, ~np.isnan(self.mean)),
                **{
                    f"rank_{rank}": from_numpy(self.values[:, at], self.known[:, at])
                    for at, rank in enumerate(self.ranks)
                },
            }
        )

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the columns of `to_arrow` for any library that takes Arrow data, such as Polars."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> "pd.DataFrame":
        """Return the columns of `to_arrow`, with the kernel index as index and NA where unknown."""
        import pandas as pd

        masked = pd.arrays.FloatingArray if self.values.dtype.kind == "f" else pd.arrays.IntegerArray
        columns: dict[str, object] = {"kernel_name": self.kernel_names, "mean": pd.array(self.mean, dtype="Float64")}
        for at, rank in enumerate(self.ranks):
            columns[f"rank_{rank}"] = masked(self.values[:, at].copy(), ~self.known[:, at])  # type: ignore[arg-type]
        return pd.DataFrame(columns, index=pd.Index(self.kernel_index, name="kernel_index"))


def build_metric_table(
    measured: StepMetrics, metric: str, cohort: int, deviation: bool, ranks: Sequence[int] | None
) -> MetricTable:
    """Return the table of one metric of one cohort's step; raises `UsageError` for a rank without the step."""
    kernels = measured.kernels
    mine = np.flatnonzero(kernels.cohort_of == cohort)
    present = np.array(kernels.ranks, np.int64)[mine]
    chosen = present if ranks is None else np.array(sorted(set(ranks)), np.int64)
    missing = sorted(set(chosen.tolist()) - set(present.tolist()))
    if missing:
        raise UsageError(
            f"no rank {missing[0]} in this step of cohort {cohort}", f"it has {format_numbers(present.tolist())}"
        )
    names = next((index.names for index in measured.indices if index.cohort == cohort), ())
    measurement = measured.metric(metric)
    row_of = np.full(len(kernels.ranks), -1)
    row_of[mine] = np.arange(len(mine))
    at = row_of[kernels.of_rank]
    here = (at >= 0) & kernels.is_matched
    # by rank as the kernels are: what is written in order is written fast
    grid = np.zeros((len(mine), len(names)), np.int64)
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
    return MetricTable(
        index,
        [names[at] for at in index.tolist()],
        mean[index],
        chosen.tolist(),
        (values - mean[index] if deviation else values).T,
        is_shown.T,
    )


def select_unmatched(rows: pa.Table) -> pa.Table:
    """Return the rows of `StepMetrics.rows` without a kernel index; texts as plain strings."""
    names = ["rank", "cohort", "position", "kernel_name", "kind", "stream", "start_ns", "duration_ns", "gap_ns"]
    unmatched = rows.filter(rows["kernel_index"].is_null()).select(names)
    texts = [unmatched.schema.get_field_index(name) for name in ("kernel_name", "kind")]
    for at in texts:
        unmatched = unmatched.set_column(at, names[at], unmatched[at].cast(pa.string()))
    return unmatched
