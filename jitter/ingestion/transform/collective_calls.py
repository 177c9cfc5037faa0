"""Communication of a capture: which names are declared, and which launches lie inside a communication library's calls.

A kernel launched inside an NCCL, RCCL, NVSHMEM, MSCCL++ or UCC call (NVTX or roctx range of the library) is
communication whatever its name. Ranges of frameworks around such calls (`nccl:all_reduce`) count likewise, but for
kernels of the framework itself: they also enclose copies.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from jitter.core.names.kernels import collective_operation, is_collective, parse_operation, short_name
from jitter.core.numeric.arrays import Bools, Ints

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


class Communication:
    """Decides which kernels of one recording are communication, and their operations."""

    def __init__(self, declared: re.Pattern[str] | None, calls: Sequence[CollectiveCall]) -> None:
        """`declared` is the pattern of the user's option; `calls` are the recording's, in any order."""
        self._declared = declared
        self.calls = _outermost(calls)

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


def find_enclosing_calls(
    calls: Sequence[CollectiveCall], process: Ints, thread: Ints, has_thread: Bools, start_ns: Ints
) -> Ints:
    """Return for each launch the index of the call that encloses it on its thread; -1 if none does.

    `process`, `thread`, `has_thread` and `start_ns` have shape (launches,); `calls` must not overlap on a thread.
    """
    found = np.full(len(start_ns), -1, np.int64)
    by_thread: dict[tuple[int, int | None], list[int]] = defaultdict(list)
    for number, call in enumerate(calls):
        by_thread[call.process, call.thread].append(number)
    for (own_process, own_thread), numbers in by_thread.items():
        is_own = (process == own_process) & (~has_thread if own_thread is None else has_thread & (thread == own_thread))
        starts = np.array([calls[number].start_ns for number in numbers], np.int64)
        ends = np.array([_end(calls[number]) for number in numbers], np.int64)
        at = np.searchsorted(starts, start_ns[is_own], side="right") - 1
        inside = (at >= 0) & (start_ns[is_own] <= ends[at])
        found[is_own] = np.where(inside, np.array(numbers, np.int64)[at], -1)
    return found


def _end(call: CollectiveCall) -> int:
    """Return where a call ends; one without an end holds nothing, for it may hold everything."""
    return call.start_ns if call.end_ns is None else call.end_ns


def _outermost(calls: Iterable[CollectiveCall]) -> list[CollectiveCall]:
    """Return the calls that no other contains, by thread and start.

    An outer call without an operation takes that of the calls inside, if they state one only. A library's call inside
    a framework's range stays, and the range goes: the library's call encloses less.
    """
    kept: list[CollectiveCall] = []
    inner: list[set[str]] = []
    ordered = sorted(calls, key=lambda c: (c.process, c.thread is not None, c.thread or 0, c.start_ns, -_end(c)))
    for call in ordered:
        last = kept[-1] if kept else None
        if last is None or (last.process, last.thread) != (call.process, call.thread) or call.start_ns > _end(last):
            kept.append(call)
            inner.append(set())
        elif call.of_library and not last.of_library:
            kept[-1] = call._replace(operation=call.operation or last.operation)
        elif call.operation is not None:
            inner[-1].add(call.operation)
    return [
        call._replace(operation=next(iter(within))) if call.operation is None and len(within) == 1 else call
        for call, within in zip(kept, inner, strict=True)
    ]
