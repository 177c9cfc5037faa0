"""Cohorts: ranks that run the same kernels and are compared with each other."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from operator import eq, itemgetter
from typing import NamedTuple, Protocol, TypeVar

from jitter.analysis.metrics.lcs import lcs_length
from jitter.analysis.thresholds import THRESHOLDS

Value = TypeVar("Value")
KernelSignature = tuple[str, bool]
"""A kernel in a sequence: its name, and whether it runs concurrently with the main stream's compute kernels."""


class RankSequence(NamedTuple):
    """One rank's program in one step. `sequence` is the digest of its kernels in launch order."""

    rank: int
    sequence: str
    cut: bool


class StepSequence(Protocol):
    """The part of a step's record that decides a cohort: a `RankSequence` has it, and a `StepRecord`."""

    @property
    def sequence(self) -> str:
        """Digest of the step's kernels in launch order."""

    @property
    def cut(self) -> bool:
        """Whether the recording of the step is incomplete."""


def assign_cohorts(
    steps_of: Mapping[int, Sequence[StepSequence]], kernels_of: Callable[[str], Sequence[KernelSignature]]
) -> dict[int, int]:
    """Return each rank's cohort, numbered from 0; cohort 0 has the commonest sequence.

    Args:
        steps_of: each rank's steps, in order. The rank's commonest complete sequence represents it.
        kernels_of: the kernels of a sequence, by digest.

    """
    typical = {rank: _commonest(steps) for rank, steps in steps_of.items()}
    ids: dict[KernelSignature, int] = {}
    encoded = {digest: encode_kernels(kernels_of(digest), ids) for digest in set(typical.values())}
    waiting = dict(typical)
    found: dict[int, int] = {}
    number = 0
    while waiting:
        commonest = find_commonest(waiting)
        similar = {
            digest
            for digest in set(waiting.values())
            if shares_kernels(encoded[digest], encoded[commonest], THRESHOLDS.matching.min_shared_kernels)
        }
        found |= {rank: number for rank, digest in waiting.items() if digest in similar}
        waiting = {rank: digest for rank, digest in waiting.items() if digest not in similar}
        number += 1
    return dict(sorted(found.items()))


def find_commonest(by_rank: Mapping[int, Value]) -> Value:
    """Return the most frequent value; of equally frequent ones that of the lowest rank."""
    return Counter(value for _, value in sorted(by_rank.items(), key=itemgetter(0))).most_common(1)[0][0]


def find_commonest_sequences(members: Sequence[RankSequence], cohort_of: Mapping[int, int]) -> dict[int, str]:
    """Return the digest of each cohort's commonest complete sequence over the run."""
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for member in members:
        if not member.cut:
            counts[cohort_of[member.rank]][member.sequence] += 1
    return {cohort: found.most_common(1)[0][0] for cohort, found in counts.items()}


def encode_kernels(kernels: Sequence[KernelSignature], ids: dict[KernelSignature, int]) -> list[int]:
    """Return a number for each kernel, equal for equal signatures; `ids` is extended by signatures not yet in it."""
    return [ids.setdefault(kernel, len(ids)) for kernel in kernels]


def _commonest(steps: Sequence[StepSequence]) -> str:
    complete = [step.sequence for step in steps if not step.cut]
    if len(set(complete)) == 1:
        return complete[0]
    return Counter(complete or [step.sequence for step in steps]).most_common(1)[0][0]


def share_of_kernels(one: Sequence[int], other: Sequence[int]) -> float:
    """Return longest common subsequence ÷ longer sequence; 1 for two empty ones."""
    longer = max(len(one), len(other))
    return lcs_length(one, other) / longer if longer else 1.0


def shares_kernels(one: Sequence[int], other: Sequence[int], min_share: float) -> bool:
    """Return whether `share_of_kernels` is at least `min_share`.

    Equal kernels at equal places are a common subsequence, so where they are enough nothing is aligned.
    """
    enough = min_share * max(len(one), len(other))
    return sum(map(eq, one, other)) >= enough or lcs_length(one, other) >= enough
