"""Alignment of two sequences, such as the kernels of two ranks, along their longest common subsequence.

Exact and bit-parallel; of n rows of bits, some two times the root of n are in memory. The recurrence is that of Hyyrö
(2004), "Bit-parallel LCS-length computation revisited": one integer per element of one sequence, whose bit j is 0 where
the length grows at element j of the other.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isqrt
from operator import eq
from typing import Final

import numpy as np

from jitter.core.numeric.arrays import Floats

_MOST_PAIRS: Final = 1 << 22
"""Elements of one sequence × of the other whose distances are compared: bounds memory."""


def lcs_length(sequence: Sequence[int], reference: Sequence[int]) -> int:
    """Return the length of the longest common subsequence."""
    first = _common_prefix(sequence, reference)
    last = _common_prefix(sequence[first:][::-1], reference[first:][::-1])
    sequence, reference = sequence[first : len(sequence) - last], reference[first : len(reference) - last]
    row = full = (1 << len(reference)) - 1
    for row in _rows(sequence, _masks(reference), full, full):  # noqa: B007  # the last one is wanted
        pass
    return first + last + len(reference) - row.bit_count()


def similarity(sequence: Sequence[int], reference: Sequence[int]) -> float:
    """Return longest common subsequence ÷ longer sequence; 1 for two empty ones."""
    longer = max(len(sequence), len(reference))
    return lcs_length(sequence, reference) / longer if longer else 1.0


def are_similar(sequence: Sequence[int], reference: Sequence[int], min_similarity: float) -> bool:
    """Return whether `similarity` is at least `min_similarity`.

    Equal elements at equal places are a common subsequence, so where they are enough nothing is aligned.
    """
    enough = min_similarity * max(len(sequence), len(reference))
    return sum(map(eq, sequence, reference)) >= enough or lcs_length(sequence, reference) >= enough


def align(sequence: Sequence[int], reference: Sequence[int]) -> list[int | None]:
    """Return for each element of `sequence` the position of its partner in `reference`, None without one.

    Of the longest common subsequences, the one in which each element of `sequence`, first to last, has the earliest
    possible partner.
    """
    first = _common_prefix(sequence, reference)  # whose earliest partners are each other
    partners: list[int | None] = list(range(first))
    sequence, reference = sequence[first:], reference[first:]
    rows = _SuffixRows(sequence, reference)
    places: dict[int, list[int]] = defaultdict(list)
    for position, element in enumerate(reference):
        places[element].append(position)
    at, needed = 0, rows.longest
    for start, element in enumerate(sequence):
        if not needed:
            return partners + [None] * (len(sequence) - start)
        candidates = places.get(element, ())
        index = bisect_left(candidates, at)
        partner = candidates[index] if index < len(candidates) else None
        # to match the first elements of both is never wrong; to skip elements of the reference may be
        if partner is not None and (partner == at or rows.length(start + 1, partner + 1, at) == needed - 1):
            at, needed = partner + 1, needed - 1
            partners.append(first + partner)
        else:
            partners.append(None)
    return partners


def align_nearest(
    sequence: Sequence[int], reference: Sequence[int], places: Floats, reference_places: Floats
) -> list[int | None]:
    """Return the same as `align`, but of the longest common subsequences the one whose partners are nearest by place.

    So equal elements of which some are missing, at either end, keep their partners. `places` (sequence,) and
    `reference_places` (reference,) ascend.
    """
    if sequence == reference or len(sequence) * len(reference) > _MOST_PAIRS:
        return align(sequence, reference)
    words, apart = np.array(reference), np.abs(places[:, None] - reference_places)
    partner_worth = 1.0 + float(apart.sum(axis=0).sum()) - apart  # one partner more is worth any distance
    best = np.zeros((len(sequence) + 1, len(reference) + 1))  # of the first elements of both
    for at, word in enumerate(sequence):
        joined = np.where(words == word, best[at, :-1] + partner_worth[at], 0.0)
        np.maximum.accumulate(np.maximum(best[at, 1:], joined), out=best[at + 1, 1:])
    partners: list[int | None] = [None] * len(sequence)
    at, there = len(sequence), len(reference)
    while at and there:
        if best[at, there] == best[at, there - 1]:
            there -= 1
        elif best[at, there] == best[at - 1, there]:
            at -= 1
        else:
            at, there = at - 1, there - 1
            partners[at] = there
    return partners


def find_gaps(partners: Sequence[int | None], reference_size: int) -> Iterator[tuple[range, range]]:
    """Yield before, between and after the partners what lacks one: positions in the sequence, in the reference.

    The number of gaps is that of the partners, and one more; either range, or both, may be empty.
    """
    matched = [(at, partner) for at, partner in enumerate(partners) if partner is not None]
    for (at, there), (next_at, next_there) in pairwise([(-1, -1), *matched, (len(partners), reference_size)]):
        yield range(at + 1, next_at), range(there + 1, next_there)


class _SuffixRows:
    """The rows of the reversed problem: row i has the lengths for the last i elements of the sequence.

    Every so many rows one is kept. The rows from one of these to the next are computed again when they are needed,
    once if lengths are asked for from the first elements on.
    """

    def __init__(self, sequence: Sequence[int], reference: Sequence[int]) -> None:
        self._reversed, self._size = sequence[::-1], len(reference)
        self._masks = _masks(reference[::-1])
        self._stride = isqrt(len(sequence)) + 1
        row = full = (1 << self._size) - 1
        self._kept = [full]
        for number, row in enumerate(_rows(self._reversed, self._masks, full, full), 1):
            if number % self._stride == 0:
                self._kept.append(row)
        self.longest = self._size - row.bit_count()
        """Length of the longest common subsequence."""
        self._block = -1
        self._rows: list[int] = []

    def length(self, start: int, reference_start: int, passed: int) -> int:
        """Return the longest common length of the sequence from `start` and the reference from `reference_start` on.

        Later calls ask for no elements of the reference before `passed`.
        """
        block, at = divmod(len(self._reversed) - start, self._stride)
        if block != self._block:
            first = block * self._stride
            elements = self._reversed[first : first + self._stride - 1]
            full = (1 << (self._size - passed)) - 1  # lower bits do not depend on higher ones
            begin = self._kept[block] & full
            self._block, self._rows = block, [begin, *_rows(elements, self._masks, begin, full)]
        remaining = self._size - reference_start
        return remaining - (self._rows[at] & ((1 << remaining) - 1)).bit_count()


def _common_prefix(sequence: Sequence[int], reference: Sequence[int]) -> int:
    """Return how many elements both begin with."""
    for at, (first, second) in enumerate(zip(sequence, reference, strict=False)):
        if first != second:
            return at
    return min(len(sequence), len(reference))


def _masks(reference: Sequence[int]) -> dict[int, int]:
    """Return by element a number whose bit j is 1 where element j of `reference` is that."""
    size = -(-len(reference) // 8)
    places: dict[int, bytearray] = {}
    for position, element in enumerate(reference):
        places.setdefault(element, bytearray(size))[position >> 3] |= 1 << (position & 7)
    return {element: int.from_bytes(bits, "little") for element, bits in places.items()}


def _rows(sequence: Sequence[int], masks: dict[int, int], row: int, full: int) -> Iterator[int]:
    """Yield the rows that follow `row`, one for each element of `sequence`; all bits of `full` are 1."""
    for element in sequence:
        matched = row & masks.get(element, 0)
        row = ((row + matched) | (row - matched)) & full
        yield row
