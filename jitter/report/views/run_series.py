"""The run as a series of steps, with the findings of each."""

from collections.abc import Sequence
from dataclasses import dataclass

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.model import StepAnswer
from jitter.core.step_key import StepKey


@dataclass(frozen=True)
class RunSeries:
    """The steps in order; the x coordinate of a step is its position."""

    steps: tuple[StepAnswer, ...]
    labels: tuple[str, ...]
    ranks: tuple[int, ...]

    def position(self, key: StepKey) -> int:
        """Return the position of a step."""
        return next(at for at, step in enumerate(self.steps) if step.key == key)


def build_run_series(diagnosis: Diagnosis, ranks: Sequence[int]) -> RunSeries:
    """Build the series of the steps of a diagnosis."""
    several = len({step.key.epoch for step in diagnosis.steps}) > 1
    return RunSeries(
        steps=diagnosis.steps,
        labels=tuple(f"{s.key.epoch}/{s.key.step}" if several else str(s.key.step) for s in diagnosis.steps),
        ranks=tuple(ranks),
    )
