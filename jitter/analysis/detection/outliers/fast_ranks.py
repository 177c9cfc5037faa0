"""Few ranks that are much faster than all others: if they are right, all others are slow, and the loss hides it."""

from typing import NamedTuple

import numpy as np

from jitter.analysis.detection.outliers.deviations import TeamDeviations, compare_with_one_rank
from jitter.analysis.detection.outliers.significance import differ_steadily
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.thresholds import THRESHOLDS


class FastRanks(NamedTuple):
    """The fast ranks of one team, and how far the others are behind."""

    fast: tuple[int, ...]
    slow: tuple[int, ...]
    behind_ns: float
    """GPU time per step of the fastest slow rank above that of the slowest fast one."""


def find_fast_ranks(deviations: TeamDeviations, usual_step_ns: float) -> FastRanks | None:
    """Return the ranks of a team, less than half of it, whose GPUs need much less time than all others; None if none.

    The ranks' medians over steps are cut at the widest gap. It must be `min_fast_share` of a step, and
    `fast_gap_ratio` times the range of the slow ranks: GPUs of one model spread, but leave no gap. Of two ranks
    neither is few.
    """
    gpu = deviations.total_ns[TimePart.GPU]
    most = (gpu.shape[1] - 1) // 2
    if most < 1 or not usual_step_ns > 0 or np.isnan(gpu).all(axis=0).any():
        return None
    own = compare_with_one_rank(gpu)
    levels = np.nanmedian(own, axis=0)
    order = np.argsort(levels)
    ordered = levels[order]
    gaps = np.diff(ordered)[:most]
    cut = int(np.argmax(gaps)) + 1
    behind = float(gaps[cut - 1])
    spread = float(ordered[-1] - ordered[cut])
    if behind < max(THRESHOLDS.min_fast_share * usual_step_ns, THRESHOLDS.fast_gap_ratio * spread):
        return None
    if not differ_steadily(own, order[cut:], order[:cut]):
        return None
    fast, slow = (tuple(sorted(deviations.ranks[part].tolist())) for part in (order[:cut], order[cut:]))
    return FastRanks(fast, slow, behind)
