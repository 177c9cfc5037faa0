"""Cumulative excess of own time: each rank's step replayed alone, with its own self times and with the medians.

In this replay no rank waits for another: every collective ends its transfer time after the rank's own arrival. The
difference between the two replays at the end of an operation is the excess that the rank has built up to there. Host
time that the launch queue hides is no excess.
"""

from dataclasses import replace
from typing import Final, Literal

import numpy as np

from jitter.analysis.execution.collectives.matching import CollectiveArrays
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.self_times import CPU, GPU, START, SelfTimes
from jitter.analysis.replay.recorded_step import RecordedStep
from jitter.analysis.replay.replay import Change, replay_step
from jitter.core.numeric.arrays import Floats

ExcessPart = Literal["own", "cpu", "gpu", "communication"]
EXCESS_PARTS: Final[tuple[ExcessPart, ...]] = ("own", "cpu", "gpu", "communication")
"""`own` is CPU and GPU together; host time before the first kernel counts as CPU."""
_RECORDED: Final[dict[ExcessPart, tuple[int, ...]]] = {
    "own": (START, CPU, GPU),
    "cpu": (START, CPU),
    "gpu": (GPU,),
    "communication": (),
}
"""The self times that each part takes from the recording; all others are the medians."""


def accumulate_excess(
    run: RunModel, step: RecordedStep, baseline: SelfTimes, usual_transfers: Floats
) -> dict[ExcessPart, Floats]:
    """Return, for each part, (cells,) how much later than with the medians each operation ends, ns.

    `baseline` (operations of all teams,) holds the step's medians, `usual_transfers` (groups of all collectives,) the
    baseline of each transfer. Cells are laid out as in `StepTimes`; NaN where the rank lacks the operation.
    """
    collectives = step.collectives
    alone = replace(step, collectives=_one_rank_groups(collectives))
    usual = usual_transfers[collectives.group]
    took = step.transfers.took[collectives.group]
    # an unrecorded rank may have arrived last: then the time from the last recorded arrival includes waiting
    took = np.where(step.transfers.complete[collectives.group], took, np.fmin(took, usual))
    usual = np.nan_to_num(np.where(np.isnan(usual), took, usual))
    instructions, no_waits = run.schedule.array(), np.zeros(len(usual))

    def ends(recorded: tuple[int, ...], transfer: Floats) -> Floats:
        repaired = np.ones((len((START, CPU, GPU)), len(step.fresh)), np.bool_)
        repaired[list(recorded)] = False
        change = Change(repaired, transfer, no_waits, 0.0)
        return replay_step(run.job, instructions, alone, baseline, change, step.before.copy()).end

    without = ends((), usual)
    return {
        part: ends(recorded, np.where(np.isnan(took), usual, took) if part == "communication" else usual) - without
        for part, recorded in _RECORDED.items()
    }


def _one_rank_groups(collectives: CollectiveArrays) -> CollectiveArrays:
    """Return the collectives with each attendance in a group of its own."""
    size = len(collectives.rank)
    every = np.arange(size, dtype=np.int64)
    return collectives._replace(
        first_group=collectives.first,
        group=every,
        first_in_group=np.arange(size + 1, dtype=np.int64),
        by_group=every,
        first_absent=np.zeros(size + 1, np.int64),
    )
