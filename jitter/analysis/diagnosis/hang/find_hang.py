"""Find the operation that a job hangs in, from how far each rank got in each process group.

A rank numbers the collectives of a group by itself, in the order of its calls; the members of a group call the same
collectives in the same order. An operation is stuck if a rank entered it and did not complete it, and the first such
number of a group is what the group waits in. A member that entered no operation of this number or a later one did not
enter it. Sends and receives have numbers of their own and are paired by their two ranks.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from jitter.analysis.diagnosis.hang.model import Call, Hang, LastCall, StuckOperation, Variant
from jitter.analysis.diagnosis.hang.words import write_hang
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import abbreviate, escape_control, format_time, parse_numbers
from jitter.core.names.kernels import KINDS, MEMORY, parse_operation, short_name
from jitter.core.step_key import StepKey
from jitter.lake.records import SourceRecord
from jitter.lake.step_reader import StepColumns

_SYMMETRIC: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Collectives to which all ranks give equally many elements of one type."""
_PEERS: Final = re.compile(r"(send|recv) (\d{1,9})(->|<-)(\d{1,9})$")
_MOST_LAST_CALLS: Final = 16
_LARGEST_GROUP: Final = 1 << 20
_WORLD: Final = "0"
"""PyTorch's name of the default group."""
_KERNEL_COLUMNS: Final = ("kernel_name", "kind", "end_ns", "operator", "source_line")

Row = Mapping[str, Any]


class _Group(NamedTuple):
    """A process group: two groups may share a name and differ in their members."""

    name: str | None
    members: str | None


@dataclass
class _Progress:
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
        if self.pending is None and self.completed is not None and (self.entered or 0) > self.completed:
            self.pending = self.completed + 1


@dataclass
class _Records:
    """What dumps and logs hold."""

    calls: pa.Table
    """Recorded operations of ranks with known number."""
    timeouts: list[Row]
    group_rows: list[Row]
    members: dict[_Group, tuple[int, ...]] = field(default_factory=dict)
    descriptions: dict[str | None, str] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)
    """Ranks whose dump goes back to their first operation."""
    recorded: set[int] = field(default_factory=set)
    """Ranks with a dump or a line."""
    group_of: dict[tuple[int, str | None], _Group] = field(default_factory=dict)
    _only: dict[str | None, _Group] = field(default_factory=dict)

    def group(self, rank: int, name: str | None) -> _Group:
        """Return the group of this name that the rank is in; a line without a name is of the rank's only group."""
        if (
            name is None
            and len(groups := [group for (member, _), group in self.group_of.items() if member == rank]) == 1
        ):
            return groups[0]
        return self.group_of.get((rank, name)) or self._only.get(name) or _Group(name, None)

    def describe(self) -> None:
        """Collect the groups, their members and the recorded ranks."""
        texts: dict[str | None, set[str]] = defaultdict(set)
        for row in self.group_rows:
            name, rank = row["group_name"], row["rank"]
            self.recorded.add(rank)
            if row["is_whole"]:
                self.whole.add(rank)
            if row["group_description"]:
                self.descriptions.setdefault(name, row["group_description"])
            if row["members"]:
                texts[name].add(row["members"])
                self.group_of[rank, name] = _Group(name, row["members"])
        self.recorded.update(pc.unique(self.calls["rank"]).to_pylist())
        self.recorded.update(row["rank"] for row in self.timeouts)
        for name, member_texts in texts.items():
            if len(member_texts) == 1:
                self._only[name] = _Group(name, next(iter(member_texts)))
            for text in member_texts:
                self.members[_Group(name, text)] = _parse_members(text)


def find_hang(recorded: pa.Table, process_groups: pa.Table, timeouts: pa.Table) -> Hang | None:
    """Return the hang that Flight Recorder dumps and watchdog timeouts show; None if no operation is stuck.

    The tables are the relations of these names. Rows without a rank tell nothing of a rank and are not used.
    """
    is_known = pc.and_(
        pc.is_valid(recorded["rank"]), pc.and_(pc.is_valid(recorded["sequence"]), pc.is_valid(recorded["operation"]))
    )
    calls = recorded.filter(is_known)
    outdated = _outdated_dumps(calls)
    calls = calls.filter(pc.invert(pc.is_in(calls["source"], pa.array(outdated, pa.string()))))
    of_ranks = [row for row in process_groups.to_pylist() if row["rank"] is not None]
    rows = [row for row in of_ranks if row["source"] not in outdated]
    records = _Records(calls, [row for row in timeouts.to_pylist() if row["rank"] is not None], rows)
    records.describe()
    stuck = [*_stuck_collectives(records), *_stuck_exchanges(records), *_timed_out_exchanges(records)]
    return _choose_root(records, stuck) if stuck else None


def _outdated_dumps(calls: pa.Table) -> list[str]:
    """Return the dumps of ranks that left a newer one."""
    newest: dict[int, tuple[int, str]] = {}
    dumps = calls.group_by(["rank", "source"]).aggregate([("start_ns", "max")]).to_pylist()
    for row in dumps:
        dump = (row["start_ns_max"] or 0, row["source"])
        newest[row["rank"]] = max(newest.get(row["rank"], dump), dump)
    return [row["source"] for row in dumps if row["source"] != newest[row["rank"]][1]]


def _stuck_collectives(records: _Records) -> Iterator[StuckOperation]:
    """Return the first stuck collective of each group."""
    collectives = records.calls.filter(pc.invert(pc.fill_null(records.calls["is_p2p"], fill_value=False)))
    stuck: dict[_Group, tuple[int, dict[int, _Progress]]] = {}
    for group, progress in _progress(records, collectives).items():
        pending = [rank_progress.pending for rank_progress in progress.values() if rank_progress.pending is not None]
        if pending:
            stuck[group] = min(pending), progress
    if not stuck:
        return
    mismatches = _find_mismatches(records, collectives, {group: at for group, (at, _) in stuck.items()})
    wanted = {*(at for at, _ in stuck.values()), *mismatches.values()}
    at_numbers = collectives.filter(pc.is_in(collectives["sequence"], pa.array(sorted(wanted), pa.int64())))
    rows: dict[tuple[_Group, int], list[Row]] = defaultdict(list)
    for row in at_numbers.to_pylist():
        rows[records.group(row["rank"], row["group_name"]), row["sequence"]].append(row)
    has_dump = {row["rank"] for group_rows in rows.values() for row in group_rows}
    timeouts: dict[_Group, list[Row]] = defaultdict(list)
    for row in records.timeouts:
        if _is_exchange(row):
            continue
        group = records.group(row["rank"], row["group_name"])
        timeouts[group].append(row)
        if row["rank"] not in has_dump:
            rows[group, row["sequence"]].append(_call_of_timeout(row))
    for group, (last, progress) in stuck.items():
        at = mismatches.get(group, last)
        yield _stuck_collective(records, group, (at, last), progress, rows[group, at], timeouts[group])


def _call_of_timeout(row: Row) -> Row:
    """Return the call that a watchdog's line names."""
    collective = parse_operation(row["operation"] or "")
    return {**row, "collective": collective, "size_bytes": None, "dtype": None, "source_line": None, "start_ns": None}


def _progress(records: _Records, collectives: pa.Table) -> dict[_Group, dict[int, _Progress]]:
    """Return how far each rank got in each group."""
    progress_by_group: dict[_Group, dict[int, _Progress]] = defaultdict(lambda: defaultdict(_Progress))
    keys = ["rank", "group_name"]
    is_done = pc.fill_null(pc.equal(collectives["state"], "completed"), fill_value=False)
    for row in collectives.group_by(keys).aggregate([("sequence", "max")]).to_pylist():
        progress_by_group[records.group(row["rank"], row["group_name"])][row["rank"]].reach(row["sequence_max"], None)
    for row in collectives.filter(is_done).group_by(keys).aggregate([("sequence", "max")]).to_pylist():
        progress_by_group[records.group(row["rank"], row["group_name"])][row["rank"]].reach(None, row["sequence_max"])
    open_calls = collectives.filter(pc.invert(is_done)).group_by([*keys, "sequence"]).aggregate([])
    for row in open_calls.to_pylist():
        rank_progress = progress_by_group[records.group(row["rank"], row["group_name"])][row["rank"]]
        if row["sequence"] > (rank_progress.completed or 0):  # calls within a coalesced one complete with that
            rank_progress.pending = (
                row["sequence"] if rank_progress.pending is None else min(rank_progress.pending, row["sequence"])
            )
    exchanging = set(pc.unique(records.calls.filter(records.calls["is_p2p"])["group_name"]).to_pylist())
    exchanging.update(row["group_name"] for row in records.timeouts if _is_exchange(row))
    for row in records.group_rows:
        if row["group_name"] not in exchanging and row["last_enqueued"] is not None:  # else it may number exchanges
            rank_progress = progress_by_group[records.group(row["rank"], row["group_name"])][row["rank"]]
            rank_progress.reach(row["last_enqueued"], row["last_completed"])
    for row in records.timeouts:
        if row["group_name"] not in exchanging and not _is_exchange(row):
            rank_progress = progress_by_group[records.group(row["rank"], row["group_name"])][row["rank"]]
            rank_progress.reach(row["sequence"], None)
            rank_progress.pending = min(rank_progress.pending or row["sequence"], row["sequence"])
    for progress in progress_by_group.values():
        for rank_progress in progress.values():
            rank_progress.settle()
    return progress_by_group


def _find_mismatches(records: _Records, collectives: pa.Table, stuck: Mapping[_Group, int]) -> dict[_Group, int]:
    """Return the first number up to the stuck one under which the ranks of a group called different collectives."""
    names = pa.array(sorted({group.name for group in stuck if group.name is not None}), pa.string())
    table = collectives.filter(pc.is_in(collectives["group_name"], names))
    table = table.append_column("signature", _signatures(table))
    keys = ["group_name", "sequence"]
    each = table.group_by(["rank", *keys]).aggregate([("signature", "count"), ("signature", "min")])
    single = each.filter(pc.equal(each["signature_count"], 1))
    differing = single.group_by(keys).aggregate([("signature_min", "count_distinct")])
    differing = differing.filter(pc.greater(differing["signature_min_count_distinct"], 1))
    mismatches: dict[_Group, int] = {}
    if not differing.num_rows:
        return mismatches
    numbers = pc.unique(differing["sequence"])
    seen: dict[tuple[_Group, int], set[str]] = defaultdict(set)
    for row in single.filter(pc.is_in(single["sequence"], numbers)).to_pylist():
        seen[records.group(row["rank"], row["group_name"]), row["sequence"]].add(row["signature_min"])
    for (group, number), signatures in seen.items():
        if len(signatures) > 1 and group in stuck and number <= stuck[group]:
            mismatches[group] = min(number, mismatches.get(group, number))
    return mismatches


def _signatures(table: pa.Table) -> pa.Array:
    """Return what has to be equal on all ranks, as a text per call."""
    operation = table["operation"]
    elements = pc.fill_null(pc.cast(table["input_elements"], pa.string()), "")
    full = pc.binary_join_element_wise(operation, elements, pc.fill_null(table["dtype"], ""), " ")
    return pc.if_else(pc.is_in(table["collective"], pa.array(_SYMMETRIC, pa.string())), full, operation)


def _stuck_collective(
    records: _Records,
    group: _Group,
    numbers: tuple[int, int],
    progress: Mapping[int, _Progress],
    rows: Sequence[Row],
    timeouts: Sequence[Row],
) -> StuckOperation:
    """Return the operation; `numbers`: the one that the verdict names, and the one in which the group waits."""
    at, last_number = numbers
    members = records.members.get(group, ())
    waiting, missing, unknown = set(), set(), set()
    for rank in {*members, *progress}:
        state = progress.get(rank, _Progress())
        last = state.entered if state.entered is not None else 0 if rank in records.whole else None
        if rank not in records.recorded:
            continue
        if last is None:
            unknown.add(rank)
        elif last < at:
            missing.add(rank)
        elif last >= last_number and (state.completed is None or state.completed < last_number):
            waiting.add(rank)
    states: dict[int, set[str | None]] = defaultdict(set)
    for row in rows:
        states[row["rank"]].add(row.get("state"))
    started = {rank for rank, seen in states.items() if "started" in seen}
    idle = {rank for rank, seen in states.items() if seen == {"scheduled"}} if started else set()
    at_number = [row for row in timeouts if row["sequence"] == at]
    return StuckOperation(
        call=_call(records, group.name, at, rows),
        is_p2p=False,
        members=members,
        waiting=tuple(sorted(waiting)),
        not_entered=tuple(sorted(missing)),
        not_started=tuple(sorted(idle & waiting)),
        unrecorded=tuple(sorted((set(members) or _assume_members(group, waiting)) - records.recorded)),
        unknown=tuple(sorted(unknown)),
        variants=_variants(records, group.name, at, rows),
        since_ns=min((row["start_ns"] for row in rows if row["start_ns"] is not None), default=None),
        waited_ns=max((row["waited_ns"] for row in at_number if row["waited_ns"] is not None), default=None),
        timeout_ns=max(
            (row["timeout_ns"] for row in (*at_number, *rows) if row["timeout_ns"] is not None), default=None
        ),
    )


def _assume_members(group: _Group, waiting: Collection[int]) -> set[int]:
    """Return the least ranks that a default group of which no source names the members has: no rank is left out."""
    is_small = len(waiting) > 1 and max(waiting) < _LARGEST_GROUP
    return set(range(max(waiting))) if group.name in (None, _WORLD) and is_small else set()


def _variants(records: _Records, name: str | None, at: int, rows: Iterable[Row]) -> tuple[Variant, ...]:
    """Return what the ranks called under one number, most ranks first; empty if they agree.

    A rank that made several calls under the number coalesced them: these are not compared.
    """
    by_rank: dict[int, list[Row]] = defaultdict(list)
    dumped = [row for row in rows if "state" in row]
    for row in dumped or rows:  # a watchdog's line names an operation in other words than a dump
        by_rank[row["rank"]].append(row)
    kinds: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for calls in by_rank.values():
        if len(calls) == 1:
            row = calls[0]
            given = (row["input_elements"], row["dtype"]) if row["collective"] in _SYMMETRIC else ()
            kinds[row["operation"], *given].append(row)
    if len(kinds) < 2:
        return ()
    variants = (
        Variant(_call(records, name, at, calls), tuple(sorted(row["rank"] for row in calls)))
        for calls in kinds.values()
    )
    return tuple(sorted(variants, key=lambda variant: (-len(variant.ranks), variant.ranks)))


def _call(records: _Records, name: str | None, sequence: int | None, rows: Sequence[Row]) -> Call:
    """Return the call that most of the rows state."""
    facts = ("operation", "collective", "size_bytes", "input_elements", "dtype", "source_line")
    stated = Counter(tuple(row[fact] for fact in facts) for row in rows)
    values = stated.most_common(1)[0][0] if stated else (None,) * len(facts)
    return Call(name, records.descriptions.get(name), sequence, *values)


def _stuck_exchanges(records: _Records) -> Iterator[StuckOperation]:
    """Return the first stuck send or receive between each two ranks."""
    exchanges = records.calls.filter(pc.fill_null(records.calls["is_p2p"], fill_value=False))
    keys = ["rank", "group_name"]
    is_done = pc.fill_null(pc.equal(exchanges["state"], "completed"), fill_value=False)
    done = exchanges.filter(is_done).group_by(keys).aggregate([("start_ns", "max"), ("sequence", "max")])
    last_done = {(row["rank"], row["group_name"]): row for row in done.to_pylist()}
    pending: dict[tuple[_Group, int, int], dict[int, Row]] = defaultdict(dict)
    for row in exchanges.filter(pc.invert(is_done)).to_pylist():
        last = last_done.get((row["rank"], row["group_name"]))
        if last is not None and (row["sequence"] <= last["sequence_max"]):
            continue  # a call within a coalesced one, which completed
        group = records.group(row["rank"], row["group_name"])
        if (peers := _peers(row, records.members.get(group, ()))) is not None and row["rank"] in peers:
            pending[group, *peers].setdefault(row["rank"], row)
    for (group, source, target), sides in pending.items():
        others = {source, target} - set(sides)
        unrecorded = others - records.recorded
        begun = [row["start_ns"] for row in sides.values() if row["start_ns"] is not None]
        timeouts = [row["timeout_ns"] for row in sides.values() if row["timeout_ns"] is not None]
        absent = {rank for rank in others - unrecorded if _lacks_partner(records, group, source, target, rank)}
        first = next(iter(sides.values()))
        verb = "send" if source in sides else "recv"
        arrow = f"{source}->{target}" if source in sides else f"{target}<-{source}"
        call = _call(records, group.name, first["sequence"], [{**first, "operation": f"{verb} {arrow}"}])
        yield StuckOperation(
            call=call,
            is_p2p=True,
            members=(source, target),
            waiting=tuple(sorted(sides)),
            not_entered=tuple(sorted(absent)),
            not_started=(),
            unrecorded=tuple(sorted(unrecorded)),
            unknown=tuple(sorted(others - unrecorded - absent)),
            variants=(),
            since_ns=min(begun, default=None),
            waited_ns=None,
            timeout_ns=max(timeouts, default=None),
        )


def _is_exchange(timeout: Row) -> bool:
    """Return whether a watchdog's line is of a send or receive, which is numbered apart from collectives."""
    return (timeout["operation"] or "").startswith(("SEND", "RECV"))


def _timed_out_exchanges(records: _Records) -> Iterator[StuckOperation]:
    """Return the sends and receives that a watchdog gave up on ranks without a dump; a line names no partner."""
    dumped = set(pc.unique(records.calls["rank"]).to_pylist())
    for row in records.timeouts:
        if _is_exchange(row) and row["rank"] not in dumped:
            yield StuckOperation(
                call=_call(records, row["group_name"], row["sequence"], [_call_of_timeout(row)]),
                is_p2p=True,
                members=(),
                waiting=(row["rank"],),
                not_entered=(),
                not_started=(),
                unrecorded=(),
                unknown=(),
                variants=(),
                since_ns=None,
                waited_ns=row["waited_ns"],
                timeout_ns=row["timeout_ns"],
            )


def _lacks_partner(records: _Records, group: _Group, source: int, target: int, rank: int) -> bool:
    """Return whether a rank made fewer calls than its partner between the two; False if a dump lacks early calls."""
    if not {source, target} <= records.whole:
        return False
    calls = records.calls.filter(pc.fill_null(records.calls["is_p2p"], fill_value=False))
    both = calls.filter(pc.is_in(calls["rank"], pa.array([source, target], pa.int32())))
    made: Counter[int] = Counter()
    for row in both.to_pylist():
        group_of_row = records.group(row["rank"], row["group_name"])
        if group_of_row == group and _peers(row, records.members.get(group, ())) == (source, target):
            made[row["rank"]] += 1
    return made[rank] < max(made[source], made[target])


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


def _choose_root(records: _Records, stuck: Sequence[StuckOperation]) -> Hang:
    """Return the hang: the operation that waits for ranks which wait in no other one, and the rest."""
    ordered = sorted(
        stuck,
        key=lambda operation: (
            operation.since_ns is None,
            operation.since_ns or 0,
            operation.is_p2p,
            operation.call.group or "",
        ),
    )
    waits: Counter[int] = Counter(rank for operation in ordered for rank in operation.waiting)

    def is_free(rank: int, operation: StuckOperation) -> bool:
        return waits[rank] - (rank in operation.waiting) <= 0

    free = {
        id(operation): tuple(rank for rank in operation.blocking if is_free(rank, operation)) for operation in ordered
    }
    tests = (
        lambda operation: operation.kind == "mismatch",
        lambda operation: free[id(operation)] and free[id(operation)] == operation.blocking,
        lambda operation: free[id(operation)],
        lambda operation: operation.kind == "undecided",
        lambda operation: not operation.blocking,
        lambda _: True,
    )
    root = next(operation for test in tests for operation in ordered if test(operation))
    culprits = free[id(root)] or root.blocking
    is_circular = bool(root.blocking) and not free[id(root)]
    others = tuple(operation for operation in ordered if operation is not root)
    last_calls = tuple(_last_calls(records, culprits[:_MOST_LAST_CALLS]))
    return write_hang(
        Hang(root, culprits, is_circular, others, last_calls, "", (), ""), is_confirmed=bool(records.timeouts)
    )


def _last_calls(records: _Records, ranks: Sequence[int]) -> Iterator[LastCall]:
    """Return the last recorded call of each of these ranks."""
    for rank in ranks:
        calls = records.calls.filter(pc.equal(records.calls["rank"], rank))
        if calls.num_rows:
            order = pc.sort_indices(pc.fill_null(calls["start_ns"], 0))
            (row,) = calls.take(order[-1:]).to_pylist()
            call = _call(records, row["group_name"], row["sequence"], [row])
            yield LastCall(rank, call, row["state"] == "completed")


def _parse_members(text: str) -> tuple[int, ...]:
    """Return the ranks of a text such as `0-3,8`; none for a text that is no such list, or too long a one."""
    if not re.fullmatch(r"\d{1,7}(?:-\d{1,7})?(?:,\d{1,7}(?:-\d{1,7})?)*", text):
        return ()
    ends = [(int(first), int(last or first)) for first, _, last in (part.partition("-") for part in text.split(","))]
    size = sum(max(last - first + 1, 0) for first, last in ends)
    return tuple(parse_numbers(text, "members")) if 0 < size <= _LARGEST_GROUP else ()


def _greatest(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else max(first, second)


class Recordings(Protocol):
    """The source of the rows; `jitter.Lake` has these members."""

    sources: list[SourceRecord]

    def step_columns(self, key: StepKey, columns: Sequence[str], ranks: Sequence[int] | None = None) -> StepColumns:
        """Return columns of one step's rows."""


def describe_last_kernels(recordings: Recordings, ranks: Sequence[int], entered_ns: int | None) -> list[str]:
    """Return a clause for each of these ranks that has a recording, the first few; `entered_ns` is when they hung.

    Raises `LakeError` if a file of the lake is missing or damaged.
    """
    known = [rank for rank in ranks if any(record.rank == rank and record.steps for record in recordings.sources)]
    return [
        text
        for rank in known[: THRESHOLDS.sentences.max_named]
        for text in _describe_last_kernel(recordings, rank, entered_ns)
    ]


def _describe_last_kernel(recordings: Recordings, rank: int, entered_ns: int | None) -> Iterator[str]:
    held = [(record, step) for record in recordings.sources if record.rank == rank for step in record.steps]
    record, step = max(held, key=lambda one: one[1].start_ns + (one[0].utc_offset_ns or 0))
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
