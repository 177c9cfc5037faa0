"""Cohorts: ranks that run the same kernels and are compared with each other."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from jitter.analysis.metrics.lcs import lcs_length
from jitter.core.step_key import StepKey

KernelSignature = tuple[str, bool]
"""A kernel in a sequence: its name, and whether it runs concurrently with the main stream's compute kernels."""
MIN_SHARED_KERNELS = 0.5
"""Two sequences belong to one cohort if their longest common subsequence is at least this part of the longer one."""


class RankSequence(NamedTuple):
    """One rank's program in one step. `sequence` is the digest of its kernels in launch order."""

    rank: int
    step: StepKey
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
        counts = Counter(waiting.values())
        first_rank = {digest: rank for rank, digest in sorted(waiting.items(), reverse=True)}
        commonest = min(counts, key=lambda digest: (-counts[digest], first_rank[digest]))
        similar = {digest for digest in counts if _shared(encoded[digest], encoded[commonest]) >= MIN_SHARED_KERNELS}
        own = [rank for rank, digest in waiting.items() if digest in similar]
        found.update(dict.fromkeys(own, number))
        for rank in own:
            del waiting[rank]
        number += 1
    return dict(sorted(found.items()))


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


def _shared(one: Sequence[int], other: Sequence[int]) -> float:
    longer = max(len(one), len(other))
    return lcs_length(one, other) / longer if longer else 1.0
