"""Analyse a run on a Dask cluster that runs already; its workers see the lake under the same path as this process.

This process infers what the whole run tells. The workers read the steps, range by range, and each replays some of the
scenarios over all steps; one keeps the account. The computations are those of `passes`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jitter.analysis.account.noise import Noise
from jitter.analysis.detection.executors.passes import RunReplay, StepExecutor, StepStatistics, step_ranges
from jitter.analysis.detection.executors.remote_steps import (
    RemoteRun,
    account_remotely,
    measure_remotely,
    remote_run,
    replay_remotely,
)
from jitter.analysis.replay.run_steps import RunSteps
from jitter.analysis.replay.what_if import Scenario
from jitter.core.errors import JitterError
from jitter.core.numeric.arrays import Floats
from jitter.core.parallel.dask_client import Cluster, connect
from jitter.core.parallel.executors import DaskExecutor

if TYPE_CHECKING:
    from distributed import Future

_RANGES_PER_WORKER = 2


@contextmanager
def dask_executor(executor: DaskExecutor, root: Path) -> Iterator[Callable[[RunSteps], StepExecutor]]:
    """Connect to a cluster; yield what makes the executor of a run of the lake in the folder `root`.

    Raises `UsageError` without Dask, `JitterError` if no scheduler answers, or stops to, or has no workers, or workers
    of another version of jitter, or its workers die of it.
    """
    with connect(executor) as cluster:
        yield lambda steps: DaskStepExecutor(cluster, root.absolute(), steps)


class DaskStepExecutor:
    """Goes through the steps on a cluster."""

    def __init__(self, cluster: Cluster, root: Path, steps: RunSteps) -> None:
        self._cluster, self._client, self._root, self._steps = cluster, cluster.client, root, steps
        self._sent: Future | None = None

    def measure(self) -> list[StepStatistics]:
        """See `StepExecutor`."""
        found = self._gather([self._submit(measure_remotely, *one) for one in self._ranges()])
        return [seen for part in found for seen in part]

    def replay(
        self, usual: Sequence[Floats], scenarios: Sequence[Scenario], noise: Sequence[Noise] | None = None
    ) -> RunReplay:
        """See `StepExecutor`."""
        shares = [part.tolist() for part in np.array_split(np.arange(len(scenarios)), self._workers()) if len(part)]
        baselines = self._steps.baselines
        # the account takes longest, so it begins first
        kept = [] if noise is None else [self._submit(account_remotely, usual, baselines, noise)]
        replays = [self._submit(replay_remotely, [scenarios[at] for at in part], usual, baselines) for part in shares]
        found = self._gather([*kept, *replays])
        nothing = np.zeros((len(self._steps.run.keys), 0))
        return RunReplay(np.concatenate([nothing, *found[len(kept) :]], axis=1), found[0] if kept else [])

    def _workers(self) -> int:
        return max(1, len(self._client.ncores()))

    def _ranges(self) -> list[tuple[int, int]]:
        return step_ranges(len(self._steps.run.keys), _RANGES_PER_WORKER * self._workers())

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> "Future":
        if self._sent is None:
            # not scattered: data that lie on a worker are lost with it, what a task made is made again
            self._sent = self._client.submit(_itself, remote_run(self._root, self._steps), pure=False)
        return self._client.submit(work, self._sent, *arguments, pure=False)

    def _gather(self, futures: "Sequence[Future]") -> list[Any]:
        from distributed import KilledWorker

        try:
            for future in self._cluster.completed(futures):
                self._cluster.result(future)  # the first error ends the wait
            return [self._cluster.result(future) for future in futures]
        except KilledWorker as error:
            raise JitterError(
                f"{self._root}: workers that examined it died, one after the other ({error.allowed_failures + 1})",
                "give each about 2 GB of memory",
            ) from None


def _itself(run: RemoteRun) -> RemoteRun:
    return run
