"""Match the collectives of different ranks by (group, order): `jitter explain dependencies`.

Two collective kernels of different ranks are one collective if their group is equal and each is the k-th of its rank in
it. This holds for the kernels of one step (`read_groups`, `number_in_groups`) and for the places of the program.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.alignment.program import Program
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.arrow import encode_lists
from jitter.core.grouping import by_key
from jitter.core.numeric.arrays import Bools, Floats, Ints, begins_of, distinct_rows, joined, spread_positions
from jitter.lake.step_reader import StepColumns

GROUP_COLUMNS: Final = ("group_name", "group_ranks", "source_rank", "destination_rank")
"""Columns of `schema.KERNELS` that tell a collective's group."""


class Group(NamedTuple):
    """Ranks that communicate. A collective whose group the trace does not state has None in its place."""

    ranks: tuple[int, ...] | None
    """None: the trace states the name alone. A send or receive of stated peers: the sender and the receiver."""
    name: str | None = None
    """None where the ranks know the group by several names, such as addresses."""
    is_ring: bool = False
    """Whether each rank waits for the one before and the one after it in `ranks` alone."""
    is_open: bool = False
    """Of a ring, whether it is a line: its first and last rank do not wait for each other."""


AttendedPlaces = Mapping[int, Group | None]
"""By place of the program the group of the collective there."""
Attended = Mapping[int, Sequence[tuple[int, Group | None]]]
"""By rank the (place, group) of its collectives, in the order of its program."""


def name_group(group: Group | None) -> str:
    """Return the name of a group in tables and in `--group`."""
    if group is None:
        return "all"
    return ",".join(map(str, group.ranks or ())) if group.name is None else group.name


def read_groups(read: StepColumns, rows: Ints) -> tuple[Ints, list[Group | None]]:
    """Return the group of each of these collectives, (rows,), as a position in a list, and that list.

    A send or receive whose peers are stated meets its peer, not the group's other transfers. `read` has
    `GROUP_COLUMNS`.
    """
    names, texts = read.codes("group_name")
    lists, listed = encode_lists(read.table["group_ranks"])
    peers = [np.where(read.known(name), read.values(name), -1)[rows] for name in ("source_rank", "destination_rank")]
    first, stated = distinct_rows(names[rows].astype(np.int64), lists[rows], *peers)
    # groups may list hundreds of ranks: equal ones are one object
    members = {tuple(ranks): frozenset(ranks) for ranks in listed}
    ranks_of = [None if code < 0 else listed[code] for code in lists[rows][first].tolist()]
    name_of = [None if code < 0 else texts[code] for code in names[rows][first].tolist()]
    peers_of = list(zip(*(column[first].tolist() for column in peers), strict=True))
    # some programs state a peer's place in its group: which rank that is is then told by which pairs end together
    are_places = any(
        -1 not in pair and (pair[0] == pair[1] or (ranks is not None and not members[ranks].issuperset(pair)))
        for pair, ranks in zip(peers_of, ranks_of, strict=True)
    )
    meeting = [ranks if -1 in pair else pair for ranks, pair in zip(ranks_of, peers_of, strict=True)]
    # several groups may have the same ranks; a name that only one rank knows (an address) tells nothing
    names_by_rank: dict[tuple[int, ...] | None, dict[int, set[str | None]]] = {}
    for at in distinct_rows(read.of_rank[rows], stated)[0].tolist():
        number = int(stated[at])
        of_ranks = names_by_rank.setdefault(meeting[number], {})
        of_ranks.setdefault(int(read.of_rank[rows[at]]), set()).add(name_of[number])
    agreed = {
        ranks for ranks, names_of_rank in names_by_rank.items() if len(set(map(frozenset, names_of_rank.values()))) == 1
    }
    groups: dict[Group | None, int] = {}
    code = np.empty(len(first), np.int64)
    for number, (ranks, name) in enumerate(zip(meeting, name_of, strict=True)):
        is_unknown = (are_places and -1 not in peers_of[number]) or (ranks is None and name is None)
        group = None if is_unknown else Group(ranks, name if ranks is None or ranks in agreed else None)
        code[number] = groups.setdefault(group, len(groups))
    return code[stated], list(groups)


def number_in_groups(rank: Ints, group: Ints) -> Ints:
    """Return, (collectives,), how many the rank of each has in the group before it; each rank's are in launch order."""
    order = np.lexsort((group, rank))
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (np.diff(rank[order]) != 0) | (np.diff(group[order]) != 0)
    first = np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order)) - first
    return number


class Attendance(NamedTuple):
    """A rank's collective at a place of its program."""

    rank: int
    place: int


class CollectiveArrays(NamedTuple):
    """All collectives as flat arrays: one entry an attendance, collective by collective, block by block.

    A block are ranks of one team that meet the same others at the same places.
    """

    first: Ints
    """(collectives + 1,) where each one's attendances begin."""
    first_group: Ints
    """(collectives + 1,) where each one's groups begin, of all groups."""
    rank: Ints
    """(attendances,) the rank's number in the run."""
    place: Ints
    group: Ints
    """(attendances,) the group, of all groups."""
    first_in_group: Ints
    """(groups of all collectives + 1,) where the arrivals that each group waits for begin in `by_group`."""
    by_group: Ints
    """(arrivals,) attendances, group after group. In a ring a group is one rank, and waits for others as well."""
    lag: Floats
    """(arrivals,) of a step: how much later than the arriving rank's own end the group's is, on that rank's clock, ns.
    0 for ranks that leave together; NaN: unknown.
    """
    first_absent: Ints
    """(groups of all collectives + 1,) where the absent members of each group begin in `absent`."""
    absent: Ints
    """Members that were not recorded, numbered after the ranks of the run; alike ones have one number."""
    first_member: Ints
    """(blocks + 1,) where each block's ranks begin in `member`."""
    member: Ints
    """(ranks,) the blocks' ranks."""
    block: Ints
    """(ranks of the run,) each one's block."""
    column: Ints
    """(ranks of the run,) each one's position in its block."""
    first_place: Ints
    """(blocks + 1,) where each block's places begin in the two that follow."""
    number_at: Ints
    """(blocks × places,) the collective there, -1 for none."""
    attendance_at: Ints
    """(blocks × places,) where the block's attendances of it begin."""

    def arrivals(self, group: int) -> Ints:
        """Return the attendances that a group, of all groups, waits for."""
        return self.by_group[self.first_in_group[group] : self.first_in_group[group + 1]]

    def groups_at(self, block: int, place: int) -> Ints:
        """Return, (ranks of the block,), the groups, of all groups, of the collective at a place of their program."""
        first = self.attendance_at[self.first_place[block] + place]
        return self.group[first : first + self.first_member[block + 1] - self.first_member[block]]

    @property
    def collective(self) -> Ints:
        """(groups of all collectives,) the collective of each."""
        return np.repeat(np.arange(len(self.first_group) - 1), np.diff(self.first_group))

    @property
    def incomplete(self) -> Bools:
        """(groups of all collectives,) which of them have members that were not recorded."""
        is_incomplete: Bools = np.diff(self.first_absent) > 0
        return is_incomplete

    @property
    def awaiting(self) -> Ints:
        """(arrivals,) the group, of all groups, that waits for each."""
        return np.repeat(np.arange(len(self.first_in_group) - 1), np.diff(self.first_in_group))


@dataclass(frozen=True)
class CollectiveMatching:
    """All of a job's collectives."""

    ranks: Ints
    """(ranks of the run,) by their numbers in the run."""
    teams: tuple[int, ...]
    """Of each block."""
    members: tuple[tuple[tuple[int, int], ...], ...]
    """By collective the (block, place) that meet in it, ascending."""
    arrays: CollectiveArrays
    absent: Sequence[tuple[int, ...]]
    """(groups of all collectives,) the members of each that were not recorded."""
    unrecorded: bool = False
    """Some collective's group is neither recorded nor inferred: it was read as all ranks'."""
    named: int = 0
    """How many ranks the recorded groups name: more than the lake holds if some were not recorded."""
    unpaired: int = 0
    """Collectives of unknown partners, by rank: in the replay they delay no other rank."""
    inferred: bool = False
    """Some collective's group was not recorded, and inferred from which ranks leave it together."""
    exchanges: frozenset[tuple[int, int]] = frozenset()
    """The (team, place) of operations without a name that were inferred to be messages between two ranks."""

    @property
    def lacks_groups(self) -> bool:
        """Whether some collective's group was not recorded: ranks without a recording may belong to it."""
        return self.unrecorded or self.inferred or self.unpaired > 0

    def places(self, number: int) -> list[tuple[int, int]]:
        """Return the (team, place) of a collective's operations."""
        return [(self.teams[block], place) for block, place in self.members[number]]


def lay_out_collectives(
    blocks: Sequence[Sequence[int]],
    team_of: Mapping[int, int],
    operations: Mapping[int, int],
    held: Sequence[Sequence[Sequence[Attendance]]],
    awaited: Mapping[Attendance, Sequence[int]] = MappingProxyType({}),
    absent: Sequence[tuple[int, ...]] | None = None,
) -> CollectiveMatching:
    """Return the collectives of ranks that meet in known groups.

    Args:
        blocks: the ranks of each block.
        team_of: the team of each rank.
        operations: how many each team's program has.
        held: by collective its groups.
        awaited: the ranks that a rank in a ring waits for; it is a group of its own.
        absent: of each group, of all groups, the members that were not recorded; None: all were.

    """
    ranks = sorted(chain.from_iterable(blocks), key=lambda rank: (team_of[rank], rank))
    number_of = {rank: number for number, rank in enumerate(ranks)}
    members = [np.array([number_of[rank] for rank in block], np.int64) for block in blocks]
    numbered = {rank: (block, column) for block, ranks_of in enumerate(blocks) for column, rank in enumerate(ranks_of)}
    teams = tuple(team_of[block[0]] for block in blocks)
    first_place = begins_of(operations[team] for team in teams)
    number_at, attendance_at = np.full((2, int(first_place[-1])), -1, np.int64)
    first_group, met = begins_of(map(len, held)), []
    first, rank, place, group_of = [0], [], [], list[int]()
    for number, groups in enumerate(held):
        met.append(tuple(sorted({(numbered[at.rank][0], at.place) for group in groups for at in group})))
        begins: dict[tuple[int, int], int] = {}
        for block, at_place in met[-1]:
            begins[block, at_place] = attendance_at[first_place[block] + at_place] = len(group_of)
            number_at[first_place[block] + at_place] = number
            rank.append(members[block])
            place.append(np.full(len(members[block]), at_place))
            group_of += [-1] * len(members[block])
        for group_number, group in enumerate(groups, int(first_group[number])):
            for at in group:
                block, column = numbered[at.rank]
                group_of[begins[block, at.place] + column] = group_number
        first.append(len(group_of))
    every, lacking = joined(members), [()] * int(first_group[-1]) if absent is None else absent
    order = np.argsort(np.array(group_of, np.int64), kind="stable")
    sizes = np.bincount(np.array(group_of, np.int64), minlength=int(first_group[-1]))
    rank_of = joined(rank)
    arrivals: list[Ints] = np.split(order, np.cumsum(sizes)[:-1]) if held else []
    for number, groups in enumerate(held) if awaited else ():
        attended = range(first[number], first[number + 1])
        attendance_of = dict(zip(rank_of[attended].tolist(), attended, strict=True))
        for group_number, (at, *_) in enumerate(groups, int(first_group[number])):
            waited_for = [attendance_of[number_of[other]] for other in awaited.get(at, ())]
            arrivals[group_number] = np.append(arrivals[group_number], np.array(waited_for, np.int64))
    numbers_absent = _number_absent(lacking, len(every))
    of_block, of_column = np.zeros((2, len(every)), np.int64)
    of_block[every] = np.repeat(np.arange(len(members)), [len(block_ranks) for block_ranks in members])
    of_column[every] = joined([np.arange(len(block_ranks)) for block_ranks in members])
    by_group = joined(arrivals)
    arrays = CollectiveArrays(
        np.array(first, np.int64),
        first_group,
        rank_of,
        joined(place),
        np.array(group_of, np.int64),
        begins_of(map(len, arrivals)),
        by_group,
        np.zeros(len(by_group)),
        begins_of(map(len, numbers_absent)),
        joined([np.array(absent_ranks, np.int64) for absent_ranks in numbers_absent]),
        begins_of(len(block_ranks) for block_ranks in members),
        every,
        of_block,
        of_column,
        first_place,
        number_at,
        attendance_at,
    )
    return CollectiveMatching(np.array(ranks, np.int64), teams, tuple(met), arrays, lacking)


class RingArrivals(NamedTuple):
    """Arrivals of other ranks that the ranks of rings wait for, and what tells their clocks."""

    at: Ints
    """(arrivals of rings,) where each is among all arrivals."""
    owner: Ints
    """(arrivals of rings,) the attendance of the rank that waits."""
    of_owner: Ints
    """(arrivals of rings, collectives) its attendances of collectives that both ranks leave together; -1 for none."""
    of_arriving: Ints
    """Likewise those of the rank that arrives."""


def list_ring_arrivals(collectives: CollectiveArrays) -> RingArrivals:
    """List the arrivals of other ranks that the ranks of rings wait for."""
    awaiting = collectives.awaiting
    arriving = collectives.group[collectives.by_group]
    at = np.flatnonzero(arriving != awaiting)
    owners = np.full(len(collectives.first_in_group) - 1, -1, np.int64)
    owners[collectives.group] = np.arange(len(collectives.group))
    of_rank: dict[int, dict[int, int]] = defaultdict(dict)
    in_ring = np.zeros(len(owners), np.bool_)
    in_ring[awaiting[at]] = True
    for number in np.flatnonzero(~in_ring[collectives.group]).tolist() if len(at) else ():
        of_rank[int(collectives.rank[number])][int(collectives.group[number])] = number
    owner = owners[awaiting[at]]
    own_attendances, peer_attendances = np.full((2, len(at), THRESHOLDS.matching.clock_collectives), -1, np.int64)
    pairs = zip(collectives.rank[owner].tolist(), collectives.rank[collectives.by_group[at]].tolist(), strict=True)
    for row, (owner_rank, peer_rank) in enumerate(pairs):
        shared = [group for group in of_rank[owner_rank] if group in of_rank[peer_rank]]
        chosen = [shared[index] for index in spread_positions(len(shared), THRESHOLDS.matching.clock_collectives)]
        own_attendances[row, : len(chosen)] = [of_rank[owner_rank][group] for group in chosen]
        peer_attendances[row, : len(chosen)] = [of_rank[peer_rank][group] for group in chosen]
    return RingArrivals(at, owner, own_attendances, peer_attendances)


def _number_absent(groups: Sequence[tuple[int, ...]], ranks: int) -> list[list[int]]:
    """Return each group's absent members, numbered from `ranks` on: ranks that are absent together share a number."""
    numbers: dict[tuple[int, ...], int] = {}
    where = by_key((rank, numbers.setdefault(group, len(numbers))) for group in dict.fromkeys(groups) for rank in group)
    alike: dict[tuple[int, ...], int] = {}
    number = {rank: alike.setdefault(tuple(group_numbers), ranks + len(alike)) for rank, group_numbers in where.items()}
    numbered = {group: sorted({number[rank] for rank in group}) for group in numbers}
    return [numbered.get(group, []) for group in groups]


_ALL_RANKS: Final = ("all",)
"""Stands for the group of collectives that are taken for all ranks'."""


def take_stated(attended: Attended, team_of: Mapping[int, int]) -> Attended:
    """Give collectives without a group the one that ranks of the team state at their place and that names the rank.

    So ranks of which another profiler records no groups meet the others. Of several such groups none is taken.
    """
    stated: dict[tuple[int, int, int], set[Group]] = defaultdict(set)
    unstated = {(team_of[rank], place) for rank, of_rank in attended.items() for place, group in of_rank if not group}
    for rank, of_rank in attended.items() if unstated else ():
        for place, group in of_rank:
            if group is not None and (team_of[rank], place) in unstated:
                for member in group.ranks or ():
                    stated[team_of[rank], place, member].add(group)
    return {
        rank: [
            (place, next(iter(groups)) if group is None and len(groups) == 1 else group)
            for place, group in of_rank
            for groups in [stated.get((team_of[rank], place, rank), ())]
        ]
        for rank, of_rank in attended.items()
    }


def join_attended(
    first: Mapping[int, AttendedPlaces],
    every: Mapping[int, AttendedPlaces],
    team_of: Mapping[int, int],
) -> Attended:
    """Return each rank's (place, group): those of its first step, and more of groups whose members have as many."""
    counts: dict[object, set[int]] = defaultdict(set)
    if any(len(every[rank]) > len(group_at) for rank, group_at in first.items()):
        for rank, group_at in every.items():
            for group, count in Counter(group_at.values()).items():
                counts[group or team_of[rank]].add(count)
    return {
        rank: [
            (place, group_at[place])
            for place in sorted(group_at)
            if place in first[rank] or len(counts[group_at[place] or team_of[rank]]) == 1
        ]
        for rank, group_at in every.items()
    }


def complete_attended(rank: int, seen: AttendedPlaces, of_peer: AttendedPlaces) -> dict[int, Group | None]:
    """Return the collectives, by place, of a rank whose steps are all cut.

    Those are the collectives that it shows, and those of `of_peer`, a whole step of its team, in the rank's own groups:
    a collective that was lost would else shift the order of all after it. One of a group that the rank shows nowhere
    is left out, unless the group names the rank.
    """
    own_group = {of_peer[place]: group for place, group in seen.items() if place in of_peer}
    completed = dict(seen)
    for place, group in of_peer.items():
        if place not in seen and (group is None or group in own_group or rank in (group.ranks or ())):
            completed[place] = own_group.get(group, group)
    return completed


def match(
    programs: Mapping[int, Program],
    team_of: Mapping[int, int],
    attended: Attended,
    alone: frozenset[tuple[int, int]] = frozenset(),
) -> CollectiveMatching:
    """Match the collectives of all ranks; `attended` lists each rank's (place, group), in the program's order.

    `alone` are (rank, place) of collectives without a group that the rank does not share with all others.
    """
    unrecorded = any(
        group is None and (rank, place) not in alone for rank, of_rank in attended.items() for place, group in of_rank
    )
    whole = _whole_job(programs, team_of, attended, alone)
    # a group may list hundreds of ranks: hashed once, not at each attendance
    groups = {id(group): group for attendances in attended.values() for _, group in attendances}
    number_of: dict[object, int] = {}
    numbers = {at: number_of.setdefault(group, len(number_of)) for at, group in groups.items()}
    listed = {number_of[group]: group.ranks or () for group in groups.values() if group is not None}
    every = [Attendance(rank, place) for rank, attendances in attended.items() for place, _ in attendances]
    keys: list[int] = []
    unpaired = 0
    for rank, attendances in attended.items():
        for place, group in attendances:
            if group is not None:
                keys.append(numbers[id(group)])
                continue
            operation = programs[team_of[rank]].operations[place]
            is_alone = (rank, place) in alone or (not whole and operation.is_exchange)
            key = ("alone", rank) if is_alone else _ALL_RANKS if whole else ("team", team_of[rank])
            unpaired += is_alone
            keys.append(number_of.setdefault(key, len(number_of)))
    order = number_in_groups(np.array([attendance.rank for attendance in every], np.int64), np.array(keys, np.int64))
    instances = by_key(zip(zip(keys, order.tolist(), strict=True), every, strict=True))
    # at one place some ranks may be in a ring, and others meet otherwise
    in_ring = {
        rank: [place for place, group in of_rank if group and group.is_ring] for rank, of_rank in attended.items()
    }
    colour = _refined({rank: (team_of[rank], *in_ring[rank]) for rank in attended}, instances.values())
    blocks = by_key((number, rank) for rank, number in colour.items())
    ordered = sorted(blocks.values(), key=lambda ranks: (team_of[ranks[0]], ranks[0]))
    held_at: dict[tuple[frozenset[tuple[int, int]], bool], list[list[Attendance]]] = defaultdict(list)
    rings = {number_of[group]: group for group in groups.values() if group is not None and group.is_ring}
    awaited: dict[Attendance, tuple[int, ...]] = {}
    everyone = range(max(attended, default=-1) + 1)
    absent: dict[Attendance, tuple[int, ...]] = {}
    for (group_number, _), members in instances.items():
        where = frozenset((colour[m.rank], m.place) for m in members)
        ring = rings.get(group_number)
        held_at[where, ring is not None].append(members)
        around = () if ring is None else ring.ranks or ()
        neighbours = {
            rank: tuple(
                around[other % len(around)]
                for other in (at - 1, at + 1)
                if not (ring and ring.is_open) or 0 <= other < len(around)
            )
            for at, rank in enumerate(around)
        }
        named = everyone if group_number == number_of.get(_ALL_RANKS) else listed.get(group_number, ())
        present = {member.rank for member in members}
        missing = set(named) - present if len(named) > len(present) else set()
        for member in members if neighbours else members[:1]:
            absent[member] = tuple(sorted(missing.intersection(neighbours.get(member.rank, missing))))
        awaited |= {
            member: tuple(rank for rank in neighbours[member.rank] if rank not in missing)
            for member in (members if neighbours else ())
        }
    held = [
        [[member] for members in of_place for member in members] if is_ring else of_place
        for (_, is_ring), of_place in held_at.items()
    ]
    matching = lay_out_collectives(
        ordered,
        team_of,
        {team: len(program.operations) for team, program in programs.items()},
        held,
        awaited,
        [absent[members[0]] for of_place in held for members in of_place],
    )
    return replace(matching, unrecorded=unrecorded, named=len(set().union(*listed.values())), unpaired=unpaired)


def _refined(colour: Mapping[int, object], instances: object) -> dict[int, int]:
    """Split the ranks until those of one colour meet the same colours at the same places throughout."""
    held: list[list[Attendance]] = list(instances)  # type: ignore[call-overload]
    numbers = _numbered(colour)
    while True:
        seen: dict[int, list[object]] = defaultdict(list)
        for members in held:
            whom = frozenset((numbers[m.rank], m.place) for m in members)
            for member in members:
                seen[member.rank].append((member.place, whom))
        finer = _numbered({rank: (number, frozenset(seen[rank])) for rank, number in numbers.items()})
        if len(set(finer.values())) == len(set(numbers.values())):
            return finer
        numbers = finer


def _numbered(colour: Mapping[int, object]) -> dict[int, int]:
    seen: dict[object, int] = {}
    return {rank: seen.setdefault(colour[rank], len(seen)) for rank in sorted(colour)}


def _whole_job(
    programs: Mapping[int, Program],
    team_of: Mapping[int, int],
    attended: Attended,
    alone: frozenset[tuple[int, int]],
) -> bool:
    """Whether collectives without a group can be all ranks': every team has the same ones in the same order."""
    sequences = set()
    for rank, attendances in attended.items():
        operations = programs[team_of[rank]].operations
        unknown = (place for place, group in attendances if group is None and (rank, place) not in alone)
        sequences.add(tuple(operations[place].name for place in unknown))
    return len(sequences) <= 1
