"""Split of each rank's step time: compute, hidden and exposed communication, waiting, copies, idle."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from jitter.analysis.metrics.communication.calls import Calls
from jitter.analysis.metrics.communication.intervals import Coverage, Intervals
from jitter.core.numeric.arrays import Ints
from jitter.lake.step_reader import StepColumns

SHARES: Final = ("compute", "hidden", "exposed", "waiting", "copies", "idle")
"""compute: kernels without communication at the same time; hidden: communication at the same time as compute; exposed:
communication alone; waiting: in a collective for its last rank, without compute; copies: copies and fills alone; idle:
the rest, in which the GPU waits for its host to launch."""


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
    span = int((last - first).max())

    def of_kind(kind: str) -> Intervals:
        rows = np.flatnonzero(read.equals("kind", kind))
        return Intervals(read.of_rank[rows], start[rows], end[rows])

    compute, copies = of_kind("compute"), of_kind("memory")
    kernels = calls.kernels
    transfer_start = np.where(
        calls.time_ns[kernels.call] >= 0, kernels.end_ns - calls.time_ns[kernels.call], kernels.start_ns
    )
    transfers = Intervals(kernels.rank, np.maximum(transfer_start, kernels.start_ns), kernels.end_ns)
    whole = Intervals(kernels.rank, kernels.start_ns, kernels.end_ns)
    covered = [
        Coverage(found, first, span)
        for found in (
            *(compute, whole, compute.joined(transfers), compute.joined(whole)),
            compute.joined(whole).joined(copies),
        )
    ]
    in_compute, in_calls, with_transfers, with_calls, with_copies = (one.per_rank() for one in covered)
    hidden = in_compute + in_calls - with_calls
    busy = np.stack(
        [
            *(in_compute - hidden, hidden, with_transfers - in_compute, with_calls - with_transfers),
            with_copies - with_calls,
        ]
    )
    hidden_of_kernel = covered[0].of(whole)
    return StepShares(read.ranks, busy, first, last, hidden_of_kernel, whole.end - whole.start - hidden_of_kernel)
