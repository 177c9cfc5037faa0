"""The ranks of a run that stand out by parts of their own time, and when: alone, in clusters, or any of them.

Steps in which all recorded ranks are slow are findings of their own, as the loss compares ranks within a step.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from jitter.analysis.detection.awaited_ranks import blame_awaited_ranks
from jitter.analysis.detection.deviations import (
    TeamDeviations,
    collect_kernel_deviations,
    compare_with_one_rank,
    spread_within_steps,
)
from jitter.analysis.detection.findings import (
    Clusters,
    Finding,
    are_same_steps,
    find_clusters,
    find_fast_ranks,
    join_outliers,
    split_random_events,
)
from jitter.analysis.detection.launched_work import WorkOfTeams, compare_launched_work, find_outliers_by_work
from jitter.analysis.detection.measured_run import MeasuredRun
from jitter.analysis.detection.run_account import RunAccount
from jitter.analysis.detection.significance import binomial_tail, quiet_level, wander_over_steps
from jitter.analysis.detection.standouts import Outlier, Standouts, chances_of_places, find_standouts
from jitter.analysis.execution.rank_clusters import find_reference_times
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.replay.like_steps import changes_for_good, first_of_drift
from jitter.analysis.replay.run_steps import RunSteps
from jitter.analysis.replay.shared_work import growth_with_size
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_numbers, format_time
from jitter.core.grouping import by_key
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.stats import known_median, known_medians, lower_median, qn_sigma
from jitter.core.numeric.student_t import student_tail
from jitter.lake.records import ON_REQUEST


class OutliersAboveNoise(NamedTuple):
    """Outliers above the noise, whether they cost time or not."""

    of_ranks: list[Outlier]
    random: list[Finding]
    """Pauses that meet one rank after another."""


class RunOutliers:
    """When ranks stand out from their team, with which part of their time."""

    def __init__(self, measured: MeasuredRun) -> None:
        self._measured, self._steps = measured, measured.steps

    @cached_property
    def standouts(self) -> dict[tuple[int, TimePart], Standouts]:
        """When ranks stand out, by team and part of their time."""
        step_ns, kinds = self._measured.assumed_step_ns, self._steps.alike.by_program
        standouts = dict[tuple[int, TimePart], Standouts]()
        for team in self._measured.deviations:
            start, launch, gpu = (
                self._with_nodes(find_standouts(team, part, step_ns, kinds, self._tests(team.team)), team)
                for part in OWN_PARTS
            )
            standouts[team.team, TimePart.START] = start.with_rest_of_host(launch, step_ns)
            standouts[team.team, TimePart.CPU] = launch.with_rest_of_host(start, step_ns)
            standouts[team.team, TimePart.GPU] = gpu
        return standouts

    @cached_property
    def launched_work(self) -> WorkOfTeams:
        """GPU times for the launched work, of teams whose launches vary in size."""
        work_of_team = {team.team: compare_launched_work(self._steps, team) for team in self._measured.deviations}
        return {team: work for team, work in work_of_team.items() if work is not None}

    @cached_property
    def _by_work(self) -> dict[int, Standouts]:
        """When ranks stand out by GPU time for the launched work, of teams whose launches vary in size."""
        return {
            team: find_standouts(work.deviations, TimePart.GPU, self._measured.assumed_step_ns, tests=self._tests(team))
            for team, work in self.launched_work.items()
        }

    @cached_property
    def _by_kernel(self) -> dict[int, dict[str, Standouts]]:
        """When ranks stand out by the kernels of one name, by team and name: GPUs hardly differ in one kernel alone."""
        measured, kinds = self._measured, self._steps.alike.by_program
        least_ns = THRESHOLDS.min_excess_share * measured.usual_step_ns
        standouts = dict[int, dict[str, Standouts]]()
        for team in measured.deviations:
            standouts[team.team] = {}
            seen = measured.statistics.kernels[team.team]
            if len(seen.usual_ns) < THRESHOLDS.min_repeats or len(team.ranks) < 2:
                continue
            names, _ = self._steps.run.programs[team.team].kernels
            tests = self._tests(team.team) + len(names)
            for name, of_kernel in collect_kernel_deviations(team, seen, least_ns).items():
                standouts[team.team][names[name]] = find_standouts(
                    of_kernel, TimePart.GPU, measured.assumed_step_ns, kinds, tests
                )
        return standouts

    def _add_kernels(self, team: int, outliers: list[Outlier]) -> list[Outlier]:
        """Return a team's outliers, and ranks on which kernels of some names alone always take longer."""
        of_rank = {outlier.rank: outlier for outlier in outliers if outlier.part is TimePart.GPU}
        slow = by_key(
            (outlier.rank, (outlier, name))
            for name, standouts in self._by_kernel[team].items()
            for outlier in standouts.outliers(self._measured.assumed_step_ns)
            if outlier.persistent
        )
        for rank, of_names in slow.items():
            known, excess_ns = of_rank.get(rank), sum(outlier.excess_ns for outlier, _ in of_names)
            if known is None or (not known.persistent and excess_ns > known.excess_ns):
                surest, names = zip(*sorted(of_names, key=lambda of_name: of_name[0].chance), strict=True)
                of_rank[rank] = replace(surest[0], excess_ns=excess_ns, kernels=names)
        return [*(outlier for outlier in outliers if outlier.part is not TimePart.GPU), *of_rank.values()]

    def _with_nodes(self, of_ranks: Standouts, team: TeamDeviations) -> Standouts:
        """Return when ranks of a team stand out, by themselves or as those of a node, which are tested as ranks are."""
        node_of = self._steps.lake.nodes
        columns = by_key((node_of[rank], at) for at, rank in enumerate(team.ranks.tolist()) if rank in node_of)
        nodes = [np.array(here) for here in columns.values() if len(here) >= THRESHOLDS.min_repeats]
        if len(nodes) < 2:
            return of_ranks
        step_ns, kinds = self._measured.assumed_step_ns, self._steps.alike.by_program
        part, tests = of_ranks.part, self._tests(team.team)
        of_nodes = find_standouts(team.of_places(nodes), part, step_ns, kinds, tests)
        if part is TimePart.GPU:  # hosts vary more from step to step than nodes differ
            of_nodes = of_nodes.with_usual(chances_of_places(team, nodes, tests))
        return of_ranks.with_places(of_nodes, nodes, step_ns).with_rest_of_places(nodes)

    def _tests(self, team: int) -> int:
        """Return how many parts of a rank's time are tested."""
        return len(OWN_PARTS) + (team in self.launched_work)

    def standouts_of(self, outlier: Outlier) -> Standouts:
        """Return when the ranks of an outlier's team stand out with its part of their time."""
        if outlier.kernels:
            return self._by_kernel[outlier.team][outlier.kernels[0]]
        return self.standouts[outlier.team, outlier.part] if outlier.pace is None else self._by_work[outlier.team]

    @cached_property
    def above_noise(self) -> OutliersAboveNoise:
        """Outliers above the noise, whether they cost time or not, and random pauses."""
        step_ns, teams = self._measured.assumed_step_ns, self._measured.deviations
        outliers, of_run = OutliersAboveNoise([], []), list[Outlier]()
        for team in teams:
            of_team = [outlier for part in OWN_PARTS for outlier in self.standouts[team.team, part].outliers(step_ns)]
            if (work := self.launched_work.get(team.team)) is not None:
                of_team = find_outliers_by_work(work, self._by_work[team.team], of_team, step_ns)
            of_run += self._add_kernels(team.team, of_team)
        for part in OWN_PARTS:
            of_part = [outlier for outlier in of_run if outlier.part is part]
            # a host that pauses does so before a step and within it
            beside = [outlier for outlier in of_run if {part, outlier.part} == {TimePart.START, TimePart.CPU}]
            # what may hit any rank may do so on any stage, of which each alone shows few events
            split = self._split_random_events(part, teams, of_part, beside)
            if not split.random:
                split = OutliersAboveNoise([], [])
                for team in teams:
                    team_outliers = [outlier for outlier in of_part if outlier.team == team.team]
                    of_ranks, random = self._split_random_events(part, [team], team_outliers, beside)
                    split.of_ranks.extend(of_ranks)
                    split.random.extend(random)
            outliers.of_ranks.extend(split.of_ranks)
            outliers.random.extend(split.random)
        return outliers

    def _split_random_events(
        self, part: TimePart, teams: Sequence[TeamDeviations], of_part: Sequence[Outlier], beside: Sequence[Outlier]
    ) -> OutliersAboveNoise:
        """Return these teams' outliers of one part, random events apart; those `beside` tell of the same hosts."""
        step_ns, ranks = self._measured.assumed_step_ns, sum(len(team.ranks) for team in teams)
        here = set(chain.from_iterable(team.ranks.tolist() for team in teams))
        node_of = {rank: node for rank, node in self._steps.lake.nodes.items() if rank in here}
        beside = [outlier for outlier in beside if outlier.rank in here]
        split = OutliersAboveNoise(*split_random_events(of_part, ranks, len(step_ns), node_of, beside))
        if split.random and all(outlier.pace is None for outlier in of_part):
            # where any rank may pause, what is as far above its noise is one more of them
            every = (self.standouts[team.team, part].with_all_events(step_ns).outliers(step_ns) for team in teams)
            further = split_random_events([*chain.from_iterable(every)], ranks, len(step_ns), node_of, beside)
            split = OutliersAboveNoise(*further) if further[1] else split
        return split

    @cached_property
    def idle_moments(self) -> list[Outlier]:
        """Those of the only recorded rank that may be moments without requests."""
        is_alone = len(self._steps.run.team_of) == 1
        return [late for late in self.above_noise.of_ranks if may_be_idle(self._steps, late)] if is_alone else []

    @cached_property
    def clusters(self) -> list[Finding]:
        """Slow clusters of each team's ranks; those of known saving are no part of the loss."""
        findings: list[Finding] = []
        for team in self._measured.deviations:
            of_team = [outlier for outlier in self.above_noise.of_ranks if outlier.team == team.team]
            findings += find_clusters(team, self._measured.step_ns, of_team)
        return findings

    @cached_property
    def fast_ranks(self) -> list[Clusters]:
        """The clusters of teams of which few ranks are much faster than the others: a doubt, and no finding."""
        usual_step_ns = self._measured.usual_step_ns
        fast_by_team = (find_fast_ranks(team, usual_step_ns) for team in self._measured.deviations)
        return [team_ranks for team_ranks in fast_by_team if team_ranks is not None]


def may_be_idle(steps: RunSteps, late: Finding | Outlier) -> bool:
    """Return whether a serving engine may have had no requests before the steps that all recorded ranks start late."""
    return late.part is TimePart.START and all(steps.alike.kinds[number] in ON_REQUEST for number in late.steps)


class SlowSteps(NamedTuple):
    """Steps in which all recorded ranks are slow."""

    findings: list[Finding]
    """About all of them but a warm-up, moments without requests, and waits for other ranks."""
    warm_up: Finding | None
    """All ranks, in the first steps of known time."""
    after_idle: list[int]
    """Numbers of the steps before which a serving engine may have had no requests."""


def find_slow_steps(measured: MeasuredRun, account: RunAccount, outliers: RunOutliers) -> SlowSteps:
    """Return the steps of the run in which all ranks are slow."""
    steps, run = measured.steps, measured.steps.run
    found = [
        finding
        for like in steps.alike.but_for_batches
        for numbers in _of_same_ranks(measured.deviations, like)
        for finding in find_in_like_steps(*_at_usual_size(measured, numbers), account.loss_ns, numbers)
    ]
    idle = [finding for finding in found if may_be_idle(steps, finding)]
    slow = [
        finding
        for finding in found
        if finding not in idle and not all(run.follows(late.team, late.part) for late in finding.members)
    ]
    timed = np.flatnonzero(~np.isnan(measured.step_ns))
    first = [
        finding
        for finding in slow
        if finding.steps == tuple(timed[: len(finding.steps)].tolist()) and len(finding.ranks) == len(run.team_of)
    ]
    # steps of several kinds, as with unlike numbers of micro-batches, are slow for one reason
    of_reason = by_key(
        ((finding.part, finding.ranks, finding.steps[0] if kind in ON_REQUEST else None), finding)
        for finding in slow
        if finding not in first
        for kind in [steps.alike.kinds[finding.steps[0]]]
    )
    slow = [_join_kinds(alike, len(run.team_of)) for alike in of_reason.values()]
    warm_up = max(first, key=lambda finding: finding.excess_ns, default=None)
    after_idle = [*(finding.steps for finding in idle), *(late.steps for late in outliers.idle_moments)]
    slow = [blame_awaited_ranks(finding, measured, account.charges) or finding for finding in slow]
    return SlowSteps(slow, warm_up, sorted(set().union(*after_idle)))


def _at_usual_size(measured: MeasuredRun, numbers: Ints) -> tuple[list[TeamDeviations], Floats]:
    """Return the deviations of each team in like steps, and each step's time, as if all batches were of one size.

    Where the usual rank's GPU time tells that they are not, what the step's time grows by with it is taken out, and
    what it varies by: hosts pause, and networks are slow, whatever the size.
    """
    teams = [team.of_steps(numbers) for team in measured.deviations]
    largest = max(teams, key=lambda team: len(team.ranks), default=None)
    if largest is None or not np.ptp(measured.steps.alike.size_of[numbers]):
        return teams, measured.step_ns
    step_ns, gpu_ns = measured.step_ns.copy(), largest.usual_ns[TimePart.GPU]
    growth = np.maximum(np.nan_to_num(growth_with_size(gpu_ns, step_ns[numbers, None])), 0.0)
    step_ns[numbers] -= np.nan_to_num(growth * (gpu_ns - known_medians(gpu_ns)))[:, 0]
    return [team.with_equal_batches() for team in teams], step_ns


def _of_same_ranks(teams: Sequence[TeamDeviations], numbers: Ints) -> list[Ints]:
    """Divide like steps by the ranks that recorded them; those of few steps go with the most.

    The median rank and the loss of a step are those of the ranks that have it.
    """
    if not teams:
        return [numbers]
    has_step = np.concatenate([~np.isnan(team.total_ns[TimePart.GPU, numbers]) for team in teams], axis=1)
    of_ranks = sorted(by_key((of_step.tobytes(), at) for at, of_step in enumerate(has_step)).values(), key=len)
    few = [at for steps in of_ranks[:-1] if len(steps) < THRESHOLDS.min_steps for at in steps]
    large = [steps for steps in of_ranks[:-1] if len(steps) >= THRESHOLDS.min_steps]
    return [numbers[sorted(steps)] for steps in (*large, of_ranks[-1] + few)]


def _join_kinds(found: Sequence[Finding], ranks: int) -> Finding:
    """Return findings about slow steps of several kinds as one; the run has so many ranks."""
    if len(found) == 1:
        return found[0]
    steps = tuple(sorted({step for one in found for step in one.steps}))
    gain_ns = sum(one.known_gain_ns or 0.0 for one in found)
    members = [replace(member, steps=steps, excess_ns=gain_ns) for member in found[0].members]
    sentence = _describe_longer_steps(len(steps), gain_ns, found[0].ranks, ranks, is_drift=False)
    joined = join_outliers("slow_steps", members, sentence, are_late_together=True, gain_ns=gain_ns)
    return replace(
        joined,
        sigmas=max(one.sigmas for one in found),
        chance=max(one.chance for one in found),
        excess_of_step={step: excess_ns for one in found for step, excess_ns in one.excess_of_step.items()},
    )


def find_in_like_steps(
    teams: Sequence[TeamDeviations], step_ns: Floats, loss_ns: Floats, numbers: Ints
) -> list[Finding]:
    """Return those of like steps in which all ranks are slow: they would be longer than usual even without their loss.

    They may be most of the steps where the fast ones are a cluster (`find_reference_times`), or where steps get longer
    and longer, or longer once: then the early ones are usual.
    Two steps show no variation: one of them is slow if it takes much longer than the other.
    What makes some steps longer may hide what makes others so: each part of the ranks' time is also asked by itself.

    Args:
        teams: the deviations of each team in these steps; the usual times of one with most ranks say in which part.
        step_ns: (steps of the run,) each step's time, NaN where unknown.
        loss_ns: (steps of the run,) each step's loss.
        numbers: positions of the like steps in the run.

    """
    largest = max(teams, key=lambda team: len(team.ranks), default=None)
    if largest is None or len(largest.ranks) < 2:
        return []  # a single rank cannot be told from all of them
    # a short step after a long one has a negative loss, which does not make it a slow one
    base = (step_ns - np.maximum(np.nan_to_num(loss_ns), 0.0))[numbers][:, None]
    sigma_ns = _sigma_of_medians(largest)
    usual_ns = largest.usual_ns[..., 0]
    above_ns = [np.nan_to_num(of_part - known_median(of_part[find_reference_times(of_part)])) for of_part in usual_ns]
    by_itself = list[_Event]()
    for part in OWN_PARTS:
        of_others = np.sum([above_ns[other] for other in OWN_PARTS if other is not part], axis=0)
        event = _find_event(teams, base - of_others[:, None], numbers, sigma_ns, part)
        by_itself += [] if event is None else [event]
    apart = list[_Event]()
    for event in sorted(by_itself, key=lambda event: -event.gain_ns):
        # what else takes longer in these steps is of the same event
        if not any(are_same_steps(np.flatnonzero(event.slow), np.flatnonzero(larger.slow)) for larger in apart):
            apart.append(event)
    events = _price_apart(apart, base[:, 0], above_ns)
    told = np.any([event.slow for event in events], axis=0) if events else np.zeros(len(base), np.bool_)
    # other steps may be longer by what no part alone, or another team, shows
    rest = _find_event(teams, np.where(told[:, None], np.nan, base), numbers, sigma_ns)
    if rest is not None and not (rest.here & told).any():
        events.append(rest)
    return [_as_finding(event, teams, numbers) for event in events]


class _Event(NamedTuple):
    """Like steps that are longer than usual in one part of the ranks' time; arrays are (steps,)."""

    part: TimePart
    team: TeamDeviations
    """Whose usual rank shows it."""
    is_known: Bools
    """The steps that were compared."""
    slow: Bools
    """The longer steps."""
    here: Bools
    """Where the time is: in these, or in the steps before them."""
    excess_ns: Floats
    """How much longer than usual each step is."""
    sigmas: float
    chance: float
    is_drift: bool

    @property
    def gain_ns(self) -> float:
        """How much longer these steps are together."""
        return float(self.excess_ns[self.slow].sum())


def _price_apart(apart: Sequence[_Event], base_ns: Floats, above_ns: Sequence[Floats]) -> list[_Event]:
    """Return events of single parts with what steps are longer by in all that no other one of them explains.

    Their steps were judged with the other parts at their usual times, which may make up for it: then the step as a
    whole, `base_ns` (steps,), is no longer. `above_ns` (steps,) is each part's time above its usual one. No step is
    longer by more than it is.
    """
    if not apart:
        return []
    told, parts = np.any([event.slow for event in apart], axis=0), [event.part for event in apart]
    unexplained = np.sum([above_ns[part] for part in OWN_PARTS if part not in parts] or [np.zeros(len(told))], axis=0)
    unexplained = unexplained - known_median(unexplained[~told])
    priced = [event._replace(excess_ns=event.excess_ns + unexplained) for event in apart]
    others_ns = base_ns[~told & ~np.isnan(base_ns)]
    whole_ns = np.nan_to_num(base_ns - (np.median(others_ns) if len(others_ns) else np.nanmin(base_ns)))
    longer = [
        event.slow & (np.minimum(with_rest.excess_ns, whole_ns) >= THRESHOLDS.main_share * event.excess_ns)
        for event, with_rest in zip(apart, priced, strict=True)
    ]
    claimed_ns = np.sum(
        [np.where(slow, event.excess_ns, 0.0) for event, slow in zip(priced, longer, strict=True)], axis=0
    )
    is_shared = np.sum(longer, axis=0) > 1
    share = np.where(is_shared & (claimed_ns > whole_ns), np.maximum(whole_ns, 0.0) / np.maximum(claimed_ns, 1.0), 1.0)
    return [
        event._replace(slow=slow, here=slow, excess_ns=event.excess_ns * share)
        for event, slow in zip(priced, longer, strict=True)
        if slow.any()
    ]


def _find_event(
    teams: Sequence[TeamDeviations], base: Floats, numbers: Ints, sigma_ns: Floats, only: TimePart | None = None
) -> _Event | None:
    """Return the longer ones of like steps, in the part of their time in which most of it lies, or in `only` this one.

    Of a single part, those whose time lies in it. Others as of `find_in_like_steps` and `_find_longer_steps`.
    """
    largest = max(len(team.ranks) for team in teams)
    is_known = ~np.isnan(base[:, 0])
    longer = _find_longer_steps(base, sigma_ns)
    if longer is None:
        return None
    slow, excess = longer.slow, longer.excess_ns
    # of two ranks that pause at different places the median pauses at none: another team tells
    like_largest = [team for team in teams if len(team.ranks) == largest]
    if only is not None:
        above = [_above_ns(team.usual_ns[only, :, 0], is_known & ~slow) for team in like_largest]
        in_part = [slow & (above_ns >= THRESHOLDS.main_share * excess) for above_ns in above]
        slow = max(in_part, key=lambda of_team: int(of_team.sum()))
        if not slow.any():
            return None
    gain = float(excess[slow].sum())
    before: Bools = np.append(slow[1:] & (np.diff(numbers) == 1), np.False_)
    # what a step does after its last collective makes the next one longer
    places = [(slow, is_known & ~slow), (before, ~(slow | before))]
    for here, others in places if only is None else places[:1]:
        excess_of = [
            np.nan_to_num(team.usual_ns[:, here, 0] - lower_median(team.usual_ns[:, others, 0])).sum(axis=1)
            for team in like_largest
        ]
        team, excess_of_part = max(
            zip(like_largest, excess_of, strict=True),
            key=lambda of_team: of_team[1].max() if only is None else of_team[1][only],
        )
        part = TimePart(int(np.argmax(excess_of_part))) if only is None else only
        if excess_of_part[part] >= THRESHOLDS.main_share * gain:
            break
    else:
        return None  # the time is in none of the ranks' own parts: communication, or waiting for what was not recorded
    if here is slow and not longer.grows:
        slow, excess = _add_less_slow(longer._replace(slow=slow), base, sigma_ns, team.usual_ns[part, :, 0])
        here = slow
    return _Event(part, team, is_known, slow, here, excess, longer.sigmas, longer.chance, longer.is_drift)


def _above_ns(part_ns: Floats, others: Bools) -> Floats:
    """Return, (steps,), how much longer a part is than in the usual one of the `others`; 0 where unknown."""
    above_ns: Floats = (
        np.nan_to_num(part_ns - lower_median(part_ns[others], axis=0)[0]) if others.any() else 0 * part_ns
    )
    return above_ns


def _as_finding(event: _Event, teams: Sequence[TeamDeviations], numbers: Ints) -> Finding:
    """Return an event as a finding about the ranks that are slow then, of all teams.

    A rank is slow if what slows it is at least half of what slows the usual rank of the event's team.
    """
    steps, gain_ns = tuple(numbers[event.here].tolist()), event.gain_ns
    usual_longer = float(np.median(_longer_in_slow_steps(event.team, event.part, event.here, event.is_known)))
    members = [
        Outlier(team.team, rank, event.part, steps, gain_ns, event.sigmas, event.chance, is_of_all_ranks=True)
        for team in teams
        for rank, longer in zip(
            team.ranks.tolist(),
            _longer_in_slow_steps(team, event.part, event.here, event.is_known).tolist(),
            strict=True,
        )
        if longer >= THRESHOLDS.main_share * usual_longer
    ]
    ranks = tuple(sorted(member.rank for member in members))
    every = sum(len(team.ranks) for team in teams)
    sentence = _describe_longer_steps(len(steps), gain_ns, ranks, every, is_drift=event.is_drift)
    finding = join_outliers("slow_steps", members, sentence, are_late_together=True, gain_ns=gain_ns)
    return replace(finding, excess_of_step=dict(zip(numbers.tolist(), event.excess_ns.tolist(), strict=True)))


def _describe_longer_steps(steps: int, gain_ns: float, ranks: Sequence[int], every: int, *, is_drift: bool) -> str:
    """Say how much longer so many steps are for these ranks; all of them are `every` one."""
    subject = "all ranks" if len(ranks) == every else f"ranks {format_numbers(ranks)}"
    return (
        f"in {format_count(steps, 'step')} {subject} take {format_time(gain_ns / steps)} longer than in the "
        f"{'first' if is_drift else 'other'} steps: the loss, which compares ranks within a step, does not contain it"
    )


class _LongerSteps(NamedTuple):
    """Like steps that are longer than usual."""

    slow: Bools
    """(steps,) which they are."""
    excess_ns: Floats
    """(steps,) how much longer than usual each step is; 0 where unknown."""
    sigmas: float
    """That of the longest one, in standard deviations of the noise."""
    chance: float
    grows: bool
    """Whether steps get longer and longer, or longer once: then they may be most of them."""
    is_drift: bool
    """Whether they get longer and longer: each is compared with the first ones."""


def _find_longer_steps(base: Floats, sigma_ns: Floats, least_ns: float = 0.0) -> _LongerSteps | None:
    """Return those of like steps that are longer than usual, by `least_ns` at least; see `find_in_like_steps`.

    Args:
        base: (steps, 1) each one's time without its loss, NaN where unknown.
        sigma_ns: (steps,) as `_sigma_of_medians` returns.
        least_ns: so much.

    """
    is_known = ~np.isnan(base[:, 0])
    count = int(is_known.sum())
    if count < 2:
        return None
    varies = count >= THRESHOLDS.min_repeats
    sigma = qn_sigma(base) if varies else np.zeros(1)
    early, late = np.array_split(base, 2)
    grows = count >= THRESHOLDS.min_steps and changes_for_good(base[is_known, 0])
    grows &= bool(known_medians(late)[0] > known_medians(early)[0])
    is_fast = find_reference_times(base[:, 0])
    are_many_slow = int((~is_fast).sum()) >= THRESHOLDS.minor_share * count  # they tell nothing of the usual step
    if are_many_slow:
        grows, usual = False, np.where(is_fast[:, None], base, np.nan)
        sigma = qn_sigma(usual)
    else:
        usual = early if grows else base
        sigma = np.fmin(sigma, wander_over_steps(base)) if grows else sigma
    first_ns = first_of_drift(base[:, 0]) if grows else None
    level = float(quiet_level(usual, sigma)[0]) if first_ns is None else first_ns
    least = max(float(sigma[0]), THRESHOLDS.host_spread_share * level / THRESHOLDS.outlier_sigmas)
    noise = np.maximum(least, sigma_ns)
    excess = np.where(is_known, base[:, 0] - level, 0.0)
    tails = np.where(is_known, student_tail(excess / noise, THRESHOLDS.tail_degrees), 1.0)
    least_share = THRESHOLDS.host_spread_share if varies else THRESHOLDS.much_more - 1
    slow = is_known & (excess >= least_share * level) & (excess >= THRESHOLDS.outlier_sigmas * noise)
    if not slow.any() or (2 * slow.sum() > len(base) and not (grows or are_many_slow)):
        return None  # the usual step is the median of all
    if not grows:
        # a step that is a little longer after a very long one is no slow one itself
        slow &= excess >= max(THRESHOLDS.tolerance_share * excess.max(), least_ns)
    if not slow.any():
        return None
    chance = binomial_tail(int(slow.sum()), count, float(tails[slow].max()))
    if chance > THRESHOLDS.max_chance:
        return None
    return _LongerSteps(slow, excess, float((excess / noise)[slow].max()), chance, grows, first_ns is not None)


def _add_less_slow(longer: _LongerSteps, base: Floats, sigma_ns: Floats, part_ns: Floats) -> tuple[Bools, Floats]:
    """Return, (steps,) each, which steps are slow, and by how much: some of the others, too, for which these are noise.

    Those whose time is in the same part. `part_ns` (steps,) is that of the usual rank; others as of
    `_find_longer_steps`.
    """
    slow, excess = longer.slow, longer.excess_ns
    while True:
        least_ns = THRESHOLDS.tolerance_share * float(excess.max())
        further = _find_longer_steps(np.where(slow[:, None], np.nan, base), sigma_ns, least_ns)
        if further is None or further.grows:
            return slow, excess
        above_ns = _above_ns(part_ns, ~np.isnan(base[:, 0]) & ~(slow | further.slow))
        more = further.slow & (above_ns >= THRESHOLDS.main_share * further.excess_ns)
        if not more.any() or 2 * (slow | more).sum() > len(base):
            return slow, excess
        usual_ns = known_median(base[~slow, 0] - further.excess_ns[~slow])
        slow, excess = slow | more, np.where(np.isnan(base[:, 0]), 0.0, base[:, 0] - usual_ns)


def _sigma_of_medians(team: TeamDeviations) -> Floats:
    """Return (steps,) the standard deviation, ns, of the median rank's own time, of ranks that vary independently.

    That of the median of n normal variables: √(π / 2n) times theirs, the larger one of their spread in the step and
    their variation over steps, which alone counts where nearly all are far above their usual time, or more than half
    and more than chance gives: unlike pauses of these are no variation of the single one. 0 of few ranks.
    """
    if len(team.ranks) < THRESHOLDS.min_samples:
        return np.zeros(team.total_ns.shape[1])
    time_ns = sum(team.usual_ns[part] + compare_with_one_rank(team.total_ns[part]) for part in OWN_PARTS)
    level = known_medians(time_ns)
    least_ns = np.maximum(THRESHOLDS.outlier_sigmas * qn_sigma(time_ns), THRESHOLDS.host_spread_share * level)
    is_far = time_ns - level >= least_ns
    counts, ranks = is_far.sum(axis=1), is_far.shape[1]
    distinct, of_step = np.unique(counts, return_inverse=True)
    chances = np.array([binomial_tail(count, ranks, float(is_far.mean())) for count in distinct.tolist()])[of_step]
    are_far = counts > (1 - THRESHOLDS.minor_share) * ranks
    are_far |= (2 * counts > ranks) & (chances <= THRESHOLDS.medium_chance)
    in_halves = np.zeros(team.total_ns.shape[1], np.bool_)
    within = [
        spread_within_steps(part_ns - lower_median(part_ns, axis=0), in_halves)[:, 0] for part_ns in team.total_ns
    ]
    varies = team.total_ns.shape[1] >= THRESHOLDS.min_repeats
    spreads = [
        np.maximum(np.where(are_far, 0.0, here), np.median(qn_sigma(part_ns)) if varies else 0.0)
        for here, part_ns in zip(within, team.total_ns, strict=True)
    ]
    sigma: Floats = math.sqrt(math.pi / 2 / len(team.ranks)) * np.linalg.norm(spreads, axis=0)
    return sigma


def _longer_in_slow_steps(team: TeamDeviations, part: TimePart, slow: Bools, is_known: Bools) -> Floats:
    """Return (ranks,) how much longer each rank takes in slow steps: a GPU as a share of its time in the other steps.

    A host that pauses does so for as long as another one, whatever else it does: its time is in ns.
    """
    apart = compare_with_one_rank(team.total_ns[part])
    time_ns = team.usual_ns[part] + apart - lower_median(apart)
    longer = np.zeros(len(team.ranks))
    for column in range(len(longer)):
        here = is_known & ~np.isnan(time_ns[:, column])
        if (here & slow).any() and (here & ~slow).any():
            level = float(np.median(time_ns[here & ~slow, column]))
            longer_ns = float(time_ns[here & slow, column].mean()) - level
            longer[column] = longer_ns / max(level, 1.0) if part is TimePart.GPU else longer_ns
    return longer
