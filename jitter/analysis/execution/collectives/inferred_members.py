"""Members of collectives whose trace names no group: which ranks leave them together, over all teams of the run.

If all teams have the same collectives in the same order, these are compared one by one. Stages of a pipeline differ in
their exchanges: these are matched pair by pair, and then the collectives that several stages share.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jitter.analysis.execution.collectives.exchange_matching import Exchanges, MatchedPair, match_exchanges
from jitter.analysis.execution.collectives.group_inference import ALONE, infer_groups, with_absent_ranks
from jitter.analysis.execution.collectives.matching import Group
from jitter.analysis.execution.program import Program
from jitter.analysis.execution.recorded.step_times import TeamTimes
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.numeric.stats import lower_median

Attended = Mapping[int, Sequence[tuple[int, Group]]]


class _Unit(NamedTuple):
    """All teams, if they have the same collectives without a group in the same order; else one of them."""

    teams: tuple[int, ...]
    members: tuple[tuple[int, int], ...]
    """(team, rank) of each rank."""
    start: Floats
    """(steps, collectives, ranks) when each rank enters each of them."""
    end: Floats


class _Common(NamedTuple):
    """A collective that all ranks of a unit have together."""

    unit: int
    collective: int
    operation: str | None
    end_ns: Floats
    """(steps,) on the clock of the first rank."""


def infer_attended(
    programs: Mapping[int, Program],
    team_of: Mapping[int, int],
    attended: Attended,
    steps: Iterable[Mapping[int, TeamTimes]],
) -> tuple[dict[int, list[tuple[int, Group]]], frozenset[tuple[int, int]]]:
    """Return each rank's (place, group) with inferred groups, and the (rank, place) that no other rank shares.

    `steps` are some steps, by team. Groups stay None where their ends do not tell them.
    """
    unknown = _unknown_places(team_of, attended)
    units = _units(programs, team_of, unknown, steps)
    told: dict[tuple[int, int], Group] = {}
    alone: set[tuple[int, int]] = set()
    clocks = _JobClocks(sorted(team_of), len(units[0].end) if units else 0)
    common: list[_Common] = []
    absent = frozenset(range(max(team_of, default=-1) + 1)) - team_of.keys()
    for number, unit in enumerate(units):
        places, operations = unknown[unit.teams[0]], programs[unit.teams[0]].operations
        ranks = [rank for _, rank in unit.members]
        # a stage exchanges with another one: that ranks of the stage leave together means nothing
        chosen = [at for at, place in enumerate(places) if len(units) == 1 or not _is_exchange(operations[place])]
        labels_of: dict[int, Ints] = {}
        if len(ranks) == 1:
            labels_of = {} if len(units) == 1 else {at: np.zeros(1, np.int64) for at in chosen}
        elif chosen:
            own = [operations[places[at]] for at in chosen]
            inferred = infer_groups(own, unit.start[:, chosen], unit.end[:, chosen])
            labels_of = {chosen[at]: labels for at, labels in inferred.labels.items()}
            clocks.connect(ranks, inferred.offset_ns, inferred.component)
        for at, labels in labels_of.items():
            if (labels == 0).all() and len(units) > 1:
                offset = clocks.offset_of(ranks)
                end_ns = lower_median(unit.end[:, at] - offset + offset[:, :1])[:, 0]
                common.append(_Common(number, at, operations[places[at]].collective, end_ns))
            numbers = sorted(set(labels.tolist()) - {ALONE})
            group_of = dict(zip(numbers, with_absent_ranks(ranks, labels, absent), strict=True))
            for (team, rank), label in zip(unit.members, labels.tolist(), strict=True):
                if label == ALONE:
                    alone.add((rank, unknown[team][at]))
                elif len(ranks) > 1:
                    told[rank, unknown[team][at]] = ("ranks", *group_of[label])
    if len(units) > 1:
        for pair, messages in _exchanges(programs, team_of, unknown, units):
            clocks.connect(pair.ranks, np.stack([np.zeros(len(pair.offset_ns)), -pair.offset_ns], axis=1), np.zeros(2))
            told.update(messages)
        told.update(_shared_by_units(units, unknown, common, clocks))
    known = {rank: [(place, told.get((rank, place), group)) for place, group in own] for rank, own in attended.items()}
    return known, frozenset(alone)


class _JobClocks:
    """The clocks of all ranks, as far as collectives and messages connect them."""

    def __init__(self, ranks: Sequence[int], steps: int) -> None:
        self._column = {rank: column for column, rank in enumerate(ranks)}
        self._offset = np.zeros((steps, len(ranks)))
        self._component = np.arange(len(ranks))

    def connect(self, ranks: Sequence[int], offset_ns: Floats, component: Floats | Ints) -> None:
        """Connect ranks of equal component; `offset_ns` (steps, ranks) is what each one's clock is ahead."""
        for part in np.unique(component).tolist():
            own = np.flatnonzero(component == part)
            first = self._column[ranks[own[0]]]
            for at in own[1:].tolist():
                other = self._column[ranks[at]]
                if self._component[first] != self._component[other]:
                    moved = self._component == self._component[other]
                    shift = offset_ns[:, at] - offset_ns[:, own[0]] - self._offset[:, other] + self._offset[:, first]
                    self._offset[:, moved] += shift[:, None]
                    self._component[moved] = self._component[first]

    def offset_of(self, ranks: Sequence[int]) -> Floats:
        """Return, (steps, ranks), what their clocks are ahead of that of the first rank of their component."""
        found: Floats = self._offset[:, [self._column[rank] for rank in ranks]]
        return found

    def between(self, one: int, other: int) -> Floats | None:
        """Return, (steps,), what one rank's clock is ahead of another's; None if that is unknown."""
        first, second = self._column[one], self._column[other]
        if self._component[first] != self._component[second]:
            return None
        found: Floats = self._offset[:, first] - self._offset[:, second]
        return found


def _is_exchange(operation: object) -> bool:
    return getattr(operation, "collective", None) == "send_recv"


def _units(
    programs: Mapping[int, Program],
    team_of: Mapping[int, int],
    unknown: Mapping[int, Sequence[int]],
    steps: Iterable[Mapping[int, TeamTimes]],
) -> list[_Unit]:
    """Return the teams in units, with their times in these steps."""
    names = {team: tuple(programs[team].operations[place].name for place in own) for team, own in unknown.items()}
    having = sorted(team for team, own in names.items() if own)
    divided = [having] if len(set(names.values())) == 1 else [[team] for team in having]
    ranks = {team: sorted(rank for rank, own in team_of.items() if own == team) for team in unknown}
    times: list[list[Floats]] = [[] for _ in divided]
    for step in steps:
        for number, teams in enumerate(divided):
            columns = [_times(step.get(team), unknown[team], ranks[team]) for team in teams]
            times[number].append(np.concatenate(columns, axis=2))
    return [
        _Unit(tuple(teams), tuple((team, rank) for team in teams for rank in ranks[team]), *np.stack(own, axis=1))
        for teams, own in zip(divided, times, strict=True)
        if own
    ]


def _exchanges(
    programs: Mapping[int, Program],
    team_of: Mapping[int, int],
    unknown: Mapping[int, Sequence[int]],
    units: Sequence[_Unit],
) -> Iterator[tuple[MatchedPair, dict[tuple[int, int], Group]]]:
    """Yield pairs of ranks with the group, by (rank, place), of each message between them."""
    exchanges: dict[int, Exchanges] = {}
    places: dict[int, list[int]] = {}
    for unit in units:
        for column, (team, rank) in enumerate(unit.members):
            operations = programs[team].operations
            chosen = [at for at, place in enumerate(unknown[team]) if _is_exchange(operations[place])]
            if chosen:
                places[rank] = [unknown[team][at] for at in chosen]
                stream = np.array([operations[place].stream for place in places[rank]], np.int64)
                exchanges[rank] = Exchanges(unit.end[:, chosen, column], stream)
    for pair in match_exchanges(exchanges, team_of):
        one, other = pair.ranks
        messages: dict[tuple[int, int], Group] = {}
        for number, (own, theirs) in enumerate(pair.messages):
            group = ("ranks", one, other, f"message {number}")
            messages[one, places[one][own]] = messages[other, places[other][theirs]] = group
        yield pair, messages


def _shared_by_units(
    units: Sequence[_Unit], unknown: Mapping[int, Sequence[int]], common: Sequence[_Common], clocks: _JobClocks
) -> dict[tuple[int, int], Group]:
    """Return the group, by (rank, place), of collectives that the ranks of several units leave together."""
    found: dict[tuple[int, int], Group] = {}
    waiting = list(common)
    count = 0
    while waiting:
        first, together = waiting[0], [waiting[0]]
        for other in waiting[1:]:
            offset = clocks.between(units[first.unit].members[0][1], units[other.unit].members[0][1])
            if other.operation != first.operation or offset is None or other.unit in {one.unit for one in together}:
                continue
            apart = first.end_ns - other.end_ns - offset
            known = apart[~np.isnan(apart)]
            if len(known) and np.abs(known).max() <= THRESHOLDS.group_inference.max_spread_ns:
                together.append(other)
        waiting = [one for one in waiting if one not in together]
        if len(together) > 1:
            ranks = sorted(rank for one in together for _, rank in units[one.unit].members)
            for one in together:
                for team, rank in units[one.unit].members:
                    found[rank, unknown[team][one.collective]] = ("ranks", *ranks, f"shared {count}")
            count += 1
    return found


def _unknown_places(team_of: Mapping[int, int], attended: Attended) -> dict[int, list[int]]:
    """Return, by team, the places of collectives of which no rank records the group."""
    unknown: dict[int, set[int]] = defaultdict(set)
    known: dict[int, set[int]] = defaultdict(set)
    for rank, own in attended.items():
        for place, group in own:
            (unknown if group is None else known)[team_of[rank]].add(place)
    return {team: sorted(places - known[team]) for team, places in unknown.items()}


def _times(step: TeamTimes | None, places: Sequence[int], ranks: Sequence[int]) -> Floats:
    """Return (2, places, ranks) when each rank enters and leaves these collectives; NaN where it lacks them."""
    found = np.full((2, len(places), len(ranks)), np.nan)
    if step is not None and len(step.ranks):
        columns, rows = np.searchsorted(ranks, step.ranks), np.asarray(places, np.int64)
        found[0][:, columns], found[1][:, columns] = step.start[rows], step.end[rows]
    return found
