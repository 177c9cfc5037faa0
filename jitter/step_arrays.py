"""One team's step as arrays, operations × ranks: what the replay and the critical path compute with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jitter.program import Program
from jitter.sheets import Bools, Floats, Ints, Sheet


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


def arrays(program: Program, ranks: Sequence[int], sheets: Sequence[Sheet]) -> StepArrays:
    """Lay sheets out along the program, for these ranks (those of other teams are left out)."""
    shape = (len(program.operations), len(ranks))
    laid = list(_laid(program, ranks, sheets))
    for sheet, _, places, columns in laid:
        if np.array_equal(places, np.arange(shape[0])) and np.array_equal(columns, np.arange(shape[1])):
            return StepArrays(sheet.ranks, np.ones(shape, np.bool_), sheet.start, sheet.end, sheet.call, sheet.back)
    start, end, call, back = (np.full(shape, np.nan) for _ in range(4))
    present = np.zeros(shape, np.bool_)
    for sheet, own, places, columns in laid:
        kept = places >= 0
        there = np.ix_(places[kept], columns)
        for target, source in ((start, sheet.start), (end, sheet.end), (call, sheet.call), (back, sheet.back)):
            target[there] = source[:, own][kept]
        present[there] = True
    return StepArrays(np.array(ranks, np.int64), present, start, end, call, back)


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
