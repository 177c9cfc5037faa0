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
from jitter.analysis.account.usual_step import Meeting, UsualProgram, UsualStep, renumber
from jitter.analysis.alignment.program import MAIN, Operation, Program
from jitter.analysis.alignment.sequences import align, find_gaps, similarity
from jitter.analysis.execution.dependencies import Dependencies, Wait
from jitter.analysis.execution.self_times import SelfTimes
from jitter.analysis.thresholds import THRESHOLDS
from jitter.comparison.document import RULES, Document, Team, TeamProgram
from jitter.core.grouping import by_key
from jitter.core.names.kernels import COMPUTE, MEETINGS
from jitter.core.numeric.arrays import Floats, begins_of

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
    block: int | None = None
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
    partners = align(second, first)
    blocks: tuple[dict[int, int], dict[int, int]] = {}, {}
    for number, (new_gap, base_gap) in enumerate(list(find_gaps(partners, len(first)))):
        left = [[at for at in gap if side[at].is_kernel] for side, gap in ((base, base_gap), (new, new_gap))]
        kinds = [
            [(side[at].kind, side[at].stream == MAIN) for at in kernels]
            for side, kernels in zip((base, new), left, strict=True)
        ]
        pairs = list(zip(*left, strict=False))
        names = {(base[at].name, new[to].name) for at, to in pairs}
        if kinds[BASE] == kinds[NEW] and all(len(set(side)) == len(names) for side in zip(*names, strict=True)):
            for at, to in pairs:
                partners[to] = at
        elif set(kinds[BASE]) & set(kinds[NEW]):
            for block, kernels in zip(blocks, left, strict=True):
                block.update(dict.fromkeys(kernels, ~number))
    slots: list[Slot] = []
    for new_gap, base_gap in find_gaps(partners, len(first)):
        slots += [Slot((at, None), (base[at], None), blocks[BASE].get(at)) for at in base_gap]
        slots += [Slot((None, at), (None, new[at]), blocks[NEW].get(at)) for at in new_gap]
        if (at := base_gap.stop) < len(first):
            slots.append(Slot((at, new_gap.stop), (base[at], new[new_gap.stop])))
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
    def ranks(self) -> list[frozenset[int]]:
        """The ranks of each team, in both runs."""
        of_runs = [document.teams for document in self.documents]
        both = [zip(of_runs, aligned.runs, strict=True) for aligned in self.teams]
        return [frozenset(rank for teams, at in runs if at is not None for rank in teams[at].ranks) for runs in both]

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


def _operations(document: Document, team: TeamProgram) -> list[Operation]:
    columns = zip(team.names, team.kinds, team.streams, team.threads, strict=True)
    return [Operation(document.names[name], kind, stream, thread) for name, kind, stream, thread in columns]


def _program_of(operations: Iterable[Operation]) -> Program:
    return Program(tuple(operations), {}, ("", b""))  # no recording is fitted to it


def _rules_of(team: TeamProgram) -> Dependencies:
    waits = tuple(
        Wait(place, on_place, "event", back, "inferred" if is_of_host else "observed")
        for place, on_place, back, is_of_host in team.waits
    )
    leads = {place: float(ns) for place, ns in team.host_lead_ns}
    same = {name: getattr(team, name) for name in RULES}
    return Dependencies(
        waits=waits,
        thread=np.array(team.threads, np.int64),
        later_beside=dict(team.later_beside),
        host_lead_ns=leads,
        **same,
    )


class _UsualRun:
    """The usual step of one run: by its own operations as recorded, and by slots, which both runs share."""

    def __init__(self, document: Document, side: int, aligned: Sequence[AlignedTeam]) -> None:
        assert document.usual is not None
        teams, meetings = document.usual.teams, document.usual.meetings
        self.program = UsualProgram(
            {number: _program_of(_operations(document, team)) for number, team in enumerate(teams)},
            {number: _rules_of(team) for number, team in enumerate(teams)},
            document.usual.blocks,
            tuple(meeting.members for meeting in meetings),
        )
        self.step = UsualStep(
            SelfTimes(*np.hstack([np.array(team.self_times, np.float64) for team in teams])),
            np.array([meeting.transfer_ns for meeting in meetings], np.float64),
        )
        self.team_of = {
            number: of_run for number, team in enumerate(aligned) if (of_run := team.runs[side]) is not None
        }
        """By number of an aligned team the number of its team in this run, if it has one."""
        self.rules = {
            number: renumber(self.program.rules[of_run], aligned[number].slot_of[side])
            for number, of_run in self.team_of.items()
        }
        self._slot_of = {
            (of_run, place): (number, slot)
            for number, of_run in self.team_of.items()
            for place, slot in aligned[number].slot_of[side].items()
        }
        first, first_slot = begins_of(len(team.names) for team in teams), begins_of(len(team.slots) for team in aligned)
        self._operations = np.array([first[of_run] + place for of_run, place in self._slot_of], np.int64)
        self._slots = np.array([first_slot[number] + slot for number, slot in self._slot_of.values()], np.int64)

    def by_slot(self, values: Iterable[Floats], absent: Iterable[Floats]) -> Floats:
        """Return, (fields, slots of all teams,), values of operations; those of `absent` where the run lacks them."""
        of_slots = np.stack(list(absent))
        of_slots[:, self._slots] = np.stack(list(values))[:, self._operations]
        return of_slots

    def meetings(self) -> Iterator[tuple[list[tuple[int, int, int]], float]]:
        """Yield what of each meeting is of aligned teams, as block, aligned team and slot, and its transfer."""
        for members, ns in zip(self.program.meetings, self.step.transfers.tolist(), strict=True):
            keys = [(block, (self.program.blocks[block], place)) for block, place in members]
            yield [(block, *self._slot_of[key]) for block, key in keys if key in self._slot_of], ns


class _CommonProgram:
    """The program that holds the operations of two runs; an operation that a run lacks takes no time in it.

    It has the waits of both runs: a wait that never mattered in one of them is not seen there, and does no harm. But
    what waits in one run alone would hold the other run back too: a new call that synchronises, or a kernel that waits
    for a collective beside which the other run computes. Such waits are left out, and charged by replays with them
    (`charge_own_rules`). The blocks of ranks, the launch queue and the usual delays of launches are those of the new
    run.
    """

    def __init__(self, runs: AlignedRuns) -> None:
        self._teams = [team for team in runs.teams if team.runs[NEW] is not None]
        self._first = begins_of(len(team.slots) for team in self._teams)
        self._runs = [_UsualRun(document, side, self._teams) for side, document in enumerate(runs.documents)]
        base, new = self._runs
        self._alone = [self._waits_alone(side) for side in (BASE, NEW)]
        meetings, upper, lower = self._meet()
        self.program = UsualProgram(
            {number: _program_of(slot.operation for slot in team.slots) for number, team in enumerate(self._teams)},
            {number: self._join_rules(number) for number in range(len(self._teams))},
            new.program.blocks,
            meetings,
        )
        rules = {**base.program.rules, **{of_run: new.rules[number] for number, of_run in base.team_of.items()}}
        launch_ns, stream_ns = (
            {of_run: getattr(of_team, field) for of_run, of_team in rules.items()}
            for field in ("launch_ns", "stream_ns")
        )
        own_of_base = base.program.with_delays(base.step, launch_ns, stream_ns)
        zeros = np.zeros(self._first[-1])
        usual_delay_ns = np.repeat([new.rules[number].stream_ns for number in new.rules], np.diff(self._first))
        absent = SelfTimes(zeros, zeros, zeros + _NEVER_LATE_NS, -usual_delay_ns, zeros)
        self.upper = UsualStep(SelfTimes(*new.by_slot(new.step.self_times, absent)), upper)
        self.lower = UsualStep(SelfTimes(*base.by_slot(own_of_base, absent)), lower)

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
        run, step = self._runs[side], self.upper if side == NEW else self.lower
        left_ns, rules = common_ns, dict(self.program.rules)

        def charge(loss_class: LossClass, changed: Mapping[int, Dependencies], *place: int) -> Row:
            nonlocal left_ns
            rules.update(changed)
            with_ns = replace(self.program, rules=dict(rules)).time_ns(step)
            left_ns, added_ns = with_ns, with_ns - left_ns
            return _usual_row(loss_class, sign * added_ns, *place)

        alone: list[tuple[tuple[int, LossClass, str], tuple[int, Wait]]] = []
        for number, waits in self._alone[side].items():
            slots = self._teams[number].slots
            for wait in waits:
                is_kernel = slots[wait.op_index].operation.is_kernel
                charged = wait.on_op_index if is_kernel else wait.op_index
                loss_class = LossClass.OVERLAP if is_kernel else LossClass.LAUNCH
                alone.append(((number, loss_class, slots[charged].operation.name), (charged, wait)))
        for (number, loss_class, _), charges in by_key(alone).items():
            with_alone = replace(rules[number], waits=(*rules[number].waits, *(wait for _, wait in charges)))
            yield charge(loss_class, {number: with_alone}, number, charges[0][0])
        for loss_class, field in ((LossClass.OVERLAP, "interference"), (LossClass.LAUNCH, "queue")):
            own_values = {number: {field: getattr(own_rules, field)} for number, own_rules in run.rules.items()}
            changed = {number: replace(rules[number], **value) for number, value in own_values.items()}
            if any(getattr(rules[number], field) != getattr(of_team, field) for number, of_team in changed.items()):
                yield charge(loss_class, changed)
        yield _usual_row(LossClass.UNEXPLAINED, sign * (run.program.time_ns(run.step) - left_ns))

    def _waits_alone(self, side: int) -> dict[int, list[Wait]]:
        """Return by team the waits of one run that the other run has not, if that has the team.

        They are those of calls and copies that the other run lacks, and those of kernels that start there before the
        end of what they wait for here.
        """
        run, other = self._runs[side], self._runs[1 - side]
        spans = np.hstack(list(map(np.stack, other.program.spans(other.step).values())))
        spans = other.by_slot(spans, np.full((2, self._first[-1]), np.nan))
        alone = defaultdict[int, list[Wait]](list)
        for number in [number for number in run.rules if number in other.rules]:
            slots, (start, end) = self._teams[number].slots, spans[:, self._first[number] :]
            for wait in run.rules[number].waits:
                slot, awaited = slots[wait.op_index], wait.on_op_index
                if slot.operation.is_kernel:
                    is_of_step = wait.provenance != "inferred" and awaited >= 0 and not wait.steps_back
                    is_alone = is_of_step and start[wait.op_index] < end[awaited] - THRESHOLDS.rounding_ns
                else:
                    is_alone = slot.places[1 - side] is None
                if is_alone:
                    alone[number].append(wait)
        return alone

    def _join_rules(self, number: int) -> Dependencies:
        waits: dict[tuple[int, int, int, bool], Wait] = {}
        leads: dict[int, float] = {}
        later_beside: dict[int, set[int]] = defaultdict(set)
        for run, alone in zip(self._runs, self._alone, strict=True):
            if (rules := run.rules.get(number)) is not None:
                left = [wait for wait in rules.waits if wait not in alone[number]]
                waits |= {(*wait[:2], wait.steps_back, wait.provenance == "inferred"): wait for wait in left}
                leads |= rules.host_lead_ns
                for place, others in rules.later_beside.items():
                    later_beside[place].update(others)
        return replace(
            self._runs[NEW].rules[number],
            waits=tuple(waits[key] for key in sorted(waits)),
            thread=np.array([slot.operation.thread for slot in self._teams[number].slots], np.int64),
            later_beside={place: sorted(others) for place, others in later_beside.items()},
            host_lead_ns=leads,
        )

    def _meet(self) -> tuple[tuple[Meeting, ...], Floats, Floats]:
        """Return the meetings of the new run, then those of the base alone; their transfers in the new run and base."""
        base, new = self._runs
        base_ns = {(number, slot): ns for members, ns in base.meetings() for _, number, slot in members}
        meetings: list[tuple[Meeting, float, float]] = []
        for members, ns in new.meetings():
            transfers_ns = (base_ns.get((number, slot), 0.0) for _, number, slot in members)
            meetings.append((tuple((block, slot) for block, _, slot in members), ns, max(transfers_ns, default=0.0)))
        for block, number in enumerate(new.program.blocks):
            for at, slot in enumerate(self._teams[number].slots):
                if slot.places[NEW] is None and slot.operation.kind in MEETINGS:
                    meetings.append((((block, at),), 0.0, base_ns.get((number, at), 0.0)))
        upper, lower = np.array([times for _, *times in meetings], np.float64).reshape(len(meetings), 2).T
        return tuple(meeting for meeting, _, _ in meetings), upper, lower
