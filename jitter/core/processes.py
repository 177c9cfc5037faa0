"""The process that workers are forked from: it loads once, and early, what each of them would load for itself.

Workers are not forked from the process that asks for them: they would inherit its threads' locks (DuckDB's, pyarrow's).
"""

import atexit
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from types import ModuleType

from jitter.core.errors import ExitCode


def server_context(*modules: str) -> BaseContext:
    """Start the server, if it does not run yet, and return the way to make processes with it.

    It comes back at once: the server loads these modules meanwhile. It ends with this process.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(list(modules))
    try:
        with without_main_module(), _deaf():
            forkserver.ensure_running()
    except OSError:  # its socket lies in the temporary folder, whose path may be too long for one
        return multiprocessing.get_context("spawn")
    return found


@contextmanager
def without_main_module() -> Iterator[None]:
    """Start processes here that do not load the user's script: it would ask for workers again in each of them."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _deaf() -> Iterator[None]:
    """Start processes here that Ctrl-C does not reach: it comes to us, too, and we end them."""
    resource_tracker.ensure_running()  # which does the same, and lets Ctrl-C in again when it is done
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_with_parent() -> None:
    """Have this process, made with the server, end at once when the one that asked for it does; Ctrl-C is for that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it reaches the whole group: who started us decides
    parent = multiprocessing.parent_process()
    assert parent is not None
    exit_after(parent.join)
    # this thread outlives the interpreter's teardown, where DuckDB's binding would call what it holds leaked
    atexit.register(os._exit, 0)


def exit_after(event: Callable[[], object]) -> None:
    """End this process at once when a wait is over."""

    def wait() -> None:
        event()
        os._exit(ExitCode.INTERRUPTED)

    threading.Thread(target=wait, daemon=True).start()


def cpu_count() -> int:
    """Those this process may use: a scheduler such as Slurm gives a job a part of its node."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_NEW_OBJECTS = 100_000


def reduce_gc() -> None:
    """Look seldom: a large lake's records stay until the end, and to go through them again and again takes a tenth.

    For processes that are ours: a command's, and those that it makes.
    """
    gc.set_threshold(_NEW_OBJECTS, 20, 100)
