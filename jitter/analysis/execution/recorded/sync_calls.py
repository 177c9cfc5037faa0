"""All ranks' synchronising calls, side by side, to be found by step: what lies between two steps is the earlier's."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jitter.analysis.execution.rank_groups import StepSyncCalls
from jitter.core.numeric.arrays import Ints, joined
from jitter.core.step_key import StepKey
from jitter.lake.host_events import SyncCalls, step_bounds
from jitter.lake.records import RankStepRecord


class RunSyncCalls:
    """Calls of launching threads: a thread that pins memory, or a watchdog, delays no launch."""

    def __init__(
        self,
        steps: Sequence[StepKey],
        held: Mapping[StepKey, Mapping[int, RankStepRecord]],
        calls: Callable[[RankStepRecord], SyncCalls],
        threads: Mapping[int, Ints],
    ) -> None:
        """Take the calls of every recording that holds one of these steps; `threads` are the ids of those
        that launch, (threads,) by rank.
        """
        self._number: dict[tuple[int | None, int], int] = {key: number for number, key in enumerate(steps)}
        self._ranks = np.array(sorted({rank for key in steps for rank in held[key]}), np.int64)
        row_of = {rank: row for row, rank in enumerate(self._ranks.tolist())}
        self._first, self._last = np.zeros((2, len(steps), len(self._ranks)), np.int64)
        names: dict[str, int] = {}
        start, end, thread, name, so_far = [], [], [], [], 0
        recordings = {held[key][rank].record.digest: (rank, held[key][rank]) for key in steps for rank in held[key]}
        for rank, one in recordings.values():
            own = calls(one)
            if not own.names:
                continue
            own_names = np.array([names.setdefault(text, len(names)) for text in own.names], np.int64)
            by_them = np.isin(own.thread, threads[rank])
            start.append(own.start_ns[by_them])
            end.append(own.end_ns[by_them])
            thread.append(own.thread[by_them])
            name.append(own_names[by_them])
            begins, keys = step_bounds(one.record)
            cuts = (np.searchsorted(start[-1], begins) + so_far).tolist()
            for at, step in enumerate(keys):
                number = self._number.get(step)
                holder = None if number is None else held[steps[number]].get(rank)
                if holder is not None and holder.record is one.record:
                    self._first[number, row_of[rank]], self._last[number, row_of[rank]] = cuts[at], cuts[at + 1]
            so_far += len(start[-1])
        self._start_ns, self._end_ns, self._thread, self._name = map(joined, (start, end, thread, name))
        self._names = tuple(names)

    def of(self, key: StepKey) -> StepSyncCalls:
        """One step's."""
        number = self._number[key]
        where = self._ranks, self._first[number], self._last[number]
        return StepSyncCalls(*where, self._start_ns, self._end_ns, self._thread, self._name, self._names)
