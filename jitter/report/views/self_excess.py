"""Cumulative excess of own time along the kernel index: time to kernel end without waiting for other ranks."""

from typing import Final

import numpy as np
import numpy.typing as npt

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.step_times import of_team
from jitter.analysis.replay.replay import EXCESS_PARTS, accumulate_excess
from jitter.analysis.replay.run_steps import RecordedStep
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
    excess = accumulate_excess(
        examined.run, step, examined.steps.baseline(step), examined.baseline_transfers[step.number]
    )
    cells = _main_stream_cells(examined, step, grid)
    last = np.maximum.accumulate(np.where(cells < 0, -1, np.arange(len(cells))[:, None]), axis=0)
    carried = np.take_along_axis(cells, np.maximum(last, 0), axis=0)
    unknown = (cells < 0).all(axis=0)
    found = {}
    for name, part in zip(SELF_EXCESS_SERIES, EXCESS_PARTS, strict=True):
        found[name] = np.where(last < 0, 0.0, excess[part][carried])
        found[name][:, unknown] = np.nan
    return found


def _main_stream_cells(examined: RunAnalysis, step: RecordedStep, grid: StepGrid) -> npt.NDArray[np.int64]:
    """Return, (kernels, ranks) of the grid, the cell of the step if the main stream ran the kernel; else -1."""
    run = examined.run
    found = np.full((grid.kernel_index.size, grid.ranks.size), -1, np.int64)
    for team, program in run.programs.items():
        times = of_team(step.times, run.rank_numbers, team, len(program.operations))
        kernels = np.array([op.is_kernel for op in program.operations], np.bool_)
        places = np.flatnonzero([op.on_main for op in program.operations])
        position = (np.cumsum(times.present & kernels[:, None], axis=0) - 1)[places]
        index, _ = grid.at(times.ranks, position)
        index[~times.present[places] | ~np.isin(times.ranks, grid.ranks)] = -1
        place, rank = np.nonzero(index >= 0)
        row = np.searchsorted(grid.kernel_index, np.arange(1 + int(grid.kernel_index.max(initial=0))))
        column = np.searchsorted(grid.ranks, times.ranks)
        first = step.times.row[[run.number_of[one] for one in times.ranks.tolist()]]
        found[row[index[place, rank]], column[rank]] = first[rank] + places[place]
    return found
