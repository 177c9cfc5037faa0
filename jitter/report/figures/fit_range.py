"""The y range of a figure over the kernel index: the 1st to 99th percentile of each of its lines."""

from typing import Any

import numpy as np

LINES = ("max", "min", "low", "high")
PADDING = 0.08
"""Room above and below, as a fraction of the range."""


def fit_range(columns: Any, *, zero: bool) -> tuple[float, float]:
    """Return start and end of y for a series; `zero`: 0 is in the range. Of fewer than 100 points all are inside.

    The page's script `fit_y.js` computes the same for the kernels in view.
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
    pad = max(PADDING * (most - least), 0.5)
    return least - pad, most + pad
