"""Facts about a hang: calls of each rank, the groups' members, and how far each rank got, by dumps and logs."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.formatting import parse_numbers
from jitter.core.grouping import by_key
from jitter.core.names.kernels import ALIGNING_OPERATIONS, parse_operation
from jitter.lake.log_records import Row

_PEERS: Final = re.compile(r"(send|recv) (\d{1,9})(->|<-)(\d{1,9})$")
_MEMBERS: Final = re.compile(r"\d{1,7}(?:-\d{1,7})?(?:,\d{1,7}(?:-\d{1,7})?)*")
MAX_MEMBERS: Final = 1 << 20
_BEFORE_ALL: Final = -1
SYMMETRIC: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Collectives to which all ranks give equally many elements of one type."""
WORLD: Final = "0"
"""PyTorch's name of the default group."""
BARRIER: Final = "monitored_barrier"
"""What `collective_timeouts` calls Gloo's barrier, which is not numbered."""
_UNNAMED: Final = "?"
"""Begins the names of groups that watchdog lines leave unnamed."""

Doubt = Literal["cut", "older", "overwritten"]
"""Why a dump does not tell what its rank did last, or waits in: it is cut off, other ranks' dumps are of a later time,
or its buffer overwrote the calls in question."""


class DumpGroup(NamedTuple):
    """A process group: two groups may share a name and differ in their members."""

    name: str | None
    members: str | None


class Place(NamedTuple):
    """Where ranks wait: a group's collectives, or the exchanges of a pair of global ranks in it."""

    group: DumpGroup
    pair: tuple[int, int] | None = None
    """Source and target."""


class OpenCall(NamedTuple):
    """The first call of a rank in a place that did not complete."""

    order: int
    place: Place
    batch: int
    """Order of the first of the exchanges under one number: coalesced ones do not wait behind each other."""


@dataclass
class Progress:
    """How far a rank got in a group; None where nothing tells."""

    entered: int | None = None
    completed: int | None = None
    pending: int | None = None
    """The first number that it entered and did not complete."""

    def reach(self, entered: int | None, completed: int | None) -> None:
        """Add what another source states."""
        self.entered = _greatest(self.entered, entered)
        self.completed = _greatest(self.completed, completed)

    def settle(self) -> None:
        """Make the first pending number agree with the others."""
        if self.completed is not None and self.pending is not None and self.pending <= self.completed:
            self.pending = None
        if self.completed is not None and (self.entered or 0) > self.completed:
            self.pending = self.completed + 1


@dataclass
class HangFacts:
    """What dumps and logs state of a job's ranks."""

    calls: pa.Table
    """Recorded operations of ranks with known number, in the order of each rank's calls: `order` numbers them."""
    timeouts: list[Row]
    group_rows: list[Row]
    other_dumps: int = 0
    """Dumps of the folder that are of another job, or of an earlier run."""
    barriers: list[Row] = field(default_factory=list)
    """Timeouts of monitored barriers."""
    mismatches: list[Row] = field(default_factory=list)
    """Calls of which PyTorch states that they differ: one a rank."""
    stuck_watchdogs: dict[int, int] = field(default_factory=dict)
    """Ranks whose watchdog made no progress, and for how long (ns)."""
    members: dict[DumpGroup, tuple[int, ...]] = field(default_factory=dict)
    descriptions: dict[str | None, str] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)
    """Ranks whose dump goes back to their first operation."""
    recorded: set[int] = field(default_factory=set)
    """Ranks with a dump or a line."""
    doubts: dict[int, Doubt] = field(default_factory=dict)
    """Ranks whose dump does not tell what they did last."""
    progress: dict[DumpGroup, dict[int, Progress]] = field(default_factory=dict)
    pending: dict[int, list[OpenCall]] = field(default_factory=dict)
    """Of each rank its calls that did not complete, one a place, in their order."""
    _group_of: dict[tuple[int, str | None], DumpGroup] = field(default_factory=dict)
    _only: dict[str | None, DumpGroup] = field(default_factory=dict)

    def group(self, rank: int, name: str | None) -> DumpGroup:
        """Return the group of this name that the rank is in; a line without a name is of the rank's only group."""
        if name is None:
            groups = {group for (member, _), group in self._group_of.items() if member == rank}
            if len(groups) == 1:
                return groups.pop()
        return self._group_of.get((rank, name)) or self._only.get(name) or DumpGroup(name, None)

    def place(self, row: Row) -> Place | None:
        """Return where a call waits; None for an exchange that names no partner."""
        group = self.group(row["rank"], row["group_name"])
        if not row["is_p2p"]:
            return Place(group)
        pair = _peers(row, self.members.get(group, ()))
        return None if pair is None or row["rank"] not in pair else Place(group, pair)

    def dumped(self) -> set[int]:
        """Return the ranks whose dump holds calls; log lines alone tell of the others."""
        return set(pc.unique(self.calls["rank"]).to_pylist())

    def exchanges(self) -> pa.Table:
        """Return the sends and receives."""
        return self.calls.filter(self.calls["is_p2p"])

    def collectives(self) -> pa.Table:
        """Return all other calls."""
        return self.calls.filter(pc.invert(self.calls["is_p2p"]))


def collect_facts(recorded: pa.Table, process_groups: pa.Table, timeouts: pa.Table) -> HangFacts:
    """Return the facts of the relations of these names; rows without a rank tell nothing of a rank."""
    known = [recorded[name].is_valid() for name in ("rank", "sequence", "operation")]
    calls = recorded.filter(pc.and_(known[0], pc.and_(known[1], known[2])))
    calls = calls.set_column(
        calls.schema.get_field_index("is_p2p"), "is_p2p", pc.fill_null(calls["is_p2p"], fill_value=False)
    )
    calls = calls.append_column("order", pa.array(np.arange(calls.num_rows)))
    group_rows = [row for row in process_groups.to_pylist() if row["rank"] is not None]
    others = _other_dumps(calls, group_rows)
    calls = calls.filter(pc.invert(pc.is_in(calls["source"], pa.array(sorted(others), pa.string()))))
    rows = [row for row in group_rows if row["source"] not in others]
    timed_out = [row for row in timeouts.to_pylist() if row["rank"] is not None]
    lines = [row for row in timed_out if row["mismatch"] is None]
    numbered = _separate_unnamed(_with_stated_groups([row for row in lines if row["sequence"] is not None]))
    barriers = [row for row in lines if row["operation"] == BARRIER]
    facts = HangFacts(calls, numbered, rows, len(others), barriers, _first_mismatch(timed_out))
    _describe_groups(facts)
    _follow(facts)
    _doubt_older(facts)
    _list_pending(facts)
    return facts


def name_of(group: str | None) -> str | None:
    """Return the name of a group; None for one that no source names."""
    return None if group is None or group.startswith(_UNNAMED) else group


def _first_mismatch(rows: list[Row]) -> list[Row]:
    """Return the calls that PyTorch's check of collectives states to differ first: one a rank."""
    stated = [row for row in rows if row["mismatch"] is not None]
    first = min(((row["source"], row["mismatch"]) for row in stated), default=None)
    sequences = {row["sequence"] for row in stated if (row["source"], row["mismatch"]) == first}
    return list({row["rank"]: row for row in reversed(stated) if row["sequence"] in sequences}.values())[::-1]


def _with_stated_groups(timeouts: list[Row]) -> list[Row]:
    """Return the timeouts, those without a group with the only one that other lines state of the same call."""
    calls = [((row["sequence"], row["operation"], row["input_elements"]), row) for row in timeouts]
    stated = by_key((call, row["group_name"]) for call, row in calls if row["group_name"] is not None)
    only = {call: names[0] for call, names in stated.items() if len(set(names)) == 1}
    return [
        row if row["group_name"] is not None or is_exchange(row) else {**row, "group_name": only.get(call)}
        for call, row in calls
    ]


def _separate_unnamed(timeouts: list[Row]) -> list[Row]:
    """Return the timeouts, those without a group apart where one rank, or one number, has several calls.

    Each group numbers its calls by itself, so that only equal calls under one number are likely to be of one group.
    """
    unnamed = [row for row in timeouts if row["group_name"] is None and not is_exchange(row)]
    calls = [
        (row["operation"], row["input_elements"] if parse_operation(row["operation"] or "") in SYMMETRIC else None)
        for row in unnamed
    ]
    numbers_of_rank = by_key((row["rank"], row["sequence"]) for row in unnamed)
    calls_of_number = by_key((row["sequence"], call) for row, call in zip(unnamed, calls, strict=True))
    if all(len(set(seen)) == 1 for seen in (*numbers_of_rank.values(), *calls_of_number.values())):
        return timeouts
    of_unnamed = {id(row): f"{_UNNAMED}{row['sequence']} {row['operation']} {row['input_elements']}" for row in unnamed}
    return [{**row, "group_name": of_unnamed.get(id(row), row["group_name"])} for row in timeouts]


def is_exchange(timeout: Row) -> bool:
    """Return whether a watchdog's line is of a send or receive, which is numbered apart from collectives."""
    return (timeout["operation"] or "").startswith(("SEND", "RECV"))


def _other_dumps(calls: pa.Table, group_rows: Sequence[Row]) -> set[str]:
    """Return the files of another job's dumps, and of an earlier run's: the newest calls state which job counts.

    Dumps are of one job if their default groups have the same members. They are of two runs of it if two folders, or
    two files of one folder, hold dumps of the same rank; what is no newer than such an older dump is of its run, too.
    """
    dumps = calls.group_by(["rank", "source"]).aggregate([("start_ns", "max")]).to_pylist()
    newest = {row["source"]: row["start_ns_max"] or 0 for row in dumps}
    rank_of = {row["source"]: row["rank"] for row in dumps}
    worlds = {row["source"]: row["members"] for row in group_rows if row["group_name"] == WORLD and row["members"]}
    files = sorted({*newest, *worlds}, key=lambda file: (newest.get(file, 0), file), reverse=True)
    world = next((worlds[file] for file in files if file in worlds), None)
    others = {file for file in files if worlds.get(file, world) != world}
    by_rank = by_key((rank_of[file], file) for file in files if file in rank_of and file not in others)
    folder_of = {file: str(PurePath(file).parent) for file in files}
    kept = Counter(folder_of[same[0]] for same in by_rank.values())
    age = {folder: at for at, folder in enumerate(dict.fromkeys(folder_of.values()))}
    lost: set[str] = set()
    for same in by_rank.values():
        folders = {folder_of[file] for file in same}
        lost |= folders - {max(folders, key=lambda folder: (kept[folder], -age[folder]))}
    others.update(file for file in files if folder_of[file] in lost)
    last_of_others = 0
    for same in by_rank.values():
        left = [file for file in same if file not in others]
        others.update(left[1:])
        last_of_others = max([last_of_others, *(newest[file] for file in left[1:] if newest[file] < newest[left[0]])])
    return others | {file for file in rank_of if newest[file] <= last_of_others > 0}


def _describe_groups(facts: HangFacts) -> None:
    texts: dict[str | None, set[str]] = defaultdict(set)
    names: dict[str, dict[int, set[str | None]]] = defaultdict(lambda: defaultdict(set))
    for row in facts.group_rows:
        name, rank = row["group_name"], row["rank"]
        facts.recorded.add(rank)
        if row["is_whole"]:
            facts.whole.add(rank)
        if row.get("is_cut"):
            facts.doubts[rank] = "cut"
        if row.get("watchdog_stuck_ns") is not None:
            facts.stuck_watchdogs[rank] = max(row["watchdog_stuck_ns"], facts.stuck_watchdogs.get(rank, 0))
        if row["group_description"]:
            facts.descriptions.setdefault(name, row["group_description"])
        if row["members"]:
            texts[name].add(row["members"])
            names[row["members"]][rank].add(name)
            facts._group_of[rank, name] = DumpGroup(name, row["members"])
    facts.recorded.update(facts.dumped())
    facts.recorded.update(row["rank"] for row in (*facts.timeouts, *facts.barriers, *facts.mismatches))
    for members, of_ranks in names.items():
        if len(set.union(*of_ranks.values())) > 1 and all(len(of_rank) == 1 for of_rank in of_ranks.values()):
            shared = DumpGroup(min(str(next(iter(of_rank))) for of_rank in of_ranks.values()), members)
            for rank, of_rank in of_ranks.items():  # each rank has one group of these members, by a name of its own
                facts._group_of[rank, next(iter(of_rank))] = shared
                facts.descriptions.setdefault(shared.name, facts.descriptions.get(next(iter(of_rank)), ""))
    for name, member_texts in texts.items():
        if len(member_texts) == 1:
            facts._only[name] = DumpGroup(name, next(iter(member_texts)))
        for text in member_texts:
            facts.members[DumpGroup(name, text)] = parse_ranks(text)


def _follow(facts: HangFacts) -> None:
    progress: dict[DumpGroup, dict[int, Progress]] = defaultdict(lambda: defaultdict(Progress))

    def of_row(row: Row) -> Progress:
        return progress[facts.group(row["rank"], row["group_name"])][row["rank"]]

    collectives = facts.collectives()
    is_done = _is_done(collectives)
    keys = ["rank", "group_name"]
    for row in collectives.group_by(keys).aggregate([("sequence", "max")]).to_pylist():
        of_row(row).reach(row["sequence_max"], None)
    for row in collectives.filter(is_done).group_by(keys).aggregate([("sequence", "max")]).to_pylist():
        of_row(row).reach(None, row["sequence_max"])
    for row in collectives.filter(pc.invert(is_done)).group_by([*keys, "sequence"]).aggregate([]).to_pylist():
        of_rank = of_row(row)
        if row["sequence"] > (of_rank.completed or 0):  # calls within a coalesced one complete with that
            of_rank.pending = row["sequence"] if of_rank.pending is None else min(of_rank.pending, row["sequence"])
    exchanging = set(pc.unique(facts.exchanges()["group_name"]).to_pylist())
    exchanging.update(row["group_name"] for row in facts.timeouts if is_exchange(row))
    for row in facts.group_rows:
        if row["group_name"] not in exchanging and row["last_enqueued"] is not None:  # else it may number exchanges
            of_row(row).reach(row["last_enqueued"], row["last_completed"])
    for row in facts.timeouts:
        if row["group_name"] not in exchanging and not is_exchange(row):
            of_rank = of_row(row)
            of_rank.reach(row["sequence"], None)
            of_rank.pending = min(of_rank.pending or row["sequence"], row["sequence"])
    for of_group in progress.values():
        for of_rank in of_group.values():
            of_rank.settle()
    facts.progress = {group: dict(of_group) for group, of_group in progress.items()}


def _doubt_older(facts: HangFacts) -> None:
    """Find dumps that are older than others: a collective that ended on a rank was entered by all members."""
    given_up = {(row["group_name"], row["sequence"]) for row in facts.timeouts}
    collectives = facts.collectives()
    of_all = pc.is_in(collectives["collective"], pa.array(sorted(ALIGNING_OPERATIONS)))
    ended = collectives.filter(pc.and_(of_all, _is_done(collectives)))
    ended_in: dict[DumpGroup, int] = defaultdict(int)
    for row in ended.group_by(["rank", "group_name"]).aggregate([("sequence", "max")]).to_pylist():
        if not any(row["group_name"] == name and row["sequence_max"] >= number for name, number in given_up):
            group = facts.group(row["rank"], row["group_name"])
            ended_in[group] = max(ended_in[group], row["sequence_max"])
    for group, number in ended_in.items():
        for rank in facts.members.get(group, ()):
            entered = facts.progress[group].get(rank, Progress()).entered
            if entered is None and rank in facts.whole:
                entered = 0
            if entered is not None and entered < number:
                facts.doubts.setdefault(rank, "older")


def _list_pending(facts: HangFacts) -> None:
    """List what each rank waits in, and find the dumps whose buffer may have overwritten the first of these calls."""
    calls = facts.calls
    keys = ["rank", "group_name", "is_p2p"]
    is_done = _is_done(calls)
    done = calls.filter(is_done).group_by(keys).aggregate([("sequence", "max")]).to_pylist()
    completed = {tuple(row[key] for key in keys): row["sequence_max"] for row in done}
    open_calls = calls.filter(pc.invert(is_done))
    firsts = {
        (rank, Place(group)): (_BEFORE_ALL, of_rank.pending)
        for group, of_group in facts.progress.items()
        for rank, of_rank in of_group.items()
        if of_rank.pending is not None
    }
    batches: dict[tuple[Any, ...], int] = {}
    batch_of: dict[int, int] = {}
    for row in open_calls.select([*keys, "operation", "sequence", "order"]).to_pylist():
        number = row["sequence"]
        if row["is_p2p"]:
            batch_of[row["order"]] = batches.setdefault((row["rank"], row["group_name"], number), row["order"])
        if number > completed.get(tuple(row[key] for key in keys), -1) and (place := facts.place(row)) is not None:
            key, order = (row["rank"], place), row["order"]
            if place.pair is not None:
                firsts[key] = min(firsts.get(key, (order, number)), (order, number))
            elif key in firsts and firsts[key][1] == number:  # of a call that its group's status alone knows, no order
                firsts[key] = order, number
    has_dump = facts.dumped()
    for (rank, place), (order, _) in sorted(firsts.items(), key=lambda item: item[1]):
        facts.pending.setdefault(rank, []).append(OpenCall(order, place, batch_of.get(order, order)))
        if order == _BEFORE_ALL and rank in has_dump:
            facts.doubts.setdefault(rank, "overwritten")
    oldest = calls.group_by(keys).aggregate([("sequence", "min")]).to_pylist()
    for row in oldest:
        of_group = facts.progress.get(facts.group(row["rank"], row["group_name"]), {}).get(row["rank"])
        if row["rank"] in facts.whole or row["is_p2p"] or of_group is None or of_group.completed is not None:
            continue
        if of_group.pending == row["sequence_min"] > 1:  # calls before it may be pending, too
            facts.doubts.setdefault(row["rank"], "overwritten")


def _is_done(calls: pa.Table) -> pa.ChunkedArray:
    return pc.fill_null(pc.equal(calls["state"], "completed"), fill_value=False)


def call_of_timeout(row: Row) -> Row:
    """Return the call that a watchdog's line names."""
    collective = parse_operation(row["operation"] or "")
    return {**row, "collective": collective, "size_bytes": None, "source_line": None, "start_ns": None}


def pending_exchanges(facts: HangFacts) -> Iterator[tuple[Place, tuple[int, int], dict[int, Row]]]:
    """Return each place with exchanges that did not complete, its pair, and of its sides the first such call."""
    wanted = [one.order for waits in facts.pending.values() for one in waits if one.place.pair is not None]
    rows = facts.calls.filter(pc.is_in(facts.calls["order"], pa.array(sorted(wanted), pa.int64()))).to_pylist()
    by_place: dict[Place, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        if (place := facts.place(row)) is not None:
            by_place[place].setdefault(row["rank"], row)
    yield from ((place, place.pair, sides) for place, sides in by_place.items() if place.pair is not None)


def order_exchanges(facts: HangFacts, place: Place) -> dict[int, list[int]]:
    """Return the orders of the calls that each side of a pair recorded there."""
    calls = facts.exchanges()
    orders: dict[int, list[int]] = {rank: [] for rank in place.pair or ()}
    for row in calls.filter(pc.is_in(calls["rank"], pa.array(place.pair, pa.int32()))).to_pylist():
        if facts.place(row) == place:
            orders[row["rank"]].append(row["order"])
    return orders


def _peers(row: Row, members: Sequence[int]) -> tuple[int, int] | None:
    """Return the global ranks (source, target) of a send or receive; its name has the ranks in the group."""
    match = _PEERS.search(row["operation"])
    if match is None:
        return None
    rank, peer_rank = (int(match[at]) for at in (2, 4))
    if max(rank, peer_rank) >= len(members):
        return None
    pair = members[rank], members[peer_rank]
    return pair if match[1] == "send" else (pair[1], pair[0])


def parse_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of a text such as `0-3,8`; none for a text that is no such list, or too long a one."""
    if not _MEMBERS.fullmatch(text):
        return ()
    ends = [(int(first), int(last or first)) for first, _, last in (part.partition("-") for part in text.split(","))]
    size = sum(max(last - first + 1, 0) for first, last in ends)
    return tuple(parse_numbers(text, "members")) if 0 < size <= MAX_MEMBERS else ()


def assumed_members(group: DumpGroup, waiting: Iterable[int]) -> set[int]:
    """Return the least ranks that a default group of which no source names the members has: no rank is left out."""
    last = max(waiting, default=0)
    return set(range(last)) if group.name in (None, WORLD) and 0 < last < MAX_MEMBERS else set()


def _greatest(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else max(first, second)
