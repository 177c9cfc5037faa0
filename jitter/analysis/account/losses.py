"""The rows of the account: what a step loses, each to one rank or collective, one class of time and one place."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from jitter.analysis.execution.self_times import TimePart
from jitter.core.numeric.arrays import Bools, Floats, Ints, begins_of, pieces_of


class LossClass(IntEnum):
    """A class of lost time. The first four are a rank's own, with places; the transfer is a group's."""

    START = 0
    """Host time up to the launch of the step's first main-stream kernel."""
    LAUNCH = 1
    """Host time after that, up to the last launch of the step."""
    AFTER = 2
    """Host time after the last launch of the step: optimizer, logging, a pause before memory is freed."""
    GPU = 3
    """Durations of kernels and copies, and delays between them on the GPU."""
    TRANSFER = 4
    """From a collective's last arrival to its end; of no rank."""
    OVERLAP = 5
    """Time that kernels lose beside collectives and that no single cause owes."""
    CARRIED = 6
    """Left by steps that are gone through no more."""
    UNEXPLAINED = 7
    """What the graph does not tell: unknown times, rounding."""

    @property
    def label(self) -> str:
        """Return the name in tables and JSON."""
        return self.name.lower()


OWN_CLASSES: Final = (LossClass.START, LossClass.LAUNCH, LossClass.AFTER, LossClass.GPU)
"""What a rank itself loses."""
RANK_CLASSES: Final = (*OWN_CLASSES, LossClass.OVERLAP, LossClass.CARRIED)
"""What the job loses to a rank: its own time, and how it came to the step, which may be early."""
CLASSES_OF_PART: Final[Mapping[TimePart, tuple[LossClass, ...]]] = {
    TimePart.START: (LossClass.START,),
    TimePart.CPU: (LossClass.LAUNCH, LossClass.AFTER),
    TimePart.GPU: (LossClass.GPU,),
    TimePart.TRANSFER: (LossClass.TRANSFER,),
}
"""The classes into which what is lost by a part of self time falls."""


_ROWS_AT_ONCE: Final = 1 << 16
"""Rows of small tables that are selected from at once."""


@dataclass(eq=False)
class Losses:
    """Rows of steps, in columns; -1 for what a row has not."""

    numbers: Ints
    """(6, rows) the columns of whole numbers."""
    ns: Floats
    """(2, rows) the columns of times."""

    @property
    def origin(self) -> Ints:
        """Number in the run of the step of the self time: the step, or one before it."""
        column: Ints = self.numbers[0]
        return column

    @property
    def rank(self) -> Ints:
        """Of the job; -1 of a transfer."""
        column: Ints = self.numbers[1]
        return column

    @property
    def team(self) -> Ints:
        """Of the rank."""
        column: Ints = self.numbers[2]
        return column

    @property
    def loss_class(self) -> Ints:
        """Number of the `LossClass`."""
        column: Ints = self.numbers[3]
        return column

    @property
    def place(self) -> Ints:
        """The operation in the team's program; -1 in the row of a rank and class that sums up small shares."""
        column: Ints = self.numbers[4]
        return column

    @property
    def group(self) -> Ints:
        """Of a transfer, of all groups of all collectives."""
        column: Ints = self.numbers[5]
        return column

    @property
    def loss_ns(self) -> Floats:
        """The share of the step's loss."""
        column: Floats = self.ns[0]
        return column

    @property
    def excess_ns(self) -> Floats:
        """Own time above the baseline, whether the step ends later for it or not.

        NaN where there is none, or a row of an earlier step has it.
        """
        column: Floats = self.ns[1]
        return column

    def __len__(self) -> int:
        return len(self.loss_ns)

    def where(self, chosen: Bools | Ints) -> "Losses":
        """Return a copy of the chosen rows."""
        at = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        return Losses(self.numbers.take(at, axis=1), self.ns.take(at, axis=1))

    def part(self, first: int, after: int) -> "Losses":
        """Return a view of rows that follow each other."""
        return Losses(self.numbers[:, first:after], self.ns[:, first:after])

    def of(self, classes: Collection[LossClass], rank: int | None = None) -> "Losses":
        """Return the rows of some classes; of one rank if it is given."""
        is_wanted = np.zeros(len(LossClass), np.bool_)
        is_wanted[list(classes)] = True
        chosen = is_wanted[self.loss_class]
        return self.where(chosen if rank is None else chosen & (self.rank == rank))

    def rows(self) -> Iterator[tuple[int, int, int, int, int, float]]:
        """Yield the rank, team, class, place, group and loss of each row."""
        columns = (self.rank, self.team, self.loss_class, self.place, self.group, self.loss_ns)
        return zip(*(column.tolist() for column in columns), strict=True)

    def by_class(self) -> Floats:
        """Return, (classes,), the sum of the shares of each `LossClass`."""
        sums_ns: Floats = np.bincount(self.loss_class, self.loss_ns, len(LossClass)).astype(np.float64)
        return sums_ns


def join_some(parts: Sequence[Losses]) -> Iterator[Losses]:
    """Yield the rows of many tables, of some tables at once.

    To select rows of a small table takes as long as to select them of one with thousands of rows.
    """
    for together in pieces_of(begins_of(map(len, parts)), _ROWS_AT_ONCE):
        yield join_losses(parts[together])


def join_losses(parts: Sequence[Losses]) -> Losses:
    """Return all rows of several tables."""
    if len(parts) == 1:
        return parts[0]
    return Losses(*(np.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("numbers", "ns")))
