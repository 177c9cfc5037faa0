"""Whether slower GPU operations are the same work: kernel names and launch shapes compared with the other ranks'.

A rank without peers is compared with its own other steps, and so is a rank in steps that are slow for all ranks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.execution.run_reader import LaunchShapes
from jitter.analysis.execution.self_times import undisturbed_times
from jitter.analysis.replay.ladder import mask_operations
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.grouping import by_key
from jitter.core.names.kernels import MEETINGS
from jitter.core.numeric.arrays import Bools, Floats, Ints, distinct_values, spread_positions
from jitter.core.numeric.stats import known_medians, lower_median, middle_value
from jitter.core.step_key import StepKey


@dataclass(frozen=True)
class WorkloadComparison:
    """One rank's GPU excess, and how much of it is in operations with different work."""

    excess_ns: float = 0.0
    """Over the operations that took longer than the baseline."""
    differing_ns: float = 0.0
    """Of it, what more work explains: larger launches, in proportion; other kernels, or ones that most ranks lack.
    Of other kernels what is beyond the pace of the equal ones."""
    copies_ns: float = 0.0
    """Of it, what copies between host and GPU took longer."""
    unknown_ns: float = 0.0
    """Of it, what lies in the same kernels whose launch shapes are not recorded."""
    operations: int = 0
    """How many operations took longer."""
    differing: int = 0
    """How many of them had more or different work."""
    extra: tuple[tuple[int, float], ...] = ()
    """Those of them that most ranks lack: the kernel's name as a number, and how long it took, ns."""
    replaced: tuple[tuple[int, int, float], ...] = ()
    """Where the rank runs another kernel than most: its name and theirs, as numbers, and what it explains, ns.

    Theirs is -1 where most have none, and run this one nowhere.
    """
    own_steps: bool = False
    """Whether the rank was compared with its own other steps."""
    held_ns: float = 0.0
    """Of the excess, what lies in launches that were held up: see `_held`."""
    held: int = 0
    """How many were."""
    times: tuple[tuple[int, float, float], ...] = ()
    """Of operations that tell whether all kernels are slower: the kernel's name as a number, time and baseline, ns."""

    def unaffected_share(self, least: float) -> float:
        """Return which part of the GPU time is in kernels that are hardly slower: by less than `least` of the mean.

        Times are summed by kernel name; the name's mean must be below by twice its standard error.
        """
        names = by_key((name, (took, usual)) for name, took, usual in self.times)
        total = sum(usual for _, _, usual in self.times)
        slower = sum(took for _, took, _ in self.times) / total - 1 if total > 0 else 0.0
        if slower <= 0:
            return 0.0
        unaffected = 0.0
        for pairs in names.values():
            ratios = np.array([took / usual - 1 for took, usual in pairs])
            if len(ratios) < 2:
                continue
            error = float(ratios.std(ddof=1)) / np.sqrt(len(ratios))
            if float(ratios.mean()) + 2 * error < least * slower:
                unaffected += sum(usual for _, usual in pairs)
        return unaffected / total

    @property
    def main_replacement(self) -> tuple[int, int] | None:
        """The kernel that explains most of the different work, and the one that most ranks run in its place, if any.

        None where kernels that only this rank runs explain less than half of it.
        """
        explained_ns: dict[tuple[int, int], float] = {}
        for kernel, usual, ns in self.replaced:
            explained_ns[kernel, usual] = explained_ns.get((kernel, usual), 0.0) + ns
        if not explained_ns or sum(explained_ns.values()) < THRESHOLDS.main_share * self.differing_ns:
            return None
        return max(explained_ns, key=explained_ns.__getitem__)

    def __add__(self, other: "WorkloadComparison") -> "WorkloadComparison":
        """Return the comparison over the steps of both."""
        added = {one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)}
        return WorkloadComparison(**added | {"own_steps": self.own_steps or other.own_steps})


def compare_workload(analysis: RunAnalysis, outlier: Outlier, steps: Sequence[int]) -> WorkloadComparison:
    """Compare the work of an outlier's GPU operations in these steps, by position in the run."""
    run, team, rank = analysis.run, outlier.team, outlier.rank
    own_steps = run.sizes[team] == 1 or outlier.is_of_all_ranks
    comparison = WorkloadComparison(own_steps=own_steps)
    copies = mask_operations(run).host_copies[slice(*run.job.first[team : team + 2].tolist())]
    for number in steps:
        key = analysis.keys[number]
        if rank not in run.ranks(key, team):
            continue
        if own_steps:
            peers = _own_steps(analysis, outlier, key)
        else:
            there = (peer for peer in run.ranks(key, team) if outlier.is_compared_with(peer))
            peers = [(key, _with_peers(rank, there, THRESHOLDS.sampled_ranks))]
        recorded = run.rank_times(key, rank)
        gpu = np.nan_to_num(undisturbed_times(run.job, team, recorded.start[:, 0], recorded.end[:, 0]))
        gpu[np.isin(run.programs[team].kinds, MEETINGS)] = 0.0
        rows = np.hstack([run.file_rows(step, team, ranks) for step, ranks in peers])
        comparison += compare_launch_shapes(
            rows,
            gpu,
            _baseline(analysis, outlier, number, [peer for peer in peers[0][1] if peer != rank]),
            copies,
            [(step, peer) for step, ranks in peers for peer in ranks].index((key, rank)),
            [shapes for step, ranks in peers for shapes in analysis.lake.launch_shapes(step, ranks)],
            _work(analysis, outlier, number),
        )
    return comparison


def _baseline(analysis: RunAnalysis, outlier: Outlier, number: int, peers: Sequence[int]) -> Floats:
    """Return, (operations,), the baseline of GPU time in a step: the ranks' median in it, or in the other steps.

    Of a rank that is compared with the faster ranks the median of some of these, its `peers`.
    """
    run, key = analysis.run, analysis.keys[number]
    if outlier.peers and peers:
        times = [run.rank_times(key, peer) for peer in peers]
        of_peers = [undisturbed_times(run.job, outlier.team, each.start[:, 0], each.end[:, 0]) for each in times]
        faster: Floats = np.nan_to_num(known_medians(np.stack(of_peers)))
        return faster
    operations = slice(*run.job.first[outlier.team : outlier.team + 2].tolist())
    gpu_ns: Floats = analysis.steps.baselines.gpu[:, operations]
    others = np.setdiff1d(np.arange(len(gpu_ns)), outlier.steps) if outlier.is_of_all_ranks else np.empty(0)
    if not len(others):
        others = np.array([number])
    baseline: Floats = lower_median(gpu_ns[others], axis=0)[0]
    return baseline


def _work(analysis: RunAnalysis, outlier: Outlier, number: int) -> Floats | float:
    """Return, (operations,), the work that the baseline has, 1 for the usual one: without peers it varies."""
    of_steps = {} if outlier.is_of_all_ranks else analysis.steps.alone.get(outlier.team, {})
    return of_steps[number].work if number in of_steps else 1.0


def compare_for_work(times: tuple[tuple[int, float, float], ...]) -> WorkloadComparison:
    """Return the comparison of kernels with the time that their launches make expect: no work differs.

    `times` are each one's name as a number, time and expected time, ns.
    """
    late = [took - expected for _, took, expected in times if took > expected]
    return WorkloadComparison(sum(late), operations=len(late), times=times)


def compare_launch_shapes(
    rows_of: Ints,
    gpu: Floats,
    baseline: Floats,
    copies: Bools,
    column: int,
    shapes: Sequence[LaunchShapes],
    work: Floats | float = 1.0,
) -> WorkloadComparison:
    """Compare one rank's launches with those of the other columns.

    Args:
        rows_of: (operations, columns) rows in the columns' files, -1 for none.
        gpu: (operations,) the rank's GPU times, ns.
        baseline: (operations,) ns.
        copies: (operations,) which are copies between host and GPU: a clock does not slow them.
        column: the rank's.
        shapes: of each column's file.
        work: (operations,) that the baseline has, 1 for that of the other columns.

    """
    there = np.flatnonzero((rows_of[:, column] >= 0) & (gpu > 0))
    late, usual = (gpu - baseline)[there], baseline[there]
    name, threads = _names_and_threads(rows_of[there], shapes)
    others = (name >= 0).sum(axis=1)
    same = (name == name[:, [column]]).sum(axis=1)
    lacked = 2 * others <= len(shapes)
    another = ~lacked & (2 * same <= others)
    # more threads should take longer in proportion; where the baseline has more work, it has them too
    usual_threads = lower_median(threads)[:, 0] * np.broadcast_to(work, gpu.shape)[there]
    excess_threads = threads[:, column] / usual_threads - 1
    unknown = np.isnan(excess_threads) & ~copies[there] & ~lacked & ~another
    excess_threads = np.nan_to_num(excess_threads)
    explained = np.where(lacked, late, np.minimum(late, np.maximum(excess_threads, 0.0) * usual))
    explained[another] = (
        late - np.minimum(late, _pace(late, usual, another, ~lacked & (excess_threads <= 0)) * usual)
    )[another]
    slow, held = late > 0, _held(gpu[there], usual, name[:, column])
    usual_names = [shape.name for at, shape in enumerate(shapes) if at != column]
    its_own = another | (lacked & ~np.isin(name[:, column], np.concatenate(usual_names)) if usual_names else lacked)
    replaced = np.flatnonzero(its_own & slow & (explained > 0))
    return WorkloadComparison(
        float(late[slow].sum()),
        float(explained[slow].sum()),
        float(late[slow & copies[there]].sum()),
        float(late[slow & unknown].sum()),
        operations=int(slow.sum()),
        differing=int((explained[slow] > 0).sum()),
        extra=tuple(zip(name[lacked & slow, column].tolist(), late[lacked & slow].tolist(), strict=True)),
        replaced=tuple(
            (int(name[at, column]), _commonest(name[at], int(name[at, column])), float(explained[at]))
            for at in replaced.tolist()
        ),
        held_ns=float(late[held].sum()),
        held=int(held.sum()),
        times=_times(rows_of[:, column], np.where(copies, 0.0, gpu), baseline, shapes[column]),
    )


def _commonest(names: Ints, other_than: int) -> int:
    """Return the number, other than this one, that most columns have; -1 where none is, or most have none."""
    numbers, counts = np.unique(names[(names >= 0) & (names != other_than)], return_counts=True)
    return int(numbers[np.argmax(counts)]) if len(numbers) and 2 * (names >= 0).sum() > len(names) else -1


def _pace(late: Floats, usual: Floats, another: Bools, same: Bools) -> float:
    """Return by what part of its usual time another kernel may be slower because the rank's GPU is slow.

    Half of the rank's equal kernels are slower by as much. They speak for as much time as they take.

    Args:
        late: (operations,) the excess of each, ns.
        usual: (operations,) their baseline.
        another: (operations,) which are another kernel than most ranks'.
        same: (operations,) which have no more threads than those of most ranks.

    """
    alike = same & ~another & (usual > 0)
    asked = float(usual[another].sum())
    if not alike.any() or not asked:
        return 0.0
    slower = middle_value(late[alike] / usual[alike])
    return max(0.0, slower) * min(1.0, float(usual[alike].sum()) / asked)


def _held(gpu: Floats, usual: Floats, name: Ints) -> Bools:
    """Return which operations take many times their usual time, and most of their kernel's others in the step do not.

    Arguments are (operations,): more work, or a slow clock, would take all of a kernel's launches longer.
    """
    ratio = np.divide(gpu, usual, out=np.ones_like(gpu), where=usual > 0)
    is_long, held = ratio >= THRESHOLDS.held_factor, np.zeros(len(gpu), np.bool_)
    for number in distinct_values(name[is_long]).tolist():
        of_kernel = name == number
        if (of_kernel & ~is_long).sum() >= THRESHOLDS.min_repeats * (of_kernel & is_long).sum():
            held |= of_kernel & is_long
    return held


def _times(row: Ints, gpu: Floats, baseline: Floats, shape: LaunchShapes) -> tuple[tuple[int, float, float], ...]:
    """Return the kernel name, time and baseline of each operation that tells whether all kernels are slower.

    These are the operations from the first to the last that is much slower: a clock may be slow for a part of a step.
    Before and after them only kernels that do not occur between tell something, such as an optimizer's. `row`
    (operations,) is each operation's row, -1 for none.
    """
    there = np.flatnonzero((row >= 0) & (gpu > 0) & (baseline > 0))
    excess = np.maximum(gpu[there] - baseline[there], 0.0).cumsum()
    names = shape.name[row[there]]
    if len(there) and excess[-1] > 0:
        edge = (1 - THRESHOLDS.whole_share) / 2 * excess[-1]
        between = np.zeros(len(there), np.bool_)
        between[np.searchsorted(excess, edge) : np.searchsorted(excess, excess[-1] - edge) + 1] = True
        is_telling = between | ~np.isin(names, names[between])
        there, names = there[is_telling], names[is_telling]
    return tuple(zip(names.tolist(), gpu[there].tolist(), baseline[there].tolist(), strict=True))


def _names_and_threads(rows_of: Ints, shapes: Sequence[LaunchShapes]) -> tuple[Ints, Floats]:
    """Return (operations, columns) kernel names as numbers, -1 where there is none, and threads, NaN there."""
    name = np.full(rows_of.shape, -1, np.int64)
    threads = np.full(rows_of.shape, np.nan)
    for column, shape in enumerate(shapes):
        there = rows_of[:, column] >= 0
        name[there, column] = shape.name[rows_of[there, column]]
        threads[there, column] = shape.threads[rows_of[there, column]]
    return name, threads


def _own_steps(analysis: RunAnalysis, outlier: Outlier, key: StepKey) -> list[tuple[StepKey, list[int]]]:
    run, late = analysis.run, set(outlier.steps)
    there = [
        step
        for number, step in enumerate(analysis.keys)
        if number not in late and outlier.rank in run.ranks(step, outlier.team)
    ]
    chosen = [there[at] for at in spread_positions(len(there), THRESHOLDS.sampled_steps)]
    return [(step, [outlier.rank]) for step in (key, *chosen)]


def _with_peers(rank: int, ranks: Iterable[int], most: int) -> list[int]:
    """Return the rank and at most `most` of the team's other `ranks`, in order."""
    others = [peer for peer in ranks if peer != rank]
    return sorted([rank, *(others[at] for at in spread_positions(len(others), most))])
