"""Find the operation that a job hangs in: what did not complete, what each of these waits for, and the first of them.

A rank numbers the collectives of a group by itself, in the order of its calls; the members of a group call the same
collectives in the same order. An operation is stuck if a rank entered it and did not complete it, and the first such
number of a group is what the group waits in. A member that entered no operation of this number or a later one did not
enter it. Sends and receives have numbers of their own and are paired by their two ranks.

An operation waits behind another one if a member that did not enter it waits in that one, or entered that one before:
the GPU, and a host that waits for it, go through a rank's calls in their order.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.analysis.diagnosis.diagnosed_lake import DiagnosedLake
from jitter.analysis.diagnosis.hang.facts import (
    BARRIER,
    MAX_MEMBERS,
    SYMMETRIC,
    WORLD,
    DumpGroup,
    HangFacts,
    Place,
    Progress,
    assumed_members,
    call_of_timeout,
    collect_facts,
    is_exchange,
    name_of,
    order_exchanges,
    parse_ranks,
    pending_exchanges,
)
from jitter.analysis.diagnosis.hang.model import Call, Hang, LastCall, StuckOperation, Variant, list_variants
from jitter.analysis.diagnosis.hang.rules import Doubts, judge, kind_of
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import abbreviate, escape_control, format_time
from jitter.core.grouping import by_key
from jitter.core.names.kernels import ALIGNING_OPERATIONS, KINDS, MEMORY, short_name
from jitter.lake.log_records import Row

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
