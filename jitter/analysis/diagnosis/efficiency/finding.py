"""A finding about the whole job: what limits all ranks alike, whether or not the job has jitter."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

EfficiencyKind = Literal[
    "compute_bound", "communication", "synchronization", "blocking_copy", "serial_copies", "small_kernels",
]  # fmt: skip
EFFICIENCY_KINDS: Final[tuple[EfficiencyKind, ...]] = get_args(EfficiencyKind)


@dataclass(frozen=True)
class EfficiencyFinding:
    """A limit of all ranks alike. It is no culprit: the loss, which compares ranks, does not contain it."""

    kind: EfficiencyKind
    sentence: str
    share: float | None = None
    """The time that it concerns, or that it costs, as a fraction of the steps' time; None if unknown."""
    gain_ns: int | None = None
    """Time that the run would save without it, by replay; None where that is not computed. Gains may overlap."""
    evidence: tuple[str, ...] = ()
