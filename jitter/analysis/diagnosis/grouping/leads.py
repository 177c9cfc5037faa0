"""Leads: to whom the loss is charged although no rank passes the tests of significance.

A rank that is last in nearly all steps, one that stalls in a step, or late launches on every rank, explain a loss even
if few steps or noisy operations prove nothing.
"""

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from jitter.analysis.account.losses import CLASSES_OF_PART, RANK_CLASSES, LossClass
from jitter.analysis.detection.job_findings import JobFinding
from jitter.analysis.detection.pricing import PricedFinding
from jitter.analysis.detection.significance import binomial_tail
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.diagnosis.causes import find_cause
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.grouping.finding_groups import FindingGroup
from jitter.analysis.diagnosis.grouping.scopes import RankGroup
from jitter.analysis.diagnosis.model import Cause
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_percent
from jitter.core.numeric.arrays import Floats

_HOST_PARTS = tuple(part for part in OWN_PARTS if part != TimePart.GPU)


class OwnLosses:
    """What is charged to each rank's own time, by step and part."""

    def __init__(self, evidence: Evidence, timed: Sequence[int]) -> None:
        analysis = evidence.analysis
        self.ranks = sorted(analysis.run.team_of)
        by_class = np.stack([account.losses.by_rank(self.ranks) for account in analysis.accounts])
        self.own_ns: Floats = np.stack([by_class[:, :, CLASSES_OF_PART[part]].sum(axis=2) for part in OWN_PARTS], 2)
        """(steps, ranks, own parts)."""
        self.of_ranks_ns: Floats = by_class[:, :, RANK_CLASSES].sum(axis=2)
        """(steps, ranks), how early or late they came to the step included."""
        transfers = sum(float(account.losses.by_class()[LossClass.TRANSFER]) for account in analysis.accounts)
        self.all_ns = float(np.maximum(self.of_ranks_ns.sum(axis=0), 0).sum()) + max(transfers, 0.0)
        """What is charged to ranks and to communication, over the run."""
        self.timed = tuple(timed)
        """Positions in the run of the steps with a loss."""

    def most_often_last(self) -> tuple[int, int, int] | None:
        """Return the column of the rank with the largest share in most steps, in how many, and of how many."""
        of_steps = self.of_ranks_ns
        steps = np.flatnonzero(of_steps.max(axis=1) > 0)
        if not len(steps):
            return None
        column, times = Counter(np.argmax(of_steps[steps], axis=1).tolist()).most_common(1)[0]
        return column, times, len(steps)


def add_lead(evidence: Evidence, groups: Sequence[FindingGroup], saved_ns: float) -> list[FindingGroup]:
    """Return `groups` of findings, which save `saved_ns`, and the lead that explains the loss where they do not.

    No time is in two of them: late launches on every rank include the random pauses, and leave out a rank that has a
    finding of the same part.
    """
    analysis = evidence.analysis
    timed = np.flatnonzero(~np.isnan(analysis.step_ns) & ~np.isnan(analysis.loss_ns)).tolist()
    loss_ns, time_ns = float(analysis.loss_ns[timed].sum()), float(analysis.step_ns[timed].sum())
    if (
        len(analysis.run.team_of) < 2
        or analysis.are_uncoupled
        or not timed
        or loss_ns < THRESHOLDS.min_lead_share * time_ns
    ):
        return [*groups]
    if saved_ns >= THRESHOLDS.lead_share * loss_ns:
        return [*groups]
    charged = OwnLosses(evidence, timed)
    named = {(one.rank, one.part) for group in groups for one in group.outliers}
    is_above_noise = loss_ns > THRESHOLDS.loss_noise_factor * analysis.loss_from_noise(timed)
    lead = _one_rank(evidence, charged, named, time_ns, is_above_noise) or _one_stall(evidence, named, loss_ns, time_ns)
    if lead is not None:
        return [*groups, lead]
    pauses = [group for group in groups if _are_random_pauses(group)]
    others = [group for group in groups if group not in pauses]
    named = {(one.rank, one.part) for group in others for one in group.outliers}
    lead = _every_rank(evidence, charged, named, time_ns) if is_above_noise else None
    if lead is None:
        return [*groups]
    return [*(group for group in groups if group not in pauses or group.parts != lead.parts), lead]


def _are_random_pauses(group: FindingGroup) -> bool:
    candidates = [one.candidate for one in group.findings]
    return all(isinstance(one, JobFinding) and one.kind == "random_pauses" for one in candidates)


def _one_rank(
    evidence: Evidence,
    charged: OwnLosses,
    named: Collection[tuple[int, TimePart]],
    time_ns: float,
    is_above_noise: bool,
) -> FindingGroup | None:
    """Return the rank that has most of the loss, step after step, if no finding has `named` it and its part.

    In one step nothing repeats but the arrival at collectives: without that, the loss must be `is_above_noise`.
    """
    run = evidence.analysis.run
    repeated = charged.most_often_last()
    if repeated is None or any(size < 2 for size in run.sizes.values()):
        return None  # a rank without peers has no other ranks' median
    column, times, steps = repeated
    rank = charged.ranks[column]
    tried = _count_arrivals(evidence, rank) if steps == 1 else (times, steps)
    is_repeated = chance_of_repetition(*tried, len(charged.ranks)) <= THRESHOLDS.max_lead_chance
    if not is_repeated and not (steps == 1 and is_above_noise):
        return None
    totals = np.maximum(charged.own_ns.sum(axis=0), 0)
    part = OWN_PARTS[int(np.argmax(totals[column]))]
    if totals[column, part] < THRESHOLDS.lead_share * charged.all_ns:
        return None
    if (rank, part) in named:
        return None
    mine = charged.own_ns[:, column, part]
    late = tuple(np.flatnonzero(mine > 0).tolist())
    noise = evidence.analysis.loss_from_noise(late)
    candidate = Outlier(
        run.team_of[rank], rank, part, late, float(mine[list(late)].sum()), float(mine.sum()) / max(noise, 1.0)
    )
    (gain,) = evidence.analysis.gains([candidate.repair])
    is_short = steps < THRESHOLDS.min_steps_for_drift
    # in few steps a rank that is behind may hide that the others are as slow
    if gain < THRESHOLDS.min_lead_share * time_ns and not (is_repeated and is_short and part in _HOST_PARTS):
        return None
    where = f"in {times} of {format_count(steps, 'step')}"
    why = f"it has the largest share of the loss {'of the only step' if len(run.keys) == 1 else where}"
    return _lead_of_rank(evidence, candidate, gain, (why, *_describe_arrivals(evidence, rank)))


def _one_stall(
    evidence: Evidence, named: Collection[tuple[int, TimePart]], loss_ns: float, time_ns: float
) -> FindingGroup | None:
    """Return the rank that stands out most in single steps, if that is most of the loss and no finding has named it.

    In a short run chance may cause it, but it did cost the time: which rank lost it is known.
    """
    analysis = evidence.analysis
    stalls = []
    for (team, part), standouts in analysis.standouts.items():
        late = (standouts.sigmas >= THRESHOLDS.step_sigmas) & (len(standouts.ranks) > 1)
        for column in np.flatnonzero(late.any(axis=0)).tolist():
            rank, steps = int(standouts.ranks[column]), np.flatnonzero(late[:, column])
            own_ns, sigmas = (
                float(standouts.total_ns[steps, column].sum()),
                float(standouts.sigmas[steps, column].max()),
            )
            if (rank, part) not in named:
                stalls.append(Outlier(team, rank, part, tuple(steps.tolist()), own_ns, sigmas))
    if not stalls:
        return None
    worst = max(stalls, key=lambda stall: stall.excess_ns)
    (gain,) = analysis.gains([worst.repair])
    if gain < max(THRESHOLDS.lead_share * loss_ns, THRESHOLDS.min_lead_share * time_ns):
        return None
    where = format_count(len(worst.steps), "step")
    why = f"what it takes longer in {where} is {format_percent(gain / loss_ns)} of the loss"
    return _lead_of_rank(evidence, worst, gain, (why,))


def _lead_of_rank(evidence: Evidence, candidate: Outlier, gain: float, why: Sequence[str]) -> FindingGroup:
    location = evidence.locations[candidate.rank]
    cause, (certainty, sentences) = find_cause(evidence, candidate)
    group = RankGroup("rank", (candidate.rank,), location.host, location.device)
    finding = PricedFinding(candidate, gain, gain)
    return FindingGroup((finding,), group, cause, certainty, (*why, *sentences), is_lead=True)


def _count_arrivals(evidence: Evidence, rank: int) -> tuple[int, int]:
    """Return at how many collectives with other ranks the rank arrives last, and at how many it takes part."""
    arrivals = evidence.analysis.arrivals
    return sum(step_arrivals.last_at.get(rank, 0) for step_arrivals in arrivals), sum(
        step_arrivals.met_at.get(rank, 0) for step_arrivals in arrivals
    )


def _describe_arrivals(evidence: Evidence, rank: int) -> tuple[str, ...]:
    """Say at how many collectives the rank arrives last; nothing if at less than half."""
    times, count = _count_arrivals(evidence, rank)
    if 2 * times <= count:
        return ()
    return (f"it arrives last at {times:,} of {format_count(count, 'collective')}",)


def _every_rank(
    evidence: Evidence, charged: OwnLosses, named: Collection[tuple[int, TimePart]], time_ns: float
) -> FindingGroup | None:
    """Return late launches on all ranks but those `named`, if they are most of the loss, and no rank has most."""
    run = evidence.analysis.run
    steps = charged.timed
    totals = np.maximum(charged.own_ns[list(steps)].sum(axis=0), 0)
    for column, rank in enumerate(charged.ranks):
        totals[column, [part for part in OWN_PARTS if (rank, part) in named]] = 0.0
    part = max(_HOST_PARTS, key=lambda host_part: float(totals[:, host_part].sum()))
    of_ranks, whole = totals[:, part], float(totals[:, part].sum())
    if whole <= 0 or whole < THRESHOLDS.lead_share * charged.all_ns:
        return None
    others = [rank for rank in charged.ranks if (rank, part) not in named]
    candidate = JobFinding(
        "launch_bound",
        part,
        dict.fromkeys(others, steps),
        whole,
        whole / max(evidence.analysis.loss_from_noise(steps), 1.0),
    )
    (gain,) = evidence.analysis.gains([candidate.repair])
    if gain < THRESHOLDS.min_lead_share * time_ns:
        return None
    first, second = np.argsort(-of_ranks, kind="stable")[:2].tolist()
    if of_ranks[first] > THRESHOLDS.max_share_of_one_rank * whole:
        return None
    involved = int((of_ranks > 0).sum())
    most = ", ".join(f"{charged.ranks[at]} ({100 * of_ranks[at] / whole:.0f}%)" for at in (first, second))
    why = f"{involved} of {format_count(len(run.team_of), 'rank')} hold up the job in turn, most of it ranks {most}"
    cause: Cause = "late_start" if part == TimePart.START else "cpu_launch"
    group = RankGroup("job", tuple(others))
    return FindingGroup((PricedFinding(candidate, gain, gain),), group, cause, "likely", (why,), is_lead=True)


def chance_of_repetition(times: int, steps: int, ranks: int) -> float:
    """Return the probability that chance makes some rank the last one in at least `times` of `steps` steps.

    Binomial tail with 1 / ranks, times the number of ranks.

    >>> round(chance_of_repetition(3, 3, 4), 4), chance_of_repetition(2, 2, 2)
    (0.0625, 0.5)
    """
    return min(1.0, ranks * binomial_tail(times, steps, 1 / ranks))
