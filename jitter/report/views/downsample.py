"""Downsampling that keeps each line's lowest and highest point in every pixel column."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def keep_extremes(
    x: npt.NDArray[np.int32], lines: Sequence[npt.NDArray[np.float64]], columns: int
) -> npt.NDArray[np.int64]:
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
        known = np.flatnonzero(~np.isnan(line))
        # sorted by part, then value: each part begins with its lowest and ends with its highest
        order = known[np.lexsort((line[known], part[known]))]
        edges = np.flatnonzero(np.diff(part[order])) + 1
        kept += [order[np.append(0, edges)], order[np.append(edges - 1, order.size - 1)]] if order.size else []
    return np.unique(np.concatenate(kept))
