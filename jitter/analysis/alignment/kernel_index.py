"""The kernel index: the number of a kernel in its step, the same on every rank of a cohort.

A cohort is a set of ranks that run the same kernels and are compared with each other.

Every kernel index that jitter prints (tables, SQL, figures, diagnosis, JSON) is one of a `KernelIndex`. It counts the
kernels of the step's reference sequence in launch order, memory operations left out. Ranks with the reference's
sequence need no alignment. Other sequences are aligned with it by longest common subsequence of (kernel name,
concurrent or not). Few sequences are distinct, so sequences are aligned, not ranks.

`jitter.analysis.alignment.program` aligns differently: over the whole run, with copies and synchronising calls, and an
operation without a partner takes the place of one of the same kind (an autotuned kernel has another name, but the same
work and dependencies). A kernel index must not do that: kernels of another name are not compared.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, TypeVar

import numpy as np

from jitter.analysis.alignment.sequences import align, are_similar
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.arrow import to_list
from jitter.core.grouping import by_key
from jitter.core.numeric.arrays import Bools, Ints
from jitter.core.step_key import StepKey
from jitter.lake.records import RankStepRecord, StepRecord
from jitter.lake.step_reader import read_step

UNMATCHED: Final = -1
"""In the place of the kernel index of a kernel without one."""
Value = TypeVar("Value")
KernelSignature = tuple[str, bool]
"""A kernel in a sequence: its name, and whether it runs concurrently with the main stream's compute kernels."""


class RankSequence(NamedTuple):
    """One rank's program in one step. `sequence` is the digest of its kernels in launch order."""

    rank: int
    sequence: str
    cut: bool


def assign_cohorts(
    steps_of: Mapping[int, Sequence[RankSequence | StepRecord]], kernels_of: Callable[[str], Sequence[KernelSignature]]
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
    cohort_of: dict[int, int] = {}
    number = 0
    while waiting:
        commonest = find_commonest(waiting)
        similar = {
            digest
            for digest in set(waiting.values())
            if are_similar(encoded[digest], encoded[commonest], THRESHOLDS.main_share)
        }
        cohort_of |= {rank: number for rank, digest in waiting.items() if digest in similar}
        waiting = {rank: digest for rank, digest in waiting.items() if digest not in similar}
        number += 1
    return dict(sorted(cohort_of.items()))


def find_commonest(by_rank: Mapping[int, Value]) -> Value:
    """Return the most frequent value; of equally frequent ones that of the lowest rank."""
    return Counter(value for _, value in sorted(by_rank.items(), key=itemgetter(0))).most_common(1)[0][0]


def find_commonest_sequences(members: Sequence[RankSequence], cohort_of: Mapping[int, int]) -> dict[int, str]:
    """Return the digest of each cohort's commonest complete sequence over the run."""
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for member in members:
        if not member.cut:
            counts[cohort_of[member.rank]][member.sequence] += 1
    return {cohort: sequence_counts.most_common(1)[0][0] for cohort, sequence_counts in counts.items()}


def encode_kernels(kernels: Sequence[KernelSignature], ids: dict[KernelSignature, int]) -> list[int]:
    """Return a number for each kernel, equal for equal signatures; `ids` is extended by signatures not yet in it."""
    return [ids.setdefault(kernel, len(ids)) for kernel in kernels]


def _commonest(steps: Sequence[RankSequence | StepRecord]) -> str:
    complete = [step.sequence for step in steps if not step.cut]
    return Counter(complete or [step.sequence for step in steps]).most_common(1)[0][0]


@dataclass(frozen=True)
class KernelIndex:
    """The kernel index of one cohort in one step.

    `names[index]` is the kernel's name in the reference. `partners[digest][position]` is the kernel index of a
    sequence's kernel, None where the reference has no partner for it. `members` are the ranks with an index.
    `left_out` are ranks whose recording ends before the step's last collective.
    """

    cohort: int
    reference: str | None
    names: tuple[str, ...]
    partners: dict[str, list[int | None]]
    members: tuple[RankSequence, ...]
    left_out: tuple[int, ...]

    @cached_property
    def indices(self) -> dict[str, Ints]:
        """By sequence, (kernels,), the kernel index of each of its kernels, or `UNMATCHED`."""
        return {
            digest: np.array([UNMATCHED if partner is None else partner for partner in partners], np.int64)
            for digest, partners in self.partners.items()
        }

    @cached_property
    def unmatched(self) -> dict[str, Bools]:
        """By sequence with kernels that have no kernel index, (kernels,), which these are."""
        are_unmatched = {digest: of_kernels == UNMATCHED for digest, of_kernels in self.indices.items()}
        return {digest: of_kernels for digest, of_kernels in are_unmatched.items() if of_kernels.any()}


def align_step(
    members: Sequence[RankSequence],
    cohort: int,
    kernels_of: Callable[[str], Sequence[KernelSignature]],
    is_collective: Callable[[str], bool],
    fallback: str | None,
    aligned: dict[tuple[str, str], list[int | None]] | None = None,
) -> KernelIndex:
    """Return the kernel index of one cohort in one step.

    Args:
        members: the cohort's ranks that have the step.
        cohort: its number.
        kernels_of: the kernels of a sequence, by digest.
        is_collective: whether a kernel of this name is a collective.
        fallback: digest of the reference where every member's recording is cut; None leaves all members out.
        aligned: partners of (reference, sequence) that other steps have aligned; those of this step are added.

    The reference is the step's commonest complete sequence; of equally common ones that of the lowest rank.

    """
    complete = {member.rank: member.sequence for member in members if not member.cut}
    reference = find_commonest(complete) if complete else fallback
    if reference is None:
        return KernelIndex(cohort, None, (), {}, (), tuple(member.rank for member in members))
    ids: dict[KernelSignature, int] = {}
    kernels = kernels_of(reference)
    aligned = {} if aligned is None else aligned
    digests = sorted({member.sequence for member in members})
    for digest in digests:
        if (reference, digest) not in aligned:
            aligned[reference, digest] = (
                list(range(len(kernels)))
                if digest == reference
                else align(encode_kernels(kernels_of(digest), ids), encode_kernels(kernels, ids))
            )
    partners = {digest: aligned[reference, digest] for digest in digests}
    last = next((at for at in range(len(kernels) - 1, -1, -1) if is_collective(kernels[at][0])), None)
    # a cut recording counts if it holds the step's last collective and a kernel after it
    reaching = {
        digest
        for digest, kernels_partners in partners.items()
        if last is None or (last in kernels_partners and max(at or 0 for at in kernels_partners) > last)
    }
    is_kept = [not member.cut or member.sequence in reaching for member in members]
    return KernelIndex(
        cohort,
        reference,
        tuple(name for name, _ in kernels),
        partners,
        tuple(compress(members, is_kept)),
        tuple(member.rank for member, kept in zip(members, is_kept, strict=True) if not kept),
    )


class KernelIndices:
    """A lake's cohorts and kernel indices, from its records and one file for each distinct sequence. Thread-safe."""

    def __init__(self, root: Path, held: Mapping[StepKey, Mapping[int, RankStepRecord]]) -> None:
        self._root, self._held = root, held
        self._steps = sorted(held, key=lambda key: key.order)
        self._example_lock = Lock()
        self._unsearched_steps = iter(self._steps)
        self._examples: dict[str, tuple[StepKey, int]] = {}
        self._contents: dict[str, list[KernelSignature]] = {}
        self._collectives: set[str] = set()
        """Names of the collectives in the sequences read so far."""
        self._indices: dict[StepKey, list[KernelIndex]] = {}
        self._of_members: dict[tuple[RankSequence, ...], list[KernelIndex]] = {}
        """Most steps have the same ranks and sequences, and so the same indices."""
        self._aligned: dict[tuple[str, str], list[int | None]] = {}

    @cached_property
    def cohorts(self) -> dict[int, int]:
        """Each rank's cohort: ranks of one cohort run the same kernels and are compared with each other."""
        steps_of = by_key((rank, held.step) for key in self._steps for rank, held in self._held[key].items())
        return assign_cohorts(steps_of, self._kernels_of)

    @cached_property
    def members(self) -> dict[int, frozenset[int]]:
        """Each cohort's ranks over the run."""
        return {
            cohort: frozenset(rank for rank, rank_cohort in self.cohorts.items() if rank_cohort == cohort)
            for cohort in sorted(set(self.cohorts.values()))
        }

    def of(self, key: StepKey) -> list[KernelIndex]:
        """Return the kernel index of each cohort that has the step, by cohort."""
        if key not in self._indices:
            members = tuple(self._members_of(key))
            self._indices[key] = self._of_members.get(members) or self._align(members)
            self._of_members[members] = self._indices[key]
        return self._indices[key]

    def _align(self, members_of_step: Sequence[RankSequence]) -> list[KernelIndex]:
        by_cohort = by_key((self.cohorts[member.rank], member) for member in members_of_step)
        return [
            # the run's commonest sequence needs the records of all steps: only where every recording is cut
            align_step(
                members,
                cohort,
                self._kernels_of,
                self._collectives.__contains__,
                self._commonest.get(cohort) if all(member.cut for member in members) else None,
                self._aligned,
            )
            for cohort, members in sorted(by_cohort.items())
        ]

    @cached_property
    def _commonest(self) -> dict[int, str]:
        members = [member for key in self._steps for member in self._members_of(key)]
        return find_commonest_sequences(members, self.cohorts)

    def _members_of(self, key: StepKey) -> list[RankSequence]:
        return [
            RankSequence(rank, step_record.step.sequence, step_record.step.cut)
            for rank, step_record in sorted(self._held[key].items())
        ]

    def _example(self, sequence: str) -> tuple[StepKey, int]:
        """Return the first step with the sequence and a rank that ran it; the first steps have nearly all of them."""
        with self._example_lock:
            while sequence not in self._examples:
                key = next(self._unsearched_steps)
                for rank, step_record in self._held[key].items():
                    self._examples.setdefault(step_record.step.sequence, (key, rank))
        return self._examples[sequence]

    def _kernels_of(self, sequence: str) -> list[KernelSignature]:
        """Return the kernels of the sequence with this digest, read from one file that holds it."""
        if sequence not in self._contents:
            key, rank = self._example(sequence)
            rows = read_step(self._root, key, self._held[key], ("kernel_name", "kind", "stream"), [rank]).table
            main = self._held[key][rank].record.main_stream
            kernels = list(zip(*map(to_list, rows.columns), strict=True))
            self._collectives.update(name for name, kind, _ in kernels if kind == "collective")
            self._contents[sequence] = [
                (name, kind == "collective" or stream != main) for name, kind, stream in kernels if kind != "memory"
            ]
        return self._contents[sequence]
