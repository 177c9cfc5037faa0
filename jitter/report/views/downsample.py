"""Fewer points for the same picture: in every pixel column, each line's lowest and highest point stay."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def keep_extremes(
    x: npt.NDArray[np.int32], lines: Sequence[npt.NDArray[np.float64]], columns: int
) -> npt.NDArray[np.int64]:
    """Positions to keep, in order: first, last, and every line's extremes in each of `columns` equal parts of x.

    `x` ascends; lines have its length, NaN for the unknown. Spikes are the signal: nothing is averaged.
    """
    if x.size == 0:
        return np.empty(0, dtype=np.int64)
    column = ((x - x[0]).astype(np.int64) * columns) // (int(x[-1]) - int(x[0]) + 1)
    _, begins = np.unique(column, return_index=True)
    part = np.repeat(np.arange(begins.size), np.diff(np.append(begins, x.size)))
    kept = [np.array([0, x.size - 1], dtype=np.int64)]
    for line in lines:
        known = np.flatnonzero(~np.isnan(line))
        # by part, then value: the first of each part is its lowest, the last its highest
        order = known[np.lexsort((line[known], part[known]))]
        edges = np.flatnonzero(np.diff(part[order])) + 1
        kept += [order[np.append(0, edges)], order[np.append(edges - 1, order.size - 1)]] if order.size else []
    return np.unique(np.concatenate(kept))
