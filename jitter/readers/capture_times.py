"""Plausible times of one capture: a time that is far from the others is damaged."""

from typing import Final

import numpy as np
import pyarrow as pa

from jitter.core.numeric.arrays import Bools, Ints

LONGEST_NS: Final = 7 * 86_400 * 10**9
"""Longest capture in ns; a time this far from the others is damaged."""
LARGEST_NS: Final = 2**62
"""All times are below: differences of larger ones do not fit in 64 bits."""


class CaptureTimes:
    """Tells which times of one recording are possible, from the times of its first rows."""

    def __init__(self) -> None:
        self.about_ns: int | None = None
        """The median start of the first rows, in ns; None before the first row."""

    def are_possible(self, start_ns: Ints, end_ns: Ints, has_start: Bools, has_end: Bools) -> Bools:
        """Return which rows have a start near the others and, if any, an end near it.

        An end before its start counts as not recorded.
        """
        valid = has_start & (start_ns > -LARGEST_NS) & (start_ns < LARGEST_NS)
        if self.about_ns is None and valid.any():
            starts = np.sort(start_ns[valid])
            self.about_ns = int(starts[len(starts) // 2])
        start_ns = np.where(valid, start_ns, 0)
        valid &= np.abs(start_ns - (self.about_ns or 0)) < LONGEST_NS
        last_ns = np.where(has_end, np.maximum(end_ns, start_ns), start_ns)
        possible: Bools = valid & (last_ns < LARGEST_NS) & (last_ns - start_ns < LONGEST_NS)
        return possible

    def check(self, start_ns: pa.Array, end_ns: pa.Array) -> pa.BooleanArray:
        """Return `are_possible` of int64 columns in which unknown times are null."""
        columns = (column.fill_null(0).to_numpy(zero_copy_only=False) for column in (start_ns, end_ns))
        known = (column.is_valid().to_numpy(zero_copy_only=False) for column in (start_ns, end_ns))
        return pa.array(self.are_possible(*columns, *known))
