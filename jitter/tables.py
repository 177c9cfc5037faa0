"""The talk's tables: one metric of one step, kernels × ranks."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from jitter.errors import UsageError
from jitter.numbers import format_numbers


def metric_table(
    rows: pa.Table, metric: str, cohort: int, deviation: bool, ranks: Sequence[int] | None
) -> pd.DataFrame:
    """Pivot one cohort's rows (as of `StepMetrics.rows`); see `Lake.table`."""
    rows = rows.filter(pc.and_(pc.equal(rows["cohort"], cohort), pc.is_valid(rows["kernel_index"])))
    present = rows["rank"].unique().sort().to_numpy()
    chosen = present if ranks is None else np.array(sorted(set(ranks)))
    missing = sorted(set(chosen.tolist()) - set(present.tolist()))
    if missing:
        raise UsageError(
            f"no rank {missing[0]} in this step of cohort {cohort}", f"it has {format_numbers(present.tolist())}"
        )
    index, example, row = np.unique(rows["kernel_index"].to_numpy(), return_index=True, return_inverse=True)
    column = np.searchsorted(present, rows["rank"].to_numpy())
    values = rows[f"{metric}_ns"]
    known = values.is_valid().to_numpy()
    grid = np.zeros((index.size, present.size), dtype=np.int64)
    mask = np.ones(grid.shape, dtype=bool)
    grid[row[known], column[known]] = values.drop_null().to_numpy()
    mask[row[known], column[known]] = False
    # exact: sums of int64 nanoseconds, divided once
    count = (~mask).sum(axis=1)
    with np.errstate(invalid="ignore"):
        mean = np.where(count > 0, grid.sum(axis=1, where=~mask) / count, np.nan)
    # one name an index: ranks that share it share the name
    names = rows["kernel_name"].take(pa.array(example)).to_pylist()
    columns: dict[str, object] = {"kernel_name": names, "mean": pd.array(mean, dtype="Float64")}
    for rank in chosen.tolist():
        at = int(np.searchsorted(present, rank))
        if deviation:
            columns[f"rank_{rank}"] = pd.arrays.FloatingArray(grid[:, at] - mean, mask[:, at])
        else:
            columns[f"rank_{rank}"] = pd.arrays.IntegerArray(grid[:, at].copy(), mask[:, at].copy())
    return pd.DataFrame(columns, index=pd.Index(index, name="kernel_index"))


def unmatched_table(rows: pa.Table) -> pd.DataFrame:
    """Select kernels without an index: rank, cohort, position in the rank's step, name, duration and gap in ns."""
    found = rows.filter(pc.is_null(rows["kernel_index"]))
    columns = ["rank", "cohort", "position", "kernel_name", "kind", "stream", "start_ns", "duration_ns", "gap_ns"]
    frame: pd.DataFrame = found.select(columns).to_pandas()
    return frame
