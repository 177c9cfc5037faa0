"""Statistics of one team's step, computed over ranges of operations that fit into the processor's cache.

Only sums, medians and end times are kept of a range, so a step's times are in memory once, as read: each array of a
step of 960 ranks × 907 rows takes 7 MB.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from jitter.analysis.detection.deviations import DeviationAccumulator, StepDeviations
from jitter.analysis.detection.thresholds import THRESHOLDS
from jitter.analysis.execution.own_time import OwnOfStrips, OwnTimes, on_top
from jitter.analysis.execution.program import Program
from jitter.analysis.execution.ready_times import Tail
from jitter.analysis.execution.rules import Rules
from jitter.analysis.execution.team_times import Laid
from jitter.analysis.replay.step_inputs import medians
from jitter.core.arrays import Bools, Floats, Ints
from jitter.core.kernels import COLLECTIVE

_CELLS: Final = 32_768
"""Array elements per range of operations; about sixteen arrays of this size are in use at once."""


@dataclass(frozen=True)
class StepStatistics:
    """Statistics of one team's step."""

    ranks: Ints
    end: Floats
    """(operations, ranks) ns from each rank's origin; NaN where a rank lacks the operation."""
    took: Mapping[int, Floats]
    """By operation number of each collective: (ranks,) ns from the arrival to the end."""
    typical: OwnTimes
    """(operations, 1) the median of each own time over ranks."""
    deviations: StepDeviations
    negative_latencies: int
    """Kernels that start before their own launch: impossible times."""
    left: Tail
    """The state carried to the next step."""


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
    """Return the statistics of a team in the run's `number`th step; `typical` are its medians, None to compute them."""
    ranks, operations = laid.ranks, len(program.operations)
    # with few ranks the noise is pooled over operations, so all of them are processed at once
    height = max(1, _CELLS // len(ranks)) if len(ranks) >= THRESHOLDS.min_ranks_for_noise else max(1, operations)
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
