"""The times and kinds of a recording's activities in one file, beside the parquet files that hold them too.

An analysis reads nothing else of most activities, and from parquet files that takes ten times as long. A step's part of
the file: `TIMES` of all activities, shape (4, rows), int32 or int64, in ns from the step's start; then the positions of
their kinds in `KINDS`, shape (rows), int8. The step's record states where it lies and its checksum.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from io import FileIO
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any, Final, NamedTuple
from weakref import finalize

import numpy as np
import pyarrow as pa

from jitter.core import arrow
from jitter.core.files import errors_name
from jitter.core.names.kernels import KINDS, MEMORY
from jitter.core.numeric.arrays import Ints, IntTimes, KindCodes, is_unknown, unknown_value
from jitter.lake.integrity.checksums import checksum
from jitter.lake.integrity.containment import open_lake_file
from jitter.lake.layout import times_file
from jitter.lake.records import RankStepRecord, TimesRecord

TIMES: Final = ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns")


class ActivityTimes(NamedTuple):
    """`TIMES` of some activities in ns from their step's start, shape (4, rows), and their kinds, shape (rows)."""

    times: IntTimes
    kinds: KindCodes


def activity_times(rows: pa.Table, start_ns: int | Ints) -> ActivityTimes:
    """Return the times and kinds in rows of `schema.KERNELS`; `start_ns` is that of the step, or of each row's."""
    times_ns = np.empty((len(TIMES), rows.num_rows), np.int64)
    unknown = {}
    for number, name in enumerate(TIMES):
        np.subtract(arrow.to_numpy(rows[name]), start_ns, out=times_ns[number])
        if rows[name].null_count:
            unknown[number] = ~arrow.is_valid(rows[name])
            times_ns[number, unknown[number]] = 0
    times: IntTimes = times_ns
    if times_ns.size and max(-int(times_ns.min()), int(times_ns.max())) < np.iinfo(np.int32).max:
        times = times_ns.astype(np.int32)
    for number, nowhere in unknown.items():
        times[number, nowhere] = unknown_value(times.dtype)
    kinds = rows["kind"].combine_chunks()
    codes = np.array([KINDS.index(name) for name in kinds.dictionary.to_pylist()], np.int8)
    return ActivityTimes(times, codes[arrow.to_numpy(kinds.indices)])


def append_times(path: Path, rows: pa.Table, start_ns: int) -> TimesRecord:
    """Append one step's part to a file, which is made if it is missing."""
    activity = activity_times(rows, start_ns)
    content = activity.times.tobytes(), activity.kinds.tobytes()
    with errors_name(path), path.open("ab") as file:
        offset = file.tell()
        file.writelines(content)
    return TimesRecord(offset, 4 if activity.times.itemsize == 4 else 8, checksum(*content))


class _TimesFile(NamedTuple):
    path: Path
    size: int
    """When it was first asked for, in bytes; 0 of none."""
    file: FileIO | None
    """None if it is opened at each reading: enough others stay open."""


class TimesReader:
    """Reads the files of times of a lake, of which it keeps some open. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root, self._kept_open = root, ExitStack()
        finalize(self, self._kept_open.close)
        self._most_open = getrlimit(RLIMIT_NOFILE)[0] // 4
        self._files: dict[str, _TimesFile] = {}
        """By digest of the recording."""

    def read(self, held: Sequence[RankStepRecord]) -> list[ActivityTimes | None]:
        """Read one step of some ranks; None for each whose file lacks it, was removed, or is damaged.

        Ranks of as many activities are read into one array, of which their times are views.
        """
        times_of: list[ActivityTimes | None] = [None] * len(held)
        alike: dict[tuple[int, int], list[int]] = {}
        for at, rank_step in enumerate(held):
            part = rank_step.step.times
            if part is not None and self._may_hold(rank_step, part):
                alike.setdefault((part.width, rank_step.step.rows), []).append(at)
        for (width, rows), places in alike.items():
            times: Any = np.empty((len(places), len(TIMES), rows), f"i{width}")
            kinds = np.empty((len(places), rows), np.int8)
            read = [self._fill(held[at], *parts) for at, *parts in zip(places, times, kinds, strict=True)]
            # a record may come from anyone, too
            is_sound = np.array(read) & (kinds.view(np.uint8).max(axis=1, initial=0) < len(KINDS))
            is_sound &= ~is_unknown(times[:, :2]).any(axis=(1, 2))
            is_sound &= np.count_nonzero(kinds == MEMORY, axis=1) == [held[at].step.memory_activities for at in places]
            for row in np.flatnonzero(is_sound).tolist():
                times_of[places[row]] = ActivityTimes(times[row], kinds[row])
        return times_of

    def _may_hold(self, held: RankStepRecord, part: TimesRecord) -> bool:
        """Return whether a rank's file is as long as its record says: no array is made for a number in a record."""
        digest = held.record.digest
        if digest not in self._files:
            self._files[digest] = self._open(self._root / times_file(digest))
        return part.offset + held.step.rows * (len(TIMES) * part.width + 1) <= self._files[digest].size

    def _open(self, path: Path) -> _TimesFile:
        try:
            file = open_lake_file(path)
        except OSError:
            return _TimesFile(path, 0, None)
        size = os.fstat(file.fileno()).st_size
        if len(self._files) < self._most_open:
            return _TimesFile(path, size, self._kept_open.enter_context(file))
        file.close()
        return _TimesFile(path, size, None)

    def _fill(self, held: RankStepRecord, times: IntTimes, kinds: KindCodes) -> bool:
        """Fill in the times and kinds of one rank's step; return whether its file has them undamaged."""
        part, (path, _, file) = held.step.times, self._files[held.record.digest]
        assert part is not None
        try:
            with open_lake_file(path) if file is None else nullcontext(file) as opened:
                read_bytes = os.preadv(opened.fileno(), (times.data, kinds.data), part.offset)
        except OSError:
            return False
        return read_bytes == times.nbytes + kinds.nbytes and checksum(times.data, kinds.data) == part.checksum
