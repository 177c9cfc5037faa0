"""Sizes of collectives that a log recorded, for collectives whose trace states none.

A recorded collective and a kernel are one if rank, group and the number in the group are equal. Where the log or the
trace lacks the numbers, the k-th collective of a rank in a group is the k-th that the log recorded of them, provided
that both hold equally many and that their operations agree. Sends and receives are not matched.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from jitter.core.formatting import format_count
from jitter.core.grouping import by_key
from jitter.core.names.kernels import SEND_RECV
from jitter.core.step_key import StepKey
from jitter.lake.step_reader import StepColumns

SIZE_COLUMNS: Final = ("kind", "collective", "size_bytes", "group_name", "sequence")
RECORDED_COLUMNS: Final = ("rank", "group_name", "sequence", "collective", "size_bytes", "start_ns", "source")
"""Of the relation `recorded`."""
DISAGREEING_SIZES: Final = "{} collectives have another size in a log than in the trace, which is kept"
UNORDERED: Final = (
    "{} collectives have no size: a log recorded other collectives of their rank and group, or another number of them"
)
_HEXADECIMAL: Final = re.compile(r"0x[0-9a-fA-F]{1,16}")

_Group = str | int | None
_Member = tuple[int, _Group]
"""A rank in a group."""
Steps = Iterable[tuple[StepKey, StepColumns]]


class _Entry(NamedTuple):
    """One collective of a log."""

    operation: str | None
    size_bytes: int | None
    sequence: int | None
    start_ns: int | None
    source: str


class _Collective(NamedTuple):
    """One collective kernel of a step."""

    row: int
    member: _Member
    operation: str | None
    sequence: int | None
    size_bytes: int | None


class SizeDisagreement(NamedTuple):
    """A collective whose size in the log contradicts the trace's."""

    source: str
    """The log."""
    rank: int
    key: StepKey
    in_log: int
    in_trace: int


class RecordedSizes:
    """Sizes of the relation `recorded`, by rank, group, and number or order in the group."""

    def __init__(self, recorded: Iterable[Mapping[str, Any]], survey: Callable[[], Steps] = tuple) -> None:
        """Take the relation's rows; those without rank are left out.

        `survey` reads all steps of the lake in order, with `SIZE_COLUMNS`; it is called if the order is needed.
        """
        self._survey = survey
        self._entries: dict[_Member, list[_Entry]] = {}
        for row in recorded:
            if row["rank"] is not None and row["collective"] != SEND_RECV:
                name = row["group_name"]
                member = row["rank"], None if name is None else _group(name)
                numbers = (row["size_bytes"], row["sequence"], row.get("start_ns"))
                entry = _Entry(row["collective"], *numbers, row.get("source") or "")
                self._entries.setdefault(member, []).append(entry)
        self._numbered = {
            member: {entry.sequence: entry for entry in entries if entry.sequence is not None}
            for member, entries in self._entries.items()
        }
        only = Counter(rank for rank, _ in self._entries)
        self._only_group = {rank: group for rank, group in self._entries if only[rank] == 1}
        """The group of each rank with collectives of one group in the logs."""

    def __bool__(self) -> bool:
        """Return whether the logs recorded any collective."""
        return bool(self._entries)

    def filled(self, key: StepKey, read: StepColumns, reasons: Counter[str] | None = None) -> StepColumns:
        """Return a step, given with `SIZE_COLUMNS`, with unknown sizes filled in; count doubts in `reasons`."""
        if not self:
            return read
        sizes = read.table["size_bytes"].to_pylist()
        reasons = Counter() if reasons is None else reasons
        for collective, entry in self._match(key, read):
            if entry is None:
                reasons[UNORDERED] += collective.size_bytes is None
            elif collective.size_bytes is None:
                sizes[collective.row] = entry.size_bytes
            elif entry.size_bytes not in (None, collective.size_bytes):
                reasons[DISAGREEING_SIZES] += 1
        at = read.table.schema.get_field_index("size_bytes")
        table = read.table.set_column(at, "size_bytes", pa.chunked_array([pa.array(sizes, pa.int64())]))
        return replace(read, table=table)

    def disagreements(self) -> list[SizeDisagreement]:
        """Return the collectives of the lake whose size in a log contradicts the trace's, in the order of the steps."""
        if not self:
            return []
        return [
            SizeDisagreement(entry.source, collective.member[0], key, entry.size_bytes, collective.size_bytes)
            for key, read in self._survey()
            for collective, entry in self._match(key, read)
            if entry is not None
            and entry.size_bytes is not None
            and collective.size_bytes is not None
            and entry.size_bytes != collective.size_bytes
        ]

    def _match(self, key: StepKey, read: StepColumns) -> Iterator[tuple[_Collective, _Entry | None]]:
        """Yield the collectives of members that a log knows, with its entry; None where the order tells none."""
        so_far: Counter[_Member] = Counter()
        for collective in self._collectives(read):
            number = so_far[collective.member]
            so_far[collective.member] += 1
            if collective.sequence is not None and self._numbered[collective.member]:
                entry = self._numbered[collective.member].get(collective.sequence)
                if entry is not None and _agree([collective.operation], [entry]):
                    yield collective, entry
            else:
                first = self._first_number.get((key, collective.member))
                yield collective, None if first is None else self._ordered[collective.member][first + number]

    def _collectives(self, read: StepColumns) -> Iterator[_Collective]:
        """Yield a step's collectives of members that a log knows, in the order of rank, then of launch."""
        operations, operation_names = read.codes("collective")
        groups, group_names = read.codes("group_name")
        of_name = [_group(name) for name in group_names]
        ranks = np.array(read.ranks, np.int64)[read.of_rank]
        sequences, has_sequence = read.values("sequence"), read.known("sequence")
        sizes, has_size = read.values("size_bytes"), read.known("size_bytes")
        for row in np.flatnonzero(read.equals("kind", "collective")).tolist():
            operation = None if operations[row] < 0 else operation_names[operations[row]]
            rank = int(ranks[row])
            member = rank, self._only_group.get(rank) if groups[row] < 0 else of_name[groups[row]]
            if operation != SEND_RECV and member in self._entries:
                yield _Collective(
                    row,
                    member,
                    operation,
                    int(sequences[row]) if has_sequence[row] else None,
                    int(sizes[row]) if has_size[row] else None,
                )

    @cached_property
    def _ordered(self) -> dict[_Member, list[_Entry]]:
        """Each member's entries in the order in which they were called."""
        ordered = dict(self._entries)
        for member, entries in self._entries.items():
            for name in ("start_ns", "sequence"):  # the surest last
                if all(getattr(entry, name) is not None for entry in entries):
                    ordered[member] = sorted(entries, key=attrgetter(name))
        return ordered

    @cached_property
    def _first_number(self) -> dict[tuple[StepKey, _Member], int]:
        """For each step and member the number of its first collective in the run; of members that the order tells."""
        operations: dict[_Member, list[str | None]] = {}
        first: dict[tuple[StepKey, _Member], int] = {}
        for key, read in self._survey():
            for collective in self._collectives(read):
                of_member = operations.setdefault(collective.member, [])
                first.setdefault((key, collective.member), len(of_member))
                of_member.append(collective.operation)
        agreeing = {member for member, of_member in operations.items() if _agree(of_member, self._ordered[member])}
        return {(key, member): number for (key, member), number in first.items() if member in agreeing}


def describe_disagreements(disagreements: Iterable[SizeDisagreement]) -> list[tuple[str, int, str]]:
    """Return (log, rank, sentence) for each log and rank with collectives of another size than in the trace."""
    by_log = by_key(((disagreement.source, disagreement.rank), disagreement) for disagreement in disagreements)
    described = []
    for (source, rank), differing in by_log.items():
        count, first = format_count(len(differing), "collective"), differing[0]
        sentence = (
            f"{count} of rank {rank} {'has' if len(differing) == 1 else 'have'} another size than in the trace, which "
            f"is kept (first in {first.key}: {first.in_log:,} B, in the trace {first.in_trace:,} B)"
        )
        described.append((source, rank, sentence))
    return described


def _agree(operations: list[str | None], entries: list[_Entry]) -> bool:
    """Return whether both are equally many, and the same operations where known."""
    return len(operations) == len(entries) and all(
        operation is None or entry.operation is None or operation == entry.operation
        for operation, entry in zip(operations, entries, strict=True)
    )


def _group(name: str) -> str | int:
    """Return a communicator's id as a number, whatever its form; other names as they are."""
    return int(name, 16) if _HEXADECIMAL.fullmatch(name) else name
