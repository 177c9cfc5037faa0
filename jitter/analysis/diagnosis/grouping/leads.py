"""Leads: where the loss lies on the critical path although no rank passes the tests of significance.

A rank that is last in nearly all steps, or late launches on every rank, explain a loss even if few steps or noisy
operations prove nothing. Leads have low confidence.
"""

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from jitter.analysis.detection.findings import PricedFinding, repair_scenario
from jitter.analysis.detection.job_findings import JobFinding
from jitter.analysis.detection.outliers.find_outliers import Outlier
from jitter.analysis.detection.outliers.significance import binomial_tail
from jitter.analysis.diagnosis.causes import find_cause
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.grouping.finding_groups import FindingGroup
from jitter.analysis.diagnosis.grouping.scopes import RankGroup
from jitter.analysis.diagnosis.loss.noise import loss_from_noise
from jitter.analysis.diagnosis.model import Cause
from jitter.analysis.execution.time_part import OWN_PARTS, TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count
from jitter.core.numeric.arrays import Floats

_HOST_PARTS = tuple(part for part in OWN_PARTS if part != TimePart.GPU)


class PathExcess:
    """The excess on the critical paths by step, rank and part."""

    def __init__(self, evidence: Evidence, timed: Sequence[int]) -> None:
        analysis = evidence.analysis
        self.ranks = sorted(analysis.run.team_of)
        self.own_ns: Floats = np.stack([path.whole.sums(self.ranks) for path in analysis.paths])
        """(steps, ranks, parts)."""
        self.timed = tuple(timed)
        """Positions in the run of the steps with a loss."""

    def most_often_last(self) -> tuple[int, int, int] | None:
        """Return the column of the rank with the most excess of its own in most steps, in how many, and of how many."""
        of_steps = self.own_ns[:, :, list(OWN_PARTS)].sum(axis=2)
        steps = np.flatnonzero(of_steps.max(axis=1) > 0)
        if len(steps) < 2:
            return None
        column, times = Counter(np.argmax(of_steps[steps], axis=1).tolist()).most_common(1)[0]
        return column, times, len(steps)


def find_leads(evidence: Evidence, groups: Sequence[FindingGroup], saved_ns: float) -> list[FindingGroup]:
    """Return what explains the loss where `groups` of findings, which save `saved_ns`, do not; at most one lead."""
    analysis = evidence.analysis
    timed = np.flatnonzero(~np.isnan(analysis.step_ns) & ~np.isnan(analysis.loss_ns)).tolist()
    loss_ns, time_ns = float(analysis.loss_ns[timed].sum()), float(analysis.step_ns[timed].sum())
    if len(analysis.run.team_of) < 2 or not timed or loss_ns < THRESHOLDS.min_lead_share * time_ns:
        return []
    if saved_ns >= THRESHOLDS.lead_share * loss_ns:
        return []
    excess = PathExcess(evidence, timed)
    named = {(one.rank, one.part) for group in groups for one in group.outliers}
    lead = _one_rank(evidence, excess, named, time_ns)
    if lead is None and loss_ns > THRESHOLDS.loss_noise_factor * loss_from_noise(analysis, timed):
        lead = _every_rank(evidence, excess, time_ns)
    return [] if lead is None else [lead]


def _one_rank(
    evidence: Evidence, excess: PathExcess, named: Collection[tuple[int, TimePart]], time_ns: float
) -> FindingGroup | None:
    """Return the rank that has most of the excess, step after step, if no finding has `named` it and its part."""
    run = evidence.analysis.run
    repeated = excess.most_often_last()
    if repeated is None or any(size < 2 for size in run.sizes.values()):
        return None  # a rank without peers has no other ranks' median
    column, times, steps = repeated
    if chance_of_repetition(times, steps, len(excess.ranks)) > THRESHOLDS.max_lead_chance:
        return None
    totals = np.maximum(excess.own_ns.sum(axis=0), 0)
    part = OWN_PARTS[int(np.argmax(totals[column, list(OWN_PARTS)]))]
    if totals[column, part] < THRESHOLDS.lead_share * totals.sum():
        return None
    rank = excess.ranks[column]
    if (rank, part) in named:
        return None
    mine = excess.own_ns[:, column, part]
    late = tuple(np.flatnonzero(mine > 0).tolist())
    noise = loss_from_noise(evidence.analysis, late)
    candidate = Outlier(
        run.team_of[rank], rank, part, late, float(mine[list(late)].sum()), float(mine.sum()) / max(noise, 1.0)
    )
    (gain,) = evidence.analysis.gains([repair_scenario(candidate)])
    is_short = steps < THRESHOLDS.min_steps_for_drift
    # in few steps a rank that is behind may hide that the others are as slow
    if gain < THRESHOLDS.min_lead_share * time_ns and not (is_short and part in _HOST_PARTS):
        return None
    location = evidence.locations[rank]
    cause, sentences = find_cause(evidence, candidate)
    few = "too few to be sure" if is_short else "not significant above the noise"
    why = f"it has the most excess on the critical path in {times} of {format_count(steps, 'step')}: {few}"
    group = RankGroup("rank", (rank,), location.host, location.device)
    return FindingGroup(
        (PricedFinding(candidate, gain, gain),),
        group,
        cause,
        (why, *_describe_arrivals(evidence, rank), *sentences),
        is_lead=True,
    )


def _describe_arrivals(evidence: Evidence, rank: int) -> tuple[str, ...]:
    """Say at how many collectives of the critical path the rank arrives last; nothing if at less than half."""
    charges = [path.charges for path in evidence.analysis.paths]
    last = [own.rank[own.part == TimePart.TRANSFER] for own in charges]
    count = sum(len(ranks) for ranks in last)
    times = sum(int((ranks == rank).sum()) for ranks in last)
    if 2 * times <= count:
        return ()
    return (f"it arrives last at {times:,} of {format_count(count, 'collective')} on the critical path",)


def _every_rank(evidence: Evidence, excess: PathExcess, time_ns: float) -> FindingGroup | None:
    """Return late launches on all ranks, if they are most of the loss."""
    run = evidence.analysis.run
    steps = excess.timed
    totals = np.maximum(excess.own_ns[list(steps)].sum(axis=0), 0)
    part = max(_HOST_PARTS, key=lambda one: float(totals[:, one].sum()))
    of_ranks, whole = totals[:, part], float(totals[:, part].sum())
    if whole < THRESHOLDS.lead_share * totals.sum() or of_ranks.max() > THRESHOLDS.max_share_of_one_rank * whole:
        return None
    candidate = JobFinding(
        "launch_bound",
        part,
        dict.fromkeys(excess.ranks, steps),
        whole,
        whole / max(loss_from_noise(evidence.analysis, steps), 1.0),
    )
    (gain,) = evidence.analysis.gains([repair_scenario(candidate)])
    if gain < THRESHOLDS.min_lead_share * time_ns:
        return None
    involved = int((of_ranks > 0).sum())
    most = ", ".join(
        f"{excess.ranks[at]} ({100 * of_ranks[at] / whole:.0f}%)" for at in np.argsort(-of_ranks)[:2].tolist()
    )
    why = f"{involved} of {format_count(len(run.team_of), 'rank')} hold up the job in turn, most of it ranks {most}"
    cause: Cause = "late_start" if part == TimePart.START else "cpu_launch"
    group = RankGroup("job", tuple(excess.ranks))
    return FindingGroup((PricedFinding(candidate, gain, gain),), group, cause, (why,), is_lead=True)


def chance_of_repetition(times: int, steps: int, ranks: int) -> float:
    """Return the probability that chance makes some rank the last one in at least `times` of `steps` steps.

    Binomial tail with 1 / ranks, times the number of ranks.

    >>> round(chance_of_repetition(3, 3, 4), 4), chance_of_repetition(2, 2, 2)
    (0.0625, 0.5)
    """
    return min(1.0, ranks * binomial_tail(times, steps, 1 / ranks))
