"""Integers of sources: a value of another type, or one that does not fit, is null."""

import re
from typing import Annotated, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import map_distinct

Integer64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""The type of a JSON member that is an integer of 64 bits."""
_DIGITS: Final = re.compile(r"\s*[+-]?\d{1,19}\s*")
_MOST: Final = 2**63


def parse_integer(value: object) -> int | None:
    """Return the integer that a value is or that its text states; None for anything else and beyond 64 bits."""
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and -_MOST <= value < _MOST else None


def to_int64(values: pa.Array) -> pa.Array:
    """Return numbers or texts of any type as int64; unsigned values of 64 bits keep their bits."""
    if pa.types.is_uint64(values.type):
        return values.cast(pa.int64(), safe=False)
    try:
        if pa.types.is_binary(values.type):
            return values.cast(pa.string()).cast(pa.int64())
        return values.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return map_distinct(values, parse_integer, pa.int64())


def fit_integers(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return integers in a type of fewer bits; values beyond it are null."""
    if values.type == kind:
        return values
    limits = np.iinfo(kind.to_pandas_dtype())
    fits = pc.and_(pc.greater_equal(values, int(limits.min)), pc.less_equal(values, int(limits.max)))
    return pc.if_else(fits, values, pa.scalar(None, values.type)).cast(kind)
