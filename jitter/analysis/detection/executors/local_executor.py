"""Go through a run's steps in this process; of a large run on threads, since compiled loops release the GIL."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from jitter.analysis.account.noise import Noise
from jitter.analysis.detection.executors.passes import (
    RunReplay,
    StepStatistics,
    measure_steps,
    replay_steps,
    step_ranges,
)
from jitter.analysis.replay.run_steps import RunSteps
from jitter.analysis.replay.what_if import Scenario
from jitter.core.numeric.arrays import Floats
from jitter.core.parallel.processes import cpu_count

_LARGE: Final = 500_000
"""StepActivities from which on a run is worth threads."""
_MOST_THREADS: Final = 8
_MOST_CELLS: Final = 6_000_000
"""Operations × ranks of the steps that are in memory at once, some 100 bytes each."""
_RANGES: Final = 2
"""A thread. Each range reads again some steps before its own."""


class ThreadedStepExecutor:
    """Goes through the steps here."""

    def __init__(self, steps: RunSteps, threads: int | None = None) -> None:
        """Use this number of threads; None: one per processor for a large run."""
        self._steps, self._chosen = steps, threads

    def measure(self) -> list[StepStatistics]:
        """Measure each step by itself."""
        steps, count = self._steps, len(self._steps.run.keys)
        threads = self._threads()
        if threads < 2:
            return measure_steps(steps, 0, count)
        steps.prepare()
        with ThreadPoolExecutor(threads, thread_name_prefix="steps") as pool:
            # one thread reads while another one computes
            ranges = [
                pool.submit(measure_steps, steps, *one, ahead=False) for one in step_ranges(count, _RANGES * threads)
            ]
            try:
                return [seen for found in ranges for seen in found.result()]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def replay(
        self, usual: Sequence[Floats], scenarios: Sequence[Scenario], noise: Sequence[Noise] | None = None
    ) -> RunReplay:
        """See `StepExecutor`."""
        steps = self._steps
        threads = 1 if steps.are_tiny else min(self._threads(), len(scenarios))
        if threads < 2:
            return replay_steps(steps, usual, scenarios, noise)
        with ThreadPoolExecutor(threads, thread_name_prefix="scenarios") as pool:
            return replay_steps(steps, usual, scenarios, noise, pool)

    def _threads(self) -> int:
        steps = self._steps
        if self._chosen is None and steps.lake.source.rows < _LARGE:
            return 1
        in_memory = _MOST_CELLS // max(1, 2 * steps.largest_step)
        return min(self._chosen or min(cpu_count(), _MOST_THREADS), len(steps.run.keys), in_memory)
