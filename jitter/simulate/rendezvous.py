"""Lets ranks of different programs run against each other, from collective to collective."""

from collections.abc import Generator, Mapping
from typing import NamedTuple

import numpy as np

from jitter.core.errors import JitterError
from jitter.simulate.engine import CollectiveArrival
from jitter.simulate.program import NO_GROUP, Ints, Plan

StageRun = Generator[tuple[int, CollectiveArrival], Ints, None]
"""All phases of the ranks of one program: yields (phase, arrival), is sent when the collective ends on each rank."""
CollectiveEnds = dict[tuple[int, int, int], Ints]
"""(stage, phase, position) of each collective -> its end in each group (ns, global)."""


class _Came(NamedTuple):
    stage: int
    phase: int
    arrival: CollectiveArrival
    group: Ints
    """(ranks,) the group's number on each rank that came."""


def run_stages(plan: Plan, lives: Mapping[int, StageRun]) -> CollectiveEnds:
    """Run the lives of all stages to their ends and tell when each collective ended.

    A life goes on as soon as all stages that have ranks in its collective's groups have come to theirs: the nth
    collective of a group on one rank meets the nth on the others. Raises `JitterError` where all wait for others.
    """
    expected = {
        name: frozenset(np.unique(plan.stage[group != NO_GROUP]).tolist()) for name, group in plan.groups.items()
    }
    met: dict[tuple[int, str], int] = {}
    open_meets: dict[tuple[str, int], list[_Came]] = {}
    found: CollectiveEnds = {}
    able: list[tuple[int, Ints | None]] = [(stage, None) for stage in lives]
    waiting: dict[int, str] = {}
    while able:
        stage, ends = able.pop(0)
        try:
            phase, arrival = next(lives[stage]) if ends is None else lives[stage].send(ends)
        except StopIteration:
            continue
        name = arrival.operation.group or ""
        number = met[stage, name] = met.get((stage, name), 0) + 1
        came = open_meets.setdefault((name, number), [])
        came.append(_Came(stage, phase, arrival, plan.groups[name][plan.ranks_of(stage)]))
        if len(came) < len(expected[name]):
            waiting[stage] = f"{arrival.operation.collective} {number} of group {name}"
            continue
        of_group = _ends(sorted(open_meets.pop((name, number)), key=lambda one: one.stage))
        for one in sorted(came, key=lambda one: one.stage):
            waiting.pop(one.stage, None)
            found[one.stage, one.phase, one.arrival.at] = of_group
            able.append((one.stage, of_group[one.group]))
    if waiting:
        stuck = ", ".join(f"stage {stage} in {what}" for stage, what in sorted(waiting.items()))
        raise JitterError(f"the ranks of the simulated job wait for each other: {stuck}")
    return found


def _ends(came: list[_Came]) -> Ints:
    """The end in each group: when its last rank has arrived and the transfer is over."""
    size = 1 + max(int(one.group.max()) for one in came)
    last = np.full(size, np.iinfo(np.int64).min)
    transfer = np.zeros(size, np.int64)
    # where several programs meet in one group, it is the first's transfer that counts
    for one in reversed(came):
        np.maximum.at(last, one.group, one.arrival.ready) if size > 1 else last.fill(
            max(last[0], one.arrival.ready.max())
        )
        transfer[one.group] = one.arrival.transfer
    return last + transfer
