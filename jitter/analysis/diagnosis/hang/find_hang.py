"""Find the operation that a job hangs in: what did not complete, what each of these waits for, and the first of them.

A rank numbers the collectives of a group by itself, in the order of its calls; the members of a group call the same
collectives in the same order. An operation is stuck if a rank entered it and did not complete it, and the first such
number of a group is what the group waits in. A member that entered no operation of this number or a later one did not
enter it. Sends and receives have numbers of their own and are paired by their two ranks.

An operation waits behind another one if a member that did not enter it waits in that one, or entered that one before:
the GPU, and a host that waits for it, go through a rank's calls in their order.
"""

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.analysis.diagnosis.diagnosed_lake import DiagnosedLake
from jitter.analysis.diagnosis.hang.model import (
    Call,
    Doubts,
    Hang,
    LastCall,
    StuckOperation,
    Variant,
    judge,
    kind_of,
    list_variants,
)
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import abbreviate, escape_control, format_time, parse_numbers
from jitter.core.grouping import by_key
from jitter.core.names.kernels import ALIGNING_OPERATIONS, KINDS, MEMORY, parse_operation, short_name
from jitter.lake.log_records import Row
from jitter.logs.watchdog import BARRIER, WORLD

_PEERS: Final = re.compile(r"(send|recv) (\d{1,9})(->|<-)(\d{1,9})$")
_MEMBERS: Final = re.compile(r"\d{1,7}(?:-\d{1,7})?(?:,\d{1,7}(?:-\d{1,7})?)*")
MAX_MEMBERS: Final = 1 << 20
_BEFORE_ALL: Final = -1
SYMMETRIC: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Collectives to which all ranks give equally many elements of one type."""
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
    _doubt_overwritten(facts)
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
    """Take what the rows of process groups state of their ranks, and find which group each name of a rank is of."""
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
            facts._group_of[rank, name] = DumpGroup(name, row["members"])
    facts.recorded.update(facts.dumped())
    facts.recorded.update(row["rank"] for row in (*facts.timeouts, *facts.barriers, *facts.mismatches))
    listed = [row for row in facts.group_rows if row["members"]]
    for members, named in by_key((row["members"], (row["rank"], row["group_name"])) for row in listed).items():
        names_of_rank, names = by_key(dict.fromkeys(named)), {name for _, name in named}
        if len(names) > 1 and all(len(of_rank) == 1 for of_rank in names_of_rank.values()):
            shared = DumpGroup(min(map(str, names)), members)
            for rank, (name,) in names_of_rank.items():  # each rank has one group of these members, by its own name
                facts._group_of[rank, name] = shared
                facts.descriptions.setdefault(shared.name, facts.descriptions.get(name, ""))
    stated = dict.fromkeys((row["group_name"], row["members"]) for row in listed)  # by each of their ranks alike
    for name, texts in by_key(stated).items():
        groups = {DumpGroup(name, text): parse_ranks(text) for text in texts}
        facts.members |= groups
        if len(groups) == 1:
            facts._only[name] = next(iter(groups))


def _follow(facts: HangFacts) -> None:
    """Find how far each rank got in each group: by its calls, by the group's status, and by the watchdog's lines."""
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
    """List what each rank waits in: of each place the first of its calls there that did not complete."""
    calls, keys = facts.calls, ["rank", "group_name", "is_p2p"]
    is_done = _is_done(calls)
    done = calls.filter(is_done).group_by(keys).aggregate([("sequence", "max")]).to_pylist()
    completed = {tuple(row[key] for key in keys): row["sequence_max"] for row in done}
    open_calls = calls.filter(pc.invert(is_done)).select([*keys, "operation", "sequence", "order"]).to_pylist()
    first_of_batch: dict[tuple[Any, ...], int] = {}
    batch_of = {
        row["order"]: first_of_batch.setdefault((row["rank"], row["group_name"], row["sequence"]), row["order"])
        for row in open_calls
        if row["is_p2p"]
    }
    # order and number; of a collective that its group's status alone knows there is no order
    firsts = {
        (rank, Place(group)): (_BEFORE_ALL, of_rank.pending)
        for group, of_group in facts.progress.items()
        for rank, of_rank in of_group.items()
        if of_rank.pending is not None
    }
    for row in open_calls:
        number, order = row["sequence"], row["order"]
        if number > completed.get(tuple(row[key] for key in keys), -1) and (place := facts.place(row)) is not None:
            key = row["rank"], place
            if place.pair is not None:
                firsts[key] = min(firsts.get(key, (order, number)), (order, number))
            elif key in firsts and firsts[key][1] == number:
                firsts[key] = order, number
    for (rank, place), (order, _) in sorted(firsts.items(), key=lambda item: item[1]):
        facts.pending.setdefault(rank, []).append(OpenCall(order, place, batch_of.get(order, order)))


def _doubt_overwritten(facts: HangFacts) -> None:
    """Find dumps whose buffer may have overwritten the first call that did not complete."""
    has_dump = facts.dumped()
    for rank, waits in facts.pending.items():
        if rank in has_dump and any(call.order == _BEFORE_ALL for call in waits):
            facts.doubts.setdefault(rank, "overwritten")
    oldest = facts.collectives().group_by(["rank", "group_name"]).aggregate([("sequence", "min")]).to_pylist()
    for row in oldest:
        of_rank = facts.progress.get(facts.group(row["rank"], row["group_name"]), {}).get(row["rank"])
        if row["rank"] in facts.whole or of_rank is None or of_rank.completed is not None:
            continue
        if of_rank.pending == row["sequence_min"] > 1:  # calls before it may be pending, too
            facts.doubts.setdefault(row["rank"], "overwritten")


def _is_done(calls: pa.Table) -> pa.ChunkedArray:
    return pc.fill_null(pc.equal(calls["state"], "completed"), fill_value=False)


def call_of_timeout(row: Row) -> Row:
    """Return the call that a watchdog's line names."""
    collective = parse_operation(row["operation"] or "")
    return {**row, "collective": collective, "size_bytes": None, "source_line": None, "start_ns": None}


def pending_exchanges(facts: HangFacts) -> Iterator[tuple[Place, tuple[int, int], dict[int, Row]]]:
    """Return each place with exchanges that did not complete, its pair, and of its sides the first such call."""
    wanted = [call.order for waits in facts.pending.values() for call in waits if call.place.pair is not None]
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


_MOST_LAST_CALLS: Final = 16
_MOST_CALLS: Final = 4_096
"""Calls of a rank that are compared with its usual ones."""
_CALL_COLUMNS: Final = ("operation", "collective", "size_bytes", "input_elements", "dtype", "source_line")
_KERNEL_COLUMNS: Final = ("kernel_name", "kind", "end_ns", "operator", "source_line")


NO_FAILURES: Final[Mapping[int, str]] = MappingProxyType({})


class _Stuck(NamedTuple):
    """A stuck operation, and where its ranks wait; None: a log names no partner."""

    place: Place | None
    operation: StuckOperation


def find_hang(
    recorded: pa.Table, process_groups: pa.Table, timeouts: pa.Table, failures: Mapping[int, str] = NO_FAILURES
) -> Hang | None:
    """Return the hang that Flight Recorder dumps and watchdog timeouts show; None if no operation is stuck.

    The tables are the relations of these names. Rows without a rank tell nothing of a rank and are not used.
    `failures` are the ranks whose processes ended with an error, and how.
    """
    facts = collect_facts(recorded, process_groups, timeouts)
    stuck = [
        *_stuck_collectives(facts), *_stuck_exchanges(facts), *_timed_out_exchanges(facts), *_stuck_barriers(facts),
        *_stated_mismatches(facts),
    ]  # fmt: skip
    return _choose_root(facts, _with_failures(facts, stuck, failures), failures) if stuck else None


def _with_failures(facts: HangFacts, stuck: Sequence[_Stuck], failures: Mapping[int, str]) -> list[_Stuck]:
    """Return the operations with the ranks that failed, wait in none of them, and are or may be their members.

    Of an operation that all entered, few ranks that failed are what the others wait for: they called it, and ended.
    """
    failed = set(failures).difference(facts.pending, *(stop.operation.waiting for stop in stuck))
    operations = []
    for stop in stuck:
        stopped = stop.operation
        lacking = {*stopped.not_entered, *stopped.unrecorded, *stopped.unknown}
        has_members = bool(stopped.members) or stopped.is_stated
        of_operation = tuple(sorted(failed & lacking if has_members else failed))
        ended = set(failures) & set(stopped.waiting)
        if kind_of(stopped) == "all_entered" and 2 * len(ended) < len(stopped.waiting):
            of_operation = tuple(sorted(ended))
            stopped = replace(stopped, waiting=tuple(rank for rank in stopped.waiting if rank not in ended))
        operations.append(stop._replace(operation=replace(stopped, failed=of_operation)))
    return operations


def _stuck_collectives(facts: HangFacts) -> Iterator[_Stuck]:
    collectives = facts.collectives()
    stuck: dict[DumpGroup, int] = {}
    for group, progress in facts.progress.items():
        pending = [of_rank.pending for of_rank in progress.values() if of_rank.pending is not None]
        if pending:
            stuck[group] = min(pending)
    if not stuck:
        return
    mismatches = _find_mismatches(facts, collectives, stuck)
    wanted = pa.array(sorted({*stuck.values(), *mismatches.values()}), pa.int64())
    recorded = collectives.filter(pc.is_in(collectives["sequence"], wanted)).to_pylist()
    calls = by_key((_number_in_group(facts, row), row) for row in recorded)
    timeouts = by_key((_number_in_group(facts, row), row) for row in facts.timeouts if not is_exchange(row))
    for group, last in stuck.items():
        at = mismatches.get(group, last)
        rows = calls.get((group, at), [])
        stated = {row["rank"] for row in rows}
        rows += [call_of_timeout(row) for row in timeouts.get((group, at), ()) if row["rank"] not in stated]
        of_group = [row for (of, _), gave_up in timeouts.items() if of == group for row in gave_up]
        yield _Stuck(Place(group), _stuck_collective(facts, group, (at, last), rows, of_group))


def _number_in_group(facts: HangFacts, row: Row) -> tuple[DumpGroup, int]:
    return facts.group(row["rank"], row["group_name"]), row["sequence"]


def _find_mismatches(facts: HangFacts, collectives: pa.Table, stuck: Mapping[DumpGroup, int]) -> dict[DumpGroup, int]:
    """Return the first number up to the stuck one under which the ranks of a group called different collectives."""
    names = pa.array(sorted({group.name for group in stuck if group.name is not None}), pa.string())
    table = collectives.filter(pc.is_in(collectives["group_name"], names))
    table = table.append_column("signature", _signatures(table))
    keys = ["group_name", "sequence"]
    each = table.group_by(["rank", *keys]).aggregate([("signature", "count"), ("signature", "min")])
    single = each.filter(pc.equal(each["signature_count"], 1))
    differing = single.group_by(keys).aggregate([("signature_min", "count_distinct")])
    differing = differing.filter(pc.greater(differing["signature_min_count_distinct"], 1))
    mismatches: dict[DumpGroup, int] = {}
    if not differing.num_rows:
        return mismatches
    numbers = pc.unique(differing["sequence"])
    rows = single.filter(pc.is_in(single["sequence"], numbers)).to_pylist()
    seen = by_key((_number_in_group(facts, row), row["signature_min"]) for row in rows)
    for (group, number), signatures in seen.items():
        if len(set(signatures)) > 1 and group in stuck and number <= stuck[group]:
            mismatches[group] = min(number, mismatches.get(group, number))
    return mismatches


def _signatures(table: pa.Table) -> pa.Array:
    """Return what has to be equal on all ranks, as a text per call."""
    operation = table["operation"]
    elements = pc.fill_null(pc.cast(table["input_elements"], pa.string()), "")
    full = pc.binary_join_element_wise(operation, elements, pc.fill_null(table["dtype"], ""), " ")
    return pc.if_else(pc.is_in(table["collective"], pa.array(SYMMETRIC, pa.string())), full, operation)


def _stuck_collective(
    facts: HangFacts,
    group: DumpGroup,
    numbers: tuple[int, int],
    rows: Sequence[Row],
    timeouts: Sequence[Row],
) -> StuckOperation:
    """Return the operation; `numbers`: the one that the verdict names, and the one in which the group waits."""
    at, last_number = numbers
    members = facts.members.get(group, ())
    progress = facts.progress[group]
    waiting, missing, unknown = set(), set(), set()
    for rank in {*members, *progress} & facts.recorded:
        state = progress.get(rank, Progress())
        last = state.entered if state.entered is not None else 0 if rank in facts.whole else None
        if last is not None and last >= last_number and (state.completed is None or state.completed < last_number):
            waiting.add(rank)
        if last is None or (last < at and facts.doubts.get(rank) in ("cut", "older")):
            unknown.add(rank)
        elif last < at:
            missing.add(rank)
    states = by_key((row["rank"], row.get("state")) for row in rows)
    has_begun = any("started" in seen for seen in states.values())
    idle = {rank for rank, seen in states.items() if has_begun and set(seen) == {"scheduled"}}
    of_number = [row for row in timeouts if row["sequence"] == at]
    waits = [row["waited_ns"] for row in of_number if row["waited_ns"] is not None]
    limits = [row["timeout_ns"] for row in (*of_number, *rows) if row["timeout_ns"] is not None]
    variants = _variants(facts, group.name, at, rows) or _variants_apart(facts, group, at, timeouts)
    if not missing:
        silent = facts.dumped() - {row["rank"] for row in rows}
        unknown |= {rank for rank in waiting if rank in silent or facts.doubts.get(rank) == "overwritten"}
    return StuckOperation(
        call=_call(facts, group.name, at, rows),
        members=members,
        waiting=tuple(sorted(waiting)),
        not_entered=tuple(sorted(missing)),
        not_started=tuple(sorted(idle & waiting)),
        unrecorded=tuple(sorted((set(members) or assumed_members(group, waiting)) - facts.recorded)),
        unknown=tuple(sorted(unknown)),
        variants=variants,
        since_ns=min((row["start_ns"] for row in rows if row["start_ns"] is not None), default=None),
        waited_ns=max(waits, default=None),
        timeout_ns=max(limits, default=None),
    )


def _variants(facts: HangFacts, name: str | None, at: int, rows: Iterable[Row]) -> tuple[Variant, ...]:
    """Return what the ranks called; a rank that made several calls under the number coalesced them: not compared."""
    is_by_lines = any("state" not in row for row in rows)  # these name operations in other words, and no types

    def what(row: Row) -> tuple[Any, ...]:
        given = (row["input_elements"],) if row["collective"] in SYMMETRIC else ()
        words = (row["collective"],) if is_by_lines else (row["operation"], row["dtype"] if given else None)
        return (*words, *given)

    single = [calls[0] for calls in by_key((row["rank"], row) for row in rows).values() if len(calls) == 1]
    return _list_variants(facts, name, at, by_key((what(row), row) for row in single).values())


def _list_variants(
    facts: HangFacts, name: str | None, number: int | None, alike: Iterable[Sequence[Row]]
) -> tuple[Variant, ...]:
    """Return what ranks called under one number, most ranks first; empty if they agree."""
    ranks_of = {_call(facts, name, number, calls): [row["rank"] for row in calls] for calls in alike}
    return list_variants(ranks_of) if len(ranks_of) > 1 else ()


def _variants_apart(facts: HangFacts, group: DumpGroup, at: int, timeouts: Iterable[Row]) -> tuple[Variant, ...]:
    """Return the calls in which watchdogs gave up, where ranks completed calls that come after the one others wait in.

    A call that all ranks have to enter does not end on one rank while another one waits in a call before it. Ranks of
    a group that no source lists may be of two groups of one name.
    """
    if group.name != WORLD and group not in facts.members:
        return ()
    progress = facts.progress[group]
    first: dict[int, Row] = {}
    for row in sorted(timeouts, key=lambda row: row["sequence"]):
        if row["sequence"] == at or (progress.get(row["rank"], Progress()).completed or 0) > at:
            first.setdefault(row["rank"], row)
    by_number = by_key((row["sequence"], call_of_timeout(row)) for row in first.values())
    if at not in by_number or by_number[at][0]["collective"] not in ALIGNING_OPERATIONS or len(by_number) < 2:
        return ()
    return tuple(
        Variant(_call(facts, group.name, number, calls), tuple(sorted(row["rank"] for row in calls)))
        for number, calls in by_number.items()
    )


def _call(facts: HangFacts, name: str | None, sequence: int | None, rows: Sequence[Row]) -> Call:
    stated = Counter(tuple(row[column] for column in _CALL_COLUMNS) for row in rows)
    values = stated.most_common(1)[0][0] if stated else (None,) * len(_CALL_COLUMNS)
    return Call(name_of(name), facts.descriptions.get(name), sequence, *values)


def _stuck_exchanges(facts: HangFacts) -> Iterator[_Stuck]:
    for place, (source, target), sides in pending_exchanges(facts):
        others = {source, target} - set(sides)
        unrecorded = others - facts.recorded
        certain = {source, target} <= facts.whole - set(facts.doubts)
        made = order_exchanges(facts, place) if certain else {}
        absent = {rank for rank in others - unrecorded if made and len(made[rank]) < max(map(len, made.values()))}
        idle = [rank for rank, row in sides.items() if row["state"] == "scheduled"]
        has_begun = any(row["state"] == "started" for row in sides.values())
        begun = [row["start_ns"] for row in sides.values() if row["start_ns"] is not None]
        timeouts = [row["timeout_ns"] for row in sides.values() if row["timeout_ns"] is not None]
        calls = {
            rank: _call(facts, place.group.name, row["sequence"],
                        [{**row, "operation": _name_exchange((source, target), is_sender=rank == source)}])
            for rank, row in sorted(sides.items(), key=lambda side: side[0] != source)
        }  # fmt: skip
        is_one = len(sides) == 2 and len({bisect(made[rank], row["order"]) for rank, row in sides.items() if made}) == 1
        differ = is_one and len({(row["input_elements"], row["dtype"]) for row in sides.values()}) > 1
        yield _Stuck(
            place,
            StuckOperation(
                call=next(iter(calls.values())),
                is_p2p=True,
                members=(source, target),
                waiting=tuple(sorted(sides)),
                not_entered=tuple(sorted(absent)),
                not_started=tuple(sorted(idle)) if has_begun else (),
                unrecorded=tuple(sorted(unrecorded)),
                unknown=tuple(sorted(others - unrecorded - absent)),
                variants=tuple(Variant(call, (rank,)) for rank, call in calls.items()) if differ else (),
                since_ns=min(begun, default=None),
                timeout_ns=max(timeouts, default=None),
            ),
        )


def _name_exchange(pair: tuple[int, int], *, is_sender: bool) -> str:
    """Return what a side of an exchange calls, by global ranks."""
    source, target = pair
    return f"send {source}->{target}" if is_sender else f"recv {target}<-{source}"


def _timed_out_exchanges(facts: HangFacts) -> Iterator[_Stuck]:
    """Return the sends and receives that a watchdog gave up on ranks without a dump; a line names no partner."""
    dumped = facts.dumped()
    for row in facts.timeouts:
        if is_exchange(row) and row["rank"] not in dumped:
            call = _call(facts, row["group_name"], row["sequence"], [call_of_timeout(row)])
            times = {"waited_ns": row["waited_ns"], "timeout_ns": row["timeout_ns"]}
            yield _Stuck(None, StuckOperation(call, is_p2p=True, waiting=(row["rank"],), **times))


def _stuck_barriers(facts: HangFacts) -> Iterator[_Stuck]:
    """Return the monitored barrier that ranks missed, as its first rank states them."""
    if not facts.barriers:
        return
    absent = {rank for row in facts.barriers for rank in parse_ranks(row["not_entered"] or "")}
    waiting = {row["rank"] for row in facts.barriers} - absent
    limits = [row["timeout_ns"] for row in facts.barriers if row["timeout_ns"] is not None]
    yield _Stuck(
        None,
        StuckOperation(
            Call(operation=BARRIER, collective=BARRIER),
            is_stated=True,
            waiting=tuple(sorted(waiting)),
            not_entered=tuple(sorted(absent)),
            timeout_ns=max(limits, default=None),
        ),
    )


def _stated_mismatches(facts: HangFacts) -> Iterator[_Stuck]:
    """Return the calls of which PyTorch's check (TORCH_DISTRIBUTED_DEBUG=DETAIL) states that they differ."""
    called = by_key(
        ((row["operation"], row["input_elements"], row["dtype"]), call_of_timeout(row)) for row in facts.mismatches
    )
    number = facts.mismatches[0]["sequence"] if facts.mismatches else None
    if variants := _list_variants(facts, None, number, called.values()):
        waiting = tuple(sorted(row["rank"] for row in facts.mismatches))
        yield _Stuck(None, StuckOperation(variants[0].call, is_stated=True, waiting=waiting, variants=variants))


def _choose_root(facts: HangFacts, stuck: Sequence[_Stuck], failures: Mapping[int, str]) -> Hang:
    """Return the hang: the operation that waits behind no other one, and the rest."""
    ordered = sorted(
        stuck,
        key=lambda stop: (
            stop.operation.since_ns is None,
            stop.operation.since_ns or 0,
            stop.operation.is_p2p,
            stop.operation.call.group or "",
        ),
    )
    operations = [stop.operation for stop in ordered]
    at = {stop.place: number for number, stop in enumerate(ordered) if stop.place is not None}
    free = [tuple(rank for rank in stop.blocking if rank not in facts.pending) for stop in operations]
    behind = [set(_places_ahead(facts, stop)) & set(at) for stop in ordered]
    kinds = [kind_of(operation) for operation in operations]
    is_stopped = [bool(ranks) and kind in ("failed", "not_entered") for ranks, kind in zip(free, kinds, strict=True)]
    in_circle = [number in _reachable(number, behind, at) for number in range(len(ordered))]
    tests = (
        lambda number: kinds[number] == "mismatch",
        lambda number: kinds[number] == "failed",
        lambda number: is_stopped[number] and free[number] == operations[number].blocking,
        lambda number: is_stopped[number],
        lambda number: not behind[number] and kinds[number] == "undecided",
        lambda number: not behind[number],
        lambda number: kinds[number] == "undecided",
        lambda number: in_circle[number] and operations[number].blocking,
        lambda number: operations[number].blocking,
        lambda _: True,
    )
    root = next(number for test in tests for number in range(len(ordered)) if test(number))
    is_circular = bool(behind[root]) and kinds[root] not in ("mismatch", "undecided") and not is_stopped[root]
    others = tuple(Hang(operations[number], kinds[number]) for number in range(len(ordered)) if number != root)
    culprits = free[root] if is_stopped[root] else operations[root].blocking
    variants = operations[root].variants
    parted_at = None
    is_even = bool(variants) and len(variants[0].ranks) == len(variants[1].ranks)
    if (is_circular or is_even) and (odd := _odd_ranks(facts)) is not None:
        parted_at, culprits = odd
    return judge(
        Hang(operations[root], kinds[root], culprits, is_circular and parted_at is None, parted_at, others),
        Doubts(
            bool(facts.timeouts or facts.barriers or facts.mismatches),
            facts.doubts,
            facts.other_dumps,
            facts.stuck_watchdogs,
            any(name_of(row["group_name"]) is None for row in facts.timeouts),
            failures,
            _silent_ranks(facts),
        ),
        lambda ranks: tuple(_last_calls(facts, ranks[:_MOST_LAST_CALLS])),
    )


def _reachable(number: int, behind: Sequence[set[Place]], at: Mapping[Place, int]) -> set[int]:
    """Return the operations that one waits behind, directly or through others."""
    reached: set[int] = set()
    to_follow = [number]
    while to_follow:
        following = {at[place] for place in behind[to_follow.pop()]} - reached
        reached |= following
        to_follow += following
    return reached


def _silent_ranks(facts: HangFacts) -> tuple[int, ...]:
    """Return the ranks below the last one that left a dump or a line which left none."""
    last = max(facts.recorded, default=0)
    return tuple(sorted(set(range(last)) - facts.recorded)) if last <= MAX_MEMBERS else ()


def _places_ahead(facts: HangFacts, stuck: _Stuck) -> Iterator[Place]:
    """Return where ranks wait that did not enter an operation, or that entered another one before and wait in that."""
    for rank in (*stuck.operation.waiting, *stuck.operation.not_entered):
        waits = facts.pending.get(rank, [])
        first = [call.place for call in waits if call.batch == waits[0].batch]
        if stuck.place not in first:
            yield from first


def _odd_ranks(facts: HangFacts) -> tuple[Call, tuple[int, ...]] | None:
    """Return the ranks that made other calls than usual before a call of all, unlike most ranks, and that call.

    Between two calls of the largest group a rank makes the same calls in every step, as many and as large. The first
    step in which few ranks do not, and the other ranks do, is where the programs part.
    """
    group = max(facts.progress, key=lambda group: len(facts.members.get(group, ())), default=None)
    if group is None:
        return None  # the job has sends and receives alone
    calls = facts.calls.sort_by([("rank", "ascending"), ("order", "ascending")])
    ranks = calls["rank"].to_numpy()
    is_usual: dict[int, dict[int, bool]] = {}
    for rank in facts.members.get(group, ()):
        first, end = np.searchsorted(ranks, (rank, rank + 1)).tolist()
        start = max(first, end - _MOST_CALLS)
        of_rank = calls.slice(start, end - start)
        steps = dict(_calls_by_step(facts, of_rank, group, is_whole=rank in facts.whole and start == first))
        counts = Counter(steps.values())
        usual = {made for made, count in counts.items() if 2 * count > len(steps)}
        is_usual[rank] = {number: made in usual for number, made in steps.items()}
    for number in sorted({number for steps in is_usual.values() for number in steps}):
        seen = {rank: steps[number] for rank, steps in is_usual.items() if number in steps}
        odd = tuple(sorted(rank for rank, usual in seen.items() if not usual))
        if odd and 2 * len(odd) < len(seen):
            return _call(facts, group.name, number, []), odd
    return None


def _calls_by_step(
    facts: HangFacts, calls: pa.Table, group: DumpGroup, *, is_whole: bool
) -> Iterator[tuple[int, frozenset[tuple[Any, int]]]]:
    """Return what a rank called before each of its collectives of a group, by their numbers."""
    made: Counter[Any] = Counter()
    is_step = is_whole
    for row in calls.select(["operation", "input_elements", "rank", "is_p2p", "group_name", "sequence"]).to_pylist():
        what = row["group_name"], row["operation"], row["input_elements"]
        if row["is_p2p"] or facts.group(row["rank"], row["group_name"]) != group:
            made[what] += 1
            continue
        if is_step:
            yield row["sequence"], frozenset(made.items())
        made, is_step = Counter([what]), True


def _last_calls(facts: HangFacts, ranks: Sequence[int]) -> Iterator[LastCall]:
    for rank in ranks:
        calls = facts.calls.filter(pc.equal(facts.calls["rank"], rank))
        if calls.num_rows:
            (row,) = calls.slice(calls.num_rows - 1).to_pylist()
            if (place := facts.place(row)) is not None and place.pair is not None:
                row |= {"operation": _name_exchange(place.pair, is_sender=rank == place.pair[0])}
            call = _call(facts, row["group_name"], row["sequence"], [row])
            yield LastCall(rank, call, row["state"] == "completed")


def describe_last_kernels(recordings: DiagnosedLake, ranks: Sequence[int], entered_ns: int | None) -> list[str]:
    """Return a clause for each of these ranks that has a recording, the first few; `entered_ns` is when they hung.

    Raises `LakeError` if a file of the lake is missing or damaged.
    """
    known = [rank for rank in ranks if any(record.rank == rank and record.steps for record in recordings.sources)]
    return [
        text
        for rank in known[: THRESHOLDS.sentences.max_named]
        for text in _describe_last_kernel(recordings, rank, entered_ns)
    ]


def _describe_last_kernel(recordings: DiagnosedLake, rank: int, entered_ns: int | None) -> Iterator[str]:
    held = [(record, step) for record in recordings.sources if record.rank == rank for step in record.steps]
    record, step = max(held, key=lambda recorded: recorded[1].start_ns + (recorded[0].utc_offset_ns or 0))
    rows = recordings.step_columns(step.key, _KERNEL_COLUMNS, [rank]).of_kinds(KINDS[:MEMORY]).table
    if not rows.num_rows:
        return
    last = rows.slice(pc.index(rows["end_ns"], pc.max(rows["end_ns"])).as_py(), 1).to_pylist()[0]
    before = ""
    if entered_ns is not None and record.utc_offset_ns is not None:
        ago = entered_ns - last["end_ns"] - record.utc_offset_ns
        if abs(ago) > THRESHOLDS.evidence.same_run_ns:
            return
        before = f", {format_time(abs(ago))} {'before' if ago >= 0 else 'after'} the call was entered"
    code = ", ".join(filter(None, (last["operator"], last["source_line"])))
    kernel = abbreviate(short_name(last["kernel_name"]))
    yield escape_control(
        f"rank {rank}'s recording ends in step {step.key} with kernel {kernel}{f' ({code})' if code else ''}{before}"
    )
