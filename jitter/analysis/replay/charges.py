"""Charges: the operations on a critical path, each with its excess above the team's median."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from jitter.analysis.execution.time_part import OWN_PARTS, TimePart
from jitter.core.numeric.arrays import Bools, Floats, Ints


class Charge(NamedTuple):
    """An operation on the path; `rank` is the last to arrive where it is a transfer."""

    rank: int
    team: int
    place: int
    part: TimePart
    excess_ns: float
    collective: int | None = None
    group: int | None = None


@dataclass(frozen=True, eq=False)
class Charges:
    """The operations on a path, the last first; (charges,) each."""

    rank: Ints
    team: Ints
    place: Ints
    part: Ints
    """`TimePart`."""
    excess_ns: Floats
    collective: Ints
    """Of a transfer; -1 elsewhere."""
    group: Ints
    """Of a transfer, among its collective's; -1 elsewhere."""

    def __len__(self) -> int:
        return len(self.rank)

    def __getitem__(self, at: int) -> Charge:
        return next(iter(self.where(np.array([at]))))

    def __iter__(self) -> Iterator[Charge]:
        columns = (self.rank, self.team, self.place, self.part, self.excess_ns, self.collective, self.group)
        for rank, team, place, part, excess, *where in zip(*(column.tolist() for column in columns), strict=True):
            of_collective = where if part == TimePart.TRANSFER else (None, None)
            yield Charge(rank, team, place, TimePart(part), excess, *of_collective)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Charges) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def where(self, chosen: Bools | Ints) -> "Charges":
        """Return the chosen charges."""
        return Charges(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def joined(self, other: "Charges") -> "Charges":
        """Return these charges and the other ones."""
        return Charges(*(np.concatenate([getattr(one, field.name) for one in (self, other)]) for field in fields(self)))

    def sums(self, ranks: Sequence[int]) -> Floats:
        """(ranks, parts): the excess of these ranks, which must ascend and be all that are charged."""
        found = np.zeros((len(ranks), len(TimePart)))
        np.add.at(found, (np.searchsorted(ranks, self.rank), self.part), self.excess_ns)
        return found

    def own_sums(self, ranks: Sequence[int]) -> Floats:
        """(ranks,): the excess of these ranks without transfers; see `sums`."""
        found: Floats = self.sums(ranks)[:, list(OWN_PARTS)].sum(axis=1)
        return found


def no_charges() -> Charges:
    """Return the charges of a path without operations."""
    nothing = np.zeros(0, np.int64)
    return Charges(nothing, nothing, nothing, nothing, np.zeros(0), nothing, nothing)
