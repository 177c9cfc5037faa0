"""Whether a host waited for the GPU in calls that were not recorded: its launches follow ends on the GPU."""

from typing import Final

import numpy as np

from jitter.analysis.execution.recorded.step_times import TeamTimes
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import SYNC
from jitter.core.numeric.arrays import Bools, Floats

_LIMITS: Final = THRESHOLDS.sync_calls


def lacks_sync_calls(run: RunModel) -> bool:
    """Return whether some place of a program is always launched after the GPU has done all that was launched before.

    A launch needs no idle GPU. If its delay after the GPU's last end varies much less than the host time before it, the
    host waited in a call without a record. A program with recorded synchronising calls is not tested.
    """
    return any(
        _follows_gpu(run, team)
        for team, program in run.programs.items()
        if not any(op.kind == SYNC for op in program.operations)
    )


def _follows_gpu(run: RunModel, team: int) -> bool:
    idle, late = [], []
    before: TeamTimes | None = None
    for key in run.keys[: _LIMITS.sampled_steps]:
        step = run.team_times(key, team)
        if before is not None and np.array_equal(before.ranks, step.ranks) and len(step.ranks):
            its_idle, its_late = idle_and_delay(before, step)
            idle.append(its_idle)
            late.append(its_late)
        before = step
    return bool(idle) and bool(follows_gpu(np.hstack(idle), np.hstack(late)).any())


def follows_gpu(idle_ns: Floats, late_ns: Floats) -> Bools:
    """Return, (operations,), whether the launches of an operation follow the GPU.

    Args:
        idle_ns: (operations, launches) from the host's last call to the GPU's end; NaN where unknown.
        late_ns: (operations, launches) from the GPU's end to the launch.

    """
    found = np.zeros(len(idle_ns), np.bool_)
    known = ~np.isnan(idle_ns) & ~np.isnan(late_ns)
    needs_no_idle = (known & ((idle_ns <= _LIMITS.min_idle_ns) | (late_ns < 0))).any(axis=1)
    for place in np.flatnonzero((known.sum(axis=1) >= _LIMITS.min_seen) & ~needs_no_idle).tolist():
        idle, late = idle_ns[place, known[place]], late_ns[place, known[place]]
        soon = late <= _LIMITS.max_late_share * idle
        if soon.mean() >= _LIMITS.min_soon_share:
            found[place] = np.ptp(late[soon]) < _LIMITS.max_spread_share * np.ptp((idle + late)[soon])
    return found


def idle_and_delay(before: TeamTimes, step: TeamTimes) -> tuple[Floats, Floats]:
    """Return, (operations, ranks), the time from the host's last call to the GPU's end, and from there to the launch.

    `before` is the same ranks' step before this one.
    """
    done = _running_maximum(before.end, step.end)
    return done - _running_maximum(before.back, step.back), step.call - done


def _running_maximum(before: Floats, values: Floats) -> Floats:
    """Return, for each row, the maximum of all rows before it, those of the step before included."""
    stacked = np.vstack([np.fmax.reduce(before, axis=0)[None, :], values[:-1]])
    found: Floats = np.fmax.accumulate(stacked, axis=0)
    return found
