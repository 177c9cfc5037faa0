"""One team's step looked at strip by strip: its operations a few at a time, while they are in the processor's cache.

Nothing of a strip stays but what it adds to sums, medians and ends: a step's times lie in memory once, as read. Of a
step of 960 ranks × 907 rows every array is 7 MB, and memory is the limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from jitter.analysis.detection.deviations import MIN_RANKS_FOR_NOISE, DeviationAccumulator, StepDeviations
from jitter.analysis.execution.own_time import OwnOfStrips, OwnTimes, on_top
from jitter.analysis.execution.program import Program
from jitter.analysis.execution.ready_times import Tail
from jitter.analysis.execution.rules import Rules
from jitter.analysis.execution.team_times import Laid
from jitter.analysis.replay.step_inputs import medians
from jitter.core.arrays import Bools, Floats, Ints
from jitter.core.kernels import COLLECTIVE

_CELLS: Final = 32_768
"""Of a strip; it has some sixteen arrays of so many."""


@dataclass(frozen=True)
class StepStatistics:
    """What one step of a team tells by itself."""

    ranks: Ints
    end: Floats
    """(operations, ranks) ns from each rank's origin; NaN where a rank has not the operation."""
    took: Mapping[int, Floats]
    """(ranks,) from the arrival to the end, by the place of each collective."""
    typical: OwnTimes
    """(operations, 1) the median of each own time."""
    deviations: StepDeviations
    negative_latencies: int
    """Kernels that start before their own launch, which cannot be."""
    left: Tail
    """How the step leaves its ranks."""


def compute_step_statistics(
    number: int,
    team: int,
    program: Program,
    rules: Rules,
    laid: Laid,
    tail: Tail,
    joined: Bools,
    typical: OwnTimes | None,
) -> StepStatistics:
    """Look at the run's `number`th step of a team; `typical` are its medians if they are known already."""
    ranks, operations = laid.ranks, len(program.operations)
    # few ranks do not tell an operation's noise: then all operations are looked at together
    height = max(1, _CELLS // len(ranks)) if len(ranks) >= MIN_RANKS_FOR_NOISE else max(1, operations)
    own_times = OwnOfStrips(program, rules, tail)
    deviations = DeviationAccumulator(number, team, ranks, program.first_kernel)
    end = np.empty((operations, len(ranks)))
    took: dict[int, Floats] = {}
    usual: list[OwnTimes] = []
    impossible = 0
    for first in range(0, operations, height):
        rows = range(first, min(first + height, operations))
        which = slice(rows.start, rows.stop)
        step = laid.strip(which)
        own = own_times.of(rows, step)
        usual.append(medians(own) if typical is None else typical.strip(which))
        deviations.add(first, own, usual[-1])
        end[which] = step.end
        for at in np.flatnonzero(program.kinds[which] == COLLECTIVE).tolist():
            took[first + at] = step.end[at] - step.start[at]
        impossible += int((step.start < step.call).sum())
    return StepStatistics(
        ranks, end, took, on_top(usual) if usual else _NOTHING, deviations.sum(joined), impossible, own_times.left
    )


_NOTHING: Final = OwnTimes(*(np.empty((0, 1)) for _ in fields(OwnTimes)))
