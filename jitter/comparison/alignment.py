"""Align the programs of two runs: which team is which, and which operation of one is which of the other."""

from collections.abc import Sequence
from typing import NamedTuple

from jitter.analysis.alignment.program import MAIN
from jitter.analysis.alignment.sequences import align, find_gaps, similarity
from jitter.analysis.thresholds import THRESHOLDS
from jitter.comparison.document import Document, Team
from jitter.core.names.kernels import COLLECTIVE, COMPUTE


class AlignedOperation(NamedTuple):
    """An operation of a team, as runs have it in common."""

    name: str
    kind: int | None
    """None for any kind of kernel, in a document without programs."""
    is_main: bool
    """Whether it is on the main stream."""

    @property
    def is_kernel(self) -> bool:
        """Whether the kernel index counts it."""
        return self.kind in (None, COMPUTE, COLLECTIVE)


class Slot(NamedTuple):
    """One operation of the two aligned programs, by its numbers in each; None where a run lacks it."""

    base: int | None
    new: int | None
    is_same: bool
    """Whether it has the same name in both."""
    block: int
    """Slots of one block stand for each other as a whole: a fusion."""


class TeamPair(NamedTuple):
    """A team of the base and the team of the new run with the most similar sequence, by position."""

    base: int
    new: int
    share: float
    """Longest common subsequence ÷ the longer sequence."""


def pair_teams(base: Document, new: Document) -> list[TeamPair]:
    """Return the pairs whose kernels share at least half, the most similar first; each team is in one at most."""
    words: dict[tuple[str, bool], int] = {}
    of_base = [_kernel_words(base, team, words) for team in base.teams]
    of_new = [_kernel_words(new, team, words) for team in new.teams]
    shares: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    candidates = []
    for base_team, base_sequence in enumerate(of_base):
        for new_team, new_sequence in enumerate(of_new):
            if (base_sequence, new_sequence) not in shares:
                shares[base_sequence, new_sequence] = similarity(base_sequence, new_sequence)
            candidates.append(TeamPair(base_team, new_team, shares[base_sequence, new_sequence]))
    pairs: list[TeamPair] = []
    for pair in sorted(candidates, key=lambda pair: (-pair.share, pair.base, pair.new)):
        is_taken = any(pair.base == chosen.base or pair.new == chosen.new for chosen in pairs)
        if not is_taken and pair.share >= THRESHOLDS.matching.min_shared_kernels:
            pairs.append(pair)
    return pairs


def _kernel_words(document: Document, team: Team, words: dict[tuple[str, bool], int]) -> tuple[int, ...]:
    names = document.names
    return tuple(words.setdefault((names[place.name], place.concurrent), len(words)) for place in team.places)


def list_operations(document: Document, team: int, *, whole: bool) -> list[AlignedOperation]:
    """Return the operations of a team: all of its program, or its kernels alone, which every document has."""
    names = document.names
    if document.usual is None or not whole:
        return [
            AlignedOperation(names[place.name], None, not place.concurrent) for place in document.teams[team].places
        ]
    program = document.usual.teams[team]
    columns = zip(program.names, program.kinds, program.streams, strict=True)
    return [AlignedOperation(names[name], kind, stream == MAIN) for name, kind, stream in columns]


def align_programs(base: Sequence[AlignedOperation], new: Sequence[AlignedOperation]) -> list[Slot]:
    """Return the operations of both programs in launch order.

    Operations of equal names are partners along the longest common subsequence. Of the kernels between two of them,
    what is left of both runs stands for each other: one for one where there are equally many, else as a whole.
    """
    words: dict[AlignedOperation, int] = {}
    first, second = ([words.setdefault(operation, len(words)) for operation in side] for side in (base, new))
    slots: list[Slot] = []
    for of_new, of_base in find_gaps(align(second, first), len(first)):
        _fill_gap(slots, base, new, of_base, of_new)
        if of_base.stop < len(first):
            slots.append(Slot(of_base.stop, of_new.stop, True, len(slots)))
    return slots


def _fill_gap(
    slots: list[Slot],
    base: Sequence[AlignedOperation],
    new: Sequence[AlignedOperation],
    base_gap: range,
    new_gap: range,
) -> None:
    """Add the operations between two that are partners; what comes first in either run comes first."""
    base_kernels, new_kernels = (
        [at for at in gap if side[at].is_kernel] for side, gap in ((base, base_gap), (new, new_gap))
    )
    kinds = (
        [(base[at].kind, base[at].is_main) for at in base_kernels],
        [(new[at].kind, new[at].is_main) for at in new_kernels],
    )
    partners = dict(zip(base_kernels, new_kernels, strict=True)) if kinds[0] == kinds[1] else {}
    whole = ~len(slots) if not partners and set(kinds[0]) & set(kinds[1]) else None
    behind = new_gap.start
    for at in base_gap:
        partner = partners.get(at)
        if partner is not None:
            slots += [Slot(None, position, False, len(slots) + n) for n, position in enumerate(range(behind, partner))]
            behind = partner + 1
        slots.append(Slot(at, partner, False, len(slots) if whole is None or at not in base_kernels else whole))
    rest = range(behind, new_gap.stop)
    slots += [
        Slot(None, at, False, len(slots) + n if whole is None or at not in new_kernels else whole)
        for n, at in enumerate(rest)
    ]
