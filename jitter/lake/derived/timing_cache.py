"""The timing cache of one recording: the times that a diagnosis reads, in one Arrow IPC file.

A diagnosis goes through all steps but reads four times and the kind of each activity. Their file has one row per
step, of two lists: `times`, all activities' starts, then their ends, launches and returns of launches; and `kind`. So
one step's times lie in one piece. Times count from the step's start, as int32 where all fit. The schema's metadata hold
a JSON document under `jitter.timing_cache`: what the file was made from, where each step's activities lie, and the
synchronising calls. Measured on 960 ranks x 10 steps x 904 activities: see `jitter.lake.derived`.
"""

import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from jitter.core.names.kernels import KINDS
from jitter.core.numeric.arrays import IntTimes, KindCodes, is_unknown, unknown_value
from jitter.lake.derived.freshness import file_state, made_from, reading_of
from jitter.lake.host_events import SyncCalls
from jitter.lake.integrity.containment import read_lake_file
from jitter.lake.layout import TIMING_CACHE_VERSION, timing_cache_file
from jitter.lake.records import Count, Identifier, Int64, Rows, SourceRecord, StepRecord

TIMES: Final = ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns")
HEADER_KEY: Final = b"jitter.timing_cache"
"""Of the schema's metadata: the header."""
CHECKSUM_KEY: Final = b"jitter.checksum"
"""Of the schema's metadata: `checksum_of` the header and all columns."""

_MOST_BUFFERS: Final = 1024
"""Buffers that Linux and macOS fill in one read (`IOV_MAX`)."""


class StepSpan(msgspec.Struct, frozen=True):
    """Position of one step's rows in a timing cache."""

    start_ns: Int64
    """Start of the step in its record; the times count from here."""
    rows: Rows
    sequence: str
    threads: list[Identifier]
    """Threads that launched at least one activity of the step."""
    kinds: str
    """Digest of the activities' kinds."""
    batch: Count
    first_row: Count
    """Its first activity, of those of its batch."""


class Header(msgspec.Struct):
    """Description of a timing cache's content, in the schema's metadata."""

    made_from: str
    has_groups: bool
    steps: list[StepSpan]
    call_start_ns: list[Int64]
    call_end_ns: list[Int64]
    call_thread: list[Identifier]
    call_name: list[Count]
    """Positions in `call_names`."""
    call_names: list[str]


_decode = msgspec.json.Decoder(Header).decode


class StaleCacheError(ValueError):
    """A timing cache that was made from another reading of the recording."""


class TimingCache:
    """The timing cache of one recording; the file is verified once, and opened again for each read.

    Memory-mapped files would take several times the memory: the system maps 64 KiB around each byte that is read.
    Raises `OSError` or `ValueError` if the file is missing, damaged, or was made from another reading than `record`.
    """

    def __init__(self, path: Path, record: SourceRecord) -> None:
        self._path, self._state = path, file_state(path)
        try:
            self._open(path, record)
        except (LookupError, pa.ArrowException) as error:
            raise ValueError(f"{path}: is damaged") from error

    def _open(self, path: Path, record: SourceRecord) -> None:
        content = pa.py_buffer(read_lake_file(path))
        reader = pa.ipc.open_file(content)
        metadata = reader.schema.metadata or {}
        encoded = metadata.get(HEADER_KEY, b"")
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate()
        if metadata.get(CHECKSUM_KEY) != checksum_of(encoded, [batch.columns for batch in batches]):
            raise ValueError(f"{path}: is damaged")
        header = _decode(encoded)
        if header.made_from != made_from_recording(record):
            raise StaleCacheError(f"{path}: was made from another reading")
        of_calls = header.call_start_ns, header.call_end_ns, header.call_thread, header.call_name
        if len(set(map(len, of_calls))) > 1:
            raise ValueError(f"{path}: is damaged")
        self.has_groups = header.has_groups
        """Whether any row names the process group of a collective."""
        self.sync_calls = SyncCalls(
            np.array(header.call_start_ns, np.int64),
            np.array(header.call_end_ns, np.int64),
            np.array(header.call_thread, np.int64),
            tuple(header.call_names[name] for name in header.call_name),
        )
        if reader.schema.names != ["times", "kind"]:
            raise ValueError(f"{path}: is damaged")
        all_times: list[IntTimes] = [values_of(batch["times"]) for batch in batches]
        all_kinds: list[KindCodes] = [values_of(batch["kind"]) for batch in batches]
        self._times_at, self._kinds_at = (
            [values.ctypes.data - content.address for values in found] for found in (all_times, all_kinds)
        )
        """By batch, bytes from the file's begin."""
        self.dtype = all_times[0].dtype
        """Of the times: int32 or int64."""
        rows = sum(span.rows for span in header.steps)
        if (sum(map(len, all_times)), sum(map(len, all_kinds))) != (len(TIMES) * rows, rows):
            raise ValueError(f"{path}: is cut off")
        if any(span.first_row + span.rows > len(all_kinds[span.batch]) for span in header.steps):
            raise ValueError(f"{path}: its steps do not fit its rows")
        if any(kinds.view(np.uint8).max(initial=0) >= len(KINDS) for kinds in all_kinds):
            raise ValueError(f"{path}: is damaged")
        if any(_lacks_gpu_times(all_times[span.batch], span) for span in _spans_to_check(header.steps, all_times)):
            raise ValueError(f"{path}: is damaged")
        self._spans = {span.start_ns: span for span in header.steps}

    def span(self, step: StepRecord) -> StepSpan | None:
        """Return where a step lies; None if the cache does not hold the step as its record describes it."""
        found = self._spans.get(step.start_ns)
        return found if found is not None and (found.rows, found.sequence) == (step.rows, step.sequence) else None

    def kinds(self, span: StepSpan) -> bytes:
        """Return the positions in `KINDS` of a step's activities, one byte each; raise as `read_times`."""
        found = bytearray(span.rows)
        self._read([self._kinds_at[span.batch] + span.first_row], [found])
        return bytes(found)

    def read_times(self, spans: Sequence[StepSpan], found: Sequence[IntTimes]) -> None:
        """Read `TIMES` of steps, shape (4 × rows) each, in ns from the step's start; see `arrays.unknown_value`.

        Steps that lie one after another are read in one piece. Raises `OSError` if the file is not the one that was
        verified.
        """
        at = [self._times_at[span.batch] + len(TIMES) * span.first_row * self.dtype.itemsize for span in spans]
        self._read(at, [times.data for times in found])

    def _read(self, at: Sequence[int], found: Sequence[memoryview | bytearray]) -> None:
        """Fill each buffer with what lies at its position."""
        sizes = [memoryview(buffer).nbytes for buffer in found]
        borders = [0]
        for number in range(1, len(at)):
            if at[number] != at[number - 1] + sizes[number - 1] or number - borders[-1] == _MOST_BUFFERS:
                borders.append(number)
        file = os.open(self._path, os.O_RDONLY)
        try:
            for first, last in pairwise((*borders, len(at))):
                os.lseek(file, at[first], os.SEEK_SET)
                if os.readv(file, found[first:last]) != sum(sizes[first:last]):
                    raise OSError(f"{self._path}: has changed")
            if file_state(file) != self._state:
                raise OSError(f"{self._path}: has changed")
        finally:
            os.close(file)


def _spans_to_check(spans: Sequence[StepSpan], times: Sequence[IntTimes]) -> list[StepSpan]:
    """Return the steps in batches that hold unknown times, of calls or of activities."""
    holds_unknown = [bool(len(of_batch)) and of_batch.min() == unknown_value(of_batch.dtype) for of_batch in times]
    return [span for span in spans if holds_unknown[span.batch]]


def _lacks_gpu_times(times: IntTimes, span: StepSpan) -> bool:
    """Return whether a start or an end of an activity is unknown, which no recording has; those of calls may be."""
    first = len(TIMES) * span.first_row
    of_gpu = times[first : first + 2 * span.rows]
    return bool(is_unknown(of_gpu).any())


class TimingCaches:
    """The timing caches of a lake, each opened and verified once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._opened: dict[str, TimingCache] = {}

    def open(self, record: SourceRecord) -> TimingCache:
        """Return the cache of one recording; raise the errors of `TimingCache`."""
        if record.digest not in self._opened:
            self._opened[record.digest] = TimingCache(self.root / timing_cache_file(record.digest), record)
        return self._opened[record.digest]


def made_from_recording(record: SourceRecord) -> str:
    """Return the digest of what the timing cache of a recording is made from."""
    return made_from(TIMING_CACHE_VERSION, reading_of(record))


def checksum_of(header: bytes, batches: Iterable[Sequence[pa.Array]]) -> bytes:
    """Return the checksum of a header and of the columns' values, unknown ones included."""
    digest = xxhash.xxh3_64(header)
    for columns in batches:
        for column in columns:
            digest.update(f"{len(column)} {column.type}".encode())
            digest.update(column.buffers()[1])
            digest.update(values_of(column).data)
    return digest.hexdigest().encode()


def values_of(column: pa.Array) -> npt.NDArray[Any]:
    """Return the integers of a column of lists without a copy, nulls included."""
    values = column.values
    return np.frombuffer(values.buffers()[1], f"i{values.type.bit_width // 8}", len(values))
