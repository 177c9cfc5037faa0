"""Prefetch: compute items and import modules on a thread, and announce files to the system, before they are used."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Final, TypeVar

Item = TypeVar("Item")
LARGE_STEP: Final = 3_000_000
"""Rows of a step from which on no step is read while another one is in memory."""
_END: Final = object()


def prefetch(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items, each computed on a thread while the previous one is used; two are in memory at a time.

    This is faster if both sides spend their time in libraries that release the interpreter lock (numpy, pyarrow).
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        coming = pool.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = pool.submit(next, items, _END)
            yield item  # type: ignore[misc]  # never _END


def import_ahead(module: str) -> None:
    """Begin to import a module on a thread: this one meanwhile waits for files, or runs code without the lock."""
    Thread(target=import_module, args=(module,), name="import", daemon=True).start()


_MOST_BYTES: Final = 1 << 20
"""Per file: the system itself reads ahead in a larger file that is read in order."""


def announce_reads(paths: Iterable[Path]) -> None:
    """Ask the system to read the first megabyte of these files. Missing files and links are ignored."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                os.posix_fadvise(file, 0, _MOST_BYTES, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(file)
