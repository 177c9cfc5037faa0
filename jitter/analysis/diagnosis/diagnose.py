"""The diagnosis of a run by its traces: what jitter costs, and passes that add what all ranks lose alike.

Without recognised communication no rank is cleared, and none is blamed with confidence.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from jitter.analysis.detection.likely_communication import CommunicationSurvey, survey_communication
from jitter.analysis.detection.pricing import GainRange
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.answer_cache import Answers
from jitter.analysis.diagnosis.culprits import cap_gain, make_culprit
from jitter.analysis.diagnosis.diagnosed_lake import DiagnosedLake
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.efficiency import find_bound
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.grouping.finding_groups import FindingGroup, add_lead, group_findings, group_job_findings
from jitter.analysis.diagnosis.limitations import conclude, describe_warm_up
from jitter.analysis.diagnosis.loss.all_ranks import add_losses_of_all_ranks
from jitter.analysis.diagnosis.loss.split import split_loss
from jitter.analysis.diagnosis.loss.waterfall import join_rungs
from jitter.analysis.diagnosis.model import Culprit, Loss, StepAnswer, WhatIf
from jitter.analysis.diagnosis.step_answers import answer_steps
from jitter.analysis.metrics.bandwidth_baseline import Baseline
from jitter.analysis.replay.what_if import together
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import capitalize, format_ranks, format_some
from jitter.core.names.kernels import short_name
from jitter.core.step_key import StepKey
from jitter.lake.records import RankStepRecord


def diagnose_traces(
    analysis: RunAnalysis,
    records: Mapping[StepKey, Mapping[int, RankStepRecord]],
    traces: DiagnosedLake,
    benchmark: Baseline | None,
) -> Answers:
    """Return the diagnosis of a run by its traces alone; `records` are those of each rank in each step.

    Raises `LakeError` if a file of the lake is missing or damaged.
    """
    evidence = Evidence(analysis, records, traces, benchmark)
    diagnosis = diagnose(evidence)
    for add in PASSES:
        diagnosis = add(diagnosis, evidence)
    qualities = tuple(step.quality for step in analysis.measured.of_steps)
    return Answers(diagnosis, qualities, analysis.run.team_of, analysis.run.matching.unpaired)


def diagnose(evidence: Evidence) -> Diagnosis:
    """Return what jitter costs a run, and the findings that explain it."""
    analysis = evidence.analysis
    groups = _select_worth_fixing(evidence, group_findings(evidence))
    (all_gain,) = analysis.gains([together(group.scenario for group in groups)])
    if (led := add_lead(evidence, groups, all_gain)) != groups:
        groups = led
        (all_gain,) = analysis.gains([together(group.scenario for group in groups)])
    gains = analysis.gains([group.scenario for group in groups])
    all_gain = max(0.0, all_gain, *gains)  # within the error of replay one of them may save more than all
    beside = group_job_findings(evidence)
    steps = answer_steps(evidence, [*groups, *beside])
    loss = _sum_loss(steps)
    shares = _limit_to_loss([analysis.account.loss_of(group.scenario) for group in groups], loss.ns)
    ranges = _gain_ranges(evidence, groups, gains)
    priced = [
        replace(group, gain_ns=gain_ns, share_ns=share_ns, gain_range=gain_range)
        for group, gain_ns, share_ns, gain_range in zip(groups, gains, shares, ranges, strict=True)
    ]
    for group in beside:
        priced.append(replace(group, gain_ns=group.known_gain_ns or 0.0, share_ns=group.known_gain_ns or 0.0))
    priced.sort(
        key=lambda group: (-max(round(group.share_ns), 0), -max(round(group.gain_ns), 0), -round(group.excess_ns))
    )
    time_ns = sum(step.step_time_ns or 0 for step in steps if step.loss_ns is not None)
    culprits = _name_suspects([make_culprit(group, loss, time_ns, steps, evidence) for group in priced])
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

    Longer pipeline stages and the ranks that they hide are priced in one replay. Of what no replay tells, as slow
    steps and a slow majority of the ranks may overlap, the largest counts; a network's benchmark is a rung of its own.
    """
    stages = [group for group in beside if group.is_of_stages]
    others = [group.known_gain_ns or 0.0 for group in beside if group.parts and not group.is_of_stages]
    saved_ns: float = cap_gain(all_gain_ns, loss.ns)
    if stages:
        (saved_ns,) = evidence.analysis.gains([together(group.scenario for group in (*groups, *stages))])
    return round(max(saved_ns, 0.0) + max(others, default=0.0))


def _gain_ranges(evidence: Evidence, groups: Sequence[FindingGroup], gains: Sequence[float]) -> list[GainRange | None]:
    """Return the least and the most that fixing each group alone would save; None where they differ by little."""
    pricing = evidence.pricing
    delays = [0.0] * len(groups)
    run = evidence.analysis.run
    if run.misses_partners or run.following_hosts:
        # the loss lacks what hosts, and exchanges without partners, hand on
        delays = [sum(map(pricing.unpriced_ns, group.candidates)) for group in groups]
    waits = [evidence.coverage.waits_ns(group.steps) if group.parts else 0.0 for group in groups]
    return pricing.ranges([group.scenario for group in groups], gains, delays, waits)


def _select_worth_fixing(evidence: Evidence, groups: Sequence[FindingGroup]) -> list[FindingGroup]:
    """Return the groups whose repair would not lengthen the run, as far as replay tells.

    Behind later ranks it may do so by a little, within the error of replay: then what is charged to the group counts.
    """
    analysis, pricing = evidence.analysis, evidence.pricing
    scenarios = [group.scenario for group in groups]
    most = pricing.most(scenarios, analysis.gains(scenarios))
    has_unpaired = analysis.run.matching.unpaired > 0
    return [
        group
        for group, scenario, alone_ns in zip(groups, scenarios, most, strict=True)
        if alone_ns >= 0
        or has_unpaired
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


def limit_to_communication(diagnosis: Diagnosis, survey: CommunicationSurvey) -> Diagnosis:
    """Return the diagnosis with confidence and notes limited by what is known of the communication.

    Where kernels behave like communication and nothing names them, waiting in them counts as the rank's own GPU time:
    a finding of cause `gpu_compute` is of low confidence. Every finding is, if no communication is recognised.
    """
    reason = _reason(survey)
    if reason is None:
        return diagnosis
    is_of_all = not survey.is_recognized or survey.is_graphs_only
    culprits = tuple(
        replace(culprit, confidence="low") if is_of_all or culprit.cause in ("gpu_compute", "gpu_time") else culprit
        for culprit in diagnosis.culprits
    )
    notes = [capitalize(reason)]
    if survey.likely:
        pattern = "|".join(re.escape(short_name(name)) for name in survey.likely[: THRESHOLDS.sentences.max_named])
        notes.append(
            f"If these kernels communicate, declare them: jitter ingest TRACES --collective '{pattern}' --replace."
        )
    conclusion = diagnosis.conclusion
    if not culprits:
        conclusion = replace(conclusion, doubts=(*conclusion.doubts, notes[0]), cleared=())
    return replace(
        diagnosis,
        culprits=culprits,
        notes=(*diagnosis.notes, *notes),
        conclusion=conclusion,
        communication_doubt=reason,
    )


def _reason(survey: CommunicationSurvey) -> str | None:
    """Return why the diagnosis is limited; None if it is not."""
    if survey.ranks < 2:
        return None
    if survey.is_graphs_only:
        return "the traces hold whole graphs only, so communication inside them is not seen"
    if survey.likely:
        is_one = len(survey.likely) == 1
        listed = format_some(list(map(short_name, survey.likely)), THRESHOLDS.sentences.max_named)
        subject = f"the kernel {listed} starts" if is_one else f"the kernels {listed} start"
        ends, it = ("ends", "it") if is_one else ("end", "them")
        return f"{subject} apart on the ranks and {ends} together, as communication does, and nothing names {it} so"
    if not survey.is_recognized:
        return f"no communication is recognised between the {survey.ranks} ranks"
    return None


def doubt_unnamed_communication(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Limit what is said where kernels communicate, or seem to, and nothing names them so."""
    return limit_to_communication(diagnosis, survey_communication(evidence.analysis.run))


def add_bound(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Add whether computation or communication takes the time of all ranks."""
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


PASSES: Final[tuple[Callable[[Diagnosis, Evidence], Diagnosis], ...]] = (
    doubt_unnamed_communication,
    add_bound,
    add_lower_rungs,
    add_losses_of_all_ranks,
)
"""In their order, after `diagnose`: each returns the diagnosis so far with what it adds."""
