"""Communication of a run: all calls, each rank's time shares, sizes; and the tables of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, get_args, get_type_hints

import numpy as np
import pyarrow as pa

from jitter.analysis.collectives.matching import name_group
from jitter.analysis.metrics.collective_calls import UNKNOWN, Calls, match_calls
from jitter.core.arrow import table_of_rows
from jitter.core.bandwidth import bandwidth
from jitter.core.errors import UsageError
from jitter.core.grouping import by_key
from jitter.core.numeric.arrays import Floats, Ints, pieces_of
from jitter.core.step_key import StepKey
from jitter.lake.step_reader import StepColumns


class Intervals(NamedTuple):
    """Intervals of several ranks; each array is shape (intervals,), times in ns on the rank's own clock."""

    rank: Ints
    """Position of the rank, from 0."""
    start: Ints
    end: Ints

    def joined(self, other: "Intervals") -> "Intervals":
        """Return the intervals of both."""
        return Intervals(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))

    def of_ranks(self, ranks: slice) -> "Intervals":
        """Return the intervals of a range of ranks, whose positions then count from 0; intervals are in rank order."""
        first, last = np.searchsorted(self.rank, [ranks.start, ranks.stop])
        return Intervals(self.rank[first:last] - ranks.start, self.start[first:last], self.end[first:last])


class Coverage:
    """The union of intervals: how much time of each rank it covers, and how much of any interval."""

    def __init__(self, intervals: Intervals, origin: Ints, span: int) -> None:
        """Merge them. `origin` (ranks,) is before each rank's times; no time is `span` or more after it."""
        self._origin = origin
        self._span = span + 1
        start, end = self._shifted(intervals.rank, intervals.start), self._shifted(intervals.rank, intervals.end)
        order = np.argsort(start, kind="stable")
        start, reached = start[order], np.maximum.accumulate(end[order])
        before = np.concatenate([[-1], reached[:-1]]) if len(reached) else reached
        first = np.flatnonzero(start > before)
        self._start = start[first]
        self._end = reached[np.append(first[1:], len(start)) - 1] if len(first) else reached
        self._covered = np.concatenate([[0], np.cumsum(self._end - self._start)])

    def per_rank(self) -> Ints:
        """Return the covered time of each rank in ns, shape (ranks,)."""
        rank = self._start // self._span
        covered_ns = np.zeros(len(self._origin), np.int64)
        np.add.at(covered_ns, rank, self._end - self._start)
        return covered_ns

    def of(self, intervals: Intervals) -> Ints:
        """Return how much of each interval is covered, in ns, shape (intervals,)."""
        return self._until(self._shifted(intervals.rank, intervals.end)) - self._until(
            self._shifted(intervals.rank, intervals.start)
        )

    def _shifted(self, rank: Ints, time: Ints) -> Ints:
        """Return times on one axis, on which ranks follow each other."""
        return time - self._origin[rank] + rank * self._span

    def _until(self, time: Ints) -> Ints:
        if not len(self._start):
            return np.zeros(len(time), np.int64)
        at = np.searchsorted(self._start, time, side="right") - 1
        interval = np.maximum(at, 0)
        within = np.clip(time - self._start[interval], 0, self._end[interval] - self._start[interval])
        return np.where(at >= 0, self._covered[interval] + within, 0)


SHARES: Final = ("compute", "hidden", "exposed", "waiting", "copies", "idle")
"""compute: kernels without communication at the same time; hidden: communication at the same time as compute; exposed:
communication alone; waiting: in a collective for its last rank, without compute; copies: copies and fills alone; idle:
the rest, in which the GPU waits for its host to launch."""
_ROWS_AT_ONCE: Final = 50_000
"""Rows whose intervals are merged at once, some 300 bytes each."""


@dataclass(frozen=True)
class StepShares:
    """Times of one step in ns; arrays are shape (ranks,) unless stated."""

    ranks: tuple[int, ...]
    busy_ns: Ints
    """Shape (5, ranks): `SHARES` without idle."""
    first_ns: Ints
    """First start of an activity, on the rank's clock."""
    last_ns: Ints
    """Last end of an activity."""
    hidden_ns: Ints
    """Of each kernel of the calls, shape (kernels,)."""
    exposed_ns: Ints
    """The rest of each kernel: exposed communication and waiting."""


def measure_shares(read: StepColumns, calls: Calls) -> StepShares | None:
    """Measure a step; None if no rank has a kernel in it."""
    if not any(read.rows):
        return None
    start, end = read.values("start_ns"), read.values("end_ns")
    has_rows = np.array(read.rows, np.int64) > 0
    first, last = np.zeros((2, len(read.ranks)), np.int64)
    at = read.bounds[:-1][has_rows]
    first[has_rows], last[has_rows] = np.minimum.reduceat(start, at), np.maximum.reduceat(end, at)
    is_compute, is_copy = (read.equals("kind", kind) for kind in ("compute", "memory"))
    kernels = calls.kernels
    transfer_start = np.where(
        calls.time_ns[kernels.call] >= 0, kernels.end_ns - calls.time_ns[kernels.call], kernels.start_ns
    )
    transfers = Intervals(kernels.rank, np.maximum(transfer_start, kernels.start_ns), kernels.end_ns)
    whole = Intervals(kernels.rank, kernels.start_ns, kernels.end_ns)
    parts = []
    for ranks in pieces_of(read.bounds, _ROWS_AT_ONCE):
        rows = slice(*read.bounds[[ranks.start, ranks.stop]].tolist())
        of_rank = read.of_rank[rows] - ranks.start
        compute, copies = (
            Intervals(of_rank[chosen], start[rows][chosen], end[rows][chosen])
            for chosen in (is_compute[rows], is_copy[rows])
        )
        intervals = (compute, copies, transfers.of_ranks(ranks), whole.of_ranks(ranks))
        parts.append(_shares_of_ranks(intervals, first[ranks], int((last - first)[ranks].max())))
    busy, hidden = (np.concatenate(some, axis=-1) for some in zip(*parts, strict=True))
    return StepShares(read.ranks, busy, first, last, hidden, whole.end - whole.start - hidden)


def _shares_of_ranks(intervals: Sequence[Intervals], first: Ints, span: int) -> tuple[Ints, Ints]:
    """Return, (5, ranks), `SHARES` without idle, and, (kernels of calls,), the hidden time of each.

    `intervals` are compute kernels, copies, transfers and whole kernels of calls; `first` (ranks,) and `span` are as in
    `Coverage`.
    """
    compute, copies, transfers, whole = intervals
    of_compute = Coverage(compute, first, span)
    in_compute, in_calls = of_compute.per_rank(), Coverage(whole, first, span).per_rank()
    with_transfers = Coverage(compute.joined(transfers), first, span).per_rank()
    with_calls = Coverage(compute.joined(whole), first, span).per_rank()
    with_copies = Coverage(compute.joined(whole).joined(copies), first, span).per_rank()
    hidden = in_compute + in_calls - with_calls
    busy = (
        *(in_compute - hidden, hidden, with_transfers - in_compute, with_calls - with_transfers),
        with_copies - with_calls,
    )
    return np.stack(busy), of_compute.of(whole)


class SizeBin(NamedTuple):
    """Operations of sizes from `at_least_bytes` (included) to twice as much (excluded); 0 has a bin of its own."""

    operation: str
    at_least_bytes: int
    calls_per_step: float
    bytes_per_step: float


@dataclass(frozen=True)
class RankStep:
    """One rank's time shares in one step; `shares_ns` is in the order of `SHARES` and adds up to `step_ns`."""

    key: StepKey
    rank: int
    step_ns: int
    shares_ns: tuple[int, ...]


class CallTimes(NamedTuple):
    """Calls, (calls,) each; -1 for unknown, NaN for no imbalance."""

    kind: Ints
    """Position among the run's kinds."""
    time_ns: Ints
    wait_ns: Ints
    last_rank: Ints
    size_bytes: Ints
    imbalance: Floats
    hidden_ns: Ints
    exposed_ns: Ints


@dataclass
class Communication:
    """All calls of the chosen steps."""

    steps: list[StepKey] = field(default_factory=list)
    rank_steps: list[RankStep] = field(default_factory=list)
    calls: list[CallTimes] = field(default_factory=list)
    """Of each step."""
    kinds: dict["CallKind", int] = field(default_factory=dict)
    copies: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Number of copies of known direction by (direction, size)."""
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class CallKind:
    """Key of one table row, common to its calls. `size_bytes` is None for unequal parts and where unknown."""

    operation: str | None
    size_bytes: int | None
    dtype: str | None
    group_size: int | None
    group: str
    hosts: str | None
    is_unequal: bool

    def of_all_groups(self) -> "CallKind":
        """Return the kind that the calls of all groups share."""
        return replace(self, group="")


class MeasuredStep(NamedTuple):
    """What `measure_communication` needs of a step."""

    key: StepKey
    calls: StepColumns
    """Collectives and copies, with `collective_calls.COLUMNS`."""
    activities: StepColumns
    """All rows, with `collective_calls.COLUMNS_OF_ALL`."""


def measure_communication(
    steps: Iterable[MeasuredStep], hosts: Mapping[int, str | None], only_group: str | None = None
) -> Communication:
    """Measure steps, given in order; `hosts` are the ranks' hosts.

    A rank's step lasts from its first activity to that of the next step, or to its last end if the next step was
    not measured.
    """
    communication = Communication()
    previous: tuple[StepKey, StepShares] | None = None
    for key, read, activities in steps:
        calls = match_calls(read, only_group)
        shares = measure_shares(activities, calls)
        if previous is not None:
            follows = key == StepKey(previous[0].epoch, previous[0].step + 1)
            _add_shares(communication, *previous, shares if follows else None)
        previous = None
        if shares is None:
            continue
        communication.steps.append(key)
        _add_calls(communication, calls, shares, read.ranks, hosts)
        communication.copies += _count_copies(read)
        previous = key, shares
        del read, activities, calls  # the next step is read while they would stay
    if previous is not None:
        _add_shares(communication, *previous, None)
    return communication


def _add_shares(communication: Communication, key: StepKey, shares: StepShares, following: StepShares | None) -> None:
    starts = {} if following is None else dict(zip(following.ranks, following.first_ns.tolist(), strict=True))
    busy = shares.busy_ns.sum(axis=0)
    for at, rank in enumerate(shares.ranks):
        first, last = int(shares.first_ns[at]), int(shares.last_ns[at])
        step_ns = max(starts.get(rank, last), last) - first
        shares_ns = (*shares.busy_ns[:, at].tolist(), step_ns - int(busy[at]))
        assert len(shares_ns) == len(SHARES)
        communication.rank_steps.append(RankStep(key, rank, step_ns, shares_ns))


def _add_calls(
    communication: Communication,
    calls: Calls,
    shares: StepShares,
    ranks: tuple[int, ...],
    hosts: Mapping[int, str | None],
) -> None:
    communication.reasons.update(calls.reasons)
    where = _hosts_of(calls, ranks, hosts)
    kinds = communication.kinds
    is_unequal = ~np.isnan(calls.imbalance)
    columns = zip(
        calls.operation,
        calls.size_bytes.tolist(),
        calls.dtype,
        calls.group_size.tolist(),
        calls.group,
        where,
        is_unequal.tolist(),
        strict=True,
    )
    keys = [
        kinds.setdefault(
            CallKind(
                operation,
                None if unequal or size == UNKNOWN else size,
                dtype,
                None if members == UNKNOWN else members,
                name_group(group),
                host,
                unequal,
            ),
            len(kinds),
        )
        for operation, size, dtype, members, group, host, unequal in columns
    ]
    hidden, exposed = (
        np.bincount(calls.kernels.call, values, len(calls)).astype(np.int64)
        for values in (shares.hidden_ns, shares.exposed_ns)
    )
    communication.calls.append(
        CallTimes(
            np.array(keys, np.int64),
            calls.time_ns,
            calls.wait_ns,
            calls.last_rank,
            calls.size_bytes,
            calls.imbalance,
            hidden,
            exposed,
        )
    )


def _count_copies(read: StepColumns) -> Counter[tuple[str, int]]:
    """Return the number of a step's copies by (direction, size)."""
    codes, directions = read.codes("copy_direction")
    rows = np.flatnonzero((codes >= 0) & read.known("size_bytes"))
    sizes = read.values("size_bytes")[rows]
    pairs, counts = np.unique(np.stack([codes[rows].astype(np.int64), sizes]), axis=1, return_counts=True)
    counted = zip(pairs.T.tolist(), counts.tolist(), strict=True)
    return Counter({(directions[code], size): count for (code, size), count in counted})


def _hosts_of(calls: Calls, ranks: tuple[int, ...], hosts: Mapping[int, str | None]) -> list[str | None]:
    """Return for each call whether its group is on `one` host or `many`; None where a host is unknown."""
    codes: dict[str | None, int] = {None: UNKNOWN}
    of_rank = np.array([codes.setdefault(hosts.get(rank), len(codes)) for rank in ranks], np.int64)
    host_codes = of_rank[calls.kernels.rank]
    lowest, highest = np.full(len(calls), len(codes)), np.full(len(calls), UNKNOWN)
    np.minimum.at(lowest, calls.kernels.call, host_codes)
    np.maximum.at(highest, calls.kernels.call, host_codes)
    complete = np.bincount(calls.kernels.call, minlength=len(calls)) == calls.group_size
    return [
        "many" if low not in (high, UNKNOWN) else "one" if is_complete and low != UNKNOWN else None
        for low, high, is_complete in zip(lowest.tolist(), highest.tolist(), complete.tolist(), strict=True)
    ]


class CollectiveRow(NamedTuple):
    """Calls of one kind; None where unknown. GB are 1e9 bytes."""

    collective: str | None
    size: int | None
    """Size S in bytes as nccl-tests prints it; of unequal parts the median over calls."""
    dtype: str | None
    group_size: int | None
    hosts: str | None
    """`one` or `many`."""
    group: str | None
    """Only in a table by group."""
    calls: int
    time_us: float | None
    """Median over calls, from the last arrival to the end."""
    algbw: float | None
    busbw: float | None
    """None for unequal parts."""
    imbalance: float | None
    """Of unequal parts: median of largest / mean part."""
    wait_us: float | None
    """Median over calls, of the rank that waited longest."""
    last_rank: int | None
    """The rank that arrived last most often."""
    last_share: float | None
    """In this share of the calls."""
    hidden_share: float | None
    """Share of the kernels' time during which the rank computed."""
    lost_ms: float | None
    """Time in these calls without compute, waiting included, per rank and step."""


class TimeRow(NamedTuple):
    """Mean times of a rank over steps, or of a step over ranks, in ms; the shares add up to the step."""

    epoch: int | None
    step: int | None
    rank: int | None
    host: str | None
    samples: int
    """Number of steps of the rank, or of ranks of the step."""
    step_ms: float
    compute_ms: float
    hidden_ms: float
    exposed_ms: float
    waiting_ms: float
    copies_ms: float
    idle_ms: float


def tabulate_collectives(communication: Communication, *, by_group: bool = False) -> list[CollectiveRow]:
    """Return a row per kind of call, the most time lost first."""
    if not communication.calls:
        return []
    calls = _join_calls(communication.calls)
    merged: dict[CallKind, int] = {}
    row_of_kind = np.array(
        [merged.setdefault(kind if by_group else kind.of_all_groups(), len(merged)) for kind in communication.kinds],
        np.int64,
    )
    row_of_call = row_of_kind[calls.kind]
    order = np.argsort(row_of_call, kind="stable")
    ends = np.searchsorted(row_of_call[order], np.arange(len(merged) + 1))
    rank_steps = max(len(communication.rank_steps), 1)
    rows = [
        _row(kind, _select_calls(calls, order[ends[row] : ends[row + 1]]), rank_steps, by_group)
        for kind, row in merged.items()
    ]
    return sorted(rows, key=lambda row: (-(row.lost_ms or 0.0), str(row.collective), row.size or 0))


def _join_calls(calls: Sequence[CallTimes]) -> CallTimes:
    """Return the calls of all steps."""
    return CallTimes(*map(np.concatenate, zip(*calls, strict=True)))


def _select_calls(calls: CallTimes, chosen: Ints) -> CallTimes:
    columns: Any = (values[chosen] for values in calls)
    return CallTimes(*columns)


def _row(kind: CallKind, calls: CallTimes, rank_steps: int, by_group: bool) -> CollectiveRow:
    time, wait, last, sizes = calls.time_ns, calls.wait_ns, calls.last_rank, calls.size_bytes
    hidden, exposed = int(calls.hidden_ns.sum()), int(calls.exposed_ns.sum())
    is_timed, is_waited, has_last = time > 0, wait >= 0, last >= 0
    time_ns = float(np.median(time[is_timed])) if is_timed.any() else None
    size = kind.size_bytes
    algbw = busbw = imbalance = None
    if kind.is_unequal:
        is_sized = is_timed & (sizes >= 0)
        size = int(np.median(sizes[is_sized])) if is_sized.any() else None
        algbw = float(np.median(sizes[is_sized] / time[is_sized])) if is_sized.any() else None
        imbalance = float(np.median(calls.imbalance))
    elif size is not None and time_ns is not None and kind.group_size is not None:
        algbw, busbw = bandwidth(kind.operation, size, time_ns, kind.group_size)
    ranks, counts = np.unique(last[has_last], return_counts=True)
    return CollectiveRow(
        collective=kind.operation,
        size=size,
        dtype=kind.dtype,
        group_size=kind.group_size,
        hosts=kind.hosts,
        group=kind.group if by_group else None,
        calls=len(time),
        time_us=None if time_ns is None else time_ns / 1e3,
        algbw=algbw,
        busbw=busbw,
        imbalance=imbalance,
        wait_us=float(np.median(wait[is_waited])) / 1e3 if is_waited.any() else None,
        last_rank=int(ranks[counts.argmax()]) if len(ranks) else None,
        last_share=float(counts.max() / counts.sum()) if len(ranks) else None,
        hidden_share=hidden / (hidden + exposed) if hidden + exposed else None,
        lost_ms=exposed / rank_steps / 1e6,
    )


def tabulate_ranks(communication: Communication, hosts: Mapping[int, str | None]) -> list[TimeRow]:
    """Return each rank's mean times over its steps, by rank."""
    of_rank = by_key((rank_step.rank, rank_step) for rank_step in communication.rank_steps)
    return [_mean_times(None, rank, hosts.get(rank), rank_steps) for rank, rank_steps in sorted(of_rank.items())]


def tabulate_steps(communication: Communication) -> list[TimeRow]:
    """Return each step's mean times over its ranks, in the order of the steps."""
    by_step = groupby(communication.rank_steps, key=attrgetter("key"))
    return [_mean_times(key, None, None, list(rank_steps)) for key, rank_steps in by_step]


def _mean_times(key: StepKey | None, rank: int | None, host: str | None, rank_steps: Sequence[RankStep]) -> TimeRow:
    parts = np.array([(rank_step.step_ns, *rank_step.shares_ns) for rank_step in rank_steps], np.float64)
    epoch, step = (None, None) if key is None else key
    return TimeRow(epoch, step, rank, host, len(rank_steps), *(parts.mean(axis=0) / 1e6).tolist())


def tabulate_sizes(communication: Communication) -> list[SizeBin]:
    """Return the histogram of sizes of collectives and copies, calls and bytes per step of the whole job.

    By operation and size.
    """
    counts, kinds, steps = Counter(communication.copies), list(communication.kinds), max(len(communication.steps), 1)
    if communication.calls:
        calls = _join_calls(communication.calls)
        for kind, size in zip(calls.kind.tolist(), calls.size_bytes.tolist(), strict=True):
            if size != UNKNOWN:
                counts[kinds[kind].operation or "collective", size] += 1
    bins: Counter[tuple[str, int]] = Counter()
    total: Counter[tuple[str, int]] = Counter()
    for (operation, size), count in counts.items():
        key = operation, 1 << (size.bit_length() - 1) if size > 0 else 0
        bins[key] += count
        total[key] += count * size
    return [SizeBin(*key, bins[key] / steps, total[key] / steps) for key in sorted(bins)]


TABLES: Final = ("size", "group", "rank", "step")
"""What the rows of `tabulate` may be of."""


def tabulate(communication: Communication, hosts: Mapping[int, str | None], by: str) -> pa.Table:
    """Return the rows of `tabulate_collectives` (by size or group), `tabulate_ranks` or `tabulate_steps`.

    Raises `UsageError` if `by` is none of `TABLES`.
    """
    if by not in TABLES:
        raise UsageError(f"collectives have no table by {by!r}", f"there are {', '.join(TABLES)}")
    if by in ("size", "group"):
        return _table(tabulate_collectives(communication, by_group=by == "group"), CollectiveRow)
    return _table(tabulate_ranks(communication, hosts) if by == "rank" else tabulate_steps(communication), TimeRow)


def _table(rows: Sequence[NamedTuple], kind: type[NamedTuple]) -> pa.Table:
    names = {int: pa.int64(), float: pa.float64(), str: pa.string()}
    hints = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(kind).items()}
    fields = [
        (name, next(names[python_type] for python_type in types if python_type in names))
        for name, types in hints.items()
    ]
    return table_of_rows(rows, pa.schema(fields))
