"""A comparison as plain data; every form of it is made from this."""

from dataclasses import dataclass
from typing import Literal

from jitter.comparison.document import CollectiveEntry, CulpritEntry, Environment
from jitter.comparison.kernel_changes import KernelComparison
from jitter.comparison.log_tables import BandwidthChange, ThroughputChange
from jitter.comparison.significance import StepEffect

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
    """What one class of time adds to the new run's step, ns; all parts add up to the difference of the step times."""

    part: str
    """The label of a `LossClass`."""
    usual_ns: int
    """Of all ranks alike: between the usual steps, and of the median steps above them."""
    jitter_ns: int
    """Of ranks that are later than others, and transfers above their usual time."""

    @property
    def difference_ns(self) -> int:
        """Return the sum."""
        return self.usual_ns + self.jitter_ns


@dataclass(frozen=True)
class Cost:
    """What one place adds to the new run's step, ns: the rows of one class, rank and kernel."""

    rung: str
    loss_class: str
    rank: int | None
    kernel_name: str | None
    new_kernel_name: str | None
    loss_ns: float


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
    """What a usual step loses to a rank, ns; None where a run lacks the rank or cannot tell."""

    rank: int
    host: str | None
    base_ns: int | None
    new_ns: int | None

    @property
    def difference_ns(self) -> int | None:
        """Return new − base; None where neither is known."""
        if self.base_ns is None and self.new_ns is None:
            return None
        return (self.new_ns or 0) - (self.base_ns or 0)


@dataclass(frozen=True)
class CulpritChange:
    """A finding of one of the runs or both."""

    entry: CulpritEntry
    """As the new run has it; of the base where the new run lacks it."""
    difference_ns: int | None
    """What its ranks and class add to the new run's step; None where the finding is not of jitter."""


@dataclass(frozen=True)
class CulpritChanges:
    """Findings of the new run alone, of the base alone, and of both."""

    appeared: tuple[CulpritChange, ...]
    went: tuple[CulpritChange, ...]
    stayed: tuple[CulpritChange, ...]


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
    """Empty where a run has no usual step."""
    costs: tuple[Cost, ...]
    """The rows, the largest first; they add up to the difference of the step times."""
    kernels: KernelComparison | None
    collectives: tuple[CollectiveChange, ...]
    ranks: tuple[RankChange, ...]
    culprits: CulpritChanges
    environment: tuple[tuple[str, Environment], tuple[str, Environment]] | None
    """("base", its environment), ("new", its environment) where they differ."""
    throughput: tuple[ThroughputChange, ...]
    """The trainings' speed, by the logs."""
    bandwidths: tuple[BandwidthChange, ...] = ()
    """What benchmarks measured in both runs."""
