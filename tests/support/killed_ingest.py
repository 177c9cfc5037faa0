"""An ingest that dies at a chosen change of the lake."""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import jitter


def ingest_killed_at(death: int, traces: Path, lake: Path, **options: Any) -> int:
    """Fork, and die at the change of this number; the lake then holds only what its records account for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; the child is short-lived
        child = os.fork()
    if child == 0:
        changes = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal changes
            if event in ("os.rename", "os.remove", "os.rmdir") and str(lake) in str(arguments[0]):
                if changes == death:
                    os._exit(9)
                changes += 1

        sys.addaudithook(watch)
        jitter.ingest([traces], lake, executor=jitter.LocalExecutor(), **options)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
