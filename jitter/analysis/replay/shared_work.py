"""How much work operations and transfers do from step to step, as the compute of the ranks shows it.

All stages of a pipeline work on the same batches: what most of them take longer in a step is the batch's size. Each
micro-batch has a size of its own. So an operation of a rank without peers is compared, in each other team, with the
operations of its name between two collectives whose time varies most as its own: they work on the same micro-batch. A
transfer has the work that its recorded sizes tell, or else that of the micro-batch computed next before or after it.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from math import isnan
from typing import NamedTuple

import numpy as np

from jitter.analysis.execution.rank_clusters import find_reference_times
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats, Ints, distinct_values, spread_positions
from jitter.core.numeric.compilation import compiled
from jitter.core.numeric.stats import known_medians, lower_median, lower_medians_of_others, qn_sigma


def at_usual_pace(first: Ints, gpu_ns: Floats) -> tuple[Floats, Floats]:
    """Return, (steps,), the size of each batch, 1 for the usual one, and times as each team's usual pace would give.

    What most teams take longer in a step is the batch, and what is left of a team's step is its pace. The steadiest
    team tells in which steps the pace of each is its usual one, and has two votes: most may slow down together, and
    none speeds up. Where most do not vary with it, the usual size has one of these. Arguments as of `parts_of_teams`.
    """
    whole = np.stack(
        [_relative(np.nansum(gpu_ns[:, slice(*ends)], axis=1)) for ends in pairwise(first.tolist())], axis=1
    )
    known_count = (~np.isnan(whole)).sum(axis=1, keepdims=True)
    varies = np.nansum((whole - 1) ** 2, axis=0) / (~np.isnan(whole)).sum(axis=0).clip(1)
    steadiest = whole[:, [int(np.where(np.isnan(whole).all(axis=0), np.inf, varies).argmin())]]
    pace = whole / np.where(np.isnan(steadiest), lower_median(whole), steadiest)
    spread = np.where(np.isnan(pace).all(axis=0), np.nan, qn_sigma(pace))
    are_usual = [
        find_reference_times(of_team, sigma or THRESHOLDS.gpu_spread_share, 0.0)
        for of_team, sigma in zip(pace.T, np.nan_to_num(lower_medians_of_others(spread)).tolist(), strict=True)
    ]
    usual_pace, usual_whole = (np.where(np.stack(are_usual, axis=1), ratio, np.nan) for ratio in (pace, whole))
    whole = whole / known_medians(usual_pace)
    vary_alike = 2 * (qn_sigma(usual_pace) < qn_sigma(usual_whole)).sum() > (~np.isnan(spread)).sum()
    votes = np.hstack([whole, steadiest if vary_alike else np.ones_like(steadiest)])
    size = np.where(known_count > 1, lower_median(votes), 1.0)
    return size[:, 0], gpu_ns / np.repeat(whole / size, np.diff(first), axis=1)


class Parts(NamedTuple):
    """The operations of one name between two collectives, of one team, together."""

    ratios: Floats
    """(parts, steps) how long they take in a step, 1 for the usual time; NaN where they are absent."""
    first: Ints
    """(names + 1,) where the parts of each name begin."""


def parts_of_teams(first: Ints, part: Ints, names: Ints, gpu_ns: Floats) -> list[Parts]:
    """Return the parts of each team in some like steps.

    Args:
        first: (teams + 1,) where each team's operations begin.
        part: (operations of all teams,) a number for each part of a step, between two collectives.
        names: (operations of all teams,) a number for each name, from 0 up.
        gpu_ns: (steps, operations of all teams) medians over ranks; NaN where no rank of the team has the step.

    """
    count = int(names.max(initial=-1)) + 1
    parts = []
    for here in (slice(*ends) for ends in pairwise(first.tolist())):
        order = np.lexsort((part[here], names[here]))
        of_order = np.stack([names[here][order], part[here][order]])
        begins = np.flatnonzero(np.append(True, np.diff(of_order).any(axis=0))[: len(order)])
        ratios = _relative(np.add.reduceat(gpu_ns[:, here][:, order], begins, axis=1)).T
        there = ~np.isnan(ratios).all(axis=1)
        first_of_name = np.searchsorted(of_order[0, begins][there], np.arange(count + 1))
        parts.append(Parts(np.ascontiguousarray(ratios[there]), first_of_name))
    return parts


def work_of_operations(team: int, own_ns: Floats, names: Ints, size: Floats, parts: Sequence[Parts]) -> Floats:
    """Return, (steps, operations), the work of each in each of some like steps, 1 for the usual one.

    Of an even number of teams the whole batch has a vote. Of many teams some are asked.

    Args:
        team: of one rank.
        own_ns: (steps, operations) its medians at its usual pace, as in `parts_of_teams`.
        names: (operations,) a number for each name, from 0 up.
        size: (steps,) of the batches, 1 for the usual one.
        parts: those of each team in these steps.

    """
    ratios = np.ascontiguousarray(_relative(own_ns).T)
    others = [of_team for at, of_team in enumerate(parts) if at != team and len(of_team.ratios)]
    votes = np.full((*ratios.shape, 1 + min(len(others), THRESHOLDS.sampled_ranks)), np.nan)
    votes[..., 0] = ratios
    for vote, at in enumerate(spread_positions(len(others), THRESHOLDS.sampled_ranks).tolist(), 1):
        nearest = np.empty(len(ratios), np.int64)
        find_most_alike(ratios, names, others[at], nearest)
        known = nearest >= 0
        votes[known, :, vote] = others[at].ratios[nearest[known]]
    known_count = (~np.isnan(votes)).sum(axis=-1)
    usual = np.where(known_count % 2 == 0, size, np.nan)
    work = lower_median(np.concatenate([votes, usual[..., None]], axis=-1))[..., 0]
    return np.where(known_count > 1, work, 1.0).T


class Computed(NamedTuple):
    """What is computed between two collectives, of those parts of a job in which anything is."""

    ratios: Floats
    """(steps, parts) how long it takes in some like steps, 1 for the usual time."""
    begins: Ints
    """(parts,) the operation, of all teams, with which each begins."""

    @property
    def varies(self) -> bool:
        """Whether most of them vary from step to step."""
        return len(self.begins) > 0 and float(np.median(qn_sigma(self.ratios))) > THRESHOLDS.tolerance_share


def compute_between(first: Ints, is_collective: Bools, gpu_ns: Floats) -> Computed:
    """Return what is computed between collectives in some like steps.

    Args:
        first: (teams + 1,) where each team's operations begin.
        is_collective: (operations of all teams,).
        gpu_ns: (steps, operations of all teams) medians over ranks; NaN where no rank of the team has the step.

    """
    begins = distinct_values(np.append(first[:-1][np.diff(first) > 0], np.flatnonzero(is_collective)))
    ratios = _relative(np.add.reduceat(np.where(is_collective, 0.0, np.nan_to_num(gpu_ns)), begins, axis=1))
    parts = np.flatnonzero(~np.isnan(ratios).all(axis=0))
    return Computed(np.nan_to_num(ratios[:, parts], nan=1.0), begins[parts])


def work_of_transfers(first: Ints, computed: Computed, place: Ints, took_ns: Floats) -> Floats:
    """Return, (steps, transfers), the work of each in each of some like steps, 1 for the usual one.

    A transfer carries as much in each step, or what its ranks compute next before or after it: what varies most as its
    own times do.

    Args:
        first: (teams + 1,) where each team's operations begin.
        computed: varies.
        place: (transfers,) an operation of each, of all teams.
        took_ns: (steps, transfers) from the last arrival to the end.

    """
    work = np.ones_like(took_ns)
    team_of_part, team = (np.searchsorted(first, places, side="right") for places in (computed.begins, place))
    after, least = np.searchsorted(computed.begins, place), known_medians(np.abs(_relative(took_ns) - 1))
    for part in (after - 1, after):
        at = np.clip(part, 0, len(computed.begins) - 1)
        shared = 1 + _share_that_grows(took_ns, computed.ratios[:, at]) * (computed.ratios[:, at] - 1)
        spread = known_medians(np.abs(_relative(took_ns / shared) - 1))
        is_nearer = (at == part) & (team_of_part[at] == team) & (spread < least)
        work[:, is_nearer], least[is_nearer] = shared[:, is_nearer], spread[is_nearer]
    return work


def work_by_sizes(sizes: Floats, took_ns: Floats) -> Floats:
    """Return, (steps, transfers), the work of each by its recorded sizes, 1 for the size 1.

    `sizes` (steps, transfers) are ÷ those of the usual one of a collective, `took_ns` as in `work_of_transfers`.
    """
    work: Floats = 1 + _share_that_grows(took_ns, sizes) * (sizes - 1)
    return work


def _share_that_grows(times_ns: Floats, sizes: Floats) -> Floats:
    """Return, (columns,), which part of a usual time grows with the size; the rest is latency.

    `sizes` are 1 for the usual one, (steps, columns) each.
    """
    slope_ns = growth_with_size(sizes, times_ns)
    latency_ns = known_medians(times_ns - slope_ns * sizes)
    whole_ns = slope_ns + latency_ns
    share: Floats = np.divide(slope_ns, whole_ns, out=np.zeros_like(whole_ns), where=whole_ns > 0).clip(0, 1)
    return share


def growth_with_size(sizes: Floats, times_ns: Floats) -> Floats:
    """Return, (columns,), by what times grow with the size 1, ns: Siegel's repeated medians of slopes between steps.

    Arguments are (steps, columns). Nearly half of the steps may be slow for another reason.
    """
    lags = range(1, min(len(times_ns), THRESHOLDS.sampled_steps))
    slopes_ns = np.full((2 * len(lags), *times_ns.shape), np.nan)
    for row, lag in enumerate(lags):
        grown = sizes[lag:] - sizes[:-lag]
        grown_ns, unknown_ns = times_ns[lag:] - times_ns[:-lag], np.full(grown.shape, np.nan)
        of_pairs = np.divide(grown_ns, grown, out=unknown_ns, where=grown != 0)
        slopes_ns[2 * row, lag:] = slopes_ns[2 * row + 1, :-lag] = of_pairs
    return known_medians(known_medians(slopes_ns))


def _relative(times_ns: Floats) -> Floats:
    """Return times as ratios to the median of their column, (steps, columns); NaN where an operation is absent."""
    known_ns = np.where(times_ns > 0, times_ns, np.nan)
    ratios: Floats = known_ns / known_medians(known_ns)
    return ratios


@compiled
def find_most_alike(ratios: Floats, names: Ints, others: Parts, nearest: Ints) -> None:
    """Find which part of its name, or of any where none has it, varies most as each operation does; -1 for none.

    `ratios` (operations, steps) are as those of `others`, `names` and `nearest` (operations,).
    """
    for op in range(len(ratios)):
        low, high = others.first[names[op]], others.first[names[op] + 1]
        if low == high:
            low, high = 0, len(others.ratios)
        least, nearest[op] = math.inf, -1
        for at in range(low, high):
            apart = 0.0
            for step in range(ratios.shape[1]):
                difference = abs(ratios[op, step] - others.ratios[at, step])
                if not isnan(difference):
                    apart += difference
                if apart >= least:
                    break
            if apart < least:
                least, nearest[op] = apart, at
