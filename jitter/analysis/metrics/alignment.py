"""The kernel index: which kernel of one rank's step is which of another's; and cohorts, ranks that do the same work.

Ranks whose steps have the same sequence of (kernel name, concurrent or not) need nothing more. The few distinct
sequences are aligned, not the ranks.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple, Protocol

from jitter.analysis.metrics.lcs import lcs_length, lcs_partners
from jitter.core.step_key import StepKey

KernelSignature = tuple[str, bool]
"""A kernel in a sequence: its name, and whether it runs beside the main stream's compute."""
MIN_SHARED_KERNELS = 0.5
"""Sequences that share at least this part of the longer one are of one cohort."""


class RankSequence(NamedTuple):
    """One rank in one step. `sequence` is the digest of what it ran, in launch order."""

    rank: int
    step: StepKey
    sequence: str
    cut: bool


class StepSequence(Protocol):
    """What a rank's step tells of itself: a `RankSequence` is one, and a record's step."""

    @property
    def sequence(self) -> str:
        """Digest of what it ran, in launch order."""

    @property
    def cut(self) -> bool:
        """Whether the recording lacks a part of it."""


@dataclass(frozen=True)
class KernelIndex:
    """One cohort's step: the reference's kernels, and each sequence's positions in it.

    `partners[digest][position]` is the kernel index of that position, None where it has none. `left_out` are ranks
    whose recording was cut before the step's last collective.
    """

    cohort: int
    reference: str | None
    names: tuple[str, ...]
    partners: dict[str, list[int | None]]
    members: tuple[RankSequence, ...]
    left_out: tuple[int, ...]


def assign_cohorts(
    ran: Mapping[int, Sequence[StepSequence]], content: Callable[[str], Sequence[KernelSignature]]
) -> dict[int, int]:
    """Number the cohorts of the run: rank to cohort, 0 being the one with the commonest sequence.

    `ran` has each rank's steps, in order. A rank stands for the sequence it ran most often (uncut if it has one).
    Decided once a run.
    """
    typical = {rank: _typical(steps) for rank, steps in ran.items()}
    ids: dict[KernelSignature, int] = {}
    encoded = {digest: _encode(content(digest), ids) for digest in set(typical.values())}
    waiting = dict(typical)
    found: dict[int, int] = {}
    number = 0
    while waiting:
        counts = Counter(waiting.values())
        first_rank = {digest: rank for rank, digest in sorted(waiting.items(), reverse=True)}
        commonest = min(counts, key=lambda digest: (-counts[digest], first_rank[digest]))
        alike = {digest for digest in counts if _share(encoded[digest], encoded[commonest]) >= MIN_SHARED_KERNELS}
        mine = [rank for rank, digest in waiting.items() if digest in alike]
        found.update(dict.fromkeys(mine, number))
        for rank in mine:
            del waiting[rank]
        number += 1
    return dict(sorted(found.items()))


def align_step(
    members: Sequence[RankSequence],
    cohort: int,
    content: Callable[[str], Sequence[KernelSignature]],
    is_collective: Callable[[str], bool],
    usual: str | None,
) -> KernelIndex:
    """Align one cohort's ranks in one step; without any uncut sequence to refer to, all are left out.

    The reference is the step's commonest uncut sequence (ties: the lowest rank's), else `usual`, the cohort's
    commonest uncut one of the run.
    """
    counts = Counter(member.sequence for member in members if not member.cut)
    first: dict[str, int] = {}
    for member in members:
        first[member.sequence] = min(member.rank, first.get(member.sequence, member.rank))
    reference = min(counts, key=lambda digest: (-counts[digest], first[digest]), default=usual)
    if reference is None:
        return KernelIndex(cohort, None, (), {}, (), tuple(member.rank for member in members))
    ids: dict[KernelSignature, int] = {}
    kernels = content(reference)
    wanted = _encode(kernels, ids)
    identity: list[int | None] = list(range(len(kernels)))
    partners = {
        digest: identity if digest == reference else lcs_partners(_encode(content(digest), ids), wanted)
        for digest in sorted({member.sequence for member in members})
    }
    last = next((at for at in range(len(kernels) - 1, -1, -1) if is_collective(kernels[at][0])), None)
    is_kept = [not member.cut or _reaches(partners[member.sequence], last) for member in members]
    return KernelIndex(
        cohort,
        reference,
        tuple(name for name, _ in kernels),
        partners,
        tuple(compress(members, is_kept)),
        tuple(member.rank for member, kept in zip(members, is_kept, strict=True) if not kept),
    )


def find_commonest_sequences(members: Sequence[RankSequence], cohort_of: Mapping[int, int]) -> dict[int, str]:
    """Find each cohort's commonest uncut sequence of the run."""
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for member in members:
        if not member.cut:
            counts[cohort_of[member.rank]][member.sequence] += 1
    return {cohort: found.most_common(1)[0][0] for cohort, found in counts.items()}


def _typical(steps: Sequence[StepSequence]) -> str:
    whole = [step.sequence for step in steps if not step.cut]
    if len(set(whole)) == 1:
        return whole[0]
    return Counter(whole or [step.sequence for step in steps]).most_common(1)[0][0]


def _encode(elements: Sequence[KernelSignature], ids: dict[KernelSignature, int]) -> list[int]:
    return [ids.setdefault(element, len(ids)) for element in elements]


def _share(one: Sequence[int], other: Sequence[int]) -> float:
    longer = max(len(one), len(other))
    return lcs_length(one, other) / longer if longer else 1.0


def _reaches(partners: Sequence[int | None], last: int | None) -> bool:
    """Whether a cut sequence holds the step's last collective, and a kernel past it."""
    if last is None:
        return True
    return last in partners and any(partner is not None and partner > last for partner in partners)
