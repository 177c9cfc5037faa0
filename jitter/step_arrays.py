"""One cohort's step as arrays, operations × ranks: what the replay and the critical path compute with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jitter.cells import SYNC, Cell, Floats, Ints
from jitter.program import Program

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class StepArrays:
    """Times in ns from each rank's own zero, (operations, ranks); NaN where a rank has not that operation."""

    ranks: Ints
    """(ranks,) the columns."""
    present: Bools
    start: Floats
    """On the GPU; NaN for synchronising calls."""
    end: Floats
    call: Floats
    """When the host began the call; of the kernels of one launch only the first has it. NaN: not recorded."""
    back: Floats
    """When the call returned."""
    ordinal: Ints
    """The row in the lake; -1 for synchronising calls and where there is nothing."""


def arrays(program: Program, ranks: Sequence[int], cells: Sequence[Cell], places: Sequence[Ints]) -> StepArrays:
    """Lay the cells (one a rank that has the step; the others' columns stay empty) out along the program."""
    column_of = {rank: column for column, rank in enumerate(ranks)}
    shape = (len(program.operations), len(ranks))
    start, end, call, back = (np.full(shape, np.nan) for _ in range(4))
    ordinal = np.full(shape, -1, np.int64)
    present = np.zeros(shape, np.bool_)
    for cell, place in zip(cells, places, strict=True):
        column = column_of[cell.rank]
        start[place, column], end[place, column] = cell.start, cell.end
        call[place, column], back[place, column] = cell.call, cell.back
        ordinal[place, column], present[place, column] = cell.ordinal, True
    return StepArrays(np.array(ranks, np.int64), present, start, end, call, back, ordinal)


def is_sync(program: Program) -> Bools:
    """(operations,) which are synchronising calls."""
    return np.array([op.kind == SYNC for op in program.operations], np.bool_)
