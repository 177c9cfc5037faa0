"""The model of a run: teams, their programs, dependencies and the members of collectives; and the steps along them.

Programs are made from what the ranks launch in some steps. Which collectives a rank attends, and with whom, process
groups say, or times. Rows are read step by step, of a large run at each pass.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.alignment.kernel_index import RankSequence
from jitter.analysis.alignment.program import Example, Operation, Program, Signature, lay_out, teams
from jitter.analysis.collectives.group_inference import TeamEnds, find_unnamed_peers, infer_attended
from jitter.analysis.collectives.matching import (
    Attended,
    CollectiveArrays,
    CollectiveMatching,
    Group,
    RingArrivals,
    complete_attended,
    join_attended,
    list_ring_arrivals,
    match,
    take_stated,
)
from jitter.analysis.collectives.rings import tell_rings, tell_unstated_rings
from jitter.analysis.execution.dependencies import Dependencies
from jitter.analysis.execution.job_arrays import JobArrays, job_arrays
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.run_rules import infer_rules
from jitter.analysis.execution.schedule import Schedule, schedule
from jitter.analysis.execution.self_times import Alternatives, TimePart
from jitter.analysis.execution.step_times import (
    IdenticalRanks,
    PlacedOperations,
    StepTimes,
    TeamTimes,
    empty_step,
    fill_group,
    of_team,
    place_operations,
)
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COLLECTIVE, HOST_BARRIER, MEETINGS, SEND_RECV, SYNC, WHOLE_GRAPH
from jitter.core.numeric.arrays import Bools, Floats, Ints, KindCodes, pieces_of, spread_positions
from jitter.core.parallel.executors import cpu_count
from jitter.core.parallel.prefetch import MOST_ROWS, ROWS_PER_PIECE, map_ahead
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
        """By signature which operations are collectives or barriers, and their rows in the files; -1: barriers."""
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
            operations = np.flatnonzero(np.isin(group.kind, MEETINGS))
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


class InferredModel(NamedTuple):
    """Inferences from the whole run, each from those before it and the recorded steps."""

    team_of: dict[int, int]
    programs: dict[int, Program]
    dependencies: dict[int, Dependencies]
    matching: CollectiveMatching
    schedule: Schedule


class RunModel:
    """The inferences from the whole run, each made when it is first asked for, and steps along its programs."""

    def __init__(self, reader: RunReader, understood: InferredModel | None = None) -> None:
        """Infer from the rows that `reader` reads; `understood` is what another process inferred from the same run."""
        self.reader = reader
        self.threads = cpu_count()
        self._last_ends: dict[StepKey, Floats] = {}
        self._placed_by_signature: dict[tuple[int, Signature], PlacedOperations] = {}
        if understood is not None:
            self.__dict__.update(understood._asdict())  # in place of what would be inferred

    @property
    def ahead(self) -> int:
        """How many steps are read on threads while one is used; 0 of tiny steps, of large ones, and on one thread."""
        if self._mean_rows < _SMALL_STEP or self.threads < 2:
            return 0
        return min(self.threads, _MOST_AHEAD, MOST_ROWS // self._mean_rows)

    @property
    def has_large_steps(self) -> bool:
        """Whether memory has room for one step at a time."""
        return 2 * self._mean_rows > MOST_ROWS

    @property
    def _mean_rows(self) -> int:
        return self.reader.rows // max(1, len(self.keys))

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
        return teams(usual, cohort_of, survey.kinds, survey.example, cut, self._partners)

    def _partners(self, rank: int) -> frozenset[int]:
        """Return the ranks with which a rank has collectives in its first step, as recorded."""
        key = next(key for key in self.keys if any(member.rank == rank for member in self.reader.members(key)))
        groups = (group for group in self.reader.groups(key, {rank})[rank].values() if group is not None)
        return frozenset().union(*(group.ranks or () for group in groups))

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
    def alternatives(self) -> Alternatives:
        """Where ranks do the same in different ways."""
        stretches = [(team, stretch) for team, program in self.programs.items() for stretch in program.alternatives]
        return [(team, [np.array(way, np.int64) for way in stretch]) for team, stretch in stretches]

    @cached_property
    def rank_numbers(self) -> Ints:
        """(ranks of the run,) the ranks, team by team: a rank's position is its number in compiled loops."""
        return np.array(sorted(self.team_of, key=lambda rank: (self.team_of[rank], rank)), np.int64)

    @cached_property
    def number_of(self) -> dict[int, int]:
        """The number of each rank, as in `rank_numbers`."""
        return {rank: number for number, rank in enumerate(self.rank_numbers.tolist())}

    @cached_property
    def _numbers(self) -> Ints:
        """(largest rank + 2,) the number of each rank, -1 if it is not of the run; the last stands for larger ranks."""
        numbers = np.full(int(self.rank_numbers.max(initial=-1)) + 2, -1, np.int64)
        numbers[self.rank_numbers] = np.arange(len(self.rank_numbers))
        return numbers

    @cached_property
    def _operations_of_ranks(self) -> Ints:
        """(ranks of the run,) how many operations each one's program has."""
        return np.array([self.operation_counts[team] for team in self.team_of_number.tolist()], np.int64)

    @cached_property
    def team_of_number(self) -> Ints:
        """(ranks of the run,) the team of each, by number."""
        return np.array([self.team_of[rank] for rank in self.rank_numbers.tolist()], np.int64)

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """The operations of all teams, one team after another as in `JobArrays`."""
        return tuple(operation for _, program in sorted(self.programs.items()) for operation in program.operations)

    @cached_property
    def operation_counts(self) -> dict[int, int]:
        """How many operations each team's program has."""
        return {team: len(program.operations) for team, program in self.programs.items()}

    def team_times(self, key: StepKey, team: int, wanted: Bools | None = None) -> TeamTimes:
        """Return one team's step, (operations, ranks), along its program; `wanted` is a mask of some of its ranks."""
        step = self.step_times(key, self.team_of_number == team if wanted is None else wanted)
        return of_team(step, self.rank_numbers, team, self.operation_counts[team])

    def rank_times(self, key: StepKey, rank: int) -> TeamTimes:
        """Return one rank's step, (operations, 1)."""
        return self.team_times(key, self.team_of[rank], self.rank_numbers == rank)

    def pieces_of_team(self, team: int) -> list[Bools]:
        """Return masks, (ranks of the run,), of some of a team's ranks each: of about a million operations a step."""
        ranks = np.flatnonzero(self.team_of_number == team)
        pieces = pieces_of(np.arange(len(ranks) + 1) * self.operation_counts[team], ROWS_PER_PIECE)
        return [np.isin(np.arange(len(self.team_of_number)), ranks[piece]) for piece in pieces]

    def step_times(self, key: StepKey, wanted: Bools | None = None) -> StepTimes:
        """Return a step of all ranks, or of those in the mask `wanted`, (ranks of the run,)."""
        here = np.zeros(len(self.rank_numbers) + 1, np.bool_)  # the last one stands for ranks that are not of the run
        here[[self.number_of[member.rank] for member in self.reader.members(key)]] = True
        if wanted is not None:
            here[:-1] &= wanted
        step = empty_step(self.team_of_number, self._operations_of_ranks, here[:-1])
        for group in self.reader.rank_groups(key, None if wanted is None else self.rank_numbers[here[:-1]].tolist()):
            numbers = self._numbers[np.minimum(group.ranks, len(self._numbers) - 1)]
            numbers = np.where(here[numbers], numbers, -1)
            for team in sorted(set(self.team_of_number[numbers[numbers >= 0]].tolist())):
                of_team = (numbers >= 0) & (self.team_of_number[numbers] == team)
                placed = self._placed(team, key, group, int(group.ranks[of_team.argmax()]))
                fill_group(step, group, placed, np.where(of_team, numbers, -1))
        return step

    def loading(self, key: StepKey, number: int) -> Floats:
        """Return, (2, waits), from and until when a rank, by its number, waits for data, ns from its origin."""
        rank = int(self.rank_numbers[number])
        waits = self.reader.host(key, rank).loading(key)
        return (np.stack([waits.start_ns, waits.end_ns]) - self.reader.origin(key, rank)).astype(np.float64)

    def _places(self, team: int, key: StepKey, group: IdenticalRanks, rank: int) -> Ints:
        """Return the places of a group's operations in a team's program; a signature new to it is fitted into it."""
        program = self.programs[team]
        if group.signature not in program.places:
            program.fit(group.signature, self.reader.example(key, rank))
        return program.places[group.signature]

    def _placed(self, team: int, key: StepKey, group: IdenticalRanks, rank: int) -> PlacedOperations:
        """Return where a group's operations stand in a team's program, found once for each signature."""
        if (team, group.signature) not in self._placed_by_signature:
            places = self._places(team, key, group, rank)
            placed = place_operations(group.kind, group.row, places, self.operation_counts[team])
            self._placed_by_signature[team, group.signature] = placed
        return self._placed_by_signature[team, group.signature]

    def operations_of(self, key: StepKey, rank: int) -> tuple[KindCodes, Ints]:
        """Return one rank's operations in a step: their kinds, and their places in its team's program, -1 for none."""
        groups = self.reader.rank_groups(key, [rank], with_times=False)
        group = next(group for group in groups if rank in group.ranks)
        return group.kind, self._places(self.team_of[rank], key, group, rank)

    def places_of_collectives(self, key: StepKey) -> dict[int, Ints]:
        """Return by rank where in its team's program the collectives of its step are, in launch order; -1: nowhere."""
        places_of_rank: dict[int, Ints] = {}
        for group in self.reader.rank_groups(key, with_times=False):
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
        for group in self.reader.rank_groups(key, ranks, with_times=False):
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
        team_ranks = np.flatnonzero(self.team_of_number == team)
        chosen = np.zeros(len(self.team_of_number), np.bool_)
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
                ends_of_rank = step.end[row : row + self.operation_counts[team]] if row >= 0 else np.empty(0)
                ends.append(np.fmax.reduce(ends_of_rank, initial=np.nan))
            self._last_ends[key] = np.array(ends)
        return self._last_ends[key]

    def beginnings(self, key: StepKey) -> Floats:
        """Return, (ranks of the run,), when each rank's step marker begins, ns from its origin; NaN where unknown."""
        begins_ns = np.full(len(self.rank_numbers), np.nan)
        for rank, begin_ns in self.reader.beginnings(key).items():
            if rank in self.number_of:
                begins_ns[self.number_of[rank]] = begin_ns
        return begins_ns

    @cached_property
    def dependencies(self) -> dict[int, Dependencies]:
        """The dependencies of each team's program."""
        return {team: infer_rules(self, team, self.keys) for team in self.programs}

    @cached_property
    def matching(self) -> CollectiveMatching:
        """The members of each collective."""
        return match_collectives(self)

    @cached_property
    def schedule(self) -> Schedule:
        """The order in which operations and collectives are computed."""
        return schedule(self.programs, self.dependencies, self.matching)

    @property
    def understood(self) -> InferredModel:
        """Inferences from the whole run."""
        return InferredModel(self.team_of, self.programs, self.dependencies, self.matching, self.schedule)

    @property
    def bound(self) -> InferredModel | None:
        """The inferences with the other waits of hosts that the recording allows; None where it leaves no choice."""
        others = {team: rules.bound for team, rules in self.dependencies.items()}
        if all(rules is None for rules in others.values()):
            return None
        chosen = {team: others[team] or rules for team, rules in self.dependencies.items()}
        ordered = schedule(self.programs, chosen, self.matching)
        return self.understood._replace(dependencies=chosen, schedule=ordered)

    @property
    def unexplained_fraction(self) -> float:
        """Share of the step time in host gaps that vary on most ranks and that no wait explains, of all ranks."""
        ranks = sum(self.sizes.values())
        return sum(rules.unexplained * self.sizes[team] for team, rules in self.dependencies.items()) / max(ranks, 1)

    @cached_property
    def following_hosts(self) -> dict[tuple[int, TimePart], frozenset[int]]:
        """By team and part of the time of its hosts the ranks whose calls then follow ends of another team."""
        following: dict[tuple[int, TimePart], frozenset[int]] = {}
        for team, rules in self.dependencies.items():
            for place in rules.following_teams:
                part = TimePart.START if place <= self.job.first_kernel[team] else TimePart.CPU
                following[team, part] = frozenset(rank for rank, rank_team in self.team_of.items() if rank_team == team)
        return following

    def follows(self, team: int, part: TimePart) -> bool:
        """Return whether a team's hosts then wait for other ranks: it may be these that are late."""
        return (team, part) in self.following_hosts

    @property
    def has_hidden_communication(self) -> bool:
        """Whether several ranks run such graphs (`are_graphs_closed`), inside which they may wait for each other."""
        return len(self.team_of) > 1 and self.are_graphs_closed

    @cached_property
    def are_graphs_closed(self) -> bool:
        """Whether a step runs graphs that were recorded as a whole, and no collective: it may be inside them."""
        for team, program in self.programs.items():
            graphs = [place for place, op in enumerate(program.operations) if op.name.startswith(WHOLE_GRAPH)]
            with_team = [key for key in self.keys if self.ranks(key, team)] if graphs else []
            for key in (with_team[at] for at in spread_positions(len(with_team), THRESHOLDS.sampled_steps)):
                kinds, places = self.operations_of(key, self.ranks(key, team)[0])
                if np.isin(places, graphs).any() and not (kinds == COLLECTIVE).any():
                    return True
        return False

    @property
    def is_unexplained(self) -> bool:
        """Whether waits of hosts that no call records, and that no end explains, make every price doubtful."""
        return self.unexplained_fraction > THRESHOLDS.tolerance_share

    def operations_of_collective(self, number: int) -> list[str | None]:
        """Return what each operation of a collective is: as named, or `SEND_RECV` as its ends show, else None."""
        return [
            SEND_RECV if (team, place) in self.matching.exchanges else self.programs[team].operations[place].collective
            for team, place in self.matching.places(number)
        ]

    @cached_property
    def lone_ranks(self) -> frozenset[int]:
        """Ranks of which most collectives are with none but unrecorded ones: these wait for them, if any do."""
        arrays, ranks = self.collective_arrays, len(self.rank_numbers)
        is_lone = (np.bincount(arrays.group, minlength=len(arrays.first_absent) - 1) == 1) & (
            np.diff(arrays.first_absent) > 0
        )
        attended = np.bincount(arrays.rank, minlength=ranks)
        alone = np.bincount(arrays.rank, is_lone[arrays.group], minlength=ranks)
        is_mostly = (attended > 0) & (alone >= THRESHOLDS.main_share * attended)
        return frozenset(self.rank_numbers[is_mostly].tolist())

    @property
    def misses_partners(self) -> bool:
        """Whether so many exchanges name no partners that the replay does not tell what a late rank costs."""
        return self.matching.unpaired > THRESHOLDS.min_clear_share * len(self.collective_arrays.rank)

    @cached_property
    def job(self) -> JobArrays:
        """All programs and dependencies as flat arrays."""
        return job_arrays([self.sizes[team] for team in sorted(self.programs)], self.programs, self.dependencies)

    @property
    def collective_arrays(self) -> CollectiveArrays:
        """All collectives as flat arrays."""
        return self.matching.arrays

    def ranks_of_group(self, group: int) -> tuple[int, ...]:
        """Return the ranks of a group, of all groups of all collectives, ascending."""
        arrays = self.collective_arrays
        return tuple(sorted(self.rank_numbers[arrays.rank[arrays.arrivals(group)]].tolist()))

    @cached_property
    def ring_arrivals(self) -> RingArrivals:
        """Arrivals of neighbours that ranks wait for in exchanges in a ring."""
        return list_ring_arrivals(self.collective_arrays)

    @cached_property
    def has_consecutive_steps(self) -> bool:
        """Whether any step follows another: else nothing is known of what precedes a step but its marker."""
        keys = set(self.keys)
        return any(StepKey(key.epoch, key.step - 1) in keys for key in keys)

    def prepare(self) -> None:
        """Infer everything now, so that several threads may use it."""
        for inference in (*InferredModel._fields, "job", "ring_arrivals", "remembered"):
            getattr(self, inference)

    @cached_property
    def remembered(self) -> int:
        """Number of earlier steps that can delay a step: the one before, and as many as the launch queue holds."""
        held = [
            -(-rules.queue // max(1, sum(op.kind < SYNC for op in self.programs[team].operations)))
            for team, rules in self.dependencies.items()
            if rules.queue is not None
        ]
        return 1 + max(held, default=0)


def match_collectives(run: RunModel) -> CollectiveMatching:
    """Return the members of each collective of a run."""
    attended = meet_hosts(run, list_attended(run))
    if find_unnamed_peers(run.programs, run.team_of, attended):
        attended = tell_rings(run.programs, run.team_of, attended, _compared_steps(run))
    if all(
        group is not None for attendances in attended.values() for _, group in attendances
    ) and not find_unnamed_peers(run.programs, run.team_of, attended):
        return match(run.programs, run.team_of, attended)
    groups = infer_attended(run.programs, run.team_of, attended, _compared_steps(run))
    inferred = tell_unstated_rings(run.programs, attended, groups.attended, run.team_of, _compared_steps(run))
    matched = match(run.programs, run.team_of, inferred, groups.alone)
    return replace(matched, inferred=inferred != attended, exchanges=groups.exchanges)


_HOSTS: Final = "hosts"
"""Name of a group whose hosts meet: its GPUs may be a group, too."""


def meet_hosts(run: RunModel, attended: Attended) -> Attended:
    """Give barriers of hosts, of which no recording states the group, the ranks that leave them together.

    All ranks, where times do not tell. A barrier that a rank leaves alone is left out: it waits for none of the others.
    """
    barriers = {
        rank: [(place, group) for place, group in of_rank if program.kinds[place] == HOST_BARRIER]
        for rank, of_rank in attended.items()
        for program in [run.programs[run.team_of[rank]]]
    }
    everyone = tuple(sorted(rank for rank, of_rank in barriers.items() if of_rank))
    if not everyone:
        return attended
    inferred = infer_attended(run.programs, run.team_of, barriers, _compared_steps(run))
    group_at = {
        (rank, place): Group(everyone if group is None else group.ranks, _HOSTS)
        for rank, of_rank in inferred.attended.items()
        for place, group in of_rank
    }
    return {
        rank: [
            (place, group_at.get((rank, place), group))
            for place, group in of_rank
            if (rank, place) not in inferred.alone
        ]
        for rank, of_rank in attended.items()
    }


def list_attended(run: RunModel) -> Attended:
    """Return each rank's collectives, (place, group), in the order of its program.

    All collectives of the rank's first whole step count. Others, such as those of an evaluation step, count if all
    members of their group have the same number of them: else their order does not tell which of them meet. A rank
    without a whole step is taken to attend those of its team; of one that states no group, see `take_stated`.
    """
    first: dict[int, dict[int, Group | None]] = {}
    every: dict[int, dict[int, Group | None]] = {}
    in_cut_steps: dict[int, dict[int, Group | None]] = {rank: {} for rank in run.team_of}
    for key in run.keys:
        new = run.survey.new.get(key)
        if new is None:
            if all(member.cut or member.rank in every for member in run.reader.members(key)):
                continue
            group_of = groups_of_ranks(run.reader, key)
            new = [(member, group_of[member.rank].signature) for member in run.reader.members(key)]
            for group in group_of.values():
                run.survey.note_collectives(group)
        groups = None
        for member, signature in new:
            seen = in_cut_steps if member.cut else every
            seen_places = seen.get(member.rank)
            program = run.programs[run.team_of[member.rank]]
            if signature not in program.places:
                program.fit(signature, run.reader.example(key, member.rank))
            operations, rows = run.survey.collective_rows[signature]
            places = program.places[signature][operations].tolist()
            if seen_places is not None and seen_places.keys() >= {place for place in places if place >= 0}:
                continue
            groups = run.reader.groups(key) if groups is None else groups
            of_rank = groups[member.rank]
            attended = {at: of_rank.get(row) for at, row in zip(places, rows.tolist(), strict=True) if at >= 0}
            seen[member.rank] = attended | (seen_places or {})
            if not member.cut:
                first.setdefault(member.rank, attended)
    for rank in run.team_of.keys() - first.keys():
        peer = min((candidate for candidate in first if run.team_of[candidate] == run.team_of[rank]), default=None)
        of_peer = {} if peer is None else first[peer]
        first[rank] = every[rank] = complete_attended(rank, in_cut_steps[rank], of_peer)
    return take_stated(join_attended(first, every, run.team_of), run.team_of)


def _compared_steps(run: RunModel) -> Iterator[dict[int, TeamEnds]]:
    """Yield each team's part of some evenly spaced steps."""
    keys = list(run.keys)
    compared = [keys[at] for at in spread_positions(len(keys), THRESHOLDS.sampled_steps)]
    for step in map_ahead(run.step_times, compared, run.ahead):
        parts = ((team, of_team(step, run.rank_numbers, team, size)) for team, size in run.operation_counts.items())
        yield {team: (times.ranks, times.start, times.end) for team, times in parts}
