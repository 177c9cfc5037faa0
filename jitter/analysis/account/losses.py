"""The rows of the account: what a step loses, each to one rank or collective, one class of time and one place."""

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np

from jitter.core.numeric.arrays import Floats, Ints


class LossClass(IntEnum):
    """A class of lost time. The first ones are the parts of self time, `TimePart`."""

    START = 0
    """Host time up to the launch of the step's first main-stream kernel."""
    LAUNCH = 1
    """Host time after that."""
    GPU = 2
    """Durations of kernels and copies, and delays between them on the GPU."""
    TRANSFER = 3
    """From a collective's last arrival to its end; of no rank."""
    OVERLAP = 4
    """Time that kernels lose beside collectives and that no single cause owes."""
    CARRIED = 5
    """Left by steps before the one before."""
    UNEXPLAINED = 6
    """What the graph does not tell: unknown times, rounding."""

    @property
    def label(self) -> str:
        """Return the name in tables and JSON."""
        return self.name.lower()


@dataclass(frozen=True, eq=False)
class Losses:
    """Rows of one step, (rows,) each; -1 for what a row has not."""

    origin: Ints
    """Number in the run of the step of the self time: the step, or the one before it."""
    rank: Ints
    team: Ints
    loss_class: Ints
    place: Ints
    """The operation in the team's program; -1 in the row of a rank and class that sums up small shares."""
    collective: Ints
    """Of a transfer."""
    group: Ints
    """Of a transfer, among its collective's."""
    loss_ns: Floats
    """The share of the step's loss."""
    excess_ns: Floats
    """Own time above the baseline, whether the step ends later for it or not; NaN where there is none."""

    def __len__(self) -> int:
        return len(self.rank)


def join_losses(parts: list[Losses]) -> Losses:
    """Return all rows of several tables."""
    return Losses(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Losses)))
