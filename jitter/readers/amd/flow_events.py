"""Flow events of a Chrome trace from calls to kernels; each end is identified by process, thread and microsecond.

A flow starts in the middle of the call, so all flows of one call (the kernels of a graph) start at one location. That
location is the correlation of the call and its kernels.
"""

from array import array
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from jitter.core.numeric.arrays import Ints

_TIME_BITS = 47
_MOST_LANES = 1 << 16
EventLocation = tuple[int | None, int | None, int | None]
"""Process, thread and microsecond as recorded."""


class FlowEvents:
    """All flows of a trace, about 48 bytes each: call `add` for each end, then `close`, then the look-ups."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, int], int] = {}
        self._places = (array("q"), array("q"))
        self._numbers = (array("q"), array("q"))
        self._begins: Ints = np.array([], np.int64)
        self._ends: Ints = np.array([], np.int64)
        self._begin_of_end: Ints = np.array([], np.int64)
        self.ambiguous = 0
        """Number of kernels whose flows are ambiguous."""

    def add(self, is_begin: bool, place: EventLocation, number: int | None) -> None:
        """Add one end of the flow with this id."""
        process, thread, at_us = place
        if process is None or thread is None or at_us is None or number is None:
            return
        lane = self._lanes.setdefault((process, thread), len(self._lanes))
        if lane < _MOST_LANES:
            self._places[is_begin].append(lane << _TIME_BITS | at_us)
            self._numbers[is_begin].append(number)

    def close(self) -> None:
        """Match the ends of flows; call once, after the last `add`."""
        begins, ends = (np.frombuffer(self._places[side], np.int64) for side in (1, 0))
        of_begins, of_ends = (np.frombuffer(self._numbers[side], np.int64) for side in (1, 0))
        if not len(begins) or not len(ends):
            return
        order = np.argsort(of_begins, kind="stable")
        found = np.searchsorted(of_begins[order], of_ends).clip(max=len(order) - 1)
        joined = of_begins[order][found] == of_ends
        from_place, to_place = begins[order][found][joined], ends[joined]
        places, first, count = np.unique(to_place, return_index=True, return_counts=True)
        # several kernels of a thread in one microsecond cannot be distinguished
        self.ambiguous = int(count[count > 1].sum())
        self._ends, self._begin_of_end = places[count == 1], from_place[first[count == 1]]
        self._begins = np.unique(begins)

    def of_kernels(self, places: Sequence[EventLocation]) -> pa.Array:
        """Return the correlation (int64) of kernels that start at these locations; null for none or several."""
        return self._looked_up(self._ends, self._begin_of_end, self._keys(places))

    def of_calls(self, places: Sequence[EventLocation], durations_us: Sequence[int]) -> pa.Array:
        """Return the correlation (int64) of calls that start at these locations; null if they launch nothing."""
        keys = self._keys(places)
        if not len(self._begins):
            return pa.nulls(len(keys), pa.int64())
        lasts = keys + np.array(durations_us, np.int64)
        at = np.searchsorted(self._begins, (keys + lasts) // 2 - 1).clip(max=len(self._begins) - 1)
        # the middle is rounded to a microsecond but never outside the call
        inside = (self._begins[at] >= keys) & (self._begins[at] <= lasts) & (keys >= 0)
        return pa.array(self._begins[at], mask=~inside)

    def _keys(self, places: Sequence[EventLocation]) -> Ints:
        keys = np.full(len(places), -1, np.int64)
        for row, (process, thread, at_us) in enumerate(places):
            lane = self._lanes.get((process, thread)) if process is not None and thread is not None else None
            if lane is not None and at_us is not None:
                keys[row] = lane << _TIME_BITS | at_us
        return keys

    @staticmethod
    def _looked_up(places: Ints, values: Ints, keys: Ints) -> pa.Array:
        if not len(places):
            return pa.nulls(len(keys), pa.int64())
        at = np.searchsorted(places, keys).clip(max=len(places) - 1)
        return pa.array(values[at], mask=places[at] != keys)
