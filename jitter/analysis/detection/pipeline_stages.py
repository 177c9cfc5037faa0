"""Pipeline stages that have more layers than the others, or longer ones: every micro-batch waits for them.

A stage has no peers, but the stages have each other. GPU times are compared by kernel name and launch size. A stage
with more layers, or a slow GPU, spends most of its time in kernels that take longer there. An embedding or a loss,
which one stage alone has, is a small part, even if its matrix products have the names of the layers'. A replay in which
all ranks share what longer stages have more says what equal stages would save.

A stage may be slow in a part of the steps only. Steps in which the same stages are so are compared with each other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.detection.deviations import TeamDeviations
from jitter.analysis.detection.findings import Finding, FindingKind, join_outliers, of_one_rank
from jitter.analysis.detection.measured_run import MeasuredRun
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.execution.rank_clusters import find_reference_times
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.run_reader import KernelCounts
from jitter.analysis.execution.self_times import TimePart, undisturbed_times
from jitter.analysis.replay.what_if import Scenario, together
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_percent, format_ranks, format_time
from jitter.core.grouping import by_key
from jitter.core.names.kernels import COMPUTE, SEND_RECV
from jitter.core.numeric.arrays import Bools, Floats, spread_positions
from jitter.core.numeric.stats import known_medians, lower_median, mad_sigma, weighted_median
from jitter.core.numeric.student_t import student_tail
from jitter.core.step_key import StepKey

_MIN_SLOWER: Final = THRESHOLDS.outlier_sigmas * THRESHOLDS.gpu_spread_share


_Kernel = tuple[str, int]
"""Name and size of launch: the power of two next to its threads, as batches vary; -1 where that was not recorded."""


@dataclass(frozen=True)
class _Stage:
    team: int
    ranks: tuple[int, ...]
    usual_ns: Floats
    """(steps,) GPU time of its usual rank; NaN where the recording of that rank may lack kernels."""
    kernels: Mapping[_Kernel, Sequence[float]]
    """The GPU times, ns, of its compute kernels in the usual step."""

    @property
    def median_ns(self) -> float:
        """The median of `usual_ns`."""
        return float(np.nanmedian(self.usual_ns))

    @cached_property
    def extents(self) -> dict[_Kernel, Floats]:
        """A short, the middle and a long one of these, as `_extents`."""
        return {kernel: _extents(ns) for kernel, ns in self.kernels.items()}

    def faster(self, pace: float) -> "_Stage":
        """Return the stage with kernels that take so much less."""
        kernels = {kernel: [ns / pace for ns in times_ns] for kernel, times_ns in self.kernels.items()}
        return replace(self, usual_ns=self.usual_ns / pace, kernels=kernels)

    def share(self, others: Sequence["_Stage"]) -> float:
        """Return by what part most of its GPU time is above the other stages'."""
        kernels = [(own_ns / usual_ns, usual_ns) for own_ns, usual_ns in self._shared(others) if usual_ns > 0]
        return weighted_median(*zip(*kernels, strict=True)) - 1 if kernels else 0.0

    def excess_ns(self, others: Sequence["_Stage"], least_share: float) -> float:
        """Return by how much the same kernels take longer than on the other stages, by at least this part."""
        longer = [own_ns - usual for own_ns, usual in self._shared(others) if own_ns >= usual * (1 + least_share)]
        return max(sum(longer), 0.0)

    def _shared(self, others: Sequence["_Stage"]) -> list[tuple[float, float]]:
        """Return the sum of the GPU times of each kernel that other stages have too, and their median sum."""
        sums = {
            kernel: [sum(stage.kernels[kernel]) for stage in others if kernel in stage.kernels]
            for kernel in self.kernels
        }
        return [
            (sum(self.kernels[kernel]), float(np.median(of_others))) for kernel, of_others in sums.items() if of_others
        ]

    def pace(self, others: Sequence["_Stage"]) -> tuple[float, float]:
        """Return by what factor most of its kernels take longer than on other stages, and what all of them add, ns.

        Kernels that no other stage has count as longer by this factor: a slow GPU takes longer for all of its kernels.
        """
        ratios = self._ratios(others)
        pace = weighted_median(*zip(*ratios, strict=True)) if ratios else 1.0
        own_ns = sum(map(sum, self.kernels.values())) - sum(whole_ns for _, whole_ns in ratios)
        return pace, sum(whole_ns * (1 - 1 / ratio) for ratio, whole_ns in [*ratios, (pace, own_ns)])

    def _ratios(self, others: Sequence["_Stage"]) -> list[tuple[float, float]]:
        """Return by what factor each kernel takes longer than on other stages, and the sum of its GPU times.

        Kernels of one name may be short in one pass and long in another, and stages run unlike numbers of both: short,
        middle and long ones are compared, and all of them must take longer, two of them by about as much. Else they do
        other work, as an encoder and a decoder.
        """
        ratios = []
        for kernel, extent in self.extents.items():
            there = [stage.extents[kernel] for stage in others if kernel in stage.extents]
            usual = np.median(there, axis=0) if there else np.zeros(1)
            if usual.min() > 0:
                least, middle, _ = np.sort(extent / usual).tolist()
                is_alike = middle <= least * (1 + THRESHOLDS.tolerance_share)
                ratios.append((least if is_alike else min(least, 1.0), sum(self.kernels[kernel])))
        return ratios


def find_unequal_stages(
    measured: MeasuredRun, late: Sequence[Outlier], gains: Callable[[Sequence[Scenario]], list[float]]
) -> list[Finding]:
    """Return the stages that are longer than the other ones, each with its part of what equal stages save.

    Args:
        measured: the run.
        late: ranks that stand out among the ranks of their own stage.
        gains: returns what scenarios save, ns.

    """
    if measured.steps.run.misses_partners:
        return []  # what the stages wait for is not known
    seen = _usual_times(measured)
    parts = _divide_steps(list(seen.values()))
    if len(parts) == 1:
        return _find_in_steps(measured, seen, parts[0], late, gains)
    # a node is mended at once, but its stages may be slow in steps of their own
    findings = [
        found for steps in parts for found in _find_in_steps(measured, seen, steps, late, gains, are_nodes_one=False)
    ]
    joined = list(map(_join, by_key(((found.kind, found.ranks), found) for found in findings).values()))
    slow = [found for found in joined if found.kind == "slow_stage"]
    nodes, every = measured.steps.run.reader.nodes, int(np.sum(parts))
    of_nodes = by_key(((frozenset(nodes.get(rank, rank) for rank in one.ranks), one.steps), one) for one in slow)
    # layers are the same in all steps
    longer = [found for found in joined if found.kind != "slow_stage" and 2 * len(found.steps) > every]
    return longer + [
        replace(one, kind="slow_stage" if len(one.steps) == every else "stage_slow_at_times")
        for one in (_join_stages(of_node, measured, late, gains) for of_node in of_nodes.values())
    ]


def _divide_steps(usual_ns: Sequence[Floats]) -> list[Bools]:
    """Divide steps, (steps,), into those in which the same stages are slow, by each stage's time ÷ the other stages'.

    Where stages are as long in all steps, or nearly so, these are one part; of fewer than `min_repeats` steps none is.
    `usual_ns` are the times of each stage.
    """
    if len(usual_ns) < 2:
        return []
    whole = np.stack(usual_ns)
    others = np.stack([known_medians(np.delete(whole, at, axis=0)) for at in range(len(whole))])
    relative = np.divide(whole, others, out=np.full(whole.shape, np.nan), where=others > 0)
    is_known: Bools = ~np.isnan(relative).any(axis=0)
    is_fast = np.stack([find_reference_times(np.where(is_known, of_stage, np.nan)) for of_stage in relative], axis=1)
    of_pattern = by_key((tuple(of_step), at) for at, of_step in enumerate(is_fast.tolist()) if is_known[at])
    if len(of_pattern) < 2:
        return [np.ones_like(is_known)]
    parts = [np.isin(np.arange(len(is_known)), steps) for steps in of_pattern.values()]
    large = [part for part in parts if part.sum() >= THRESHOLDS.min_repeats]
    return large or [np.ones_like(is_known)]


def _join(same: Sequence[Finding]) -> Finding:
    """Return findings of the same ranks in several parts of the steps as one, at the pace that most of it has."""
    main = max(same, key=lambda found: found.excess_ns)
    steps = tuple(sorted(chain.from_iterable(found.steps for found in same)))
    excess_ns = sum(found.excess_ns for found in same)
    return replace(
        main,
        steps_of_rank=dict.fromkeys(main.ranks, steps),
        excess_ns=excess_ns,
        members=tuple(replace(member, steps=steps, excess_ns=excess_ns) for member in main.members),
        known_gain_ns=sum(found.known_gain_ns or 0.0 for found in same),
    )


def _join_stages(
    same: Sequence[Finding],
    measured: MeasuredRun,
    late: Sequence[Outlier],
    gains: Callable[[Sequence[Scenario]], list[float]],
) -> Finding:
    """Return stages of one node that are slow in the same steps as one, with what mending all of them saves."""
    if len(same) == 1:
        return same[0]
    members = [member for found in same for member in found.members]
    whole = join_outliers("slow_stage", members, *chain(*(found.evidence for found in same)), are_late_together=True)
    gain, _ = _price(whole.repair, whole.ranks, late, gains, float(measured.assumed_step_ns.sum()))
    return replace(whole, known_gain_ns=gain)


def _find_in_steps(
    measured: MeasuredRun,
    seen: Mapping[int, Floats],
    steps: Bools,
    late: Sequence[Outlier],
    gains: Callable[[Sequence[Scenario]], list[float]],
    *,
    are_nodes_one: bool = True,
) -> list[Finding]:
    """Return the longer stages in these `steps`, (steps,); `seen` are the times of each stage by team.

    Slow ones of one node are one finding if `are_nodes_one`.
    """
    stages, run_ns = _comparable_stages(measured, seen, steps, late), float(measured.assumed_step_ns.sum())
    longer = [each for stage in stages if len(stages) > 1 for each in _compare(stage, stages)]
    every_rank = sum(len(stage.ranks) for stage in stages)
    # what a slow GPU takes longer is gone with it, more work is done by all ranks then
    divided, part_ns = list[_Longer](), 0.0
    for each in sorted(longer, key=lambda each: -each.excess_ns):
        with_it_ns = part_ns + each.excess_ns * len(each.stage.ranks) / every_rank
        if not each.is_slow and each.excess_ns > with_it_ns:  # else it has less than an even part
            divided, part_ns = [*divided, each], with_it_ns
    relieving = [stage for stage in stages if all(stage is not each.stage for each in divided)]
    longer = [each for each in longer if each.is_slow or all(each.stage is not stage for stage in relieving)]
    # a slow node holds several stages: the next one is as late with one of them mended
    nodes, slow = measured.steps.run.reader.nodes, [each for each in longer if each.is_slow]
    of_nodes = by_key(
        (frozenset(nodes.get(rank, rank) for rank in each.stage.ranks) if are_nodes_one else each.stage.ranks, each)
        for each in slow
    )
    groups = [*of_nodes.values(), *([each] for each in longer if not each.is_slow)]
    findings = [_finding(group, stages, part_ns, relieving) for group in groups]
    evenly = together(found.repair for found in findings if found.kind == "unequal_stages")
    priced = []
    for found, group in zip(findings, groups, strict=True):
        is_slow, excess_ns = group[0].is_slow, group[0].excess_ns
        gain, held_up = _price(found.repair if is_slow else evenly, found.ranks, late, gains, run_ns)
        # all stages are divided anew at once
        share = 1.0 if is_slow else excess_ns * len(found.ranks) / (part_ns * every_rank)
        sentences = chain.from_iterable(_describe(each, len(stages) - 1) for each in group)
        priced.append(replace(found, evidence=(*sentences, *held_up), known_gain_ns=gain * share))
    return priced


def _finding(
    group: Sequence["_Longer"], stages: Sequence[_Stage], part_ns: float, relieving: Sequence[_Stage]
) -> Finding:
    """Return the finding of one longer stage, or of slow ones of one node, without its price.

    Of more work an even part stays with it, `part_ns`, and the `relieving` stages take the rest.
    """
    members, taken_over = list[Outlier](), dict[int, float]()
    for stage, excess_ns, _, is_slow in sorted(group, key=lambda each: -each.excess_ns):
        usual_ns, kept_ns = stage.median_ns, 0.0 if is_slow else part_ns
        relative = stage.usual_ns / known_medians(np.stack([each.usual_ns for each in stages if each is not stage]))
        scatter = usual_ns * mad_sigma(relative / np.nanmedian(relative))  # batches vary
        sigmas = excess_ns / max(scatter, THRESHOLDS.gpu_spread_share * usual_ns)
        chance = float(student_tail(sigmas, THRESHOLDS.max_degrees)) * len(stages)
        every = tuple(np.flatnonzero(~np.isnan(stage.usual_ns)).tolist())
        late_rank = Outlier(stage.team, stage.ranks[0], TimePart.GPU, every, excess_ns * len(every), sigmas, chance)
        to_usual = usual_ns / (usual_ns - excess_ns + kept_ns)
        members += [replace(late_rank, rank=rank, pace=to_usual) for rank in stage.ranks]
        given_ns = (excess_ns - kept_ns) * len(stage.ranks) / sum(len(each.ranks) for each in relieving)
        taken_over |= {
            rank: each.median_ns / (each.median_ns + given_ns)
            for each in relieving
            for rank in each.ranks
            if not is_slow
        }
    kind: FindingKind = "slow_stage" if group[0].is_slow else "unequal_stages"
    return replace(join_outliers(kind, members, are_late_together=True), taken_over=taken_over)


def _describe(longer: "_Longer", others: int) -> Iterator[str]:
    """Yield sentences on what a stage needs more than so many others, and why."""
    stage, excess_ns, pace, is_slow = longer
    count = int((~np.isnan(stage.usual_ns)).sum())
    is_always = count > (1 - THRESHOLDS.tolerance_share) * len(stage.usual_ns)
    of_steps = "per step" if is_always else f"in each of {format_count(count, 'step')}"
    yield (
        f"the stage of {format_ranks(stage.ranks)} needs {format_time(excess_ns)} of GPU time {of_steps} "
        f"({format_percent(excess_ns / (stage.median_ns - excess_ns))}) more than the median of the other "
        f"{format_count(others, 'stage')}: the loss, which compares ranks of a stage, does not contain it"
    )
    if is_slow:
        yield (
            f"its kernels take {format_percent(pace - 1)} longer than kernels of the same names and sizes on other "
            f"stages{': more work in launches of a fixed size, or slow GPUs' if is_always else ''}"
        )
    elif pace - 1 < _MIN_SLOWER:
        yield "kernels of the same names and sizes take as long there as on other stages: it has more of them"
    else:
        yield "it has more kernels of the same names and sizes than other stages have, and they take longer there, too"


class _Longer(NamedTuple):
    """A stage that is longer than the other ones."""

    stage: _Stage
    excess_ns: float
    """GPU time per step."""
    pace: float
    """By what factor most of its kernels take longer than the same kernels of other stages."""
    is_slow: bool
    """Whether that makes it longer; else it has more kernels."""


def _compare(stage: _Stage, stages: Sequence[_Stage]) -> list[_Longer]:
    """Return by how much a stage is longer than the other ones: as it is slow, and as it has more work."""
    others = [other_stage for other_stage in stages if other_stage is not stage]
    pace, slower_ns = stage.pace(others)
    longer, at_usual_pace = list[_Longer](), stage
    if pace - 1 >= _MIN_SLOWER and 0 < slower_ns < stage.median_ns:
        at_usual_pace = stage.faster(pace)
        longer.append(_Longer(stage, slower_ns, pace, is_slow=True))
    share = at_usual_pace.share(others)
    # what it has less of, such as the same work in launches of another size, makes up for it
    more_ns = at_usual_pace.median_ns - float(np.median([each.median_ns for each in others]))
    excess_ns = min(at_usual_pace.excess_ns(others, share / 2), more_ns)
    if share >= THRESHOLDS.tolerance_share and 0 < excess_ns < stage.median_ns:
        longer.append(_Longer(stage, excess_ns, pace, is_slow=False))
    return longer


def _usual_times(measured: MeasuredRun) -> dict[int, Floats]:
    """Return, (steps,), the GPU time of the usual rank of each stage that can be compared, by team.

    NaN where the recording of that rank may lack kernels.
    """
    run, seen = measured.steps.run, dict[int, Floats]()
    exchanging = find_exchanging_teams(run)
    for team in measured.deviations:
        usual_ns = team.usual_ns[TimePart.GPU, :, 0]
        is_whole = _whole_steps(run.reader.kernel_counts(team.ranks.tolist()))
        known_ns = np.where(is_whole, usual_ns, np.nan)
        # without launches a kernel counts where it starts: such a stage is compared with others alike only
        is_alike = bool(run.job.has_launches[team.team]) == bool(run.job.has_launches.any())
        # the usual time of a stage of one rank is that of its steps
        is_usually_whole = 2 * int((~np.isnan(known_ns)).sum()) > int((~np.isnan(usual_ns)).sum())
        if team.team in exchanging and is_usually_whole and is_alike:
            seen[team.team] = known_ns
    return seen


def _comparable_stages(
    measured: MeasuredRun, seen: Mapping[int, Floats], steps: Bools, late: Sequence[Outlier]
) -> list[_Stage]:
    """Return the stages with their kernels in the same steps; see `find_unequal_stages` and `_find_in_steps`."""
    run, gpu_ns = measured.steps.run, measured.steps.baselines.gpu
    # stages are compared in the same steps, as batches vary; steps in which a lone rank stands out are not usual
    unusual = {
        number
        for outlier in late
        if outlier.part is TimePart.GPU and run.sizes[outlier.team] == 1
        for number in outlier.steps
    }
    known = np.flatnonzero(steps & ~np.isnan(sum(seen.values(), np.zeros(len(gpu_ns))))).tolist()
    common = [number for number in known if number not in unusual] or known
    sampled = [common[at] for at in spread_positions(len(common), THRESHOLDS.sampled_steps)]
    stages = []
    for team in [team for team in measured.deviations if team.team in seen] if sampled else ():
        of_steps = np.stack([_gpu_times(run, team, number, gpu_ns) for number in sampled], axis=-1)
        # what most steps lack, as where few have more micro-batches, is no part of the usual one
        is_usual = 2 * np.isnan(of_steps).sum(axis=1) < len(sampled)
        gpu = np.where(is_usual, lower_median(of_steps)[:, 0], np.nan)
        times = _times_by_kernel(run, team.team, run.keys[sampled[0]], gpu)
        usual_ns = np.where(steps, seen[team.team], np.nan)
        stages.append(_Stage(team.team, tuple(team.ranks.tolist()), usual_ns, times))
    return stages


def _extents(times_ns: Sequence[float]) -> Floats:
    """Return a short, the middle and a long one: those up to which a tenth, half and nine tenths of the time go.

    What one stage alone has, as a loss, may run short kernels of the same name and size.
    """
    ascending = np.sort(times_ns)
    shares = ascending.cumsum() / max(float(ascending.sum()), 1.0)
    at = np.searchsorted(shares, (THRESHOLDS.tolerance_share, 0.5, 1 - THRESHOLDS.tolerance_share))
    extents: Floats = ascending[np.minimum(at, len(ascending) - 1)]
    return extents


def _price(
    balanced: Scenario,
    ranks: Sequence[int],
    late: Sequence[Outlier],
    gains: Callable[[Sequence[Scenario]], list[float]],
    run_ns: float,
) -> tuple[float, tuple[str, ...]]:
    """Return what a stage of these `ranks` saves, ns, that is as long as the others, and which late ranks hide more.

    It comes after what its own ranks are late by in single steps, which has findings of its own.
    """
    slow = [outlier for outlier in late if outlier.part is TimePart.GPU]
    hidden = [outlier for outlier in slow if outlier.rank not in ranks]
    mended = together(of_one_rank(outlier).repair for outlier in hidden)
    own_repairs = together(
        of_one_rank(outlier).repair for outlier in slow if outlier not in hidden and outlier.pace is None
    )
    own_ns, *with_own_ns = gains(
        [own_repairs, *(together([own_repairs, *more]) for more in ([balanced], [mended], [balanced, mended]))]
    )
    gain, mended_ns, both_ns = (ns - own_ns for ns in with_own_ns)
    if both_ns - gain - mended_ns < THRESHOLDS.min_cost_share * run_ns:
        return gain, ()
    named = format_ranks(sorted({outlier.rank for outlier in hidden}))
    sentence = (
        f"until {named} {'is' if len(hidden) == 1 else 'are'} as fast as the other ranks of the same stage, "
        f"equal stages save {format_time(gain)}; with it {format_time(both_ns)}"
    )
    return gain, (sentence,)


def _whole_steps(counts: KernelCounts) -> Bools:
    """Return (steps,) whether the usual one of a stage's ranks recorded about all its kernels.

    Without all of them a stage seems shorter, and the other stages longer. What it launched is what most of its ranks
    did in most steps: lost events may leave no trace on the rank that lost them.
    """
    launched = -lower_median(-(counts.recorded + counts.lost))
    usual = -lower_median(-launched, axis=0)[0, 0]
    is_whole: Bools = lower_median(counts.recorded)[:, 0] >= THRESHOLDS.whole_share * usual
    return is_whole


def find_exchanging_teams(run: RunModel) -> frozenset[int]:
    """Return the teams that send to other teams, or receive from them."""
    exchanging: set[int] = set()
    for number in range(len(run.matching.members)):
        teams = {team for team, _ in run.matching.places(number)}
        if len(teams) > 1 and SEND_RECV in run.operations_of_collective(number):
            exchanging |= teams
    return frozenset(exchanging)


def _gpu_times(run: RunModel, team: TeamDeviations, number: int, gpu_ns: Floats) -> Floats:
    """Return, (operations,), the GPU times of a team's usual rank in a step; NaN where it has not the operation."""
    if len(team.ranks) > 1:
        return gpu_ns[number, slice(*run.job.first[team.team : team.team + 2].tolist())]
    # a lone rank's baseline is its other steps', in proportion to the whole step: micro-batches vary within it
    times = run.rank_times(run.keys[number], int(team.ranks[0]))
    return undisturbed_times(run.job, team.team, times.start[:, 0], times.end[:, 0])


def _times_by_kernel(run: RunModel, team: int, key: StepKey, gpu: Floats) -> dict[_Kernel, list[float]]:
    """Return the times of a team's compute kernels, by name and the size of launch that a rank has in this step."""
    operations = run.programs[team].operations
    ranks = run.ranks(key, team)[:1]
    (rows,), (shapes,) = run.file_rows(key, team, ranks).T, run.reader.launch_shapes(key, ranks)
    sizes = np.round(np.log2(np.where(rows >= 0, shapes.threads[rows], np.nan).clip(1)))
    of_kernels = zip(operations, np.nan_to_num(sizes, nan=-1.0).astype(int).tolist(), strict=True)
    times = zip(of_kernels, gpu.tolist(), strict=True)
    return by_key(((op.name, size), ns) for (op, size), ns in times if op.kind == COMPUTE and not np.isnan(ns))
