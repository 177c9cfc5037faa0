"""Converts many sources at once: over worker processes, with progress by bytes, whatever one of them does."""

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.sharedctypes import Synchronized
from queue import Empty, SimpleQueue

from jitter.core.errors import JitterError
from jitter.core.processes import WorkerDied, WorkerPool, cpu_count, server_context
from jitter.ingestion import worker_modules
from jitter.ingestion.convert import Outcome, Task, convert

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all, from time to time."""

_POLL_S = 0.1
_counter: "Synchronized[int] | None" = None


def convert_in_pool(
    tasks: Sequence[Task], jobs: int | None, progress: Progress | None, meanwhile: Callable[[], None] | None = None
) -> Iterator[Outcome]:
    """Convert the tasks and yield their outcomes in the order of the tasks.

    `meanwhile` is done here, on a thread, while this process waits for the others; where it works itself, not at all.
    A worker that dies (out of memory, say) takes nothing with it: the few tasks that may have killed it are done
    again one at a time, and only one that kills its worker again is given up. The others go on together.
    """
    total = sum(task.source.size for task in tasks)
    report = progress or (lambda done, total: None)
    workers = min(jobs or cpu_count(), len(tasks))
    if workers <= 1:
        yield from _here(tasks, total, report)
        return
    shared = _Shared(meanwhile)
    yield from in_task_order(_in_pools(tasks, workers, shared, lambda: report(min(shared.counter.value, total), total)))
    report(total, total)


def in_task_order(outcomes: Iterable[tuple[int, Outcome]]) -> Iterator[Outcome]:
    """Sort numbered outcomes as they come: whoever is late holds up what is options, not what is done."""
    early: dict[int, Outcome] = {}
    following = 0
    for number, outcome in outcomes:
        early[number] = outcome
        while following in early:
            yield early.pop(following)
            following += 1


def _in_pools(
    tasks: Sequence[Task], workers: int, shared: "_Shared", tick: Callable[[], None]
) -> Iterator[tuple[int, Outcome]]:
    left = dict(enumerate(tasks))
    while left:
        yield from _in_pool(left, workers, shared, tick)
        # a worker has died, if any are left. They begin in their order: those that were being done come first
        for number in list(left)[:workers]:
            yield number, _alone(left.pop(number), shared)


def _in_pool(
    left: dict[int, Task], workers: int, shared: "_Shared", tick: Callable[[], None]
) -> Iterator[tuple[int, Outcome]]:
    """Yield outcomes as they come and take their tasks out of `left`, until none is left or a worker dies."""
    with shared.pool(min(workers, len(left))) as pool, suppress(WorkerDied):
        numbers = {pool.submit(_work, task): number for number, task in left.items()}
        shared.while_waiting()
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
            if not isinstance(future.exception(), WorkerDied):  # else all that are pending come with it
                outcome = future.result()
                del left[numbers[future]]
                yield numbers[future], outcome


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

    def __init__(self, meanwhile: Callable[[], None] | None) -> None:
        self._meanwhile = meanwhile
        self.counter: Synchronized[int] = server_context(*worker_modules()).Value(ctypes.c_int64, 0)

    def pool(self, workers: int) -> WorkerPool:
        """Make a pool whose workers are killed when its block is left by an exception."""
        return WorkerPool(workers, worker_modules(), _begin, (self.counter,), kill_on_error=True)

    def while_waiting(self) -> None:
        """Begin what is to be done while workers work, once."""
        if self._meanwhile is not None:
            threading.Thread(target=self._meanwhile, name="meanwhile").start()
            self._meanwhile = None


def _begin(counter: "Synchronized[int]") -> None:
    global _counter  # noqa: PLW0603  # a pool's initializer has no other way to pass a value to the worker's calls
    _counter = counter


def _work(task: Task) -> Outcome:
    def advance(size: int) -> None:
        if _counter is not None:
            with _counter.get_lock():
                _counter.value += size

    return convert(task, advance)


def _alone(task: Task, shared: _Shared) -> Outcome:
    with shared.pool(1) as pool:
        try:
            return pool.submit(_work, task).result()
        except WorkerDied:
            return worker_died(task, "the process that read it died, and again when tried alone")


def worker_died(task: Task, why: str) -> Outcome:
    """The outcome of a task whose worker never came back."""
    error = JitterError(f"{task.source.path}: {why}", "was it out of memory? see the system's log")
    return Outcome(task.source, "", task.staging, error=error)
