"""Ranks that all others seem to wait for: all ranks are slow because a few are held up.

Unless a barrier is recorded, nothing says that a host waits for another one, as before Horovod's collectives, nor that
a GPU does within a CUDA graph that was recorded as a whole. The wait shows as time of the waiting rank's own, which the
loss does not contain, as most ranks have it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from jitter.analysis.detection.findings import Finding, join_outliers
from jitter.analysis.detection.measured_run import MeasuredRun
from jitter.analysis.detection.run_account import Charges
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.execution.rank_clusters import separate_clusters
from jitter.analysis.execution.self_times import SelfTimes, TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import Ranks, format_count, format_ranks, format_time
from jitter.core.numeric.arrays import Floats

MAY_WAIT: Final = "whether these hosts wait for another one, as in a barrier, is not recorded"


def blame_awaited_ranks(slow: Finding, measured: MeasuredRun, charges: Charges) -> Finding | None:
    """Return what fewer than half of the ranks lose, to which the others seem to owe slow steps; None: nothing."""
    usual_ns, longer_ns = _time_of(measured.usual_beside(slow.steps), slow.part), slow.excess_ns / len(slow.steps)
    awaited = find_awaited_ranks(measured, charges, slow.steps, usual_ns, longer_ns, slow.worst)
    return awaited and replace(awaited, known_gain_ns=slow.known_gain_ns)


def find_awaited_ranks(
    measured: MeasuredRun,
    charges: Charges,
    numbers: Sequence[int],
    usual_ns: Floats,
    longer_ns: float,
    like: Outlier,
) -> Finding | None:
    """Return what fewer than half of the ranks lose, and the others wait for in steps; None: nothing.

    The ranks that wait pause in such a step, or take longer for a kernel, those of a team at one place. An awaited
    rank does not pause there, and took as long elsewhere in that step or the one before, beside what is charged to
    it. Both are at least half of what the steps take longer.

    Args:
        measured: the run.
        charges: what the loss contains.
        numbers: of the steps.
        usual_ns: (operations of all teams,) how long hosts take before and in each call without such a wait, or GPUs.
        longer_ns: how much longer each step takes by the waits.
        like: what the members of the finding are like but for rank, part, steps and excess. Its part is what waits.

    """
    run, least_ns, found_ns = measured.steps.run, THRESHOLDS.main_share * longer_ns, 0.0
    awaited = defaultdict[int, dict[int, Floats]](dict)
    for number in numbers:
        late = _late_elsewhere(measured, charges, number, usual_ns, least_ns, like.part)
        found_ns += max((late_ns for late_ns, *_ in late.values()), default=0.0)
        for rank, (_, origin, of_parts) in late.items():
            awaited[rank][origin] = of_parts
    if not awaited or found_ns < least_ns * len(numbers) or 2 * len(awaited) >= len(run.team_of):
        return None
    of_rank = {rank: np.sum([*of_steps.values()], axis=0) for rank, of_steps in awaited.items()}
    part = TimePart(int(np.sum([*of_rank.values()], axis=0).argmax()))
    members = [
        replace(
            like,
            team=run.team_of[rank],
            rank=rank,
            part=part,
            steps=tuple(sorted(awaited[rank])),
            excess_ns=float(of_rank[rank].sum()),
            is_of_all_ranks=False,
        )
        for rank in sorted(awaited)
    ]
    others, few = sorted(run.team_of.keys() - awaited.keys()), Ranks(sorted(awaited))
    what, where, wait = (
        ("GPUs", "within a kernel or CUDA graph", "take {} longer")
        if like.part is TimePart.GPU
        else ("hosts", "as in a barrier", "pause for {}")
    )
    sentence = (
        f"in {format_count(len(numbers), 'step')} the {what} of {format_ranks(others)} seem to wait for {few}, {where}"
        f": they {wait.format(format_time(longer_ns))} where {few} {few:does|do} not, which {few:takes|take} as long "
        "elsewhere"
    )
    return join_outliers("awaited", members, sentence, are_late_together=True)


def _time_of(times: SelfTimes, part: TimePart) -> Floats:
    """Return the GPU's time of each operation, or the host's."""
    return times.gpu if part is TimePart.GPU else times.host_and_call


def _late_elsewhere(
    measured: MeasuredRun, charges: Charges, number: int, usual_ns: Floats, least_ns: float, waiting: TimePart
) -> dict[int, tuple[float, int, Floats]]:
    """Return by rank that lacks its team's pause what it takes longer than others, if so much of that is not lost.

    How much it is in this step and the one before, in which of the two most of it lies, and, (own parts,), that.
    """
    run, steps, late = measured.steps.run, range(max(number - 1, 0), number + 1), {}
    longer_ns = np.nan_to_num(measured.statistics.deviations.total_ns[list(steps)])
    for column, part, lacked_ns in _lacked_pauses(measured, number, usual_ns, least_ns, waiting):
        longer_ns[-1, part, column] += lacked_ns
        of_steps, rank = np.maximum(longer_ns[:, :, column], 0.0), int(run.rank_numbers[column])
        charged_ns = float(charges.own_ns[:, steps, charges.column(rank)].sum())
        if of_steps.sum() - max(charged_ns, 0.0) >= least_ns:
            most = int(of_steps.sum(axis=1).argmax())
            late[rank] = float(of_steps.sum()), steps[most], of_steps[most]
    return late


def _lacked_pauses(
    measured: MeasuredRun, number: int, usual_ns: Floats, least_ns: float, waiting: TimePart
) -> Iterator[tuple[int, TimePart, float]]:
    """Yield each rank, by its column, that lacks the pause of its team in a step, and by how much of which part.

    A team waits where most of its ranks pause, or their GPUs take longer, by most; of two ranks the one that pauses
    later in the program waits.
    """
    (step,), job = measured.steps.steps(number, number + 1), measured.steps.run.job
    baseline_ns, own_ns = _time_of(measured.steps.baseline(number), waiting), _time_of(step.self_times, waiting)
    for team, (first, after) in enumerate(pairwise(job.first.tolist())):
        columns = np.flatnonzero((step.times.team == team) & (step.times.row >= 0))
        cells = step.times.row[columns, None] + np.arange(after - first)
        of_ranks_ns = own_ns[cells]
        pauses_ns = of_ranks_ns - usual_ns[first:after]
        places = pauses_ns.argmax(axis=1)[pauses_ns.max(axis=1) >= least_ns]
        if len(places):
            counts = np.bincount(places)
            place = int(np.flatnonzero(counts == counts.max())[-1])
            of_host = TimePart.START if place <= job.first_kernel[team] else TimePart.CPU
            part = waiting if waiting is TimePart.GPU else of_host
            # before what a rank runs there and most others do not, it pauses at the same place
            is_there = ~np.isnan(np.fmin(step.times.start, step.times.call)[cells[:, :place]])
            is_common = 2 * is_there.sum(axis=0) > len(columns)
            begin = int(np.append(-1, np.flatnonzero(is_common))[-1]) + 1
            there_ns = pauses_ns[:, begin : place + 1].max(axis=1)
            lacks = there_ns < least_ns
            lacked_ns = np.maximum(baseline_ns[first + place] - of_ranks_ns[lacks, place], 0.0)
            if lacks.any() and _lie_apart(np.sort(there_ns[lacks]), np.sort(there_ns[~lacks])):
                yield from zip(columns[lacks].tolist(), [part] * len(lacked_ns), lacked_ns.tolist(), strict=True)


def _lie_apart(short_ns: Floats, long_ns: Floats) -> bool:
    """Return whether pauses of one step, ascending, are of two kinds: those of hosts that wait hardly differ."""
    usual_sigma = THRESHOLDS.host_spread_share * float(np.median(long_ns))
    return bool(separate_clusters(short_ns, long_ns, usual_sigma) >= THRESHOLDS.outlier_sigmas)
