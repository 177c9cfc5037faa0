"""One answer a step: its time, its loss, who came first and last, where the last one left the others, and why."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from jitter.analysis.detection.passes import StepPath
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.culprits import FindingGroup
from jitter.analysis.diagnosis.evidence import Evidence
from jitter.analysis.diagnosis.model import Cause, Divergence, Split, StepAnswer
from jitter.analysis.execution.self_times import CPU, GPU, START, TRANSFER
from jitter.analysis.replay.critical_path import Charges
from jitter.core.arrays import Ints
from jitter.core.step_key import StepKey

_NOISE = 5.0  # standard deviations
_FLOOR_NS = 2_000.0  # profilers' own resolution
_LEAST_SHARE = 0.02  # what is less than this part of the excess is not where it began


TtkeExtremes = Callable[[StepKey], tuple[int | None, int | None]]


def answer_steps(
    examined: RunAnalysis, facts: Evidence, cases: Sequence[FindingGroup], talks_reading: TtkeExtremes
) -> tuple[StepAnswer, ...]:
    """Answer for every step of the run, in order.

    Where ranks do not meet there is no path: then the min and max rank are those of the talk's reading (METRICS, 4).
    """
    answers = [_answer(number, path, examined, facts, cases) for number, path in enumerate(examined.paths)]
    several = len(examined.run.team_of) > 1
    for number, path in enumerate(examined.paths):
        if several and not len(path.charges):
            least, greatest = talks_reading(path.key)
            answers[number] = replace(answers[number], min_rank=least, max_rank=greatest)
    return tuple(answers)


def _answer(
    number: int, path: StepPath, examined: RunAnalysis, facts: Evidence, cases: Sequence[FindingGroup]
) -> StepAnswer:
    step_ns, loss_ns = examined.step_ns[number], examined.loss_ns[number]
    known = not np.isnan(step_ns)
    # of the first step of a stretch nobody knows when it began
    told = (known or np.isnan(examined.step_ns).all()) and not np.isnan(loss_ns)
    if len(examined.run.team_of) == 1:  # it can be compared with its own other steps alone
        told = told and len(examined.keys) >= examined.limits.least_steps_alone
    ranks: list[int] = np.unique(path.charges.rank).tolist()
    excess = dict(zip(ranks, path.charges.sums(ranks).tolist(), strict=True))
    own = {rank: parts[START] + parts[CPU] + parts[GPU] for rank, parts in excess.items()}
    worst = max(own, key=lambda rank: (own[rank], -rank), default=None)
    if worst is not None and own[worst] <= 0:
        worst = None
    waited = {rank: ns for rank, ns in path.waited_ns.items() if ns > 0}
    cause = _cause(number, worst, cases)
    return StepAnswer(
        key=path.key,
        step_time_ns=round(float(step_ns)) if known else None,
        loss_ns=round(float(loss_ns)) if told else None,
        loss_fraction=float(loss_ns / step_ns) if told and known and step_ns else None,
        min_rank=max(waited, key=lambda rank: (waited[rank], -rank), default=None),
        max_rank=worst,
        divergence=_began(number, path.charges, worst, cause, examined, facts),
        split=None if worst is None else _split(excess[worst]),
        cause=cause,
    )


def _split(parts: Sequence[float]) -> Split:
    """Round so that the parts still add up to the whole."""
    start, cpu = round(parts[START]), round(parts[CPU])
    return Split(start, cpu, round(parts[START] + parts[CPU] + parts[GPU]) - start - cpu)


def _cause(number: int, worst: int | None, cases: Sequence[FindingGroup]) -> Cause:
    """The cause of the case that the step's max rank is in; else of slow transfers in this step."""
    here = [case for case in cases if number in case.steps]
    for case in here:
        if worst in case.group.ranks and case.parts:
            return case.cause
    return next((case.cause for case in here if not case.parts), "none")


def _began(
    number: int, charges: Charges, worst: int | None, cause: Cause, examined: RunAnalysis, facts: Evidence
) -> Divergence | None:
    """Where it began: on the max rank's worst stretch; of slow collectives, at the first that was slow."""
    if cause == "communication":
        slow = np.flatnonzero((charges.part == TRANSFER) & (charges.excess_ns > 0))[::-1]
        if not len(slow):
            return None
        first = int((charges.excess_ns[slow] >= charges.excess_ns[slow].max() / 2).argmax())
        return _at(charges, int(slow[first]), facts)
    return None if worst is None or cause == "none" else _divergence(number, charges, worst, examined, facts)


def _at(charges: Charges, which: int, facts: Evidence) -> Divergence | None:
    team = int(charges.team[which])
    index = facts.kernel_index(team, int(charges.place[which]))
    return None if index is None else Divergence(index, facts.kernel_name(team, index))


def _divergence(number: int, charges: Charges, rank: int, examined: RunAnalysis, facts: Evidence) -> Divergence | None:
    """On the rank's stretch with the most excess: where the sum of its excess leaves the noise for good."""
    order = np.arange(len(charges))[::-1]
    walked = charges.rank[order]
    best: Ints = np.zeros(0, np.int64)
    for stretch in np.split(order, np.flatnonzero(np.diff(walked)) + 1):
        if len(stretch) and charges.rank[stretch[0]] == rank:
            own = stretch[charges.part[stretch] != TRANSFER]
            if charges.excess_ns[own].sum() > charges.excess_ns[best].sum():
                best = own
    if not len(best):
        return None
    excess, team, part = charges.excess_ns[best], charges.team[best], charges.part[best]
    variance = np.zeros(len(best))
    for one, other in set(zip(team.tolist(), part.tolist(), strict=True)):
        variance[(team == one) & (part == other)] = examined.variance_of(number, one, other)
    noise = _NOISE * np.sqrt(np.cumsum(variance))
    least = max(_FLOOR_NS, _LEAST_SHARE * float(excess.sum()))
    outside = excess.cumsum() > np.maximum(np.minimum(noise, excess.sum() / 2), least)
    if not outside[-1]:
        return None
    inside = np.flatnonzero(~outside)
    return _at(charges, int(best[int(inside[-1]) + 1 if len(inside) else 0]), facts)
