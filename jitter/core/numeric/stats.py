"""Statistics that a few outliers do not change: the lower median, the deviation from it, differences by rank."""

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jitter.core.numeric.arrays import Bools, Floats, Ints, distinct_values

_FEW: Final = 64
"""Differences per value that are listed rather than counted."""
_COLUMNS_AT_ONCE: Final = 128
"""Columns whose differences are listed at once: 8 MB at most."""
MAD_TO_SIGMA: Final = 1.4826
"""Ratio of the standard deviation to the median absolute deviation, for a normal distribution."""
_QN_TO_SIGMA: Final = 2.2219
"""Ratio of the standard deviation to the lower quartile of all pairwise differences, for a normal distribution."""


def lower_median(values: npt.NDArray[Any], axis: int = -1) -> Floats:
    """Return the lower median of the known values along an axis, which becomes of length 1; NaN where none is known.

    This is `quantile_disc(0.5)` of SQL. `values` has NaN for unknown.
    """
    count = values.shape[axis]
    if not count:
        return np.full(values.sum(axis=axis, keepdims=True).shape, np.nan)
    if values.size and not np.isnan(values.max()):  # which is NaN where any is
        middle = (count - 1) // 2
        return np.take(np.partition(values, middle, axis=axis), [middle], axis=axis)
    counts = (~np.isnan(values)).sum(axis=axis, keepdims=True)
    ordered = np.sort(values, axis=axis)  # NaN sorts last
    return np.take_along_axis(ordered, (np.maximum(counts, 1) - 1) // 2, axis=axis)


def sum_columns(number: Ints, values: npt.NDArray[Any], count: int) -> Floats:
    """Return, (rows, count), the sums of each row's values (rows, columns) in columns of one `number`, (columns,)."""
    cells = np.arange(len(values))[:, None] * count + number
    sums = np.bincount(cells.ravel(), values.ravel(), len(values) * count)
    return sums.reshape(len(values), count).astype(np.float64, copy=False)


def successive_ratio(values: Floats) -> float:
    """Return the squares of the differences of successive values ÷ those from the mean; 2 of independent ones.

    Near 0 of values that go one way or change once (von Neumann, "Distribution of the ratio of the mean square
    successive difference to the variance", 1941). `values` is (values,); infinite where all are equal.
    """
    squares = float(((values - values.mean()) ** 2).sum()) if len(values) else 0.0
    return float((np.diff(values) ** 2).sum()) / squares if squares > 0 else math.inf


def middle_value(values: npt.NDArray[Any]) -> float:
    """Return the lower median of the known values, (values,); NaN without any."""
    return float(lower_median(values)[0])


def lower_medians_of_others(values: Floats, among: Bools | None = None) -> Floats:
    """Return for each value the lower median of the other known ones along the last axis; NaN without any.

    `among`, of the same shape, are those which may tell it; None: all.

    >>> lower_medians_of_others(np.array([[1.0, 5.0, 3.0]])).tolist()
    [[3.0, 1.0, 1.0]]
    """
    if values.shape[-1] < 2:
        return np.full(values.shape, np.nan)
    counted = values if among is None else np.where(among, values, np.nan)
    order = np.argsort(counted)  # NaN comes last
    place = np.argsort(order)
    is_counted = ~np.isnan(counted)
    others = is_counted.sum(axis=-1, keepdims=True) - is_counted
    # the value itself is left out: the values above it move down by one place
    middle = (np.maximum(others, 1) - 1) // 2
    middle += (place <= middle) & is_counted
    return np.take_along_axis(np.take_along_axis(counted, order, axis=-1), middle, axis=-1)


def weighted_median(values: npt.ArrayLike, weights: npt.ArrayLike) -> float:
    """Return the value at half of the weight; NaN without any."""
    order = np.argsort(values)
    up_to = np.cumsum(np.asarray(weights)[order])
    return float(np.asarray(values)[order][np.searchsorted(up_to, up_to[-1] / 2)]) if len(order) else math.nan


def known_median(values: Floats) -> float:
    """Return the median of the known values; 0 without any."""
    known_values = values[~np.isnan(values)]
    return float(np.median(known_values)) if len(known_values) else 0.0


def known_medians(values: Floats, axis: int = 0) -> Floats:
    """Return the median of the known values along an axis; NaN where none is known."""
    if not values.shape[axis]:
        return np.full(np.delete(values.shape, axis), np.nan)
    ordered = np.sort(values, axis=axis)  # NaN sorts last; np.nanmedian takes ten times as long for small arrays
    last = np.maximum((~np.isnan(values)).sum(axis=axis, keepdims=True) - 1, 0)
    lower, upper = (np.take_along_axis(ordered, at, axis) for at in (last // 2, (last + 1) // 2))
    medians: Floats = ((lower + upper) / 2).squeeze(axis)
    return medians


def centred(values: Floats, is_known: Bools, axis: int = 0) -> Floats:
    """Return values less the mean of the known ones along an axis; 0 where unknown."""
    filled = np.where(is_known, values, 0.0)
    mean = filled.sum(axis=axis, keepdims=True) / np.maximum(is_known.sum(axis=axis, keepdims=True), 1)
    apart: Floats = np.where(is_known, filled - mean, 0.0)
    return apart


def mad_sigma(values: Floats) -> float:
    """Return the standard deviation estimated from the median absolute deviation of the known values; 0 without any."""
    known_values = values[~np.isnan(values)]
    return MAD_TO_SIGMA * float(np.median(np.abs(known_values - np.median(known_values)))) if len(known_values) else 0.0


def qn_sigma(values: Floats) -> Floats:
    """Return (columns,) the standard deviation over steps of values (steps, columns), NaN for unknown; 0 for too few.

    The lower quartile of all pairwise differences (Rousseeuw and Croux, "Alternatives to the median absolute
    deviation", 1993): an offset of a column and outliers in up to half of the steps change little.
    """
    sigmas, known_count = np.zeros(values.shape[1]), (~np.isnan(values)).sum(axis=0)
    for count in distinct_values(known_count[known_count > 1]).tolist():
        columns = np.flatnonzero(known_count == count)
        known_values = np.sort(values[:, columns], axis=0)[:count]  # NaN come last
        apart = nth_difference(known_values, (count * (count - 1) // 2 - 1) // 4)
        # for few values, about Qn's bias over 20,000 simulated normal samples
        sigmas[columns] = _QN_TO_SIGMA * apart * (count / (count + 0.5))
    return sigmas


def nth_difference(values: Floats, number: int) -> Floats:
    """Return, (columns,), the `number`th smallest, from 0, of the absolute differences of all pairs of a column.

    Of many values, in linear memory: sorted values have the differences up to a bound in one range per value, so that
    they can be counted; the bound is halved until it has `number` + 1 of them.

    >>> nth_difference(np.array([[1.0], [4.0], [9.0]]), 1).tolist()
    [5.0]
    """
    ordered = np.sort(values.T, axis=1)
    if len(values) > 2 * _FEW + 1:
        return np.array([_nth_difference(column, number) for column in ordered])
    first, second = np.triu_indices(len(values), 1)
    differences: list[Floats] = [
        np.partition(some[:, second] - some[:, first], number, axis=1)[:, number]
        for some in np.split(ordered, range(_COLUMNS_AT_ONCE, len(ordered), _COLUMNS_AT_ONCE))
    ]
    return np.concatenate(differences)


def _nth_difference(ordered: Floats, number: int) -> float:
    first_after = np.arange(len(ordered)) + 1

    def ends(bound: float) -> Ints:
        return np.maximum(np.searchsorted(ordered, ordered + bound, side="right"), first_after)

    below, above = -1.0, float(ordered[-1] - ordered[0]) * (1 + 1e-9)
    while True:
        first, last = ends(below) if below >= 0 else first_after, ends(above)
        if (last - first).sum() <= _FEW * len(ordered):
            break
        middle = max(below, 0.0) + (above - max(below, 0.0)) / 2
        if middle in (below, above):
            return above  # all that are left are equal
        if (ends(middle) - first_after).sum() > number:
            above = middle
        else:
            below = middle
    counts = last - first
    starts = np.repeat(np.arange(len(ordered)), counts)
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    differences = ordered[first[starts] + offsets] - ordered[starts]
    place = number - int((first - first_after).sum())
    return float(np.partition(differences, place)[place])
