"""The loss by class and rank: sums of the account's shares in whole ns, which add up to the loss exactly."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from jitter.analysis.account.losses import LossClass, Losses
from jitter.analysis.diagnosis.model import ClassShares, LossShare, RankShare

Key = TypeVar("Key")


def split_step(losses: Losses, loss_ns: int) -> ClassShares:
    """Return a step's loss by class."""
    sums = round_shares(dict(zip(LossClass, losses.by_class().tolist(), strict=True)), loss_ns)
    return ClassShares(*(sums[one] for one in LossClass))


def split_loss(steps: Iterable[Losses], loss_ns: int | None, time_ns: int | None) -> tuple[LossShare, ...]:
    """Return the run's loss by class, in the order of `LossClass`; empty if the loss is unknown.

    Args:
        steps: the shares of each step that has a loss.
        loss_ns: the loss of these steps.
        time_ns: the time of these steps; None if unknown.

    """
    if loss_ns is None:
        return ()
    found: dict[tuple[LossClass, int], float] = {}
    for losses in steps:
        columns = losses.loss_class.tolist(), losses.rank.tolist(), losses.loss_ns.tolist()
        for loss_class, rank, ns in zip(*columns, strict=True):
            key = LossClass(loss_class), rank
            found[key] = found.get(key, 0.0) + ns
    rounded = round_shares(found, loss_ns)
    return tuple(_share(one, rounded, time_ns) for one in LossClass)


def _share(loss_class: LossClass, shares: Mapping[tuple[LossClass, int], int], time_ns: int | None) -> LossShare:
    own = {rank: ns for (of, rank), ns in shares.items() if of == loss_class and ns}
    ns = sum(own.values())
    ranks = (
        [RankShare(rank, its) for rank, its in own.items() if rank >= 0] if loss_class != LossClass.UNEXPLAINED else []
    )
    fraction = ns / time_ns if time_ns else None
    return LossShare(loss_class.label, ns, fraction, tuple(sorted(ranks, key=lambda one: (-one.ns, one.rank))))


def round_shares(shares: Mapping[Key, float], whole: int) -> dict[Key, int]:
    """Round shares so that they add up to the rounded whole: the largest one takes the error of rounding."""
    rounded = {key: round(share) for key, share in shares.items()}
    if rounded:
        rounded[max(rounded, key=lambda key: abs(rounded[key]))] += whole - sum(rounded.values())
    return rounded
