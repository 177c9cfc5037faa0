"""What NCCL tells of a hang: its log of calls (`opCount`), and its health query (RAS).

Calls differ under one number, or ranks are behind. The log states calls, not their ends, and that of a job that was
ended stops anywhere: ranks behind are a hang only if a watchdog gave up, in the only communicator with ranks behind, if
the calls of all ranks and communicators are known; else a rank may wait for another one elsewhere. Sends and receives
share the numbers and are not the same on all ranks. NCCL before 2.19 prints no id that the ranks of a communicator
share; that of all ranks is known by its size.

In the health query ranks do not answer, or their counts do not grow from one query to the next.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final

from jitter.analysis.diagnosis.hang.find_hang import MAX_MEMBERS
from jitter.analysis.diagnosis.hang.model import Call, Doubts, Hang, StuckOperation, Variant, judge, list_variants
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import escape_control, format_count, format_ranks, format_some
from jitter.core.grouping import by_key
from jitter.core.names.kernels import parse_operation
from jitter.lake.log_records import Row, Rows

_MOST: Final = THRESHOLDS.sentences.max_named
_Signature = tuple[str, int, str, int]
"""Operation, elements, type and root."""


@dataclass(frozen=True)
class _Communicator:
    """The last calls of a communicator's ranks; ranks are global ones."""

    name: str | None
    members: tuple[int, ...]
    """Empty where the ranks of some members are not known."""
    calls: Mapping[int, Mapping[int, list[_Signature]]]
    """By rank and number."""

    @property
    def last(self) -> dict[int, int]:
        """The number of each rank's last call."""
        return {rank: max(numbers) for rank, numbers in self.calls.items()}

    @property
    def differs_at(self) -> int | None:
        """The first number under which two ranks called something else; None if there is none."""
        numbers = sorted({number for calls in self.calls.values() for number in calls})
        return next((number for number in numbers if len(self.called(number)) > 1), None)

    @property
    def behind_at(self) -> int | None:
        """The first number that some of the ranks entered and some did not; None if all are as far."""
        last = self.last.values()
        return min(last) + 1 if min(last) < max(last) else None

    def called(self, number: int) -> dict[_Signature, list[int]]:
        """Return the ranks of each call of a number; ranks that grouped several calls under it are left out."""
        single = ((calls[number][0], rank) for rank, calls in self.calls.items() if len(calls.get(number, ())) == 1)
        return by_key(sorted(single, key=itemgetter(1)))


def find_hang_in_calls(rows: Sequence[Row], *, is_confirmed: bool) -> Hang | None:
    """Return the hang that rows of the relation `nccl_calls` show; None if they show none.

    Ranks hang where their calls differ. Where a watchdog gave up, they also hang at a call that some have not made.
    """
    communicators, is_complete = _communicators(rows)
    for communicator in communicators:
        if (at := communicator.differs_at) is not None:
            return _hang(communicator, at, is_confirmed=is_confirmed)
    behind = [communicator for communicator in communicators if communicator.behind_at is not None]
    if not is_confirmed or not is_complete or len(behind) != 1 or behind[0].behind_at is None:
        return None
    return _hang(behind[0], behind[0].behind_at, is_confirmed=True)


def join_hangs(by_watchdog: Hang | None, by_calls: Hang | None) -> Hang | None:
    """Return the hang by the watchdog and dumps, or by NCCL's calls where only these tell which ranks are missing."""
    if by_watchdog is None or by_calls is None or by_watchdog.kind != "undecided":
        return by_watchdog or by_calls
    timed_out = by_watchdog.operation
    operation = replace(by_calls.operation, waited_ns=timed_out.waited_ns, timeout_ns=timed_out.timeout_ns)
    others = (replace(by_watchdog, others=()), *by_watchdog.others)
    return replace(by_calls, operation=operation, others=others).with_evidence(
        [f"PyTorch's watchdog: {text}" for text in by_watchdog.evidence]
    )


def describe_calls(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return a sentence for each of the first communicators whose ranks are not equally far."""
    behind = [
        of_group
        for of_group in _communicators(rows)[0]
        if of_group.differs_at is None and of_group.behind_at is not None
    ]
    return tuple(escape_control(_describe(communicator)) for communicator in behind[:_MOST])


def _describe(communicator: _Communicator) -> str:
    ranks = by_key((number, rank) for rank, number in communicator.last.items())
    texts = [f"{format_ranks(sorted(of_number))} at {number}" for number, of_number in sorted(ranks.items())]
    name = "the communicator of all ranks" if communicator.name is None else f"communicator {communicator.name}"
    return f"last calls of {name} in NCCL's log: {format_some(texts, _MOST)}; a log that was cut off ends earlier"


def _hang(communicator: _Communicator, at: int, *, is_confirmed: bool) -> Hang:
    called = sorted(communicator.called(at).items(), key=lambda item: (-len(item[1]), item[1]))
    last = communicator.last
    variants = tuple(Variant(_call(communicator, at, what), tuple(ranks)) for what, ranks in called)
    stuck = StuckOperation(
        call=_call(communicator, at, called[0][0] if called else None),
        members=communicator.members,
        waiting=tuple(sorted(rank for rank, number in last.items() if number >= at)),
        not_entered=tuple(sorted(rank for rank, number in last.items() if number < at)),
        unrecorded=tuple(sorted(set(communicator.members) - set(last))),
        variants=variants if len(variants) > 1 else (),
    )
    hang = judge(Hang(stuck, culprits=stuck.blocking), Doubts(is_confirmed))
    return hang.with_evidence([f"call {at} is opCount {at:x} in NCCL's log", *_behind_now(communicator, at)])


def _behind_now(communicator: _Communicator, at: int) -> Iterator[str]:
    if communicator.behind_at == at:
        yield _describe(communicator)
        yield f"whether call {at - 1}, which all ranks entered, ended is not in the log: a rank may wait for its end"


def _call(communicator: _Communicator, number: int, what: _Signature | None) -> Call:
    if what is None:
        return Call(communicator.name, sequence=number)
    operation, elements, dtype, _ = what
    return Call(communicator.name, None, number, operation, parse_operation(operation), None, elements, dtype)


def _communicators(rows: Sequence[Row]) -> tuple[list[_Communicator], bool]:
    """Return the communicators whose ranks are known, the largest first, and whether these are all, with all ranks."""
    by_name = by_key(
        (row["comm"], row)
        for row in rows
        if None not in (row["comm"], row["rank"], row["ranks"]) and 1 < row["ranks"] <= MAX_MEMBERS
    )
    world = max((row["ranks"] for of_name in by_name.values() for row in of_name), default=0)
    named: list[tuple[str | None, list[Row]]] = []
    of_world: dict[int, list[str]] = defaultdict(list)
    is_complete = True
    for name, of_name in by_name.items():
        ranks = {row["rank"] for row in of_name}
        owners = {(row["host"], row["process"], row["rank"]) for row in of_name}
        if len(ranks) > 1 and len(owners) == len(ranks):
            named.append((name, of_name))
        elif len(ranks) == 1 and of_name[0]["ranks"] == world:
            of_world[of_name[0]["rank"]].append(name)
        else:
            is_complete = False
    if all(len(names) == 1 for names in of_world.values()):
        named.append((None, [row for names in of_world.values() for row in by_name[names[0]]]))
    else:
        is_complete = False
    of_process = _global_ranks(named, world)
    communicators = []
    for shared, members in sorted(named, key=lambda pair: (-len(pair[1]), str(pair[0]))):
        communicator = _communicator(shared, members, of_process, world)
        if communicator is not None:
            communicators.append(communicator)
        is_complete &= not members or (communicator is not None and len(communicator.calls) == members[0]["ranks"])
    return communicators, is_complete


def _communicator(
    name: str | None, rows: Sequence[Row], of_process: Mapping[tuple[Any, Any], int], world: int
) -> _Communicator | None:
    """Return a communicator with global ranks; None where a rank is not known, or where it has sends and receives."""
    ranks: list[Any] = [
        row["rank"] if row["ranks"] == world else of_process.get((row["host"], row["process"])) for row in rows
    ]
    if None in ranks or len(set(ranks)) < 2 or any(row["operation"] in ("Send", "Recv") for row in rows):
        return None
    of_ranks = by_key(
        (rank, (row["sequence"], (row["operation"], row["elements"], row["dtype"], row["root"])))
        for rank, row in zip(ranks, rows, strict=True)
    )
    calls = {rank: by_key(numbered) for rank, numbered in of_ranks.items()}
    return _Communicator(name, tuple(range(world)) if rows[0]["ranks"] == world else (), calls)


def _global_ranks(named: Sequence[tuple[str | None, Sequence[Row]]], world: int) -> dict[tuple[Any, Any], int]:
    """Return the global rank of each process that has one, from a communicator of all ranks."""
    ranks = by_key(
        ((row["host"], row["process"]), row["rank"]) for _, rows in named for row in rows if row["ranks"] == world
    )
    return {process: of_process[0] for process, of_process in ranks.items() if len(set(of_process)) == 1}


_LOST = ("unresponsive", "dead")
"""States of a process that does not answer; one that leaves a communicator is missing there for a moment."""


@dataclass(frozen=True)
class _Counts:
    """What the ranks of a communicator launched, where two answers state the same."""

    communicator: str
    by_rank: Mapping[int, Mapping[str | None, int]]
    """Launched collectives of each rank by kind; empty where the answers do not list the ranks of all counts."""
    places: Mapping[int, tuple[Any, ...]]
    """Host, process and GPU of the ranks that they list."""

    @property
    def behind(self) -> tuple[int, ...]:
        """The ranks that launched the fewest collectives: the others wait for the next one of these."""
        totals = {rank: sum(counts.values()) for rank, counts in self.by_rank.items()}
        return tuple(sorted(rank for rank, total in totals.items() if total == min(totals.values())))

    @property
    def waiting(self) -> tuple[int, ...]:
        """All other ranks."""
        return tuple(sorted(set(self.by_rank) - set(self.behind)))

    def may_wait_in(self, rank: int, other: "_Counts") -> bool:
        """Return whether a rank may wait in another communicator, as far as its process is known there."""
        place = self.places.get(rank)
        if place is None or not other.by_rank:
            return True
        known = {other.places.get(waiting) for waiting in other.waiting}
        return place in known or (None in known and place not in {other.places.get(behind) for behind in other.behind})


def find_hang_in_ras(rows: Rows) -> Hang | None:
    """Return the hang that queries show: a rank without an answer, or equal counts in two queries that lack ranks.

    Ranks that are behind in one query alone may be on their way.
    """
    by_communicator = by_key((row["comm"], row) for row in rows if row["comm"] is not None)
    for communicator, of_communicator in by_communicator.items():
        if lost := _lost(of_communicator):
            return _judge_query(StuckOperation(_call_of(communicator), not_entered=lost, is_unresponsive=True), rows)
    unlike = [counts for name, of_name in by_communicator.items() if (counts := _unlike_counts(name, of_name))]
    unlike.sort(key=lambda counts: -len(counts.by_rank))
    for counts in unlike:
        others = [other for other in unlike if other is not counts]
        if counts.by_rank and not any(counts.may_wait_in(rank, other) for rank in counts.behind for other in others):
            return _judge_query(_stuck(counts), rows)
    if unlike:
        return _judge_query(StuckOperation(_call_of(unlike[0].communicator)), rows)
    return None


def describe_ras(rows: Rows) -> tuple[str, ...]:
    """Return what the queries tell, as sentences."""
    return tuple(dict.fromkeys(_sentences(rows)))


def _sentences(rows: Rows) -> Iterator[str]:
    for row in rows:
        if row["state"] in _LOST and row["rank"] is None:
            verb = "is considered dead" if row["state"] == "dead" else "does not answer"
            yield f"the process of GPU {row['device']} on {row['host']} {verb} (NCCL RAS)"
    lost = by_key((row["comm"] or "?", row) for row in rows if row["state"] in _LOST and row["rank"] is not None)
    for communicator, of_communicator in lost.items():
        ranks = format_ranks(_lost(of_communicator))
        yield f"communicator {communicator} lacks {ranks} (NCCL RAS; numbers in the communicator)"
    last = max((_query(row) for row in rows), default=None)
    counted = (row for row in rows if row["operations"] is not None and _query(row) == last)
    for (communicator, operation), of_group in by_key(
        ((row["comm"] or "?", row["operation"]), (row["operations"], row)) for row in counted
    ).items():
        by_count = by_key(of_group)
        if len(by_count) > 1:
            what = operation or "operation"
            texts = ", ".join(_ranks_at(f"{what} {at}", of_count) for at, of_count in sorted(by_count.items()))
            yield f"communicator {communicator}: {texts} (NCCL RAS)"


def _ranks_at(operation: str, rows: Rows) -> str:
    """Return how many ranks are at an operation, and which, where NCCL lists them: text does of outliers alone."""
    ranks = sorted(row["rank"] for row in rows if row["rank"] is not None)
    counted = next((row["count"] for row in rows if row["count"] is not None), len(ranks))
    listed = f" ({format_ranks(ranks)})" if len(ranks) == counted else ""
    return f"{format_count(counted, 'rank')} at {operation}{listed}"


def _query(row: Mapping[str, Any]) -> tuple[int, str, int]:
    return row["time_ns"] or 0, row["source"], row["query"]


def _lost(rows: Rows) -> tuple[int, ...]:
    return tuple(sorted({row["rank"] for row in rows if row["state"] in _LOST and row["rank"] is not None}))


def _unlike_counts(communicator: str, rows: Rows) -> _Counts | None:
    """Return what the ranks launched, if the last two queries state the same, and not the same of all ranks."""
    queries = by_key((_query(row), row) for row in rows if row["operations"] is not None)
    before, last = (_stated_counts(queries[key]) for key in sorted(queries)[-2:]) if len(queries) > 1 else ({}, {})
    if before != last or all(len(by_count) == 1 for by_count in last.values()):
        return None
    listed = [_listed(by_count) for by_count in last.values()]
    by_rank: dict[int, dict[str | None, int]] = defaultdict(dict)
    for operation, ranks in zip(last, listed, strict=True):
        for rank, count in ranks.items() if all(listed) else ():
            by_rank[rank][operation] = count
    places = {row["rank"]: (row["host"], row["process"], row["device"]) for row in rows if row["host"] is not None}
    return _Counts(communicator, by_rank, places)


def _stated_counts(rows: Rows) -> dict[str | None, dict[int, set[tuple[Any, ...]]]]:
    """Return, of each kind of collective, which ranks (rank, how many there are) are at which count."""
    kinds = by_key((row["operation"], (row["operations"], (row["rank"], row["count"]))) for row in rows)
    return {kind: {count: set(at) for count, at in by_key(of_kind).items()} for kind, of_kind in kinds.items()}


def _listed(by_count: Mapping[int, set[tuple[Any, ...]]]) -> dict[int, int]:
    """Return the count of each rank: of one group at most NCCL says its size alone. Empty where it does of more."""
    ranks = {rank: at for at, stated in by_count.items() for rank, _ in stated if rank is not None}
    sizes = {at: max((count for _, count in stated if count is not None), default=0) for at, stated in by_count.items()}
    unlisted = [at for at, size in sizes.items() if size > sum(of_rank == at for of_rank in ranks.values())]
    if len(unlisted) > 1:
        return {}
    rest = set(range(sum(sizes.values()))) - set(ranks)
    return ranks | {rank: at for at in unlisted for rank in rest}


def _stuck(counts: _Counts) -> StuckOperation:
    """Return the operation that the ranks behind did not enter: of the one kind that these launched fewer of."""
    ahead = [counts.by_rank[rank] for rank in counts.waiting]
    behind = counts.by_rank[counts.behind[0]]
    call = _call_of(counts.communicator)
    if not ahead:  # equally many collectives, of other kinds
        return StuckOperation(call, waiting=counts.behind, variants=_variants(counts, call))
    fewer = [what for what, count in behind.items() if all(of_rank[what] > count for of_rank in ahead)]
    if len(fewer) == 1:
        call = replace(call, operation=fewer[0], sequence=behind[fewer[0]] + 1)
    return StuckOperation(call, waiting=counts.waiting, not_entered=counts.behind)


def _variants(counts: _Counts, call: Call) -> tuple[Variant, ...]:
    """Return which collectives ranks launched more of than other ranks."""
    launched = by_key(item for of_rank in counts.by_rank.values() for item in of_rank.items())
    more = {
        rank: " and ".join(str(what) for what, count in of_rank.items() if count > min(launched[what]))
        for rank, of_rank in counts.by_rank.items()
    }
    return list_variants(by_key((replace(call, operation=operation), rank) for rank, operation in more.items()))


def _call_of(communicator: str) -> Call:
    return Call(communicator, "communicator of NCCL")


def _judge_query(stuck: StuckOperation, rows: Rows) -> Hang:
    culprits = stuck.not_entered
    hang = Hang(stuck, culprits=culprits)
    places = {
        row["rank"]: f"rank {row['rank']} of communicator {row['comm']} is GPU {row['device']} on {row['host']}"
        for row in rows
        if row["comm"] == stuck.call.group and row["host"] is not None and row["rank"] in culprits
    }
    named = [escape_control(places[rank]) for rank in sorted(places)[:_MOST]]
    return judge(hang, Doubts()).with_evidence([*named, *describe_ras(rows)])
