"""The duration of single kernels on each rank over the steps of the run."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.core.step_key import StepKey
from jitter.report.views.step_grid import StepGrid
from jitter.report.views.step_view import own_values

MAX_VALUES: Final = 40_000
"""Most durations that a written page holds, over all kernels."""


class KernelDurations(NamedTuple):
    """Durations of kernels, (kernels, ranks, steps), ns; NaN where a rank lacks the kernel in a step."""

    kernel_index: tuple[int, ...]
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    steps: tuple[StepKey, ...]
    duration_ns: npt.NDArray[np.float32]


def choose_kernels(grid: StepGrid, first: Sequence[int], steps: int) -> list[int]:
    """Return the kernels of a step that a written page holds, ascending.

    They are the `first` ones, then those with the widest spread of gap and duration over the ranks.
    """
    most = max(1, MAX_VALUES // max(1, steps * grid.ranks.size))
    spread = np.zeros(grid.kernel_index.size)
    for metric in ("gap", "duration"):
        values = np.nan_to_num(own_values(grid, metric))
        spread += values.max(axis=1) - values.min(axis=1)
    by_spread: list[int] = grid.kernel_index[
        np.argsort(-np.where(grid.is_collective, -1.0, spread), kind="stable")
    ].tolist()
    return sorted(list(dict.fromkeys([*(index for index in first if index in set(by_spread)), *by_spread]))[:most])


def measure_kernel_durations(examined: RunAnalysis, grid: StepGrid, kernels: Sequence[int]) -> KernelDurations:
    """Read kernels, given by their index in the step of the grid, in every step of the run.

    The same operation of the program is the same kernel in every step.
    """
    run, wanted = examined.run, np.asarray(kernels, np.int64)
    durations_ns = np.full((wanted.size, grid.ranks.size, len(examined.keys)), np.nan, np.float32)
    for team, program in run.programs.items():
        ranks_of_team = [
            rank for rank, rank_team in run.team_of.items() if rank_team == team and rank in set(grid.ranks.tolist())
        ]
        if not ranks_of_team:
            continue
        index, _ = grid.of_operations(program, run.team_times(grid.key, team))
        place_of = {
            int(kernel): place for place, kernel in enumerate(index.max(axis=1, initial=-1).tolist()) if kernel >= 0
        }
        rows = [row for row, kernel in enumerate(wanted.tolist()) if kernel in place_of]
        places = [place_of[int(wanted[row])] for row in rows]
        for number, key in enumerate(examined.keys):
            step = run.team_times(key, team)
            here = np.isin(step.ranks, grid.ranks)
            column = np.searchsorted(grid.ranks, step.ranks[here])
            took = (step.end[places] - step.start[places])[:, here]
            took[~step.present[places][:, here]] = np.nan
            durations_ns[np.array(rows, np.int64)[:, None], column, number] = took
    names = tuple(grid.names[int(index)] for index in wanted)
    return KernelDurations(
        tuple(wanted.tolist()), names, tuple(grid.ranks.tolist()), tuple(examined.keys), durations_ns
    )
