"""The recorded rows of a run as the run model reads them, wherever they lie."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

from jitter.analysis.execution.collectives.matching import Group
from jitter.analysis.execution.program import Example
from jitter.analysis.execution.rank_groups import IdenticalRanks
from jitter.core.step_key import StepKey


class Member(NamedTuple):
    """One rank in one step that counts (uncut, or cut after the step's last collective)."""

    rank: int
    cohort: int
    sequence: str
    cut: bool


@dataclass(frozen=True)
class Source:
    """Source of the run's rows."""

    steps: Sequence[StepKey]
    members: Callable[[StepKey], Sequence[Member]]
    rank_groups: Callable[[StepKey], Sequence[IdenticalRanks]]
    """The ranks of a step, in groups that did the same."""
    announce: Callable[[Sequence[StepKey]], AbstractContextManager[None]]
    """Context in which these steps' ranks are asked for in this order."""
    example: Callable[[StepKey, int], Example]
    """Activities of a rank in a step."""
    groups: Callable[[StepKey], Mapping[int, Mapping[int, Group]]]
    """By rank and row in the step (ordinal) the group of the collective there."""
    rows: int
    """Rows of all steps and ranks."""
    beginnings: Callable[[StepKey], Mapping[int, float]]
    """By rank when its step marker begins, ns from the rank's origin; only ranks whose steps have markers."""
    make_room: Callable[[], None]
    """Drops rows that are cached, if they take much memory."""
