"""Findings that no comparison with the median rank of a step shows: a slow and a fast cluster of ranks, slow steps."""

import math
from collections.abc import Sequence

import numpy as np

from jitter.analysis.detection.job_findings import JobFinding
from jitter.analysis.detection.outliers.deviations import (
    TeamDeviations,
    compare_with_one_rank,
    sigma_within,
    spread_within_steps,
)
from jitter.analysis.detection.outliers.find_outliers import Outlier
from jitter.analysis.detection.outliers.significance import binomial_tail, differ_steadily, qn_sigma, quiet_level
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_numbers, format_time
from jitter.core.numeric.arrays import Bools, Floats
from jitter.core.numeric.stats import known_median, lower_median
from jitter.core.numeric.student_t import student_tail


def find_clusters(deviations: TeamDeviations, step_ns: Floats, known: Sequence[Outlier]) -> list[JobFinding]:
    """Return the parts in which one team's ranks fall into a slow and a fast cluster, the slow one not fewer.

    The ranks' medians over steps are cut where the clusters' means differ most, in standard deviations within them.

    Args:
        deviations: of the team.
        step_ns: (steps,) each step's time, NaN where unknown.
        known: the team's outliers; slow ranks that are all among them need no other finding.

    """
    steps, ranks = deviations.total_ns.shape[1:]
    usual_step = known_median(step_ns)
    if ranks < THRESHOLDS.min_cluster_ranks or usual_step <= 0 or np.isnan(deviations.total_ns).all(axis=1).any():
        return []
    timed = int((~np.isnan(step_ns)).sum())
    found = []
    for part in OWN_PARTS:
        own = compare_with_one_rank(deviations.total_ns[part])
        levels = np.nanmedian(own, axis=0)
        order = np.argsort(levels)
        ordered = levels[order]
        share = THRESHOLDS.gpu_spread_share if part is TimePart.GPU else THRESHOLDS.host_spread_share
        floor = max(share * float(np.nanmedian(deviations.usual_ns[part])), 1.0)
        best = (0.0, 0, 0.0)
        for cut in range(2, ranks - 1):
            low, high = ordered[:cut], ordered[cut:]
            sigma = max(float(sigma_within(low, high)), floor)
            if ordered[cut] - ordered[cut - 1] >= THRESHOLDS.cluster_gap_sigmas * sigma:
                best = max(best, (float(high.mean() - low.mean()) / sigma, cut, float(high.mean() - low.mean())))
        apart, cut, excess = best
        slow = tuple(sorted(int(rank) for rank in deviations.ranks[order[cut:]]))
        if apart < THRESHOLDS.cluster_sigmas or excess < THRESHOLDS.min_cluster_share * usual_step or 2 * cut > ranks:
            continue
        if not differ_steadily(own, order[cut:], order[:cut]):
            continue
        if set(slow) <= {one.rank for one in known if one.part is part}:
            continue
        every = tuple(range(steps))
        chance = float(student_tail(apart, THRESHOLDS.max_degrees)) * ranks * len(OWN_PARTS)
        members = tuple(Outlier(deviations.team, rank, part, every, excess * steps, apart, chance) for rank in slow)
        told = (
            f"ranks {format_numbers(slow)} take {format_time(excess)} per step longer than the other "
            f"{format_count(cut, 'rank')}, and differ less among themselves"
        )
        gain = None  # of equal halves the lower median is the fast one's: the loss contains it
        if 2 * cut < ranks:
            told += ": the loss, which compares with the median rank, does not contain it"
            # they are late together: the step is shorter by what one of them takes longer
            gain = excess * timed
        found.append(
            JobFinding(
                "two_clusters", part, dict.fromkeys(slow, every), excess * steps, apart, (told,), chance, members, gain
            )
        )
    return found


def find_slow_steps(teams: Sequence[TeamDeviations], step_ns: Floats, loss_ns: Floats) -> list[JobFinding]:
    """Return the steps in which all ranks are slow: the step would be longer than usual even without its loss.

    It names the ranks of all teams that are slow then, by at least half of what slows the largest team's usual rank.

    Args:
        teams: the deviations of each team; the usual times of the one with most ranks say in which part.
        step_ns: (steps,) each step's time, NaN where unknown.
        loss_ns: (steps,) each step's loss.

    """
    largest = max(teams, key=lambda team: len(team.ranks), default=None)
    if largest is None or len(largest.ranks) < 2:
        return []  # a single rank cannot be told from all of them
    # a short step after a long one has a negative loss, which does not make it a slow one
    base = (step_ns - np.maximum(np.nan_to_num(loss_ns), 0.0))[:, None]
    known = ~np.isnan(base[:, 0])
    count = int(known.sum())
    if count < THRESHOLDS.min_steps_for_scatter:
        return []
    sigma = qn_sigma(base)
    level = float(quiet_level(base, sigma)[0])
    least = max(float(sigma[0]), THRESHOLDS.min_slow_step_share * level / THRESHOLDS.step_sigmas)
    noise = np.maximum(least, _sigma_of_medians(largest))
    excess = np.where(known, base[:, 0] - level, 0.0)
    tails = np.where(known, student_tail(excess / noise, THRESHOLDS.tail_degrees), 1.0)
    slow = known & (excess >= THRESHOLDS.min_slow_step_share * level) & (excess >= THRESHOLDS.step_sigmas * noise)
    if not slow.any() or 2 * slow.sum() > count:
        return []
    chance = binomial_tail(int(slow.sum()), count, float(tails[slow].max()))
    if chance > THRESHOLDS.max_chance:
        return []
    usual = largest.usual_ns[:, :, 0]
    more = np.nan_to_num(usual[:, slow] - lower_median(usual[:, known & ~slow])).sum(axis=1)
    gain = float(excess[slow].sum())
    part = TimePart(int(np.argmax(more)))
    if more[part] < THRESHOLDS.cause_share * gain:
        return []  # the time is in none of the ranks' own parts: communication, or waiting for what was not recorded
    steps = tuple(np.flatnonzero(slow).tolist())
    sigmas = float((excess / noise)[slow].max())
    share = float(np.median(_slower_shares(largest, part, slow, known)))
    members = tuple(
        Outlier(team.team, rank, part, steps, gain, sigmas, chance, is_of_all_ranks=True)
        for team in teams
        for rank, own in zip(team.ranks.tolist(), _slower_shares(team, part, slow, known).tolist(), strict=True)
        if own >= THRESHOLDS.evidence.slower_team_share * share
    )
    ranks = tuple(sorted(one.rank for one in members))
    which = "all ranks" if len(ranks) == sum(len(team.ranks) for team in teams) else f"ranks {format_numbers(ranks)}"
    told = (
        f"in {format_count(len(steps), 'step')} {which} take {format_time(gain / len(steps))} longer than in the "
        "other steps: the loss, which compares ranks within a step, does not contain it"
    )
    return [JobFinding("slow_steps", part, dict.fromkeys(ranks, steps), gain, sigmas, (told,), chance, members, gain)]


def _sigma_of_medians(team: TeamDeviations) -> Floats:
    """Return (steps,) the standard deviation, ns, of the median rank's own time, of ranks that vary independently.

    That of the median of n normal variables: √(π / 2n) times theirs, the larger one of their spread in the step and
    their variation over steps. 0 of few ranks.
    """
    if len(team.ranks) < THRESHOLDS.min_ranks_for_noise:
        return np.zeros(team.total_ns.shape[1])
    in_halves = np.zeros(team.total_ns.shape[1], np.bool_)
    within = [spread_within_steps(own - lower_median(own.T).T, in_halves)[:, 0] for own in team.total_ns]
    spreads = [np.maximum(here, np.median(qn_sigma(own))) for here, own in zip(within, team.total_ns, strict=True)]
    found: Floats = math.sqrt(math.pi / 2 / len(team.ranks)) * np.linalg.norm(spreads, axis=0)
    return found


def _slower_shares(team: TeamDeviations, part: TimePart, slow: Bools, known: Bools) -> Floats:
    """Return (ranks,) how much longer each rank takes in slow steps, as a share of its time in the other steps."""
    apart = compare_with_one_rank(team.total_ns[part])
    own = team.usual_ns[part] + apart - lower_median(apart)
    found = np.zeros(len(team.ranks))
    for column in range(len(found)):
        here = known & ~np.isnan(own[:, column])
        if (here & slow).any() and (here & ~slow).any():
            level = float(np.median(own[here & ~slow, column]))
            found[column] = (float(own[here & slow, column].mean()) - level) / max(level, 1.0)
    return found
