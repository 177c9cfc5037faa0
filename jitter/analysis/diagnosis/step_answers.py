"""The diagnosis of each step: its time, its loss, min and max rank, where the max rank diverges, and the cause."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jitter.analysis.detection.executors.passes import StepPath
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.grouping.finding_groups import FindingGroup
from jitter.analysis.diagnosis.limitations import lacks_common_step
from jitter.analysis.diagnosis.loss.noise import variance_of_charges
from jitter.analysis.diagnosis.model import Cause, Divergence, PathSplit, Split, StepAnswer
from jitter.analysis.execution.time_part import OWN_PARTS, TimePart
from jitter.analysis.replay.charges import Charge, Charges
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Ints
from jitter.core.step_key import StepKey

TtkeExtremes = Callable[[StepKey], tuple[int | None, int | None]]
"""Returns the ranks with the least and the greatest time to kernel end at the end of a step."""


def answer_steps(
    evidence: Evidence, groups: Sequence[FindingGroup], ttke_extremes: TtkeExtremes
) -> tuple[StepAnswer, ...]:
    """Return the diagnosis of every step of the run, in order.

    A step without a critical path (its ranks share no collective) has the min and max rank of `ttke_extremes`.
    """
    paths = evidence.analysis.paths
    here: list[list[FindingGroup]] = [[] for _ in paths]
    for group in groups:
        for number in group.steps:
            here[number].append(group)
    answers = [_answer(number, path, evidence, here[number]) for number, path in enumerate(paths)]
    for number, path in enumerate(paths):
        if not len(path.charges) and not evidence.is_single_rank:
            least, greatest = ttke_extremes(path.key)
            answers[number] = replace(answers[number], min_rank=least, max_rank=greatest)
    return tuple(answers)


def _answer(number: int, path: StepPath, evidence: Evidence, here: Sequence[FindingGroup]) -> StepAnswer:
    analysis = evidence.analysis
    step_ns, loss_ns = analysis.step_ns[number], analysis.loss_ns[number]
    is_timed = not np.isnan(step_ns)
    # when the first of consecutive steps began is unknown
    has_loss = is_timed and not np.isnan(loss_ns) and not analysis.contradicts_recording
    if evidence.is_single_rank:
        has_loss = has_loss and len(analysis.keys) >= THRESHOLDS.min_steps_without_peers
    elif lacks_common_step(evidence):
        has_loss = False
    charges = path.whole
    ranks: list[int] = np.unique(charges.rank).tolist()
    excess = dict(zip(ranks, charges.sums(ranks).tolist(), strict=True))
    own = {rank: sum(parts[part] for part in OWN_PARTS) for rank, parts in excess.items()}
    max_rank = max(own, key=lambda rank: (own[rank], -rank), default=None)
    if max_rank is not None and not own[max_rank] > 0:  # nor where it is unknown
        max_rank = None
    waited = {rank: ns for rank, ns in path.waited_ns.items() if ns > 0}
    cause = _cause(max_rank, here, evidence.is_single_rank)
    return StepAnswer(
        key=path.key,
        step_time_ns=round(float(step_ns)) if is_timed else None,
        loss_ns=round(float(loss_ns)) if has_loss else None,
        loss_fraction=float(loss_ns / step_ns) if has_loss and step_ns else None,
        min_rank=max(waited, key=lambda rank: (waited[rank], -rank), default=None),
        max_rank=max_rank,
        divergence=_divergence(number, path, max_rank, cause, evidence),
        split=None if max_rank is None else _split(excess[max_rank], evidence.after_launches.of_rank(number, max_rank)),
        cause=cause,
        path=_path_split(charges, evidence.after_launches.of_step(number)) if len(path.charges) else None,
    )


def _path_split(charges: Charges, after: Mapping[tuple[int, TimePart], float]) -> PathSplit:
    """Sum the charges by part; `after` lies after the last launch, by rank and charged part."""
    start, cpu, gpu, transfer = np.bincount(charges.part, charges.excess_ns, len(TimePart)).tolist()
    later = {part: sum(ns for (_, own), ns in after.items() if own == part) for part in (TimePart.START, TimePart.CPU)}
    start, cpu = start - later[TimePart.START], cpu - later[TimePart.CPU]
    return PathSplit(start, cpu, sum(later.values()), gpu, transfer)


def _split(parts: Sequence[float], after: Mapping[TimePart, float]) -> Split:
    """Round the parts, by `TimePart`, so that they add up to the rounded sum; `after` lies after the last launch."""
    start, cpu = (round(parts[part] - after.get(part, 0.0)) for part in (TimePart.START, TimePart.CPU))
    later = round(sum(after.values()))
    return Split(start, cpu, later, round(sum(parts[part] for part in OWN_PARTS)) - start - cpu - later)


def _cause(max_rank: int | None, here: Sequence[FindingGroup], is_single_rank: bool) -> Cause:
    """Return the cause of the step's group with its max rank, else of its slow communication.

    A single rank is the rank of every finding.
    """
    if max_rank is None and is_single_rank and here:
        return max(here, key=lambda group: group.excess_ns).cause
    for group in here:
        if max_rank in group.group.ranks and group.parts:
            return group.cause
    return next((group.cause for group in here if not group.parts), "none")


def _divergence(
    number: int, path: StepPath, max_rank: int | None, cause: Cause, evidence: Evidence
) -> Divergence | None:
    """Return the first kernel of the max rank's worst stretch; of slow communication, the first slow collective."""
    if cause == "communication":
        first = _first_slow_collective(path.charges)
    elif max_rank is None or cause == "none":
        return None
    else:
        first = _first_of_stretch(number, path.charges, max_rank, evidence)
    kernel = None if first is None else evidence.kernels.locate(path.key, first)
    return None if kernel is None else Divergence(*kernel)


def _first_slow_collective(charges: Charges) -> Charge | None:
    """Return the first collective with at least half of the largest excess of a collective."""
    slow = np.flatnonzero((charges.part == TimePart.TRANSFER) & (charges.excess_ns > 0))[::-1]
    if not len(slow):
        return None
    excess = charges.excess_ns[slow]
    return charges[int(slow[int((excess >= excess.max() / 2).argmax())])]


def _first_of_stretch(number: int, charges: Charges, rank: int, evidence: Evidence) -> Charge | None:
    """Return the charge from which on the summed excess of the rank's worst stretch stays above the noise."""
    order = np.arange(len(charges))[::-1]
    worst: Ints = np.zeros(0, np.int64)
    for stretch in np.split(order, np.flatnonzero(np.diff(charges.rank[order])) + 1):
        if len(stretch) and charges.rank[stretch[0]] == rank:
            own = stretch[charges.part[stretch] != TimePart.TRANSFER]
            if charges.excess_ns[own].sum() > charges.excess_ns[worst].sum():
                worst = own
    if not len(worst):
        return None
    excess = charges.excess_ns[worst]
    sigma = np.sqrt(np.cumsum(variance_of_charges(evidence.analysis, number, charges.where(worst))))
    noise = THRESHOLDS.divergence_sigmas * sigma
    least = max(THRESHOLDS.divergence_floor_ns, THRESHOLDS.divergence_share * float(excess.sum()))
    outside = excess.cumsum() > np.maximum(np.minimum(noise, excess.sum() / 2), least)
    if not outside[-1]:
        return None
    inside = np.flatnonzero(~outside)
    return charges[int(worst[int(inside[-1]) + 1 if len(inside) else 0])]
