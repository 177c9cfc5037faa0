"""Analyse a run on a Dask cluster that runs already; its workers see the lake under the same path as this process.

This process infers what the whole run tells. The workers read the steps, range by range, and each replays some of the
scenarios over all steps; one keeps the account. The computations are those of `passes`. A worker opens the lake for
itself and is given what the whole run tells.
"""

import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jitter.analysis.account.noise import Noise
from jitter.analysis.alignment.kernel_index import KernelIndices
from jitter.analysis.collectives.matching import CollectiveArrays
from jitter.analysis.detection.passes import (
    RunReplay,
    StepExecutor,
    StepStatistics,
    join_statistics,
    measure_steps,
    replay_steps,
    step_ranges,
)
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.self_times import SelfTimes
from jitter.analysis.replay.run_steps import RunSteps, Shared
from jitter.analysis.replay.what_if import Scenario
from jitter.core.errors import JitterError, LakeError
from jitter.core.numeric.arrays import Floats
from jitter.core.parallel.dask_client import Cluster, connect
from jitter.core.parallel.executors import DaskExecutor
from jitter.core.step_key import StepKey
from jitter.lake.folder import LakeFolder
from jitter.lake.records import records_by_step

if TYPE_CHECKING:
    from distributed import Future


class RemoteRun(NamedTuple):
    """Description of a run with which a worker process goes through its steps."""

    name: str
    """Unique to the run."""
    root: Path
    """The lake's folder as other processes see it."""
    steps: tuple[StepKey, ...]
    shared: Shared
    digests: frozenset[str]
    """Of the recordings that the run consists of: others may have come into the lake since."""


def measure_remotely(run: RemoteRun, first: int, last: int) -> tuple[StepStatistics, SelfTimes]:
    """Measure each step of a range; return the steps' baselines, too."""
    steps = _opened(run)
    measured = measure_steps(steps, first, last)
    return measured, SelfTimes(*(values[first:last] for values in steps.baselines))


def replay_remotely(
    run: RemoteRun,
    usual: Sequence[Floats],
    scenarios: Sequence[Scenario],
    noise: Noise | None,
    baselines: SelfTimes | None,
) -> RunReplay:
    """Replay the run as `replay_steps` does; `baselines` are those of all steps, if they are known."""
    steps = _opened(run)
    if baselines is not None:
        steps.keep_baselines(0, baselines)
    # as in `_opened`; one object stays one
    copies = {id(transfers): np.array(transfers) for transfers in usual}
    step_noise = None if noise is None else Noise(*map(np.array, noise))
    return replay_steps(steps, [copies[id(transfers)] for transfers in usual], scenarios, step_noise)


_open: dict[str, RunSteps] = {}
_one_opens = Lock()


def _opened(run: RemoteRun) -> RunSteps:
    """Return the run's steps, opened once in this process."""
    with _one_opens:
        if run.name not in _open:
            _open.clear()
            if not run.root.exists():
                raise LakeError(
                    f"{run.root}: the worker on {socket.gethostname()} does not see it",
                    "the lake must lie on a file system that all workers share, under the same path",
                )
            folder = LakeFolder(run.root)
            folder.require()
            records = [record for record in folder.intact_records()[0] if record.digest in run.digests]
            if len(records) < len(run.digests):
                raise LakeError(f"{run.root}: has changed while it was read", "run it again when no ingest is running")
            held = records_by_step(records)
            lake = RunReader(run.root, held, KernelIndices(run.root, held).of, run.steps)
            model = run.shared.understood
            # arrays as they are sent may be read-only, which compiled loops take for another type
            copied: Any = map(np.array, model.matching.arrays)
            model = model._replace(matching=replace(model.matching, arrays=CollectiveArrays(*copied)))
            steps = RunSteps(lake, replace(run.shared, understood=model))
            steps.prepare()  # here, as tasks on several threads begin at once
            _open[run.name] = steps
        return _open[run.name]


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

    def measure(self) -> StepStatistics:
        """See `StepExecutor`."""
        ranges = step_ranges(len(self._steps.run.keys), _RANGES_PER_WORKER * self._workers())
        batches = self._gather([self._submit(measure_remotely, *step_range) for step_range in ranges])
        for (first, _), (_, baselines) in zip(ranges, batches, strict=True):
            self._steps.keep_baselines(first, baselines)
        joined: StepStatistics = join_statistics([statistics for statistics, _ in batches])
        return joined

    def replay(self, usual: Sequence[Floats], scenarios: Sequence[Scenario], noise: Noise | None = None) -> RunReplay:
        """See `StepExecutor`."""
        parts = [part.tolist() for part in np.array_split(np.arange(len(scenarios)), self._workers()) if len(part)]
        work: list[tuple[list[Scenario], Noise | None]]
        work = [([scenarios[at] for at in part], None) for part in parts]
        if noise is not None or not work:
            work = [([], noise), *work]  # the account takes longest, so it begins first
        baselines = self._steps.known_baselines
        replays: list[RunReplay] = self._gather(
            [self._submit(replay_remotely, usual, *part, baselines) for part in work]
        )
        return RunReplay(np.concatenate([part.gained_ns for part in replays], axis=1), replays[0].accounts)

    def _workers(self) -> int:
        return max(1, len(self._client.ncores()))

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> "Future":
        if self._sent is None:
            # not scattered: data that lie on a worker are lost with it, what a task made is made again
            keys, shared = tuple(self._steps.run.keys), self._steps.prepare()
            digests = frozenset(record.digest for record in self._steps.lake.sources)
            run = RemoteRun(uuid.uuid4().hex, self._root, keys, shared, digests)
            self._sent = self._client.submit(_itself, run, pure=False)
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
