"""The timing cache of one recording: the times that a diagnosis reads, in one Arrow IPC file.

A diagnosis goes through all steps but reads four times and the kind of each activity. Their file has one row per
step, of two lists: `times`, all activities' starts, then their ends, launches and returns of launches; and `kind`. So
one step's times lie in one piece. Times count from the step's start, as int32 where all fit. The schema's metadata hold
a JSON document under `jitter.timing_cache`: what the file was made from, where each step's activities lie, and the
synchronising calls. Measured on 960 ranks x 10 steps x 904 activities: see `jitter.lake.derived`.
"""

import os
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from jitter.core import arrow
from jitter.core.names.kernels import KINDS
from jitter.core.numeric.arrays import Ints, IntTimes, KindCodes, is_unknown, unknown_value
from jitter.lake.derived.freshness import file_state, made_from, reading_of
from jitter.lake.host_events import SyncCalls, select_sync_calls
from jitter.lake.layout import TIMING_CACHE_VERSION, timing_cache_file
from jitter.lake.records import SourceRecord, StepRecord

TIMES: Final = ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns")
COLUMNS: Final = (*TIMES, "kind", "launch_thread", "group_name", "group_ranks")
"""The columns of `schema.KERNELS` that the cache is made from."""
MAX_ROWS: Final = 4_000_000
"""A recording with more rows gets no cache: its rows are held in memory until they are written, and its files are large
enough to be read fast."""

_ROWS_PER_BATCH: Final = 1 << 19
_MOST_BUFFERS: Final = 1024
"""Buffers that Linux and macOS fill in one read (`IOV_MAX`)."""
_HEADER_KEY: Final = b"jitter.timing_cache"
_CHECKSUM_KEY: Final = b"jitter.checksum"


class StepSpan(msgspec.Struct, frozen=True):
    """Position of one step's rows in a timing cache."""

    start_ns: int
    """Start of the step in its record; the times count from here."""
    rows: int
    sequence: str
    threads: list[int]
    """Threads that launched at least one activity of the step."""
    kinds: str
    """Digest of the activities' kinds."""
    batch: int
    first_row: int
    """Its first activity, of those of its batch."""


class _Header(msgspec.Struct):
    made_from: str
    has_groups: bool
    steps: list[StepSpan]
    call_start_ns: list[int]
    call_end_ns: list[int]
    call_thread: list[int]
    call_name: list[int]
    """Positions in `call_names`."""
    call_names: list[str]


_decode = msgspec.json.Decoder(_Header).decode


class TimingCacheWriter:
    """Collects the steps of one recording and writes its timing cache."""

    def __init__(self) -> None:
        self._waiting: list[tuple[StepRecord, pa.Table]] = []
        self._waiting_rows = 0
        self._spans: list[StepSpan] = []
        self._batches: list[_Batch] = []
        self._rows = 0
        self._has_groups = False

    def add(self, step: StepRecord, rows: pa.Table) -> None:
        """Add one step's rows, in launch order, with at least the columns `COLUMNS`; `kind` is dictionary-encoded."""
        self._rows += rows.num_rows
        if self._rows > MAX_ROWS:
            self._waiting.clear()
            self._batches.clear()
            return
        self._waiting.append((step, rows.select(COLUMNS)))
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= _ROWS_PER_BATCH:
            self._add_batch()

    def _add_batch(self) -> None:
        """Convert the waiting steps all at once."""
        steps, tables = zip(*self._waiting, strict=True)
        self._waiting, self._waiting_rows = [], 0
        rows = pa.concat_tables(tables).unify_dictionaries()
        bounds = list(accumulate((table.num_rows for table in tables), initial=0))
        threads = rows["launch_thread"].combine_chunks().dictionary_encode()
        thread_ids = arrow.to_numpy(threads.dictionary)
        thread_codes = arrow.to_numpy(threads.indices, null=len(thread_ids))
        self._has_groups |= any(rows[name].null_count < rows.num_rows for name in ("group_name", "group_ranks"))
        kinds = _kind_codes(rows["kind"])
        for step, (first, last) in zip(steps, pairwise(bounds), strict=True):
            launched = np.bincount(thread_codes[first:last], minlength=len(thread_ids) + 1)[:-1].nonzero()[0]
            self._spans.append(
                StepSpan(
                    start_ns=step.start_ns,
                    rows=last - first,
                    sequence=step.sequence,
                    threads=sorted(thread_ids[launched].tolist()),
                    kinds=xxhash.xxh3_128_hexdigest(kinds[first:last].tobytes()),
                    batch=len(self._batches),
                    first_row=first,
                )
            )
        times = _times_since(rows, np.repeat([step.start_ns for step in steps], np.diff(bounds)))
        of_steps = np.concatenate([times[:, first:last].ravel() for first, last in pairwise(bounds)])
        self._batches.append(_Batch(bounds, of_steps, kinds))

    def write(self, path: Path, record: SourceRecord, host: pa.Table | None) -> bool:
        """Write the added steps, of this record, and the host's synchronising calls; return whether there is a file.

        `host` has the columns of `schema.HOST`; None means that the recording tells nothing of its host.
        """
        if self._waiting:
            self._add_batch()
        if not self._batches:
            return False
        dtype = np.dtype(max((batch.times.dtype for batch in self._batches), key=lambda dtype: dtype.itemsize))
        batches = [batch.columns(dtype) for batch in self._batches]
        schema = _schema(dtype, self._header(record, host), batches)
        content = pa.BufferOutputStream()
        with pa.ipc.new_file(content, schema) as writer:
            for columns in batches:
                writer.write_batch(pa.record_batch(columns, schema=schema))
        # one write: the system then keeps the file in large pages, and mapping it takes a third of the time
        path.write_bytes(content.getvalue())
        return True

    def _header(self, record: SourceRecord, host: pa.Table | None) -> bytes:
        calls = select_sync_calls(host)
        names = {name: number for number, name in enumerate(dict.fromkeys(calls.names))}
        return msgspec.json.encode(
            _Header(
                made_from=_made_from(record),
                has_groups=self._has_groups,
                steps=self._spans,
                call_start_ns=calls.start_ns.tolist(),
                call_end_ns=calls.end_ns.tolist(),
                call_thread=calls.thread.tolist(),
                call_name=[names[name] for name in calls.names],
                call_names=list(names),
            )
        )


class _Batch(NamedTuple):
    """Some steps."""

    bounds: list[int]
    """(steps + 1,) where the activities of each begin."""
    times: IntTimes
    """(4 × activities,)."""
    kinds: KindCodes
    """(activities,)."""

    def columns(self, dtype: np.dtype[np.signedinteger]) -> list[pa.Array]:
        """Return the two columns, one list a step."""
        of_times = pa.array([len(TIMES) * bound for bound in self.bounds], pa.int32())
        return [
            pa.ListArray.from_arrays(of_times, _nullable(_widen(self.times, dtype))),
            pa.ListArray.from_arrays(pa.array(self.bounds, pa.int32()), pa.array(self.kinds)),
        ]


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
        content = pa.py_buffer(path.read_bytes())
        reader = pa.ipc.open_file(content)
        metadata = reader.schema.metadata or {}
        encoded = metadata.get(_HEADER_KEY, b"")
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate()
        if metadata.get(_CHECKSUM_KEY) != _checksum(encoded, [batch.columns for batch in batches]):
            raise ValueError(f"{path}: is damaged")
        header = _decode(encoded)
        if header.made_from != _made_from(record):
            raise StaleCacheError(f"{path}: was made from another reading")
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
        all_times: list[IntTimes] = [_values(batch["times"]) for batch in batches]
        all_kinds: list[KindCodes] = [_values(batch["kind"]) for batch in batches]
        self._times_at, self._kinds_at = (
            [values.ctypes.data - content.address for values in found] for found in (all_times, all_kinds)
        )
        """By batch, bytes from the file's begin."""
        self.dtype = all_times[0].dtype
        """Of the times: int32 or int64."""
        rows = sum(span.rows for span in header.steps)
        if (sum(map(len, all_times)), sum(map(len, all_kinds))) != (len(TIMES) * rows, rows):
            raise ValueError(f"{path}: is cut off")
        if any(kinds.view(np.uint8).max(initial=0) >= len(KINDS) for kinds in all_kinds):
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


def _made_from(record: SourceRecord) -> str:
    return made_from(TIMING_CACHE_VERSION, reading_of(record))


def _checksum(header: bytes, batches: Iterable[Sequence[pa.Array]]) -> bytes:
    """Return the checksum of a header and of the columns' values, unknown ones included."""
    digest = xxhash.xxh3_64(header)
    for columns in batches:
        for column in columns:
            digest.update(f"{len(column)} {column.type}".encode())
            digest.update(column.buffers()[1])
            digest.update(_values(column).data)
    return digest.hexdigest().encode()


def _schema(dtype: np.dtype[np.signedinteger], header: bytes, batches: Sequence[Sequence[pa.Array]]) -> pa.Schema:
    return pa.schema(
        [
            pa.field("times", pa.list_(pa.from_numpy_dtype(dtype))),
            pa.field("kind", pa.list_(pa.int8()), metadata={"values": ",".join(KINDS)}),
        ],
        metadata={_HEADER_KEY: header, _CHECKSUM_KEY: _checksum(header, batches)},
    )


def _nullable(values: IntTimes) -> pa.Array:
    """Return an array that is null where times are unknown, and still holds `unknown_value` there for `_values`."""
    known = ~is_unknown(values)
    valid = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, pa.py_buffer(values)])


def _values(column: pa.Array) -> npt.NDArray[Any]:
    """Return the integers of a column of lists without a copy, nulls included."""
    values = column.values
    return np.frombuffer(values.buffers()[1], f"i{values.type.bit_width // 8}", len(values))


def _times_since(rows: pa.Table, start_ns: Ints) -> IntTimes:
    """Return `TIMES`, shape (4, rows), in ns since `start_ns`, shape (rows): as int32 if all of them fit."""
    found = np.empty((len(TIMES), rows.num_rows), np.int64)
    absent = {}
    for number, name in enumerate(TIMES):
        column = rows[name]
        np.subtract(arrow.to_numpy(column), start_ns, out=found[number])
        if column.null_count:
            absent[number] = ~arrow.is_valid(column)
            found[number, absent[number]] = 0
    times: IntTimes = found
    if found.size and max(-int(found.min()), int(found.max())) < np.iinfo(np.int32).max:
        times = found.astype(np.int32)
    for number, nowhere in absent.items():
        times[number, nowhere] = unknown_value(times.dtype)
    return times


def _widen(times: IntTimes, dtype: np.dtype[np.signedinteger]) -> IntTimes:
    """Return times as `dtype`, which is not narrower than their type."""
    if times.dtype == dtype:
        return times
    wide = times.astype(np.int64)
    wide[is_unknown(times)] = unknown_value(np.int64)
    return wide


def _kind_codes(column: pa.ChunkedArray) -> KindCodes:
    """Return positions in `KINDS`, shape (rows)."""
    kinds = column.combine_chunks()
    numbers = np.array([KINDS.index(name) for name in kinds.dictionary.to_pylist()], np.int8)
    codes: KindCodes = numbers[arrow.to_numpy(kinds.indices)]
    return codes
