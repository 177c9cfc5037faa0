"""What a diagnosis reads of one recording, in one file: derived from the lake's own files, and disposable.

A lake is many small files; whoever goes through all of a run needs only four times of each row. Here they lie step
after step, as whole numbers behind a header that says which step lies where, to be mapped instead of read.
A file holds for a record as long as it was made from the same reading of the same source, and for a step as long as
the record still tells the same of it. Anything else is not an error: the ranks' own files hold the same, and more.
"""

import hashlib
import struct
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jitter.core import arrow
from jitter.core.arrays import unknown_value
from jitter.core.kernels import KINDS
from jitter.lake.host_events import SyncCalls, sync_calls
from jitter.lake.layout import TIMING_CACHE_VERSION
from jitter.lake.records import SourceRecord, StepRecord

TIMES: Final = ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns")
COLUMNS: Final = (*TIMES, "kind", "launch_thread", "group_name", "group_ranks")
"""What it is made from (of `schema.KERNELS`)."""
TEXTS: Final = ("kind", "group_name")
"""Of these the texts."""
MAX_ROWS: Final = 4_000_000
"""The rows of one recording are in memory until they are written. Who has more has large files, which need no help."""

_ROWS_AT_ONCE: Final = 1 << 19
_MAGIC: Final = f"jitter extract {TIMING_CACHE_VERSION}\n".encode()
_BEFORE: Final = struct.Struct("<Q8s")
"""The header's length, and its digest."""
_HEADER: Final = len(_MAGIC) + _BEFORE.size

Times = npt.NDArray[Any]


class StepSpan(msgspec.Struct, array_like=True, frozen=True):
    """One step in an extract."""

    start_ns: int
    """Of its record; the times count from here."""
    rows: int
    sequence: str
    place: int
    """How many times lie before its own."""
    kinds: int
    """Position among the extract's."""
    threads: list[int]
    """Those that launched anything in it."""


class _Header(msgspec.Struct, array_like=True):
    made_from: tuple[str, int, str | None, str | None]
    size: int
    """Bytes of a time."""
    kinds: list[bytes]
    """Sequences of positions in `KINDS`, one byte a row."""
    grouped: bool
    """Whether any row names a collective's group."""
    call_start_ns: list[int]
    call_end_ns: list[int]
    call_thread: list[int]
    call_name: list[int]
    call_names: list[str]
    steps: list[StepSpan]


_decode = msgspec.msgpack.Decoder(_Header).decode


class TimingCacheWriter:
    """Collects a recording's steps, and writes them if they are not too many."""

    def __init__(self) -> None:
        self._waiting: list[tuple[StepRecord, pa.Table]] = []
        self._waiting_rows = 0
        self._pieces: list[StepSpan] = []
        self._times: list[Times] = []
        self._kinds: dict[bytes, int] = {}
        self._rows = 0
        self._grouped = False

    def add(self, step: StepRecord, rows: pa.Table) -> None:
        """Add a step's rows, in their order; of `schema.KERNELS` only `COLUMNS` are looked at."""
        self._rows += rows.num_rows
        if self._rows > MAX_ROWS:
            self._waiting.clear()
            self._times.clear()
            return
        self._waiting.append((step, rows.select(COLUMNS)))
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= _ROWS_AT_ONCE:
            self._take()

    def _take(self) -> None:
        """Take in the steps that wait, all at once."""
        steps, tables = zip(*self._waiting, strict=True)
        self._waiting, self._waiting_rows = [], 0
        rows = pa.concat_tables(tables).unify_dictionaries()
        bounds = np.cumsum([0, *(table.num_rows for table in tables)]).tolist()
        times = _since(rows, np.repeat([step.start_ns for step in steps], np.diff(bounds)))
        step_by_step = np.empty(times.size, times.dtype)
        kinds = _kinds(rows["kind"])
        threads = rows["launch_thread"].combine_chunks().dictionary_encode()
        names = arrow.to_numpy(pa.chunked_array([threads.dictionary]))
        which = arrow.to_numpy(pa.chunked_array([threads.indices]))
        which = np.where(arrow.is_valid(pa.chunked_array([threads.indices])), which, len(names))
        self._grouped |= any(rows[name].null_count < rows.num_rows for name in ("group_name", "group_ranks"))
        begin = sum(one.size for one in self._times)
        for step, first, last in zip(steps, bounds, bounds[1:], strict=False):
            step_by_step[len(TIMES) * first : len(TIMES) * last].reshape(len(TIMES), -1)[:] = times[:, first:last]
            launched = np.bincount(which[first:last], minlength=len(names) + 1)[:-1].nonzero()[0]
            self._pieces.append(
                StepSpan(
                    start_ns=step.start_ns,
                    rows=last - first,
                    sequence=step.sequence,
                    place=begin + len(TIMES) * first,
                    kinds=self._kinds.setdefault(kinds[first:last], len(self._kinds)),
                    threads=sorted(names[launched].tolist()),
                )
            )
        self._times.append(step_by_step)

    def write(self, path: Path, record: SourceRecord, host: pa.Table | None) -> bool:
        """Write what was added, of this record, and its host's calls (`schema.HOST`); tell whether there is a file."""
        if self._waiting:
            self._take()
        if not self._times:
            return False
        kind = np.dtype(max((times.dtype for times in self._times), key=lambda kind: kind.itemsize))
        calls = sync_calls(host)
        names = {name: number for number, name in enumerate(dict.fromkeys(calls.names))}
        header = msgspec.msgpack.encode(
            _Header(
                made_from=_made_from(record),
                size=kind.itemsize,
                kinds=list(self._kinds),
                grouped=self._grouped,
                call_start_ns=calls.start_ns.tolist(),
                call_end_ns=calls.end_ns.tolist(),
                call_thread=calls.thread.tolist(),
                call_name=[names[name] for name in calls.names],
                call_names=list(names),
                steps=self._pieces,
            )
        )
        begin = _MAGIC + _BEFORE.pack(len(header), _digest(header)) + header
        begin = begin.ljust(_aligned(len(begin)))
        with path.open("wb") as file:
            file.write(begin)
            file.flush()
            for times in self._times:
                # in one go: the system then keeps it in large pages, and to map it takes a third of the time
                file.write((times if times.dtype == kind else _widened(times)).data)
        return True


class TimingCache:
    """An extract, mapped. Raises `OSError` or `ValueError` if it is none, or not of this record."""

    def __init__(self, path: Path, record: SourceRecord) -> None:
        with pa.memory_map(str(path)) as file:
            content = file.read_buffer()
        if not content[: len(_MAGIC)].equals(pa.py_buffer(_MAGIC)):
            raise ValueError(f"{path}: no extract")
        if len(content) < _HEADER:
            raise ValueError(f"{path}: is cut off")
        length, digest = _BEFORE.unpack_from(content, len(_MAGIC))
        told = content[_HEADER : _HEADER + length]
        if _digest(told) != digest:
            raise ValueError(f"{path}: is damaged")
        header = _decode(told)
        if header.made_from != _made_from(record):
            raise ValueError(f"{path}: of another reading")
        self.kind = np.dtype(f"i{header.size}")
        """Of the times."""
        self.grouped = header.grouped
        """Whether any row names a collective's group."""
        self.calls = SyncCalls(
            np.array(header.call_start_ns, np.int64),
            np.array(header.call_end_ns, np.int64),
            np.array(header.call_thread, np.int64),
            tuple(header.call_names[name] for name in header.call_name),
        )
        self._kinds = header.kinds
        self._times = np.frombuffer(content, self.kind, offset=_aligned(_HEADER + length))
        if len(self._times) != len(TIMES) * sum(piece.rows for piece in header.steps):
            raise ValueError(f"{path}: is cut off")
        self._pieces = {piece.start_ns: piece for piece in header.steps}

    def piece(self, step: StepRecord) -> StepSpan | None:
        """Where a step of its record lies; None if it is not here as the record tells it."""
        found = self._pieces.get(step.start_ns)
        return found if found is not None and (found.rows, found.sequence) == (step.rows, step.sequence) else None

    def kinds(self, piece: StepSpan) -> bytes:
        """(rows,) positions in `KINDS`, one byte each."""
        return self._kinds[piece.kinds]

    def times(self, piece: StepSpan) -> Times:
        """(4 × rows,) of `kind`: `TIMES` one after another, ns from the step's start; see `whole_times`."""
        return self._times[piece.place : piece.place + len(TIMES) * piece.rows]


def _digest(header: bytes | pa.Buffer) -> bytes:
    return hashlib.blake2b(header, digest_size=8).digest()


def _aligned(place: int) -> int:
    return -(-place // 8) * 8


def _made_from(record: SourceRecord) -> tuple[str, int, str | None, str | None]:
    return record.digest, record.reader_version, record.step_pattern, record.collective_pattern


def _since(rows: pa.Table, start_ns: npt.NDArray[np.int64]) -> Times:
    """(4, rows): as int32 where all of them fit."""
    found = np.empty((len(TIMES), rows.num_rows), np.int64)
    absent = {}
    for own, name in zip(found, TIMES, strict=True):
        column = rows[name]
        np.subtract(arrow.to_numpy(column), start_ns, out=own)
        if column.null_count:
            absent[name] = ~arrow.is_valid(column)
            own[absent[name]] = 0
    times: Times = found
    if found.size and max(-int(found.min()), int(found.max())) < np.iinfo(np.int32).max:
        times = found.astype(np.int32)
    for name, nowhere in absent.items():
        times[TIMES.index(name), nowhere] = unknown_value(times.dtype)
    return times


def _widened(times: Times) -> Times:
    wide = times.astype(np.int64)
    wide[times == unknown_value(times.dtype)] = unknown_value(np.int64)
    return wide


def _kinds(column: pa.ChunkedArray) -> bytes:
    """One byte a row: positions in `KINDS`."""
    whole = column.combine_chunks()
    words = np.array([KINDS.index(word) for word in whole.dictionary.to_pylist()], np.int8)
    codes: npt.NDArray[np.int8] = words[arrow.to_numpy(pa.chunked_array([whole.indices]))]
    return codes.tobytes()
