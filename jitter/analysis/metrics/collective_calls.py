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
    count = int(call.max(initial=-1)) + 1

    def largest(values: Ints) -> Ints:
        """Return the largest value of each call."""
        largest_of_call = np.full(count, UNKNOWN, np.int64)
        np.maximum.at(largest_of_call, call, values)
        return largest_of_call

    def holds(mask: Bools) -> Bools:
        """Return whether a mask holds for any kernel of each call."""
        return np.asarray(np.bincount(call[mask], minlength=count) > 0)

    operation, of_group, members = largest(operation_of_row), largest(group_of_row), np.bincount(call, minlength=count)
    disagrees = holds((operation_of_row != operation[call]) & (operation_of_row >= 0))
    listed = np.array([len(group.ranks or ()) if group else 0 for group in groups], np.int64)[group_of_row]
    # the size that a send or receive states is its group's, not its pair's
    sizes = np.where(is_transfer & ~alone, 0, _known(read, "group_size", rows))
    stated = largest(np.where(sizes > 0, sizes, np.where(listed > 0, listed, UNKNOWN)))
    is_single = holds(alone)
    group_size = np.where(stated > 0, stated, np.where(is_single, UNKNOWN, members))
    complete = (members == group_size) & ~is_single
    anonymous: Bools = np.array([group is None for group in groups], np.bool_)[of_group]
    reasons = Counter(
        {
            DISAGREEING: int(disagrees.sum()),
            ASSUMED_GROUP: int((anonymous & ~is_single & ~disagrees).sum()),
            UNRECORDED: int((~complete & ~is_single & ~disagrees).sum()),
            UNPAIRED: int((is_single & ~disagrees).sum()),
        }
    )
    start_ns, end_ns = read.values("start_ns")[rows], read.values("end_ns")[rows]
    took = end_ns - start_ns
    shortest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(shortest, call, took)
    is_last = took == shortest[call]
    last = np.full(count, UNKNOWN, np.int64)
    # ties: the lowest rank
    last[call[is_last][::-1]] = np.array(read.ranks, np.int64)[of_rank[is_last]][::-1]
    imbalance = np.full(count, -np.inf)
    unequal = np.where(read.known("split_imbalance"), to_numpy(read.table["split_imbalance"]), -np.inf)[rows]
    np.maximum.at(imbalance, call, unequal)
    dtype_of_row, dtypes = _codes(read, "dtype", rows)
    agreeing = np.flatnonzero(~disagrees)
    new = np.full(count, UNKNOWN, np.int64)
    new[agreeing] = np.arange(len(agreeing))
    is_kept = new[call] >= 0
    return Calls(
        Kernels(new[call[is_kept]], of_rank[is_kept], start_ns[is_kept], end_ns[is_kept]),
        tuple(None if code < 0 else operations[code] for code in operation[agreeing].tolist()),
        tuple(None if code < 0 else dtypes[code] for code in largest(dtype_of_row)[agreeing].tolist()),
        tuple(groups[code] for code in of_group[agreeing].tolist()),
        largest(_known(read, "size_bytes", rows))[agreeing],
        np.where(np.isfinite(imbalance), imbalance, np.nan)[agreeing],
        group_size[agreeing],
        np.where(complete | is_single, shortest, UNKNOWN)[agreeing],
        np.where(complete, largest(took) - shortest, UNKNOWN)[agreeing],
        np.where(complete & (members > 1), last, UNKNOWN)[agreeing],
        +reasons,
    )


def _codes(read: StepColumns, column: str, rows: Ints) -> tuple[Ints, list[str]]:
    codes, names = read.codes(column)
    return codes[rows].astype(np.int64), names


def _known(read: StepColumns, column: str, rows: Ints) -> Ints:
    return np.where(read.known(column), read.values(column), UNKNOWN)[rows]
