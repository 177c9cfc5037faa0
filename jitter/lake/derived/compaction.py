"""Keep a lake's compacted steps: one parquet file per step instead of one per rank.

A step lies in a few compacted files. Ranks that come later go into a file of their own, which takes in all files not
larger than itself: a step then has at most as many files as its number of ranks has binary digits, and a rank's rows
are written at most that many times. Files are written aside and renamed into place, by any number of processes at a
time. Deleting a compacted file costs time, never information.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from jitter.core.errors import LakeError, reason_of
from jitter.core.parallel.processes import WorkerPool, cpu_count
from jitter.core.step_key import StepKey
from jitter.lake import derived
from jitter.lake.derived.compact_step import StepCompactor

_MAX_WORKERS: Final = 16
"""Each worker needs about 160 MB."""


def compact_steps(
    root: Path, steps: Collection[StepKey] | None = None, progress: Callable[[int, int], None] | None = None
) -> int:
    """Bring compacted steps (default: all) up to date; return the number of steps that had to be written.

    Many files are read by several processes. `progress` is called with (steps done, steps in all). A lake that cannot
    be written to is left as it is, and a step whose records change meanwhile is left for the next time. Raises
    `LakeError` if a rank's file cannot be read, or the disk is full.
    """
    if not os.access(root, os.W_OK):
        return 0
    compactor = StepCompactor(root)
    chosen = sorted(compactor.held if steps is None else compactor.held.keys() & set(steps), key=lambda key: key.order)
    report = progress or (lambda done, total: None)
    written = 0
    try:
        report(0, len(chosen))
        for done, was_written in enumerate(_refresh_all(root, compactor, chosen), 1):
            report(done, len(chosen))
            written += was_written
    except OSError as error:
        raise LakeError(f"{root}: cannot be compacted ({reason_of(error)})", "look at the disk's free space") from None
    return written


def compact_large_steps(
    root: Path, files: Mapping[StepKey, int], progress: Callable[[int, int], None] | None = None
) -> None:
    """Compact steps if they have at least `derived.MANY_FILES` files together; `files` counts those of each step.

    Does nothing if that is not possible: the ranks' own files hold the same rows.
    """
    if sum(files.values()) >= derived.MANY_FILES:
        with suppress(LakeError):
            compact_steps(root, files.keys(), progress)


def _refresh_all(root: Path, compactor: StepCompactor, steps: Sequence[StepKey]) -> Iterator[bool]:
    """Bring these steps up to date, in order, and yield for each whether anything had to be written."""
    workers = min(cpu_count(), _MAX_WORKERS, len(steps))
    if workers < 2 or sum(len(compactor.held[key]) for key in steps) < derived.MANY_FILES:
        yield from map(compactor.refresh, steps)
        return
    with WorkerPool(workers, [StepCompactor.__module__], _begin, (root,)) as pool:
        yield from pool.map(_refresh, steps, on_death=compactor.refresh)


_compactor: StepCompactor | None = None


def _begin(root: Path) -> None:
    global _compactor  # noqa: PLW0603  # a pool's initializer has no other way to pass a value to the worker's calls
    _compactor = StepCompactor(root)


def _refresh(key: StepKey) -> bool:
    assert _compactor is not None
    return _compactor.refresh(key)
