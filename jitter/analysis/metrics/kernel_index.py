"""A lake's cohorts and kernel indices: decided from the records, with a look at one file for each distinct sequence."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from threading import Lock

from jitter.analysis.metrics.alignment import Element, Member, StepIndex, cohorts, index_step, usual_sequences
from jitter.core.kernels import is_collective
from jitter.core.step_key import StepKey
from jitter.lake.records import RankStepRecord, StepRecord
from jitter.lake.step_reader import read_step


class LakeIndices:
    """Who is compared with whom, and which of their kernels are the same; nothing is computed before it is asked."""

    def __init__(self, root: Path, held: Mapping[StepKey, Mapping[int, RankStepRecord]]) -> None:
        self._root, self._held = root, held
        self._steps = sorted(held, key=lambda key: key.order)
        self._one_looks = Lock()
        self._not_looked_at = iter(self._steps)
        self._examples: dict[str, tuple[StepKey, int]] = {}
        self._contents: dict[str, list[Element]] = {}
        self._indices: dict[StepKey, list[StepIndex]] = {}

    @cached_property
    def cohorts(self) -> dict[int, int]:
        """Each rank's cohort: ranks of one run the same kernels and are compared with each other."""
        ran: dict[int, list[StepRecord]] = {}
        for key in self._steps:
            for rank, held in self._held[key].items():
                ran.setdefault(rank, []).append(held.step)
        return cohorts(ran, self._content)

    @cached_property
    def members(self) -> dict[int, frozenset[int]]:
        """Each cohort's ranks."""
        return {
            cohort: frozenset(rank for rank, its in self.cohorts.items() if its == cohort)
            for cohort in sorted(set(self.cohorts.values()))
        }

    def of(self, key: StepKey) -> list[StepIndex]:
        """Align each cohort's ranks in one step."""
        if key not in self._indices:
            by_cohort: dict[int, list[Member]] = {}
            for member in self._members_of(key):
                by_cohort.setdefault(self.cohorts[member.rank], []).append(member)
            self._indices[key] = [
                # of a step that has whole recordings nobody asks what is usual: it takes all steps' records to tell
                index_step(
                    members,
                    cohort,
                    self._content,
                    is_collective,
                    self._usual.get(cohort) if all(member.cut for member in members) else None,
                )
                for cohort, members in sorted(by_cohort.items())
            ]
        return self._indices[key]

    @cached_property
    def _usual(self) -> dict[int, str]:
        return usual_sequences([member for key in self._steps for member in self._members_of(key)], self.cohorts)

    def _members_of(self, key: StepKey) -> list[Member]:
        return [
            Member(rank, key, found.step.sequence, found.step.cut) for rank, found in sorted(self._held[key].items())
        ]

    def _example(self, sequence: str) -> tuple[StepKey, int]:
        """A rank that ran it, and the first step in which any did: the first steps tell nearly all there are."""
        with self._one_looks:
            while sequence not in self._examples:
                key = next(self._not_looked_at)
                for rank, found in self._held[key].items():
                    self._examples.setdefault(found.step.sequence, (key, rank))
        return self._examples[sequence]

    def _content(self, sequence: str) -> list[Element]:
        """What the sequence of this digest is, from a file that holds it."""
        if sequence not in self._contents:
            key, rank = self._example(sequence)
            rows = read_step(self._root, key, self._held[key], ("kernel_name", "kind", "stream"), [rank]).table
            main = self._held[key][rank].record.main_stream
            self._contents[sequence] = [
                (name, kind == "collective" or stream != main)
                for name, kind, stream in zip(*(column.to_pylist() for column in rows.columns), strict=True)
                if kind != "memory"
            ]
        return self._contents[sequence]
