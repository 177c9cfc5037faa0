"""What a rank's host did beside launching: calls that waited for the GPU, ranges that waited for data."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.host_table import read_host
from jitter.records import SourceRecord
from jitter.sheets import Ints, Syncs
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
        self._kinds: dict[str, pa.Table] = {}
        steps = sorted(record.steps, key=lambda step: step.start_ns)
        self._borders = np.array([step.start_ns for step in steps] + [_ENDLESS], np.int64)
        self._number = {step.key: number for number, step in enumerate(steps)}

    def syncs(self, threads: Ints) -> dict[StepKey, Syncs]:
        """Each step's synchronising calls by these threads; one without an end is left out."""
        rows = self._of_kind("sync")
        if rows is None or not rows.num_rows:
            return {}
        rows = rows.filter(rows["end_ns"].is_valid())
        by_them = np.isin(rows["thread"].fill_null(-1).to_numpy(), threads)
        start, end = rows["start_ns"].to_numpy()[by_them], rows["end_ns"].to_numpy()[by_them]
        thread = rows["thread"].fill_null(-1).to_numpy()[by_them]
        names = rows["name"].filter(pa.array(by_them)).to_pylist()
        cuts = np.searchsorted(start, self._borders).tolist()
        return {
            key: Syncs(start[first:last], end[first:last], thread[first:last], tuple(names[first:last]))
            for key, (first, last) in zip(self._number, pairwise(cuts), strict=True)
        }

    def loading(self, key: StepKey) -> Loading:
        """The step's waits for data, and those between the step before and it."""
        rows = self._of_kind("data_loading")
        at = self._number.get(key)
        if rows is None or at is None:
            return Loading(np.empty(0, np.int64), np.empty(0, np.int64))
        start = rows["start_ns"].to_numpy()
        end = rows["end_ns"].fill_null(_ENDLESS).to_numpy()
        since = self._borders[at - 1] if at else np.iinfo(np.int64).min
        inside = (start >= since) & (start < self._borders[at + 1])
        return Loading(start[inside], end[inside])

    def _of_kind(self, kind: str) -> pa.Table | None:
        if self._rows is not None and kind not in self._kinds:
            own = self._rows.filter(pc.equal(self._rows["kind"], kind))
            self._kinds[kind] = own.sort_by("start_ns").combine_chunks()
        return self._kinds.get(kind)
