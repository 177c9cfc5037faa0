"""What NCCL's health query (RAS) tells of a hang: ranks that do not answer, and counts that do not grow."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jitter.analysis.diagnosis.hang.model import Call, Hang, StuckOperation
from jitter.analysis.diagnosis.hang.rules import Doubts, judge, kind_of
from jitter.core.formatting import format_count, format_ranks

Rows = Sequence[Mapping[str, Any]]
_LOST = ("unresponsive", "dead")
"""States of a process that does not answer; one that leaves a communicator is missing there for a moment."""


def find_hang_in_ras(rows: Rows) -> Hang | None:
    """Return the hang that queries show: a rank without an answer, or equal counts in two queries that lack ranks.

    Ranks that are behind in one query alone may be on their way.
    """
    by_communicator: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["comm"] is not None:
            by_communicator[row["comm"]].append(row)
    for communicator, operations in by_communicator.items():
        lost = sorted({row["rank"] for row in operations if row["state"] in _LOST and row["rank"] is not None})
        if lost:
            return _hang(communicator, operations, lost, (), is_lost=True, evidence=describe_ras(rows))
    for communicator, operations in by_communicator.items():
        behind = _behind_in_two_queries(operations)
        if behind:
            counts = {row["rank"]: row["operations"] for row in operations if row["rank"] is not None}
            ahead = [rank for rank in counts if rank not in behind]
            return _hang(communicator, operations, behind, ahead, is_lost=False, evidence=describe_ras(rows))
    return None


def describe_ras(rows: Rows) -> tuple[str, ...]:
    """Return what the queries tell, as sentences."""
    return tuple(dict.fromkeys(_sentences(rows)))


def _sentences(rows: Rows) -> Iterator[str]:
    for row in rows:
        if row["state"] in _LOST and row["rank"] is None:
            verb = "is considered dead" if row["state"] == "dead" else "does not answer"
            yield f"the process of GPU {row['device']} on {row['host']} {verb} (NCCL RAS)"
    lost: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        if row["state"] in _LOST and row["rank"] is not None:
            lost[row["comm"] or "?"].add(row["rank"])
    for communicator, ranks in lost.items():
        yield f"communicator {communicator} lacks {format_ranks(sorted(ranks))} (NCCL RAS; numbers in the communicator)"
    last = max((_query(row) for row in rows), default=None)
    by_communicator: dict[str, dict[int, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["operations"] is not None and _query(row) == last:
            by_communicator[row["comm"] or "?"][row["operations"]].append(row)
    for communicator, operations in by_communicator.items():
        if len(operations) > 1:
            texts = ", ".join(_ranks_at(at, of_operation) for at, of_operation in sorted(operations.items()))
            yield f"communicator {communicator}: {texts} (NCCL RAS)"


def _ranks_at(operation: int, rows: Rows) -> str:
    """Return how many ranks are at an operation, and which, where NCCL lists them: text does of outliers alone."""
    ranks = sorted(row["rank"] for row in rows if row["rank"] is not None)
    counted = next((row["count"] for row in rows if row["count"] is not None), len(ranks))
    which = f" ({format_ranks(ranks)})" if len(ranks) == counted else ""
    return f"{format_count(counted, 'rank')} at operation {operation}{which}"


def _query(row: Mapping[str, Any]) -> tuple[int, str, int]:
    return row["time_ns"] or 0, row["source"], row["query"]


def _behind_in_two_queries(rows: Rows) -> list[int]:
    """Return the ranks that are behind others, if the last two queries show the same counts."""
    queries: dict[tuple[int, str, int], set[tuple[Any, ...]]] = defaultdict(set)
    for row in rows:
        if row["operations"] is not None:
            queries[_query(row)].add((row["rank"], row["count"], row["operations"]))
    if len(queries) < 2:
        return []
    before, last = (queries[key] for key in sorted(queries)[-2:])
    furthest = max((operations for *_, operations in last), default=0)
    behind = sorted(rank for rank, _, operations in last if rank is not None and operations < furthest)
    return behind if before == last else []


def _hang(
    communicator: str,
    rows: Rows,
    ranks: Sequence[int],
    waiting: Sequence[int],
    *,
    is_lost: bool,
    evidence: Sequence[str],
) -> Hang:
    furthest = max((row["operations"] for row in rows if row["operations"] is not None), default=None)
    stuck = StuckOperation(
        Call(communicator, None, furthest, None, None, None, None, None, None),
        waiting=tuple(waiting),
        not_entered=tuple(ranks),
        is_unresponsive=is_lost,
    )
    hang = Hang(stuck, kind_of(stuck), tuple(ranks))
    return judge(hang, Doubts(), lambda culprits: ()).with_evidence(evidence)
