"""A large run examined by several processes of this machine: its steps in stretches, all at once.

What a step takes goes into many short calls of numpy, for which threads wait for each other; processes do not.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Lock
from typing import Final

from jitter.analysis.detection.passes import Gone, Passes, PassesHere, SeenStep, StepPath, look
from jitter.analysis.detection.step_ranges import SentRun, cut, look_there, sent_run, typical_of, walk_there
from jitter.analysis.replay.run_steps import ExaminedSteps
from jitter.analysis.replay.what_if import Scenario
from jitter.core.processes import WorkerDied, WorkerPool, cpu_count, server_context

LARGE: Final = 5_000_000
"""Activities in a run; a smaller one is done before other processes have begun."""
_STRETCHES: Final = 4
"""A process."""
_MOST_PROCESSES: Final = 8
"""Each needs some 400 MB beside the lake's extracts."""


def passes(root: Path, activities: int, steps: int) -> Callable[[ExaminedSteps], Passes]:
    """Choose who goes through a run's steps: of a large one all processors that this process may use."""
    return PassesHere if activities < LARGE else pool_passes(root, steps)


def pool_passes(root: Path, steps: int, workers: int | None = None) -> Callable[[ExaminedSteps], Passes]:
    """Go through a run's steps with this number of processes (default: one per processor, but not too many)."""
    workers = min(workers or min(cpu_count(), _MOST_PROCESSES), steps)
    if workers < 2:
        return PassesHere
    server_context(__name__)  # it loads what they need while we look what the run is
    return lambda examined: PassesBeside(root, examined, workers)


class PassesBeside:
    """Goes through the steps with the help of other processes, which end after both passes."""

    def __init__(self, root: Path, steps: ExaminedSteps, processes: int) -> None:
        """Work along with so many others less one."""
        self._root, self._steps = root, steps
        self._here = PassesHere(steps)
        self._others = processes - 1
        self._pool: WorkerPool | None = None
        self._run: SentRun | None = None

    def look(self) -> list[SeenStep]:
        """Do as `Passes` says."""
        run = sent_run(self._root, self._steps)
        pool = WorkerPool(self._others, [__name__])
        shares = _Shares(pool, run, cut(len(run.steps), _STRETCHES * (self._others + 1)))
        try:
            for _ in range(self._others):
                shares.give()
            found = {}
            while (stretch := shares.take()) is not None:
                found[stretch] = look(self._steps, *stretch)
            found |= {stretch: future.result() for stretch, future in shares.given.items()}
        except BaseException as error:
            while shares.take() is not None:
                pass
            pool.shutdown(wait=False, cancel=True)
            if isinstance(error, WorkerDied):  # out of memory, say: then alone
                return self._here.look()
            raise
        self._pool, self._run = pool, run
        return [seen for _, stretch in sorted(found.items()) for seen in stretch]

    def go(self, usual: Mapping[int, float], scenarios: Sequence[Scenario], *, walk: bool) -> Gone:
        """Do as `Passes` says."""
        pool, run = self._pool, self._run
        if pool is None or run is None or not walk:
            return self._here.go(usual, scenarios, walk=walk)
        self._pool = self._run = None
        walks: list[Future[list[StepPath]]] = []
        with pool:
            try:
                for stretch in cut(len(run.steps), self._others):
                    walks.append(pool.submit(walk_there, run, *stretch, usual, typical_of(self._steps, *stretch)))
                gone = self._here.go(usual, scenarios, walk=False)
                paths = [path for future in walks for path in future.result()]
            except WorkerDied:
                return self._here.go(usual, scenarios, walk=True)
        return Gone(gone.gained_ns, paths)


class _Shares:
    """Stretches to look at: others are given the first of those that wait, one after the other; we take the last."""

    def __init__(self, pool: WorkerPool, run: SentRun, stretches: Sequence[tuple[int, int]]) -> None:
        self._pool, self._run = pool, run
        self._waiting = deque(stretches)
        self._one_chooses = Lock()
        self.given: dict[tuple[int, int], Future[list[SeenStep]]] = {}
        """Complete when none is left to take."""

    def give(self) -> None:
        """Give one to another process, and when that is done the next."""
        with self._one_chooses:
            if not self._waiting:
                return
            stretch = self._waiting.popleft()
            future = self._pool.submit(look_there, self._run, *stretch)
            self.given[stretch] = future
        future.add_done_callback(lambda done: self.give() if done.exception() is None else None)

    def take(self) -> tuple[int, int] | None:
        """Take one; None if none waits."""
        with self._one_chooses:
            return self._waiting.pop() if self._waiting else None
