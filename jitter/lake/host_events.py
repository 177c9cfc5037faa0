"""The events on a rank's host: calls that wait, data loading and long operations, from one recording."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core import arrow
from jitter.core.numeric.arrays import Bools, Ints
from jitter.core.schema import HOST, MIGRATION, OFF_CPU
from jitter.core.step_key import StepKey
from jitter.lake.layout import host_file
from jitter.lake.parquet import read_host, unreadable_file_error
from jitter.lake.records import SourceRecord


def host_path(root: Path, record: SourceRecord) -> Path | None:
    """Return the file of a recording's host events; None if it has none. Raises `LakeError` if the file is missing."""
    assert record.rank is not None
    path = root / host_file(record.rank, record.digest)
    if path.exists():
        return path
    if record.host_rows:
        raise unreadable_file_error(path, FileNotFoundError(2, "No such file or directory"))
    return None


def read_host_events(root: Path, record: SourceRecord, columns: Sequence[str]) -> pa.Table | None:
    """Read columns (of `schema.HOST`) of a recording's host events; return None if it has none.

    Raises `LakeError` if the file is missing or damaged.
    """
    path = host_path(root, record)
    return None if path is None else read_host(path, columns, record.host_checksum)


def _by_start(rows: pa.Table) -> pa.Table:
    """Return rows in the order of their start, without what `Table.sort_by` loads."""
    return rows.take(pc.sort_indices(rows["start_ns"])).combine_chunks()


class SyncCalls(NamedTuple):
    """Calls that wait for the GPU or for other hosts and ended, in order of start.

    Arrays have shape (calls); the thread is -1 if unknown.
    """

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    is_barrier: Bools
    """Whether it waits for other hosts."""
    names: tuple[str, ...]


_ENDLESS: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class HostTimes:
    """Times of one kind on a rank's host in one step, ns on its own clock; arrays have shape (times,)."""

    start_ns: Ints
    end_ns: Ints
    names: pa.ChunkedArray

    @property
    def total_ns(self) -> float:
        """How long they take together."""
        return float((self.end_ns - self.start_ns).sum())


OPERATIONS: Final = pa.schema(
    [
        pa.field("name", pa.string()),  # `OFF_CPU` of every suspension of a thread
        pa.field("start_ns", pa.int64()),
        pa.field("end_ns", pa.int64()),
        pa.field("took_ns", pa.int64()),  # without what the host waits for its GPU, or in barriers for other hosts
        pa.field("thread", pa.int64()),
    ]
)
"""Operations on a rank's host, on its own clock."""


class HostEvents:
    """The host events of one recording, by step. Raises `LakeError` if the file is missing or damaged."""

    def __init__(self, root: Path, record: SourceRecord, last_come_ns: Ints | None = None) -> None:
        """Read them; `last_come_ns` (barriers,) is when the last host came to each barrier: by default at its end."""
        rows = read_host_events(root, record, ("kind", "name", "thread", "start_ns", "end_ns"))
        self._rows = HOST.empty_table() if rows is None else rows
        self._record, self._last_come_ns = record, last_come_ns
        self._meant: dict[re.Pattern[str] | str, pa.Table] = {}

    @cached_property
    def calls(self) -> SyncCalls:
        """The calls that wait and ended, in order of start."""
        # of a few rows, as most recordings have, Arrow's own filter and sort take ten times as long
        host = self._rows
        is_barrier = pc.equal(host["kind"], "barrier").to_numpy()
        waits = pc.equal(host["kind"], "sync").to_numpy() | is_barrier
        has_ended = arrow.to_numpy(host["end_ns"], 0) >= arrow.to_numpy(host["start_ns"])
        rows = np.flatnonzero(waits & arrow.is_valid(host["end_ns"]) & has_ended)
        start_ns = arrow.to_numpy(host["start_ns"])[rows]
        order = np.argsort(start_ns, kind="stable")
        rows = rows[order]
        end_ns, thread = (arrow.to_numpy(host[name], null)[rows] for name, null in (("end_ns", 0), ("thread", -1)))
        names = tuple(host["name"].take(pa.array(rows)).to_pylist())
        return SyncCalls(start_ns[order], end_ns, thread, is_barrier[rows], names)

    def loading(self, key: StepKey) -> HostTimes:
        """Return the waits for the data of a step: those in it, and those since the end of the step before.

        A wait counts for one step only, and ends there at the latest.
        """
        return self._of_step(self._data_loading, key)

    @cached_property
    def operations(self) -> pa.Table:
        """All that ended and does not wait for the GPU, in order of start: `OPERATIONS`."""
        is_meant = pc.and_(pc.not_equal(self._rows["kind"], "sync"), self._rows["end_ns"].is_valid())
        rows = _by_start(self._rows.filter(is_meant))
        start_ns, end_ns = (rows[name].to_numpy() for name in ("start_ns", "end_ns"))
        until_ns = self.calls.end_ns.copy()
        if self._last_come_ns is not None:
            until_ns[self.calls.is_barrier] = self._last_come_ns
        begin_ns, finish_ns = _apart(self.calls.start_ns, until_ns)
        waited_ns = np.append(0, np.cumsum(finish_ns - begin_ns))

        def waited_until(at_ns: Ints) -> Ints:
            calls = np.searchsorted(begin_ns, at_ns)
            still_ns = np.append(0, finish_ns)[calls] - at_ns
            return waited_ns[calls] - np.where(calls > 0, np.maximum(still_ns, 0), 0)

        waits_ns = waited_until(end_ns) - waited_until(start_ns)
        names = rows["name"].cast(pa.string())
        names = pc.if_else(pc.equal(names, MIGRATION), OFF_CPU, names)
        took_ns = pa.array(end_ns - start_ns - waits_ns)
        return pa.table([names, *rows.select(["start_ns", "end_ns"]), took_ns, rows["thread"]], OPERATIONS)

    def of_events(self, what: re.Pattern[str] | str, key: StepKey, *, is_after: bool = False) -> HostTimes:
        """Return when any event of a kind, or whose name a pattern matches, went on in a step.

        Or since the end of the step before; if `is_after`, instead up to the start of the step after. Times do not
        overlap: an event may be within another one, or stand for several threads.
        """
        if what not in self._meant:
            if isinstance(what, str):
                is_meant = pc.equal(self._rows["kind"], what)
            else:
                names = self._rows["name"].unique()
                matching = [name for name in names.to_pylist() if what.match(name) is not None]
                is_meant = pc.is_in(self._rows["name"], pa.array(matching, names.type))
            rows = _by_start(self._rows.filter(is_meant))
            begin, end = _apart(rows["start_ns"].to_numpy(), rows["end_ns"].fill_null(_ENDLESS).to_numpy())
            apart = pa.table({"name": rows["name"], "start_ns": begin, "end_ns": end})
            self._meant[what] = apart.filter(pa.array(begin < end))
        return self._of_step(self._meant[what], key, is_after=is_after)

    def _of_step(self, rows: pa.Table, key: StepKey, *, is_after: bool = False) -> HostTimes:
        """Return the times of a step; `rows` are in order of start."""
        begins, ends, numbers = self._steps
        at = numbers.get(key)
        if at is None:
            return HostTimes(np.empty(0, np.int64), np.empty(0, np.int64), rows["name"].slice(0, 0))
        since, until = begins[at], ends[at]
        if is_after:
            until = max(until, begins[at + 1]) if at + 1 < len(ends) else until
        else:
            since = min(ends[at - 1], since) if at else np.iinfo(np.int64).min
        first, last = np.searchsorted(rows["start_ns"].to_numpy(), (since, until)).tolist()
        here = rows.slice(first, max(last - first, 0))
        end = np.minimum(here["end_ns"].fill_null(_ENDLESS).to_numpy(), until)
        return HostTimes(here["start_ns"].to_numpy(), end, here["name"])

    @cached_property
    def _steps(self) -> tuple[list[int], list[int], dict[tuple[int | None, int], int]]:
        """The begins of the steps and an upper bound, their ends, and the number of each step."""
        bounds, keys = step_bounds(self._record)
        begins, steps = bounds.tolist(), sorted(self._record.steps, key=lambda step: step.start_ns)
        ends = [begins[at + 1] if step.end_ns is None else step.end_ns for at, step in enumerate(steps)]
        return begins, ends, {key: number for number, key in enumerate(keys)}

    @cached_property
    def _data_loading(self) -> pa.Table:
        return _by_start(self._rows.filter(pc.equal(self._rows["kind"], "data_loading")))


def _apart(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return times, in order of start, without what is within an earlier one: those within one whole are empty."""
    ends = np.maximum.accumulate(end)
    return np.maximum(start, np.append(start[:1], ends[:-1])[: len(start)]), ends


def step_bounds(record: SourceRecord) -> tuple[Ints, list[tuple[int | None, int]]]:
    """Return the starts of a record's steps and an upper bound, shape (steps + 1), and (epoch, step) of each step."""
    steps = sorted(record.steps, key=lambda step: step.start_ns)
    starts = np.array([step.start_ns for step in steps] + [_ENDLESS], np.int64)
    return starts, [(step.epoch, step.step) for step in steps]
