"""The loss of a run to jitter, as a part of its time, with the interval that its steps leave open."""

from typing import NamedTuple

import numpy as np

from jitter.comparison.comparability import MIN_STEPS
from jitter.comparison.document import Document
from jitter.comparison.effect.block_bootstrap import draw_steps, interval_of, start_draws, widening


class RunLoss(NamedTuple):
    """Loss as a fraction of the run's time."""

    fraction: float
    interval: tuple[float, float]
    """95% interval: where the loss of a longer run of the same job may lie; no run gains by jitter."""


def measure_loss(run: Document) -> RunLoss | str:
    """Return the loss of a run, or why its steps do not tell it.

    The interval is a block bootstrap of Σ loss ÷ Σ step time over the steps that follow a recorded one.
    """
    if run.loss_fraction is None:
        return "the loss of the run is unknown"
    timed = [(step.loss_ns, step.step_time_ns) for step in run.steps if step.loss_ns is not None and step.step_time_ns]
    if len(run.steps) < MIN_STEPS or len(timed) < MIN_STEPS - 2:
        return f"the run has {len(timed)} steps of known time and loss, too few to measure its loss"
    losses, times = np.array(timed, np.float64).T
    at = draw_steps(len(timed), start_draws())
    value = run.loss_fraction
    drawn = losses[at].sum(axis=1) / times[at].sum(axis=1)
    low, high = interval_of(value + widening(len(timed)) * (drawn - losses.sum() / times.sum()))
    return RunLoss(value, (min(max(low, 0.0), value), max(high, value)))
