"""One team's step as recorded, operations × ranks: laid out in arrays, or no further than somebody asks."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from jitter.analysis.execution.rank_groups import Sheet, Time
from jitter.core.arrays import Bools, Floats, Ints


class Recorded(Protocol):
    """Times in ns from each rank's own zero, (operations, ranks); NaN where a rank has not that operation."""

    @property
    def ranks(self) -> Ints:
        """(ranks,) the columns."""

    @property
    def present(self) -> Bools:
        """Who has which."""

    @property
    def start(self) -> Floats:
        """On the GPU; NaN for synchronising calls."""

    @property
    def end(self) -> Floats:
        """On the GPU."""

    @property
    def call(self) -> Floats:
        """When the host began the call; of the kernels of one launch only the first has it. NaN: not recorded."""

    @property
    def back(self) -> Floats:
        """When the call returned."""

    @property
    def has_all(self) -> Bools:
        """(operations,) whether all ranks have it."""

    @property
    def is_called(self) -> Bools:
        """(operations,) whether all ranks' calls are known."""

    def row(self, time: Time, place: int) -> Floats:
        """(ranks,) one of the times of one operation."""

    def latest_end(self, first: int = 0, last: int | None = None) -> Floats:
        """(ranks,) the greatest of the ends from `first` up to but not including `last` (all); NaN: none is known."""

    def columns(self, which: Ints | slice) -> "Recorded":
        """The same for some of the ranks."""

    def strip(self, rows: slice) -> "StepArrays":
        """Some of the operations, which must be next to each other."""


@dataclass(frozen=True)
class StepArrays:
    """What `Recorded` tells, in arrays."""

    ranks: Ints
    present: Bools
    start: Floats
    end: Floats
    call: Floats
    back: Floats

    @property
    def has_all(self) -> Bools:
        """Do as `Recorded` says."""
        found: Bools = np.all(self.present, axis=1)
        return found

    @property
    def is_called(self) -> Bools:
        """Do as `Recorded` says."""
        found: Bools = np.all(~np.isnan(self.call), axis=1)
        return found

    def row(self, time: Time, place: int) -> Floats:
        """Do as `Recorded` says."""
        values: Floats = getattr(self, time)[place]
        return values

    def latest_end(self, first: int = 0, last: int | None = None) -> Floats:
        """Do as `Recorded` says."""
        found: Floats = np.fmax.reduce(self.end[first:last], axis=0, initial=np.nan)
        return found

    def columns(self, which: Ints | slice) -> "StepArrays":
        """Do as `Recorded` says."""
        times = (self.start[:, which], self.end[:, which], self.call[:, which], self.back[:, which])
        return StepArrays(self.ranks[which], self.present[:, which], *times)

    def strip(self, rows: slice) -> "StepArrays":
        """Do as `Recorded` says."""
        times = (self.start[rows], self.end[rows], self.call[rows], self.back[rows])
        return StepArrays(self.ranks, self.present[rows], *times)


class OfSheet:
    """What `Recorded` tells of ranks that all did the whole program: laid out no further than somebody asks."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet
        self._rows: dict[tuple[Time, int], Floats] = {}
        self.ranks = sheet.ranks

    @cached_property
    def present(self) -> Bools:
        """Do as `Recorded` says."""
        return np.ones((len(self._sheet.row), len(self.ranks)), np.bool_)

    @cached_property
    def start(self) -> Floats:
        """Do as `Recorded` says."""
        return self._sheet.laid_out("start")

    @cached_property
    def end(self) -> Floats:
        """Do as `Recorded` says."""
        return self._sheet.laid_out("end")

    @cached_property
    def call(self) -> Floats:
        """Do as `Recorded` says."""
        return self._sheet.laid_out("call")

    @cached_property
    def back(self) -> Floats:
        """Do as `Recorded` says."""
        return self._sheet.laid_out("back")

    @property
    def has_all(self) -> Bools:
        """Do as `Recorded` says."""
        return np.ones(len(self._sheet.row), np.bool_)

    @property
    def is_called(self) -> Bools:
        """Do as `Recorded` says."""
        return self._sheet.is_called

    def row(self, time: Time, place: int) -> Floats:
        """Do as `Recorded` says; who asks again is given the same."""
        if (time, place) not in self._rows:
            self._rows[time, place] = self._sheet.one(time, place)
        return self._rows[time, place]

    def latest_end(self, first: int = 0, last: int | None = None) -> Floats:
        """Do as `Recorded` says."""
        return self._sheet.latest_end(first, last)

    def columns(self, which: Ints | slice) -> "OfSheet":
        """Do as `Recorded` says."""
        return OfSheet(self._sheet.columns(which))

    def strip(self, rows: slice) -> StepArrays:
        """Do as `Recorded` says."""
        first, last, _ = rows.indices(len(self._sheet.row))
        times = self._sheet.times(first, last)
        present = np.ones(times.start.shape, np.bool_)
        return StepArrays(self.ranks, present, times.start, times.end, times.call, times.back)
