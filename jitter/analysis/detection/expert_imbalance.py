"""Unequal expert work of a step: how long the longest rank of each expert group takes beyond the mean, layer by layer.

A layer is the expert kernels (grouped matrix products) that a rank launches up to the next collective of its expert
group, the all-to-all that brings the tokens back. There the group's ranks wait for the longest one.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.alignment.program import Program
from jitter.analysis.replay.run_steps import RecordedSteps
from jitter.core.names.kernels import is_expert_kernel
from jitter.core.numeric.arrays import Floats, Ints, distinct_values

_ENDING: Final = ("all_to_all", "reduce_scatter", "all_reduce", "send_recv", "all_gather")
"""Collectives that may bring tokens back, the surest first: layers end at those of the first that a program has."""


class ExpertImbalance(NamedTuple):
    """Of the expert group whose ranks wait longest in a step."""

    ratio: float
    """Time of the longest rank of each layer ÷ mean over the group's recorded ranks, both added over the layers."""
    rank: int
    """The rank with the longest time in expert kernels."""
    waited_ns: int
    """The difference of the two times: how long a rank waits for the longest ones, on average."""


Layers = dict[int, Ints]
"""By the place of the collective at which a layer ends, the places of its expert kernels."""


def find_expert_layers(programs: Mapping[int, Program]) -> dict[int, Layers]:
    """Return, by team, the layers of its program; only teams that have some."""
    return {team: of_team for team, program in programs.items() if (of_team := _layers(program))}


def measure_expert_imbalance(step: RecordedSteps, layers: Mapping[int, Layers], ranks: Ints) -> ExpertImbalance | None:
    """Return the imbalance of a step; None without expert kernels, or without a group of two recorded ranks.

    `layers` are those of each team's program, `ranks` the ranks of the run by number.
    """
    if not layers:
        return None
    arrays, spent_ns = step.collectives, _time_before_ends(step, layers)
    is_end = np.zeros(len(arrays.first_in_group) - 1, np.bool_)
    is_end[arrays.group[~np.isnan(spent_ns)]] = True
    group = arrays.awaiting
    is_kept = is_end[group] & ~np.isnan(step.in_collectives[0])[arrays.by_group]
    attendance, group = arrays.by_group[is_kept], group[is_kept]
    if not len(group):
        return None
    rank, time_ns = arrays.rank[attendance], np.nan_to_num(spent_ns[attendance])
    first = np.flatnonzero(np.diff(group, prepend=-1))
    size = np.diff(first, append=len(group))
    # equal for groups of the same ranks
    code = np.add.reduceat(np.random.default_rng(0).integers(1 << 63, size=len(ranks), dtype=np.uint64)[rank], first)
    collective = arrays.collective[group[first]].astype(np.uint64)
    # in a ring each rank has a group, of all ranks
    _, single = np.unique(np.stack([collective, code]), axis=1, return_index=True)
    single = single[size[single] > 1]
    codes, of_code = np.unique(code[single], return_inverse=True)
    longest_ns = np.bincount(of_code, np.maximum.reduceat(time_ns, first)[single])
    mean_ns = np.bincount(of_code, (np.add.reduceat(time_ns, first) / size)[single])
    if not mean_ns.any():
        return None
    worst = int(np.argmax(np.where(mean_ns > 0, longest_ns - mean_ns, -1.0)))
    is_worst = np.repeat(code == codes[worst], size)
    longest = int(ranks[np.bincount(rank[is_worst], time_ns[is_worst]).argmax()])
    return ExpertImbalance(
        float(longest_ns[worst] / mean_ns[worst]), longest, round(float(longest_ns[worst] - mean_ns[worst]))
    )


def _layers(program: Program) -> Layers:
    operations = program.operations
    experts = np.array([place for place, op in enumerate(operations) if is_expert_kernel(op.name)], np.int64)
    if not len(experts):
        return {}
    kinds = [operation.collective for operation in operations]
    ending = next((kind for kind in _ENDING if kind in kinds), None)
    if ending is None:
        return {}
    ends = np.array([place for place, kind in enumerate(kinds) if kind == ending], np.int64)
    # what follows the last one, as gradients of weights, counts for it
    end = ends[np.minimum(np.searchsorted(ends, experts), len(ends) - 1)]
    return {place: experts[end == place] for place in distinct_values(end).tolist()}


def _time_before_ends(step: RecordedSteps, layers: Mapping[int, Layers]) -> Floats:
    """Return, (attendances,), each rank's time in expert kernels of the layer that ends there, ns; NaN elsewhere."""
    arrays, times = step.collectives, step.times
    durations_ns, spent_ns = times.end - times.start, np.full(len(arrays.rank), np.nan)
    is_there, team = times.row[arrays.rank] >= 0, times.team[arrays.rank]
    for of_team, ends in layers.items():
        of_ranks = np.flatnonzero(is_there & (team == of_team))
        for place, experts in ends.items():
            at = of_ranks[arrays.place[of_ranks] == place]
            spent_ns[at] = np.nansum(durations_ns[times.row[arrays.rank[at]][:, None] + experts], axis=1)
    return spent_ns
