"""A step's collective calls: kernels of all its ranks, arrival of its last rank, waiting of the others.

All ranks leave a collective together, so a rank's kernel is the longer the earlier the rank arrived: the shortest
kernel is the last arrival's, and its duration is the time from the last arrival to the end. No clock is compared.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jitter.analysis.collectives.matching import GROUP_COLUMNS, Group, name_group, number_in_groups, read_groups
from jitter.core.arrow import to_numpy
from jitter.core.names.kernels import SEND_RECV
from jitter.core.numeric.arrays import Bools, Floats, Ints, begins_of, distinct_rows, pieces_of
from jitter.lake.step_reader import StepColumns, join_ranks

COLUMNS: Final = (
    *("kind", "start_ns", "end_ns", "collective", "size_bytes", "split_imbalance", "dtype"),
    *("group_size", "sequence", "copy_direction", *GROUP_COLUMNS),
)
"""Columns of `schema.KERNELS` that are read of each step."""
COLUMNS_OF_ALL: Final = ("kind", "start_ns", "end_ns")
"""Columns that are read of compute kernels too."""
_ROWS_AT_ONCE: Final = 1_000_000
"""Rows that `read_calls` reads at once, some 80 bytes each."""
UNKNOWN: Final = -1
ASSUMED_GROUP: Final = "{} collectives state no group: assumed to span all recorded ranks"
UNRECORDED: Final = "{} collectives have ranks that were not recorded: their last arrival is unknown"
DISAGREEING: Final = "{} collectives are left out: ranks disagree about the operation at their place in the group"
UNPAIRED: Final = "{} send_recv kernels: partners are not matched, the time includes waiting for the partner"


@dataclass(frozen=True)
class Kernels:
    """The kernels of the calls of one step. Arrays are shape (kernels,)."""

    call: Ints
    """Position among the calls."""
    rank: Ints
    """Position among the step's ranks."""
    start_ns: Ints
    end_ns: Ints


@dataclass(frozen=True)
class Calls:
    """The calls of one step. Arrays are shape (calls,); `UNKNOWN` stands for an unknown code, size or rank."""

    kernels: Kernels
    operation: tuple[str | None, ...]
    dtype: tuple[str | None, ...]
    group: tuple[Group | None, ...]
    size_bytes: Ints
    imbalance: Floats
    """Largest / mean part of an all-to-all with unequal parts; NaN: equal parts or unknown."""
    group_size: Ints
    time_ns: Ints
    """From the last arrival to the end; `UNKNOWN` if ranks were not recorded."""
    wait_ns: Ints
    """Of the rank that waited longest for the last arrival."""
    last_rank: Ints
    """Number of the rank that arrived last."""
    reasons: Counter[str]
    """How many calls something is unknown of, by the sentence that says so, with {} for the number."""

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self.operation)


def read_calls(read: Callable[[Sequence[int]], StepColumns], rows: Mapping[int, int]) -> StepColumns:
    """Return a step's collectives and copies alone; `rows` are how many rows each rank has.

    `read` is called for some ranks at a time, and returns their rows with `COLUMNS`.
    """
    ranks = sorted(rows)
    pieces = pieces_of(begins_of(rows[rank] for rank in ranks), _ROWS_AT_ONCE)
    return join_ranks([read(ranks[piece]).of_kinds(("collective", "memory")) for piece in pieces])


def match_calls(read: StepColumns, only_group: str | None = None) -> Calls:
    """Match the collective kernels of a step's ranks by group and order; `only_group` keeps one label."""
    rows = np.flatnonzero(read.equals("kind", "collective"))
    group_of_row, groups = read_groups(read, rows)
    if only_group is not None:
        kept = np.array([name_group(group) == only_group for group in groups], np.bool_)[group_of_row]
        rows, group_of_row = rows[kept], group_of_row[kept]
    of_rank = read.of_rank[rows]
    operation_of_row, operations = _codes(read, "collective", rows)
    order = number_in_groups(of_rank, group_of_row)
    # a send or receive of unknown peer, or whose peer was not recorded, is a call of its own
    is_transfer = read.equals("collective", SEND_RECV)[rows]
    is_pair = np.array([group is not None and len(group.ranks or ()) == 2 for group in groups], np.bool_)[group_of_row]
    _, call = distinct_rows(group_of_row, order)
    alone = is_transfer & ~(is_pair & (np.bincount(call)[call] == 2))
    _, call = distinct_rows(group_of_row, order, np.where(alone, 1 + np.arange(len(rows)), 0))
    return _Matching(read, rows, of_rank, call, operation_of_row, alone, is_transfer).calls(
        operations, group_of_row, groups
    )


class _Matching:
    """Kernels of calls, and what they state together."""

    def __init__(
        self,
        read: StepColumns,
        rows: Ints,
        of_rank: Ints,
        call: Ints,
        operation_of_row: Ints,
        alone: Bools,
        is_transfer: Bools,
    ) -> None:
        self._read, self._rows, self._of_rank = read, rows, of_rank
        self._call, self._operation, self._alone, self._is_transfer = call, operation_of_row, alone, is_transfer
        self._count = int(call.max(initial=-1)) + 1
        self._start, self._end = read.values("start_ns")[rows], read.values("end_ns")[rows]

    def calls(self, operations: list[str], group_of_row: Ints, groups: list[Group | None]) -> Calls:
        reasons: Counter[str] = Counter()
        operation = self._largest(self._operation)
        disagrees = self._any((self._operation != operation[self._call]) & (self._operation >= 0))
        reasons[DISAGREEING] += int(disagrees.sum())
        members = np.bincount(self._call, minlength=self._count)
        stated = self._largest(self._stated_group_size(group_of_row, groups))
        alone = self._any(self._alone)
        group_size = np.where(stated > 0, stated, np.where(alone, UNKNOWN, members))
        of_group = self._largest(group_of_row)
        anonymous = np.array([group is None for group in groups], np.bool_)
        reasons[ASSUMED_GROUP] += int((anonymous[of_group] & ~alone & ~disagrees).sum())
        complete = (members == group_size) & ~alone
        reasons[UNRECORDED] += int((~complete & ~alone & ~disagrees).sum())
        reasons[UNPAIRED] += int((alone & ~disagrees).sum())
        took = self._end - self._start
        shortest = np.full(self._count, np.iinfo(np.int64).max)
        np.minimum.at(shortest, self._call, took)
        longest = self._largest(took)
        is_last = took == shortest[self._call]
        last = np.full(self._count, UNKNOWN, np.int64)
        # ties: the lowest rank
        rank_numbers = np.array(self._read.ranks, np.int64)[self._of_rank]
        last[self._call[is_last][::-1]] = rank_numbers[is_last][::-1]
        kept = np.flatnonzero(~disagrees)
        new = np.full(self._count, UNKNOWN, np.int64)
        new[kept] = np.arange(len(kept))
        mine = new[self._call] >= 0
        dtype_of_row, dtypes = _codes(self._read, "dtype", self._rows)
        dtype = self._largest(dtype_of_row)
        known_time = complete | alone
        return Calls(
            Kernels(new[self._call[mine]], self._of_rank[mine], self._start[mine], self._end[mine]),
            tuple(None if code < 0 else operations[code] for code in operation[kept].tolist()),
            tuple(None if code < 0 else dtypes[code] for code in dtype[kept].tolist()),
            tuple(groups[code] for code in of_group[kept].tolist()),
            self._largest(_known(self._read, "size_bytes", self._rows))[kept],
            self._imbalance()[kept],
            group_size[kept],
            np.where(known_time, shortest, UNKNOWN)[kept],
            np.where(complete, longest - shortest, UNKNOWN)[kept],
            np.where(complete & (members > 1), last, UNKNOWN)[kept],
            +reasons,
        )

    def _imbalance(self) -> Floats:
        column = self._read.table["split_imbalance"]
        values = np.where(self._read.known("split_imbalance"), to_numpy(column), -np.inf)[self._rows]
        imbalance = np.full(self._count, -np.inf)
        np.maximum.at(imbalance, self._call, values)
        return np.where(np.isfinite(imbalance), imbalance, np.nan)

    def _stated_group_size(self, group_of_row: Ints, groups: list[Group | None]) -> Ints:
        listed = np.array([len(group.ranks or ()) if group else 0 for group in groups], np.int64)[group_of_row]
        # the size that a send or receive states is its group's, not its pair's
        sizes = np.where(self._is_transfer & ~self._alone, 0, _known(self._read, "group_size", self._rows))
        return np.where(sizes > 0, sizes, np.where(listed > 0, listed, UNKNOWN))

    def _largest(self, values: Ints) -> Ints:
        """Return the largest value of each call."""
        largest = np.full(self._count, UNKNOWN, np.int64)
        np.maximum.at(largest, self._call, values)
        return largest

    def _any(self, holds: Bools) -> Bools:
        has_any: Bools = np.bincount(self._call[holds], minlength=self._count) > 0
        return has_any


def _codes(read: StepColumns, column: str, rows: Ints) -> tuple[Ints, list[str]]:
    codes, names = read.codes(column)
    return codes[rows].astype(np.int64), names


def _known(read: StepColumns, column: str, rows: Ints) -> Ints:
    return np.where(read.known(column), read.values(column), UNKNOWN)[rows]
