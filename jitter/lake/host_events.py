"""Reads what a source told of its rank's host; a file that the lake has lost is said, not taken for a quiet host."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core import arrow
from jitter.core.arrays import Ints
from jitter.core.step_key import StepKey
from jitter.lake.layout import host_file
from jitter.lake.parquet import read_host, unreadable_file_error
from jitter.lake.records import SourceRecord


def host_path(root: Path, record: SourceRecord) -> Path | None:
    """Where it lies; None where the source told nothing. Raises `LakeError` where it did and the file is gone."""
    assert record.rank is not None
    path = root / host_file(record.rank, record.digest)
    if path.exists():
        return path
    if record.host_rows:
        raise unreadable_file_error(path, FileNotFoundError(2, "No such file or directory"))
    return None


def read_host_events(root: Path, record: SourceRecord, columns: Sequence[str]) -> pa.Table | None:
    """Read columns (of `schema.HOST`) of one source; None where it told nothing.

    Raises `LakeError` for a file that is lost or damaged.
    """
    path = host_path(root, record)
    return None if path is None else read_host(path, columns)


class SyncCalls(NamedTuple):
    """Synchronising calls that ended, by start; the thread is -1 where it was not recorded."""

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]
    names: tuple[str, ...]


def sync_calls(host: pa.Table | None) -> SyncCalls:
    """The synchronising calls in what a host did (`schema.HOST`); None: it did nothing."""
    nothing = np.empty(0, np.int64)
    if host is None:
        return SyncCalls(nothing, nothing, nothing, ())
    rows = host.filter(pc.and_(pc.equal(host["kind"], "sync"), host["end_ns"].is_valid())).sort_by("start_ns")
    return SyncCalls(
        arrow.to_numpy(rows["start_ns"]),
        arrow.to_numpy(rows["end_ns"]),
        arrow.to_numpy(rows["thread"].fill_null(-1)),
        tuple(rows["name"].to_pylist()),
    )


_ENDLESS: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class DataLoading:
    """A rank's waits for data in one step, on its own clock."""

    start_ns: Ints
    end_ns: Ints


class HostEvents:
    """One rank's, sorted by step: what lies between two steps belongs to the earlier.

    Raises `LakeError` where the lake has lost its file.
    """

    def __init__(self, root: Path, record: SourceRecord) -> None:
        self._rows = read_host_events(root, record, ("kind", "name", "thread", "start_ns", "end_ns"))
        self._borders, keys = step_bounds(record)
        self._number = {key: number for number, key in enumerate(keys)}

    @cached_property
    def calls(self) -> SyncCalls:
        """Its synchronising calls that ended, by start."""
        return sync_calls(self._rows)

    def loading(self, key: StepKey) -> DataLoading:
        """The step's waits for data, and those between the step before and it."""
        rows = self._data_loading
        at = self._number.get(key)
        if rows is None or at is None:
            return DataLoading(np.empty(0, np.int64), np.empty(0, np.int64))
        start = rows["start_ns"].to_numpy()
        end = rows["end_ns"].fill_null(_ENDLESS).to_numpy()
        since = self._borders[at - 1] if at else np.iinfo(np.int64).min
        inside = (start >= since) & (start < self._borders[at + 1])
        return DataLoading(start[inside], end[inside])

    @cached_property
    def _data_loading(self) -> pa.Table | None:
        if self._rows is None:
            return None
        return self._rows.filter(pc.equal(self._rows["kind"], "data_loading")).sort_by("start_ns").combine_chunks()


def step_bounds(record: SourceRecord) -> tuple[Ints, list[tuple[int | None, int]]]:
    """Where the steps begin, ascending, and an end; and which they are: as their keys, which take longer to make."""
    steps = sorted(record.steps, key=lambda step: step.start_ns)
    starts = np.array([step.start_ns for step in steps] + [_ENDLESS], np.int64)
    return starts, [(step.epoch, step.step) for step in steps]
