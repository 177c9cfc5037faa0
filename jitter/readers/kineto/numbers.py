"""JSON numbers as columns: exact conversion of microseconds to nanoseconds, without floats."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Final, cast

import numpy as np
from msgspec import Raw

from jitter.core.numeric.arrays import Bools, Ints
from jitter.readers.columns import LARGEST_NS

_COMMA: Final = ord(",")
_DOT: Final = ord(".")
_MOST_PLACES: Final = 16
_IS_PLAIN: Final = np.zeros(256, dtype=bool)
_IS_PLAIN[list(b"0123456789,.")] = True


def join_values(values: Sequence[Raw]) -> bytes:
    """Join JSON values with commas; values that contain commas become null."""
    text = b",".join(cast(Sequence[bytes], values))
    if text.count(b",") == len(values) - 1 or not values:
        return text
    return b",".join(b"null" if b"," in value else value for value in map(bytes, values))


def parse_microseconds(texts: Sequence[bytes]) -> tuple[Ints, Bools]:
    """Parse times in microseconds; `texts` are JSON values joined with commas.

    Returns the times in ns, rounded where there are more than three decimals, and whether each is valid: False (and
    the value 0) for values that are no number or exceed 64 bits.
    """
    text = b",".join(texts)
    if not text:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
    plain = _plain(text)
    return plain if plain is not None else _any(text)


def _plain(text: bytes) -> tuple[Ints, Bools] | None:
    """Parse non-negative integers, or decimals that all have one to three places; None for anything else."""
    codes = np.frombuffer(text, dtype=np.uint8)
    if not _IS_PLAIN[codes].all():
        return None
    commas = np.flatnonzero(codes == _COMMA)
    ends = np.append(commas, len(codes))
    starts = np.append(0, commas + 1)
    dots = np.flatnonzero(codes == _DOT)
    if (ends == starts).any():
        return None
    if len(dots) == 0:
        places = np.zeros(len(ends), dtype=np.int64)
    elif len(dots) == len(ends) and (dots > starts).all() and (dots < ends - 1).all():
        places = ends - dots - 1
        if places.max() > 3:
            return None
        text = text.replace(b".", b"")
    else:
        return None
    scales = np.array([1000, 100, 10, 1], dtype=np.int64)[places]
    values = np.fromstring(text, dtype=np.int64, sep=",")  # values beyond 64 bits become the largest int64
    if len(values) != len(ends) or (values // (LARGEST_NS // scales) != 0).any():
        return None
    return values * scales, np.ones(len(values), dtype=bool)


def _any(text: bytes) -> tuple[Ints, Bools]:
    values = [_one(word) for word in text.decode("utf-8", "replace").split(",")]
    return (
        np.array([value or 0 for value in values], dtype=np.int64),
        np.array([value is not None for value in values], dtype=bool),
    )


def _one(word: str) -> int | None:
    try:
        exact = Decimal(word.strip('"'))  # some tools write times as strings
    except InvalidOperation:
        return None
    # test the size first: 1e999999 has too many digits to expand
    if not exact.is_finite() or exact.adjusted() > _MOST_PLACES:
        return None
    value = int((exact * 1000).to_integral_value())
    return value if abs(value) < LARGEST_NS else None
