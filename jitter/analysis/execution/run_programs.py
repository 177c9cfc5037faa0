"""The programs of a run's teams, made from what its ranks launch in some steps, and the steps laid out along them."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from jitter.analysis.alignment.kernel_index import RankSequence
from jitter.analysis.alignment.program import Example, Program, Signature, lay_out, teams
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.step_times import IdenticalRanks, StepTimes, TeamTimes, empty_step, fill_group, of_team
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COLLECTIVE
from jitter.core.numeric.arrays import Bools, Floats, Ints, KindCodes, spread_positions
from jitter.core.parallel.prefetch import MOST_ROWS, map_ahead
from jitter.core.parallel.processes import cpu_count
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


_SMALL_STEP: Final = 4_000
"""Activities of a step of all ranks up to which handing it to another thread takes longer than to compute it."""
_MOST_AHEAD: Final = 8


class RunPrograms:
    """Teams and their programs, and steps along them. Rows are read step by step, of a large run at each pass."""

    def __init__(self, reader: RunReader) -> None:
        """Take the rows that `reader` reads."""
        self.reader = reader
        self.threads = cpu_count()
        self._last_ends: dict[StepKey, Floats] = {}

    @property
    def ahead(self) -> int:
        """How many steps are read on threads while one is used; 0 of tiny steps, of large ones, and on one thread."""
        of_step = self.reader.rows // max(1, len(self.keys))
        if of_step < _SMALL_STEP or self.threads < 2:
            return 0
        return min(self.threads, _MOST_AHEAD, MOST_ROWS // of_step)

    @property
    def keys(self) -> Sequence[StepKey]:
        """The steps, in order."""
        return self.reader.steps

    @cached_property
    def survey(self) -> RunSurvey:
        """What the ranks ran in the surveyed steps."""
        return RunSurvey(self.reader, self.ahead)

    @cached_property
    def team_of(self) -> dict[int, int]:
        """The team of each rank."""
        survey = self.survey
        indices = (index for key in self.keys for index in self.reader.indices(key))
        cohort_of = {member.rank: index.cohort for index in indices for member in index.members}
        usual = {rank: counts.most_common(1)[0][0] for rank, counts in survey.by_rank.items()}
        cut = frozenset(rank for rank, counts in survey.by_rank.items() if not counts.total())
        return teams(usual, cohort_of, survey.kinds, self.survey.example, cut)

    @cached_property
    def sizes(self) -> Counter[int]:
        """How many ranks each team has."""
        return Counter(self.team_of.values())

    @cached_property
    def programs(self) -> dict[int, Program]:
        """The program of each team."""
        counts: dict[int, Counter[Signature]] = defaultdict(Counter)
        for rank, signatures in self.survey.by_rank.items():
            counts[self.team_of[rank]].update(signatures)
        sizes = {signature: len(kinds) for signature, kinds in self.survey.kinds.items()}
        return {
            team: lay_out(signature_counts, self.survey.example, sizes)
            for team, signature_counts in sorted(counts.items())
        }

    @cached_property
    def rank_numbers(self) -> Ints:
        """(ranks of the run,) the ranks, team by team: a rank's position is its number in compiled loops."""
        return np.array(sorted(self.team_of, key=lambda rank: (self.team_of[rank], rank)), np.int64)

    @cached_property
    def number_of(self) -> dict[int, int]:
        """The number of each rank, as in `rank_numbers`."""
        return {rank: number for number, rank in enumerate(self.rank_numbers.tolist())}

    @cached_property
    def _teams(self) -> Ints:
        """(ranks of the run,) the team of each, by number."""
        return np.array([self.team_of[rank] for rank in self.rank_numbers.tolist()], np.int64)

    @cached_property
    def operation_counts(self) -> dict[int, int]:
        """How many operations each team's program has."""
        return {team: len(program.operations) for team, program in self.programs.items()}

    def team_times(self, key: StepKey, team: int) -> TeamTimes:
        """Return one team's step, (operations, ranks), along its program."""
        step = self.step_times(key, self._teams == team)
        return of_team(step, self.rank_numbers, team, self.operation_counts[team])

    def rank_times(self, key: StepKey, rank: int) -> TeamTimes:
        """Return one rank's step, (operations, 1)."""
        team = self.team_of[rank]
        only = self.step_times(key, self.rank_numbers == rank)
        return of_team(only, self.rank_numbers, team, self.operation_counts[team])

    def step_times(self, key: StepKey, wanted: Bools | None = None) -> StepTimes:
        """Return a step of all ranks, or of those in the mask `wanted`, (ranks of the run,)."""
        here = np.zeros(len(self.rank_numbers), np.bool_)
        here[[self.number_of[member.rank] for member in self.reader.members(key)]] = True
        if wanted is not None:
            here &= wanted
        operations = np.array([size for _, size in sorted(self.operation_counts.items())], np.int64)
        step = empty_step(self._teams, operations[self._teams], here)
        number_of = np.full(int(self.rank_numbers.max(initial=-1)) + 2, -1, np.int64)
        number_of[self.rank_numbers[here]] = np.flatnonzero(here)
        for group in self.reader.rank_groups(key, None if wanted is None else self.rank_numbers[here].tolist()):
            numbers = np.where(group.ranks < len(number_of), number_of[np.minimum(group.ranks, len(number_of) - 1)], -1)
            for team in np.unique(self._teams[numbers[numbers >= 0]]).tolist():
                mine = (numbers >= 0) & (self._teams[numbers] == team)
                places = self._places(team, key, group, int(group.ranks[mine.argmax()]))
                fill_group(step, group, places, self.operation_counts[team], np.where(mine, numbers, -1))
        return step

    def _places(self, team: int, key: StepKey, group: IdenticalRanks, rank: int) -> Ints:
        """Return the places of a group's operations in a team's program; a signature new to it is fitted into it."""
        program = self.programs[team]
        if group.signature not in program.places:
            program.fit(group.signature, self.reader.example(key, rank))
        return program.places[group.signature]

    def operations_of(self, key: StepKey, rank: int) -> tuple[KindCodes, Ints]:
        """Return one rank's operations in a step: their kinds, and their places in its team's program, -1 for none."""
        group = next(group for group in self.reader.rank_groups(key, [rank]) if rank in group.ranks)
        return group.kind, self._places(self.team_of[rank], key, group, rank)

    def places_of_collectives(self, key: StepKey) -> dict[int, Ints]:
        """Return by rank where in its team's program the collectives of its step are, in launch order; -1: nowhere."""
        places_of_rank: dict[int, Ints] = {}
        for group in self.reader.rank_groups(key):
            by_team: dict[int, Ints] = {}
            for rank in group.ranks.tolist():
                if (team := self.team_of.get(rank)) is not None:
                    if team not in by_team:
                        by_team[team] = self._places(team, key, group, rank)[group.kind == COLLECTIVE]
                    places_of_rank[rank] = by_team[team]
        return places_of_rank

    def file_rows(self, key: StepKey, team: int, ranks: Sequence[int]) -> Ints:
        """Return, (operations, ranks), the rows of one team's step in the files of these ranks, -1 for none."""
        rows = np.full((self.operation_counts[team], len(ranks)), -1, np.int64)
        column_of = {rank: column for column, rank in enumerate(ranks)}
        for group in self.reader.rank_groups(key, ranks):
            columns = np.array([column_of[rank] for rank in group.ranks.tolist() if rank in column_of], np.int64)
            if len(columns):
                places = self._places(team, key, group, ranks[int(columns[0])])
                rows[np.ix_(places[places >= 0], columns)] = group.row[places >= 0, None]
        return rows

    def ranks(self, key: StepKey, team: int) -> list[int]:
        """Return a team's ranks that have a step."""
        return [m.rank for m in self.reader.members(key) if self.team_of[m.rank] == team]

    def spread_ranks(self, team: int, most: int) -> Bools:
        """Return the mask, (ranks of the run,), of at most so many of a team's ranks, evenly spread."""
        team_ranks = np.flatnonzero(self._teams == team)
        chosen = np.zeros(len(self._teams), np.bool_)
        chosen[team_ranks[spread_positions(len(team_ranks), most)]] = True
        return chosen

    def last_ends(self, key: StepKey) -> Floats:
        """Return, (teams,) as in `programs`, when the last operation of one rank of each ends in a step; NaN: unknown.

        Each step is read once, as the rules of every team ask for those of the others.
        """
        if key not in self._last_ends:
            ranks = [np.flatnonzero(self.spread_ranks(team, 1)).item() for team in self.programs]
            step, ends = self.step_times(key, np.isin(np.arange(len(self.rank_numbers)), ranks)), []
            for team, rank in zip(self.programs, ranks, strict=True):
                row = int(step.row[rank])
                own = step.end[row : row + self.operation_counts[team]] if row >= 0 else np.empty(0)
                ends.append(np.fmax.reduce(own, initial=np.nan))
            self._last_ends[key] = np.array(ends)
        return self._last_ends[key]

    def beginnings(self, key: StepKey) -> Floats:
        """Return, (ranks of the run,), when each rank's step marker begins, ns from its origin; NaN where unknown."""
        begins_ns = np.full(len(self.rank_numbers), np.nan)
        for rank, begin_ns in self.reader.beginnings(key).items():
            if rank in self.number_of:
                begins_ns[self.number_of[rank]] = begin_ns
        return begins_ns
