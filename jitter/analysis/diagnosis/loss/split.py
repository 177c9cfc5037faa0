"""The loss by class, in words and in whole ns; the side (CPU, GPU or network) of each class."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

import numpy as np

from jitter.analysis.account.losses import LossClass, Losses
from jitter.analysis.diagnosis.causes import CAUSES, Side
from jitter.analysis.diagnosis.model import Cause, ClassShares, LossShare, RankShare, StepAnswer
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_percent, format_some, format_time
from jitter.core.numeric.arrays import distinct_rows, joined


@dataclass(frozen=True)
class LossClassInfo:
    """Everything about one class of lost time."""

    words: str
    """Its name in prose."""
    cause: Cause
    """The cause of a finding that takes the whole class; `none` for what none explains."""

    @property
    def side(self) -> Side | None:
        """The side of the cause."""
        return CAUSES[self.cause].side


LOSS_CLASS_INFO: Final[Mapping[str, LossClassInfo]] = MappingProxyType(
    {
        LossClass.START.label: LossClassInfo("late step starts (CPU)", "late_start"),
        LossClass.LAUNCH.label: LossClassInfo("late kernel launches (CPU)", "cpu_launch"),
        LossClass.AFTER.label: LossClassInfo("host time after the last launch (CPU)", "cpu_after"),
        LossClass.GPU.label: LossClassInfo("GPU time", "gpu_compute"),
        LossClass.TRANSFER.label: LossClassInfo("communication (network)", "communication"),
        LossClass.OVERLAP.label: LossClassInfo("overlap with communication", "none"),
        LossClass.CARRIED.label: LossClassInfo("carried over from earlier steps", "none"),
        LossClass.UNEXPLAINED.label: LossClassInfo("unexplained", "none"),
    }
)
"""By the label of the class."""


def format_share(share: LossShare) -> str:
    """Return a share's size with the percentage of the run: `8.14 ms (9.05% of the run)`."""
    return format_time(share.ns) + ("" if share.fraction is None else f" ({format_percent(share.fraction)} of the run)")


def describe_share(share: LossShare) -> str:
    """Return a share with its class, size and ranks: `GPU time 8.14 ms (9.05% of the run), rank 5 (nearly all)`."""
    ranks = describe_ranks(share)
    return f"{LOSS_CLASS_INFO[share.loss_class].words} {format_share(share)}" + (f", {ranks}" if ranks else "")


def describe_ranks(share: LossShare) -> str:
    """Return the ranks with the most of a share: `ranks 6 (48%), 0 (45%) and 6 more`; empty if it has none."""
    sign = 1 if share.ns >= 0 else -1
    return _list_ranks({rank_share.rank: sign * rank_share.ns for rank_share in share.ranks[::sign]})


def describe_ranks_of_loss(split: Sequence[LossShare]) -> str:
    """Return the ranks with the most of the loss, all parts together; empty if no rank has any."""
    return _list_ranks(dict(sum_by_rank(split).most_common()))


def main_rank(split: Sequence[LossShare]) -> int | None:
    """Return the rank that has most of the loss; None if no rank has."""
    whole = sum(share.ns for share in split)
    rank, ns = next(iter(sum_by_rank(split).most_common(1)), (None, 0))
    return rank if ns > THRESHOLDS.max_share_of_one_rank * whole > 0 else None


def sum_by_rank(split: Sequence[LossShare]) -> Counter[int]:
    """Return what each rank has of the loss, all parts together, ns."""
    sums: Counter[int] = Counter()
    for share in split:
        sums.update({of_rank.rank: of_rank.ns for of_rank in share.ranks})
    return sums


def _list_ranks(ns_of: Mapping[int, int]) -> str:
    ns_of = {rank: ns for rank, ns in ns_of.items() if ns > 0}
    whole = sum(ns_of.values())
    if not whole:
        return ""
    if len(ns_of) == 1:
        return f"rank {next(iter(ns_of))}"
    listed = {rank: ns for rank, ns in ns_of.items() if round(100 * ns / whole) > 0}
    if len(listed) == 1:
        return f"rank {next(iter(listed))} (nearly all)"
    shares = [f"{rank} ({100 * ns / whole:.0f}%)" for rank, ns in listed.items()]
    return f"ranks {format_some(shares, THRESHOLDS.sentences.max_named)}"


def describe_split(split: Sequence[LossShare]) -> str:
    """Return the parts of the loss as one sentence, largest first; empty without a loss to split."""
    whole = sum(abs(share.ns) for share in split)
    if sum(share.ns for share in split) <= 0:
        return ""
    listed = [
        share
        for share in sorted(split, key=lambda share: -abs(share.ns))
        if abs(share.ns) > THRESHOLDS.min_cost_share * whole
    ]
    if all(LOSS_CLASS_INFO[share.loss_class].cause == "none" for share in listed):
        return ""
    return "; ".join(map(describe_share, listed))


Key = TypeVar("Key")


def split_step(losses: Losses, loss_ns: int) -> ClassShares:
    """Return a step's loss by class."""
    sums = round_shares(dict(zip(LossClass, losses.by_class().tolist(), strict=True)), loss_ns)
    return ClassShares(*(sums[loss_class] for loss_class in LossClass))


def list_classes(steps: Iterable[StepAnswer]) -> list[str]:
    """Return the fields of `ClassShares` that are not 0 in some step."""
    shares_of_steps = [step.by_class for step in steps if step.by_class is not None]
    return [name for name in ClassShares._fields if any(getattr(step_shares, name) for step_shares in shares_of_steps)]


def split_loss(steps: Iterable[Losses], loss_ns: int | None, time_ns: int | None) -> tuple[LossShare, ...]:
    """Return the run's loss by class, in the order of `LossClass`; empty if the loss is unknown.

    Args:
        steps: the shares of each step that has a loss.
        loss_ns: the loss of these steps.
        time_ns: the time of these steps; None if unknown.

    """
    if loss_ns is None:
        return ()
    rows = list(steps)
    loss_class, rank, ns = (
        joined(getattr(losses, name) for losses in rows) for name in ("loss_class", "rank", "loss_ns")
    )
    first, at = distinct_rows(loss_class, rank)
    sums = np.bincount(at, ns).tolist()
    shares = {(int(loss_class[first[key]]), int(rank[first[key]])): sums[key] for key in np.argsort(first).tolist()}
    of_class: dict[int, dict[int, int]] = {loss_class: {} for loss_class in LossClass}
    for (number, of_rank), share_ns in round_shares(shares, loss_ns).items():
        of_class[number][of_rank] = share_ns
    return tuple(_share(loss_class, of_class[loss_class], time_ns) for loss_class in LossClass)


def _share(loss_class: LossClass, shares: Mapping[int, int], time_ns: int | None) -> LossShare:
    whole = sum(shares.values())
    is_of_ranks = loss_class != LossClass.UNEXPLAINED
    ranks = [RankShare(rank, ns) for rank, ns in shares.items() if ns and rank >= 0 and is_of_ranks]
    fraction = whole / time_ns if time_ns else None
    return LossShare(
        loss_class.label,
        whole,
        fraction,
        tuple(sorted(ranks, key=lambda rank_share: (-rank_share.ns, rank_share.rank))),
    )


def round_shares(shares: Mapping[Key, float], whole: int) -> dict[Key, int]:
    """Round shares so that they add up to the rounded whole: the largest one takes the error of rounding."""
    rounded = {key: round(share) for key, share in shares.items()}
    if rounded:
        rounded[max(rounded, key=lambda key: abs(rounded[key]))] += whole - sum(rounded.values())
    return rounded
