"""The ranges of a recording's threads (annotations, operators, modules, frames), as the launches in them need them.

A trace of 10 GB has tens of millions, most of them short. Long ones stay in memory; short ones are sorted rows, read
for the stretch of time in which launches are looked up.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa

from jitter.core.numeric.arrays import Codes, Ints
from jitter.core.schema import BACKWARD
from jitter.ingestion.transform.launch_join import LONG_OPERATION_NS
from jitter.ingestion.transform.range_texts import is_frame, parse_operator
from jitter.ingestion.transform.sorted_rows import KEY, SortedRows

ANNOTATION: Final = 0
OPERATOR: Final = 1
MODULE: Final = 2
FRAME: Final = 3
"""A frame of the Python stack; stored like a module, and told from it by its text."""
NO_THREAD: Final = -1
OPEN: Final = np.iinfo(np.int64).max
"""End of a range whose end was not recorded."""
_SHORT: Final = pa.schema([("end_ns", pa.int64()), ("text", pa.int64())])
_Place = tuple[int, int]
"""A process and a thread of it; `NO_THREAD`: unknown."""


class ThreadRanges(NamedTuple):
    """Ranges of one thread in order of their start, longer ones first, the innermost of equal ones last."""

    start_ns: Ints
    end_ns: Ints
    key: Ints
    """Text and kind of the range: see `CodeRanges.text`."""


class ThreadLinks(NamedTuple):
    """Links between the passes of operators of one thread."""

    backward_ns: Ints
    """Times within backward operators of this thread, in order."""
    forward_thread: Ints
    forward_ns: Ints
    """For each of `backward_ns` the thread and a time of the forward operator."""
    forward_of: Ints
    """Times within forward operators of this thread to which backward operators belong, in order."""


class CodeRanges:
    """Collects ranges while a recording is read, then gives those of each thread around some time."""

    KINDS: ClassVar[int] = 3

    def __init__(self, scratch: Path) -> None:
        """Start empty; `scratch` is a folder for temporary files."""
        self._texts: dict[str, int] = {}
        self._listed: list[str] = []
        self._short = SortedRows(scratch, _SHORT)
        """Short ranges by the number of their thread and their start."""
        self._long: dict[_Place, list[Ints]] = defaultdict(list)
        self._numbers: dict[_Place, int] = {}
        """The number of each thread that has ranges."""
        self._backward: list[pa.RecordBatch] = []
        self._links: dict[_Place, ThreadLinks] = {}
        self._names = 0

    def add_ranges(self, process: Ints, thread: Ints, text: Codes, texts: Sequence[str], times_ns: Ints) -> None:
        """Add annotations, and operators that texts name.

        `process`, `thread` (−1: unknown) and `text` (position in `texts`) have shape (ranges,), `times_ns` (2, ranges).
        """
        # negative until all names are known: the keys of these texts come after those of names
        keys = np.array([-1 - self._key(range_text) for range_text in texts], np.int64)
        self._add(process, thread, np.stack([*times_ns, keys[text]]))

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
        key = rows["name"].to_numpy().astype(np.int64) * self.KINDS + kind
        self._names = max(self._names, (int(key.max(initial=-1)) // self.KINDS + 1) * self.KINDS)
        thread = rows["thread"].fill_null(NO_THREAD).to_numpy()
        self._add(rows["process"].to_numpy(), thread, np.stack([rows["start_ns"], rows["end_ns"], key]))

    def add_backward(self, rows: pa.RecordBatch) -> None:
        """Add rows of `schema.BACKWARD`."""
        self._backward.append(rows)

    def _add(self, process: Ints, thread: Ints, rows: Ints) -> None:
        """Add `rows` (start, end and key, ranges) of each `process` and `thread` (ranges,)."""
        order = np.lexsort((thread, process))
        process, thread, rows = process[order], thread[order], rows[:, order]
        is_long = (rows[1] - rows[0] >= LONG_OPERATION_NS) | (rows[1] == OPEN)
        number = np.empty(len(order), np.int32)
        edges = np.flatnonzero((np.diff(process) != 0) | (np.diff(thread) != 0)) + 1
        for low, high in pairwise([0, *edges.tolist(), len(order)] if len(order) else ()):
            place = int(process[low]), int(thread[low])
            number[low:high] = self._numbers.setdefault(place, len(self._numbers))
            if (long := is_long[low:high]).any():
                self._long[place].append(rows[:, low:high][:, long])
        start_ns, end_ns, key = rows[:, ~is_long]
        self._short.add(pa.table([end_ns, key], schema=_SHORT), start_ns, number[~is_long])

    def _short_of(self, place: _Place, low_ns: int | None = None, high_ns: int | None = None) -> Ints:
        """Return the short ranges (start, end and key, ranges) of a thread with `low_ns` <= start < `high_ns`."""
        self._short.finish()
        rows = self._short.rows(low_ns, high_ns, self._numbers[place])
        return np.stack([rows[name].to_numpy() for name in (KEY, *_SHORT.names)])

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
        return any(range_process == process for range_process, _ in self._numbers)

    def around(self, process: int, thread: int, first_ns: int, last_ns: int) -> ThreadRanges | None:
        """Return the ranges of a thread that may hold a time from `first_ns` to `last_ns`; None if it has none."""
        place = process, thread
        if place not in self._numbers:
            return None
        parts = [self._short_of(place, first_ns - LONG_OPERATION_NS + 1, last_ns + 1)]
        if (long := self._long_of(place)) is not None:
            parts.append(long[:, (long[0] <= last_ns) & (long[1] >= first_ns)])
        return self._in_order(np.concatenate(parts, axis=1))

    def operations(self, process: int, thread: int, text: str, names: Sequence[str]) -> ThreadRanges | None:
        """Return the long ranges of a thread, and all of this text; None if it has none.

        `names` are the recording's.
        """
        place = process, thread
        parts = [] if (long := self._long_of(place)) is None else [long]
        keys = [-1 - self._texts[text] * self.KINDS - kind for kind in range(self.KINDS) if text in self._texts]
        keys += [names.index(text) * self.KINDS + kind for kind in range(self.KINDS) if text in names]
        if keys and place in self._numbers:
            rows = self._short_of(place)
            parts.append(rows[:, np.isin(rows[2], keys)])
        return self._in_order(np.concatenate(parts, axis=1)) if parts else None

    def _long_of(self, place: _Place) -> Ints | None:
        parts = self._long.get(place, [])
        if len(parts) > 1:
            self._long[place] = parts = [np.concatenate(parts, axis=1)]
        return parts[0] if parts else None

    def _in_order(self, rows: Ints) -> ThreadRanges:
        start_ns, end_ns, key = rows[:, np.lexsort((-rows[1], rows[0]))]
        return ThreadRanges(start_ns, end_ns, np.where(key < 0, self._names - 1 - key, key))

    def links(self, process: int, thread: int) -> ThreadLinks:
        """Return the links of a thread."""
        place = process, thread
        if place not in self._links:
            rows = pa.Table.from_batches(self._backward, BACKWARD)
            backward_thread, at_ns, of_process, forward_ns, forward = (
                rows[name].to_numpy() for name in ("thread", "at_ns", "process", "forward_ns", "forward_thread")
            )
            mine = np.flatnonzero((of_process == process) & (backward_thread == thread))
            mine = mine[np.argsort(at_ns[mine], kind="stable")]
            sources = np.sort(forward_ns[(of_process == process) & (forward == thread)])
            self._links[place] = ThreadLinks(at_ns[mine], forward[mine], forward_ns[mine], sources)
        return self._links[place]
