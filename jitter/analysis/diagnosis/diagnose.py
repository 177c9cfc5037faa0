"""The diagnosis of a run by its traces: each step's answer, what jitter costs, and passes that add what all ranks lose.

Without recognised communication no rank is cleared, and none is blamed with confidence.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from jitter.analysis.account.losses import CLASSES_OF_PART, OWN_CLASSES, LossClass, join_losses
from jitter.analysis.detection.likely_communication import CommunicationSurvey, survey_communication
from jitter.analysis.detection.run_analysis import UNMEASURED, GainRange, RunAnalysis
from jitter.analysis.diagnosis.answer_cache import Answers
from jitter.analysis.diagnosis.culprits import cap_gain, make_culprit, repair_worst
from jitter.analysis.diagnosis.diagnosed_lake import DiagnosedLake
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.efficiency import find_bound
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.finding_groups import FindingGroup, group_findings, group_job_findings
from jitter.analysis.diagnosis.leads import add_lead
from jitter.analysis.diagnosis.limitations import conclude, describe_warm_up, lacks_common_step
from jitter.analysis.diagnosis.loss.all_ranks import add_losses_of_all_ranks
from jitter.analysis.diagnosis.loss.split import split_loss, split_step
from jitter.analysis.diagnosis.loss.waterfall import join_rungs
from jitter.analysis.diagnosis.model import Culprit, KernelLocation, Loss, StepAnswer, WhatIf, find_hidden_with
from jitter.analysis.execution.self_times import OWN_PARTS
from jitter.analysis.metrics.bandwidth_baseline import Baseline
from jitter.analysis.replay.what_if import Scenario, together
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import capitalize, format_ranks, format_some
from jitter.core.names.kernels import short_name
from jitter.core.step_key import StepKey

_PARTS: Final = np.array([part for own in OWN_CLASSES for part in OWN_PARTS if own in CLASSES_OF_PART[part]])
"""The part of each class of a rank's own time."""
_OF_GPUS: Final = ("gpu_compute", "gpu_pause", "gpu_time")
"""Causes that are none where the kernels wait for other ranks."""


def diagnose_traces(analysis: RunAnalysis, traces: DiagnosedLake, benchmark: Baseline | None) -> Answers:
    """Return the diagnosis of a run by its traces alone.

    Raises `LakeError` if a file of the lake is missing or damaged.
    """
    evidence = Evidence(analysis, traces, benchmark)
    diagnosis = diagnose(evidence)
    with analysis.steps.keeping(*evidence.window):
        for add in PASSES:
            diagnosis = add(diagnosis, evidence)
    qualities = tuple(analysis.measured.statistics.qualities)
    return Answers(diagnosis, qualities, analysis.run.team_of, analysis.run.matching.unpaired)


def diagnose(evidence: Evidence) -> Diagnosis:
    """Return what jitter costs a run, and the findings that explain it."""
    analysis = evidence.analysis
    groups = _select_worth_fixing(evidence, group_findings(evidence))
    (all_gain,) = analysis.gains([together(group.scenario for group in groups)])
    if (led := add_lead(evidence, groups, all_gain)) != groups:
        groups = led
        (all_gain,) = analysis.gains([together(group.scenario for group in groups)])
    scenarios = [group.scenario for group in groups]
    gains = analysis.gains([*scenarios, *(repair_worst(group, evidence) for group in groups)])[: len(groups)]
    all_gain = max(0.0, all_gain, *gains)  # within the error of replay one of them may save more than all
    beside = [_price_beside(evidence, group) for group in group_job_findings(evidence)]
    steps = answer_steps(evidence, [*groups, *beside])
    loss = _sum_loss(steps)
    charged = [
        analysis.account.loss_of(together(group.scenario for group in groups[:count]))
        for count in range(len(groups) + 1)
    ]
    shares = _limit_to_loss(np.diff(charged).tolist(), loss.ns)  # nothing is charged to two of them
    if analysis.measured.are_uncoupled:
        shares = [0.0] * len(groups)  # what a rank delays is not known
    ranges = _gain_ranges(evidence, groups, gains)
    priced = [
        replace(group, gain_ns=gain_ns, share_ns=share_ns, gain_range=gain_range)
        for group, gain_ns, share_ns, gain_range in zip(groups, gains, shares, ranges, strict=True)
    ]
    priced = sorted(
        [*priced, *beside],
        key=lambda group: (-max(round(group.share_ns), 0), -max(round(group.gain_ns), 0), -round(group.excess_ns)),
    )
    time_ns = sum(step.step_time_ns or 0 for step in steps if step.loss_ns is not None)
    culprits = _name_suspects([make_culprit(group, loss, time_ns, steps, evidence) for group in priced])
    culprits = _price_with_hidden(culprits, [group.scenario for group in priced], analysis)
    run = analysis.run
    counted = [number for number, step in enumerate(steps) if step.loss_ns is not None]
    split = split_loss(map(evidence.after_launches.losses, counted), loss.ns, time_ns or None)
    conclusion, limits = conclude(evidence, loss, steps, culprits)
    what_if = WhatIf(_price_together(evidence, groups, beside, all_gain, loss), loss.ns)
    return Diagnosis(
        loss=loss,
        steps=steps,
        culprits=tuple(culprits),
        what_if=what_if,
        ranks=len(run.team_of),
        notes=limits,
        split=split,
        conclusion=conclusion,
        unexplained_fraction=run.unexplained_fraction,
        warm_up=describe_warm_up(analysis),
    )


def _price_beside(evidence: Evidence, group: FindingGroup) -> FindingGroup:
    """Return a group whose saving is no part of the loss with that, and with what it costs in the loss."""
    known_ns = group.known_gain_ns or 0.0
    shown = together(late.repair for event in group.candidates for late in evidence.pricing.shown_by(event))
    varied = together(map(evidence.pricing.variation_in, group.candidates))
    shown_ns, both_ns = evidence.analysis.gains([shown, together([shown, varied])])
    # ranks vary by a little in all steps
    more_ns = both_ns if both_ns - shown_ns >= THRESHOLDS.tolerance_share * known_ns else shown_ns
    # within the loss: a GPU that need not wait makes up for its late host
    more_ns = cap_gain(max(more_ns, 0.0), float(np.nansum(evidence.analysis.account.loss_ns)))
    return replace(group, gain_ns=known_ns + more_ns, share_ns=known_ns)


def _price_with_hidden(
    culprits: Sequence[Culprit], scenarios: Sequence[Scenario], analysis: RunAnalysis
) -> list[Culprit]:
    """Return findings, each with the saving of one repair of it and of all that hide it.

    `scenarios` are the findings' own repairs.
    """
    repair_of = dict(zip(map(id, culprits), scenarios, strict=True))
    hidden = [find_hidden_with(culprit, culprits) for culprit in culprits]
    repairs = [
        together(repair_of[id(one)] for one in culprits if one is culprit or one in hidden_with)
        for culprit, hidden_with in zip(culprits, hidden, strict=True)
        if hidden_with
    ]
    gains = iter(analysis.gains(repairs))
    return [
        replace(culprit, gain_with_hidden_ns=max(round(next(gains)), culprit.gain_ns)) if hidden_with else culprit
        for culprit, hidden_with in zip(culprits, hidden, strict=True)
    ]


def _name_suspects(culprits: Sequence[Culprit]) -> list[Culprit]:
    """Say of missing ranks that hold up the recorded ones which of them are late in most steps where they are not."""
    ranks = (culprit for culprit in culprits if culprit.scope == "rank" and culprit.rung == "ranks")
    late = {culprit.rank for culprit in ranks if culprit.recurs == "yes" or 2 * culprit.seen.steps >= culprit.seen.of}
    advice = (
        "holds up the recorded ranks: mend {} first, late where recorded and missing here; then record or ingest "
        "the ranks that are missing, and check the network"
    )
    return [
        replace(culprit, advice=advice.format(format_ranks(suspects)))
        if culprit.scope == "unrecorded" and (suspects := sorted(late.intersection(culprit.ranks)))
        else culprit
        for culprit in culprits
    ]


def _limit_to_loss(shares: Sequence[float], loss_ns: int | None) -> list[float]:
    """Return the shares of findings, ns, less in proportion where they add up to more than the loss.

    They do where other ranks have negative shares, as a long step leaves less to wait for in the next one.
    """
    counted = [max(share, 0.0) for share in shares]
    total = sum(counted)
    if loss_ns is None or total <= max(loss_ns, 0):
        return counted
    return [share * max(loss_ns, 0) / total for share in counted]


def _price_together(
    evidence: Evidence,
    groups: Sequence[FindingGroup],
    beside: Sequence[FindingGroup],
    all_gain_ns: float,
    loss: Loss,
) -> int:
    """Return what fixing the `groups`, which save `all_gain_ns`, saves with the findings beside the loss, ns.

    Longer pipeline stages and the ranks that they hide are priced in one replay, and so is what ranks vary by in slow
    steps. Of what no replay tells, as slow steps and a slow majority of the ranks may overlap, the largest counts; a
    network's benchmark is a rung of its own.
    """
    stages = [group for group in beside if group.is_of_stages]
    others = [group for group in beside if group.parts and not group.is_of_stages]
    varied = [evidence.pricing.variation_in(event) for group in others for event in group.candidates]
    saved_ns: float = cap_gain(all_gain_ns, loss.ns)
    if stages or any(scenario.repairs for scenario in varied):
        (saved_ns,) = evidence.analysis.gains([together([*(group.scenario for group in (*groups, *stages)), *varied])])
        saved_ns = saved_ns if stages else max(cap_gain(saved_ns, loss.ns), cap_gain(all_gain_ns, loss.ns))
    # slow steps of one part of the time share nothing with those of another one
    is_of_steps = [all(event.kind == "slow_steps" for event in group.candidates) for group in others]
    of_steps = sum(group.share_ns for group, is_one in zip(others, is_of_steps, strict=True) if is_one)
    of_others = [group.gain_ns for group, is_one in zip(others, is_of_steps, strict=True) if not is_one]
    return round(max(saved_ns, 0.0) + max([*of_others, of_steps]))


def _gain_ranges(evidence: Evidence, groups: Sequence[FindingGroup], gains: Sequence[float]) -> list[GainRange | None]:
    """Return the least and the most that fixing each group alone would save; None where they differ by little."""
    pricing, is_timed = evidence.pricing, ~np.isnan(evidence.analysis.measured.step_ns)
    more = [
        {
            UNMEASURED: sum(
                pricing.with_unmeasured_ns(candidate) for candidate in group.candidates if candidate.transfers
            ),
            pricing.unpriced_because: sum(
                pricing.unpriced_ns(candidate) * float(is_timed[list(candidate.steps)].mean())
                for candidate in group.candidates
            ),
        }
        for group in groups
    ]
    waits = [evidence.coverage.waits_ns(group.steps) if group.parts else 0.0 for group in groups]
    return pricing.ranges([group.scenario for group in groups], gains, more, waits)


def _select_worth_fixing(evidence: Evidence, groups: Sequence[FindingGroup]) -> list[FindingGroup]:
    """Return the groups whose repair would not lengthen the run, as far as replay tells.

    Behind later ranks it may do so by a little, within the error of replay: then what is charged to the group counts.
    """
    analysis, pricing = evidence.analysis, evidence.pricing
    scenarios = [group.scenario for group in groups]
    most = pricing.most(scenarios, analysis.gains(scenarios))
    return [
        group
        for group, scenario, alone_ns in zip(groups, scenarios, most, strict=True)
        if alone_ns >= 0
        or any(map(pricing.unpriced_ns, group.candidates))
        or alone_ns + analysis.account.loss_of(scenario) >= pricing.min_gain_ns(group.steps)
    ]


def _sum_loss(steps: Sequence[StepAnswer]) -> Loss:
    known_steps = [step for step in steps if step.loss_ns is not None]
    timed = [step for step in known_steps if step.step_time_ns]
    if not known_steps:
        return Loss(None, None)
    return Loss(
        sum(step.loss_ns or 0 for step in known_steps),
        sum(step.loss_ns or 0 for step in timed) / sum(step.step_time_ns or 0 for step in timed) if timed else None,
    )


def answer_steps(evidence: Evidence, groups: Sequence[FindingGroup]) -> tuple[StepAnswer, ...]:
    """Return the diagnosis of every step of the run, in order."""
    here: list[list[FindingGroup]] = [[] for _ in evidence.analysis.keys]
    for group in groups:
        for number in group.steps:
            here[number].append(group)
    return tuple(_answer(number, evidence, groups_here) for number, groups_here in enumerate(here))


def _answer(number: int, evidence: Evidence, here: Sequence[FindingGroup]) -> StepAnswer:
    analysis, key = evidence.analysis, evidence.analysis.keys[number]
    step_ns, loss_ns = analysis.measured.step_ns[number], analysis.account.loss_ns[number]
    is_timed = not np.isnan(step_ns)
    # when the first of consecutive steps began is unknown
    has_loss = is_timed and not np.isnan(loss_ns) and not analysis.account.contradicts_recording
    if evidence.is_single_rank:
        has_loss = has_loss and len(analysis.keys) >= THRESHOLDS.min_steps
    elif lacks_common_step(evidence):
        has_loss = False
    losses, statistics = evidence.after_launches.losses(number), analysis.measured.statistics
    waited_ns = statistics.arrivals.waited_ns[number]
    waiting = analysis.run.rank_numbers[(waited_ns > 0) & (waited_ns == waited_ns.max(initial=0.0))]
    min_rank = int(waiting.min()) if len(waiting) else None
    largest, own_ns = analysis.account.of_steps[number].largest, None
    # a single rank is compared with itself
    max_rank = int(largest.rank[0]) if len(largest) and not evidence.is_single_rank else None
    if not statistics.arrivals.met_at[number].any() and not evidence.is_single_rank:
        min_rank, max_rank = _ttke_extremes(key, evidence)
    elif max_rank is not None:
        own_ns = round(float(losses.of(OWN_CLASSES, max_rank).loss_ns.sum()))
    transfers_ns = float(losses.by_class()[LossClass.TRANSFER])
    group = _decisive(max_rank, here, evidence.is_single_rank, is_of_transfers=transfers_ns > (own_ns or 0))
    return StepAnswer(
        key=key,
        step_time_ns=round(float(step_ns)) if is_timed else None,
        loss_ns=round(float(loss_ns)) if has_loss else None,
        loss_fraction=float(loss_ns / step_ns) if has_loss and step_ns else None,
        min_rank=min_rank,
        max_rank=max_rank,
        divergence=_divergence(number, group, evidence),
        max_rank_loss_ns=own_ns,
        cause="none" if group is None else group.cause,
        by_class=split_step(losses, round(float(loss_ns))) if has_loss else None,
        kind=analysis.steps.alike.kinds[number],
        experts=statistics.experts[number],
    )


def _ttke_extremes(key: StepKey, evidence: Evidence) -> tuple[int | None, int | None]:
    """Return the ranks of the least and the greatest time to kernel end at k*; of several cohorts, the costliest's."""
    readings = [reading for reading in evidence.traces.ttke_readings([key]) if reading.max_rank is not None]
    worst = max(readings, key=lambda reading: reading.magnitude_ns or 0.0, default=None)
    return (None, None) if worst is None else (worst.min_rank, worst.max_rank)


def _decisive(
    max_rank: int | None, here: Sequence[FindingGroup], is_single_rank: bool, *, is_of_transfers: bool
) -> FindingGroup | None:
    """Return the step's group with its max rank, or of its slow communication: which loses more.

    A single rank is the rank of every finding.
    """
    if max_rank is None and is_single_rank and here:
        return max(here, key=lambda group: group.excess_ns)
    of_max_rank = [group for group in here if max_rank in group.group.ranks and group.parts]
    of_links = [group for group in here if not group.parts and group.known_gain_ns is None]
    return next(iter([*of_links, *of_max_rank] if is_of_transfers else [*of_max_rank, *of_links]), None)


def _divergence(number: int, group: FindingGroup | None, evidence: Evidence) -> KernelLocation | None:
    """Return the first kernel at which the max rank falls behind; of slow communication, the first slow collective."""
    if group is None:
        return None
    if group.parts:
        place = _first_late(number, [lost for part in group.parts for lost in CLASSES_OF_PART[part]], evidence)
    else:
        place = _first_slow_collective(number, evidence)
    return None if place is None else evidence.kernels.locate(evidence.analysis.keys[number], *place)


def _first_slow_collective(number: int, evidence: Evidence) -> tuple[int, int, int] | None:
    """Return (rank, team, place) of the first collective with at least half of the largest share of a collective."""
    transfers = evidence.after_launches.losses(number).of([LossClass.TRANSFER])
    slow = transfers.where((transfers.origin == number) & (transfers.loss_ns > 0))
    if not len(slow):
        return None
    located = evidence.locate_transfers(slow.where(slow.loss_ns >= slow.loss_ns.max() / 2))
    first = int(np.argmin(located.place))
    return int(located.rank[first]), int(located.team[first]), int(located.place[first])


def _first_late(number: int, classes: Collection[LossClass], evidence: Evidence) -> tuple[int, int, int] | None:
    """Return (rank, team, place) from which on what the max rank loses in some classes stays above the noise.

    The step after it loses what the rank loses at the end of the step.
    """
    largest = [account.largest for account in evidence.analysis.account.of_steps[number : number + 2]]
    if not len(largest[0]):
        return None
    shares = join_losses(largest).of(classes, int(largest[0].rank[0]))
    here = np.flatnonzero(shares.origin == number)
    lost_ns = float(shares.loss_ns[here].sum())
    if not lost_ns > 0:
        return None
    shares = shares.where(here[np.argsort(shares.place[here], kind="stable")])
    variances = evidence.analysis.measured.noise.variance[number, shares.team[0], _PARTS[shares.loss_class]]
    # of ranks that are equally late each is charged a part of what it is late, so also of its noise
    with np.errstate(divide="ignore", invalid="ignore"):
        charged = np.fmax(np.fmin(shares.loss_ns / shares.excess_ns, 1.0), 0.0)  # 1 where that is unknown
    noise = THRESHOLDS.divergence_sigmas * np.sqrt(np.cumsum(charged**2 * variances))
    least = max(THRESHOLDS.later_ns, THRESHOLDS.min_clear_share * lost_ns)
    outside = shares.loss_ns.cumsum() > np.maximum(np.minimum(noise, lost_ns / 2), least)
    if not outside[-1]:
        return None
    inside = np.flatnonzero(~outside)
    first = int(inside[-1]) + 1 if len(inside) else 0
    return int(shares.rank[first]), int(shares.team[first]), int(shares.place[first])


def _longest_kernels(diagnosis: Diagnosis) -> list[tuple[StepKey, int]]:
    """Return the costliest step and the worst rank of each finding about GPUs: in it they may wait for others."""
    losses = {step.key: step.loss_ns or 0 for step in diagnosis.steps}
    return [
        (max(culprit.steps, key=losses.__getitem__), culprit.rank)
        for culprit in diagnosis.culprits
        if culprit.cause in _OF_GPUS and culprit.rung == "ranks" and culprit.steps
    ]


def limit_to_communication(diagnosis: Diagnosis, survey: CommunicationSurvey) -> Diagnosis:
    """Return the diagnosis with confidence and notes limited by what is known of the communication.

    Where kernels behave like communication and nothing names them, or whole graphs may hide it, waiting in them counts
    as the rank's own GPU time: a finding of a slow GPU is of low confidence. Every finding is, if no communication is
    recognised.
    """
    reason = _reason(survey)
    if reason is None:
        return diagnosis
    notes, advice = [capitalize(reason)], ""
    if survey.likely:
        pattern = "|".join(re.escape(short_name(name)) for name in survey.likely[: THRESHOLDS.sentences.max_named])
        declaration = f"--collective '{pattern}' --replace"
        notes.append(f"If these kernels communicate, declare them: jitter ingest TRACES {declaration}.")
        advice = f"may wait for others in {pattern}: ingest again with {declaration}, if that communicates"
    culprits = []
    for culprit in diagnosis.culprits:
        if culprit.cause in _OF_GPUS:
            culprits.append(replace(culprit, confidence="low", advice=advice or culprit.advice))
        else:
            culprits.append(culprit if survey.is_recognized else replace(culprit, confidence="low"))
    is_unknown = not (survey.is_recognized or survey.likely or survey.is_in_graphs)
    if is_unknown or all(culprit.rung != "ranks" for culprit in culprits):
        diagnosis = _without_loss(diagnosis, notes[0])
    return replace(
        diagnosis,
        culprits=tuple(culprits),
        notes=(*diagnosis.notes, *notes),
        communication_doubt=reason,
    )


def _without_loss(diagnosis: Diagnosis, doubt: str) -> Diagnosis:
    """Return the diagnosis of a run that blames no rank, and clears none: where ranks wait for each other is unknown.

    A loss is time that ranks wait for each other. Where that is not known, no part of a step is a loss.
    """
    conclusion = diagnosis.conclusion
    conclusion = replace(conclusion, doubts=(*conclusion.doubts, doubt), cleared=())
    steps = (replace(step, loss_ns=None, loss_fraction=None, by_class=None) for step in diagnosis.steps)
    return replace(
        diagnosis,
        loss=Loss(None, None),
        steps=tuple(steps),
        split=(),
        what_if=replace(diagnosis.what_if, all_repaired_ns=None),
        conclusion=replace(conclusion, status="unknown"),
    )


def _reason(survey: CommunicationSurvey) -> str | None:
    """Return why the diagnosis is limited; None if it is not."""
    if survey.ranks < 2:
        return None
    if survey.is_in_graphs:
        return "CUDA graphs were recorded as a whole, so communication and slow kernels inside them are not seen"
    if survey.likely:
        is_one = len(survey.likely) == 1
        listed = format_some(list(map(short_name, survey.likely)), THRESHOLDS.sentences.max_named)
        subject = f"the kernel {listed} starts" if is_one else f"the kernels {listed} start"
        ends, it = ("ends", "it") if is_one else ("end", "them")
        return f"{subject} apart on the ranks and {ends} together, as communication does, and nothing names {it} so"
    if not survey.is_recognized:
        return f"no communication is recognised between the {survey.ranks} ranks"
    return None


def add_bound(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Add whether computation or communication takes the time of all ranks, where whole graphs hide neither."""
    if evidence.analysis.run.are_graphs_closed:
        return diagnosis
    first, last = evidence.window
    measured = evidence.traces.measure_collectives(evidence.analysis.keys[first:last])
    bound = find_bound(measured, evidence.benchmark)
    return diagnosis if bound is None else replace(diagnosis, efficiency=(*diagnosis.efficiency, bound))


def add_lower_rungs(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Add the rungs of the waterfall below `ranks`; what `network` loses is charged to the finding about it."""
    culprits, time_ns, cost_ns = diagnosis.culprits, diagnosis.time_ns, evidence.rungs.cost_ns.get("slow_network")
    if cost_ns is not None and time_ns:
        loss_ns = round(cost_ns * len(diagnosis.timed_steps))
        culprits = join_rungs(
            replace(culprit, loss_ns=loss_ns, fraction=loss_ns / time_ns) if culprit.rung == "network" else culprit
            for culprit in culprits
        )
    return replace(diagnosis, culprits=culprits, lower_rungs=evidence.rungs.step_ns)


def limit_to_known_communication(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Return the diagnosis limited as `limit_to_communication` does; of ranks that may wait in all they share, none."""
    survey = survey_communication(evidence.analysis.run, _longest_kernels(diagnosis))
    if evidence.analysis.measured.are_uncoupled and survey.likely:
        others = tuple(culprit for culprit in diagnosis.culprits if culprit.rung != "ranks")
        diagnosis = replace(diagnosis, culprits=others)
    return limit_to_communication(diagnosis, survey)


PASSES: Final[tuple[Callable[[Diagnosis, Evidence], Diagnosis], ...]] = (
    limit_to_known_communication,
    add_bound,
    add_lower_rungs,
    add_losses_of_all_ranks,
)
"""In their order, after `diagnose`: each returns the diagnosis so far with what it adds."""
