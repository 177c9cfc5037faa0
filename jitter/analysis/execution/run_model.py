"""Model of the run: each team's program, dependencies, collective members; and the recorded steps."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.alignment.kernel_index import RankSequence
from jitter.analysis.alignment.program import Example, Program, Signature, lay_out
from jitter.analysis.alignment.teams import teams
from jitter.analysis.collectives.group_inference import TeamEnds, find_peerless, infer_attended
from jitter.analysis.collectives.matching import (
    Attended,
    CollectiveArrays,
    CollectiveMatching,
    Group,
    RingArrivals,
    complete_attended,
    flatten_collectives,
    join_attended,
    list_ring_arrivals,
    match,
)
from jitter.analysis.collectives.rings import tell_rings, tell_unstated_rings
from jitter.analysis.execution.dependencies import Dependencies, infer
from jitter.analysis.execution.host_waits import find_host_waits
from jitter.analysis.execution.job_arrays import JobArrays, job_arrays
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.sampled_steps import SampledSteps, threads_of
from jitter.analysis.execution.schedule import Schedule, schedule
from jitter.analysis.execution.step_times import (
    IdenticalRanks,
    StepTimes,
    TeamTimes,
    empty_step,
    fill_group,
    of_team,
)
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COLLECTIVE, SYNC
from jitter.core.numeric.arrays import Bools, Floats, Ints, KindCodes, spread_positions
from jitter.core.parallel.prefetch import MOST_ROWS, map_ahead
from jitter.core.parallel.processes import cpu_count
from jitter.core.step_key import StepKey

_LIMITS: Final = THRESHOLDS.dependencies


_WAIT_LIMITS: Final = THRESHOLDS.host_waits
_SMALL_STEP: Final = 4_000
"""Activities of a step of all ranks up to which handing it to another thread takes longer than to compute it."""
_MOST_AHEAD: Final = 8


def middle_of_longest_stretch(keys: Sequence[StepKey], most: int) -> tuple[int, int]:
    """Return the range of positions of at most so many consecutive steps, from the middle of the longest stretch."""
    breaks = [at for at in range(1, len(keys)) if keys[at] != StepKey(keys[at - 1].epoch, keys[at - 1].step + 1)]
    stretches = zip([0, *breaks], [*breaks, len(keys)], strict=True)
    begin, end = max(stretches, key=lambda stretch: stretch[1] - stretch[0])
    first = begin + max(0, (end - begin - most) // 2)
    return first, min(end, first + most)


class InferredModel(NamedTuple):
    """Inferences from the whole run, each from those before it and the recorded steps."""

    team_of: dict[int, int]
    programs: dict[int, Program]
    dependencies: dict[int, Dependencies]
    matching: CollectiveMatching
    schedule: Schedule


class RunModel:
    """The inferences from the whole run. Rows are read step by step, of a large run at each pass over the steps."""

    def __init__(self, reader: RunReader, understood: InferredModel | None = None) -> None:
        """Infer from the rows that `reader` reads; `understood` is what another process inferred from the same run."""
        self._reader = reader
        self.threads = cpu_count()
        if understood is not None:
            self.__dict__.update(understood._asdict())  # in place of what would be inferred
        self._known_members: dict[StepKey, Sequence[RankSequence]] = {}

    @property
    def ahead(self) -> int:
        """How many steps are read on threads while one is used; 0 of tiny steps, of large ones, and on one thread."""
        of_step = self._reader.rows // max(1, len(self.keys))
        if of_step < _SMALL_STEP or self.threads < 2:
            return 0
        return min(self.threads, _MOST_AHEAD, MOST_ROWS // of_step)

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

    @property
    def misses_partners(self) -> bool:
        """Whether so many exchanges name no partners that the replay does not tell what a late rank costs."""
        return self.matching.unpaired > THRESHOLDS.stages.max_unpaired_share * len(self.collective_arrays.rank)

    @property
    def keys(self) -> Sequence[StepKey]:
        """The steps, in order."""
        return self._reader.steps

    @cached_property
    def sizes(self) -> Counter[int]:
        """How many ranks each team has."""
        return Counter(self.team_of.values())

    def _members(self, key: StepKey) -> Sequence[RankSequence]:
        if key not in self._known_members:
            self._known_members[key] = self._reader.members(key)
        return self._known_members[key]

    @cached_property
    def team_of(self) -> dict[int, int]:
        """The team of each rank."""
        survey = self._survey
        indices = (index for key in self._reader.steps for index in self._reader.indices(key))
        cohort_of = {member.rank: index.cohort for index in indices for member in index.members}
        usual = {rank: counts.most_common(1)[0][0] for rank, counts in survey.by_rank.items()}
        cut = frozenset(rank for rank, counts in survey.by_rank.items() if not counts.total())
        return teams(usual, cohort_of, survey.kinds, self._content, cut)

    @cached_property
    def _survey(self) -> "_Survey":
        """What the ranks ran in the surveyed steps."""
        survey = _Survey()
        for key, group_of in map_ahead(lambda key: (key, self._group_of_rank(key)), self._surveyed(), self.ahead):
            for member in self._members(key):
                survey.add(key, member, group_of[member.rank])
        return survey

    def _group_of_rank(self, key: StepKey) -> dict[int, IdenticalRanks]:
        return {rank: group for group in self._reader.rank_groups(key) for rank in group.ranks.tolist()}

    def _surveyed(self) -> list[StepKey]:
        """Return all steps of a short run; of a long run, evenly spaced ones and those with a new sequence or rank."""
        keys = list(self._reader.steps)
        if self._reader.rows <= _LIMITS.surveyed_rows:
            return keys
        chosen = {keys[at] for at in spread_positions(len(keys), THRESHOLDS.few_steps)}
        seen = {(m.sequence, m.rank) for key in chosen for m in self._members(key)}
        ranks, sequences = {rank for _, rank in seen}, {sequence for sequence, _ in seen}
        for key in keys:
            new = [m for m in self._members(key) if m.rank not in ranks or m.sequence not in sequences]
            if new:
                chosen.add(key)
                ranks.update(m.rank for m in self._members(key))
                sequences.update(m.sequence for m in self._members(key))
        return sorted(chosen, key=lambda key: key.order)

    @cached_property
    def programs(self) -> dict[int, Program]:
        """The program of each team."""
        counts: dict[int, Counter[Signature]] = defaultdict(Counter)
        for rank, signatures in self._survey.by_rank.items():
            counts[self.team_of[rank]].update(signatures)
        sizes = {signature: len(kinds) for signature, kinds in self._survey.kinds.items()}
        return {
            team: lay_out(signature_counts, self._content, sizes) for team, signature_counts in sorted(counts.items())
        }

    def _content(self, signature: Signature) -> Example:
        return self._reader.example(*self._survey.examples[signature])

    def collective_places(self, team: int) -> Ints:
        """Return the places of the collectives in a team's program."""
        return np.array([at for at, op in enumerate(self.programs[team].operations) if op.kind == COLLECTIVE], np.int64)

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
    def job(self) -> JobArrays:
        """All programs and dependencies as flat arrays."""
        return job_arrays([self.sizes[team] for team in sorted(self.programs)], self.programs, self.dependencies)

    @cached_property
    def collective_arrays(self) -> CollectiveArrays:
        """All collectives as flat arrays."""
        return flatten_collectives(self.matching, self._operations, self.number_of)

    @cached_property
    def ring_arrivals(self) -> RingArrivals:
        """Arrivals of neighbours that ranks wait for in exchanges in a ring."""
        return list_ring_arrivals(self.collective_arrays)

    @cached_property
    def _operations(self) -> dict[int, int]:
        return {team: len(program.operations) for team, program in self.programs.items()}

    def team_times(self, key: StepKey, team: int) -> TeamTimes:
        """Return one team's step, (operations, ranks), along its program."""
        step = self.step_times(key, self._teams == team)
        return of_team(step, self.rank_numbers, team, self._operations[team])

    def rank_times(self, key: StepKey, rank: int) -> TeamTimes:
        """Return one rank's step, (operations, 1)."""
        team = self.team_of[rank]
        only = self.step_times(key, self.rank_numbers == rank)
        return of_team(only, self.rank_numbers, team, self._operations[team])

    def step_times(self, key: StepKey, wanted: Bools | None = None) -> StepTimes:
        """Return a step of all ranks, or of those in the mask `wanted`, (ranks of the run,)."""
        here = np.zeros(len(self.rank_numbers), np.bool_)
        here[[self.number_of[member.rank] for member in self._members(key)]] = True
        if wanted is not None:
            here &= wanted
        operations = np.array([size for _, size in sorted(self._operations.items())], np.int64)
        step = empty_step(self._teams, operations[self._teams], here)
        number_of = np.full(int(self.rank_numbers.max(initial=-1)) + 2, -1, np.int64)
        number_of[self.rank_numbers[here]] = np.flatnonzero(here)
        for group in self._reader.rank_groups(key):
            numbers = np.where(group.ranks < len(number_of), number_of[np.minimum(group.ranks, len(number_of) - 1)], -1)
            for team in np.unique(self._teams[numbers[numbers >= 0]]).tolist():
                mine = (numbers >= 0) & (self._teams[numbers] == team)
                places = self._places(team, key, group, int(group.ranks[mine.argmax()]))
                fill_group(step, group, places, self._operations[team], np.where(mine, numbers, -1))
        return step

    def _places(self, team: int, key: StepKey, group: IdenticalRanks, rank: int) -> Ints:
        """Return the places of a group's operations in a team's program; a signature new to it is fitted into it."""
        program = self.programs[team]
        if group.signature not in program.places:
            program.fit(group.signature, self._reader.example(key, rank))
        return program.places[group.signature]

    def operations_of(self, key: StepKey, rank: int) -> tuple[KindCodes, Ints]:
        """Return one rank's operations in a step: their kinds, and their places in its team's program, -1 for none."""
        group = self._group_of_rank(key)[rank]
        return group.kind, self._places(self.team_of[rank], key, group, rank)

    def file_rows(self, key: StepKey, team: int, ranks: Sequence[int]) -> Ints:
        """Return, (operations, ranks), the rows of one team's step in the files of these ranks, -1 for none."""
        rows = np.full((self._operations[team], len(ranks)), -1, np.int64)
        column_of = {rank: column for column, rank in enumerate(ranks)}
        for group in self._reader.rank_groups(key):
            columns = np.array([column_of[rank] for rank in group.ranks.tolist() if rank in column_of], np.int64)
            if len(columns):
                places = self._places(team, key, group, ranks[int(columns[0])])
                rows[np.ix_(places[places >= 0], columns)] = group.row[places >= 0, None]
        return rows

    def ranks(self, key: StepKey, team: int) -> list[int]:
        """Return a team's ranks that have a step."""
        return [m.rank for m in self._members(key) if self.team_of[m.rank] == team]

    @cached_property
    def dependencies(self) -> dict[int, Dependencies]:
        """The dependencies of each team's program."""
        return {team: self.infer_rules(team, self._reader.steps) for team in self.programs}

    def infer_rules(self, team: int, steps: Sequence[StepKey]) -> Dependencies:
        """Infer the dependencies of a team's program from these steps alone."""
        program = self.programs[team]
        sizes = {key: size for key in steps if (size := len(self.ranks(key, team)))}
        having, wanted = list(sizes), max(2, _LIMITS.sampled_cells // max(sizes.values()))
        sampled = {having[at] for at in spread_positions(len(having), wanted)}
        tried = having[:: -(-len(having) // THRESHOLDS.tried_steps)]
        thread = threads_of(program, (self.team_times(key, team) for key in tried))
        chosen = self._spread_ranks(
            team, max(1, THRESHOLDS.max_cells // max(1, len(sampled) * len(program.operations)))
        )
        cells, there = SampledSteps(program, thread, len(chosen)), set(self._reader.steps)
        for key in sorted(sampled, key=lambda k: k.order):
            before = StepKey(key.epoch, key.step - 1)
            if before in there and before not in sampled:
                cells.follow(before, self.step_times(before, chosen))
            cells.add(key, self.step_times(key, chosen))
        rules = infer(program, thread, *cells.sample())
        return self._with_host_waits(team, rules, having) if rules.has_launches else rules

    def _with_host_waits(self, team: int, rules: Dependencies, having: Sequence[StepKey]) -> Dependencies:
        """Add the waits of hosts that no call records, from consecutive ones of the steps that the team has."""
        program = self.programs[team]
        chosen = self._spread_ranks(team, THRESHOLDS.sampled_ranks)
        cells = int(chosen.sum()) * max(1, len(program.operations))
        most = min(_WAIT_LIMITS.max_steps, max(THRESHOLDS.few_steps, _WAIT_LIMITS.sampled_cells // cells))
        ordered = sorted(having, key=lambda key: key.order)
        keys = ordered[slice(*middle_of_longest_stretch(ordered, most))]
        steps = map_ahead(lambda key: (key, self.step_times(key, chosen)), keys, self.ahead)
        sampled = SampledSteps(program, rules.thread, len(chosen))
        known_calls = frozenset(wait.op_index for wait in rules.waits if wait.kind == "sync")
        host_waits = find_host_waits(program, known_calls, sampled.sample_hosts(steps, _WAIT_LIMITS.steps_back))
        return replace(
            rules,
            waits=(*rules.waits, *host_waits.waits),
            host_lead_ns=host_waits.lead_ns,
            bound_waits=host_waits.bound_waits,
            bound_lead_ns=host_waits.bound_lead_ns,
            unexplained=host_waits.unexplained,
        )

    def _spread_ranks(self, team: int, most: int) -> Bools:
        """Return the mask, (ranks of the run,), of at most so many of a team's ranks, evenly spread."""
        team_ranks = np.flatnonzero(self._teams == team)
        chosen = np.zeros(len(self._teams), np.bool_)
        chosen[team_ranks[spread_positions(len(team_ranks), most)]] = True
        return chosen

    @cached_property
    def matching(self) -> CollectiveMatching:
        """The members of each collective."""
        attended = self._attended()
        if find_peerless(self.programs, self.team_of, attended):
            attended = tell_rings(self.programs, self.team_of, attended, self._compared_steps())
        if all(
            group is not None for attendances in attended.values() for _, group in attendances
        ) and not find_peerless(self.programs, self.team_of, attended):
            return match(self.programs, self.team_of, attended)
        inferred, alone = infer_attended(self.programs, self.team_of, attended, self._compared_steps())
        inferred = tell_unstated_rings(self.programs, attended, inferred, self.team_of, self._compared_steps())
        matched = match(self.programs, self.team_of, inferred, alone)
        return replace(matched, inferred=inferred != attended)

    def _attended(self) -> Attended:
        """Return each rank's collectives, (place, group), in the order of its program.

        All collectives of the rank's first whole step count. Others, such as those of an evaluation step, count if all
        members of their group have the same number of them: else their order does not tell which of them meet. A rank
        without a whole step is taken to attend those of its team.
        """
        first: dict[int, dict[int, Group | None]] = {}
        every: dict[int, dict[int, Group | None]] = {}
        in_cut_steps: dict[int, dict[int, Group | None]] = {rank: {} for rank in self.team_of}
        for key in self._reader.steps:
            new = self._survey.new.get(key)
            if new is None:
                if all(member.cut or member.rank in every for member in self._members(key)):
                    continue
                group_of = self._group_of_rank(key)
                new = [(member, group_of[member.rank].signature) for member in self._members(key)]
                for group in group_of.values():
                    self._survey.collective_rows.setdefault(group.signature, _collective_rows(group))
            groups = None
            for member, signature in new:
                seen = in_cut_steps if member.cut else every
                seen_places = seen.get(member.rank)
                program = self.programs[self.team_of[member.rank]]
                if signature not in program.places:
                    program.fit(signature, self._reader.example(key, member.rank))
                operations, rows = self._survey.collective_rows[signature]
                places = program.places[signature][operations].tolist()
                if seen_places is not None and seen_places.keys() >= {place for place in places if place >= 0}:
                    continue
                groups = self._reader.groups(key) if groups is None else groups
                of_rank = groups[member.rank]
                attended = {at: of_rank.get(row) for at, row in zip(places, rows.tolist(), strict=True) if at >= 0}
                seen[member.rank] = attended | (seen_places or {})
                if not member.cut:
                    first.setdefault(member.rank, attended)
        for rank in self.team_of.keys() - first.keys():
            peer = min(
                (candidate for candidate in first if self.team_of[candidate] == self.team_of[rank]), default=None
            )
            of_peer = {} if peer is None else first[peer]
            first[rank] = every[rank] = complete_attended(rank, in_cut_steps[rank], of_peer)
        return join_attended(first, every, self.team_of)

    def _compared_steps(self) -> Iterator[dict[int, TeamEnds]]:
        """Yield each team's part of some evenly spaced steps."""
        keys = list(self._reader.steps)
        compared = [keys[at] for at in spread_positions(len(keys), THRESHOLDS.group_inference.compared_steps)]
        for step in map_ahead(self.step_times, compared, self.ahead):
            teams = {
                team: of_team(step, self.rank_numbers, team, operations)
                for team, operations in self._operations.items()
            }
            yield {team: (times.ranks, times.start, times.end) for team, times in teams.items()}

    @cached_property
    def has_consecutive_steps(self) -> bool:
        """Whether any step follows another: else nothing is known of what precedes a step but its marker."""
        keys = set(self.keys)
        return any(StepKey(key.epoch, key.step - 1) in keys for key in keys)

    def beginnings(self, key: StepKey) -> Floats:
        """Return, (ranks of the run,), when each rank's step marker begins, ns from its origin; NaN where unknown."""
        begins_ns = np.full(len(self.rank_numbers), np.nan)
        for rank, begin_ns in self._reader.beginnings(key).items():
            if rank in self.number_of:
                begins_ns[self.number_of[rank]] = begin_ns
        return begins_ns

    @cached_property
    def schedule(self) -> Schedule:
        """The order in which operations and collectives are computed."""
        return schedule(self.programs, self.dependencies, self.matching)

    def prepare(self) -> None:
        """Infer everything now, so that several threads may use it."""
        for inference in (*InferredModel._fields, "job", "collective_arrays", "ring_arrivals", "remembered"):
            getattr(self, inference)

    @cached_property
    def remembered(self) -> int:
        """Number of earlier steps that can delay a step: the one before, and as many as the launch queue holds."""
        held = [
            -(-rules.queue // max(1, sum(op.kind != SYNC for op in self.programs[team].operations)))
            for team, rules in self.dependencies.items()
            if rules.queue is not None
        ]
        return 1 + max(held, default=0)


def _collective_rows(group: IdenticalRanks) -> tuple[Ints, Ints]:
    """Return, (collectives,) each, which of a group's operations are collectives, and their rows in the files."""
    operations = np.flatnonzero(group.kind == COLLECTIVE)
    return operations, group.row[operations]


class _Survey:
    def __init__(self) -> None:
        self.by_rank: dict[int, Counter[Signature]] = defaultdict(Counter)
        self.examples: dict[Signature, tuple[StepKey, int]] = {}
        self.kinds: dict[Signature, KindCodes] = {}
        self.collective_rows: dict[Signature, tuple[Ints, Ints]] = {}
        """By signature which operations are collectives, and their rows in the files."""
        self.new: dict[StepKey, list[tuple[RankSequence, Signature]]] = {}
        """By surveyed step the ranks that ran in no earlier surveyed one, complete or cut alike, the same."""
        self._seen: set[tuple[int, bool, Signature]] = set()

    def add(self, key: StepKey, member: RankSequence, group: IdenticalRanks) -> None:
        signature = group.signature
        # what a cut recording shows belongs to the program too, after all uncut ones
        self.by_rank[member.rank][signature] += 0 if member.cut else 1
        self.examples.setdefault(signature, (key, member.rank))
        self.kinds.setdefault(signature, group.kind)
        if signature not in self.collective_rows:
            self.collective_rows[signature] = _collective_rows(group)
        new = self.new.setdefault(key, [])
        if (member.rank, member.cut, signature) not in self._seen:
            self._seen.add((member.rank, member.cut, signature))
            new.append((member, signature))
