"""The run as a series of steps: findings of each step, and the excess on its critical path by part."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jitter.analysis.detection.executors.passes import StepPath
from jitter.analysis.diagnosis.model import Diagnosis, StepAnswer
from jitter.analysis.execution.time_part import TimePart
from jitter.core.step_key import StepKey


@dataclass(frozen=True)
class RunSeries:
    """The steps in order; the x coordinate of a step is its position."""

    steps: tuple[StepAnswer, ...]
    labels: tuple[str, ...]
    ranks: tuple[int, ...]
    parts_ns: tuple[tuple[float, float, float, float] | None, ...]
    """Excess on each step's critical path, summed over its ranks, in the order of `TimePart`; None without a path."""

    def position(self, key: StepKey) -> int:
        """Return the position of a step."""
        return next(at for at, step in enumerate(self.steps) if step.key == key)


def build_run_series(diagnosis: Diagnosis, paths: Sequence[StepPath], ranks: Sequence[int]) -> RunSeries:
    """Build the series of the steps of a diagnosis."""
    several = len({step.key.epoch for step in diagnosis.steps}) > 1
    return RunSeries(
        steps=diagnosis.steps,
        labels=tuple(f"{s.key.epoch}/{s.key.step}" if several else str(s.key.step) for s in diagnosis.steps),
        ranks=tuple(ranks),
        parts_ns=tuple(_parts(path) if len(path.charges) else None for path in paths),
    )


def _parts(path: StepPath) -> tuple[float, float, float, float]:
    charges = path.whole
    start, cpu, gpu, transfer = np.bincount(charges.part, charges.excess_ns, len(TimePart)).tolist()
    return start, cpu, gpu, transfer
