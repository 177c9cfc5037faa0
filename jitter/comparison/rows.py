"""The rows of a comparison: every nanosecond by which the new run differs, charged once, along two aligned programs.

First the usual steps: the account of the new run's usual step with that of the base as its baseline. Then what each run
loses above it: its median step is slower than the usual one for all ranks, and some ranks are slower than others. What
no account explains is one row. Pairs of values are those of the base and of the new run, in this order.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Final, Literal, NamedTuple

import numpy as np

from jitter.analysis.account.losses import LossClass, Losses
from jitter.analysis.account.usual_step import Meeting, UsualProgram, UsualStep, renumber_waits
from jitter.analysis.alignment.program import MAIN, Operation, Program
from jitter.analysis.alignment.sequences import align, find_gaps, similarity
from jitter.analysis.execution.dependencies import Dependencies, Wait
from jitter.analysis.execution.self_times import SelfTimes
from jitter.analysis.thresholds import THRESHOLDS
from jitter.comparison.document import Document, Team, TeamProgram
from jitter.core.names.kernels import COLLECTIVE, COMPUTE
from jitter.core.numeric.arrays import Floats

BASE, NEW = 0, 1
"""The runs, as positions in pairs."""
RowRung = Literal["usual", "steps", "ranks"]
"""Between usual steps; then what runs lose above them on the rungs of the waterfall."""
_NEVER_LATE_NS: Final = 1e9
"""How early the launch of an operation is that a run lacks."""
_Places = tuple[int | None, int | None]
"""Of the base and of the new run; None where a run lacks it."""


class Slot(NamedTuple):
    """One operation of the two aligned programs."""

    places: _Places
    """Its numbers in the programs."""
    operations: tuple[Operation | None, Operation | None]
    block: int
    """Slots of one block stand for each other as a whole: a fusion."""

    @property
    def names(self) -> tuple[str | None, str | None]:
        base, new = self.operations
        return base and base.name, new and new.name

    @property
    def is_same(self) -> bool:
        """Whether it has the same name in both."""
        base, new = self.names
        return base == new

    @property
    def operation(self) -> Operation:
        """The new run's operation, or the base's if the new run lacks it."""
        base, new = self.operations
        operation = new or base
        assert operation is not None
        return operation


class TeamPair(NamedTuple):
    """A team of the base and the team of the new run with the most similar sequence, by position."""

    base: int
    new: int
    share: float
    """Longest common subsequence ÷ the longer sequence."""


def pair_teams(base: Document, new: Document) -> list[TeamPair]:
    """Return the pairs whose kernels share at least half, the most similar first; each team is in one at most.

    Runs with a common step marker may be one job on other GPUs or compiled otherwise: they need less in common.
    """
    words: dict[tuple[str, bool], int] = {}
    of_base, of_new = (
        [tuple(words.setdefault(word, len(words)) for word in name_places(document, team)) for team in document.teams]
        for document in (base, new)
    )
    share = cache(similarity)
    candidates = [
        TeamPair(base_team, new_team, share(base_sequence, new_sequence))
        for base_team, base_sequence in enumerate(of_base)
        for new_team, new_sequence in enumerate(of_new)
    ]
    pairs: list[TeamPair] = []
    for pair in sorted(candidates, key=lambda pair: (-pair.share, pair.base, pair.new)):
        is_taken = any(pair.base == chosen.base or pair.new == chosen.new for chosen in pairs)
        if not is_taken and pair.share and (pair.share >= THRESHOLDS.main_share or base.has_marker_of(new)):
            pairs.append(pair)
    return pairs


def name_places(document: Document, team: Team) -> list[tuple[str, bool]]:
    """Return the kernels of a team's sequence: name, and whether it runs beside the main stream."""
    return [(document.names[place.name], place.concurrent) for place in team.places]


def align_programs(base: Sequence[Operation], new: Sequence[Operation], *, of_one_profiler: bool = True) -> list[Slot]:
    """Return the operations of both programs in launch order.

    Profilers name calls and copies each in its way: unless both are `of_one_profiler`, their kinds are their names.
    Operations of equal names are partners along the longest common subsequence. Of the kernels between two of them,
    what is left of both runs stands for each other: one for one where each name has another one in its place, else as a
    whole. What comes first in either run comes first.
    """
    words: dict[tuple[str, int, bool], int] = {}
    first, second = (
        [
            words.setdefault(
                (one.name if of_one_profiler or one.is_kernel else "", one.kind, one.stream == MAIN), len(words)
            )
            for one in side
        ]
        for side in (base, new)
    )
    slots: list[Slot] = []

    def append(at: int | None, to: int | None, block: int | None = None) -> None:
        there = None if at is None else base[at], None if to is None else new[to]
        slots.append(Slot((at, to), there, len(slots) if block is None else block))

    for new_gap, base_gap in find_gaps(align(second, first), len(first)):
        kernels = [[at for at in gap if side[at].is_kernel] for side, gap in ((base, base_gap), (new, new_gap))]
        kinds = [
            [(side[at].kind, side[at].stream == MAIN) for at in chosen]
            for side, chosen in zip((base, new), kernels, strict=True)
        ]
        pairs = list(zip(*kernels, strict=False))
        names = {(base[at].name, new[to].name) for at, to in pairs}
        is_renamed = kinds[BASE] == kinds[NEW] and all(
            len(set(side)) == len(names) for side in zip(*names, strict=True)
        )
        partners = dict(pairs) if is_renamed else {}
        whole = ~len(slots) if not partners and set(kinds[BASE]) & set(kinds[NEW]) else None
        behind = new_gap.start
        for at in base_gap:
            partner = partners.get(at)
            for earlier in range(behind, behind if partner is None else partner):
                append(None, earlier)
            behind = behind if partner is None else partner + 1
            append(at, partner, whole if at in kernels[BASE] else None)
        for earlier in range(behind, new_gap.stop):
            append(None, earlier, whole if earlier in kernels[NEW] else None)
        if base_gap.stop < len(first):
            append(base_gap.stop, new_gap.stop)
    return slots


class Row(NamedTuple):
    """A part of the difference, ns a step: more than 0 if the new run is slower for it."""

    rung: RowRung
    loss_class: str
    """The label of a `LossClass`."""
    rank: int | None
    """Of jitter, but for transfers."""
    team: int | None
    """Position in `AlignedRuns.teams`."""
    slot: int | None
    loss_ns: float


@dataclass(frozen=True)
class AlignedTeam:
    """A team of the new run and its partner, or a team without one."""

    runs: _Places
    """The team in either run."""
    slots: list[Slot]

    @cached_property
    def kernels(self) -> list[tuple[int, _Places]]:
        """The slots of kernels, with the kernel's indices."""
        kernels, counts = [], [0, 0]
        for at, slot in enumerate(self.slots):
            if slot.operation.is_kernel:
                base, new = slot.operations
                kernels.append((at, (base and counts[BASE], new and counts[NEW])))
                counts = [counts[BASE] + (base is not None), counts[NEW] + (new is not None)]
        return kernels

    @cached_property
    def slot_of(self) -> tuple[dict[int, int], dict[int, int]]:
        """The slot of each operation of either run."""
        base, new = (
            {place: at for at, slot in enumerate(self.slots) if (place := slot.places[side]) is not None}
            for side in (BASE, NEW)
        )
        return base, new

    def calls_alone(self, side: int) -> dict[int, str]:
        """Return the names of one run's calls and copies that the other one lacks; none if the team has no partner."""
        if self.runs[BASE] is None:
            return {}
        operations = {place: self.slots[at].operations for place, at in self.slot_of[side].items()}
        return {
            place: call.name
            for place, pair in operations.items()
            if pair[1 - side] is None and (call := pair[side]) is not None and not call.is_kernel
        }


class AlignedRuns:
    """The programs of two runs, side by side: the teams of the new run in order, then those of the base alone."""

    def __init__(self, base: Document, new: Document, pairs: Sequence[TeamPair]) -> None:
        """Align the teams of `pairs`."""
        self.base, self.new = self.documents = (base, new)
        self.has_programs = base.usual is not None and new.usual is not None
        partner = {pair.new: pair.base for pair in pairs}
        alone = [team for team in range(len(base.teams)) if team not in partner.values()]
        both = [*((partner.get(team), team) for team in range(len(new.teams))), *((team, None) for team in alone)]
        self.teams = [self._align(runs) for runs in both]

    def _align(self, runs: _Places) -> AlignedTeam:
        sides = zip(self.documents, runs, strict=True)
        operations = ([] if team is None else self._list_operations(document, team) for document, team in sides)
        return AlignedTeam(runs, align_programs(*operations, of_one_profiler=self.base.formats == self.new.formats))

    def _list_operations(self, document: Document, team: int) -> list[Operation]:
        """Return the operations of a team's program; without programs its kernels, which every document has."""
        if document.usual is not None and self.has_programs:
            return _operations(document, document.usual.teams[team])
        places = name_places(document, document.teams[team])
        return [Operation(name, COMPUTE, MAIN + is_concurrent, 0) for name, is_concurrent in places]

    @property
    def paired(self) -> list[tuple[int, AlignedTeam, Team, Team]]:
        """The teams with a partner: position in `teams`, alignment, the team of the base and of the new run."""
        return [
            (number, team, self.base.teams[base], self.new.teams[new])
            for number, team in enumerate(self.teams)
            for base, new in [team.runs]
            if base is not None and new is not None
        ]


def charge_difference(runs: AlignedRuns, difference_ns: float) -> list[Row]:
    """Return the rows, which add up to the difference of two step times; none where a run has no usual step."""
    if not runs.has_programs:
        return []
    common = _CommonProgram(runs)
    account = common.program.account(common.upper, common.lower)
    rows = [
        *common.list_rows(account.losses),
        *common.charge_own_rules(NEW, 1, account.upper_ns),
        *common.charge_own_rules(BASE, -1, account.lower_ns),
        *_above_usual(runs),
    ]
    rest_ns = difference_ns - sum(row.loss_ns for row in rows)
    if np.isnan(rest_ns):  # the usual step of a run has no end
        return []
    return [*rows, _usual_row(LossClass.UNEXPLAINED, rest_ns)]


def _usual_row(loss_class: LossClass, loss_ns: float, team: int | None = None, slot: int | None = None) -> Row:
    return Row("usual", loss_class.label, None, team, slot, loss_ns)


def _above_usual(runs: AlignedRuns) -> Iterator[Row]:
    rungs: tuple[RowRung, ...] = ("steps", "ranks")
    for side, run, sign in ((BASE, runs.base, -1), (NEW, runs.new, 1)):
        aligned = {team.runs[side]: (number, team.slot_of[side]) for number, team in enumerate(runs.teams)}
        for rung, losses in zip(rungs, (run.slow_steps, run.jitter), strict=True):
            for loss in losses:
                team, slots = (None, {}) if loss.team is None else aligned[loss.team]
                slot = None if loss.operation is None else slots[loss.operation]
                yield Row(rung, loss.loss_class, loss.rank, team, slot, sign * loss.loss_ns)


class _Usual(NamedTuple):
    """The usual step of one run."""

    program: UsualProgram
    step: UsualStep
    first: list[int]
    """By team where its operations begin in the self times."""


def _read_usual_step(document: Document) -> _Usual:
    assert document.usual is not None
    teams, meetings = document.usual.teams, document.usual.meetings
    programs, rules = {}, {}
    for number, team in enumerate(teams):
        programs[number] = _program_of(_operations(document, team))
        rules[number] = Dependencies(
            tuple(
                Wait(place, on_place, "event", back, "inferred" if is_of_host else "observed")
                for place, on_place, back, is_of_host in team.waits
            ),
            np.array(team.threads, np.int64),
            team.queue,
            team.launch_ns,
            team.stream_ns,
            team.interference,
            team.has_launches,
            {place: float(ns) for place, ns in team.host_lead_ns},
        )
    self_times = [[ns for team in teams for ns in team.self_times[at]] for at in range(len(SelfTimes._fields))]
    return _Usual(
        UsualProgram(programs, rules, document.usual.blocks, tuple(meeting.members for meeting in meetings)),
        UsualStep(
            SelfTimes(*np.array(self_times, np.float64)),
            np.array([meeting.transfer_ns for meeting in meetings], np.float64),
        ),
        [sum(len(team.names) for team in teams[:number]) for number in range(len(teams))],
    )


def _operations(document: Document, team: TeamProgram) -> list[Operation]:
    columns = zip(team.names, team.kinds, team.streams, team.threads, strict=True)
    return [Operation(document.names[name], kind, stream, thread) for name, kind, stream, thread in columns]


def _program_of(operations: Iterable[Operation]) -> Program:
    return Program(tuple(operations), {}, ("", b""))  # no recording is fitted to it


class _CommonProgram:
    """The program that holds the operations of two runs; an operation that a run lacks takes no time in it.

    It has the waits of both runs: a wait that never mattered in one of them is not seen there, and does no harm. But
    what waits in one run alone would hold the other run back too: a new call that synchronises, or a kernel that waits
    for a collective beside which the other run computes. Such waits are left out, and charged by replays with them
    (`charge_own_rules`). The blocks of ranks, the launch queue and the usual delays of launches are those of the new
    run.
    """

    def __init__(self, runs: AlignedRuns) -> None:
        base, new = self._usual = [_read_usual_step(document) for document in runs.documents]
        self._teams = [team for team in runs.teams if team.runs[NEW] is not None]
        spans = [usual.program.spans(usual.step) for usual in self._usual]
        self._alone = [[self._waits_alone(side, team, spans[1 - side]) for team in self._teams] for side in (BASE, NEW)]
        meetings, upper, lower = self._meet()
        self.program = UsualProgram(
            {number: _program_of(slot.operation for slot in team.slots) for number, team in enumerate(self._teams)},
            {number: self._join_rules(number) for number in range(len(self._teams))},
            new.program.blocks,
            meetings,
        )
        partner = {team.runs[BASE]: new.program.rules[number] for number, team in enumerate(self._teams)}
        rules = {team: partner.get(team, base_rules) for team, base_rules in base.program.rules.items()}
        own_of_base = base.program.with_delays(
            base.step,
            {team: team_rules.launch_ns for team, team_rules in rules.items()},
            {team: team_rules.stream_ns for team, team_rules in rules.items()},
        )
        self.upper = UsualStep(self._self_times(NEW, new.step.self_times), upper)
        self.lower = UsualStep(self._self_times(BASE, own_of_base), lower)

    def list_rows(self, losses: Losses) -> Iterator[Row]:
        for _, team, loss_class, place, meeting, ns in losses.rows():
            if meeting >= 0:
                first_block, operation = self.program.meetings[meeting][0]
                yield _usual_row(LossClass(loss_class), ns, self.program.blocks[first_block], operation)
            else:
                at = (None if number < 0 else number for number in (team, place))
                yield _usual_row(LossClass(loss_class), ns, *at)

    def charge_own_rules(self, side: int, sign: int, common_ns: float) -> Iterator[Row]:
        """Return what waits, collectives that slow kernels, and a launch queue of a run cost, and what no row explains.

        The waits are those of this run alone. One of a kernel is charged to what it waits for, as lost overlap.

        `common_ns` is the time of the run's usual step in the common program.
        """
        usual, step = self._usual[side], self.upper if side == NEW else self.lower
        own_rules = {
            number: usual.program.rules[run_team]
            for number, team in enumerate(self._teams)
            if (run_team := team.runs[side]) is not None
        }
        alone: dict[tuple[int, LossClass, str], list[tuple[int, Wait]]] = defaultdict(list)
        for number, waits in enumerate(self._alone[side]):
            slots = self._teams[number].slots
            for wait in renumber_waits(waits, self._teams[number].slot_of[side]):
                is_kernel = slots[wait.op_index].operation.is_kernel
                charged = wait.on_op_index if is_kernel else wait.op_index
                loss_class = LossClass.OVERLAP if is_kernel else LossClass.LAUNCH
                alone[number, loss_class, slots[charged].operation.name].append((charged, wait))
        left_ns, rules = common_ns, dict(self.program.rules)
        for (number, loss_class, _), named in alone.items():
            added = (wait for _, wait in named)
            rules[number] = replace(rules[number], waits=(*rules[number].waits, *added))
            with_ns = replace(self.program, rules=dict(rules)).time_ns(step)
            yield _usual_row(loss_class, sign * (with_ns - left_ns), number, named[0][0])
            left_ns = with_ns
        for loss_class, field in ((LossClass.OVERLAP, "interference"), (LossClass.LAUNCH, "queue")):
            field_of_team = {number: getattr(team_rules, field) for number, team_rules in own_rules.items()}
            if any(getattr(rules[number], field) != value for number, value in field_of_team.items()):
                rules |= {number: replace(rules[number], **{field: value}) for number, value in field_of_team.items()}
                with_ns = replace(self.program, rules=dict(rules)).time_ns(step)
                yield _usual_row(loss_class, sign * (with_ns - left_ns))
                left_ns = with_ns
        yield _usual_row(LossClass.UNEXPLAINED, sign * (usual.program.time_ns(usual.step) - left_ns))

    def _waits_alone(
        self, side: int, team: AlignedTeam, spans_of_other: Mapping[int, tuple[Floats, Floats]]
    ) -> list[Wait]:
        """Return the waits of one run of a team that the other run has not.

        They are those of calls and copies that the other run lacks, and those of kernels that start there before the
        end of what they wait for here. `spans_of_other` are the other run's starts and ends by team.
        """
        run_team, other_team = team.runs[side], team.runs[1 - side]
        if run_team is None or other_team is None:
            return []
        calls, slots = team.calls_alone(side), team.slot_of[side]
        start, end = spans_of_other[other_team]

        def overlaps(wait: Wait) -> bool:
            if wait.on_op_index < 0 or wait.steps_back or not team.slots[slots[wait.op_index]].operation.is_kernel:
                return False
            there, awaited = (team.slots[slots[at]].places[1 - side] for at in (wait.op_index, wait.on_op_index))
            return there is not None and awaited is not None and start[there] < end[awaited] - THRESHOLDS.rounding_ns

        return [
            wait
            for wait in self._usual[side].program.rules[run_team].waits
            if wait.op_index in calls or (wait.provenance != "inferred" and overlaps(wait))
        ]

    def _join_rules(self, number: int) -> Dependencies:
        team = self._teams[number]
        waits: dict[tuple[int, int, int, bool], Wait] = {}
        leads: dict[int, float] = {}
        for side, run_team in enumerate(team.runs):
            if run_team is None:
                continue
            rules, slots, alone = (
                self._usual[side].program.rules[run_team],
                team.slot_of[side],
                self._alone[side][number],
            )
            for wait in renumber_waits([wait for wait in rules.waits if wait not in alone], slots):
                waits[wait.op_index, wait.on_op_index, wait.steps_back, wait.provenance == "inferred"] = wait
            leads |= {slots[place]: ns for place, ns in rules.host_lead_ns.items()}
        return replace(
            self._usual[NEW].program.rules[number],
            waits=tuple(waits[key] for key in sorted(waits)),
            thread=np.array([slot.operation.thread for slot in team.slots], np.int64),
            host_lead_ns=leads,
        )

    def _self_times(self, side: int, self_times: SelfTimes) -> SelfTimes:
        columns_of_teams = []
        for number, team in enumerate(self._teams):
            places = np.array([-1 if (at := slot.places[side]) is None else at for slot in team.slots], np.int64)
            absent = {"lead": _NEVER_LATE_NS, "delay": -self._usual[NEW].program.rules[number].stream_ns}
            columns = np.stack([np.full(len(places), absent.get(field, 0.0)) for field in SelfTimes._fields])
            if (run_team := team.runs[side]) is not None:
                there = places >= 0
                columns[:, there] = np.stack(self_times)[:, self._usual[side].first[run_team] + places[there]]
            columns_of_teams.append(columns)
        return SelfTimes(*np.concatenate(columns_of_teams, axis=1))

    def _meet(self) -> tuple[tuple[Meeting, ...], Floats, Floats]:
        """Return the meetings of the new run, then those of the base alone; their transfers in the new run and base."""
        base, new = self._usual
        took = {
            (base.program.blocks[block], place): ns
            for meeting, ns in zip(base.program.meetings, base.step.transfers.tolist(), strict=True)
            for block, place in meeting
        }

        def base_ns(number: int, slot: int) -> float:
            """Return the usual transfer in the base; 0 where the base lacks the collective."""
            run_team, place = self._teams[number].runs[BASE], self._teams[number].slots[slot].places[BASE]
            return 0.0 if run_team is None or place is None else took.get((run_team, place), 0.0)

        meetings: list[tuple[Meeting, float, float]] = []
        slots = [team.slot_of[NEW] for team in self._teams]  # those of the new run come first, in its order
        for meeting, ns in zip(new.program.meetings, new.step.transfers.tolist(), strict=True):
            teams = [new.program.blocks[block] for block, _ in meeting]
            members = tuple((block, slots[team][place]) for team, (block, place) in zip(teams, meeting, strict=True))
            transfers_ns = (base_ns(team, slot) for team, (_, slot) in zip(teams, members, strict=True))
            meetings.append((members, ns, max(transfers_ns, default=0.0)))
        for block, number in enumerate(new.program.blocks):
            for at, slot in enumerate(self._teams[number].slots):
                if slot.places[NEW] is None and slot.operation.kind == COLLECTIVE:
                    meetings.append((((block, at),), 0.0, base_ns(number, at)))
        upper, lower = np.array([times for _, *times in meetings], np.float64).reshape(len(meetings), 2).T
        return tuple(meeting for meeting, _, _ in meetings), upper, lower
