"""The launch queue: how many launches may be pending on the GPU before the host has to wait for a place."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Floats

_LIMITS: Final = THRESHOLDS.launch_queue


class Launches(NamedTuple):
    """A rank's launches in order, ns."""

    call: Floats
    back: Floats
    start: Floats
    """Of what each launched, on the GPU."""


def queue_limit(orders: Sequence[Launches]) -> int | None:
    """Find the limit: the most launches ever pending, where launches then had to wait; None if none is seen."""
    if not any(len(order.call) for order in orders):
        return None
    pending, freed, took = [], [], []
    for call, back, start in orders:
        ordered = np.sort(start)
        started = np.searchsorted(ordered, back, side="right")
        pending.append(np.arange(1, len(back) + 1) - started)
        freed.append(back - ordered[np.maximum(started - 1, 0)])
        took.append(back - call)
    counts, since_start, in_call = np.concatenate(pending), np.concatenate(freed), np.concatenate(took)
    most = int(counts.max(initial=0))
    # where the GPU is always behind, most launches wait: launches that surely did not wait give a launch's length
    roomy = counts <= most // 2
    usual = float(np.median(in_call[roomy] if roomy.any() else in_call))
    # a launch that finds the last place free does not wait
    waited = (counts == most) & (in_call > _LIMITS.long_call_ratio * usual)
    if most < _LIMITS.min_queue or waited.sum() < _LIMITS.min_waited:
        return None
    return (
        most
        if (since_start[waited] <= THRESHOLDS.dependencies.right_after_ns).mean() >= _LIMITS.min_when_freed
        else None
    )
