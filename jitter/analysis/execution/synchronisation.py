"""Whether the supposed members of a collective leave it together, as its ends tell: without any shared clock."""

from collections.abc import Mapping

import numpy as np

from jitter.analysis.execution.collectives import Meetings
from jitter.analysis.execution.step_times import Recorded
from jitter.analysis.metrics.clock_alignment import SYNCHRONOUS_WITHIN_NS


def not_together(meetings: Meetings, steps: Mapping[int, Recorded]) -> set[tuple[int, int]]:
    """Find (team, place) of meetings whose ends contradict the clock offsets that the step's other meetings give.

    METRICS: a collective whose ends disagree by over 100 µs with those offsets is of another group, or synchronises
    nobody. One meeting alone contradicts nothing.
    """
    columns = meetings.columns({team: step.ranks for team, step in steps.items()})
    ranks = np.array([rank for block in meetings.blocks for rank in block.ranks], np.int64)
    begin = np.cumsum([0, *(len(block.ranks) for block in meetings.blocks)])
    # (meetings, ranks in ascending order); NaN for who is not there
    ends = np.full((len(meetings.meetings), len(ranks)), np.nan)
    for own, meeting in zip(ends, meetings.meetings, strict=True):
        for member in meeting.members:
            step, there = steps.get(meetings.blocks[member.block].team), columns[member.block]
            if step is not None:
                at = begin[member.block] + np.flatnonzero(there >= 0)
                own[at] = step.row("end", member.place)[there[there >= 0]]
    ends = ends[:, np.argsort(ranks)]
    known = ~np.isnan(ends)
    whole = [at for at, meeting in enumerate(meetings.meetings) if meeting.groups == 1 and known[at].sum() > 1]
    apart: set[tuple[int, int]] = set()
    for at in whole:
        others = [other for other in whole if other != at and known[other, known[at]].all()]
        if not others:
            continue
        # the offsets that the others agree on: of an even number, those of one of the middle two
        told = ends[[*others, at]][:, known[at]]
        told -= told[:, :1]
        usual = np.sort(told, axis=0)[(len(told) - 1) // 2]
        if np.abs(told[-1] - usual).max() > SYNCHRONOUS_WITHIN_NS:
            members = meetings.meetings[at].members
            apart.update((meetings.blocks[member.block].team, member.place) for member in members)
    return apart
