"""Align the kernel sequences of two runs: which team is which, and which kernel of one is which of the other."""

from collections.abc import Sequence
from typing import NamedTuple

from jitter.analysis.alignment.sequences import align, find_gaps, similarity
from jitter.analysis.thresholds import THRESHOLDS
from jitter.comparison.document import Document, Team


class Block(NamedTuple):
    """Places of one sequence that stand for places of the other: one for one, or as a whole; either may be empty."""

    base: tuple[int, ...]
    new: tuple[int, ...]
    is_same: bool
    """Whether it is one kernel of the same name in both."""


class TeamPair(NamedTuple):
    """A team of the base and the team of the new run with the most similar sequence, by position."""

    base: int
    new: int
    share: float
    """Longest common subsequence ÷ the longer sequence."""


def pair_teams(base: Document, new: Document) -> list[TeamPair]:
    """Return the pairs whose sequences share at least half, the most similar first; each team is in one at most."""
    words: dict[tuple[str, bool], int] = {}
    of_base = [_words(base, team, words) for team in base.teams]
    of_new = [_words(new, team, words) for team in new.teams]
    shares: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    found = []
    for one, sequence in enumerate(of_base):
        for other, its in enumerate(of_new):
            if (sequence, its) not in shares:
                shares[sequence, its] = similarity(sequence, its)
            found.append(TeamPair(one, other, shares[sequence, its]))
    pairs: list[TeamPair] = []
    for pair in sorted(found, key=lambda pair: (-pair.share, pair.base, pair.new)):
        taken = any(pair.base == other.base or pair.new == other.new for other in pairs)
        if not taken and pair.share >= THRESHOLDS.matching.min_shared_kernels:
            pairs.append(pair)
    return pairs


def align_teams(base: Document, new: Document, pair: TeamPair) -> list[Block]:
    """Return the blocks of a pair of teams, in launch order.

    Kernels of equal names are partners along the longest common subsequence. Between two of them, what is left of
    both runs stands for each other: one for one where there are equally many, else as a whole.
    """
    words: dict[tuple[str, bool], int] = {}
    first = _words(base, base.teams[pair.base], words)
    second = _words(new, new.teams[pair.new], words)
    blocks: list[Block] = []
    for of_new, of_base in find_gaps(align(second, first), len(first)):
        blocks += _between(of_base, of_new, first, second, words)
        if of_base.stop < len(first):
            blocks.append(Block((of_base.stop,), (of_new.stop,), True))
    return blocks


def _between(
    base: range, new: range, first: Sequence[int], second: Sequence[int], words: dict[tuple[str, bool], int]
) -> list[Block]:
    if not base and not new:
        return []
    concurrent = [is_concurrent for _, is_concurrent in words]
    alike = [concurrent[first[at]] for at in base] == [concurrent[second[at]] for at in new]
    if len(base) == len(new) and alike:
        return [Block((one,), (other,), False) for one, other in zip(base, new, strict=True)]
    if base and new and {concurrent[first[at]] for at in base} & {concurrent[second[at]] for at in new}:
        return [Block(tuple(base), tuple(new), False)]
    return [block for block in (Block(tuple(base), (), False), Block((), tuple(new), False)) if block.base or block.new]


def _words(document: Document, team: Team, words: dict[tuple[str, bool], int]) -> tuple[int, ...]:
    """Number the kernels of a team: equal numbers are equal names on the same kind of stream."""
    names = document.names
    return tuple(words.setdefault((names[place.name], place.concurrent), len(words)) for place in team.places)
