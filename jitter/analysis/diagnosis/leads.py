"""Leads: what explains a loss that findings do not, without a test of significance.

It is one rank with most of the loss, or all ranks that hold up the job, in turn or the same ones always.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.detection.deviations import compare_with_one_rank
from jitter.analysis.detection.findings import join_outliers, of_one_rank
from jitter.analysis.detection.run_account import Charges
from jitter.analysis.detection.standouts import Outlier, chance_of_repetition
from jitter.analysis.diagnosis.causes import Judgement, find_cause
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.finding_groups import FindingGroup, RankGroup
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_percent
from jitter.core.grouping import by_key
from jitter.core.numeric.arrays import Floats
from jitter.core.numeric.stats import MAD_TO_SIGMA, known_medians, lower_median, qn_sigma
from jitter.core.numeric.student_t import student_tail

_UNEVEN: Final = (
    "do unequal work, the same ones most of it in every step: divide the work evenly (tokens, experts, tables, blocks "
    "of a causal mask)"
)
_HOST_PARTS: Final = tuple(part for part in OWN_PARTS if part != TimePart.GPU)


def add_lead(evidence: Evidence, groups: Sequence[FindingGroup], saved_ns: float) -> list[FindingGroup]:
    """Return `groups` of findings, which save `saved_ns`, and the lead that explains the loss where they do not.

    No time is in two of them: late launches on every rank include the random pauses, and leave out a rank that has a
    finding of the same part. What ranks lose in steps that are slow for all of them is of the same event.
    """
    analysis = evidence.analysis
    slow, warm_up = analysis.slow_steps.findings, analysis.slow_steps.warm_up
    slow_numbers = {number for event in (*slow, *([] if warm_up is None else [warm_up])) for number in event.steps}
    is_timed = ~np.isnan(analysis.measured.step_ns) & ~np.isnan(analysis.account.loss_ns)
    timed = [number for number in np.flatnonzero(is_timed).tolist() if number not in slow_numbers]
    charges = analysis.account.charges.without(slow_numbers)
    loss_ns, time_ns = float(analysis.account.loss_ns[timed].sum()), float(analysis.measured.step_ns[timed].sum())
    if (
        len(analysis.run.team_of) < 2
        or analysis.measured.are_uncoupled
        or not timed
        or loss_ns < THRESHOLDS.min_clear_share * time_ns
    ):
        return [*groups]
    left_ns, noise_ns = loss_ns - saved_ns, THRESHOLDS.loss_noise_factor * analysis.account.loss_from_noise(timed)
    if left_ns < THRESHOLDS.min_clear_share * time_ns:
        return [*groups]
    named = {(outlier.rank, outlier.part) for group in groups for outlier in group.outliers}
    is_mostly_told = saved_ns >= THRESHOLDS.main_share * loss_ns
    if is_mostly_told:  # what else such a rank loses may be of the same fault
        named = {(rank, part) for rank, _ in named for part in OWN_PARTS}
    lead = _one_rank(evidence, charges, named, time_ns, left_ns > noise_ns)
    is_work = lead is not None and _is_recorded_work(lead.judgement)  # which others may have more of as well
    if is_mostly_told or (lead is not None and not is_work):
        return [*groups, *([] if lead is None else [lead])]
    is_above_noise = loss_ns > noise_ns
    pauses = [group for group in groups if all(candidate.kind == "random_pauses" for candidate in group.candidates)]
    others = [group for group in groups if group not in pauses]
    outliers = [outlier for group in others for outlier in group.outliers]
    # a rank that is slow for its work may have more of it as well
    named = {(outlier.rank, outlier.part) for outlier in outliers if outlier.pace is None}
    slow_ranks = {outlier.rank for outlier in outliers if outlier.pace is not None}
    lead = _every_rank(evidence, charges, named, slow_ranks, timed, time_ns, is_above_noise) or lead
    if lead is None:
        return [*groups]
    return [*(group for group in groups if group not in pauses or group.parts != lead.parts), lead]


def _one_rank(
    evidence: Evidence,
    charges: Charges,
    named: Collection[tuple[int, TimePart]],
    time_ns: float,
    is_above_noise: bool,
) -> FindingGroup | None:
    """Return the rank and part with most of the loss that is on none that findings have `named`.

    The rank must have the largest share step after step, half of it by what it takes longer itself, or stand out in
    single steps: chance may cause such a stall, but it did cost the time. In few steps those count as well in which it
    arrives last at more collectives than any other rank. In one step nothing repeats but these arrivals: without them,
    what is left of the loss must be `is_above_noise`.
    """
    analysis, run = evidence.analysis, evidence.analysis.run
    totals_ns, left_ns = charges.totals_ns(), charges.all_ns()
    for named_rank, named_part in named:
        left_ns -= totals_ns[charges.column(named_rank), named_part]
        totals_ns[charges.column(named_rank), named_part] = 0.0
    column, part_number = np.unravel_index(np.argmax(totals_ns), totals_ns.shape)
    rank, part = charges.ranks[int(column)], OWN_PARTS[int(part_number)]
    if totals_ns[column, part] < THRESHOLDS.main_share * left_ns:
        return None
    if any(size < 2 for size in run.sizes.values()):
        return None  # a rank without peers has no other ranks' median
    own_ns = charges.own_ns[part, :, column]
    standouts = analysis.outliers.standouts[run.team_of[rank], part]
    (at,) = standouts.columns([rank])
    times, steps = charges.count_last([int(column)])
    tried = [_count_arrivals(evidence, rank)] if steps == 1 else [(times, steps)]
    if 1 < steps < THRESHOLDS.few_steps:
        tried.append(_count_steps_held_up(evidence, rank))
    chances = [chance_of_repetition(*counts, 1 / len(charges.ranks)) for counts in tried]
    # a host that does not wait for its GPU stays behind, step after step, without being slower
    is_slower = float(np.nansum(standouts.total_ns[own_ns != 0, at])) >= THRESHOLDS.main_share * float(own_ns.sum())
    is_repeated = is_slower and min(chances) <= THRESHOLDS.max_lead_chance
    is_far = (standouts.sigmas[:, at] >= THRESHOLDS.outlier_sigmas) & (own_ns != 0)
    is_stall = bool(is_far.any()) and not is_repeated
    if not is_repeated and not is_stall and not (steps == 1 and is_above_noise):
        return None
    late = tuple(np.flatnonzero(is_far if is_stall else own_ns > 0).tolist())
    # how far it stands out in its worst step, and the chance of that
    sigmas = float(standouts.sigmas[list(late), at].max(initial=0.0))
    chance = float(standouts.chance_of_step[list(late), at].min(initial=1.0))
    lost_ns = float(own_ns[list(late)].sum())
    candidate = of_one_rank(Outlier(run.team_of[rank], rank, part, late, lost_ns, sigmas, chance))
    (gain,) = analysis.gains([candidate.repair])
    # in few steps a rank that is behind may hide that the others are as slow
    is_hiding = is_repeated and steps < THRESHOLDS.few_steps and part in _HOST_PARTS
    if gain < THRESHOLDS.min_clear_share * time_ns and not is_hiding:
        return None
    where = f"{times} of {format_count(steps, 'step')}"
    why = f"it has the largest share of the loss {'of the only step' if len(run.keys) == 1 else f'in {where}'}"
    if is_stall:
        share = format_percent(gain / float(np.nansum(analysis.account.loss_ns[~np.isnan(analysis.measured.step_ns)])))
        why = f"what it takes longer in {format_count(len(late), 'step')} is {share} of the loss"
    location = evidence.locations[rank]
    group = RankGroup("rank", (rank,), location.host, location.device)
    arrivals = () if is_stall else _describe_arrivals(evidence, rank)
    judgement = find_cause(evidence, candidate).after(why)
    judgement = judgement._replace(sentences=(*judgement.sentences, *arrivals))
    return FindingGroup((candidate,), group, judgement, is_lead=True)


def _is_recorded_work(judgement: Judgement) -> bool:
    """Return whether recorded launches show that ranks have more or other work."""
    return judgement.cause == "workload_imbalance" and judgement.certainty == "certain"


def _count_arrivals(evidence: Evidence, rank: int) -> tuple[int, int]:
    """Return at how many collectives with other ranks the rank arrives last, and at how many it takes part."""
    arrivals, column = evidence.analysis.measured.statistics.arrivals, evidence.analysis.run.number_of[rank]
    return int(arrivals.last_at[:, column].sum()), int(arrivals.met_at[:, column].sum())


def _count_steps_held_up(evidence: Evidence, rank: int) -> tuple[int, int]:
    """Return in how many steps the rank arrives last at more collectives than any other rank, and of how many."""
    arrivals, column = evidence.analysis.measured.statistics.arrivals, evidence.analysis.run.number_of[rank]
    last_at = arrivals.last_at[arrivals.met_at.any(axis=1)]
    others = np.delete(last_at, column, axis=1).max(axis=1, initial=0)
    return int((last_at[:, column] > others).sum()), len(last_at)


def _describe_arrivals(evidence: Evidence, rank: int) -> tuple[str, ...]:
    """Say at how many collectives the rank arrives last; nothing if at less than half."""
    times, count = _count_arrivals(evidence, rank)
    if 2 * times <= count:
        return ()
    return (f"it arrives last at {times:,} of {format_count(count, 'collective')}",)


def _every_rank(
    evidence: Evidence,
    charges: Charges,
    named: Collection[tuple[int, TimePart]],
    slow_ranks: Collection[int],
    steps: Sequence[int],
    time_ns: float,
    is_above_noise: bool,
) -> FindingGroup | None:
    """Return what holds up the job on all ranks but those `named` in turn, if it is most of the loss.

    Late launches, where the loss is above noise or nearly all of it on one host, or GPU time that varies by rank and
    step, as that of uneven batches.
    Work that recorded launches show to differ needs no test. `slow_ranks`, slow for their work, do not tell the cause.
    """
    analysis, run = evidence.analysis, evidence.analysis.run
    totals = charges.totals_ns()
    for rank, named_part in named:
        totals[charges.column(rank), named_part] = 0.0
    part = max(OWN_PARTS, key=lambda own_part: float(totals[:, own_part].sum()))
    of_ranks, whole = totals[:, part], float(totals[:, part].sum())
    if whole <= 0 or whole < THRESHOLDS.main_share * charges.all_ns():
        return None
    first, second = np.argsort(-of_ranks, kind="stable")[:2].tolist()
    if of_ranks[first] > THRESHOLDS.max_share_of_one_rank * whole:
        return None
    others, host = [rank for rank in charges.ranks if (rank, part) not in named], None
    if part in _HOST_PARTS:
        others, host = _find_worst_host(evidence, charges, others, of_ranks)
        if host is None and not is_above_noise:
            return None
    varied = _Varied.of_ranks(evidence, others, steps) if part is TimePart.GPU else _Varied(0.0, 0.0, 0.0)
    chance = min(float(student_tail(varied.sigmas, THRESHOLDS.max_degrees)) * len(charges.ranks), 1.0)
    members = [
        Outlier(run.team_of[rank], rank, part, tuple(steps), lost_ns, varied.sigmas, chance, is_in_turn=True)
        for rank, lost_ns in zip(others, of_ranks[charges.columns(others)].tolist(), strict=True)
    ]
    is_lasting = varied.lasting_ns >= THRESHOLDS.main_share * whole
    candidate = join_outliers("uneven_ranks" if is_lasting else "in_turn", members)
    at_pace = [member for member in members if part is not TimePart.GPU or member.rank not in slow_ranks]
    judgement = find_cause(evidence, join_outliers(candidate.kind, at_pace or members))
    if part is TimePart.GPU:
        # operations that vary by themselves lose time between any two collectives, GPUs that differ for ever in no turn
        is_above_noise = varied.sigmas >= THRESHOLDS.outlier_sigmas and varied.ns >= THRESHOLDS.main_share * whole
        is_recorded = _is_recorded_work(judgement)
        # ranks that share their work show that it is this which varies
        is_above_noise |= any(work.sharing is not None for work in analysis.outliers.launched_work.values())
        evened_pace, waited_ns = _evened_pace(evidence), _wait_for_experts_ns(evidence, steps, is_uneven=is_recorded)
        if not is_above_noise and waited_ns >= THRESHOLDS.main_share * whole:  # another rank in each layer of a step
            usual_ns = max(float(np.nansum(team.usual_ns[part, steps])) for team in analysis.measured.deviations)
            is_above_noise, evened_pace = True, usual_ns / (usual_ns + max(whole - waited_ns, 0.0))
        if not is_above_noise and not is_recorded:
            if (of_kernels := _evened_pace_of_kernels(evidence, steps)) is None:
                return None
            evened_pace = of_kernels
        if is_recorded:
            judgement = judgement._replace(job_advice=_UNEVEN) if is_lasting else judgement
            chance = min(chance, THRESHOLDS.medium_chance)
        candidate = replace(candidate, evened_pace=evened_pace, chance=chance)
    (gain,) = analysis.gains([candidate.repair])
    if gain < THRESHOLDS.min_clear_share * time_ns:
        return None
    involved = int((of_ranks[charges.columns(others)] > 0).sum())
    most = ", ".join(f"{charges.ranks[at]} ({100 * of_ranks[at] / whole:.0f}%)" for at in (first, second))
    how = "hold up the job" if is_lasting else "hold up the job in turn"
    why = f"{involved} of {format_count(len(run.team_of), 'rank')} {how}, most of it ranks {most}"
    group = RankGroup("job" if host is None else "host", candidate.ranks, host)
    return FindingGroup((candidate,), group, judgement.after(why), is_lead=True)


def _find_worst_host(
    evidence: Evidence, charges: Charges, ranks: Sequence[int], lost_ns: Floats
) -> tuple[list[int], str | None]:
    """Return the ranks of the host that loses nearly all of what these do, and the host: all and None without one.

    One of its ranks must hold up the job in more steps than chance gives. `lost_ns` is (ranks of the charges,).
    """
    for host, here in by_key((evidence.locations[rank].host, rank) for rank in ranks).items():
        columns = charges.columns(here)
        chance = chance_of_repetition(*charges.count_last(columns), len(here) / len(charges.ranks))
        is_most = float(lost_ns[columns].sum()) >= THRESHOLDS.always_share * float(lost_ns.sum())
        if host is not None and len(here) < len(ranks) and is_most and chance <= THRESHOLDS.max_lead_chance:
            return here, host
    return [*ranks], None


class _Varied(NamedTuple):
    """By how much GPU time the longest rank of a step stands out from its own usual step, and usually from the others.

    Of several teams those of the one where it is most.
    """

    ns: float
    """From its own usual step, over all steps."""
    sigmas: float
    """The same in the usual step, in standard deviations of operations that vary independently."""
    lasting_ns: float
    """How much longer the rank takes that usually takes longest, over all steps; 0 where chance may choose it."""

    @classmethod
    def of_ranks(cls, evidence: Evidence, ranks: Sequence[int], steps: Sequence[int]) -> "_Varied":
        of_teams = []
        for team in evidence.analysis.measured.deviations:
            total = team.total_ns[TimePart.GPU, steps][:, np.isin(team.ranks, ranks)]
            usual = known_medians(total)
            error_ns = float(np.median(qn_sigma(total))) / np.sqrt(len(steps)) if total.size else 0.0
            varied_ns = np.nan_to_num(total - usual).max(axis=1, initial=0.0)
            sigmas = float(np.median(varied_ns / np.maximum(team.noise_ns[TimePart.GPU, steps, 0], 1.0)))
            lasting_ns = np.where(usual > THRESHOLDS.outlier_sigmas * error_ns, usual, 0.0).max(initial=0.0)
            of_teams.append(cls(float(varied_ns.sum()), sigmas, len(steps) * float(lasting_ns)))
        return max(of_teams)


def _evened_pace_of_kernels(evidence: Evidence, steps: Sequence[int]) -> float | None:
    """Return the GPU time of the baseline ÷ its mean over ranks, where ranks differ in kernels of some names alone.

    None where they do not. By far more than GPUs do, and than in other kernels: then work differs, in some kernels more
    on one rank, in others more on another one.
    """
    whole_ns = varied_ns = median_ns = more_ns = 0.0
    for team in evidence.analysis.measured.deviations:
        seen, chosen = evidence.analysis.measured.statistics.kernels[team.team], list(steps)
        total_ns, usual_ns = np.nan_to_num(seen.total_ns[chosen]), seen.usual_ns[chosen]
        apart_ns, of_kernels_ns = np.abs(total_ns), np.median(usual_ns, axis=0)
        shares = MAD_TO_SIGMA * np.median(apart_ns, axis=(0, 2)) / np.maximum(of_kernels_ns, 1.0)
        usual_share = float(np.median(shares)) if len(shares) else 0.0
        varies = shares > max(THRESHOLDS.host_spread_share, THRESHOLDS.outlier_sigmas * usual_share)
        whole_ns, varied_ns = whole_ns + float(apart_ns.sum()), varied_ns + float(apart_ns[:, varies].sum())
        median_ns, more_ns = median_ns + float(usual_ns.sum()) * len(team.ranks), more_ns + float(total_ns.sum())
    return median_ns / (median_ns + more_ns) if varied_ns >= THRESHOLDS.always_share * whole_ns > 0 else None


def _wait_for_experts_ns(evidence: Evidence, steps: Sequence[int], *, is_uneven: bool) -> float:
    """Return how long ranks wait for those whose experts have more tokens, over these steps; 0 where that is noise.

    It is none where launches tell that work `is_uneven`.
    """
    of_steps = (evidence.analysis.measured.statistics.experts[number] for number in steps)
    experts = [step for step in of_steps if step is not None]
    if not is_uneven and (not experts or np.mean([step.ratio for step in experts]) < 1 + THRESHOLDS.minor_share):
        return 0.0
    return float(sum(step.waited_ns for step in experts))


def _evened_pace(evidence: Evidence) -> float:
    """Return the GPU time of the baseline, the lower median of the ranks, ÷ their mean, over all steps."""
    median_ns = more_ns = 0.0
    for team in evidence.analysis.measured.deviations:
        apart = compare_with_one_rank(team.total_ns[TimePart.GPU])
        median_ns += float(np.nansum(team.usual_ns[TimePart.GPU])) * len(team.ranks)
        more_ns += float(np.nansum(apart - lower_median(apart)))
    return median_ns / (median_ns + more_ns)
