"""How much work the operations of a rank without peers do from step to step, as other ranks show it.

All stages of a pipeline work on the same batches: what most of them take longer in a step is the batch's size. Each
micro-batch has a size of its own. So an operation is compared, in each other team, with the operations of its name
between two collectives whose time varies most as its own: they work on the same micro-batch.
"""

from itertools import pairwise

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.numeric.stats import known_medians, lower_median


def work_of_operations(first: Ints, part: Ints, names: Ints, team: int, gpu_ns: Floats) -> Floats:
    """Return, (steps, operations of the team), the work of each in each of some like steps, 1 for the usual one.

    Of an even number of teams the usual size has a vote: two of them do not tell which one is slow.

    Args:
        first: (teams + 1,) where each team's operations begin.
        part: (operations of all teams,) a number for each part of a step, between two collectives.
        names: (operations of all teams,) a number for each name.
        team: of one rank.
        gpu_ns: (steps, operations of all teams) medians over ranks; NaN where no rank of the team has the step.

    """
    of_teams = [slice(*ends) for ends in pairwise(first.tolist())]
    if len(gpu_ns) < THRESHOLDS.min_steps:  # they do not tell which times vary alike: each team's step as a whole
        totals = [gpu_ns[:, here].sum(axis=1, keepdims=True) for here in of_teams]
        gpu_ns = np.hstack(
            [np.repeat(of_step, size, axis=1) for of_step, size in zip(totals, np.diff(first), strict=True)]
        )
    own, own_names = _relative(gpu_ns[:, of_teams[team]]), names[of_teams[team]]
    others = [here for at, here in enumerate(of_teams) if at != team and here.start < here.stop]
    votes = [own, *np.full((len(others), *own.shape), np.nan)]
    for vote, other in zip(votes[1:], others, strict=True):
        times, their_names = _parts(gpu_ns[:, other], part[other], names[other])
        for name in np.unique(own_names):
            here = np.flatnonzero(own_names == name)
            vote[:, here] = _most_alike(own[:, here], times[:, their_names == name] if name in their_names else times)
    known_count = (~np.isnan(votes)).sum(axis=0)
    usual = np.where(known_count % 2 == 0, 1.0, np.nan)
    work = lower_median(np.stack([*votes, usual], axis=-1).reshape(-1, len(votes) + 1)).reshape(own.shape)
    return np.where(known_count > 1, work, 1.0)


def _relative(times_ns: Floats) -> Floats:
    """Return times as ratios to the median of their column, (steps, columns); NaN where an operation is absent."""
    known_ns = np.where(times_ns > 0, times_ns, np.nan)
    ratios: Floats = known_ns / known_medians(known_ns)
    return ratios


def _parts(gpu_ns: Floats, part: Ints, names: Ints) -> tuple[Floats, Ints]:
    """Return the ratios of what operations of one part and name take together, (steps, parts), and their names."""
    order = np.lexsort((names, part))
    begins = np.flatnonzero(np.append(True, np.diff(part[order]).astype(bool) | np.diff(names[order]).astype(bool)))
    ratios = _relative(np.add.reduceat(gpu_ns[:, order], begins, axis=1))
    there = ~np.isnan(ratios).all(axis=0)
    return ratios[:, there], names[order][begins][there]


def _most_alike(own: Floats, others: Floats) -> Floats:
    """Return, (steps, operations), which of the others' ratios, (steps, parts), vary most as each operation's do."""
    least, nearest = np.full(own.shape[1], np.inf), np.full(own.shape, np.nan)
    for ratios in others.T[:, :, None]:
        apart = np.nan_to_num(np.abs(own - ratios)).sum(axis=0)
        nearest = np.where(apart < least, ratios, nearest)
        least = np.fmin(least, apart)
    return nearest
