"""Whether ranks number their steps alike, by when they leave the collectives with which steps end.

Ranks that leave a collective together take equally long from one such end to the next. Where the times between the ends
of a rank's steps are those of the other ranks some steps earlier or later, its steps are numbered otherwise, as by
profilers that were started at different steps: then steps of one number do not belong together.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Floats
from jitter.core.numeric.stats import known_median
from jitter.core.step_key import StepKey


def find_shifted_numbers(ends_ns: Floats, keys: Sequence[StepKey]) -> dict[int, int]:
    """Return by column how much higher it numbers its steps than most of a team's ranks; none where all are alike.

    `ends_ns` (steps, ranks) are the ends of the steps on each rank's clock, NaN where unknown. Steps that all take
    equally long tell nothing, and it does not matter there.
    """
    follows = [(key.epoch, key.step) == (before.epoch, before.step + 1) for before, key in pairwise(keys)]
    grown = np.where(np.array(follows, np.bool_)[:, None], np.diff(ends_ns, axis=0), np.nan)
    if not len(grown) or grown.shape[1] < 2:
        return {}
    reference = grown[:, int((~np.isnan(grown)).sum(axis=0).argmax())]
    least_ns = THRESHOLDS.min_clear_share * known_median(reference)
    shifts = [_shift_of(reference, of_rank, least_ns) for of_rank in grown.T]
    usual = max(set(shifts), key=shifts.count)
    return {column: shift - usual for column, shift in enumerate(shifts) if shift != usual}


def _shift_of(reference: Floats, grown: Floats, least_ns: float) -> int:
    """Return by how many steps later the same times come in `grown`, (steps,) each; 0 where no other shift fits."""
    apart_ns: dict[int, float] = {}
    for shift in range(-THRESHOLDS.max_shifted_numbers, THRESHOLDS.max_shifted_numbers + 1):
        later, earlier = grown[max(shift, 0) :], reference[max(-shift, 0) :]
        count = min(len(later), len(earlier))
        apart = np.abs(later[:count] - earlier[:count])
        apart = apart[~np.isnan(apart)]
        if len(apart) >= THRESHOLDS.few_steps:
            apart_ns[shift] = float(apart.mean())
    if not apart_ns.get(0, 0.0) >= max(least_ns, 1.0):
        return 0
    best = min(apart_ns, key=apart_ns.__getitem__)
    return best if apart_ns[best] <= THRESHOLDS.minor_share * apart_ns[0] else 0
