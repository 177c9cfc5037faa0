"""The host ranges of a recording that say where in the code a launch is: annotations, operators, modules, frames."""

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa

from jitter.core.numeric.arrays import Bools, Codes, Ints
from jitter.ingestion.transform.scope_names import is_frame, parse_operator

ANNOTATION: Final = 0
OPERATOR: Final = 1
MODULE: Final = 2
FRAME: Final = 3
"""A frame of the Python stack; stored like a module, and told from it by its text."""
NO_THREAD: Final = -1


class ThreadRanges(NamedTuple):
    """The ranges of one thread in order of their start, longer ones first; and its links between the passes."""

    start_ns: Ints
    end_ns: Ints
    key: Ints
    """Text and kind of the range: see `CodeRanges.text`."""
    has_launch: Bools
    """Whether a launch is known to lie in the range; False at first."""
    backward_ns: Ints
    """Times within backward operators of this thread, in order."""
    forward_thread: Ints
    forward_ns: Ints
    """For each of `backward_ns` the thread and a time of the forward operator."""
    forward_of: Ints
    """Times within forward operators of this thread to which backward operators belong, in order."""


class CodeRanges:
    """Collects ranges while a recording is read, then gives those of each thread."""

    KINDS: ClassVar[int] = 3

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._listed: list[str] = []
        self._parts: list[tuple[Ints, ...]] = []
        self._links: list[pa.RecordBatch] = []
        self._by_thread: dict[tuple[int, int], ThreadRanges] | None = None
        self._names = 0

    def add_ranges(self, process: Ints, thread: Ints, text: Codes, texts: Sequence[str], times_ns: Ints) -> None:
        """Add annotations, and operators that texts name.

        `process`, `thread` (−1: unknown) and `text` (position in `texts`) have shape (ranges,), `times_ns` (2, ranges).
        """
        # negative until all names are known: the keys of these texts come after those of names
        keys = np.array([-1 - self._key(one) for one in texts], np.int64)
        self._parts.append((process, thread, keys[text], times_ns[0], times_ns[1]))

    def _key(self, text: str) -> int:
        operator = parse_operator(text)
        shown = text if operator is None else operator
        number = self._texts.get(shown)
        if number is None:
            number = self._texts[shown] = len(self._listed)
            self._listed.append(shown)
        return number * self.KINDS + (ANNOTATION if operator is None else OPERATOR)

    def add_operators(self, rows: pa.RecordBatch) -> None:
        """Add rows of `schema.OPERATORS`."""
        kind = np.where(rows["is_module"].to_numpy(zero_copy_only=False), MODULE, OPERATOR)
        name = rows["name"].to_numpy().astype(np.int64)
        key = name * self.KINDS + kind
        self._names = max(self._names, (int(name.max(initial=-1)) + 1) * self.KINDS)
        thread = rows["thread"].fill_null(NO_THREAD).to_numpy()
        process = rows["process"].to_numpy().astype(np.int32)
        self._parts.append((process, thread, key, rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()))

    def add_backward(self, rows: pa.RecordBatch) -> None:
        """Add rows of `schema.BACKWARD`."""
        self._links.append(rows)

    @property
    def keys(self) -> int:
        """The number of keys: they are 0 to `keys` − 1."""
        return self._names + len(self._listed) * self.KINDS

    def text(self, key: int, names: Sequence[str]) -> tuple[str, int]:
        """Return the text and the kind of a key; `names` are the recording's."""
        listed = names if key < self._names else self._listed
        number, kind = divmod(key if key < self._names else key - self._names, self.KINDS)
        return listed[number], FRAME if kind == MODULE and is_frame(listed[number]) else kind

    def has(self, process: int) -> bool:
        """Return whether the process has ranges."""
        return any(own == process for own, _ in self._threads())

    def threads(self, process: int) -> list[tuple[int, ThreadRanges]]:
        """Return the threads of a process that have ranges, with these."""
        return [(thread, ranges) for (own, thread), ranges in self._threads().items() if own == process]

    def of_thread(self, process: int, thread: int) -> ThreadRanges | None:
        """Return the ranges of a thread (−1: unknown); None if it has none."""
        return self._threads().get((process, thread))

    def _threads(self) -> dict[tuple[int, int], ThreadRanges]:
        if self._by_thread is None:
            self._by_thread = self._divide()
        return self._by_thread

    def _divide(self) -> dict[tuple[int, int], ThreadRanges]:
        if not sum(len(part[0]) for part in self._parts):
            return {}
        process, thread, key, start_ns, end_ns = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        self._parts = []
        key = np.where(key < 0, self._names - 1 - key, key)
        # the innermost of equal ranges is the one that is added last
        order = np.lexsort((-end_ns, start_ns, thread, process))
        process, thread = process[order], thread[order]
        edges = np.flatnonzero((np.diff(process) != 0) | (np.diff(thread) != 0)) + 1
        links = pa.Table.from_batches(self._links) if self._links else None
        found = {}
        bounds = [0, *edges.tolist(), len(order)]
        for low, high in pairwise(bounds):
            rows = order[low:high]
            place = int(process[low]), int(thread[low])
            none = np.zeros(len(rows), np.bool_)
            found[place] = ThreadRanges(start_ns[rows], end_ns[rows], key[rows], none, *_links_of(links, *place))
        return found


def _links_of(links: pa.Table | None, process: int, thread: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the last four fields of `ThreadRanges`."""
    if links is None:
        none = np.array([], np.int64)
        return none, none, none, none
    own, at_ns, of_thread, forward_ns, forward = (
        links[name].to_numpy() for name in ("thread", "at_ns", "process", "forward_ns", "forward_thread")
    )
    mine = np.flatnonzero((of_thread == process) & (own == thread))
    mine = mine[np.argsort(at_ns[mine], kind="stable")]
    sources = forward_ns[(of_thread == process) & (forward == thread)]
    return at_ns[mine], forward[mine], forward_ns[mine], np.sort(sources)
