"""Order statistics by selection: the k-th smallest of some values without sorting them, compiled."""

import math
from math import isnan

from jitter.core.arrays import Floats
from jitter.core.compilation import compiled


@compiled
def select(values: Floats, count: int, k: int) -> float:
    """Return the k-th smallest (from 0) of the first `count` values, none of them NaN; reorders them.

    Hoare's selection: each pass puts what is below the pivot before what is above it, and goes on with one side.
    """
    low, high = 0, count - 1
    while low < high:
        pivot = values[(low + high) // 2]
        left, right = low, high
        while left <= right:
            while values[left] < pivot:
                left += 1
            while values[right] > pivot:
                right -= 1
            if left <= right:
                swapped = values[left]
                values[left] = values[right]
                values[right] = swapped
                left += 1
                right -= 1
        if k <= right:
            high = right
        elif k >= left:
            low = left
        else:
            break
    return float(values[k])


@compiled
def select_lower_median(values: Floats, count: int) -> float:
    """Return the lower median of the first `count` values, none of them NaN; NaN without any. Reorders them."""
    return float(select(values, count, (count - 1) // 2)) if count > 0 else math.nan


@compiled
def select_median(values: Floats, count: int) -> float:
    """Return the median, the mean of the middle two of an even number; NaN without any. Reorders them."""
    if count == 0:
        return math.nan
    upper: float = select(values, count, count // 2)
    if count % 2 == 1:
        return upper
    lower: float = values[0]  # what is below the middle stands before it
    for at in range(1, count // 2):
        lower = max(lower, values[at])
    return (lower + upper) / 2


@compiled
def later(one: float, other: float) -> float:
    """Return the greater of two times; an unknown one (NaN) says nothing."""
    return other if isnan(one) or other > one else one
