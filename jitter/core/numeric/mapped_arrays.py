"""Arrays that lie in a temporary file, so that memory holds the parts of them alone that are in use."""

import os
from collections.abc import Iterator, Mapping
from mmap import ACCESS_WRITE, mmap
from tempfile import TemporaryFile
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

Nested = TypeVar("Nested", bound=tuple[Any, ...])
_VALUES_AT_ONCE: Final = 8192
"""Values that are written to a file at once: the system later reads as many into memory where one is read."""


def map_to_file(arrays: Nested) -> tuple[Nested, mmap]:
    """Return nested tuples of arrays with their values in a temporary file, and the pages of it that memory holds.

    Raises OSError if the disk is full.
    """
    begins: dict[int, int] = {}
    with TemporaryFile(buffering=0) as file:
        for array in _flatten(arrays):
            if id(array) not in begins:
                begins[id(array)] = file.seek(-(-file.seek(0, os.SEEK_END) // 64) * 64)  # aligned as in memory
                for at in range(0, array.size, _VALUES_AT_ONCE):
                    array.reshape(-1)[at : at + _VALUES_AT_ONCE].tofile(file)
        pages = mmap(file.fileno(), 0, access=ACCESS_WRITE)
    return _mapped(arrays, begins, pages), pages


def _flatten(value: Any) -> Iterator[npt.NDArray[Any]]:
    if isinstance(value, tuple):
        for part in value:
            yield from _flatten(part)
    elif isinstance(value, np.ndarray) and value.size:
        yield value


def _mapped(value: Any, begins: Mapping[int, int], pages: mmap) -> Any:
    if isinstance(value, tuple):
        return getattr(type(value), "_make", tuple)(_mapped(part, begins, pages) for part in value)
    if id(value) not in begins:
        return value
    return np.frombuffer(pages, value.dtype, value.size, begins[id(value)]).reshape(value.shape)
