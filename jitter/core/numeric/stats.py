"""Statistics that a few outliers do not change: the lower median, and the deviation from the median."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitter.core.numeric.arrays import Floats

MAD_TO_SIGMA: Final = 1.4826
"""Ratio of the standard deviation to the median absolute deviation, for a normal distribution."""


def lower_median(values: npt.NDArray[Any]) -> Floats:
    """Return the lower median of each row's known values, shape (rows, 1); NaN for a row without any.

    This is `quantile_disc(0.5)` of SQL. `values` has shape (rows, columns), with NaN for unknown.
    """
    if not values.shape[1]:
        return np.full((len(values), 1), np.nan)
    if values.size and not np.isnan(values.max()):  # which is NaN where any is
        middle = (values.shape[1] - 1) // 2
        found: Floats = np.partition(values, middle, axis=1)[:, middle : middle + 1]
        return found.copy()  # a view would keep all of it
    known = (~np.isnan(values)).sum(axis=1)
    ordered = np.sort(values, axis=1)  # NaN sorts last
    return np.take_along_axis(ordered, (np.maximum(known, 1)[:, None] - 1) // 2, axis=1)


def mad_sigma(values: Floats) -> float:
    """Return the standard deviation estimated from the median absolute deviation of the known values; 0 without any."""
    known = values[~np.isnan(values)]
    return MAD_TO_SIGMA * float(np.median(np.abs(known - np.median(known)))) if len(known) else 0.0
