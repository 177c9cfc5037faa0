"""The seven answers as plain data: how much, which step, node and GPU, when, where to look, CPU or GPU."""

from dataclasses import dataclass, field
from typing import Literal

from jitter.core.step_key import StepKey

Cause = Literal["late_start", "cpu_launch", "gpu_compute", "workload_imbalance", "communication", "none"]
Scope = Literal["rank", "host", "device", "ranks"]
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Loss:
    """What jitter costs: the run's time less its time with every own time at its median."""

    ns: int | None
    fraction: float | None


@dataclass(frozen=True)
class Split:
    """The max rank's excess on the critical path, by where it arose; their sum is the excess."""

    start_ns: int
    cpu_ns: int
    gpu_ns: int


@dataclass(frozen=True)
class Divergence:
    """Where the max rank left the others on its worst stretch of the path."""

    kernel_index: int
    kernel_name: str


@dataclass(frozen=True)
class StepAnswer:
    """One step. Times in ns; null where it does not tell."""

    key: StepKey
    step_time_ns: int | None
    loss_ns: int | None
    loss_fraction: float | None
    min_rank: int | None
    max_rank: int | None
    divergence: Divergence | None
    split: Split | None
    cause: Cause


@dataclass(frozen=True)
class ProfileLocation:
    """Where in which profile."""

    file: str
    start_ns: int
    """On that recording's own clock."""
    end_ns: int


@dataclass(frozen=True)
class IndexRange:
    """Kernel indices, both included."""

    first: int
    last: int


@dataclass(frozen=True)
class Culprit:
    """One thing to repair."""

    scope: Scope
    rank: int
    """The worst of `ranks`."""
    ranks: tuple[int, ...]
    host: str | None
    device: int | None
    cause: Cause
    confidence: Confidence
    excess_ns: int
    """Its own time above the others', in the steps it happens in."""
    gain_ns: int
    """What the run would gain if it alone were repaired."""
    steps: tuple[StepKey, ...]
    step_pattern: str
    kernel_index: IndexRange | None
    evidence: tuple[str, ...]
    look_at: ProfileLocation | None


@dataclass(frozen=True)
class WhatIf:
    """What the run would gain, ns."""

    culprits_repaired_ns: int | None
    all_repaired_ns: int | None


@dataclass(frozen=True)
class Diagnosis:
    """All answers."""

    loss: Loss
    steps: tuple[StepAnswer, ...]
    culprits: tuple[Culprit, ...]
    """Worst first; empty for a healthy run."""
    what_if: WhatIf
    verdict: str
    notes: tuple[str, ...] = field(default=())
    """What limits the answers: groups not recorded, ranks missing, too few to compare."""

    @property
    def costliest(self) -> StepAnswer:
        """The step that loses most, the earliest of equals; the first, where none tells its loss."""
        return max(self.steps, key=lambda step: (step.loss_ns is not None, step.loss_ns or 0))
