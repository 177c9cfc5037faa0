"""Process groups of collectives whose trace names none, inferred from which ranks leave them together.

If all teams have the same collectives in the same order, these are compared one by one. Stages of a pipeline have
exchanges of their own, which are matched first, pair by pair. An exchange that more than two ranks of a stage leave
together is a collective. Collectives that several stages share are compared last. Where sends and receives state a
group of more than two ranks, they are matched pair by pair, too: each has one peer in the group.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.alignment.program import Operation, Program
from jitter.analysis.collectives.exchange_matching import Exchanges, MatchedPair, are_messages, match_exchanges
from jitter.analysis.collectives.leaving_together import (
    ALONE,
    JointClocks,
    by_groups,
    divide_channel,
    groups_of,
    infer_groups,
    waits_more,
    with_absent_ranks,
)
from jitter.analysis.collectives.matching import Attended, Group
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.grouping import by_key
from jitter.core.names.kernels import SEND_RECV
from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.numeric.stats import lower_median

_LIMITS: Final = THRESHOLDS.group_inference
TeamEnds = tuple[Ints, Floats, Floats]
"""(ranks,) of a team that have a step; (operations, ranks) when each starts, and when it ends."""


class _Unit(NamedTuple):
    """All teams, if they have the same collectives without a group in the same order; else one of them."""

    teams: tuple[int, ...]
    members: tuple[tuple[int, int], ...]
    """(team, rank) of each rank."""
    start: Floats
    """(steps, collectives, ranks) when each rank enters each of them."""
    end: Floats


class _Common(NamedTuple):
    """A collective that all ranks of a unit have together, or may have."""

    unit: int
    collective: int
    operation: str | None
    end_ns: Floats
    """(steps,) on the clock of the first rank."""
    took: Floats
    """(steps, 1, ranks) how long each rank is in it."""
    is_told: bool
    """Whether the ranks' ends tell the groups of the collective."""


class AttendedGroups(NamedTuple):
    """Which ranks meet in each collective, as the trace states or as their ends show."""

    attended: Attended
    """Each rank's (place, group). Groups stay None where their ends do not tell them."""
    alone: frozenset[tuple[int, int]]
    """The (rank, place) that no other rank shares."""
    exchanges: frozenset[tuple[int, int]]
    """The (team, place) of operations without a name that are messages between two ranks."""


def infer_attended(
    programs: Mapping[int, Program],
    team_of: Mapping[int, int],
    attended: Attended,
    steps: Iterable[Mapping[int, TeamEnds]],
) -> AttendedGroups:
    """Infer the groups of each rank's collectives; `steps` are some steps, by team."""
    peerless = find_unnamed_peers(programs, team_of, attended)
    attended = {
        rank: [(place, None if (rank, place) in peerless else group) for place, group in attendances]
        for rank, attendances in attended.items()
    }
    unknown = _unknown_places(team_of, attended)
    units = _units(programs, team_of, unknown, steps)
    inferred = _InferredGroups(programs, team_of, unknown, units)
    # ranks of one unit that state no group exchange in rings, if at all
    is_apart = len(units) > 1 or bool(peerless)
    unnamed = _unnamed_operations(programs, team_of, unknown, units)
    messages_at = _list_messages(programs, unknown, units, unnamed | peerless) if is_apart else [[] for _ in units]
    inferred.match_messages(messages_at, unnamed | peerless, team_of)
    exchanges = frozenset((team_of[rank], place) for rank, place in unnamed.keys() & inferred.group_at.keys())
    for number, may_be_messages in enumerate(messages_at):
        inferred.divide_unit(number, frozenset(may_be_messages), exchanges)
    if is_apart:
        inferred.join_units()
    resolved = {
        rank: [(place, inferred.group_at.get((rank, place), group)) for place, group in attendances]
        for rank, attendances in attended.items()
    }
    return AttendedGroups(resolved, frozenset(inferred.alone | (peerless.keys() - inferred.group_at.keys())), exchanges)


class _InferredGroups:
    """The groups of a job's collectives as they become known, and with them the clocks of its ranks."""

    def __init__(
        self,
        programs: Mapping[int, Program],
        team_of: Mapping[int, int],
        unknown: Mapping[int, Sequence[int]],
        units: Sequence[_Unit],
    ) -> None:
        """Start without any; `unknown` are the places of each team's collectives without a group."""
        self._programs, self._unknown, self._units = programs, unknown, units
        self.group_at: dict[tuple[int, int], Group | None] = {}
        """By (rank, place)."""
        self.alone: set[tuple[int, int]] = set()
        """The (rank, place) that no other rank shares."""
        self._column = {rank: at for at, rank in enumerate(sorted(team_of))}
        self._clocks = JointClocks(len(team_of), len(units[0].end) if units else 0)
        self._absent = frozenset(range(max(team_of, default=-1) + 1)) - team_of.keys()
        self._common: list[_Common] = []

    def match_messages(
        self,
        messages_at: Sequence[Sequence[int]],
        among: Mapping[tuple[int, int], frozenset[int]],
        team_of: Mapping[int, int],
    ) -> None:
        """Match the messages between two ranks: by unit, which of its collectives may be some; `among` which ranks."""
        exchanges = _read_exchanges(self._programs, self._unknown, self._units, messages_at, among)
        for pair, messages in _messages(self._unknown, self._units, messages_at, exchanges, team_of):
            offset_ns = np.stack([np.zeros(len(pair.offset_ns)), -pair.offset_ns], axis=1)
            self._clocks.connect(self._columns(pair.ranks), offset_ns)
            self.group_at.update(messages)

    def divide_unit(self, number: int, may_be_messages: frozenset[int], exchanges: frozenset[tuple[int, int]]) -> None:
        """Divide the ranks of a unit into the groups of each of its collectives."""
        unit = self._units[number]
        team, ranks = unit.teams[0], [rank for _, rank in unit.members]
        places, operations = self._unknown[team], self._programs[team].operations
        # a stage exchanges with another one: that ranks of the stage leave together means nothing
        chosen = [
            at
            for at, place in enumerate(places)
            if not (operations[place].is_exchange and at in may_be_messages) and (team, place) not in exchanges
        ]
        labels_of, left_together = self._divide(unit, ranks, chosen)
        # replicas that keep pace seem to be groups of their own
        common = [at for at in labels_of if at in left_together] + [at for at in chosen if at not in labels_of]
        for at in common if len(self._units) > 1 else ():
            end_ns = self._end_ns(unit, ranks, at) if at in labels_of else unit.end[:, at, 0]
            took = unit.end[:, at : at + 1] - unit.start[:, at : at + 1]
            operation = operations[places[at]].collective
            self._common.append(_Common(number, at, operation, end_ns, took, at in labels_of))
        for at, labels in labels_of.items():
            numbers = sorted(set(labels.tolist()) - {ALONE})
            # one object each: matching takes each object's hash once, and a group may list hundreds of ranks
            group_of = dict(zip(numbers, map(Group, with_absent_ranks(ranks, labels, self._absent)), strict=True))
            for (team, rank), label in zip(unit.members, labels.tolist(), strict=True):
                if label == ALONE:
                    self.alone.add((rank, self._unknown[team][at]))
                elif len(ranks) > 1:
                    self.group_at[rank, self._unknown[team][at]] = group_of[label]

    def _divide(
        self, unit: _Unit, ranks: Sequence[int], chosen: Sequence[int]
    ) -> tuple[dict[int, Ints], frozenset[int]]:
        """Return the groups of a unit's chosen collectives, and which of these all its ranks leave together."""
        if len(ranks) == 1 or not chosen:
            is_alone = len(self._units) > 1
            return {at: np.zeros(1, np.int64) for at in chosen if is_alone}, frozenset(chosen)
        places, operations = self._unknown[unit.teams[0]], self._programs[unit.teams[0]].operations
        collectives = [operations[places[at]] for at in chosen]
        known = self._clocks.among(self._columns(ranks).tolist())
        inferred = infer_groups(collectives, unit.start[:, chosen], unit.end[:, chosen], known)
        for members in groups_of(inferred.clocks.component):
            columns = self._columns([ranks[member] for member in members.tolist()])
            self._clocks.connect(columns, inferred.clocks.offset_ns[:, members])
        labels_of = {chosen[at]: labels for at, labels in inferred.labels.items()}
        return labels_of, frozenset(chosen[at] for at in inferred.left_together)

    def _end_ns(self, unit: _Unit, ranks: Sequence[int], at: int) -> Floats:
        """Return (steps,) when most ranks leave a collective, on the clock of the first rank."""
        offset = self._clocks.offset_ns[:, self._columns(ranks)]
        return lower_median(unit.end[:, at] - offset + offset[:, :1])[:, 0]

    def _columns(self, ranks: Iterable[int]) -> Ints:
        return np.array([self._column[rank] for rank in ranks], np.int64)

    def join_units(self) -> None:
        """Join collectives that the ranks of several units leave together."""
        self.group_at.update(_shared_by_units(self._units, self._unknown, self._common, self._clocks, self._column))


def _unnamed_operations(
    programs: Mapping[int, Program],
    team_of: Mapping[int, int],
    unknown: Mapping[int, Sequence[int]],
    units: Sequence[_Unit],
) -> dict[tuple[int, int], frozenset[int]]:
    """Return, by (rank, place), the ranks of other units, with which collectives of unnamed operation may be messages.

    Not where all ranks have the same collectives: stages of a pipeline have not.
    """
    ranks = frozenset(team_of)
    return {
        (rank, place): others
        for unit in units
        for others in [ranks.difference(rank for _, rank in unit.members)]
        for team, rank in unit.members
        for place in unknown[team]
        if others and programs[team].operations[place].collective is None
    }


def find_unnamed_peers(
    programs: Mapping[int, Program], team_of: Mapping[int, int], attended: Attended
) -> dict[tuple[int, int], frozenset[int]]:
    """Return, by (rank, place), the ranks among which an exchange has its peer: it states a group, and no peer.

    Of a group of two ranks the peer is known, and the order in which they exchange; unless the exchanges are on several
    streams: messages of both directions are then in another order on each of the ranks.
    """
    exchanges = [
        (rank, place, group, programs[team_of[rank]].operations[place].stream)
        for rank, attendances in attended.items()
        for place, group in attendances
        if group is not None and group.ranks is not None and programs[team_of[rank]].operations[place].is_exchange
        if not group.is_ring and len(group.ranks) > 1
    ]
    streams_of = by_key(((rank, group), stream) for rank, _, group, stream in exchanges)
    ranks_of: dict[tuple[int, ...], frozenset[int]] = {}
    return {
        (rank, place): ranks_of.setdefault(group.ranks or (), frozenset(group.ranks or ()))
        for rank, place, group, _ in exchanges
        if len(group.ranks or ()) - (rank in (group.ranks or ())) > 1 or len(set(streams_of[rank, group])) > 1
    }


def _units(
    programs: Mapping[int, Program],
    team_of: Mapping[int, int],
    unknown: Mapping[int, Sequence[int]],
    steps: Iterable[Mapping[int, TeamEnds]],
) -> list[_Unit]:
    """Return the teams in units, with their times in these steps."""
    words = {team: _words([programs[team].operations[place] for place in places]) for team, places in unknown.items()}
    having = sorted(team for team, team_words in words.items() if team_words)
    divided = [having] if having and len(set(words.values())) == 1 else [[team] for team in having]
    ranks = {team: sorted(rank for rank, rank_team in team_of.items() if rank_team == team) for team in unknown}
    times: list[list[Floats]] = [[] for _ in divided]
    for step in steps:
        for number, teams in enumerate(divided):
            columns = [_times(step.get(team), unknown[team], ranks[team]) for team in teams]
            times[number].append(np.concatenate(columns, axis=2))
    return [
        _Unit(
            tuple(teams), tuple((team, rank) for team in teams for rank in ranks[team]), *np.stack(unit_times, axis=1)
        )
        for teams, unit_times in zip(divided, times, strict=True)
        if unit_times
    ]


def _words(collectives: Sequence[Operation]) -> tuple[tuple[str, int | None], ...]:
    """Return what must be equal for ranks to have the same collectives in the same order.

    Two stages of a pipeline have as many messages as each other, but take turns between the directions' streams.
    """
    number_of: dict[int, int] = {}
    return tuple(
        (
            collective.name,
            number_of.setdefault(collective.stream, len(number_of))
            if collective.collective in (None, SEND_RECV)
            else None,
        )
        for collective in collectives
    )


def _read_exchanges(
    programs: Mapping[int, Program],
    unknown: Mapping[int, Sequence[int]],
    units: Sequence[_Unit],
    chosen: Sequence[Sequence[int]],
    among: Mapping[tuple[int, int], frozenset[int]],
) -> dict[int, Exchanges]:
    """Return, by rank, the `chosen` collectives of each unit; `among`, by (rank, place), are possible peers."""
    exchanges: dict[int, Exchanges] = {}
    for unit, at in zip(units, chosen, strict=True):
        for column, (team, rank) in enumerate(unit.members) if at else ():
            places = [unknown[team][number] for number in at]
            operations = [programs[team].operations[place] for place in places]
            end = unit.end[:, at, column]
            exchanges[rank] = Exchanges(
                end,
                end - unit.start[:, at, column],
                np.array([operation.stream for operation in operations], np.int64),
                [among.get((rank, place)) for place in places],
                np.array([operation.is_exchange for operation in operations], np.bool_),
            )
    return exchanges


def _list_messages(
    programs: Mapping[int, Program],
    unknown: Mapping[int, Sequence[int]],
    units: Sequence[_Unit],
    among: Mapping[tuple[int, int], frozenset[int]],
) -> list[list[int]]:
    """Return, by unit, which of its collectives may be messages.

    Not exchanges that more than two of its ranks leave together, as ranks that hold experts do.
    """
    firsts = [(programs[team].operations, unknown[team], rank) for (team, rank), *_ in (unit.members for unit in units)]
    chosen_of = [
        [at for at, place in enumerate(places) if operations[place].is_exchange or (rank, place) in among]
        for operations, places, rank in firsts
    ]
    exchanges = _read_exchanges(programs, unknown, units, chosen_of, among)
    listed = []
    for unit, chosen, (operations, places, first) in zip(units, chosen_of, firsts, strict=True):
        ranks = [rank for _, rank in unit.members]
        others = exchanges.keys() - set(ranks)
        channels = by_key(
            (operations[places[at]].stream, number)
            for number, at in enumerate(chosen)
            if operations[places[at]].is_exchange and exchanges[first].among[number] is None
        )
        of_groups = set[int]()
        for channel in channels.values():
            members = [ranks[member] for member in _largest_group(unit, np.array(chosen)[channel]).tolist()]
            if len(members) > 2 and not are_messages(exchanges, members, channel, others):
                of_groups.update(channel)
        listed.append([at for number, at in enumerate(chosen) if number not in of_groups])
    return listed


def _largest_group(unit: _Unit, channel: Ints) -> Ints:
    """Return the largest of the groups that leave the collectives of a channel together; none if they are unclear."""
    divided = by_groups(dict(divide_channel(unit.end, unit.end - unit.start, channel)))
    is_clear = len(channel) >= THRESHOLDS.min_repeats and len(divided) == 1 and (divided[0][0] != ALONE).all()
    return max(groups_of(divided[0][0]), key=len) if is_clear else channel[:0]


def _messages(
    unknown: Mapping[int, Sequence[int]],
    units: Sequence[_Unit],
    chosen: Sequence[Sequence[int]],
    exchanges: Mapping[int, Exchanges],
    team_of: Mapping[int, int],
) -> Iterator[tuple[MatchedPair, dict[tuple[int, int], Group | None]]]:
    """Yield pairs of ranks with the group, by (rank, place), of each message between them."""
    places = {
        rank: [unknown[team][number] for number in at]
        for unit, at in zip(units, chosen, strict=True)
        for team, rank in unit.members
    }
    for pair in match_exchanges(exchanges, team_of):
        first_rank, second_rank = pair.ranks
        messages: dict[tuple[int, int], Group | None] = {}
        for number, (first_at, second_at) in enumerate(pair.messages):
            group = Group((first_rank, second_rank), f"message {number}")
            messages[first_rank, places[first_rank][first_at]] = messages[
                second_rank, places[second_rank][second_at]
            ] = group
        yield pair, messages


def _shared_by_units(
    units: Sequence[_Unit],
    unknown: Mapping[int, Sequence[int]],
    common: Sequence[_Common],
    clocks: JointClocks,
    column: Mapping[int, int],
) -> dict[tuple[int, int], Group | None]:
    """Return the group, by (rank, place), of collectives that the ranks of several units leave together.

    A unit that leaves one apart from all other units has it by itself, if its own ends do not tell its groups. `column`
    is that of each rank in `clocks`.
    """
    group_at: dict[tuple[int, int], Group | None] = {}
    waiting = list(common)
    count = 0
    while waiting:
        first, *others = waiting
        apart_ns = [_apart_ns(first, candidate, units, clocks, column) for candidate in others]
        together = {first.unit: first}
        for at in np.argsort(apart_ns, kind="stable").tolist():  # of a unit's collectives the one that ends nearest
            if apart_ns[at] <= _LIMITS.max_spread_ns:
                together.setdefault(others[at].unit, others[at])
        waiting = [candidate for candidate in others if together.get(candidate.unit) is not candidate]
        # units that take equally long leave together by chance: then the last rank of each waits for none
        took = np.concatenate([member.took for member in together.values()], axis=2)
        of_unit = np.repeat(np.arange(len(together)), [member.took.shape[2] for member in together.values()])
        if len(together) > 1 and waits_more(took, of_unit, np.zeros_like(of_unit)):
            ranks = sorted(rank for unit in together for _, rank in units[unit].members)
            for unit, member in together.items():
                for team, rank in units[unit].members:
                    group_at[rank, unknown[team][member.collective]] = Group(tuple(ranks), f"shared {count}")
            count += 1
        elif not first.is_told and len(together) == 1:
            of_others = [member for member in common if member.unit != first.unit]
            if any(math.isfinite(_apart_ns(first, member, units, clocks, column)) for member in of_others):
                group = Group(tuple(rank for _, rank in units[first.unit].members), "its unit's")
                for team, rank in units[first.unit].members:
                    group_at[rank, unknown[team][first.collective]] = group
    return group_at


def _apart_ns(
    first: _Common, second: _Common, units: Sequence[_Unit], clocks: JointClocks, column: Mapping[int, int]
) -> float:
    """Return how far apart two units leave their collectives at most; infinity if these cannot be the same one."""
    at, there = (column[units[member.unit].members[0][1]] for member in (first, second))
    if second.operation != first.operation or clocks.component[at] != clocks.component[there]:
        return math.inf
    apart = first.end_ns - second.end_ns - (clocks.offset_ns[:, at] - clocks.offset_ns[:, there])
    known_ns = apart[~np.isnan(apart)]
    return float(np.abs(known_ns).max(initial=0.0)) if len(known_ns) else math.inf


def _unknown_places(team_of: Mapping[int, int], attended: Attended) -> dict[int, list[int]]:
    """Return, by team, the places of collectives of which no rank records the group."""
    places = by_key(
        ((team_of[rank], group is None), place)
        for rank, attendances in attended.items()
        for place, group in attendances
    )
    return {
        team: sorted(set(of_team).difference(places.get((team, False), ())))
        for (team, is_unknown), of_team in places.items()
        if is_unknown
    }


def _times(step: TeamEnds | None, places: Sequence[int], ranks: Sequence[int]) -> Floats:
    """Return (2, places, ranks) when each rank enters and leaves these collectives; NaN where it lacks them."""
    times = np.full((2, len(places), len(ranks)), np.nan)
    if step is not None and len(step[0]):
        having, start, end = step
        columns, rows = np.searchsorted(ranks, having), np.asarray(places, np.int64)
        times[0][:, columns], times[1][:, columns] = start[rows], end[rows]
    return times
