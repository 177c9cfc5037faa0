"""Converts many sources at once: over worker processes, with progress by bytes, whatever one of them does."""

import ctypes
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as StillRunningError
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.sharedctypes import Synchronized

from jitter.convert import Outcome, Task, convert
from jitter.errors import JitterError

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all, from time to time."""

_POLL_S = 0.1
_counter: "Synchronized[int] | None" = None


def convert_all(tasks: Sequence[Task], jobs: int | None, progress: Progress | None) -> Iterator[Outcome]:
    """Convert the tasks and yield their outcomes in the order of the tasks.

    A worker that dies (out of memory, say) takes nothing with it: the tasks it leaves are done again one at a time,
    and only the one that kills its worker again is given up.
    """
    total = sum(task.source.size for task in tasks)
    report = progress or (lambda done, total: None)
    workers = min(jobs or os.cpu_count() or 1, len(tasks))
    if workers <= 1:
        yield from _here(tasks, total, report)
        return
    counter = multiprocessing.get_context("spawn").Value(ctypes.c_int64, 0)
    with _pool(workers, counter) as pool:
        futures = [pool.submit(_work, task) for task in tasks]
        for task, future in zip(tasks, futures, strict=True):
            try:
                yield _wait(future, lambda: report(min(counter.value, total), total))
            except BrokenProcessPool:
                yield _alone(task, counter)
    report(total, total)


def _here(tasks: Sequence[Task], total: int, report: Progress) -> Iterator[Outcome]:
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        report(min(done, total), total)

    for task in tasks:
        yield convert(task, advance)


def _pool(workers: int, counter: "Synchronized[int]") -> ProcessPoolExecutor:
    # spawn: a forked worker would inherit this process's threads' locks (DuckDB, pyarrow)
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_share, initargs=(counter,))


def _share(counter: "Synchronized[int]") -> None:
    global _counter  # noqa: PLW0603  # the one way into a pool's worker
    _counter = counter


def _work(task: Task) -> Outcome:
    def advance(size: int) -> None:
        if _counter is not None:
            with _counter.get_lock():
                _counter.value += size

    return convert(task, advance)


def _wait(future: "Future[Outcome]", tick: Callable[[], None]) -> Outcome:
    while True:
        try:
            return future.result(timeout=_POLL_S)
        except StillRunningError:
            tick()


def _alone(task: Task, counter: "Synchronized[int]") -> Outcome:
    with _pool(1, counter) as pool:
        try:
            return pool.submit(_work, task).result()
        except BrokenProcessPool:
            error = JitterError(
                f"{task.source.path}: the process that read it died, and again when tried alone",
                "was it out of memory? see the system's log",
            )
            return Outcome(task.source, "", task.staging, error=error)
