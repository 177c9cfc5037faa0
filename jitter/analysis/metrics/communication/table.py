"""The table of collectives: calls, bandwidth, waiting and hidden share of each operation, size, type and group size."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from jitter.analysis.metrics.communication.calls import UNKNOWN
from jitter.analysis.metrics.communication.measure import CallKind, Communication, RankStep
from jitter.analysis.metrics.communication.size_histogram import SizeBin, size_bins
from jitter.core.bandwidth import bandwidth
from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.step_key import StepKey


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


def tabulate_collectives(found: Communication, *, by_group: bool = False) -> list[CollectiveRow]:
    """Return a row per kind of call, the most time lost first."""
    if not found.keys:
        return []
    of_call = np.concatenate(found.keys)
    kinds = list(found.kinds)
    merged: dict[CallKind, int] = {}
    row_of_kind = np.array(
        [merged.setdefault(kind if by_group else kind.of_all_groups(), len(merged)) for kind in kinds], np.int64
    )
    row_of_call = row_of_kind[of_call] if kinds else of_call
    order = np.argsort(row_of_call, kind="stable")
    ends = np.searchsorted(row_of_call[order], np.arange(len(merged) + 1))
    columns = _Columns(found, order)
    rank_steps = max(len(found.rank_steps), 1)
    rows = [_row(kind, columns, slice(ends[row], ends[row + 1]), rank_steps, by_group) for kind, row in merged.items()]
    return sorted(rows, key=lambda row: (-(row.lost_ms or 0.0), str(row.collective), row.size or 0))


class _Columns:
    """The calls' values, sorted by row."""

    def __init__(self, found: Communication, order: Ints) -> None:
        self.time_ns, self.wait_ns, self.last_rank, self.size_bytes, self.hidden_ns, self.exposed_ns = (
            np.concatenate(parts)[order]
            for parts in (
                *(found.time_ns, found.wait_ns, found.last_rank, found.size_bytes),
                *(found.hidden_ns, found.exposed_ns),
            )
        )
        self.imbalance: Floats = np.concatenate(found.imbalance)[order]


def _row(kind: CallKind, columns: _Columns, mine: slice, rank_steps: int, by_group: bool) -> CollectiveRow:
    time, wait, last = columns.time_ns[mine], columns.wait_ns[mine], columns.last_rank[mine]
    hidden, exposed = int(columns.hidden_ns[mine].sum()), int(columns.exposed_ns[mine].sum())
    is_timed, is_waited, has_last = time > 0, wait >= 0, last >= 0
    time_ns = _median(time[is_timed]) if is_timed.any() else None
    sizes = columns.size_bytes[mine]
    size = kind.size_bytes
    algbw = busbw = imbalance = None
    if kind.is_unequal:
        known = is_timed & (sizes >= 0)
        size = int(_median(sizes[known])) if known.any() else None
        algbw = (_median(sizes[known] / time[known])) if known.any() else None
        imbalance = _median(columns.imbalance[mine])
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
        wait_us=(_median(wait[is_waited])) / 1e3 if is_waited.any() else None,
        last_rank=int(ranks[counts.argmax()]) if len(ranks) else None,
        last_share=float(counts.max() / counts.sum()) if len(ranks) else None,
        hidden_share=hidden / (hidden + exposed) if hidden + exposed else None,
        lost_ms=exposed / rank_steps / 1e6,
    )


def _median(values: npt.NDArray[Any]) -> float:
    """Return the median of values, shape (values,), at least one; of an even number the mean of the middle two."""
    return float(np.median(values))


def tabulate_ranks(found: Communication, hosts: Mapping[int, str | None]) -> list[TimeRow]:
    """Return each rank's mean times over its steps, by rank."""
    of_rank: dict[int, list[RankStep]] = {}
    for one in found.rank_steps:
        of_rank.setdefault(one.rank, []).append(one)
    return [_mean_times(None, rank, hosts.get(rank), own) for rank, own in sorted(of_rank.items())]


def tabulate_steps(found: Communication) -> list[TimeRow]:
    """Return each step's mean times over its ranks, in the order of the steps."""
    by_step = groupby(found.rank_steps, key=attrgetter("key"))
    return [_mean_times(key, None, None, list(own)) for key, own in by_step]


def _mean_times(key: StepKey | None, rank: int | None, host: str | None, own: Sequence[RankStep]) -> TimeRow:
    parts = np.array([(one.step_ns, *one.shares_ns) for one in own], np.float64)
    epoch, step = (None, None) if key is None else key
    return TimeRow(epoch, step, rank, host, len(own), *(parts.mean(axis=0) / 1e6).tolist())


def tabulate_sizes(found: Communication) -> list[SizeBin]:
    """Return the histogram of sizes of collectives and copies, calls and bytes per step of the whole job."""
    sizes: Counter[tuple[str, int]] = Counter()
    if found.keys:
        kinds = list(found.kinds)
        of_call, size_of_call = np.concatenate(found.keys), np.concatenate(found.size_bytes)
        known = size_of_call != UNKNOWN
        pairs, counts = np.unique(np.stack([of_call[known], size_of_call[known]]), axis=1, return_counts=True)
        for (kind, size), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
            sizes[kinds[kind].operation or "collective", size] += count
    return size_bins(sizes + found.copies.counts, max(len(found.steps), 1))
