"""Types of arrays, and the integer that stands for an unknown time.

Arrays of integer times mark an unknown time by the least value of their type. Tables and files have nulls instead.
"""

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt


def unknown_value(kind: npt.DTypeLike) -> int:
    """Return the integer that stands for an unknown time in arrays of this type."""
    return int(np.iinfo(np.dtype(kind)).min)


def is_unknown(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where times are unknown, in the shape of `values`."""
    found: npt.NDArray[np.bool_] = values == unknown_value(values.dtype)
    return found


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
"""Positions in a list of distinct values."""
Bools = npt.NDArray[np.bool_]
IntTimes = npt.NDArray[np.int32] | npt.NDArray[np.int64]
KindCodes = npt.NDArray[np.int8]


def spread_positions(count: int, most: int) -> Ints:
    """Return at most `most` of `count` positions, at even distances from the first to the last.

    >>> spread_positions(9, 3).tolist(), spread_positions(2, 3).tolist(), spread_positions(0, 3).tolist()
    ([0, 4, 8], [0, 1], [])
    """
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def begins_of(sizes: Iterable[int]) -> Ints:
    """Return, (parts + 1,), where each of some parts that follow each other begins, and where the last one ends."""
    return np.fromiter(accumulate(sizes, initial=0), np.int64)


def joined(parts: Iterable[Ints]) -> Ints:
    """Return the arrays one after the other; an empty array without any."""
    return np.concatenate([np.zeros(0, np.int64), *parts])
