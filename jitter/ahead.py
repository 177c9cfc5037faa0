"""The next one meanwhile: an iterator that works on another thread while its last item is being used."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

Item = TypeVar("Item")
_END: Final = object()


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items, each made while the one before is in use: one more than otherwise is in memory.

    Worth its while where both sides spend their time in libraries that let go of the interpreter (numpy, pyarrow).
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        coming = pool.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = pool.submit(next, items, _END)
            yield item  # type: ignore[misc]  # never _END
