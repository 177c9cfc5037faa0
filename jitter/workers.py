"""Converts many sources at once: over worker processes, with progress by bytes, whatever one of them does."""

import atexit
import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as StillRunningError
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event

from jitter import fork_server
from jitter.convert import Outcome, Task, convert
from jitter.errors import ExitCode, JitterError

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
    shared = _Shared()
    with _pool(workers, shared) as pool:
        futures = [pool.submit(_work, task) for task in tasks]
        for task, future in zip(tasks, futures, strict=True):
            try:
                outcome = _wait(future, lambda: report(min(shared.counter.value, total), total))
            except BrokenProcessPool:
                outcome = _alone(task, shared)
            yield outcome
    report(total, total)


def _here(tasks: Sequence[Task], total: int, report: Progress) -> Iterator[Outcome]:
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        report(min(done, total), total)

    for task in tasks:
        yield convert(task, advance)


class _Shared:
    """What the workers and the process that started them have in common."""

    def __init__(self) -> None:
        self.context = fork_server.context()
        self.counter: Synchronized[int] = self.context.Value(ctypes.c_int64, 0)
        self.stop = self.context.Event()


@contextmanager
def _pool(workers: int, shared: _Shared) -> Iterator[ProcessPoolExecutor]:
    """A pool whose workers stop at once when its block is left by an exception, or when this process dies."""
    pool = ProcessPoolExecutor(
        workers, mp_context=shared.context, initializer=_begin, initargs=(shared.counter, shared.stop)
    )
    try:
        yield pool
    except BaseException:
        shared.stop.set()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def _begin(counter: "Synchronized[int]", stop: Event) -> None:
    global _counter  # noqa: PLW0603  # the one way into a pool's worker
    _counter = counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: who started us decides
    parent = multiprocessing.parent_process()
    assert parent is not None
    for end in (stop.wait, parent.join):
        threading.Thread(target=_leave_after, args=(end,), daemon=True).start()
    # these threads outlive the interpreter's teardown, where DuckDB's binding would call what they hold leaked
    atexit.register(os._exit, 0)


def _leave_after(end: Callable[[], object]) -> None:
    end()
    os._exit(ExitCode.INTERRUPTED)


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


def _alone(task: Task, shared: _Shared) -> Outcome:
    with _pool(1, shared) as pool:
        try:
            return _wait(pool.submit(_work, task), lambda: None)
        except BrokenProcessPool:
            error = JitterError(
                f"{task.source.path}: the process that read it died, and again when tried alone",
                "was it out of memory? see the system's log",
            )
            return Outcome(task.source, "", task.staging, error=error)
