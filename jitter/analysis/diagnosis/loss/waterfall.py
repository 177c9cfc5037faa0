"""The waterfall: the step's time at each rung of baselines, from the recorded time down."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from jitter.analysis.diagnosis.model import RUNGS, Rung, StepAnswer

JUDGED_RUNGS: Final[tuple[Rung, ...]] = ("recorded", "ranks")


class RungTime(NamedTuple):
    """One rung of the waterfall, means over the steps that have a loss; None where the rung is not judged."""

    rung: Rung
    step_time_ns: int | None
    loss_ns: int | None
    """From the rung above; None for the first."""


def build_waterfall(steps: Sequence[StepAnswer]) -> tuple[RungTime, ...]:
    """Return every rung; the rungs below `ranks` are not judged."""
    timed = [step for step in steps if step.loss_ns is not None and step.step_time_ns is not None]
    time_ns, loss_ns = None, None
    if timed:
        time_ns = round(sum(step.step_time_ns or 0 for step in timed) / len(timed))
        loss_ns = round(sum(step.loss_ns or 0 for step in timed) / len(timed))
    left_ns = None if time_ns is None or loss_ns is None else time_ns - loss_ns
    judged = {"recorded": RungTime("recorded", time_ns, None), "ranks": RungTime("ranks", left_ns, loss_ns)}
    return tuple(judged.get(rung, RungTime(rung, None, None)) for rung in RUNGS)
