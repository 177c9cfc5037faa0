"""What a rank's host did beside launching: calls that waited for the GPU, ranges that waited for data."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.extract import Calls, calls_of
from jitter.host_table import read_host
from jitter.records import SourceRecord
from jitter.sheets import Ints
from jitter.steps import StepKey

_ENDLESS: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Loading:
    """A rank's waits for data in one step, on its own clock."""

    start_ns: Ints
    end_ns: Ints


class HostRows:
    """One rank's, sorted by step: what lies between two steps belongs to the earlier.

    Raises `LakeError` where the lake has lost its file.
    """

    def __init__(self, root: Path, record: SourceRecord) -> None:
        self._rows = read_host(root, record, ("kind", "name", "thread", "start_ns", "end_ns"))
        self._borders, keys = borders(record)
        self._number = {key: number for number, key in enumerate(keys)}

    @cached_property
    def calls(self) -> Calls:
        """Its synchronising calls that ended, by start."""
        return calls_of(self._rows)

    def loading(self, key: StepKey) -> Loading:
        """The step's waits for data, and those between the step before and it."""
        rows = self._data_loading
        at = self._number.get(key)
        if rows is None or at is None:
            return Loading(np.empty(0, np.int64), np.empty(0, np.int64))
        start = rows["start_ns"].to_numpy()
        end = rows["end_ns"].fill_null(_ENDLESS).to_numpy()
        since = self._borders[at - 1] if at else np.iinfo(np.int64).min
        inside = (start >= since) & (start < self._borders[at + 1])
        return Loading(start[inside], end[inside])

    @cached_property
    def _data_loading(self) -> pa.Table | None:
        if self._rows is None:
            return None
        return self._rows.filter(pc.equal(self._rows["kind"], "data_loading")).sort_by("start_ns").combine_chunks()


def borders(record: SourceRecord) -> tuple[Ints, list[tuple[int | None, int]]]:
    """Where the steps begin, ascending, and an end; and which they are: as their keys, which take longer to make."""
    steps = sorted(record.steps, key=lambda step: step.start_ns)
    starts = np.array([step.start_ns for step in steps] + [_ENDLESS], np.int64)
    return starts, [(step.epoch, step.step) for step in steps]
