"""The account of a run as one table: what is charged to each rank, class and step of its own time, and to transfers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jitter.analysis.account.losses import CLASSES_OF_PART, RANK_CLASSES, LossClass, Losses
from jitter.analysis.execution.self_times import OWN_PARTS
from jitter.core.numeric.arrays import Floats


@dataclass(frozen=True, eq=False)
class Charges:
    """What the run loses, by whose own time or transfer it is, whichever step ends later for it; ns."""

    ranks: Sequence[int]
    """Ascending."""
    ranks_ns: Floats
    """(steps, ranks, classes)."""
    transfers_ns: Mapping[tuple[int, int], Mapping[int, float]]
    """By (collective, group), then by step."""

    def column(self, rank: int) -> int:
        """Return where a rank stands."""
        return int(np.searchsorted(self.ranks, rank))

    def columns(self, ranks: Sequence[int]) -> list[int]:
        """Return where some ranks stand."""
        return [self.column(rank) for rank in ranks]

    @cached_property
    def own_ns(self) -> Floats:
        """(own parts, steps, ranks) what is charged to the parts of own time."""
        return np.array([self.ranks_ns[:, :, CLASSES_OF_PART[part]].sum(axis=2) for part in OWN_PARTS])

    def without(self, steps: Collection[int]) -> "Charges":
        """Return the charges with none in these steps, numbered in the run."""
        ranks_ns = self.ranks_ns.copy()
        ranks_ns[sorted(steps)] = 0.0
        transfers_ns = {
            place: {number: ns for number, ns in of_steps.items() if number not in steps}
            for place, of_steps in self.transfers_ns.items()
        }
        return Charges(self.ranks, ranks_ns, transfers_ns)

    def totals_ns(self) -> Floats:
        """Return (ranks, own parts) the sums over the run; 0 for a rank that shortens it."""
        totals_ns: Floats = np.maximum(self.own_ns.sum(axis=1), 0.0).T
        return totals_ns

    def all_ns(self) -> float:
        """Return what is charged to ranks, how early or late they came to a step included, and to communication."""
        transfers_ns = sum(sum(of_group.values()) for of_group in self.transfers_ns.values())
        ranks_ns = self.ranks_ns[:, :, RANK_CLASSES].sum(axis=(0, 2))
        return float(np.maximum(ranks_ns, 0.0).sum()) + max(transfers_ns, 0.0)

    def count_last(self, column: int) -> tuple[int, int]:
        """Return in how many steps the rank of a column has the largest share, and of how many."""
        of_steps = self.ranks_ns[:, :, RANK_CLASSES].sum(axis=2)
        of_steps = of_steps[of_steps.max(axis=1) > 0]
        return int((np.argmax(of_steps, axis=1) == column).sum()), len(of_steps)


def sum_charges(tables: Iterable[Losses], ranks: Sequence[int], steps: int) -> Charges:
    """Add up the rows of the steps that count, of so many that the run has; `ranks` must ascend."""
    ranks_ns = np.zeros((steps, len(ranks), len(LossClass)))
    transfers_ns: dict[tuple[int, int], dict[int, float]] = {}
    for losses in tables:
        own = losses.where(losses.rank >= 0)
        np.add.at(ranks_ns, (own.origin, np.searchsorted(ranks, own.rank), own.loss_class), own.loss_ns)
        rows = losses.of([LossClass.TRANSFER])
        places = zip(rows.collective.tolist(), rows.group.tolist(), strict=True)
        for place, number, ns in zip(places, rows.origin.tolist(), rows.loss_ns.tolist(), strict=True):
            of_group = transfers_ns.setdefault(place, {})
            of_group[number] = of_group.get(number, 0.0) + ns
    return Charges(ranks, ranks_ns, transfers_ns)
