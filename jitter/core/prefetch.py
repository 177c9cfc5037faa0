"""The next one meanwhile: an iterator that works on another thread while its last item is being used."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

Item = TypeVar("Item")
_END: Final = object()


def prefetch(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items, each made while the one before is in use: one more than otherwise is in memory.

    Worth its while where both sides spend their time in libraries that let go of the interpreter (numpy, pyarrow).
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        coming = pool.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = pool.submit(next, items, _END)
            yield item  # type: ignore[misc]  # never _END


_MOST_BYTES: Final = 1 << 20
"""Of each: whoever reads a larger one in order is served ahead by the system itself."""


def announce_reads(paths: Iterable[Path]) -> None:
    """Have the system begin to read these files, or their first part, if it can; one that is not there is no matter."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, _MOST_BYTES, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(file)
