"""What NCCL's health query (RAS) tells of a hang: ranks that do not answer, and counts that do not grow."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from jitter.analysis.diagnosis.hang.model import (
    Call,
    Doubts,
    Hang,
    StuckOperation,
    Variant,
    judge,
    kind_of,
    list_variants,
)
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import escape_control, format_count, format_ranks
from jitter.core.grouping import by_key
from jitter.lake.log_records import Rows

_MOST: Final = THRESHOLDS.sentences.max_named
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
            return _hang(StuckOperation(_call(communicator), not_entered=lost, is_unresponsive=True), rows)
    unlike = [counts for name, of_name in by_communicator.items() if (counts := _unlike_counts(name, of_name))]
    unlike.sort(key=lambda counts: -len(counts.by_rank))
    for counts in unlike:
        others = [other for other in unlike if other is not counts]
        if counts.by_rank and not any(counts.may_wait_in(rank, other) for rank in counts.behind for other in others):
            return _hang(_stuck(counts), rows)
    if unlike:
        return _hang(StuckOperation(_call(unlike[0].communicator)), rows)
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
    call = _call(counts.communicator)
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


def _call(communicator: str) -> Call:
    return Call(communicator, "communicator of NCCL")


def _hang(stuck: StuckOperation, rows: Rows) -> Hang:
    culprits = stuck.not_entered
    hang = Hang(stuck, kind_of(stuck), culprits)
    places = {
        row["rank"]: f"rank {row['rank']} of communicator {row['comm']} is GPU {row['device']} on {row['host']}"
        for row in rows
        if row["comm"] == stuck.call.group and row["host"] is not None and row["rank"] in culprits
    }
    named = [escape_control(places[rank]) for rank in sorted(places)[:_MOST]]
    return judge(hang, Doubts()).with_evidence([*named, *describe_ras(rows)])
