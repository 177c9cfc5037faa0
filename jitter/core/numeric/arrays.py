"""Types of arrays, and the integer that stands for an unknown time.

Arrays of integer times mark an unknown time by the least value of their type. Tables and files have nulls instead.
"""

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
