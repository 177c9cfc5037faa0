"""Longest common subsequence, exact and bit-parallel: thousands of kernels in milliseconds."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence


def lcs_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the longest common subsequence."""
    rows = _rows(one, other)
    return len(other) - rows[-1].bit_count() if rows else 0


def lcs_partners(sequence: Sequence[int], reference: Sequence[int]) -> list[int | None]:
    """Return for each element of `sequence` the position of its partner in `reference`, None without one.

    Of the longest common subsequences, the one in which each element of `sequence`, first to last, has the earliest
    possible partner.
    """
    size = len(reference)
    # rows of the reversed problem: rows[i] has the length for the last i elements of `sequence`
    rows = [(1 << size) - 1, *_rows(sequence[::-1], reference[::-1])]
    places: dict[int, list[int]] = defaultdict(list)
    for position, element in enumerate(reference):
        places[element].append(position)

    def length(start: int, reference_start: int) -> int:
        left = size - reference_start
        return left - (rows[len(sequence) - start] & ((1 << left) - 1)).bit_count()

    partners: list[int | None] = []
    at, needed = 0, length(0, 0)
    for start, element in enumerate(sequence):
        candidates = places.get(element, [])
        found = bisect_left(candidates, at)
        partner = candidates[found] if needed and found < len(candidates) else None
        if partner is not None and length(start + 1, partner + 1) == needed - 1:
            at, needed = partner + 1, needed - 1
            partners.append(partner)
        else:
            partners.append(None)
    return partners


def _rows(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return one integer per element of `one`: bit j is 0 where the length grows at element j of `other`.

    The recurrence is that of Hyyrö (2004), "Bit-parallel LCS-length computation revisited".
    """
    masks: dict[int, int] = defaultdict(int)
    for position, element in enumerate(other):
        masks[element] |= 1 << position
    full = (1 << len(other)) - 1
    row = full
    rows = []
    for element in one:
        matched = row & masks.get(element, 0)
        row = ((row + matched) | (row - matched)) & full
        rows.append(row)
    return rows
