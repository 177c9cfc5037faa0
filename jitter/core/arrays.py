"""Times as whole numbers: the least that a type holds stands for what is not known.

Only where arrays are of whole numbers throughout, within this program and its derived files; tables have nulls.
"""

from typing import Any

import numpy as np
import numpy.typing as npt


def unknown_value(kind: npt.DTypeLike) -> int:
    """What stands for the unknown in arrays of this type."""
    return int(np.iinfo(np.dtype(kind)).min)


def has_unknown(values: npt.NDArray[Any]) -> bool:
    """Whether any time is not known."""
    return bool(values.min(initial=np.iinfo(values.dtype).max) == unknown_value(values.dtype))


def is_unknown(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where times are not known, in the shape of `values`."""
    found: npt.NDArray[np.bool_] = values == unknown_value(values.dtype)
    return found


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
IntTimes = npt.NDArray[np.int32] | npt.NDArray[np.int64]
KindCodes = npt.NDArray[np.int8]
