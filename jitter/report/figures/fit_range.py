"""The y range of a figure over the kernel index: the 1st to 99th percentile of each of its lines."""

from typing import Any

import numpy as np

LINES = ("max", "min", "low", "high")
PADDING, HEADROOM = 0.08, 0.25
"""Room below and above, as a fraction of the range; above where marks have text."""


def fit_range(columns: Any, *, zero: bool, flagged: bool = False) -> tuple[float, float]:
    """Return start and end of y for a series; `zero`: 0 is in the range. Of fewer than 100 points all are inside.

    `flagged`: marks have text at the top. The page's script `fit_y.js` computes the same for the kernels in view.
    """
    kept = [0.0] if zero else []
    for line in LINES:
        values = np.asarray(columns[line], np.float64)
        known = np.sort(values[~np.isnan(values)])
        cut = known.size // 100
        kept += known[cut : known.size - cut].take([0, -1]).tolist() if known.size else []
    if not kept:
        return 0.0, 1.0
    least, most = min(kept), max(kept)
    size = most - least
    return least - max(PADDING * size, 0.5), most + max((HEADROOM if flagged else PADDING) * size, 0.5)
