"""Findings about what all ranks lose alike: the costs of the program, which no comparison of ranks shows.

Host time before a step's first kernel and pauses of hosts, calls that wait for the GPU, copies that block the host,
launches that take longer than their kernels, communication and copies that nothing hides. Each is part of the loss of
one rung of the waterfall. What the change alone saves is a replay of the recorded steps with the changed program.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from jitter.analysis.account.losses import CLASSES_OF_PART
from jitter.analysis.alignment.program import Operation
from jitter.analysis.detection.awaited_ranks import MAY_WAIT, find_awaited_ranks
from jitter.analysis.detection.pipeline_stages import find_exchanging_teams
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.diagnosis.causes import CAUSES, find_cause, words_of
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.evidence.host_operations import Gap, LongOperation
from jitter.analysis.diagnosis.loss.waterfall import RUNG_OF_CHANGE
from jitter.analysis.diagnosis.model import FOR_PARTNERS, FOR_UNRECORDED, SAVES_MORE, Cause, Culprit, IndexRange, Seen
from jitter.analysis.diagnosis.step_pattern import find_step_pattern
from jitter.analysis.execution.job_arrays import JobArrays
from jitter.analysis.execution.self_times import TimePart, median_over_steps
from jitter.analysis.replay.ladder import (
    PAUSES,
    OperationMasks,
    ProgramChange,
    balance_programs,
    is_pause,
    list_changes,
    mask_operations,
    price_changes,
)
from jitter.analysis.replay.run_steps import RecordedSteps, RunSteps
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import Ranks, format_count, format_percent, format_some, format_time
from jitter.core.grouping import by_key
from jitter.core.names.kernels import COMPUTE, SYNC, host_memory
from jitter.core.numeric.arrays import Bools, Floats, Ints, distinct_rows, spread_positions
from jitter.core.numeric.stats import known_medians
from jitter.core.step_key import StepKey
from jitter.lake.records import ON_REQUEST

_LIMITS: Final = THRESHOLDS.efficiency
_Counts = npt.NDArray[np.unsignedinteger[Any]]

_ALONE: Final = (
    "runs collectives of which it is the only member: leave out the wrapper that starts them (data parallel, sharding)"
)

_AT_LEAST: Final = "it costs that at least: some gaps of the hosts may be waits for the GPU"
_BY_DIVISION: Final = (
    "what is saved depends on how the work is divided anew: at most what the longest part takes above the mean"
)
_UNMEASURED: Final = (
    "{}: first compare with nccl-tests on these nodes, as a network or one link that is slow in every step looks the "
    "same; then {}"
)

_VERSION: Final = re.compile(r"_v\d+$")


class _Measured(NamedTuple):
    """The operations of all teams as in `JobArrays`; arrays are shape (operations,), times are means per execution."""

    operations: tuple[Operation, ...]
    kernels_before: Ints
    """Kernels of the team's program that are launched before it."""
    times: Floats
    """Executions per rank and step."""
    gpu_ns: Floats
    launch_ns: Floats
    """Host time from the end of the call before to the launch's return."""
    wait_ns: Floats
    """How long a synchronising call usually lasts: the median over ranks and steps; 0 of other operations."""
    host_ns: Floats
    """The usual rank's time between the call before and the call, in the usual step."""
    pause_ns: Floats
    """That, and the time in a call which is longer than a launch."""
    begins: Ints
    """(teams,) where the operations of each begin."""
    team_size: Ints
    """Ranks of its team."""
    ranks: Ints
    """(ranks of the run,)."""
    team_of: Ints
    """(ranks of the run,)."""
    made: _Counts
    """(operations, ranks) in how many of the steps a rank has it."""

    def of_teams(self, times_ns: Floats, chosen: Bools) -> Floats:
        """Return (teams,) the sum of times, (operations,), of some operations of a step."""
        sums: Floats = np.add.reduceat(np.where(chosen, times_ns, 0.0), self.begins)
        return sums

    def paused_ns(self, chosen: Bools) -> float:
        """Return how long the usual host pauses before some operations of a step, of the team where it is most."""
        return float(self.of_teams(self.pause_ns, chosen).max())

    def pauses(self, chosen: Bools) -> list[tuple[int, float]]:
        """Return an operation of each place before which the usual host pauses, and how long; the longest first."""
        operations = np.flatnonzero(chosen)
        teams = np.searchsorted(self.begins, operations, side="right")
        first, places = distinct_rows(teams, self.kernels_before[operations])
        paused_ns = np.bincount(places, self.pause_ns[operations])
        order = np.argsort(-paused_ns, kind="stable")
        return list(zip(operations[first[order]].tolist(), paused_ns[order].tolist(), strict=True))

    def place(self, at: int) -> str:
        """Return where in a step an operation is."""
        later = self.operations[at : next((begin for begin in self.begins.tolist() if begin > at), None)]
        is_before = any(operation.is_kernel for operation in later)
        return f"before kernel {self.kernels_before[at]}" if is_before else "after the last kernel"

    @property
    def is_compute(self) -> Bools:
        """(operations,)."""
        return np.array([operation.kind == COMPUTE for operation in self.operations], np.bool_)


_PRICED: Final[tuple[Cause, ...]] = (
    *("sync_calls", "blocking_copies", "launch_bound", "serial_copies", "late_start", "cpu_launch"),
    "exposed_communication",
)
"""Causes whose cost is a finding from `min_share` of a step on; of the last one, which most jobs have, `compute_bound`.
"""


class _Loss(NamedTuple):
    cause: Cause
    change: ProgramChange
    """The program without it; `chosen` are the operations that cause it."""
    min_share: float
    """Of a step: a smaller cost is no finding."""
    ranks: tuple[int, ...]
    """Those whose programs cost it."""

    @property
    def loss_class(self) -> str:
        part = CAUSES[self.cause].part
        return "" if part is None else CLASSES_OF_PART[part][0].label


class _PricedLoss(NamedTuple):
    """A loss with what it costs a step, ns."""

    loss: _Loss
    cost_ns: float
    """Its part of the waterfall."""
    alone_ns: float
    """What fixing it alone saves: the least, where host gaps may be waits."""
    most_ns: float
    """The same at most."""

    def is_finding(self, cost_of: Mapping[str, float], step_ns: float) -> bool:
        """Return whether it costs enough of a step; `cost_of` is the waterfall."""
        worth_ns = self.cost_ns
        if self.loss.change.what == "waits":  # hosts then run ahead and hide pauses, of which usual ones have a finding
            worth_ns = max(worth_ns, self.alone_ns - sum(max(cost_of.get(pause, 0.0), 0.0) for pause in PAUSES))
        is_told = self.cost_ns >= THRESHOLDS.sentences.min_rung_share * step_ns
        return is_told and worth_ns >= self.loss.min_share * step_ns


def add_losses_of_all_ranks(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Add what in the program costs the loss of the lower rungs, the most expensive first.

    Where host gaps may be waits, it is the least that each costs.
    """
    analysis, cost_of, time_ns = evidence.analysis, evidence.rungs.cost_ns, diagnosis.time_ns
    if not cost_of or not time_ns:
        return diagnosis
    measured, masks = _measure(analysis, *evidence.window), mask_operations(analysis.run)
    losses = [_name_few(loss, analysis, measured, evidence.window) for loss in _list_losses(measured, masks)]
    if _may_begin_after_waits(analysis):
        losses = [loss for loss in losses if loss.cause != "late_start"]
    losses += _find_longest_stage(analysis, measured)
    step_ns = time_ns / len(diagnosis.timed_steps)
    bound_steps = analysis.bound_steps if analysis.run.is_unexplained else None
    culprits = [
        _make_culprit(priced, diagnosis, evidence, measured, masks, is_least=bound_steps is not None)
        for priced in _price_losses(losses, evidence, step_ns, bound_steps)
        if priced.is_finding(cost_of, step_ns)
    ]
    return _name_awaited_ranks(diagnosis, sorted(culprits, key=lambda culprit: -culprit.order_ns))


def _price_losses(
    losses: Sequence[_Loss], evidence: Evidence, step_ns: float, bound_steps: RunSteps | None
) -> Iterator[_PricedLoss]:
    """Price losses by replay; `bound_steps` have the other waits of hosts that the recording allows."""
    changes, rungs = [loss.change for loss in losses], evidence.rungs
    saved = most_saved = price_changes(evidence.analysis.steps, changes, *evidence.window)
    if bound_steps is not None:
        others = price_changes(bound_steps, changes, *evidence.window)
        saved, most_saved = list(map(min, saved, others)), list(map(max, saved, others))
    # the first steps of a window gain more: hosts that no longer wait run ahead once
    gainable_ns = step_ns - min(rungs.step_ns.values(), default=0)
    for loss, alone_ns, most_ns in zip(losses, saved, most_saved, strict=True):
        cost_ns = rungs.cost_ns.get(loss.cause, 0.0)
        yield _PricedLoss(loss, cost_ns, min(alone_ns, gainable_ns), min(most_ns, gainable_ns))


def _make_culprit(
    priced: _PricedLoss,
    diagnosis: Diagnosis,
    evidence: Evidence,
    measured: _Measured,
    masks: OperationMasks,
    *,
    is_least: bool,
) -> Culprit:
    """Return the finding of a loss; `is_least`: as host gaps may be waits, it costs that at least."""
    analysis, (loss, cost_ns, alone_ns, most_ns) = evidence.analysis, priced
    timed, time_ns = [step.key for step in diagnosis.timed_steps], diagnosis.time_ns or 0
    is_once, is_single = len(timed) == 1, len(analysis.run.team_of) == 1
    is_exposed, is_of_stages = loss.cause == "exposed_communication", loss.cause == "unequal_stages"
    lacks_ranks = diagnosis.conclusion.unrecorded is not None or (is_single and analysis.run.matching.lacks_groups)
    in_transfers = FOR_UNRECORDED if lacks_ranks else FOR_PARTNERS if analysis.run.misses_partners else None
    waits = in_transfers if is_exposed else None
    bound = next((of_all for of_all in diagnosis.efficiency if of_all.kind == "communication"), None)
    pause, is_here = _Pause(loss.ranks), np.ones(len(timed), np.bool_)
    if loss.cause in PAUSES:
        number_of = {step.key: number for number, step in enumerate(diagnosis.steps)}
        pause = _explain_pause(evidence, loss, measured, cost_ns)
        is_here = _steps_with_pause(loss, analysis, measured, [number_of[key] for key in timed])
    is_open = is_exposed or is_least or pause.may_be_wait or (is_once and loss.cause in PAUSES)
    here, count = np.flatnonzero(is_here).tolist(), int(is_here.sum())
    saved_ns = cost_ns if pause.cause else alone_ns
    # the replay gives each kernel of a rank the same part of the new work, which another division need not do
    is_by_division = is_of_stages and not is_least and alone_ns < (1 - THRESHOLDS.tolerance_share) * cost_ns
    most_ns = max(most_ns, _most_of_division(loss, measured)) if is_by_division else most_ns
    ranks, place = pause.ranks, evidence.locations[pause.ranks[0]]
    return Culprit(
        rung=RUNG_OF_CHANGE[loss.cause],
        loss_class=loss.loss_class,
        scope="job" if pause.cause is None else "rank" if len(ranks) == 1 else "ranks",
        rank=ranks[0],
        ranks=ranks,
        host=place.host if pause.cause is not None and len(ranks) == 1 else None,
        cause=pause.cause or loss.cause,
        cause_certainty="likely" if is_of_stages else "certain",
        confidence="low" if waits or (is_of_stages and in_transfers) else "medium" if is_open else "high",
        seen=Seen(count, len(timed)),
        recurs="unknown" if is_once else "yes",
        more_steps=THRESHOLDS.min_steps - 1 if is_once else None,
        excess_ns=round(max(cost_ns, alone_ns) * count),
        gain_ns=round(max(saved_ns, 0.0) * count),
        gain_range_ns=(round(max(saved_ns, 0.0) * count), round(most_ns * count))
        if is_least or is_by_division
        else None,
        loss_ns=round(cost_ns * count),
        fraction=cost_ns * count / time_ns,
        steps=tuple(timed[at] for at in here),
        step_pattern=find_step_pattern(timed, here, is_here.astype(float).tolist()),
        kernel_index=None if pause.cause else _longest_pause(loss, measured),
        evidence=(
            _describe_cost(cost_ns, cost_ns if is_by_division else saved_ns, time_ns / len(timed)),
            *((_BY_DIVISION,) if is_by_division else ()),
            *((bound.sentence,) if bound is not None and is_exposed else ()),
            *((waits.evidence,) if waits else ()),
            *((_AT_LEAST,) if is_least else ()),
            *_describe(loss, measured, masks.host_copies, is_always=count == len(timed)),
            *pause.evidence,
        ),
        is_beyond_loss=True,
        is_part_of_job=pause.cause is None and len(ranks) < len(measured.ranks),
        lacks_ranks=evidence.coverage.has_unrecorded_ranks,
        waits=waits,
        advice=_advise_exposed(diagnosis, is_single=is_single) if is_exposed and not waits else pause.advice,
    )


def _advise_exposed(diagnosis: Diagnosis, *, is_single: bool) -> str:
    if is_single or diagnosis.conclusion.unverified_transfers is None:
        return _ALONE if is_single else ""
    behaviour, _, action = CAUSES["exposed_communication"].advise(is_job=True).partition(": ")
    return _UNMEASURED.format(behaviour, action)


def _name_awaited_ranks(diagnosis: Diagnosis, losses: Sequence[Culprit]) -> Diagnosis:
    """Add what all ranks lose: to the program, or because they wait for a few ranks.

    These few are culprits. What they lose to jitter by their hosts is part of that finding.
    """
    culprits, what_if = diagnosis.culprits, diagnosis.what_if
    for awaited in (loss for loss in losses if not loss.is_of_program):
        own_culprits = [
            culprit
            for culprit in culprits
            if culprit.rung == "ranks"
            and CAUSES[culprit.cause].side == "CPU"
            and set(culprit.ranks) <= set(awaited.ranks)
        ]
        saved_ns = awaited.gain_ns + sum(culprit.gain_ns for culprit in own_culprits)
        culprits = (
            *(culprit for culprit in culprits if culprit not in own_culprits),
            replace(awaited, gain_ns=saved_ns),
        )
        what_if = replace(what_if, culprits_repaired_ns=(what_if.culprits_repaired_ns or 0) + awaited.gain_ns)
    return replace(
        diagnosis,
        culprits=tuple(sorted(culprits, key=lambda culprit: -culprit.order_ns)),
        of_all_ranks=tuple(loss for loss in losses if loss.is_of_program),
        what_if=what_if,
    )


def _longest_pause(loss: _Loss, measured: _Measured) -> IndexRange | None:
    """Return the kernel before which hosts pause longest; None for a loss without pauses."""
    if loss.cause not in PAUSES:
        return None
    (longest, _), *_ = measured.pauses(loss.change.chosen)
    kernel_index = int(measured.kernels_before[longest])
    return IndexRange(kernel_index, kernel_index)


def _steps_with_pause(loss: _Loss, analysis: RunAnalysis, measured: _Measured, numbers: Sequence[int]) -> Bools:
    """Return (steps,) whether the usual host pauses at least half as long in these steps as in the usual one.

    All of them if it does so in none, as where other steps tell what is usual.
    """
    least_ns = THRESHOLDS.main_share * measured.paused_ns(loss.change.chosen)
    host_ns = (analysis.steps.baseline(number).host_and_call for number in numbers)
    paused_ns = np.array([measured.of_teams(of_step, loss.change.chosen).max() for of_step in host_ns])
    return (paused_ns >= least_ns) | (paused_ns < least_ns).all()


def _may_begin_after_waits(analysis: RunAnalysis) -> bool:
    """Whether hosts that begin steps late may wait: for requests, or for other ranks."""
    of_requests = any(kind in ON_REQUEST for kind in analysis.steps.alike.kinds)
    return of_requests or any(analysis.run.follows(team, TimePart.START) for team in analysis.run.programs)


class _Pause(NamedTuple):
    """Whose a pause is that all hosts make."""

    ranks: tuple[int, ...]
    evidence: tuple[str, ...] = ()
    advice: str = ""
    cause: Cause | None = None
    """What these ranks do while the others seem to wait for them; None: nothing tells that any wait."""
    may_be_wait: bool = False
    """Whether hosts may wait for other ones in place of pausing themselves."""
    has_operation: bool = False
    """Whether it is recorded what the hosts do in it."""


def _explain_pause(evidence: Evidence, loss: _Loss, measured: _Measured, cost_ns: float) -> _Pause:
    """Return whose the pauses of hosts are that cost so much per step."""
    analysis, (first, last) = evidence.analysis, evidence.window
    numbers = [at for at in range(first, last) if not np.isnan(analysis.measured.step_ns[at])]
    usual_ns = np.where(loss.change.chosen, 0.0, np.inf)  # no other pause is looked for
    like = Outlier(0, loss.ranks[0], TimePart.START, (), 0.0, 0.0)
    awaited = find_awaited_ranks(analysis.measured, analysis.account.charges, numbers, usual_ns, cost_ns, like)
    if awaited is not None:
        judged = find_cause(evidence, awaited)
        return _Pause(awaited.ranks, (*awaited.evidence, *judged.sentences), judged.advice, judged.cause, True)
    longest_ns, whole_ns = measured.pause_ns[loss.change.chosen].max(), measured.paused_ns(loss.change.chosen)
    are_others = len(measured.ranks) > 1 or evidence.coverage.has_unrecorded_ranks
    # many short pauses are no wait for one rank
    pause = _Pause(loss.ranks, may_be_wait=are_others and longest_ns >= THRESHOLDS.main_share * whole_ns)
    explain = _explain_loading if loss.cause == "late_start" else _name_operation
    pause = explain(evidence, pause, whole_ns)
    is_open = pause.may_be_wait and pause.cause is None and not pause.has_operation
    return pause._replace(evidence=(*pause.evidence, MAY_WAIT)) if is_open else pause


def _name_operation(evidence: Evidence, pause: _Pause, paused_ns: float, gap: Gap = "between launches") -> _Pause:
    """Name the operation that takes most of what hosts pause per step, ns, or several that do, if any are recorded."""
    (first, last), ranks = evidence.window, pause.ranks
    steps = [evidence.analysis.keys[first + at] for at in spread_positions(last - first, THRESHOLDS.tried_steps)]
    sampled = [(key, ranks[at]) for at in spread_positions(len(ranks), THRESHOLDS.sampled_ranks) for key in steps]
    operation = evidence.host_gaps.find_operation(sampled, (), gap, THRESHOLDS.main_share * paused_ns)
    if operation is None:
        operations = evidence.host_gaps.list_operations(sampled, gap, paused_ns)
        return _name_operations(pause, operations) if operations else pause
    sentence, advice = _put_in_words(operation, ranks)
    named = pause._replace(evidence=(*pause.evidence, sentence), advice=advice, has_operation=True)
    return _name_ranks_not_in(evidence, named, operation, steps, gap) or named


def _name_operations(pause: _Pause, operations: Sequence[tuple[str, float]]) -> _Pause:
    """Return the pause with several operations, and what each takes per step, ns."""
    values = [(LongOperation(name, name, ns, None).values["name"], ns) for name, ns in operations]
    times = format_some([f"`{name}` {format_time(ns)}" for name, ns in values], THRESHOLDS.sentences.max_named)
    names = format_some([f"`{name}`" for name, _ in values], THRESHOLDS.sentences.max_named)
    advice = f"{Ranks(pause.ranks):pauses|pause} in these operations: check whether a step must wait for {names}"
    sentence = f"most of it in {times} per step"
    return pause._replace(evidence=(*pause.evidence, sentence), advice=advice, has_operation=True)


def _put_in_words(operation: LongOperation, ranks: Sequence[int]) -> tuple[str, str]:
    """Return the evidence and the advice of an operation in which these ranks pause in every step."""
    sentence, advice, _ = words_of(operation)
    own_time = format_time(operation.own_ns)
    values = {**operation.values, "own": own_time, "of_steps": "per step", "others": "", "it": Ranks(ranks)}
    return sentence.format(**values), advice.format(**values)


def _name_ranks_not_in(
    evidence: Evidence, pause: _Pause, operation: LongOperation, steps: Sequence[StepKey], gap: Gap
) -> _Pause | None:
    """Return the pause as that of the few ranks which are hardly in its operation; None if they are none or many.

    The others wait for them there, as in a barrier.
    """
    least_ns, few = THRESHOLDS.main_share * operation.own_ns, tuple(pause.ranks)

    def is_short(rank: int, keys: Sequence[StepKey]) -> bool:
        """Whether the rank has the operation, and hardly any of it: one that lacks it may not have recorded it."""
        times_ns = evidence.host_gaps.usual_times_ns([(key, rank) for key in keys], gap)
        return 0.0 < times_ns.get(operation.outer, 0.0) < least_ns

    for tried in (steps[:1], steps):  # all ranks in one step, then those few in all
        few = tuple(rank for rank in few if is_short(rank, tried))
        if not few or 2 * len(few) >= len(pause.ranks):
            return None
    its, name = Ranks(few), operation.values["name"]
    cause: Cause = "late_start" if gap == "before the first kernel" else "cpu_launch"
    sentence = (
        f"`{name}` takes {format_time(operation.own_ns)} of host time per step, and hardly any on {its}: the other "
        f"hosts seem to wait there for {its:it|them}"
    )
    own_operation = evidence.host_gaps.find_operation([(key, rank) for rank in few for key in steps], (), gap, least_ns)
    does, action = f"{its:is|are} late", f"check {its:its host|their hosts}"
    if own_operation is not None:
        does = f"{its:spends|spend} {format_time(own_operation.own_ns)} per step in `{own_operation.values['name']}`"
        action = _put_in_words(own_operation, few)[1].rpartition(": ")[2]
    advice = f"{does}, and the other ranks wait: {action}"
    return _Pause(few, (sentence,), advice, cause, may_be_wait=True, has_operation=True)


def _explain_loading(evidence: Evidence, pause: _Pause, late_ns: float) -> _Pause:
    """Say how long data loading takes of the time, ns, before the first kernel of the ranks that pause."""
    analysis, (first, last), ranks = evidence.analysis, evidence.window, pause.ranks
    some = {ranks[at] for at in spread_positions(len(ranks), THRESHOLDS.sampled_ranks)}
    of_ranks = by_key(
        (member.rank, analysis.lake.host(key, member.rank).loading(key).total_ns)
        for key in analysis.keys[first:last]
        for member in analysis.lake.members(key)
        if member.rank in some
    )
    loading_ns = {rank: float(np.median(of_steps)) for rank, of_steps in sorted(of_ranks.items())}
    loaders = tuple(rank for rank, ns in loading_ns.items() if ns >= THRESHOLDS.main_share * late_ns)
    takes = f"take {format_time(float(np.median([*loading_ns.values()])))} per step"
    its, they = Ranks(ranks), "data-loading ranges"
    if 2 * len(loaders) > len(loading_ns):
        advice = f"{its:waits for its|wait for their} data: more loader workers, or prefetching"
        return _Pause(ranks, (f"{they} {takes}: the input pipeline is too slow",), advice)
    if loaders and 2 * len(loaders) < len(loading_ns):
        its, longest = Ranks(loaders), format_time(max(loading_ns.values()))
        sentence = f"{they} of {its} take {longest} per step: the other hosts seem to wait for {its:it|them}"
        advice = f"{its:loads|load} the data that the other ranks wait for: more loader workers, or prefetching"
        return _Pause(loaders, (sentence,), advice, "late_start", True)
    sentence, advice = "no data-loading range was recorded", ""
    if any(loading_ns.values()):
        sentence = f"{they} {takes}: they do not explain it"
        advice = f"{its:starts its|start their} steps late: check the {its:host|hosts}"
    pause = pause._replace(evidence=(sentence,), advice=advice)
    return _name_operation(evidence, pause, late_ns, "before the first kernel")


def _describe_cost(cost_ns: float, alone_ns: float, step_ns: float) -> str:
    """Say what the finding costs per step, and what fixing it alone saves where that differs."""
    cost, alone = format_time(cost_ns), format_time(max(alone_ns, 0.0))
    sentence = f"{cost} per step ({format_percent(cost_ns / step_ns)}) once no rank and no step is slower than usual"
    more = SAVES_MORE if alone_ns > cost_ns else ""
    saved = f"{alone} per step{more}" if alone_ns > 0 else "nothing, because other work is as late or later"
    is_same = abs(alone_ns - cost_ns) <= THRESHOLDS.tolerance_share * cost_ns
    return sentence if is_same else f"{sentence}; fixing it alone would save {saved}"


def _list_losses(measured: _Measured, masks: OperationMasks) -> list[_Loss]:
    changes = list_changes(masks, measured.host_ns)
    is_small = (measured.gpu_ns < _LIMITS.small_kernel_ns) & (measured.gpu_ns < measured.launch_ns)
    small = measured.is_compute & is_small & ~(masks.in_step & is_pause(measured.host_ns))
    changes["launch_bound"] = ProgramChange("launch_time", small)
    least = dict.fromkeys(_PRICED, _LIMITS.min_share) | {"exposed_communication": _LIMITS.compute_bound}
    hosts_ns = dict.fromkeys(PAUSES, measured.host_ns) | {"launch_bound": measured.launch_ns * measured.times}
    losses = []
    for cause, share in least.items():
        if (chosen := changes[cause].chosen).any():
            share_of = np.ones(len(measured.ranks))
            if cause in hosts_ns:  # of the stage that the others wait for
                share_of = measured.of_teams(hosts_ns[cause], chosen)[measured.team_of]
            elif changes[cause].what == "waits":
                share_of = measured.made[chosen].max(axis=0)  # in how many steps it waits
            ranks = measured.ranks[share_of >= THRESHOLDS.main_share * share_of.max()]
            losses.append(_Loss(cause, changes[cause], share, tuple(sorted(ranks.tolist()))))
    return losses


def _name_few(loss: _Loss, analysis: RunAnalysis, measured: _Measured, window: tuple[int, int]) -> _Loss:
    """Return a loss by waiting calls as that of the few ranks whose calls alone cost most of it."""
    few = loss.change.chosen & (2 * (measured.made > 0).sum(axis=1) < measured.team_size)
    if loss.change.what != "waits" or not few.any():
        return loss
    of_few_ns, of_all_ns = price_changes(analysis.steps, [ProgramChange("waits", few), loss.change], *window)
    if of_few_ns <= THRESHOLDS.main_share * of_all_ns:
        return loss
    calls = measured.made[few].sum(axis=0)
    return loss._replace(ranks=tuple(sorted(measured.ranks[calls >= THRESHOLDS.main_share * calls.max()].tolist())))


def _find_longest_stage(analysis: RunAnalysis, measured: _Measured) -> Iterator[_Loss]:
    """Yield the loss of a pipeline whose stages are unequal, unless a finding names the stage with more layers.

    It is the longest stage that the others wait for, as by an embedding or a loss that it alone has.
    """
    run = analysis.run
    is_named = any(stage.kind != "stage_slow_at_times" for stage in analysis.long_stages)
    if not find_exchanging_teams(run) or is_named:
        return
    teams, gpu_ns = sorted(run.programs), np.nan_to_num(measured.gpu_ns * measured.times)
    factor = balance_programs(run.job, gpu_ns, [run.sizes[team] for team in teams], np.ones(len(teams)))
    if not (factor < 1).any():
        return
    team = teams[int(np.searchsorted(run.job.first, np.argmin(factor), side="right")) - 1]
    ranks = tuple(sorted(measured.ranks[measured.team_of == team].tolist()))
    # a stage that is next to the longest, as of a sequence that each rank has a longer part of, has less to do, too
    yield _Loss("unequal_stages", ProgramChange("gpu_time", factor != 1, factor), _LIMITS.min_share, ranks)


def _longest_stage_ns(factor: Floats, measured: _Measured) -> float:
    """Return the GPU time of a step on a rank of the longest stage, whose part of the work gets the least `factor`."""
    return float(np.nansum((measured.gpu_ns * measured.times)[factor == factor.min()]))


def _most_of_division(loss: _Loss, measured: _Measured) -> float:
    """Return the most that an even division of the work saves a step, ns: what the longest stage has above the mean."""
    factor = loss.change.gpu_factor
    return 0.0 if factor is None else _longest_stage_ns(factor, measured) * (1 - float(factor.min()))


def _measure(analysis: RunAnalysis, first: int, last: int) -> _Measured:
    run = analysis.run
    count, smallest = len(run.operations), np.min_scalar_type(last - first)
    sums, rank_steps, waits = np.zeros((3, count)), np.zeros(count), list[Floats]()
    made = np.zeros((count, len(run.rank_numbers)), smallest)
    for step in analysis.steps.steps(first, last):
        waits.append(_add_step(run.job, step, sums, rank_steps, made))
        del step  # the next step is read while it would stay
    times = np.maximum(sums[0], 1.0)
    is_kernel = np.array([operation.is_kernel for operation in run.operations], np.int64)
    before = [np.cumsum(of_team) - of_team for of_team in np.split(is_kernel, run.job.first[1:-1])]
    gpu_ns, launch_ns = (total / times for total in sums[1:])
    usual = median_over_steps(analysis.steps.baselines, slice(first, last))
    return _Measured(
        run.operations,
        np.concatenate(before),
        sums[0] / np.maximum(rank_steps, 1.0),
        gpu_ns,
        launch_ns,
        np.nan_to_num(known_medians(np.array(waits))),
        np.nan_to_num(usual.host),
        np.nan_to_num(usual.host) + np.where(is_pause(usual.call), usual.call, 0.0),
        run.job.first[:-1],
        np.repeat(np.diff(run.job.first_rank), np.diff(run.job.first)),
        run.rank_numbers,
        run.team_of_number,
        made,
    )


def _add_step(job: JobArrays, step: RecordedSteps, sums: Floats, rank_steps: Floats, made: _Counts) -> Floats:
    """Add each operation's activities, GPU time and launch time, and which ranks have the step and it.

    Return, (operations,), how long the usual rank is in each synchronising call, ns; NaN of other operations.
    """
    of_step, here = np.zeros_like(sums), np.flatnonzero(step.times.row >= 0).tolist()
    calls, usual_ns = np.flatnonzero(job.kind == SYNC), np.full(len(job.kind), np.nan)
    in_calls = np.full((len(here), len(calls)), np.nan)
    launch_ns = step.self_times.host_and_call
    for number, (operations, cells) in enumerate(job.slices_of_ranks(step.times)):
        start, call, back = (values[cells] for values in (step.times.start, step.times.call, step.times.back))
        is_call = job.kind[operations] == SYNC
        there = np.where(is_call, ~np.isnan(call), ~np.isnan(start))
        for total, value in zip(of_step, (there, step.self_times.gpu[cells], launch_ns[cells]), strict=True):
            total[operations] += np.where(there, value, 0.0)
        rank_steps[operations] += 1
        made[operations, here[number]] += there
        first, after = np.searchsorted(calls, [operations.start, operations.stop])
        in_calls[number, first:after] = (back - call)[is_call]
    sums += of_step
    usual_ns[calls] = known_medians(in_calls)
    return usual_ns


def _describe(loss: _Loss, measured: _Measured, host_copies: Bools, *, is_always: bool) -> Iterator[str]:
    chosen, weights = loss.change.chosen, measured.times[loss.change.chosen]
    if loss.cause in ("sync_calls", "blocking_copies"):
        yield _describe_waits(loss, measured)
    if loss.cause == "late_start":
        yield f"the hosts pause {format_time(measured.paused_ns(chosen))} before they launch the first kernel of a step"
    if loss.cause == "cpu_launch":
        longest = measured.pauses(chosen)[: THRESHOLDS.sentences.max_named]
        pauses = ", ".join(f"{format_time(ns)} {measured.place(at)}" for at, ns in longest)
        of_steps = "per step" if is_always else "in each of these steps"
        yield f"the hosts pause {format_time(measured.paused_ns(chosen))} {of_steps}: {pauses}"
    if loss.cause == "launch_bound":
        kernels = round(float(measured.times[measured.is_compute].sum()))
        yield (
            f"{round(float(weights.sum())):,} of {format_count(kernels, 'kernel')} per step take "
            f"{format_time(float(np.average(measured.gpu_ns[chosen], weights=weights)))} on average, the host "
            f"{format_time(float(np.average(measured.launch_ns[chosen], weights=weights)))} to launch one"
        )
    if loss.cause == "unequal_stages" and (factor := loss.change.gpu_factor) is not None:
        longest_ns = _longest_stage_ns(factor, measured)
        mean_ns = longest_ns * float(factor.min())
        yield (
            f"its kernels take {format_time(longest_ns)} per step, those of all ranks {format_time(mean_ns)} on average"
        )
    if loss.cause == "serial_copies":
        copies, took_ns = round(float(weights.sum())), float((measured.gpu_ns * measured.times)[chosen].sum())
        takes = "takes" if copies == 1 else "take"
        yield f"{format_count(copies, 'copy', 'copies')} per step {takes} {format_time(took_ns)}"
    if loss.cause in ("blocking_copies", "serial_copies"):
        yield from _describe_host_memory(host_copies, measured)


def _describe_waits(loss: _Loss, measured: _Measured) -> str:
    places = np.flatnonzero(loss.change.chosen)
    made = measured.made[places]
    of_ranks = made[:, np.isin(measured.ranks, loss.ranks)].sum(axis=1) / np.maximum(made.sum(axis=1), 1)
    times = (measured.times * measured.team_size)[places] * of_ranks / len(loss.ranks)
    lasting = measured.wait_ns[places] * times
    longest = np.argsort(-lasting, kind="stable")
    is_long = lasting[longest] > THRESHOLDS.min_cost_share * lasting.sum()
    worst = places[longest[is_long]][: THRESHOLDS.sentences.max_named].tolist()
    calls = [
        f"{_VERSION.sub('', measured.operations[at].name)} {measured.place(at)} takes "
        f"{format_time(float(measured.wait_ns[at]))}"
        for at in worst
    ]
    count = float(times.sum())
    return f"{count:.3g} {'call' if count == 1 else 'calls'} per step; {', '.join(calls)}"


def _describe_host_memory(copies: Bools, measured: _Measured) -> Iterator[str]:
    """Say how many copies between host and GPU use pageable host memory, if the recording tells that of all."""
    places = np.flatnonzero(copies).tolist()
    memory = [host_memory(measured.operations[at].name) for at in places]
    if not places or None in memory:
        return
    pageable = sum(
        measured.times[at] for at, memory_kind in zip(places, memory, strict=True) if memory_kind == "pageable"
    )
    if round(pageable) == 0:
        yield "all use pinned host memory"
    else:
        count = format_count(round(sum(measured.times[at] for at in places)), "copy", "copies")
        yield (
            f"{round(pageable):,} of {count} per step between host and GPU use pageable host memory: the host waits "
            "while the driver copies through a buffer of its own"
        )
