"""Longest common subsequence of long sequences in compiled loops: the recurrence of `lcs`, in words of 62 bits.

An element that occurs rarely costs little, as only words with its bits, and words that a carry reaches, are computed.
"""

from collections.abc import Sequence
from math import isqrt
from typing import Final, NamedTuple

import numpy as np

from jitter.core.numeric.arrays import Ints
from jitter.core.numeric.compilation import compiled

_BITS: Final = 62
"""Bits of a word: the sum of two words and a carry fits in 64 bits, with the sign."""
_FULL: Final = 2**62 - 1


class Matches(NamedTuple):
    """The sequence's elements as numbers, -1 if not in the reference, and where the reference has each number."""

    elements: Ints
    place: Ints
    """Places in the reference by number, ascending."""
    first_place: Ints
    """(numbers + 1,) where each number's places begin."""
    word: Ints
    """Words of the reversed reference with each number, ascending."""
    bits: Ints
    """Their bits."""
    first_word: Ints
    """(numbers + 1,) where each number's words begin."""
    size: int
    """Length of the reference."""


def match_elements(sequence: Sequence[int], reference: Sequence[int]) -> Matches:
    """Return where the reference has each element of the sequence."""
    known, numbers = np.unique(np.asarray(reference, np.int64), return_inverse=True)
    size, own = len(numbers), np.asarray(sequence, np.int64)
    at = np.minimum(np.searchsorted(known, own), len(known) - 1)
    order = np.argsort(numbers, kind="stable")
    back = size - 1 - np.arange(size)
    words = np.lexsort((back // _BITS, numbers))
    number, word = numbers[words], back[words] // _BITS
    begins = np.flatnonzero(np.append(True, (np.diff(number) != 0) | (np.diff(word) != 0)))
    bits = np.bitwise_or.reduceat(np.left_shift(np.int64(1), back[words] % _BITS), begins)
    return Matches(
        np.where(known[at] == own, at, -1),
        order,
        np.searchsorted(numbers[order], np.arange(len(known) + 1)),
        word[begins],
        bits,
        np.searchsorted(number[begins], np.arange(len(known) + 1)),
        size,
    )


def find_length(sequence: Sequence[int], reference: Sequence[int]) -> int:
    """Return the length of the longest common subsequence; neither is empty."""
    matches = match_elements(sequence, reference)
    rows = _full_row(matches.size)[None]
    kept = np.empty((1, rows.shape[1]), np.int64)
    pass_all(matches, rows, kept, len(matches.elements) + 1)
    return matches.size - sum(int(word).bit_count() for word in rows[0].tolist())


def find_partners(sequence: Sequence[int], reference: Sequence[int]) -> list[int | None]:
    """Return the partners as `lcs.lcs_partners`; neither sequence is empty."""
    matches = match_elements(sequence, reference)
    count, full = len(sequence), _full_row(matches.size)
    stride = isqrt(count) + 1
    kept = np.empty((count // stride + 1, len(full)), np.int64)
    block = np.empty((stride, len(full)), np.int64)
    block[0] = full
    partners = np.full(count, -1, np.int64)
    pass_all(matches, block, kept, stride)
    walk(matches, kept, block, matches.first_place[:-1].copy(), partners)
    return [None if partner < 0 else partner for partner in partners.tolist()]


def _full_row(size: int) -> Ints:
    row = np.full(-(-size // _BITS), _FULL, np.int64)
    row[-1] = (1 << (size - (len(row) - 1) * _BITS)) - 1
    return row


@compiled
def advance(matches: Matches, number: int, rows: Ints, row: int) -> None:
    """Change a row to the next one, after the element with this number."""
    if number < 0:
        return
    carry = 0
    after = 0
    for at in range(matches.first_word[number], matches.first_word[number + 1]):
        here = matches.word[at]
        while carry and after < here:  # between two words with bits of the number only the carry changes anything
            word = rows[row, after]
            total = word + 1
            rows[row, after] = (total & _FULL) | word
            carry = total >> _BITS
            after += 1
        word = rows[row, here]
        matched = word & matches.bits[at]
        total = word + matched + carry
        rows[row, here] = (total & _FULL) | (word - matched)
        carry = total >> _BITS
        after = here + 1
    while carry and after < rows.shape[1]:
        word = rows[row, after]
        total = word + 1
        rows[row, after] = (total & _FULL) | word
        carry = total >> _BITS
        after += 1
    used = matches.size - (rows.shape[1] - 1) * _BITS
    rows[row, rows.shape[1] - 1] &= (1 << used) - 1


@compiled
def pass_all(matches: Matches, rows: Ints, kept: Ints, stride: int) -> None:
    """Put into `kept` one row in so many, from the one before the last element on; the first of `rows` comes full."""
    count = len(matches.elements)
    for number in range(count + 1):
        if number:
            advance(matches, matches.elements[count - number], rows, 0)
        if number % stride == 0:
            for word in range(rows.shape[1]):
                kept[number // stride, word] = rows[0, word]


@compiled
def fill_block(matches: Matches, kept: Ints, block: Ints, held: int) -> None:
    """Put the rows from a kept one to the next into `block`."""
    stride, count = len(block), len(matches.elements)
    for word in range(block.shape[1]):
        block[0, word] = kept[held, word]
    for number in range(1, min(stride, count - held * stride + 1)):
        for word in range(block.shape[1]):
            block[number, word] = block[number - 1, word]
        advance(matches, matches.elements[count - held * stride - number], block, number)


@compiled
def zeros(rows: Ints, row: int, bits: int) -> int:
    """Count the zeros among the lowest bits of a row."""
    found = bits
    words = bits // _BITS
    for at in range(words):
        found -= count_ones(rows[row, at])
    if bits % _BITS:
        found -= count_ones(rows[row, words] & ((1 << (bits % _BITS)) - 1))
    return found


@compiled
def count_ones(word: int) -> int:
    """Count the bits of a word that are 1."""
    word = word - ((word >> 1) & 0x5555555555555555)
    word = (word & 0x3333333333333333) + ((word >> 2) & 0x3333333333333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F0F0F0F0F
    word = word + (word >> 8)
    word = word + (word >> 16)
    return (word + (word >> 32)) & 0x7F


@compiled
def walk(matches: Matches, kept: Ints, block: Ints, place: Ints, partners: Ints) -> None:
    """Put each element's partner into `partners`, which comes as -1.

    Row i is that of the last i elements. `kept` (blocks, words) has one in so many rows; `block` (rows, words) is
    overwritten, its first row comes as the last of all; `place` is where each number's places begin.
    """
    count, stride = len(matches.elements), len(block)
    at = 0
    needed = zeros(block, 0, matches.size)
    held = -1
    for start in range(count):
        element = matches.elements[start]
        if needed == 0 or element < 0:
            continue
        last = matches.first_place[element + 1]
        while place[element] < last and matches.place[place[element]] < at:
            place[element] += 1
        if place[element] == last:
            continue
        rest = count - start - 1
        if rest // stride != held:
            held = rest // stride
            fill_block(matches, kept, block, held)
        partner = matches.place[place[element]]
        if zeros(block, rest % stride, matches.size - partner - 1) == needed - 1:
            partners[start] = partner
            at = partner + 1
            needed -= 1
