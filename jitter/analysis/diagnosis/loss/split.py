"""Splits the loss by part and rank, along the critical path; the shares add up to the loss exactly.

The path charges each operation its excess: own time above the baseline. Where other work hides some of the excess, the
charges exceed the loss and are scaled down to it. The rest of the loss, without a charge on the path, is unexplained.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from jitter.analysis.diagnosis.model import LOSS_PARTS, LossPart, LossShare, RankShare
from jitter.analysis.execution.time_part import TimePart
from jitter.analysis.replay.charges import Charges

PART_OF: Final[Mapping[TimePart, LossPart]] = {
    TimePart.START: "late_start",
    TimePart.CPU: "cpu_launch",
    TimePart.GPU: "gpu",
    TimePart.TRANSFER: "communication",
}
"""The part of the loss to which each charge of the path belongs."""

Charged = Mapping[tuple[LossPart, int | None], float]
"""Excess by part and rank, ns; the rank is None for communication, which belongs to a group of ranks."""


def sum_charges(
    paths: Iterable[tuple[Charges, Mapping[tuple[int, TimePart], float]]],
) -> dict[tuple[LossPart, int | None], float]:
    """Return the charges of several paths by part and rank.

    With each path comes the time after the last launch among its charges, by rank and charged part.
    """
    found: dict[tuple[LossPart, int | None], float] = {}
    for charges, after in paths:
        for (rank, part), excess_ns in after.items():
            found["cpu_after", rank] = found.get(("cpu_after", rank), 0.0) + excess_ns
            found[PART_OF[part], rank] = found.get((PART_OF[part], rank), 0.0) - excess_ns
        ranks: list[int] = np.unique(charges.rank).tolist()
        for rank, parts in zip(ranks, charges.sums(ranks).tolist(), strict=True):
            for part, name in PART_OF.items():
                key = name, None if part == TimePart.TRANSFER else rank
                found[key] = found.get(key, 0.0) + parts[part]
    return found


def split_loss(charged: Charged, loss_ns: int | None, time_ns: int | None) -> tuple[LossShare, ...]:
    """Return the shares of a loss in the order of `LOSS_PARTS`; empty if the loss is unknown.

    Args:
        charged: the excess on the critical paths of the steps that have a loss.
        loss_ns: the loss of these steps.
        time_ns: the time of these steps; None if unknown.

    """
    if loss_ns is None:
        return ()
    above = {key: excess_ns for key, excess_ns in charged.items() if excess_ns > 0}
    # operations that took less than their baseline shortened the path
    explained = min(max(loss_ns, 0), max(sum(charged.values()), 0.0))
    scale = explained / sum(above.values()) if above else 0.0
    shares = {key: round(excess_ns * scale) for key, excess_ns in above.items()}
    rest = loss_ns - sum(shares.values())
    if shares and abs(rest) <= len(shares):
        shares[max(shares, key=lambda key: shares[key])] += rest  # the error of rounding
        rest = 0
    return tuple(_share(part, shares, rest, time_ns) for part in LOSS_PARTS)


def _share(
    part: LossPart, shares: Mapping[tuple[LossPart, int | None], int], rest: int, time_ns: int | None
) -> LossShare:
    own = {rank: ns for (of, rank), ns in shares.items() if of == part and ns}
    ns = rest if part == "unexplained" else sum(own.values())
    ranks = [RankShare(rank, its) for rank, its in own.items() if rank is not None]
    return LossShare(
        part, ns, ns / time_ns if time_ns else None, tuple(sorted(ranks, key=lambda one: (-one.ns, one.rank)))
    )
