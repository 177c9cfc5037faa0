"""A fact about the whole job: what limits all ranks alike, at a cost that is not known."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

EfficiencyKind = Literal["compute_bound", "communication"]
EFFICIENCY_KINDS: Final[tuple[EfficiencyKind, ...]] = get_args(EfficiencyKind)


@dataclass(frozen=True)
class EfficiencyFinding:
    """A limit of all ranks alike whose cost is not known."""

    kind: EfficiencyKind
    sentence: str
    share: float | None = None
    """The time that it concerns, as a fraction of the steps' time; None if unknown."""
