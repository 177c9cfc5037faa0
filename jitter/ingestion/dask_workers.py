"""Convert sources on a running Dask cluster whose workers see traces and lake under the same paths."""

import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from jitter.core.durability import sync_files
from jitter.core.errors import JitterError
from jitter.core.parallel.dask_client import Cluster, connect
from jitter.core.parallel.executors import DaskExecutor
from jitter.ingestion.convert import Outcome, Task, convert
from jitter.ingestion.workers import Progress, in_task_order, worker_died


def convert_on_dask(executor: DaskExecutor, tasks: Sequence[Task], progress: Progress | None) -> Iterator[Outcome]:
    """Convert the tasks on the cluster of this scheduler and yield their outcomes in the order of the tasks.

    Workers only stage; this process publishes. The scheduler repeats the task of a worker that dies on another one;
    what the dead worker staged is ignored. Raises `UsageError` without Dask and `JitterError` if the scheduler does
    not answer or is lost, or has no workers, or workers of another version of jitter.
    """
    if not tasks:
        return
    with connect(executor) as cluster:
        yield from in_task_order(_as_they_come(cluster, tasks, progress or (lambda done, total: None)))


def _as_they_come(cluster: Cluster, tasks: Sequence[Task], progress: Progress) -> Iterator[tuple[int, Outcome]]:
    from distributed import KilledWorker

    done, total = 0, sum(task.source.size for task in tasks)
    # not pure: tasks with equal arguments must not share a result
    numbers = {cluster.client.submit(_convert, _absolute(task), pure=False): n for n, task in enumerate(tasks)}
    for future in cluster.completed(list(numbers)):
        number = numbers[future]
        task = tasks[number]
        try:
            outcome = cast("Outcome", cluster.result(future))
        except KilledWorker as error:
            outcome = worker_died(
                task, f"workers that read it died, one after the other ({error.allowed_failures + 1})"
            )
        future.release()
        outcome.source = task.source
        done += task.source.size
        progress(done, total)
        yield number, outcome


def _absolute(task: Task) -> Task:
    """Return the task with absolute paths, for a process in another folder."""
    files = tuple(file.absolute() for file in task.source.files)
    source = replace(task.source, path=task.source.path.absolute(), files=files)
    return replace(task, source=source, staging=task.staging.absolute())


def _convert(task: Task) -> Outcome:
    """Convert one source on a Dask worker, or return an error if the worker does not see its files."""
    unseen = [path for path in (task.staging, *task.source.files) if not Path(path).exists()]
    if unseen:
        error = JitterError(
            f"{task.source.path}: the worker on {socket.gethostname()} does not see {unseen[0]}",
            "traces and lake must lie on a file system that all workers share, under the same path",
        )
        return Outcome(task.source, "", task.staging, error=error)
    outcome = convert(task, lambda _: None)
    # the process that publishes makes safe what its own machine has written
    sync_files(task.staging, [staged.folder / path for staged in outcome.staged for path, _ in staged.places()])
    return outcome
