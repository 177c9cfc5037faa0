"""GPU time for the launched work: what is left of the ranks' differences without the sizes of their launches.

Where sequence lengths vary, so does GPU time, on all ranks: a GPU that is 10% slower does not stand out. If the
recording has the launches' sizes, each kernel's time is compared with

    expected = median time in the step × (threads ÷ median threads in the step) ^ g

g of a kernel is the slope, by least squares, of ln(time) over ln(threads), each less the rank's mean over steps and the
step's mean over ranks: a rank that is always slow, or has always more work, does not change it.

Where the sizes do not tell the work, as of packed sequences or of unlike numbers of generated tokens, ranks that share
it do: those of a tensor-parallel group, whose times differ far less from each other's than from those of other groups.

    expected = lower median of the times in the step of the rank's group

Else kernels whose times hardly follow the step's tell the GPU's pace:

    expected = time ÷ (time of the steady kernels in the step ÷ their median over ranks)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.detection.deviations import TeamDeviations, compare_with_one_rank, subtract_median_of_others
from jitter.analysis.detection.standouts import Outlier, Standouts
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.replay.like_steps import changes_for_good
from jitter.analysis.replay.run_steps import RunSteps
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats, Ints, distinct_values, spread_positions
from jitter.core.numeric.stats import centred, known_median, known_medians, lower_median, qn_sigma

_LIMITS: Final = THRESHOLDS.launched_work


@dataclass(frozen=True)
class LaunchedWork:
    """One team's GPU times, and the times expected from the sizes of its launches."""

    deviations: TeamDeviations
    """With GPU totals relative to the launched work."""
    steps: tuple[int, ...]
    """Positions in the run of the steps that were compared."""
    own_ns: Floats
    """(operations, these steps, ranks); NaN where a rank has not the operation."""
    expected_ns: Floats
    """The same, of the launched work."""
    name: Ints
    """(operations,) each kernel's name as a number; -1 for none."""
    sharing: Ints | None
    """(ranks,) the groups whose ranks do the same work; None where none is known to."""

    def times(self, rank: int) -> tuple[tuple[int, float, float], ...]:
        """Return name, time and expected time of each of a rank's kernels in each step."""
        column = int(np.searchsorted(self.deviations.ranks, rank))
        time_ns, expected = self.own_ns[:, :, column], self.expected_ns[:, :, column]
        where = np.nonzero(~np.isnan(time_ns + expected))
        return tuple(zip(self.name[where[0]].tolist(), time_ns[where].tolist(), expected[where].tolist(), strict=True))

    def is_behind(self, outlier: Outlier) -> bool:
        """Return whether a rank takes longer in these steps than most, whatever its work: else none waits for it."""
        return self._behind_ns(outlier)[0] > 0

    def is_shared(self, outlier: Outlier) -> bool:
        """Return whether the ranks that share a rank's work are behind most as it is: that is what they have to do."""
        own_ns, shared_ns = self._behind_ns(outlier)
        return self.sharing is not None and 0 < THRESHOLDS.main_share * own_ns <= shared_ns

    def _behind_ns(self, outlier: Outlier) -> tuple[float, float]:
        """Return how much longer than most ranks a rank takes in these steps, and the ranks of its group.

        Both 0 where none of these steps was compared.
        """
        late = [at for at, number in enumerate(self.steps) if number in outlier.steps]
        total_ns = _totals(self.own_ns[:, late])
        column = np.searchsorted(self.deviations.ranks, outlier.rank)
        alike = [column] if self.sharing is None else np.flatnonzero(self.sharing == self.sharing[column])
        behind = (lower_median(total_ns[:, ranks]) - lower_median(total_ns) for ranks in ([column], alike))
        own_ns, shared_ns = (float(np.nansum(of_steps)) for of_steps in behind)
        return own_ns, shared_ns


WorkOfTeams = Mapping[int, LaunchedWork]
"""By team, those whose launches vary in size."""


def find_outliers_by_work(
    work: LaunchedWork, by_work: Standouts, outliers: Sequence[Outlier], step_ns: Floats
) -> list[Outlier]:
    """Return one team's outliers: `outliers`, and ranks that are slow for their work.

    In place of what ranks that always are so have by plain time, if they are no slower by plain time, or if their pace
    explains most of that: a repair of the pace leaves their work as it is, which varies. In some steps alone only what
    does not stand out by plain time. What the ranks that share a rank's work take longer as well is no lateness.

    Args:
        work: of the team.
        by_work: when its ranks stand out by GPU time for the launched work.
        outliers: the team's outliers by plain time.
        step_ns: (steps,) each step's time, NaN where unknown.

    """
    plain = [outlier for outlier in outliers if outlier.part is TimePart.GPU]
    plain_ns = {outlier.rank: outlier.excess_ns for outlier in plain if outlier.persistent}
    by_plain = {outlier.rank for outlier in plain}
    slow = []
    for outlier in by_work.outliers(step_ns):
        if outlier.persistent:
            column = int(np.searchsorted(work.deviations.ranks, outlier.rank))
            late = [at for at, number in enumerate(work.steps) if number in outlier.steps]
            expected = float(np.nansum(work.expected_ns[:, late, column]))
            # steps that were not compared are taken to be like the others
            excess = outlier.excess_ns * len(outlier.steps) / len(late)
            if excess >= THRESHOLDS.main_share * plain_ns.get(outlier.rank, 0.0):
                slow.append(replace(outlier, excess_ns=excess, pace=1 + outlier.excess_ns / expected))
        elif outlier.rank not in by_plain and work.is_behind(outlier):
            slow.append(outlier)  # one long kernel is no pace
    ranks = {outlier.rank for outlier in slow}
    others = [outlier for outlier in outliers if outlier.part is not TimePart.GPU]
    return [
        *others,
        *(outlier for outlier in plain if outlier.rank not in ranks and not work.is_shared(outlier)),
        *slow,
    ]


def compare_launched_work(steps: RunSteps, deviations: TeamDeviations) -> LaunchedWork | None:
    """Return a team's GPU times beside those expected for its work; None where they hardly vary, or nothing tells."""
    total, ranks = deviations.total_ns[TimePart.GPU], len(deviations.ranks)
    usual = float(np.nanmedian(deviations.usual_ns[TimePart.GPU]))
    if ranks <= THRESHOLDS.min_repeats or len(total) < THRESHOLDS.min_repeats or not usual > 0:
        return None
    varying = share_of_varying_ranks(total, deviations.usual_ns[TimePart.GPU])
    if varying < THRESHOLDS.main_share:
        return None
    operations = len(steps.run.programs[deviations.team].operations)
    most = THRESHOLDS.max_cells // (operations * ranks)
    if most < THRESHOLDS.min_repeats:
        return None
    chosen: list[int] = spread_positions(len(total), most).tolist()
    few = _read_steps(steps, deviations, chosen[:1], deviations.ranks[:: -(-ranks // THRESHOLDS.sampled_ranks)])
    is_sized = _tells_work(few, few.threads)
    if not is_sized and varying <= THRESHOLDS.main_share:
        return None  # work varies on all ranks: where the times of half of them do, these are slow at times
    read = _read_steps(steps, deviations, chosen, deviations.ranks)
    sharing = find_shared_work(read.gpu_ns, _partitions(steps, deviations))
    # ranks with unlike numbers of micro-batches run unlike numbers of the same kernels
    is_sized |= sharing is None and _tells_work(few, np.isnan(few.gpu_ns))
    expected: Floats | None
    if is_sized:
        expected = expected_times(read.gpu_ns, read.threads)
    elif sharing is not None:
        # of two the faster one tells the work: no GPU is faster than usual
        expected = times_of_groups(read.gpu_ns, sharing, _lower_medians)
    else:
        expected = times_at_usual_pace(read.gpu_ns)
    if expected is None:
        return None
    excess = np.full(total.shape, np.nan)
    excess[chosen] = _totals(read.gpu_ns - expected)
    relative = deviations.total_ns.copy()
    relative[TimePart.GPU] = subtract_median_of_others(excess[None])[0]
    if not is_sized and sharing is None:
        _leave_out_where_paces_differ(relative[TimePart.GPU], total)
    return LaunchedWork(
        replace(deviations, total_ns=relative), tuple(chosen), read.gpu_ns, expected, read.name, sharing
    )


def share_of_varying_ranks(total: Floats, usual_ns: Floats) -> float:
    """Return on which part of the ranks GPU times, beside the others', vary by more than GPUs do, as work may.

    `total` (steps, ranks) is above the median of the others, `usual_ns` (steps, 1) the time of the usual one. Ranks
    that lack most steps tell nothing.
    """
    apart = compare_with_one_rank(total)
    apart -= lower_median(apart)
    varies = qn_sigma(apart) >= THRESHOLDS.gpu_spread_share * np.nanmedian(usual_ns)
    # as many micro-batches as usual in most steps, and one more in some
    is_other = np.abs(apart - known_medians(apart)) > THRESHOLDS.tolerance_share * usual_ns
    count = (~np.isnan(apart)).sum(axis=0)
    varies |= is_other.sum(axis=0) >= (1 - THRESHOLDS.always_share) * np.maximum(count, 1)
    tells = count >= THRESHOLDS.min_repeats
    return float(varies[tells].mean()) if tells.any() else 0.0


def _tells_work(few: "_Read", sizes: Floats | Bools) -> bool:
    """Return whether sizes, (operations, steps, ranks), differ between ranks with the step at much of its GPU time."""
    of_ranks = sizes[:, 0, ~np.isnan(few.gpu_ns[:, 0]).all(axis=0)]
    if not of_ranks.shape[1]:
        return False
    differs = np.fmax.reduce(of_ranks, axis=1) > np.fmin.reduce(of_ranks, axis=1)
    whole_ns = max(float(np.nansum(few.gpu_ns[:, 0])), 1.0)
    return float(np.nansum(few.gpu_ns[differs, 0])) / whole_ns >= 1 - THRESHOLDS.whole_share


def _totals(times_ns: Floats) -> Floats:
    """Return, (steps, ranks), the sum over operations of times (operations, steps, ranks); NaN where none is known."""
    return np.where(np.isnan(times_ns).all(axis=0), np.nan, np.nansum(times_ns, axis=0))


def expected_times(times_ns: Floats, threads: Floats) -> Floats:
    """Return (operations, steps, ranks) the times expected from the sizes of the launches.

    Where no size is known, the median. `times_ns` are the times, ns, `threads` those of each launch; NaN where unknown.
    """
    usual = known_medians(times_ns, axis=2)[:, :, None]
    size, time = np.log(threads / known_medians(threads, axis=2)[:, :, None]), np.log(times_ns / usual)
    is_known = ~np.isnan(size + time)
    slopes = [_vary(values, is_known) for values in (size, time)]
    variation = (slopes[0] ** 2).sum(axis=(1, 2))
    together = (slopes[0] * slopes[1]).sum(axis=(1, 2))
    varies = variation >= _LIMITS.min_size_variation
    power = np.clip(np.where(varies, together / np.where(varies, variation, 1.0), 0.0), 0.0, _LIMITS.max_power)
    expected: Floats = np.where(np.isnan(times_ns), np.nan, usual * np.exp(power[:, None, None] * np.nan_to_num(size)))
    return expected


def _partitions(steps: RunSteps, deviations: TeamDeviations) -> list[Ints]:
    """Return the ways, (ranks,) each, in which collectives divide a team's ranks into several groups."""
    run = steps.run
    arrays = run.collective_arrays
    numbers = np.array([run.number_of[rank] for rank in deviations.ranks.tolist()], np.int64)
    column = np.full(len(run.rank_numbers), -1, np.int64)
    column[numbers] = np.arange(len(numbers))
    here = np.flatnonzero(column[arrays.rank] >= 0)
    labels = np.full((len(run.programs[deviations.team].operations), len(numbers)), -1, np.int64)
    labels[arrays.place[here], column[arrays.rank[here]]] = arrays.group[here]
    attended = labels[(labels >= 0).all(axis=1)]
    distinct = {np.unique(of_place, return_inverse=True)[1].tobytes() for of_place in attended}
    partitions = [np.frombuffer(key, np.int64) for key in sorted(distinct)]
    return [groups for groups in partitions if groups.any() and np.bincount(groups).min() > 1]


def find_shared_work(times_ns: Floats, partitions: Sequence[Ints]) -> Ints | None:
    """Return, (ranks,), the groups whose ranks do the same work; None if no partition tells so.

    Within them most GPU times of a step, ÷ the rank's usual one, differ by far less than between all ranks. `times_ns`
    as in `expected_times`.
    """
    total_ns = _totals(times_ns)
    relative = total_ns / known_medians(total_ns)
    apart = [
        known_median(np.abs(relative - times_of_groups(relative, groups)))
        for groups in (np.zeros(relative.shape[1], np.int64), *partitions)
    ]
    best = int(np.argmin(apart))
    groups = partitions[best - 1] if best else None
    # two ranks are close to their middle by chance
    is_of_pairs = groups is not None and np.bincount(groups).min() < THRESHOLDS.min_repeats
    most = (THRESHOLDS.minor_share if is_of_pairs else THRESHOLDS.main_share) * apart[0]
    if groups is None or apart[best] >= most or _change_for_good(times_of_groups(relative, groups)):
        return None
    return groups


def _change_for_good(relative: Floats) -> bool:
    """Return whether most of what times (steps, ranks) vary by are changes that last: work varies back and forth."""
    known_times = relative[~np.isnan(relative).any(axis=1)]
    if len(known_times) < THRESHOLDS.min_steps:
        return False
    apart = known_times - known_times.mean(axis=1, keepdims=True)
    variance = apart.var(axis=0)
    lasts = np.array([of_rank > 0 and changes_for_good(apart[:, at]) for at, of_rank in enumerate(variance.tolist())])
    return bool(variance[lasts].sum() >= THRESHOLDS.main_share * variance.sum() > 0)


def _medians(times_ns: Floats) -> Floats:
    return known_medians(times_ns, axis=-1)


def _lower_medians(times_ns: Floats) -> Floats:
    return lower_median(times_ns)[..., 0]


def times_of_groups(times_ns: Floats, groups: Ints, middle: Callable[[Floats], Floats] | None = None) -> Floats:
    """Return the median of each rank's group, or their `middle`, of times (…, ranks); NaN where all are."""
    usual, of_group = np.empty_like(times_ns), middle or _medians
    for group in distinct_values(groups).tolist():
        usual[..., groups == group] = of_group(times_ns[..., groups == group])[..., None]
    return np.where(np.isnan(times_ns), np.nan, usual)


def times_at_usual_pace(times_ns: Floats) -> Floats | None:
    """Return (operations, steps, ranks) the times at the pace at which the other ranks run kernels of steady work.

    These hardly follow the rank's whole time over ranks and steps. None where they take too little of the time.
    """
    usual = known_medians(times_ns, axis=2)[:, :, None]
    is_known = (times_ns > 0) & (usual > 0)
    varied = _vary(np.log(np.where(is_known, times_ns / usual, 1.0)), is_known)
    of_ranks = np.where(is_known, times_ns, 0.0).sum(axis=0, keepdims=True)
    whole = _vary(np.log(np.maximum(of_ranks, 1.0)), of_ranks > 0)
    of_operations = np.where(is_known, times_ns, 0.0).sum(axis=(1, 2))
    variation = np.where(is_known, whole**2, 0.0).sum(axis=(1, 2))
    growth = np.abs((varied * whole).sum(axis=(1, 2))) / np.where(variation > 0, variation, 1.0)
    is_steady = (variation > 0) & (growth <= THRESHOLDS.minor_share)
    if not of_operations.any() or of_operations[is_steady].sum() < (1 - THRESHOLDS.whole_share) * of_operations.sum():
        return None
    own_ns, at_usual = (np.where(is_known, values, 0.0)[is_steady].sum(axis=0) for values in (times_ns, usual))
    paces: Floats = np.where(at_usual > 0, own_ns / np.where(at_usual > 0, at_usual, 1.0), 1.0)
    return times_ns / np.where(paces > 0, paces, 1.0)


def _leave_out_where_paces_differ(relative: Floats, total: Floats) -> None:
    """Set the excess by steady kernels (steps, ranks) of ranks to 0 where it differs on average from the plain one.

    Then these kernels do not tell the pace of the others, as where a GPU's memory alone is slow, or its work is more.
    """
    apart = relative - total
    count = np.maximum((~np.isnan(apart)).sum(axis=0), 1)
    error = qn_sigma(apart) / np.sqrt(count)
    differs = np.abs(known_medians(apart)) > THRESHOLDS.sentences.min_sigmas * error
    relative[:, differs] = 0.0


def _vary(values: Floats, is_known: Bools) -> Floats:
    """Return values (operations, steps, ranks) less each rank's mean over steps, then each step's; 0 where unknown."""
    return centred(centred(values, is_known, 1), is_known, 2)


class _Read(NamedTuple):
    """GPU times and threads of launches, (operations, steps, ranks) each, and kernels' names, (operations,)."""

    gpu_ns: Floats
    threads: Floats
    name: Ints


def _read_steps(steps: RunSteps, deviations: TeamDeviations, numbers: Sequence[int], wanted: Ints) -> _Read:
    """Read these steps, by position in the run, of the wanted ranks, which ascend, without copies to and from hosts."""
    run, team = steps.run, deviations.team
    operations, chosen = len(run.programs[team].operations), set(wanted.tolist())
    is_paced = np.array([not operation.is_host_copy for operation in run.programs[team].operations], np.bool_)
    times_ns, threads = np.full((2, operations, len(numbers), len(wanted)), np.nan)
    name = np.full(operations, -1, np.int64)
    for at, number in enumerate(numbers):
        key = run.keys[number]
        ranks = [rank for rank in run.ranks(key, team) if rank in chosen]
        if not ranks:
            continue
        (step,) = steps.steps(number, number + 1)
        rows, shapes = run.file_rows(key, team, ranks), run.reader.launch_shapes(key, ranks)
        for index, (rank, shape) in enumerate(zip(ranks, shapes, strict=True)):
            column, first = int(np.searchsorted(wanted, rank)), int(step.times.row[run.number_of[rank]])
            gpu = step.self_times.gpu[first : first + operations]
            here = (rows[:, index] >= 0) & (gpu > 0) & is_paced
            times_ns[here, at, column] = gpu[here]
            row, op = rows[here, index], np.flatnonzero(here)
            name[op] = np.where(name[op] < 0, shape.name[row], name[op])
            same = name[op] == shape.name[row]  # of another kernel than the first one seen there no size is known
            threads[op[same], at, column] = shape.threads[row[same]]
        del step  # else it stays in memory while the next one is read
    return _Read(times_ns, threads, name)
