"""Processes of a trace: host rows state their process, GPU rows only their device."""

from collections import Counter, defaultdict
from typing import Final

import numpy as np

from jitter.core.numeric.arrays import Ints
from jitter.readers import Process

_REMEMBERED: Final = 200_000
"""Calls kept per process to find the process of a GPU; a trace nearly always has one process."""
_LONGEST_WAIT_NS: Final = 60 * 10**9


class ProcessTable:
    """Host processes in order of appearance; `listed` grows as rows are added."""

    def __init__(self) -> None:
        self.listed: list[Process] = []
        self._index: dict[int | None, int] = {}
        self._callers: list[int] = []
        self._calls: dict[int, list[tuple[Ints, Ints]]] = defaultdict(list)
        self._remembered: Counter[int] = Counter()
        self._votes: dict[int | None, Counter[int]] = defaultdict(Counter)

    def of(self, pid: int | None) -> int:
        """Return the index of a host process."""
        index = self._index.get(pid)
        if index is None:
            waiting = self._index.pop(None, None) if pid is not None and len(self.listed) == 1 else None
            if waiting is not None:  # GPU rows came before the first host row
                self.listed[waiting].pid = pid
                index = waiting
            else:
                index = len(self.listed)
                self.listed.append(Process(pid))
            self._index[pid] = index
        return index

    def called(self, process: int, correlations: Ints, starts: Ints) -> None:
        """Record API calls of a process."""
        if process not in self._callers:
            self._callers.append(process)
        if self._remembered[process] < _REMEMBERED:
            self._remembered[process] += len(correlations)
            order = np.argsort(correlations, kind="stable")
            self._calls[process].append((correlations[order], starts[order]))

    def of_gpu(self, device: int | None, correlations: Ints, starts: Ints) -> int:
        """Return the process of a device's rows: the only one with calls, else the one whose calls the rows follow."""
        if len(self._callers) == 1:
            return self._callers[0]
        if not self._callers:
            return 0 if self.listed else self.of(None)
        votes = self._votes[device]
        best = np.full(len(starts), _LONGEST_WAIT_NS, dtype=np.int64)
        by = np.full(len(starts), -1, dtype=np.int64)
        for process, parts in self._calls.items():
            for called, at in parts:
                place = np.minimum(np.searchsorted(called, correlations), len(called) - 1)
                wait = starts - at[place]
                nearer = (called[place] == correlations) & (wait >= 0) & (wait < best)
                best[nearer] = wait[nearer]
                by[nearer] = process
        votes.update(by[by >= 0].tolist())
        return votes.most_common(1)[0][0] if votes else self._callers[0]

    def problems(self) -> list[str]:
        """Return what is uncertain about the processes, one sentence each."""
        if len(self._callers) < 2:
            return []
        pids = ", ".join(str(self.listed[process].pid) for process in self._callers)
        return [
            f"{len(self._callers)} processes ({pids}) use GPUs in this trace: each device was assigned to "
            "the process whose calls its activities follow"
        ]

    def only_one(self) -> Process | None:
        """Return the process that uses GPUs; None if several do."""
        if len(self._callers) == 1:
            return self.listed[self._callers[0]]
        return self.listed[0] if self.listed and not self._callers else None
