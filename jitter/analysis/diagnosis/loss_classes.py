"""Classes of lost time and rungs of the waterfall, filled from the split of the loss along the critical path."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from jitter.analysis.diagnosis.loss.split import PART_OF, split_loss
from jitter.analysis.diagnosis.model import (
    LOSS_CLASSES,
    RUNGS,
    Cause,
    LossClass,
    LossPart,
    LossShare,
    RankShare,
    Rung,
    StepAnswer,
)
from jitter.analysis.execution.time_part import TimePart

JUDGED_RUNGS: Final[tuple[Rung, ...]] = ("recorded", "ranks")

_CLASS_OF_PART: Final[Mapping[LossPart, LossClass]] = MappingProxyType(
    {
        "late_start": "start",
        "cpu_launch": "launch",
        "cpu_after": "after",
        "gpu": "gpu",
        "communication": "transfer",
        "unexplained": "unexplained",
    }
)


_PATH_PARTS: Final[tuple[LossPart, ...]] = ("late_start", "cpu_launch", "cpu_after", "gpu", "communication")
"""Of a `PathSplit`, in its order."""


class ClassShare(NamedTuple):
    """The loss of one class; None where the critical path does not tell the class apart."""

    loss_class: LossClass
    ns: int | None
    fraction: float | None
    """Of the time of the steps; None if that is unknown."""
    ranks: tuple[RankShare, ...]
    """Largest first; empty for a class without ranks."""


class RungTime(NamedTuple):
    """One rung of the waterfall, means over the steps that have a loss; None where the rung is not judged."""

    rung: Rung
    step_time_ns: int | None
    loss_ns: int | None
    """From the rung above; None for the first."""


def share_by_class(split: Sequence[LossShare]) -> tuple[ClassShare, ...]:
    """Return the split of a loss by class, in the order of `LOSS_CLASSES`; empty if the loss is unknown."""
    if not split:
        return ()
    known = {_CLASS_OF_PART[share.part]: share for share in split}
    return tuple(
        ClassShare(name, known[name].ns, known[name].fraction, known[name].ranks)
        if name in known
        else ClassShare(name, None, None, ())
        for name in LOSS_CLASSES
    )


def split_step(step: StepAnswer) -> dict[LossClass, int | None] | None:
    """Return a step's loss by class, which adds up to it; None if its loss, or its critical path, is unknown."""
    if step.loss_ns is None or step.path is None:
        return None
    charged: dict[tuple[LossPart, int | None], float] = {
        (part, None): float(ns) for part, ns in zip(_PATH_PARTS, step.path, strict=True)
    }
    return {one.loss_class: one.ns for one in share_by_class(split_loss(charged, step.loss_ns, None))}


def class_of(cause: Cause, part: TimePart) -> LossClass:
    """Return the class of a finding with this cause, most of whose excess is in this part of time."""
    return "after" if cause == "cpu_after" else _CLASS_OF_PART[PART_OF[part]]


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
