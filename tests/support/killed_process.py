"""Actions in forked processes, which run to their end or die before a chosen change of a folder."""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

KILLED = 9
"""Exit code of a process that died before its change."""
_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir")
_NO_MORE_COUNTED = 255


def run_killed(action: Callable[[], object], folder: Path, death: int) -> int:
    """Run an action that dies before its change of the folder of this number; return `KILLED`, 0 or 1 (an error)."""
    changes = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal changes
        if event in _CHANGES and str(folder) in str(arguments[0]):
            if changes == death:
                os._exit(KILLED)
            changes += 1

    def watched() -> None:
        sys.addaudithook(watch)
        action()

    return wait_for(fork(watched))


def count_changes(action: Callable[[], object], folder: Path) -> int:
    """Run an action in a forked process and return the number of its changes of the folder."""
    changes = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal changes
        changes += event in _CHANGES and str(folder) in str(arguments[0])

    def watched() -> None:
        sys.addaudithook(watch)
        action()
        os._exit(min(changes, _NO_MORE_COUNTED))

    return wait_for(fork(watched))


def fork(action: Callable[[], object]) -> int:
    """Start an action in a forked process and return its id; the process ends with 1 if the action raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; the child is short-lived
        child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    return child


def wait_for(child: int) -> int:
    """Wait for the end of a forked process and return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
