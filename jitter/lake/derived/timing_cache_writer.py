"""Writes the timing cache of one recording: see `jitter.lake.derived.timing_cache`."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from jitter.core import arrow
from jitter.core.files import errors_name
from jitter.core.names.kernels import KINDS
from jitter.core.numeric.arrays import Ints, IntTimes, KindCodes, is_unknown, unknown_value
from jitter.lake.derived.timing_cache import (
    CHECKSUM_KEY,
    HEADER_KEY,
    TIMES,
    Header,
    StepSpan,
    checksum_of,
    made_from_recording,
)
from jitter.lake.host_events import select_sync_calls
from jitter.lake.records import SourceRecord, StepRecord

COLUMNS: Final = (*TIMES, "kind", "launch_thread", "group_name", "group_ranks")
"""The columns of `schema.KERNELS` that the cache is made from."""
MAX_ROWS: Final = 4_000_000
"""A recording with more rows gets no cache: its rows are held in memory until they are written, and its files are large
enough to be read fast."""

_ROWS_PER_BATCH: Final = 1 << 19


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
        with errors_name(path):
            path.write_bytes(content.getvalue())
        return True

    def _header(self, record: SourceRecord, host: pa.Table | None) -> bytes:
        calls = select_sync_calls(host)
        names = {name: number for number, name in enumerate(dict.fromkeys(calls.names))}
        return msgspec.json.encode(
            Header(
                made_from=made_from_recording(record),
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


def _schema(dtype: np.dtype[np.signedinteger], header: bytes, batches: Sequence[Sequence[pa.Array]]) -> pa.Schema:
    return pa.schema(
        [
            pa.field("times", pa.list_(pa.from_numpy_dtype(dtype))),
            pa.field("kind", pa.list_(pa.int8()), metadata={"values": ",".join(KINDS)}),
        ],
        metadata={HEADER_KEY: header, CHECKSUM_KEY: checksum_of(header, batches)},
    )


def _nullable(values: IntTimes) -> pa.Array:
    """Return an array that is null where times are unknown; the values there are `unknown_value` all the same."""
    known = ~is_unknown(values)
    valid = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, pa.py_buffer(values)])


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
