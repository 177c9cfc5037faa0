"""The run as operations: each team's program, its rules, who meets whom; and its steps, one after another."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jitter.dependencies import Sample, infer
from jitter.launch_queue import Launches
from jitter.meetings import Group, Meetings, match
from jitter.own_time import OwnTimes, own_times
from jitter.packed import StepStore
from jitter.program import NO_LANE, Example, Program, lay_out
from jitter.readiness import Readiness, Tail, no_tail, readiness, threads_of
from jitter.rules import Rules
from jitter.schedule import Schedule, schedule
from jitter.sheets import COLLECTIVE, SYNC, Floats, Ints, Kinds, Sheet, Signature
from jitter.step_arrays import StepArrays, arrays, rows
from jitter.steps import StepKey
from jitter.teams import teams
from jitter.together import not_together

_SAMPLED_CELLS = 512
"""Cells of a team from which the rules are inferred."""
_SAMPLED_ORDERS = 8
"""Ranks whose launches are followed over all sampled steps, for the queue."""


_SURVEYED_ROWS = 5_000_000
_SURVEYED_STEPS = 6
_TRIED_STEPS = 4
"""Steps in which collectives without a recorded group are tried for being left together."""


@dataclass(frozen=True)
class Member:
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


@dataclass(frozen=True)
class TeamStep:
    """One team in one step; columns are its ranks of the run that have the step."""

    arrays: StepArrays
    ready: Readiness
    tail: Tail
    """How the step before left these ranks."""
    own: OwnTimes
    joined: np.ndarray
    """(ranks,) whose step before is not known."""


@dataclass(frozen=True)
class ObservedStep:
    """All teams in one step."""

    key: StepKey
    teams: Mapping[int, TeamStep]


class Observed:
    """The whole run; rows are read step by step, as often as the steps are gone through."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._store = StepStore()
        self._members = {key: list(source.members(key)) for key in source.steps}

    @property
    def keys(self) -> Sequence[StepKey]:
        """The steps, in order."""
        return self._source.steps

    @cached_property
    def team_of(self) -> dict[int, int]:
        """Each rank's team."""
        survey = self._survey
        cohort_of = {m.rank: m.cohort for members in self._members.values() for m in members}
        usual = {rank: counts.most_common(1)[0][0] for rank, counts in survey.by_rank.items()}
        return teams(usual, cohort_of, survey.kinds)

    @cached_property
    def _survey(self) -> "_Survey":
        """A first look at what ranks did: in every step of a short run, of a long one in steps that show all of it."""
        survey = _Survey()
        for key in self._surveyed():
            signatures = {rank: sheet for sheet in self._source.sheets(key) for rank in sheet.ranks.tolist()}
            for member in self._members[key]:
                survey.add(key, member, signatures[member.rank])
        return survey

    def _surveyed(self) -> list[StepKey]:
        """All steps if they can be kept; else some at even distances, and one for each sequence and rank besides."""
        keys = list(self._source.steps)
        if self._source.rows <= _SURVEYED_ROWS:
            return keys
        chosen = {keys[int(at)] for at in np.linspace(0, len(keys) - 1, _SURVEYED_STEPS)}
        seen = {(m.sequence, m.rank) for key in chosen for m in self._members[key]}
        ranks, sequences = {rank for _, rank in seen}, {sequence for sequence, _ in seen}
        for key in keys:
            new = [m for m in self._members[key] if m.rank not in ranks or m.sequence not in sequences]
            if new:
                chosen.add(key)
                ranks.update(m.rank for m in self._members[key])
                sequences.update(m.sequence for m in self._members[key])
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
        kept = self._store.get((key, team))
        if kept is None:
            kept = arrays(self.programs[team], self._ranks(key, team), self._fitting(key, team))
            self._store.keep((key, team), kept)
        return kept

    def rows(self, key: StepKey, team: int) -> Ints:
        """(operations, ranks): the rows of one team's step in its ranks' files, -1 where there is none."""
        return rows(self.programs[team], self._ranks(key, team), self._fitting(key, team))

    def _ranks(self, key: StepKey, team: int) -> list[int]:
        return [m.rank for m in self._members[key] if self.team_of[m.rank] == team]

    def _fitting(self, key: StepKey, team: int) -> list[Sheet]:
        """A step's sheets with ranks of the team; what the survey did not see is fitted into its program."""
        wanted, program = set(self._ranks(key, team)), self.programs[team]
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
        thread = threads_of(program)
        having = [key for key in steps if any(self.team_of[m.rank] == team for m in self._members[key])]
        ranks = max(sum(self.team_of[m.rank] == team for m in self._members[key]) for key in having)
        wanted = max(2, _SAMPLED_CELLS // ranks)
        sampled = {having[i] for i in np.linspace(0, len(having) - 1, min(wanted, len(having))).astype(int)}
        parts = list(self._followed(team, sorted(sampled, key=lambda k: k.order), thread))
        return infer(program, thread, _sample(program, parts))

    def _followed(
        self, team: int, steps: Sequence[StepKey], thread: Ints
    ) -> Iterator[tuple[StepKey, StepArrays, Readiness, Tail]]:
        """Each step with what held its operations back; the step before it is read for that where it is there."""
        program = self.programs[team]
        tails = _Tails(program, thread, None)
        there = set(self._source.steps)
        last: StepKey | None = None
        for key in steps:
            before = StepKey(key.epoch, key.step - 1)
            if before in there and before != last:
                placed = self.placed(before, team)
                tails.follow(before, placed)
            placed = self.placed(key, team)
            tail, _ = tails.before(key, placed.ranks)
            ready = tails.follow(key, placed)
            last = key
            yield key, placed, ready, tail

    @cached_property
    def meetings(self) -> Meetings:
        """Who meets whom."""
        attended: dict[int, list[tuple[int, Group]]] = {}
        for key in self._source.steps:
            missing = [m for m in self._members[key] if m.rank not in attended and not m.cut]
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
        return match(self.programs, self.team_of, attended, self._apart(found) - recorded)

    def _apart(self, meetings: Meetings) -> frozenset[tuple[int, int]]:
        """(team, place) of collectives that their supposed members do not leave together."""
        steps = self._source.steps[:: max(1, len(self._source.steps) // _TRIED_STEPS)]
        counts: Counter[tuple[int, int]] = Counter()
        for key in steps:
            ends = {team: self.placed(key, team) for team in self.programs}
            counts.update(not_together(meetings, ends))
        return frozenset(which for which, count in counts.items() if 2 * count > len(steps))

    @cached_property
    def schedule(self) -> Schedule:
        """In which order to compute."""
        return schedule(self.programs, self.rules, self.meetings)

    def steps(self) -> Iterator[ObservedStep]:
        """Go through the run."""
        tails = {
            team: _Tails(program, self.rules[team].thread, self.rules[team].queue)
            for team, program in self.programs.items()
        }
        for key in self._source.steps:
            found = {}
            for team, program in self.programs.items():
                if not any(self.team_of[m.rank] == team for m in self._members[key]):
                    continue
                placed = self.placed(key, team)
                tail, joined = tails[team].before(key, placed.ranks)
                ready = tails[team].follow(key, placed)
                own = own_times(program, self.rules[team], placed, ready, tail)
                found[team] = TeamStep(placed, ready, tail, own, joined)
            yield ObservedStep(key, found)


class _Survey:
    def __init__(self) -> None:
        self.by_rank: dict[int, Counter[Signature]] = defaultdict(Counter)
        self.examples: dict[Signature, tuple[StepKey, int]] = {}
        self.kinds: dict[Signature, Kinds] = {}

    def add(self, key: StepKey, member: Member, sheet: Sheet) -> None:
        signature = sheet.signature
        # what a cut recording shows belongs to the program too, after all uncut ones
        self.by_rank[member.rank][signature] += 0 if member.cut else 1
        self.examples.setdefault(signature, (key, member.rank))
        self.kinds.setdefault(signature, sheet.kind)


class _Tails:
    """How the step before left each rank of a team."""

    def __init__(self, program: Program, thread: Ints, queue: int | None) -> None:
        self._program, self._thread = program, thread
        self._lanes = 1 + max((op.lane for op in program.operations), default=NO_LANE)
        self._threads = 1 + int(thread.max(initial=0))
        self._queue = queue
        self._left: dict[int, tuple[StepKey, Floats, Floats, Floats]] = {}
        self._whole: tuple[StepKey, Ints, Tail] | None = None

    def before(self, key: StepKey, ranks: Ints) -> tuple[Tail, np.ndarray]:
        """What these ranks' step before left, and which of them have none."""
        joined = np.ones(len(ranks), np.bool_)
        if self._whole is not None:
            last, same, whole = self._whole
            if last == StepKey(key.epoch, key.step - 1) and np.array_equal(same, ranks):
                return whole, ~joined
            self._spread_out()
        tail = no_tail(self._lanes, self._threads, len(ranks), self._queue)
        for column, rank in enumerate(ranks.tolist()):
            left = self._left.get(rank)
            if left is not None and left[0] == StepKey(key.epoch, key.step - 1):
                joined[column] = False
                _, tail.lane_end[:, column], tail.back[:, column], tail.starts[:, column] = left
        return tail, joined

    def follow(self, key: StepKey, step: StepArrays) -> Readiness:
        """Take the step in."""
        tail, _ = self.before(key, step.ranks)
        ready, left = readiness(self._program, self._thread, step, tail)
        if self._whole is not None:
            self._spread_out()
        self._whole = (key, step.ranks, left)
        return ready

    def _spread_out(self) -> None:
        """Remember the last step rank by rank: the next has others."""
        assert self._whole is not None
        key, ranks, left = self._whole
        for column, rank in enumerate(ranks.tolist()):
            self._left[rank] = (key, left.lane_end[:, column], left.back[:, column], left.starts[:, column])
        self._whole = None


def _sample(program: Program, parts: Sequence[tuple[StepKey, StepArrays, Readiness, Tail]]) -> Sample:
    def beside(values: Sequence[Floats]) -> Floats:
        return np.concatenate(values, axis=1)

    return Sample(
        beside([p.start for _, p, _, _ in parts]),
        beside([r.end_by for _, _, r, _ in parts]),
        beside([p.call for _, p, _, _ in parts]),
        beside([p.back for _, p, _, _ in parts]),
        beside([r.submit for _, _, r, _ in parts]),
        beside([r.end_before for _, _, r, _ in parts]),
        beside([t.lane_end for _, _, _, t in parts]),
        _orders(program, parts),
    )


def _orders(program: Program, parts: Sequence[tuple[StepKey, StepArrays, Readiness, Tail]]) -> list[Launches]:
    """Launches of some ranks in order, each stretch of consecutive steps by itself."""
    launches = np.array([op.kind != SYNC for op in program.operations], np.bool_)
    found: dict[tuple[int, int], list[Launches]] = defaultdict(list)
    stretch, last = 0, None
    for key, step, _, _ in parts:
        stretch += last is None or key != StepKey(last.epoch, last.step + 1)
        last = key
        for column in range(min(_SAMPLED_ORDERS, len(step.ranks))):
            known = launches & ~np.isnan(step.back[:, column])
            times = (step.call[known, column], step.back[known, column], step.start[known, column])
            found[stretch, int(step.ranks[column])].append(Launches(*times))
    return [Launches(*map(np.concatenate, zip(*pieces, strict=True))) for pieces in found.values()]
