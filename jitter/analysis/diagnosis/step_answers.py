"""The diagnosis of each step: its time, its loss, min and max rank, where the max rank diverges, and the cause."""

from collections.abc import Collection, Sequence

import numpy as np

from jitter.analysis.account.losses import CLASSES_OF_PART, OWN_CLASSES, LossClass, join_losses
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.grouping.finding_groups import FindingGroup
from jitter.analysis.diagnosis.limitations import lacks_common_step
from jitter.analysis.diagnosis.loss.split import split_step
from jitter.analysis.diagnosis.model import KernelLocation, StepAnswer
from jitter.analysis.execution.self_times import OWN_PARTS
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.step_key import StepKey


def answer_steps(evidence: Evidence, groups: Sequence[FindingGroup]) -> tuple[StepAnswer, ...]:
    """Return the diagnosis of every step of the run, in order."""
    here: list[list[FindingGroup]] = [[] for _ in evidence.analysis.keys]
    for group in groups:
        for number in group.steps:
            here[number].append(group)
    return tuple(_answer(number, evidence, groups_here) for number, groups_here in enumerate(here))


def _answer(number: int, evidence: Evidence, here: Sequence[FindingGroup]) -> StepAnswer:
    analysis, key = evidence.analysis, evidence.analysis.keys[number]
    step_ns, loss_ns = analysis.measured.step_ns[number], analysis.account.loss_ns[number]
    is_timed = not np.isnan(step_ns)
    # when the first of consecutive steps began is unknown
    has_loss = is_timed and not np.isnan(loss_ns) and not analysis.account.contradicts_recording
    if evidence.is_single_rank:
        has_loss = has_loss and len(analysis.keys) >= THRESHOLDS.min_steps
    elif lacks_common_step(evidence):
        has_loss = False
    losses, measured = evidence.after_launches.losses(number), analysis.measured.of_steps[number]
    waited = measured.arrivals.waited_ns
    longest_ns = max(waited.values(), default=0.0)
    min_rank = min((rank for rank, ns in waited.items() if 0 < ns == longest_ns), default=None)
    largest, own_ns = analysis.account.of_steps[number].largest, None
    # a single rank is compared with itself
    max_rank = int(largest.rank[0]) if len(largest) and not evidence.is_single_rank else None
    if not measured.arrivals.are_any and not evidence.is_single_rank:
        min_rank, max_rank = _ttke_extremes(key, evidence)
    elif max_rank is not None:
        own_ns = round(float(losses.of(OWN_CLASSES, max_rank).by_class().sum()))
    transfers_ns = float(losses.by_class()[LossClass.TRANSFER])
    group = _decisive(max_rank, here, evidence.is_single_rank, is_of_transfers=transfers_ns > (own_ns or 0))
    return StepAnswer(
        key=key,
        step_time_ns=round(float(step_ns)) if is_timed else None,
        loss_ns=round(float(loss_ns)) if has_loss else None,
        loss_fraction=float(loss_ns / step_ns) if has_loss and step_ns else None,
        min_rank=min_rank,
        max_rank=max_rank,
        divergence=_divergence(number, group, evidence),
        max_rank_loss_ns=own_ns,
        cause="none" if group is None else group.cause,
        by_class=split_step(losses, round(float(loss_ns))) if has_loss else None,
        kind=analysis.steps.alike.kinds[number],
        experts=measured.experts,
    )


def _ttke_extremes(key: StepKey, evidence: Evidence) -> tuple[int | None, int | None]:
    """Return the ranks of the least and the greatest time to kernel end at k*; of several cohorts, the costliest's."""
    readings = [reading for reading in evidence.traces.ttke_readings([key]) if reading.max_rank is not None]
    worst = max(readings, key=lambda reading: reading.magnitude_ns or 0.0, default=None)
    return (None, None) if worst is None else (worst.min_rank, worst.max_rank)


def _decisive(
    max_rank: int | None, here: Sequence[FindingGroup], is_single_rank: bool, *, is_of_transfers: bool
) -> FindingGroup | None:
    """Return the step's group with its max rank, or of its slow communication: which loses more.

    A single rank is the rank of every finding.
    """
    if max_rank is None and is_single_rank and here:
        return max(here, key=lambda group: group.excess_ns)
    of_max_rank = [group for group in here if max_rank in group.group.ranks and group.parts]
    of_links = [group for group in here if not group.parts and group.known_gain_ns is None]
    return next(iter([*of_links, *of_max_rank] if is_of_transfers else [*of_max_rank, *of_links]), None)


def _divergence(number: int, group: FindingGroup | None, evidence: Evidence) -> KernelLocation | None:
    """Return the first kernel at which the max rank falls behind; of slow communication, the first slow collective."""
    if group is None:
        return None
    if group.parts:
        place = _first_late(number, [lost for part in group.parts for lost in CLASSES_OF_PART[part]], evidence)
    else:
        place = _first_slow_collective(number, evidence)
    return None if place is None else evidence.kernels.locate(evidence.analysis.keys[number], *place)


def _first_slow_collective(number: int, evidence: Evidence) -> tuple[int, int, int] | None:
    """Return (rank, team, place) of the first collective with at least half of the largest share of a collective."""
    transfers = evidence.after_launches.losses(number).of([LossClass.TRANSFER])
    slow = transfers.where((transfers.origin == number) & (transfers.loss_ns > 0))
    if not len(slow):
        return None
    located = evidence.locate_transfers(slow.where(slow.loss_ns >= slow.loss_ns.max() / 2))
    first = int(np.argmin(located.place))
    return int(located.rank[first]), int(located.team[first]), int(located.place[first])


def _first_late(number: int, classes: Collection[LossClass], evidence: Evidence) -> tuple[int, int, int] | None:
    """Return (rank, team, place) from which on what the max rank loses in some classes stays above the noise.

    The step after it loses what the rank loses at the end of the step.
    """
    accounts = evidence.analysis.account.of_steps
    largest = accounts[number].largest
    shares = largest.where(largest.origin == number)
    if number + 1 < len(accounts) and len(largest):
        after = accounts[number + 1].largest
        shares = join_losses([shares, after.where((after.origin == number) & (after.rank == largest.rank[0]))])
    shares = shares.of(classes)
    lost_ns = float(shares.loss_ns.sum())
    if not lost_ns > 0:
        return None
    shares = shares.where(np.argsort(shares.place, kind="stable"))
    variances = np.zeros(len(LossClass))
    for part in OWN_PARTS:
        variances[list(CLASSES_OF_PART[part])] = evidence.analysis.measured.noise[number].variance[shares.team[0], part]
    # of ranks that are equally late each is charged a part of what it is late, so also of its noise
    with np.errstate(divide="ignore", invalid="ignore"):
        charged = np.clip(np.nan_to_num(shares.loss_ns / shares.excess_ns, nan=1.0), 0, 1)
    noise = THRESHOLDS.divergence_sigmas * np.sqrt(np.cumsum(charged**2 * variances[shares.loss_class]))
    least = max(THRESHOLDS.later_ns, THRESHOLDS.min_clear_share * lost_ns)
    outside = shares.loss_ns.cumsum() > np.maximum(np.minimum(noise, lost_ns / 2), least)
    if not outside[-1]:
        return None
    inside = np.flatnonzero(~outside)
    first = int(inside[-1]) + 1 if len(inside) else 0
    return int(shares.rank[first]), int(shares.team[first]), int(shares.place[first])
