"""Times in which a thread was off the CPU, from the events at which the system schedules threads in and out.

Events may come in any order within a batch; of one thread, a later batch holds later events.
"""

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from jitter.core.numeric.arrays import Bools, Ints

COLUMNS: Final = ("start", "cpu", "isSchedIn", "globalTid")


class OffCpu(NamedTuple):
    """Intervals between an event out and the next event in of one thread; arrays have shape (intervals,)."""

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    is_migration: Bools
    """Whether the thread came back on another core."""


class ThreadScheduling:
    """Pairs the events of each thread, batch by batch."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[int, int, int]] = {}
        """The last event of each thread: time, core, whether it is an event in."""

    def pair(self, rows: pa.RecordBatch) -> OffCpu:
        """Return the intervals that end in these rows, which have `COLUMNS`; rows without a thread are left out."""
        known = np.logical_and.reduce([rows[name].is_valid().to_numpy(zero_copy_only=False) for name in COLUMNS])
        start, cpu, is_in, thread = (rows[name].fill_null(0).to_numpy()[known] for name in COLUMNS)
        threads = np.unique(thread)
        held = [(one, *self._before[one]) for one in threads.tolist() if one in self._before]
        if held:
            columns = np.array(held, np.int64).T
            thread, start, cpu, is_in = (
                np.concatenate(pair) for pair in zip(columns, (thread, start, cpu, is_in), strict=True)
            )
        # at equal times a thread leaves before it comes back
        order = np.lexsort((is_in != 0, start, thread))
        thread, start, cpu, is_in = thread[order], start[order], cpu[order], is_in[order] != 0
        last = np.flatnonzero(np.append(np.diff(thread) != 0, True)) if len(thread) else np.zeros(0, np.int64)
        for one, *event in zip(*(values[last].tolist() for values in (thread, start, cpu, is_in)), strict=True):
            self._before[one] = (event[0], event[1], int(event[2]))
        back = np.flatnonzero((np.diff(thread) == 0) & ~is_in[:-1] & is_in[1:]) if len(thread) else last
        return OffCpu(thread[back], start[back], start[back + 1], cpu[back] != cpu[back + 1])
