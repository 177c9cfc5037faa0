"""The rows of a comparison: every nanosecond by which the new run differs, charged once, along two aligned programs.

First the usual steps: the account of the new run's usual step with that of the base as its baseline. Then what each run
loses above it: its median step is slower than the usual one for all ranks, and some ranks are slower than others. What
no account explains is one row.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, NamedTuple

import numpy as np

from jitter.analysis.account.losses import LossClass, Losses
from jitter.analysis.account.usual_step import Meeting, UsualProgram, UsualStep, renumber_waits
from jitter.analysis.alignment.program import MAIN, Operation, Program
from jitter.analysis.alignment.sequences import align, find_gaps, similarity
from jitter.analysis.execution.dependencies import Dependencies, Wait
from jitter.analysis.execution.self_times import SelfTimes
from jitter.analysis.thresholds import THRESHOLDS
from jitter.comparison.document import Document, LossRow, Team, TeamProgram
from jitter.core.names.kernels import COLLECTIVE, COMPUTE
from jitter.core.numeric.arrays import Floats


class AlignedOperation(NamedTuple):
    """An operation of a team, as runs have it in common."""

    name: str
    kind: int | None
    """None for any kind of kernel, in a document without programs."""
    is_main: bool
    """Whether it is on the main stream."""

    @property
    def is_kernel(self) -> bool:
        """Whether the kernel index counts it."""
        return self.kind in (None, COMPUTE, COLLECTIVE)


class Slot(NamedTuple):
    """One operation of the two aligned programs, by its numbers in each; None where a run lacks it."""

    base: int | None
    new: int | None
    is_same: bool
    """Whether it has the same name in both."""
    block: int
    """Slots of one block stand for each other as a whole: a fusion."""


class TeamPair(NamedTuple):
    """A team of the base and the team of the new run with the most similar sequence, by position."""

    base: int
    new: int
    share: float
    """Longest common subsequence ÷ the longer sequence."""


def pair_teams(base: Document, new: Document) -> list[TeamPair]:
    """Return the pairs whose kernels share at least half, the most similar first; each team is in one at most."""
    words: dict[tuple[str, bool], int] = {}
    of_base = [_kernel_words(base, team, words) for team in base.teams]
    of_new = [_kernel_words(new, team, words) for team in new.teams]
    shares: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    candidates = []
    for base_team, base_sequence in enumerate(of_base):
        for new_team, new_sequence in enumerate(of_new):
            if (base_sequence, new_sequence) not in shares:
                shares[base_sequence, new_sequence] = similarity(base_sequence, new_sequence)
            candidates.append(TeamPair(base_team, new_team, shares[base_sequence, new_sequence]))
    pairs: list[TeamPair] = []
    for pair in sorted(candidates, key=lambda pair: (-pair.share, pair.base, pair.new)):
        is_taken = any(pair.base == chosen.base or pair.new == chosen.new for chosen in pairs)
        if not is_taken and pair.share >= THRESHOLDS.main_share:
            pairs.append(pair)
    return pairs


def _kernel_words(document: Document, team: Team, words: dict[tuple[str, bool], int]) -> tuple[int, ...]:
    names = document.names
    return tuple(words.setdefault((names[place.name], place.concurrent), len(words)) for place in team.places)


def list_operations(document: Document, team: int, *, whole: bool) -> list[AlignedOperation]:
    """Return the operations of a team: all of its program, or its kernels alone, which every document has."""
    names = document.names
    if document.usual is None or not whole:
        return [
            AlignedOperation(names[place.name], None, not place.concurrent) for place in document.teams[team].places
        ]
    program = document.usual.teams[team]
    columns = zip(program.names, program.kinds, program.streams, strict=True)
    return [AlignedOperation(names[name], kind, stream == MAIN) for name, kind, stream in columns]


def align_programs(base: Sequence[AlignedOperation], new: Sequence[AlignedOperation]) -> list[Slot]:
    """Return the operations of both programs in launch order.

    Operations of equal names are partners along the longest common subsequence. Of the kernels between two of them,
    what is left of both runs stands for each other: one for one where there are equally many, else as a whole.
    """
    words: dict[AlignedOperation, int] = {}
    first, second = ([words.setdefault(operation, len(words)) for operation in side] for side in (base, new))
    slots: list[Slot] = []
    for of_new, of_base in find_gaps(align(second, first), len(first)):
        _fill_gap(slots, base, new, of_base, of_new)
        if of_base.stop < len(first):
            slots.append(Slot(of_base.stop, of_new.stop, True, len(slots)))
    return slots


def _fill_gap(
    slots: list[Slot],
    base: Sequence[AlignedOperation],
    new: Sequence[AlignedOperation],
    base_gap: range,
    new_gap: range,
) -> None:
    """Add the operations between two that are partners; what comes first in either run comes first."""
    base_kernels, new_kernels = (
        [at for at in gap if side[at].is_kernel] for side, gap in ((base, base_gap), (new, new_gap))
    )
    kinds = (
        [(base[at].kind, base[at].is_main) for at in base_kernels],
        [(new[at].kind, new[at].is_main) for at in new_kernels],
    )
    partners = dict(zip(base_kernels, new_kernels, strict=True)) if kinds[0] == kinds[1] else {}
    whole = ~len(slots) if not partners and set(kinds[0]) & set(kinds[1]) else None
    behind = new_gap.start
    for at in base_gap:
        partner = partners.get(at)
        if partner is not None:
            slots += [Slot(None, position, False, len(slots) + n) for n, position in enumerate(range(behind, partner))]
            behind = partner + 1
        slots.append(Slot(at, partner, False, len(slots) if whole is None or at not in base_kernels else whole))
    rest = range(behind, new_gap.stop)
    slots += [
        Slot(None, at, False, len(slots) + n if whole is None or at not in new_kernels else whole)
        for n, at in enumerate(rest)
    ]


RowRung = Literal["usual", "steps", "ranks"]
"""Between usual steps; then what runs lose above them on the rungs of the waterfall."""
RunName = Literal["base", "new"]
_SIDES: Final[tuple[RunName, ...]] = ("base", "new")
_NEVER_LATE_NS: Final = 1e9
"""How early the launch of an operation is that a run lacks."""


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

    base: int | None
    new: int | None
    slots: list[Slot]
    names: list[tuple[str | None, str | None]]
    """By slot the names in the base and in the new run."""
    kernels: list[tuple[int, int | None, int | None]]
    """The slots of kernels, with the kernel's index in the base and in the new run."""

    def of(self, side: RunName) -> int | None:
        return self.base if side == "base" else self.new

    def operations(self, side: RunName) -> list[int | None]:
        """Return by slot the operation of one run."""
        return [slot.base if side == "base" else slot.new for slot in self.slots]

    def alone(self, side: RunName) -> dict[int, str]:
        """Return the names of one run's operations that the other one lacks."""
        others = self.operations("new" if side == "base" else "base")
        rows = zip(self.operations(side), others, self.names, strict=True)
        return {
            place: (base or new or "") for place, partner, (base, new) in rows if place is not None and partner is None
        }


class AlignedRuns:
    """The programs of two runs, side by side: the teams of the new run in order, then those of the base alone."""

    def __init__(self, base: Document, new: Document, pairs: Sequence[TeamPair]) -> None:
        """Align the teams of `pairs`."""
        self.base, self.new = base, new
        self.has_programs = base.usual is not None and new.usual is not None
        partner = {pair.new: pair.base for pair in pairs}
        alone = [team for team in range(len(base.teams)) if team not in partner.values()]
        both = [*((partner.get(team), team) for team in range(len(new.teams))), *((team, None) for team in alone)]
        self.teams = [self._align(*team_pair) for team_pair in both]

    def _align(self, base: int | None, new: int | None) -> AlignedTeam:
        base_operations = [] if base is None else list_operations(self.base, base, whole=self.has_programs)
        new_operations = [] if new is None else list_operations(self.new, new, whole=self.has_programs)
        slots, names, kernels, counts = align_programs(base_operations, new_operations), [], [], [0, 0]
        for at, slot in enumerate(slots):
            there = [
                None if place is None else side[place]
                for place, side in zip(slot[:2], (base_operations, new_operations), strict=True)
            ]
            names.append((there[0] and there[0].name, there[1] and there[1].name))
            if any(operation is not None and operation.is_kernel for operation in there):
                kernels.append(
                    (
                        at,
                        *(None if operation is None else count for operation, count in zip(there, counts, strict=True)),
                    )
                )
                counts = [count + (operation is not None) for operation, count in zip(there, counts, strict=True)]
        return AlignedTeam(base, new, slots, names, kernels)  # type: ignore[arg-type]  # two indices

    @property
    def paired(self) -> list[tuple[int, AlignedTeam, Team, Team]]:
        """The teams with a partner: position in `teams`, alignment, the team of the base and of the new run."""
        return [
            (number, team, self.base.teams[team.base], self.new.teams[team.new])
            for number, team in enumerate(self.teams)
            if team.base is not None and team.new is not None
        ]

    @cached_property
    def slot_of(self) -> dict[tuple[RunName, int], tuple[int, dict[int, int]]]:
        """By run and team its position among the aligned teams, and the slot of each of its operations."""
        slots_of_team: dict[tuple[RunName, int], tuple[int, dict[int, int]]] = {}
        for number, team in enumerate(self.teams):
            for side in _SIDES:
                if (team_number := team.of(side)) is not None:
                    slots = {place: at for at, place in enumerate(team.operations(side)) if place is not None}
                    slots_of_team[side, team_number] = number, slots
        return slots_of_team


def charge_difference(runs: AlignedRuns, difference_ns: float) -> list[Row]:
    """Return the rows, which add up to the difference of two step times; none where a run has no usual step."""
    if not runs.has_programs:
        return []
    common = _CommonProgram(runs)
    account = common.program.account(common.upper, common.lower)
    rows = [
        *common.list_rows(account.losses),
        *common.charge_own_rules("new", 1, account.upper_ns),
        *common.charge_own_rules("base", -1, account.lower_ns),
        *_above_usual(runs, runs.base, "base"),
        *_above_usual(runs, runs.new, "new"),
    ]
    rest_ns = difference_ns - sum(row.loss_ns for row in rows)
    if np.isnan(rest_ns):  # the usual step of a run has no end
        return []
    return [*rows, Row("usual", LossClass.UNEXPLAINED.label, None, None, None, rest_ns)]


def _above_usual(runs: AlignedRuns, run: Document, side: RunName) -> Iterator[Row]:
    sign = -1 if side == "base" else 1
    rungs: tuple[tuple[RowRung, tuple[LossRow, ...]], ...] = (("steps", run.slow_steps), ("ranks", run.jitter))
    for rung, losses in rungs:
        for loss in losses:
            team, slots = (None, {}) if loss.team is None else runs.slot_of[side, loss.team]
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
    programs = {
        number: _program_of(
            Operation(document.names[name], kind, stream, thread)
            for name, kind, stream, thread in zip(team.names, team.kinds, team.streams, team.threads, strict=True)
        )
        for number, team in enumerate(teams)
    }
    self_times = [[ns for team in teams for ns in team.self_times[at]] for at in range(len(SelfTimes._fields))]
    return _Usual(
        UsualProgram(
            programs,
            {number: _rules(team) for number, team in enumerate(teams)},
            document.usual.blocks,
            tuple(meeting.members for meeting in meetings),
        ),
        UsualStep(
            SelfTimes(*np.array(self_times, np.float64)),
            np.array([meeting.transfer_ns for meeting in meetings], np.float64),
        ),
        [sum(len(team.names) for team in teams[:number]) for number in range(len(teams))],
    )


def _program_of(operations: Iterable[Operation]) -> Program:
    return Program(tuple(operations), {}, ("", b""))  # no recording is fitted to it


def _rules(team: TeamProgram) -> Dependencies:
    return Dependencies(
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


class _CommonProgram:
    """The program that holds the operations of two runs; an operation that a run lacks takes no time in it.

    It has the waits of both runs: a wait that never mattered in one of them is not seen there, and does no harm. But
    what waits in one run alone, such as a new call that synchronises, would hold the other run back too: such waits are
    left out, and charged by replays with them (`charge_own_rules`). The blocks of ranks, the launch queue
    and the usual delays of launches are those of the new run.
    """

    def __init__(self, runs: AlignedRuns) -> None:
        self._runs = runs
        self._base, self._new = _read_usual_step(runs.base), _read_usual_step(runs.new)
        self._teams = [team for team in runs.teams if team.new is not None]
        meetings, upper, lower = self._meet()
        self.program = UsualProgram(
            {
                number: _program_of(
                    usual.program.programs[run_team].operations[at] for usual, run_team, at in self._origins(team)
                )
                for number, team in enumerate(self._teams)
            },
            {number: self._join_rules(number) for number in range(len(self._teams))},
            self._new.program.blocks,
            meetings,
        )
        partner = {team.base: self._new.program.rules[number] for number, team in enumerate(self._teams)}
        rules = {team: partner.get(team, base_rules) for team, base_rules in self._base.program.rules.items()}
        own_of_base = self._base.program.with_delays(
            self._base.step,
            {team: team_rules.launch_ns for team, team_rules in rules.items()},
            {team: team_rules.stream_ns for team, team_rules in rules.items()},
        )
        self.upper = UsualStep(self._self_times("new", self._new.step.own), upper)
        self.lower = UsualStep(self._self_times("base", own_of_base), lower)

    def list_rows(self, losses: Losses) -> Iterator[Row]:
        columns = (losses.rank, losses.team, losses.loss_class, losses.place, losses.collective, losses.loss_ns)
        for block, team, loss_class, place, meeting, ns in zip(*(column.tolist() for column in columns), strict=True):
            if loss_class == LossClass.CARRIED:
                yield from self._spread_carried(block, ns)
            elif meeting >= 0:
                first_block, operation = self.program.meetings[meeting][0]
                yield Row("usual", LossClass(loss_class).label, None, self.program.blocks[first_block], operation, ns)
            else:
                slot = None if place < 0 else place
                yield Row("usual", LossClass(loss_class).label, None, None if team < 0 else team, slot, ns)

    def _spread_carried(self, block: int, carried_ns: float) -> Iterator[Row]:
        """Return what earlier steps leave, charged to the self times that differ: all steps are alike.

        To those of the host if they lead the same way, else to those of the GPU.
        """
        team = self.program.blocks[block]
        first = sum(len(self.program.programs[earlier].operations) for earlier in range(team))
        here = slice(first, first + len(self.program.programs[team].operations))
        added_times = SelfTimes(
            *(
                upper_ns[here] - lower_ns[here]
                for upper_ns, lower_ns in zip(self.upper.own, self.lower.own, strict=True)
            )
        )
        start = self.program.programs[team].first_kernel
        for by, of_host in ((added_times.host + added_times.call, True), (added_times.delay + added_times.gpu, False)):
            if (whole := float(by.sum())) * carried_ns > 0:
                for at in np.flatnonzero(by).tolist():
                    loss_class = LossClass.GPU if not of_host else LossClass.START if at <= start else LossClass.LAUNCH
                    yield Row("usual", loss_class.label, None, team, at, carried_ns * float(by[at]) / whole)
                return
        yield Row("usual", LossClass.CARRIED.label, None, team, None, carried_ns)

    def charge_own_rules(self, side: RunName, sign: int, common_ns: float) -> Iterator[Row]:
        """Return what waits, collectives that slow kernels, and a launch queue of a run cost, and what no row explains.

        The waits are those of calls and copies that the other run lacks.

        `common_ns` is the time of the run's usual step in the common program.
        """
        usual, step = self._usual(side), self.upper if side == "new" else self.lower
        alone: dict[tuple[int, str], list[Wait]] = {}
        for number, team in enumerate(self._teams):
            run_team, names = team.of(side), team.alone(side)
            if run_team is None or team.base is None:
                continue
            waits = [wait for wait in usual.program.rules[run_team].waits if wait.op_index in names]
            for wait, here in zip(waits, renumber_waits(waits, self._runs.slot_of[side, run_team][1]), strict=True):
                alone.setdefault((number, names[wait.op_index]), []).append(here)
        left_ns = common_ns
        rules = dict(self.program.rules)
        for (number, _), waits in alone.items():
            rules[number] = replace(rules[number], waits=(*rules[number].waits, *waits))
            with_ns = replace(self.program, rules=dict(rules)).time_ns(step)
            yield Row("usual", LossClass.LAUNCH.label, None, number, waits[0].op_index, sign * (with_ns - left_ns))
            left_ns = with_ns
        teams = [(number, team.of(side)) for number, team in enumerate(self._teams)]
        own_rules = {number: usual.program.rules[run_team] for number, run_team in teams if run_team is not None}
        for loss_class, field in ((LossClass.OVERLAP, "interference"), (LossClass.LAUNCH, "queue")):
            field_of_team = {number: getattr(team_rules, field) for number, team_rules in own_rules.items()}
            if any(getattr(rules[number], field) != value for number, value in field_of_team.items()):
                rules |= {number: replace(rules[number], **{field: value}) for number, value in field_of_team.items()}
                with_ns = replace(self.program, rules=dict(rules)).time_ns(step)
                yield Row("usual", loss_class.label, None, None, None, sign * (with_ns - left_ns))
                left_ns = with_ns
        rest_ns = usual.program.time_ns(usual.step) - left_ns
        yield Row("usual", LossClass.UNEXPLAINED.label, None, None, None, sign * rest_ns)

    def _usual(self, side: RunName) -> _Usual:
        return self._base if side == "base" else self._new

    def _origins(self, team: AlignedTeam) -> Iterator[tuple[_Usual, int, int]]:
        """Return by slot whose operation it is: the new run's, or the base's if the new run lacks it; team, number."""
        for base, new in zip(team.operations("base"), team.operations("new"), strict=True):
            if new is not None and team.new is not None:
                yield self._new, team.new, new
            elif base is not None and team.base is not None:
                yield self._base, team.base, base

    def _join_rules(self, number: int) -> Dependencies:
        team, new_rules = self._teams[number], self._new.program.rules[number]
        waits: dict[tuple[int, int, int, bool], Wait] = {}
        leads: dict[int, float] = {}
        for side in _SIDES:
            if (run_team := team.of(side)) is None:
                continue
            rules, slots = self._usual(side).program.rules[run_team], self._runs.slot_of[side, run_team][1]
            alone = team.alone(side) if team.base is not None else {}
            for wait in renumber_waits([wait for wait in rules.waits if wait.op_index not in alone], slots):
                waits[wait.op_index, wait.on_op_index, wait.steps_back, wait.provenance == "inferred"] = wait
            leads |= {slots[place]: ns for place, ns in rules.host_lead_ns.items()}
        threads = [int(usual.program.rules[team_number].thread[at]) for usual, team_number, at in self._origins(team)]
        return replace(
            new_rules,
            waits=tuple(waits[key] for key in sorted(waits)),
            thread=np.array(threads, np.int64),
            host_lead_ns=leads,
        )

    def _self_times(self, side: RunName, self_times: SelfTimes) -> SelfTimes:
        columns_of_teams = []
        for number, team in enumerate(self._teams):
            places = np.array([-1 if place is None else place for place in team.operations(side)], np.int64)
            absent = {"lead": _NEVER_LATE_NS, "delay": -self._new.program.rules[number].stream_ns}
            columns = np.stack([np.full(len(places), absent.get(field, 0.0)) for field in SelfTimes._fields])
            run_team, there = team.of(side), places >= 0
            if run_team is not None:
                columns[:, there] = np.stack(self_times)[:, self._usual(side).first[run_team] + places[there]]
            columns_of_teams.append(columns)
        return SelfTimes(*np.concatenate(columns_of_teams, axis=1))

    def _meet(self) -> tuple[tuple[Meeting, ...], Floats, Floats]:
        """Return the meetings of the new run, then those of the base alone; their transfers in the new run and base."""
        blocks = self._base.program.blocks
        took = {
            (blocks[block], place): ns
            for meeting, ns in zip(self._base.program.meetings, self._base.step.transfers.tolist(), strict=True)
            for block, place in meeting
        }
        meetings: list[tuple[Meeting, float, float]] = []
        slots = [self._runs.slot_of["new", number][1] for number in range(len(self._teams))]
        for meeting, ns in zip(self._new.program.meetings, self._new.step.transfers.tolist(), strict=True):
            teams = [self._new.program.blocks[block] for block, _ in meeting]
            members = tuple((block, slots[team][place]) for team, (block, place) in zip(teams, meeting, strict=True))
            transfers_ns = [self._transfer(took, team, slot) for team, (_, slot) in zip(teams, members, strict=True)]
            meetings.append((members, ns, max(transfers_ns, default=0.0)))
        for block, number in enumerate(self._new.program.blocks):
            operations = enumerate(self._origins(self._teams[number]))
            gone = [
                at
                for at, (usual, run_team, place) in operations
                if usual is self._base and usual.program.programs[run_team].operations[place].kind == COLLECTIVE
            ]
            meetings += [(((block, at),), 0.0, self._transfer(took, number, at)) for at in gone]
        upper, lower = np.array([times for _, *times in meetings], np.float64).reshape(len(meetings), 2).T
        return tuple(meeting for meeting, _, _ in meetings), upper, lower

    def _transfer(self, took: dict[tuple[int, int], float], number: int, slot: int) -> float:
        """Return the usual transfer in the base; 0 where the base lacks the collective."""
        base, place = self._teams[number].base, self._teams[number].slots[slot].base
        return 0.0 if base is None or place is None else took.get((base, place), 0.0)
