"""One team's step laid out along its program: what the replay and the critical path compute with."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from jitter.analysis.execution.program import Program
from jitter.analysis.execution.rank_groups import Sheet
from jitter.analysis.execution.step_times import OfSheet, Recorded, StepArrays
from jitter.core.arrays import Ints


class Laid:
    """One team's step, to be laid out along its program: as a whole, or strip by strip of its operations."""

    def __init__(self, program: Program, ranks: Sequence[int], sheets: Sequence[Sheet]) -> None:
        """Of the sheets' ranks only these are of the team."""
        self.ranks = np.array(ranks, np.int64)
        self._operations = len(program.operations)
        self._laid = list(_laid(program, ranks, sheets))
        every = np.arange(self._operations)
        self._only = next((one for one, _, at, _ in self._laid if len(at) == len(every) and (at == every).all()), None)
        if self._only is not None and not np.array_equal(self._only.ranks, self.ranks):
            self._only = None

    def strip(self, rows: slice) -> StepArrays:
        """Lay out these operations, which must be next to each other."""
        return self.recorded.strip(rows)

    @cached_property
    def recorded(self) -> Recorded:
        """All of it, laid out no further than need be."""
        return self.whole if self._only is None else OfSheet(self._only)

    @cached_property
    def whole(self) -> StepArrays:
        """All of it, laid out."""
        if self._only is not None:
            return self.recorded.strip(slice(None))
        shape = (self._operations, len(self.ranks))
        start, end, call, back = (np.full(shape, np.nan) for _ in range(4))
        present = np.zeros(shape, np.bool_)
        for sheet, own, places, columns in self._laid:
            kept, times = places >= 0, sheet.times()
            there = np.ix_(places[kept], columns)
            for target, source in ((start, times.start), (end, times.end), (call, times.call), (back, times.back)):
                target[there] = source[:, own][kept]
            present[there] = True
        return StepArrays(self.ranks, present, start, end, call, back)


def rows(program: Program, ranks: Sequence[int], sheets: Sequence[Sheet]) -> Ints:
    """(operations, ranks): the row of each in its rank's file; -1 for calls, and where a rank has none."""
    found = np.full((len(program.operations), len(ranks)), -1, np.int64)
    for sheet, _, places, columns in _laid(program, ranks, sheets):
        kept = places >= 0
        found[np.ix_(places[kept], columns)] = sheet.row[kept, None]
    return found


def _laid(
    program: Program, ranks: Sequence[int], sheets: Sequence[Sheet]
) -> Iterator[tuple[Sheet, slice | list[int], Ints, Ints]]:
    """Each sheet with those of its rows that are wanted, their places in the program and columns among the ranks."""
    column_of = {rank: column for column, rank in enumerate(ranks)}
    for sheet in sheets:
        own = [at for at, rank in enumerate(sheet.ranks.tolist()) if rank in column_of]
        if own:
            columns = np.array([column_of[rank] for rank in sheet.ranks[own].tolist()], np.int64)
            yield sheet, slice(None) if len(own) == len(sheet.ranks) else own, program.places[sheet.signature], columns
