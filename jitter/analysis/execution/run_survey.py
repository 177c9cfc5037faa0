"""What the ranks of a run launch, as some of its steps tell: from this their teams and programs are made."""

from collections import Counter, defaultdict
from typing import Final

import numpy as np

from jitter.analysis.alignment.kernel_index import RankSequence
from jitter.analysis.alignment.program import Example, Signature
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.step_times import IdenticalRanks
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COLLECTIVE
from jitter.core.numeric.arrays import Ints, KindCodes, spread_positions
from jitter.core.parallel.prefetch import map_ahead
from jitter.core.step_key import StepKey

_LIMITS: Final = THRESHOLDS.dependencies


class RunSurvey:
    """The signatures that each rank runs, and where an example of each lies."""

    def __init__(self, reader: RunReader, ahead: int) -> None:
        """Read the surveyed steps, `ahead` of them on threads while one is used."""
        self._reader = reader
        self.by_rank: dict[int, Counter[Signature]] = defaultdict(Counter)
        self.examples: dict[Signature, tuple[StepKey, int]] = {}
        self.kinds: dict[Signature, KindCodes] = {}
        self.collective_rows: dict[Signature, tuple[Ints, Ints]] = {}
        """By signature which operations are collectives, and their rows in the files."""
        self.new: dict[StepKey, list[tuple[RankSequence, Signature]]] = {}
        """By surveyed step the ranks that ran in no earlier surveyed one, complete or cut alike, the same."""
        self._seen: set[tuple[int, bool, Signature]] = set()
        for key, group_of in map_ahead(lambda key: (key, groups_of_ranks(reader, key)), _surveyed(reader), ahead):
            for member in reader.members(key):
                self._add(key, member, group_of[member.rank])

    def _add(self, key: StepKey, member: RankSequence, group: IdenticalRanks) -> None:
        signature = group.signature
        # what a cut recording shows belongs to the program too, after all uncut ones
        self.by_rank[member.rank][signature] += 0 if member.cut else 1
        self.examples.setdefault(signature, (key, member.rank))
        self.kinds.setdefault(signature, group.kind)
        self.note_collectives(group)
        new = self.new.setdefault(key, [])
        if (member.rank, member.cut, signature) not in self._seen:
            self._seen.add((member.rank, member.cut, signature))
            new.append((member, signature))

    def note_collectives(self, group: IdenticalRanks) -> None:
        """Note which operations of a group's signature are collectives."""
        if group.signature not in self.collective_rows:
            operations = np.flatnonzero(group.kind == COLLECTIVE)
            self.collective_rows[group.signature] = operations, group.row[operations]

    def example(self, signature: Signature) -> Example:
        """Return the operations of a signature."""
        return self._reader.example(*self.examples[signature])


def groups_of_ranks(reader: RunReader, key: StepKey) -> dict[int, IdenticalRanks]:
    """Return the group of identical ranks to which each rank of a step belongs."""
    return {rank: group for group in reader.rank_groups(key) for rank in group.ranks.tolist()}


def _surveyed(reader: RunReader) -> list[StepKey]:
    """Return all steps of a short run; of a long run, evenly spaced ones and those with a new sequence or rank."""
    keys = list(reader.steps)
    if reader.rows <= _LIMITS.surveyed_rows:
        return keys
    chosen = {keys[at] for at in spread_positions(len(keys), THRESHOLDS.few_steps)}
    seen = {(m.sequence, m.rank) for key in chosen for m in reader.members(key)}
    ranks, sequences = {rank for _, rank in seen}, {sequence for sequence, _ in seen}
    for key in keys:
        new = [m for m in reader.members(key) if m.rank not in ranks or m.sequence not in sequences]
        if new:
            chosen.add(key)
            ranks.update(m.rank for m in reader.members(key))
            sequences.update(m.sequence for m in reader.members(key))
    return sorted(chosen, key=lambda key: key.order)
