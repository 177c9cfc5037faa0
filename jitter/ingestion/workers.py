"""Convert sources in processes of this machine, or on a Dask cluster whose workers see the same paths."""

import ctypes
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import cast

from jitter.core.durability import sync_files
from jitter.core.errors import JitterError
from jitter.core.formatting import format_count
from jitter.core.parallel.dask_client import connect
from jitter.core.parallel.executors import DaskExecutor, Executor, LocalExecutor, cpu_count
from jitter.core.parallel.processes import WorkerDied, WorkerPool, server_context
from jitter.ingestion import WORTH_WORKERS_BYTES, worker_modules
from jitter.ingestion.convert import Outcome, Task, convert

Progress = Callable[[int, int], None]
"""Called from time to time with the bytes done and the total bytes."""

_POLL_S = 0.1
_counter: ctypes.c_int64 | None = None


def convert_all(executor: Executor | None, tasks: Sequence[Task], progress: Progress | None) -> Iterator[Outcome]:
    """Convert the tasks and yield their outcomes in the order of the tasks.

    The executor None is one worker process per processor; none where sources are small. After a worker dies (for
    example out of memory), the tasks that may have killed it run again one at a time. A task that kills its worker a
    second time is rejected; all other tasks continue. Workers of a cluster only stage: this process publishes. Raises
    `UsageError` without Dask, and `JitterError` if the scheduler does not answer or is lost, or has no workers, or
    workers of another version of jitter.
    """
    total = sum(task.source.size for task in tasks)
    report = progress or (lambda done, total: None)
    if isinstance(executor, DaskExecutor):
        outcomes = _on_cluster(executor, tasks, total, report)
    else:
        is_small = total < WORTH_WORKERS_BYTES and all(task.source.nsys is None for task in tasks)
        if isinstance(executor, LocalExecutor) or (executor is None and is_small):
            jobs = 1
        else:
            jobs = (executor and executor.workers) or cpu_count()
        workers = min(jobs, len(tasks))
        outcomes = _here(tasks, total, report) if workers <= 1 else _in_pools(tasks, workers, total, report)
    yield from in_task_order(tasks, outcomes)


def in_task_order(tasks: Sequence[Task], outcomes: Iterable[tuple[int, Outcome]]) -> Iterator[Outcome]:
    """Yield the outcomes of numbered tasks in the order of these, from an iterable in order of completion."""
    early: dict[int, Outcome] = {}
    following = 0
    for number, outcome in outcomes:
        # a worker's task has options, and so a whole rank map, of its own
        outcome.task, outcome.path = tasks[number], tasks[number].source.path
        early[number] = outcome
        while following in early:
            yield early.pop(following)
            following += 1


def _in_pools(tasks: Sequence[Task], workers: int, total: int, report: Progress) -> Iterator[tuple[int, Outcome]]:
    # without a lock, which a worker that is killed would hold for ever: two workers at once may count for one
    counter = server_context(*worker_modules()).RawValue(ctypes.c_int64, 0)

    def tick() -> None:
        report(min(counter.value, total), total)

    open_tasks = dict(enumerate(tasks))
    while open_tasks:
        yield from _in_pool(open_tasks, workers, counter, tick)
        # tasks are left only if a worker died; tasks start in order, so the first ones were running
        suspects = list(open_tasks)[:workers]
        others = f" (like {format_count(len(suspects) - 1, 'other source')})" if len(suspects) > 1 else ""
        note = (
            f"read again alone{others}, after a worker process was killed or out of memory; use fewer processes "
            "(--jobs) if this recurs"
        )
        for number in suspects:
            alone = {number: open_tasks.pop(number)}
            died = worker_died(
                alone[number], "the process that read it was killed or out of memory, and again when it was tried alone"
            )
            outcome = dict(_in_pool(alone, 1, counter, tick)).get(number, died)
            if outcome.error is None and note:
                outcome.warnings.insert(0, note)
                note = ""
            yield number, outcome
    report(total, total)


def _in_pool(
    open_tasks: dict[int, Task], workers: int, counter: ctypes.c_int64, tick: Callable[[], None]
) -> Iterator[tuple[int, Outcome]]:
    """Yield outcomes in order of completion and remove their tasks from `open_tasks`; stop if a worker dies.

    Workers count bytes, and are killed when the iteration is left by an exception.
    """
    most = min(workers, len(open_tasks))
    pool_of_workers = WorkerPool(most, worker_modules(), _begin, counter)
    with pool_of_workers as pool, suppress(WorkerDied):
        numbers = {pool.submit(_work, task): number for number, task in open_tasks.items()}
        finished: SimpleQueue[Future[Outcome]] = SimpleQueue()
        for future in numbers:
            future.add_done_callback(finished.put)
        pending = len(numbers)
        while pending:
            try:
                future = finished.get(timeout=_POLL_S)
            except Empty:
                tick()
                continue
            tick()
            pending -= 1
            if not isinstance(future.exception(), WorkerDied):  # else all pending futures fail with it
                outcome = future.result()
                del open_tasks[numbers[future]]
                yield numbers[future], outcome


def _here(tasks: Sequence[Task], total: int, report: Progress) -> Iterator[tuple[int, Outcome]]:
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        report(min(done, total), total)

    for number, task in enumerate(tasks):
        yield number, convert(task, advance)


def _begin(counter: ctypes.c_int64) -> None:
    global _counter  # noqa: PLW0603  # a pool's initializer has no other way to pass a value to the worker's calls
    _counter = counter


def _work(task: Task) -> Outcome:
    def advance(size: int) -> None:
        if _counter is not None:
            _counter.value += size

    return convert(task, advance)


def worker_died(task: Task, why: str) -> Outcome:
    """Return the outcome of a task whose worker died."""
    error = JitterError(f"{task.source.path}: {why}", "use fewer processes (--jobs), or see the system's log")
    return Outcome(task.source.path, [], task, "", task.staging, error=error)


def _on_cluster(
    executor: DaskExecutor, tasks: Sequence[Task], total: int, report: Progress
) -> Iterator[tuple[int, Outcome]]:
    """Yield outcomes in order of completion. The task of a worker that dies is repeated on another one."""
    if not tasks:
        return
    with connect(executor) as cluster:
        from distributed import KilledWorker

        done = 0
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
            done += task.source.size
            report(done, total)
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
        return Outcome(task.source.path, [], task, "", task.staging, error=error)
    outcome = convert(task, lambda _: None)
    # the process that publishes makes safe what its own machine has written
    sync_files(task.staging, [staged.folder / path for staged in outcome.ranks for path, _ in staged.places()])
    return outcome
