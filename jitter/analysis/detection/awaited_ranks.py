"""Ranks whose hosts those of all others seem to wait for: the steps of all ranks are slow because a few are held up.

No recording says that a host waits for another one, as in a barrier or before Horovod's collectives. The wait shows as
time of the waiting host's own, which the loss does not contain, as most ranks have it.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np

from jitter.analysis.detection.findings import Finding, join_outliers
from jitter.analysis.detection.measured_run import MeasuredRun
from jitter.analysis.detection.run_account import Charges
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_numbers, format_time
from jitter.core.numeric.arrays import Floats


def blame_awaited_ranks(slow: Finding, measured: MeasuredRun, charges: Charges) -> Finding | None:
    """Return what fewer than half of the ranks lose, to which the others seem to owe slow steps; None: nothing.

    The ranks that wait pause in a slow step. An awaited rank has no such pause, and took as long elsewhere in that step
    or the one before, beside what is charged to it there. Both are at least half of what the slow steps take longer.
    """
    if slow.part is TimePart.GPU:
        return None
    team_of = measured.steps.run.team_of
    gain_ns, longer_ns = slow.excess_ns / len(slow.steps), 0.0
    awaited, of_parts = defaultdict[int, set[int]](set), defaultdict[int, Floats](lambda: np.zeros(len(OWN_PARTS)))
    for number in slow.steps:
        late = _late_elsewhere(measured, charges, number, THRESHOLDS.main_share * gain_ns)
        longer_ns += max((float(of_rank.sum()) for _, of_rank in late.values()), default=0.0)
        for rank, (origin, of_rank) in late.items():
            awaited[rank].add(origin)
            of_parts[rank] += of_rank
    if longer_ns < THRESHOLDS.main_share * slow.excess_ns or 2 * len(awaited) >= len(team_of):
        return None
    part = TimePart(int(np.sum([*of_parts.values()], axis=0).argmax()))
    members = [
        replace(
            slow.worst,
            team=team_of[rank],
            rank=rank,
            part=part,
            steps=tuple(sorted(awaited[rank])),
            excess_ns=float(of_parts[rank].sum()),
            is_of_all_ranks=False,
        )
        for rank in sorted(awaited)
    ]
    others = sorted(set(slow.ranks) - awaited.keys())
    steps, awaited_hosts = format_count(len(slow.steps), "step"), "it" if len(members) == 1 else "them"
    sentence = (
        f"in {steps} the hosts of ranks {format_numbers(others)} seem to wait for {awaited_hosts}, as in a barrier: "
        f"they take {format_time(gain_ns)} longer than in the other steps, but elsewhere"
    )
    return join_outliers("awaited", members, sentence, are_late_together=True, gain_ns=slow.known_gain_ns)


def _late_elsewhere(
    measured: MeasuredRun, charges: Charges, number: int, least_ns: float
) -> dict[int, tuple[int, Floats]]:
    """Return by rank what it takes longer than others, if so much is not lost, and as it lacks as much of their pauses.

    The step in which most of that lies, this one or the one before, and, (own parts,), all of it.
    """
    steps, late = range(max(number - 1, 0), number + 1), {}
    seen = [measured.of_steps[at].deviations for at in steps]
    longer_ns = np.maximum([np.nan_to_num(step.total_ns) + step.skipped_ns for step in seen], 0.0)
    for column in np.flatnonzero(seen[-1].skipped_ns.sum(axis=0) >= least_ns).tolist():
        of_steps, rank = longer_ns[:, :, column], int(measured.steps.run.rank_numbers[column])
        charged_ns = float(charges.own_ns[:, steps, charges.column(rank)].sum())
        if of_steps.sum() - max(charged_ns, 0.0) >= least_ns:
            late[rank] = steps[int(of_steps.sum(axis=1).argmax())], of_steps.sum(axis=0)
    return late
