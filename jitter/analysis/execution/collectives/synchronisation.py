"""Whether the supposed members of a collective leave it together, as its ends tell: without any shared clock."""

from collections.abc import Mapping

import numpy as np

from jitter.analysis.execution.collectives.matching import CollectiveMatching
from jitter.analysis.execution.recorded.step_times import TeamTimes
from jitter.analysis.thresholds import THRESHOLDS


def find_unsynchronised(matching: CollectiveMatching, steps: Mapping[int, TeamTimes]) -> set[tuple[int, int]]:
    """Find (team, place) of collectives whose ends contradict the clock offsets that the step's other collectives give.

    METRICS: a collective whose ends disagree by over 100 µs with those offsets is of another group, or synchronises
    nobody. One collective alone contradicts nothing.
    """
    columns = matching.columns({team: step.ranks for team, step in steps.items()})
    ranks = np.array([rank for block in matching.blocks for rank in block.ranks], np.int64)
    begin = np.cumsum([0, *(len(block.ranks) for block in matching.blocks)])
    # (matching, ranks in ascending order); NaN for an absent rank
    ends = np.full((len(matching.collectives), len(ranks)), np.nan)
    for own, collective in zip(ends, matching.collectives, strict=True):
        for member in collective.members:
            step, there = steps.get(matching.blocks[member.block].team), columns[member.block]
            if step is not None:
                at = begin[member.block] + np.flatnonzero(there >= 0)
                own[at] = step.end[member.place, there[there >= 0]]
    ends = ends[:, np.argsort(ranks)]
    known = ~np.isnan(ends)
    whole = np.array([collective.groups == 1 for collective in matching.collectives], np.bool_) & (
        known.sum(axis=1) > 1
    )
    apart: set[tuple[int, int]] = set()
    for mask in {row.tobytes(): row for row in known[whole]}.values():
        # the offsets that these ranks' collectives agree on: of an even number, those of one of the middle two
        chosen = np.flatnonzero(whole & known[:, mask].all(axis=1))
        if len(chosen) < 2:
            continue
        offsets = ends[np.ix_(chosen, mask)]
        offsets -= offsets[:, :1]
        middle = (len(offsets) - 1) // 2
        usual = np.partition(offsets, middle, axis=0)[middle]
        differs = np.abs(offsets - usual).max(axis=1) > THRESHOLDS.matching.synchronous_within_ns
        for at in chosen[differs & (known[chosen] == mask).all(axis=1)].tolist():
            members = matching.collectives[at].members
            apart.update((matching.blocks[member.block].team, member.place) for member in members)
    return apart
