"""The run as operations: each team's program, its rules, who meets whom; and its steps, one after another."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from jitter.analysis.execution.carried_state import Tails
from jitter.analysis.execution.collectives import Group, Meetings, match
from jitter.analysis.execution.dependencies import infer
from jitter.analysis.execution.program import Example, Program, lay_out
from jitter.analysis.execution.rank_groups import Sheet, Signature
from jitter.analysis.execution.ready_times import readiness, threads_of
from jitter.analysis.execution.rules import Rules
from jitter.analysis.execution.sampling import Followed, sample
from jitter.analysis.execution.schedule import Schedule, schedule
from jitter.analysis.execution.step_model import ObservedStep, TeamStep
from jitter.analysis.execution.step_times import Recorded, StepArrays
from jitter.analysis.execution.synchronisation import not_together
from jitter.analysis.execution.team_times import Laid, rows
from jitter.analysis.execution.teams import teams
from jitter.core.arrays import Ints, KindCodes
from jitter.core.kernels import COLLECTIVE, SYNC
from jitter.core.prefetch import prefetch
from jitter.core.step_key import StepKey

_SAMPLED_CELLS = 512
"""Cells of a team from which the rules are inferred."""


_SURVEYED_ROWS = 5_000_000
_SURVEYED_STEPS = 6
_STEPS_OF_THREADS = 3
"""Steps in which threads are seen to take turns, or not."""
_TRIED_STEPS = 4
"""Steps in which collectives without a recorded group are tried for being left together."""


class Member(NamedTuple):
    """One rank in one step that counts (uncut, or cut after the step's last collective)."""

    rank: int
    cohort: int
    sequence: str
    cut: bool


@dataclass(frozen=True)
class Source:
    """Where the run's rows come from."""

    steps: Sequence[StepKey]
    members: Callable[[StepKey], Sequence[Member]]
    sheets: Callable[[StepKey], Sequence[Sheet]]
    """A step's."""
    example: Callable[[StepKey, int], Example]
    """What a rank did in a step."""
    groups: Callable[[StepKey], Mapping[int, Mapping[int, Group]]]
    """Rank to row in the step (ordinal) to the group of the collective there."""
    rows: int
    """Activities in all."""


class Understood(NamedTuple):
    """What is inferred from the whole run: who compares with whom, what they do, what waits for what, who meets."""

    team_of: dict[int, int]
    programs: dict[int, Program]
    rules: dict[int, Rules]
    meetings: Meetings
    schedule: Schedule


class Observed:
    """The whole run; rows are read step by step, as often as the steps are gone through."""

    def __init__(self, source: Source, understood: Understood | None = None) -> None:
        """`understood`, if another has inferred it from the same run already."""
        self._source = source
        if understood is not None:
            self.__dict__.update(understood._asdict())  # in place of what would be inferred
        self._known_members: dict[StepKey, Sequence[Member]] = {}

    @property
    def understood(self) -> Understood:
        """What is inferred from the whole run."""
        return Understood(self.team_of, self.programs, self.rules, self.meetings, self.schedule)

    @property
    def keys(self) -> Sequence[StepKey]:
        """The steps, in order."""
        return self._source.steps

    @cached_property
    def sizes(self) -> Counter[int]:
        """How many ranks each team has."""
        return Counter(self.team_of.values())

    def _members(self, key: StepKey) -> Sequence[Member]:
        if key not in self._known_members:
            self._known_members[key] = self._source.members(key)
        return self._known_members[key]

    @cached_property
    def team_of(self) -> dict[int, int]:
        """Each rank's team."""
        survey = self._survey
        cohort_of = {m.rank: m.cohort for key in self._source.steps for m in self._members(key)}
        usual = {rank: counts.most_common(1)[0][0] for rank, counts in survey.by_rank.items()}
        return teams(usual, cohort_of, survey.kinds)

    @cached_property
    def _survey(self) -> "_Survey":
        """A first look at what ranks did: in every step of a short run, of a long one in steps that show all of it."""
        survey = _Survey()
        for key in self._surveyed():
            signatures = {rank: sheet for sheet in self._source.sheets(key) for rank in sheet.ranks.tolist()}
            for member in self._members(key):
                survey.add(key, member, signatures[member.rank])
        return survey

    def _surveyed(self) -> list[StepKey]:
        """All steps if they can be kept; else some at even distances, and one for each sequence and rank besides."""
        keys = list(self._source.steps)
        if self._source.rows <= _SURVEYED_ROWS:
            return keys
        chosen = {keys[int(at)] for at in np.linspace(0, len(keys) - 1, _SURVEYED_STEPS)}
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
        """Each team's."""
        counts: dict[int, Counter[Signature]] = defaultdict(Counter)
        for rank, own in self._survey.by_rank.items():
            counts[self.team_of[rank]].update(own)
        return {team: lay_out(found, self._content) for team, found in sorted(counts.items())}

    def _content(self, signature: Signature) -> Example:
        return self._source.example(*self._survey.examples[signature])

    def collective_places(self, team: int) -> Ints:
        """Where a team's program has collectives."""
        return np.array([at for at, op in enumerate(self.programs[team].operations) if op.kind == COLLECTIVE], np.int64)

    def placed(self, key: StepKey, team: int) -> StepArrays:
        """One team's step, laid out along its program."""
        return self._laid(key, team).whole

    def _laid(self, key: StepKey, team: int) -> Laid:
        return Laid(self.programs[team], self.ranks(key, team), self._fitting(key, team))

    def of_rank(self, key: StepKey, rank: int) -> Recorded:
        """One rank's step, (operations, 1)."""
        team = self.team_of[rank]
        return self._laid(key, team).recorded.columns(np.array([self.ranks(key, team).index(rank)]))

    def rows(self, key: StepKey, team: int, ranks: Sequence[int]) -> Ints:
        """(operations, ranks): the rows of one team's step in the files of these ranks, -1 where there is none."""
        return rows(self.programs[team], ranks, self._fitting(key, team))

    def ranks(self, key: StepKey, team: int) -> list[int]:
        """A team's ranks that have a step."""
        return [m.rank for m in self._members(key) if self.team_of[m.rank] == team]

    def _fitting(self, key: StepKey, team: int) -> list[Sheet]:
        """A step's sheets with ranks of the team; what the survey did not see is fitted into its program."""
        wanted, program = set(self.ranks(key, team)), self.programs[team]
        found = [sheet for sheet in self._source.sheets(key) if wanted & set(sheet.ranks.tolist())]
        for sheet in found:
            if sheet.signature not in program.places:
                rank = next(rank for rank in sheet.ranks.tolist() if rank in wanted)
                program.fit(sheet.signature, self._source.example(key, rank))
        return found

    @cached_property
    def rules(self) -> dict[int, Rules]:
        """Each team's."""
        return {team: self.infer_rules(team, self._source.steps) for team in self.programs}

    def infer_rules(self, team: int, steps: Sequence[StepKey]) -> Rules:
        """Infer what waits for what from these steps alone."""
        program = self.programs[team]
        sizes = {key: size for key in steps if (size := len(self.ranks(key, team)))}
        having, wanted = list(sizes), max(2, _SAMPLED_CELLS // max(sizes.values()))
        sampled = {having[i] for i in np.linspace(0, len(having) - 1, min(wanted, len(having))).astype(int)}
        tried = having[:: -(-len(having) // _STEPS_OF_THREADS)]
        thread = threads_of(program, (self.placed(key, team) for key in tried))
        parts = list(self._followed(team, sorted(sampled, key=lambda k: k.order), thread))
        return infer(program, thread, sample(program, parts))

    def _followed(self, team: int, steps: Sequence[StepKey], thread: Ints) -> Iterator[Followed]:
        """Each step with what held its operations back; the step before it is read for that where it is there."""
        program = self.programs[team]
        tails = Tails(program, thread, None)
        there = set(self._source.steps)
        last: StepKey | None = None
        for key in steps:
            before = StepKey(key.epoch, key.step - 1)
            if before in there and before != last:
                placed = self.placed(before, team)
                tails.follow(before, placed)
            placed = self.placed(key, team)
            tail, _ = tails.before(key, placed.ranks)
            ready = readiness(program, thread, placed, tail)
            tails.follow(key, placed)
            last = key
            yield Followed(key, placed, ready, tail)

    @cached_property
    def meetings(self) -> Meetings:
        """Who meets whom."""
        attended: dict[int, list[tuple[int, Group]]] = {}
        for key in self._source.steps:
            missing = [m for m in self._members(key) if m.rank not in attended and not m.cut]
            if not missing:
                continue
            groups = self._source.groups(key)
            sheets = {rank: sheet for sheet in self._source.sheets(key) for rank in sheet.ranks.tolist()}
            for member in missing:
                program, sheet = self.programs[self.team_of[member.rank]], sheets[member.rank]
                place = program.places[sheet.signature]
                at = np.flatnonzero((sheet.kind == COLLECTIVE) & (place >= 0))
                attended[member.rank] = [
                    (int(place[i]), groups[member.rank].get(int(sheet.row[i]))) for i in at.tolist()
                ]
        found = match(self.programs, self.team_of, attended)
        if not found.unrecorded:
            return found
        recorded = {
            (self.team_of[rank], place) for rank, seen in attended.items() for place, group in seen if group is not None
        }
        apart = self._apart(found) - recorded
        return match(self.programs, self.team_of, attended, apart) if apart else found

    def _apart(self, meetings: Meetings) -> frozenset[tuple[int, int]]:
        """(team, place) of collectives that their supposed members do not leave together."""
        steps = self._source.steps[:: max(1, len(self._source.steps) // _TRIED_STEPS)]
        counts: Counter[tuple[int, int]] = Counter()
        for key in steps:
            counts.update(not_together(meetings, {team: self._laid(key, team).recorded for team in self.programs}))
        return frozenset(which for which, count in counts.items() if 2 * count > len(steps))

    @cached_property
    def schedule(self) -> Schedule:
        """In which order to compute."""
        return schedule(self.programs, self.rules, self.meetings)

    def steps(self, first: int = 0, last: int | None = None) -> Iterator[ObservedStep]:
        """Go through the run, or through its steps from `first` up to but not including `last`."""
        tails = self.tails()
        for number, key, laid_teams in self.laid(first, last):
            found = {}
            for team, laid in laid_teams.items():
                tail, joined = tails[team].before(key, laid.ranks)
                tails[team].follow(key, laid.recorded)
                found[team] = TeamStep(self.programs[team], self.rules[team], laid.recorded, tail, joined)
            if number >= first:
                yield ObservedStep(key, found)

    def tails(self) -> dict[int, Tails]:
        """Each team's, for who goes through its steps."""
        return {
            team: Tails(program, self.rules[team].thread, self.rules[team].queue)
            for team, program in self.programs.items()
        }

    def laid(self, first: int = 0, last: int | None = None) -> Iterator[tuple[int, StepKey, dict[int, Laid]]]:
        """Read the steps from `first` up to but not including `last`, and before them those that may hold them up.

        Gives each one's number in the run, and its teams.
        """
        begin = max(0, first - self._remembered)

        def read() -> Iterator[tuple[StepKey, dict[int, Laid]]]:
            for key in self._source.steps[begin:last]:
                there = {self.team_of[member.rank] for member in self._members(key)}
                yield key, {team: self._laid(key, team) for team in self.programs if team in there}

        for number, (key, laid_teams) in enumerate(prefetch(read()), begin):
            yield number, key, laid_teams

    @property
    def _remembered(self) -> int:
        """How many steps back what holds up a step may lie: the one before, and as many as the launch queue holds."""
        held = [
            -(-rules.queue // max(1, sum(op.kind != SYNC for op in self.programs[team].operations)))
            for team, rules in self.rules.items()
            if rules.queue is not None
        ]
        return 1 + max(held, default=0)


class _Survey:
    def __init__(self) -> None:
        self.by_rank: dict[int, Counter[Signature]] = defaultdict(Counter)
        self.examples: dict[Signature, tuple[StepKey, int]] = {}
        self.kinds: dict[Signature, KindCodes] = {}

    def add(self, key: StepKey, member: Member, sheet: Sheet) -> None:
        signature = sheet.signature
        # what a cut recording shows belongs to the program too, after all uncut ones
        self.by_rank[member.rank][signature] += 0 if member.cut else 1
        self.examples.setdefault(signature, (key, member.rank))
        self.kinds.setdefault(signature, sheet.kind)
