"""A comparison as plain data; every form of it is made from this."""

from dataclasses import dataclass
from typing import Literal

from jitter.comparison.document import CollectiveEntry, CulpritEntry, Environment
from jitter.comparison.effect.step_effect import StepEffect
from jitter.comparison.kernel_changes import KernelComparison

Verdict = Literal["slower", "faster", "same", "incomparable"]


@dataclass(frozen=True)
class Side:
    """The base, or the new run."""

    label: str
    """Of several bases: all labels."""
    runs: int
    ranks: int
    hosts: int
    steps: int
    """Of several bases: of all of them."""
    formats: tuple[str, ...]


@dataclass(frozen=True)
class PartChange:
    """A part of the step's time, ns; the differences of all parts add up to the step's."""

    part: str
    label: str
    base_ns: int
    new_ns: int

    @property
    def difference_ns(self) -> int:
        """Return new − base."""
        return self.new_ns - self.base_ns


@dataclass(frozen=True)
class CollectiveChange:
    """Collectives of one operation, size and group size; a side that lacks them is None."""

    base: CollectiveEntry | None
    new: CollectiveEntry | None

    @property
    def either(self) -> CollectiveEntry:
        """Return the base's entry, or the new run's where the base has none."""
        found = self.base or self.new
        assert found is not None
        return found

    @property
    def ratio(self) -> float | None:
        """Return new ÷ base bus bandwidth; None where one is unknown."""
        if self.base is None or self.new is None or not self.base.busbw or self.new.busbw is None:
            return None
        return self.new.busbw / self.base.busbw


@dataclass(frozen=True)
class RankChange:
    """A rank's mean excess per step; None where a run lacks the rank or cannot tell."""

    rank: int
    host: str | None
    base_excess_ns: int | None
    new_excess_ns: int | None


@dataclass(frozen=True)
class CulpritChanges:
    """Findings of the new run alone, of the base alone, and of both."""

    appeared: tuple[CulpritEntry, ...]
    went: tuple[CulpritEntry, ...]
    stayed: tuple[CulpritEntry, ...]
    """As the new run has them."""


@dataclass(frozen=True)
class ThroughputChange:
    """The training's run time, from logs beside the traces."""

    label: str
    base_seconds: float
    new_seconds: float

    @property
    def speedup(self) -> float:
        """Return base ÷ new."""
        return self.base_seconds / self.new_seconds


@dataclass(frozen=True)
class Comparison:
    """The differences between the base and the new run. Times in ns a step."""

    verdict: Verdict
    sentence: str
    reasons: tuple[str, ...]
    """Why the runs cannot be compared; empty where they can."""
    notes: tuple[str, ...]
    """How the two runs differ as recordings, and what limits the comparison."""
    base: Side
    new: Side
    effect: StepEffect | None
    """None where the runs cannot be compared."""
    base_loss: float | None
    """Part of the run's time that jitter costs."""
    new_loss: float | None
    split: tuple[PartChange, ...]
    kernels: KernelComparison | None
    collectives: tuple[CollectiveChange, ...]
    ranks: tuple[RankChange, ...]
    culprits: CulpritChanges
    environment: tuple[tuple[str, Environment], tuple[str, Environment]] | None
    """("base", its environment), ("new", its environment) where they differ."""
    throughput: tuple[ThroughputChange, ...]
