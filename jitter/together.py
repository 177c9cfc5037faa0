"""Whether the supposed members of a collective leave it together, as its ends tell: without any shared clock."""

from collections.abc import Mapping

import numpy as np

from jitter.clock import TOGETHER_NS
from jitter.meetings import Meetings
from jitter.step_arrays import StepArrays


def not_together(meetings: Meetings, steps: Mapping[int, StepArrays]) -> set[tuple[int, int]]:
    """Find (team, place) of meetings whose ends contradict the clock offsets that the step's other meetings give.

    METRICS: a collective whose ends disagree by over 100 µs with those offsets is of another group, or synchronises
    nobody. One meeting alone contradicts nothing.
    """
    ends: list[dict[int, float]] = []
    for meeting in meetings.meetings:
        found: dict[int, float] = {}
        for member in meeting.members:
            block = meetings.blocks[member.block]
            step = steps.get(block.team)
            if step is None:
                continue
            column_of = {rank: column for column, rank in enumerate(step.ranks.tolist())}
            for rank in block.ranks:
                if rank in column_of:
                    found[rank] = float(step.end[member.place, column_of[rank]])
        ends.append({rank: end for rank, end in found.items() if not np.isnan(end)})
    whole = [at for at, meeting in enumerate(meetings.meetings) if meeting.groups == 1 and len(ends[at]) > 1]
    apart: set[tuple[int, int]] = set()
    for at in whole:
        others = [other for other in whole if other != at and ends[other].keys() >= ends[at].keys()]
        if not others:
            continue
        ranks = sorted(ends[at])
        own = np.array([ends[at][rank] for rank in ranks])
        # the offsets that the others agree on: of an even number, those of one of the middle two
        told = np.array([[ends[other][rank] - ends[other][ranks[0]] for rank in ranks] for other in [*others, at]])
        usual = np.sort(told, axis=0)[(len(told) - 1) // 2]
        if np.abs(own - own[0] - usual).max() > TOGETHER_NS:
            members = meetings.meetings[at].members
            apart.update((meetings.blocks[member.block].team, member.place) for member in members)
    return apart
