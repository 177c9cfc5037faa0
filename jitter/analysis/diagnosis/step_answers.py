"""One answer a step: its time, its loss, who came first and last, where the last one left the others, and why."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from jitter.analysis.detection.passes import StepPath
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.culprits import FindingGroup
from jitter.analysis.diagnosis.evidence import Evidence
from jitter.analysis.diagnosis.model import Cause, Divergence, Split, StepAnswer
from jitter.analysis.replay.critical_path import Charge, Part
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
        if several and not path.charges:
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
    excess: dict[int, dict[Part, float]] = defaultdict(lambda: dict.fromkeys(Part, 0.0))
    for charge in path.charges:
        excess[charge.rank][charge.part] += charge.excess_ns
    own = {rank: parts[Part.START] + parts[Part.CPU] + parts[Part.GPU] for rank, parts in excess.items()}
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


def _split(parts: dict[Part, float]) -> Split:
    """Round so that the parts still add up to the whole."""
    start, cpu = round(parts[Part.START]), round(parts[Part.CPU])
    return Split(start, cpu, round(parts[Part.START] + parts[Part.CPU] + parts[Part.GPU]) - start - cpu)


def _cause(number: int, worst: int | None, cases: Sequence[FindingGroup]) -> Cause:
    """The cause of the case that the step's max rank is in; else of slow transfers in this step."""
    here = [case for case in cases if number in case.steps]
    for case in here:
        if worst in case.group.ranks and case.parts:
            return case.cause
    return next((case.cause for case in here if not case.parts), "none")


def _began(
    number: int, charges: Sequence[Charge], worst: int | None, cause: Cause, examined: RunAnalysis, facts: Evidence
) -> Divergence | None:
    """Where it began: on the max rank's worst stretch; of slow collectives, at the first that was slow."""
    if cause == "communication":
        slow = [charge for charge in reversed(charges) if charge.part == Part.TRANSFER and charge.excess_ns > 0]
        least = max((charge.excess_ns for charge in slow), default=0.0) / 2
        first = next((charge for charge in slow if charge.excess_ns >= least), None)
        return None if first is None else _at(first, facts)
    return None if worst is None or cause == "none" else _divergence(number, charges, worst, examined, facts)


def _at(charge: Charge, facts: Evidence) -> Divergence | None:
    index = facts.kernel_index(charge.team, charge.place)
    return None if index is None else Divergence(index, facts.kernel_name(charge.team, index))


def _divergence(
    number: int, charges: Sequence[Charge], rank: int, examined: RunAnalysis, facts: Evidence
) -> Divergence | None:
    """On the rank's stretch with the most excess: where the sum of its excess leaves the noise for good."""
    best: list[Charge] = []
    for of, group in groupby(reversed(charges), key=lambda charge: charge.rank):
        stretch = [charge for charge in group if charge.part != Part.TRANSFER]
        if of == rank and sum(c.excess_ns for c in stretch) > sum(c.excess_ns for c in best):
            best = stretch
    if not best:
        return None
    excess = np.array([charge.excess_ns for charge in best])
    kinds = {(charge.team, charge.part) for charge in best}
    variance = {kind: examined.variance_of(number, *kind) for kind in kinds}
    noise = _NOISE * np.sqrt(np.cumsum([variance[charge.team, charge.part] for charge in best]))
    least = max(_FLOOR_NS, _LEAST_SHARE * float(excess.sum()))
    outside = excess.cumsum() > np.maximum(np.minimum(noise, excess.sum() / 2), least)
    if not outside[-1]:
        return None
    inside = np.flatnonzero(~outside)
    return _at(best[int(inside[-1]) + 1 if len(inside) else 0], facts)
