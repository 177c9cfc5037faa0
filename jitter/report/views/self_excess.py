"""Cumulative excess of own time along the kernel index: time to kernel end without waiting for other ranks."""

from typing import Final

import numpy as np
import numpy.typing as npt

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.recorded.step_times import of_team
from jitter.analysis.replay.recorded_step import RecordedStep
from jitter.analysis.replay.uncoupled_replay import EXCESS_PARTS, accumulate_excess
from jitter.core.step_key import StepKey
from jitter.report.views.step_grid import StepGrid

Floats = npt.NDArray[np.float64]
SELF_EXCESS: Final = "self_excess"
"""The series of CPU and GPU together."""
SELF_EXCESS_SERIES: Final = tuple(SELF_EXCESS if part == "own" else f"{SELF_EXCESS}_{part}" for part in EXCESS_PARTS)


def measure_self_excess(examined: RunAnalysis, key: StepKey, grid: StepGrid) -> dict[str, Floats]:
    """Return, for each series, the excess built up to the end of each kernel: (kernels, ranks) of the grid, ns.

    Kernels of other streams and collectives carry the value of the main stream. A rank starts the step at 0. A single
    rank is compared with its other steps; NaN without any.
    """
    shape = (grid.kernel_index.size, grid.ranks.size)
    if grid.single and len(examined.keys) == 1:
        return {name: np.full(shape, np.nan) for name in SELF_EXCESS_SERIES}
    number = examined.keys.index(key)
    step = next(iter(examined.steps.steps(number, number + 1)))
    excess = accumulate_excess(examined.run, step, examined.steps.baseline(step), examined.baseline_transfers)
    row, column, cell = _main_stream_cells(examined, step, grid)
    found = {}
    for name, part in zip(SELF_EXCESS_SERIES, EXCESS_PARTS, strict=True):
        values = np.full(shape, np.nan)
        values[row, column] = excess[part][cell]
        found[name] = _carry(values)
    return found


def _main_stream_cells(
    examined: RunAnalysis, step: RecordedStep, grid: StepGrid
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return row and column in the grid, and cell of the step, of every kernel that the main stream ran."""
    run = examined.run
    rows, columns, cells = [], [], []
    for team, program in run.programs.items():
        times = of_team(step.times, run.rank_numbers, team, len(program.operations))
        kernels = np.array([op.is_kernel for op in program.operations], np.bool_)
        on_main = np.array([op.on_main for op in program.operations], np.bool_)
        position = np.cumsum(times.present & kernels[:, None], axis=0) - 1
        for at, rank in enumerate(times.ranks.tolist()):
            if rank not in grid.ranks:
                continue
            places = np.flatnonzero(on_main & times.present[:, at])
            index, _ = grid.at([rank] * len(places), position[places, at])
            known = index >= 0
            rows.append(np.searchsorted(grid.kernel_index, index[known]))
            columns.append(np.full(int(known.sum()), np.searchsorted(grid.ranks, rank)))
            cells.append(step.times.row[run.number_of[rank]] + places[known])
    empty = np.zeros(0, np.int64)
    return tuple(np.concatenate([empty, *parts]) for parts in (rows, columns, cells))  # type: ignore[return-value]


def _carry(values: Floats) -> Floats:
    """Fill the unknown of each column with the value before it, the first with 0; a column without a value stays."""
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, np.arange(len(values))[:, None]), axis=0)
    filled = np.where(last >= 0, np.take_along_axis(values, np.maximum(last, 0), axis=0), 0.0)
    filled[:, np.isnan(values).all(axis=0)] = np.nan
    return filled
