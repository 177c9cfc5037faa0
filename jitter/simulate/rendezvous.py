"""Run the ranks of different programs together, from collective to collective."""

from collections.abc import Generator, Mapping
from typing import NamedTuple

import numpy as np

from jitter.core.errors import JitterError
from jitter.simulate.engine import CollectiveArrival
from jitter.simulate.program import NO_GROUP, Ints, Plan

StageRun = Generator[tuple[int, CollectiveArrival], Ints, None]
"""Run of one stage: yields (phase, arrival) and receives the collective's end on each rank."""
CollectiveEnds = dict[tuple[int, int, int], Ints]
"""End of each collective per group (ns, global), by (stage, phase, position)."""


class _Arrived(NamedTuple):
    stage: int
    phase: int
    arrival: CollectiveArrival
    group: Ints
    """(ranks,) number of each arriving rank's group."""


def run_stages(plan: Plan, runs: Mapping[int, StageRun]) -> CollectiveEnds:
    """Run all stages to their ends and return when each collective ended.

    A stage continues when all stages with ranks in the collective's groups have arrived; the nth collective of a group
    on one rank matches the nth on the other ranks. Raises `JitterError` for a deadlock.
    """
    expected = {
        name: frozenset(np.unique(plan.stage[group != NO_GROUP]).tolist()) for name, group in plan.groups.items()
    }
    count: dict[tuple[int, str], int] = {}
    pending: dict[tuple[str, int], list[_Arrived]] = {}
    found: CollectiveEnds = {}
    ready: list[tuple[int, Ints | None]] = [(stage, None) for stage in runs]
    waiting: dict[int, str] = {}
    while ready:
        stage, ends = ready.pop(0)
        try:
            phase, arrival = next(runs[stage]) if ends is None else runs[stage].send(ends)
        except StopIteration:
            continue
        name = arrival.operation.group or ""
        number = count[stage, name] = count.get((stage, name), 0) + 1
        arrived = pending.setdefault((name, number), [])
        arrived.append(_Arrived(stage, phase, arrival, plan.groups[name][plan.ranks_of(stage)]))
        if len(arrived) < len(expected[name]):
            waiting[stage] = f"{arrival.operation.collective} {number} of group {name}"
            continue
        of_group = _ends(sorted(pending.pop((name, number)), key=lambda one: one.stage))
        for one in sorted(arrived, key=lambda one: one.stage):
            waiting.pop(one.stage, None)
            found[one.stage, one.phase, one.arrival.at] = of_group
            ready.append((one.stage, of_group[one.group]))
    if waiting:
        stuck = ", ".join(f"stage {stage} in {what}" for stage, what in sorted(waiting.items()))
        raise JitterError(f"the ranks of the simulated job wait for each other: {stuck}")
    return found


def _ends(arrived: list[_Arrived]) -> Ints:
    """Return the end in each group: the arrival of its last rank plus the transfer."""
    size = 1 + max(int(one.group.max()) for one in arrived)
    last = np.full(size, np.iinfo(np.int64).min)
    transfer = np.zeros(size, np.int64)
    # if a group spans several programs, the transfer of the first one counts
    for one in reversed(arrived):
        np.maximum.at(last, one.group, one.arrival.ready) if size > 1 else last.fill(
            max(last[0], one.arrival.ready.max())
        )
        transfer[one.group] = one.arrival.transfer
    return last + transfer
