"""Split of each rank's step time: compute, hidden and exposed communication, waiting, copies, idle."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jitter.analysis.metrics.communication.calls import Calls
from jitter.analysis.metrics.communication.intervals import Coverage, Intervals
from jitter.core.numeric.arrays import Ints, pieces_of
from jitter.lake.step_reader import StepColumns

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
        own = (compute, copies, transfers.of_ranks(ranks), whole.of_ranks(ranks))
        parts.append(_shares_of_ranks(own, first[ranks], int((last - first)[ranks].max())))
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
