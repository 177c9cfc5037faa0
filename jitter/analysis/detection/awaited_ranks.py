"""Ranks whose hosts those of all others seem to wait for: the steps of all ranks are slow because a few are held up.

No recording says that a host waits for another one, as in a barrier or before Horovod's collectives. The wait shows as
time of the waiting host's own, which the loss does not contain, as most ranks have it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from jitter.analysis.account.losses import CLASSES_OF_PART, OWN_CLASSES, LossClass, Losses
from jitter.analysis.account.step_account import StepAccount
from jitter.analysis.detection.findings import Finding, join_outliers
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_numbers, format_time
from jitter.core.numeric.arrays import Floats


def blame_awaited_ranks(
    slow: Finding, of_steps: Sequence[StepAccount], team_of: Mapping[int, int]
) -> Finding | None:  # fmt: skip
    """Return what fewer than half of the ranks lose, to which the others seem to owe slow steps; None: nothing.

    An awaited rank takes longer than the median rank at some places, and as much less where the others wait for it:
    each at least half of what the steps are slower.

    Args:
        slow: all ranks are slow in some steps.
        of_steps: the account of each step of the run.
        team_of: the team of each rank of the run.

    """
    if slow.part is TimePart.GPU:
        return None
    gain_ns, longer_ns = slow.excess_ns / len(slow.steps), 0.0
    awaited, of_parts = defaultdict[int, set[int]](set), defaultdict[int, Floats](lambda: np.zeros(len(OWN_PARTS)))
    for number in slow.steps:
        late = _late_elsewhere(of_steps[number].losses, THRESHOLDS.main_share * gain_ns)
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


def _late_elsewhere(losses: Losses, least_ns: float) -> dict[int, tuple[int, Floats]]:
    """Return by rank what it takes longer at some places, if so much, and as it saves as much at others.

    The step in which most of that lies, this one or one before, and, (own parts,), all of it.
    """
    late, own = {}, losses.of(OWN_CLASSES)
    ranks, of_rank = np.unique(own.rank, return_inverse=True)
    saved_ns = np.bincount(of_rank, np.maximum(-own.loss_ns, 0.0), len(ranks))
    for at in np.flatnonzero(saved_ns >= least_ns).tolist():
        rank, longer = int(ranks[at]), own.where((of_rank == at) & (own.loss_ns > 0))
        longer_ns = np.fmax(longer.excess_ns, longer.loss_ns)
        if longer_ns.sum() >= least_ns:
            of_class = np.bincount(longer.loss_class, longer_ns, len(LossClass))
            of_parts = np.array([of_class[list(CLASSES_OF_PART[part])].sum() for part in OWN_PARTS])
            late[rank] = int(np.bincount(longer.origin, longer_ns).argmax()), of_parts
    return late
