"""Compute results on threads, and announce files to the system, before they are used."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
MOST_ROWS: Final = 6_000_000
"""Rows of the steps that are in memory at once, some 100 bytes each: of larger ones none is read ahead."""
ROWS_PER_PIECE: Final = 1 << 20
"""Rows of a large step that are read at once, where some ranks after others will do."""


def map_ahead(function: Callable[[Item], Result], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """Yield the results of a function for the items, in their order; `ahead` of them are computed on threads meanwhile.

    The items are taken in the caller's thread, one more than results are computed. With `ahead` 1 the function runs for
    one item after another. With 0 all is done in the caller's thread. Threads are faster if both sides spend their time
    in libraries and loops that release the interpreter lock.
    """
    if ahead < 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(ahead, thread_name_prefix="ahead") as pool:
        coming: deque[Future[Result]] = deque()
        try:
            for item in items:
                coming.append(pool.submit(function, item))
                del item  # else it stays in memory while the next one is made
                if len(coming) > ahead:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


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
