"""Communication of a capture: which names are declared, and which launches lie inside a communication library's calls.

A kernel launched inside an NCCL, RCCL, NVSHMEM, MSCCL++ or UCC call (NVTX or roctx range of the library) is
communication whatever its name. Ranges of frameworks around such calls (`nccl:all_reduce`) count likewise, but for
kernels of the framework itself: they also enclose copies.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from jitter.core.names.kernels import collective_operation, is_collective, parse_operation, short_name
from jitter.readers.columns import LaunchesWithin

_LIBRARY = re.compile(r"p?(?:nccl|rccl)[A-Z]\w*|nvshmemx?_\w+|roc_?shmem\w*_\w+|mscclpp\w*|ucc_(?:collective|coll)_\w+")
_NOT_TRANSFERS = re.compile(
    r"\w+?(?:Init|Destroy|Abort|Finalize|Split|Register|MemAlloc|MemFree|Create|init|finalize|malloc|free)"
)
_FRAMEWORK = re.compile(r"(?:nccl|ucc|mscclpp):\w+")
_FRAMEWORK_KERNEL = re.compile(r"at::native|\btriton_|\bcub::|\bthrust::")


class CollectiveCall(NamedTuple):
    """A host range in which a library communicates. Times in ns; `end_ns` is None if the recording ended first."""

    process: int
    thread: int | None
    start_ns: int
    end_ns: int | None
    operation: str | None
    of_library: bool
    """False for a framework's range, which encloses other kernels as well."""


class CommunicationFinder:
    """Decides which kernels of one recording are communication, and their operations."""

    def __init__(self, declared: re.Pattern[str] | None, calls: Sequence[CollectiveCall]) -> None:
        """`declared` is the pattern of the user's option; `calls` are the recording's, in any order."""
        self._declared = declared
        self.calls = _outermost(calls)
        self.of_library = np.array([call.of_library for call in self.calls], np.bool_)
        """For each of `calls` whether it is a library's, shape (calls,)."""
        self.operation_of_call = pa.array([call.operation for call in self.calls], pa.string())
        self.launches = LaunchesWithin()
        """Finds the outermost call of communication around launches, by its position in `calls`."""
        for number, call in enumerate(self.calls):
            self.launches.add_call((call.process, call.thread), call.start_ns, _end(call), number)

    def of_names(self, names: Iterable[str]) -> list[bool]:
        """Return for each name whether it is a communication kernel's, by the table of names or as declared."""
        return [is_collective(name) or self._is_declared(name) for name in names]

    def operations(self, names: Iterable[str]) -> list[str | None]:
        """Return for each name the operation that it states."""
        return [
            collective_operation(name) or (parse_operation(short_name(name)) if self._is_declared(name) else None)
            for name in names
        ]

    def may_be_in_framework_call(self, names: Iterable[str]) -> list[bool]:
        """Return for each name whether a framework's range makes it communication: not kernels of the framework."""
        return [_FRAMEWORK_KERNEL.search(name) is None for name in names]

    def _is_declared(self, name: str) -> bool:
        return self._declared is not None and self._declared.search(name) is not None


@lru_cache(maxsize=65536)
def parse_collective_call(text: str) -> tuple[str | None, bool] | None:
    """Return (operation, is a library's) for the text of a range of communication; None for other ranges."""
    if _LIBRARY.match(text):
        return None if _NOT_TRANSFERS.match(text) else (parse_operation(text), True)
    framework = _FRAMEWORK.match(text)
    return None if framework is None else (parse_operation(framework[0].partition(":")[2]), False)


def _end(call: CollectiveCall) -> int:
    """Return where a call ends; one without an end holds nothing, for it may hold everything."""
    return call.start_ns if call.end_ns is None else call.end_ns


def _outermost(calls: Iterable[CollectiveCall]) -> list[CollectiveCall]:
    """Return the calls that no other contains, by thread and start.

    An outer call without an operation takes that of the calls inside, if they state one only. A library's call inside
    a framework's range stays, and the range goes: the library's call encloses less.
    """
    kept: list[CollectiveCall] = []
    inner: set[str] = set()  # the operations of the calls in the last one kept
    ordered = sorted(calls, key=lambda c: (c.process, c.thread is not None, c.thread or 0, c.start_ns, -_end(c)))
    for call in ordered:
        last = kept[-1] if kept else None
        if last is None or (last.process, last.thread) != (call.process, call.thread) or call.start_ns >= _end(last):
            _take_operation(kept, inner)
            kept.append(call)
            inner = set()
        elif call.of_library and not last.of_library:
            kept[-1] = call._replace(operation=call.operation or last.operation)
        elif call.operation is not None:
            inner.add(call.operation)
    _take_operation(kept, inner)
    return kept


def _take_operation(kept: list[CollectiveCall], inner: set[str]) -> None:
    """Give the last call the operation of the calls inside, if it has none and they have one."""
    if kept and kept[-1].operation is None and len(inner) == 1:
        kept[-1] = kept[-1]._replace(operation=next(iter(inner)))
