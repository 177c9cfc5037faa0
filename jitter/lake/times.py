"""The times and kinds of a recording's activities in one file, beside the parquet files that hold them too.

An analysis reads nothing else of most activities, and from parquet files that takes ten times as long. A step's part of
the file: `TIMES` of all activities, shape (4, rows), int32 or int64, in ns from the step's start; then the positions of
their kinds in `KINDS`, shape (rows), int8. The step's record states where it lies and its checksum.
"""

from pathlib import Path
from typing import Any, Final, NamedTuple

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
    found = np.empty((len(TIMES), rows.num_rows), np.int64)
    unknown = {}
    for number, name in enumerate(TIMES):
        np.subtract(arrow.to_numpy(rows[name]), start_ns, out=found[number])
        if rows[name].null_count:
            unknown[number] = ~arrow.is_valid(rows[name])
            found[number, unknown[number]] = 0
    times: IntTimes = found
    if found.size and max(-int(found.min()), int(found.max())) < np.iinfo(np.int32).max:
        times = found.astype(np.int32)
    for number, nowhere in unknown.items():
        times[number, nowhere] = unknown_value(times.dtype)
    kinds = rows["kind"].combine_chunks()
    codes = np.array([KINDS.index(name) for name in kinds.dictionary.to_pylist()], np.int8)
    return ActivityTimes(times, codes[arrow.to_numpy(kinds.indices)])


def append_times(path: Path, rows: pa.Table, start_ns: int) -> TimesRecord:
    """Append one step's part to a file, which is made if it is missing."""
    found = activity_times(rows, start_ns)
    content = found.times.tobytes() + found.kinds.tobytes()
    with errors_name(path), path.open("ab") as file:
        offset = file.tell()
        file.write(content)
    return TimesRecord(offset, 4 if found.times.itemsize == 4 else 8, checksum(content))


def read_times(root: Path, held: RankStepRecord) -> ActivityTimes | None:
    """Read one rank's step; None if the file lacks it, was removed, or is damaged."""
    part, rows = held.step.times, held.step.rows
    if part is None:
        return None
    size = len(TIMES) * rows * part.width
    try:
        with open_lake_file(root / times_file(held.record.digest)) as file:
            file.seek(part.offset)
            content = file.read(size + rows)
    except OSError:
        return None
    if len(content) != size + rows or checksum(content) != part.checksum:
        return None
    times: Any = np.frombuffer(content, f"i{part.width}", len(TIMES) * rows).reshape(len(TIMES), rows)
    kinds: KindCodes = np.frombuffer(content, np.int8, rows, size)
    # a record may come from anyone, too
    is_sound = kinds.view(np.uint8).max(initial=0) < len(KINDS) and not is_unknown(times[:2]).any()
    is_sound = is_sound and np.count_nonzero(kinds == MEMORY) == held.step.memory_activities
    return ActivityTimes(times, kinds) if is_sound else None
