"""Longest common subsequence, exact and bit-parallel; of n rows of bits, some two times the root of n are in memory.

The recurrence is that of Hyyrö (2004), "Bit-parallel LCS-length computation revisited": one integer per element of one
sequence, whose bit j is 0 where the length grows at element j of the other.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import isqrt
from typing import Final

from jitter.analysis.metrics.lcs_loops import find_length, find_partners
from jitter.core.numeric.compilation import WORTH_COMPILING, compile_loops, is_compiling

_SHORT_CELLS: Final = 10_000
"""Products of lengths up to which Python's integers are faster than compiled loops."""
_LONG_CELLS: Final = 10**9
"""Products of lengths from which on loading numba costs less than Python's integers."""


def lcs_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the longest common subsequence."""
    first = _common_prefix(one, other)
    last = _common_prefix(one[first:][::-1], other[first:][::-1])
    one, other = one[first : len(one) - last], other[first : len(other) - last]
    if _is_long(one, other):
        return first + last + find_length(one, other)
    row = full = (1 << len(other)) - 1
    for row in _rows(one, _masks(other), full, full):  # noqa: B007  # the last one is wanted
        pass
    return first + last + len(other) - row.bit_count()


def lcs_partners(sequence: Sequence[int], reference: Sequence[int]) -> list[int | None]:
    """Return for each element of `sequence` the position of its partner in `reference`, None without one.

    Of the longest common subsequences, the one in which each element of `sequence`, first to last, has the earliest
    possible partner.
    """
    first = _common_prefix(sequence, reference)  # whose earliest partners are each other
    partners: list[int | None] = list(range(first))
    sequence, reference = sequence[first:], reference[first:]
    if _is_long(sequence, reference):
        return partners + [None if place is None else first + place for place in find_partners(sequence, reference)]
    size = len(reference)
    suffixes = _SuffixRows(sequence, reference)
    places: dict[int, list[int]] = defaultdict(list)
    for position, element in enumerate(reference):
        places[element].append(position)

    def length(start: int, reference_start: int) -> int:
        left = size - reference_start
        return left - (suffixes.row(len(sequence) - start) & ((1 << left) - 1)).bit_count()

    at, needed = 0, length(0, 0) if sequence else 0
    for start, element in enumerate(sequence):
        candidates = places.get(element, [])
        found = bisect_left(candidates, at)
        partner = candidates[found] if needed and found < len(candidates) else None
        if partner is not None and length(start + 1, partner + 1) == needed - 1:
            at, needed = partner + 1, needed - 1
            partners.append(first + partner)
        else:
            partners.append(None)
    return partners


def _is_long(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether compiled loops are faster than Python's integers for these sequences."""
    cells = len(one) * len(other)
    if cells >= _LONG_CELLS:
        compile_loops(WORTH_COMPILING)
    return cells > _SHORT_CELLS and is_compiling()


class _SuffixRows:
    """The rows of the reversed problem: row i has the lengths for the last i elements of the sequence.

    Every so many rows one is kept. The rows from one of these to the next are computed again when they are asked for,
    once if rows are asked for from the last to the first.
    """

    def __init__(self, sequence: Sequence[int], reference: Sequence[int]) -> None:
        self._reversed = sequence[::-1]
        self._masks = _masks(reference[::-1])
        self._stride = isqrt(len(sequence)) + 1
        self._full = (1 << len(reference)) - 1
        self._kept = [self._full]
        for number, row in enumerate(_rows(self._reversed, self._masks, self._full, self._full), 1):
            if number % self._stride == 0:
                self._kept.append(row)
        self._block = -1
        self._rows: list[int] = []

    def row(self, count: int) -> int:
        """Return the row of the last `count` elements."""
        block, at = divmod(count, self._stride)
        if block != self._block:
            first = block * self._stride
            elements = self._reversed[first : first + self._stride - 1]
            begin = self._kept[block]
            self._block, self._rows = block, [begin, *_rows(elements, self._masks, begin, self._full)]
        return self._rows[at]


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many elements both begin with."""
    for at, (its, others) in enumerate(zip(one, other, strict=False)):
        if its != others:
            return at
    return min(len(one), len(other))


def _masks(other: Sequence[int]) -> dict[int, int]:
    """Return by element a number whose bit j is 1 where element j of `other` is that."""
    size = -(-len(other) // 8)
    places: dict[int, bytearray] = {}
    for position, element in enumerate(other):
        places.setdefault(element, bytearray(size))[position >> 3] |= 1 << (position & 7)
    return {element: int.from_bytes(bits, "little") for element, bits in places.items()}


def _rows(one: Sequence[int], masks: dict[int, int], row: int, full: int) -> Iterator[int]:
    """Yield the rows that follow `row`, one for each element of `one`; all bits of `full` are 1."""
    for element in one:
        matched = row & masks.get(element, 0)
        row = ((row + matched) | (row - matched)) & full
        yield row
