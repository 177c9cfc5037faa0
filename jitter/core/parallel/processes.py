"""Worker processes: one pool, whose workers are forked from a server process; and settings of the current process.

The server loads the workers' modules once. Workers are not forked from the calling process, because they would inherit
the locks that its threads hold (DuckDB, pyarrow).
"""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.synchronize import Semaphore
from types import ModuleType, TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from jitter.core.errors import ExitCode, JitterError
from jitter.core.interrupts import DeferInterrupts
from jitter.core.memory import reduce_gc

WorkerDied = BrokenProcessPool
Item = TypeVar("Item")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class WorkerPool:
    """A pool of worker processes. A worker ends at once when the process that made the pool ends."""

    def __init__(
        self, workers: int, preload: Sequence[str], initializer: Callable[..., None] | None = None, *initargs: object
    ) -> None:
        """Make a pool of at most `workers` processes, which start when work is submitted.

        The server process imports the modules named in `preload`. Each worker calls `initializer(*initargs)` once.
        Workers are killed when the `with` block is left by an exception; otherwise their current calls are completed.
        """
        context = server_context(*preload)
        self._workers = workers
        # one unit a worker; not an Event, whose set() waits for ever for a worker that died while it waited
        self._stop = context.Semaphore(0)
        start = (self._stop, initializer, initargs)
        self._executor = ProcessPoolExecutor(workers, context, _start_worker, start)

    def submit(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Schedule `function(*args)` in a worker. The future raises `WorkerDied` if a worker dies."""
        with DeferInterrupts(), _without_main_module():  # a submission may start a worker
            return self._executor.submit(function, *args, **kwargs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for _ in range(0 if kind is None else self._workers):
            self._stop.release()
        self._executor.shutdown(cancel_futures=kind is not None)


def stream_from_process(
    work: Callable[Arguments, Iterable[Item]], preload: Sequence[str], deadline_s: float | None
) -> Callable[Arguments, Iterator[Item]]:
    """Return a function that yields the items of `work(*args)`, which runs in a process of its own.

    The process is killed when `time.monotonic()` passes `deadline_s`, and when the iteration is left early. The server
    process imports the modules named in `preload`. The iteration raises `TimeoutError` after the deadline, `WorkerDied`
    if the process dies, and the `JitterError` that `work` raises.
    """

    def stream(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[Item]:
        context = server_context(*preload)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send_items, args=(sender, work, args, kwargs))  # type: ignore[attr-defined]
        with DeferInterrupts(), _without_main_module():
            process.start()
        try:
            sender.close()
            while True:
                if not receiver.poll(None if deadline_s is None else max(0.0, deadline_s - time.monotonic())):
                    raise TimeoutError
                try:
                    kind, value = receiver.recv()
                except EOFError:
                    raise WorkerDied from None
                if kind == _ERROR:
                    raise value
                if kind == _END:
                    return
                yield value
        finally:
            process.kill()
            process.join()
            receiver.close()

    return stream


def server_context(*preload: str) -> BaseContext:
    """Start the server process, unless it runs, and return the context that forks workers from it.

    Returns at once; the server imports the modules named in `preload` meanwhile. It ends with this process.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    try:
        with DeferInterrupts(), _without_main_module(), _interrupts_blocked():
            forkserver.ensure_running()
    except OSError:  # the path of the temporary folder may be too long for the server's socket
        return multiprocessing.get_context("spawn")
    return context


def exit_after(event: Callable[[], object]) -> None:
    """End this process as soon as `event()` returns, which is called on a thread."""

    def wait() -> None:
        event()
        os._exit(ExitCode.INTERRUPTED)

    threading.Thread(target=wait, daemon=True).start()


_ITEM, _END, _ERROR = range(3)


def _send_items(sender: Connection, work: Callable[..., Iterable[Any]], args: Any, kwargs: Any) -> None:
    """Send the items of `work`, then its end or error, from the process of `stream_from_process`."""
    _exit_with_parent()
    try:
        for item in work(*args, **kwargs):
            sender.send((_ITEM, item))
        sender.send((_END, None))
    except JitterError as error:  # raised again by the process that receives it
        sender.send((_ERROR, error))
    except Exception:
        sender.send((_ERROR, RuntimeError(traceback.format_exc())))


def _start_worker(stop: Semaphore, initializer: Callable[..., None] | None, initargs: tuple[Any, ...]) -> None:
    from jitter.core.arrow import hide_pandas

    _exit_with_parent()
    exit_after(stop.acquire)
    reduce_gc()
    hide_pandas()
    if initializer is not None:
        initializer(*initargs)


def _exit_with_parent() -> None:
    """End this worker as soon as the process that made its pool ends; ignore Ctrl-C, which that process handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    exit_after(parent.join)
    # the thread outlives the interpreter's teardown, during which DuckDB reports its objects as leaked
    atexit.register(os._exit, 0)


_main_module_lock = threading.Lock()


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Hide the user's script from processes that start here: a script without a main guard would start workers."""
    with _main_module_lock:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes with SIGINT blocked: the calling process handles Ctrl-C and ends them."""
    resource_tracker.ensure_running()  # starts its own process, and unblocks SIGINT afterwards
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
