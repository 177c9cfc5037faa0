"""The run as a whole: each step's time, what jitter costs, which step is the costliest."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from jitter.analysis.metrics.clock_alignment import ClockReading
from jitter.analysis.metrics.ttke_reading import NOISE, TtkeReading
from jitter.core.stats import MAD_TO_SIGMA
from jitter.core.step_key import StepKey


@dataclass(frozen=True)
class StepOfRun:
    """One step: `step_time_ns` is null for the first of a stretch of consecutive numbers."""

    step: StepKey
    step_time_ns: int | None
    cohorts: tuple[TtkeReading, ...]

    @property
    def worst(self) -> TtkeReading:
        """The cohort that loses most in this step (the first, where none tells)."""
        return max(
            self.cohorts, key=lambda summary: (summary.loss_ns is not None, summary.loss_ns or 0, -summary.cohort)
        )

    @property
    def loss_ns(self) -> int | None:
        """What its worst cohort loses."""
        return self.worst.loss_ns

    @property
    def loss_fraction(self) -> float | None:
        """Of the step's time; null where either is unknown."""
        if self.loss_ns is None or not self.step_time_ns:
            return None
        return self.loss_ns / self.step_time_ns


@dataclass(frozen=True)
class RunSummary:
    """All steps in order."""

    steps: tuple[StepOfRun, ...]

    @property
    def costliest(self) -> StepOfRun:
        """The step that loses most; the first where none tells."""
        return max(self.steps, key=lambda step: (step.loss_ns is not None, step.loss_ns or 0))

    @property
    def loss_ns(self) -> int | None:
        """The sum over steps; null where no step tells."""
        known = [step.loss_ns for step in self.steps if step.loss_ns is not None]
        return sum(known) if known else None

    @property
    def loss_fraction(self) -> float | None:
        """Of the time of the steps that have both; null where none has."""
        both = [(s.loss_ns, s.step_time_ns) for s in self.steps if s.loss_ns is not None and s.step_time_ns]
        return sum(loss for loss, _ in both) / sum(time for _, time in both) if both else None


def summarise_run(summaries: Sequence[TtkeReading]) -> RunSummary:
    """Put the steps' summaries (in order) together.

    A step's time is from the end of the step before to its own end, each on the rank's own clock, median over ranks.
    """
    by_step: dict[StepKey, list[TtkeReading]] = defaultdict(list)
    for summary in summaries:
        by_step[summary.step].append(summary)
    steps = []
    for key, found in by_step.items():
        before = by_step.get(StepKey(key.epoch, key.step - 1))
        steps.append(StepOfRun(key, _step_time(before, found) if before else None, tuple(found)))
    return RunSummary(tuple(steps))


def outstanding(summaries: Sequence[TtkeReading]) -> list[TtkeReading]:
    """Keep a step's divergence only where its lateness stands out from the run's: a healthy run has none.

    The measure is the median lateness, either way, of all ranks and steps of the cohort, the median ranks' zeros left
    out. In the first step of a stretch ranks have not met before: that they began apart is not held against any.
    """
    keys = {summary.step for summary in summaries}
    usual: dict[int, list[float]] = defaultdict(list)
    for summary in summaries:
        usual[summary.cohort] += [abs(ns) for ns in summary.lateness_ns.values() if ns]
    found = []
    for summary in summaries:
        noise_ns = NOISE * MAD_TO_SIGMA * median_low(usual[summary.cohort] or [0.0])
        late_ns = max(summary.lateness_ns.values(), default=0.0)
        if summary.split is not None and StepKey(summary.step.epoch, summary.step.step - 1) not in keys:
            late_ns -= summary.split.start_ns
        found.append(replace(summary, divergence=None) if late_ns <= noise_ns else summary)
    return found


def _step_time(before: Sequence[TtkeReading], now: Sequence[TtkeReading]) -> int | None:
    earlier, later = _ends(before), _ends(now)
    times = [later[rank].since(earlier[rank]) for rank in later.keys() & earlier.keys()]
    known = [time for time in times if time is not None]
    return median_low(known) if known else None


def _ends(summaries: Sequence[TtkeReading]) -> dict[int, ClockReading]:
    return {rank: end for summary in summaries for rank, end in summary.step_ends.items()}
