"""Puts the diagnosis together from the analysis of a run."""

from collections.abc import Sequence

from jitter.analysis.detection.likely_communication import survey_communication
from jitter.analysis.detection.pricing import GainRange
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.conclusion import conclude, limit_to_communication
from jitter.analysis.diagnosis.culprits import cap_gain, make_culprit
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.grouping.finding_groups import FindingGroup, group_findings, group_job_findings
from jitter.analysis.diagnosis.grouping.leads import add_lead
from jitter.analysis.diagnosis.limitations import describe_warm_up, list_limitations
from jitter.analysis.diagnosis.loss.split import split_loss
from jitter.analysis.diagnosis.model import Loss, LossShare, StepAnswer, WhatIf
from jitter.analysis.diagnosis.step_answers import TtkeExtremes, answer_steps
from jitter.analysis.diagnosis.verdict import write_verdict
from jitter.analysis.replay.what_if import together


def diagnose(analysis: RunAnalysis, evidence: Evidence, ttke_extremes: TtkeExtremes) -> Diagnosis:
    """Return the diagnosis of a run.

    Args:
        analysis: of the run.
        evidence: of that analysis.
        ttke_extremes: gives (min rank, max rank) by time to kernel end, for steps in which no ranks meet.

    """
    groups, gains, all_gain = _select_worth_fixing(analysis, evidence, group_findings(evidence))
    if (led := add_lead(evidence, groups, all_gain)) != groups:
        groups = led
        gains = analysis.gains([group.scenario for group in groups])
        all_gain = max(0.0, *gains, analysis.gains([together(group.scenario for group in groups)])[0])
    shares = [analysis.loss_of(group.scenario) for group in groups]
    tested = list(groups)
    beside = group_job_findings(evidence)
    known_gains = [group.known_gain_ns or 0.0 for group in beside]
    groups, gains = [*groups, *beside], [*gains, *known_gains]
    steps = answer_steps(evidence, groups, ttke_extremes)
    loss = _sum_loss(steps)
    shares = [*_limit_to_loss(shares, loss.ns), *known_gains]
    ranges = [*_gain_ranges(evidence, tested, gains[: len(tested)], loss), *([None] * len(beside))]
    time_ns = sum(step.step_time_ns or 0 for step in steps if step.loss_ns is not None)
    culprits = [
        make_culprit(
            group, gain, share, gain_range, loss.ns if group.known_gain_ns is None else None, time_ns, steps, evidence
        )
        for group, gain, share, gain_range in sorted(
            zip(groups, gains, shares, ranges, strict=True),
            key=lambda row: (-max(round(row[2]), 0), -max(round(row[1]), 0), -round(row[0].excess_ns)),
        )
    ]
    run, split = analysis.run, _split(evidence, steps, loss)
    conclusion = conclude(evidence, loss, steps, culprits)
    # findings beyond the loss may overlap: the largest counts
    beyond = max(
        (culprit.gain_ns for culprit in culprits if culprit.is_beyond_loss and culprit.rung != "network"), default=0
    )
    what_if = WhatIf(cap_gain(all_gain, loss.ns) + beyond, loss.ns)
    warm_up = describe_warm_up(analysis)
    saved_ns = what_if.culprits_repaired_ns or 0
    verdict = write_verdict(loss, culprits, steps, saved_ns, len(run.team_of), conclusion, split)
    diagnosis = Diagnosis(
        loss=loss,
        steps=steps,
        culprits=tuple(culprits),
        what_if=what_if,
        verdict=" ".join([verdict, warm_up] if warm_up and not culprits else [verdict]),
        notes=list_limitations(evidence, loss, culprits, conclusion.unrecorded),
        split=split,
        conclusion=conclusion,
        unexplained_fraction=run.unexplained_fraction,
    )
    return limit_to_communication(diagnosis, survey_communication(run))


def _limit_to_loss(shares: Sequence[float], loss_ns: int | None) -> list[float]:
    """Return the shares of findings, ns, less in proportion where they add up to more than the loss.

    They do where other ranks have negative shares, as a long step leaves less to wait for in the next one.
    """
    counted = [max(share, 0.0) for share in shares]
    total = sum(counted)
    if loss_ns is None or total <= loss_ns:
        return counted
    return [share * max(loss_ns, 0) / total for share in counted]


def _gain_ranges(
    evidence: Evidence, groups: Sequence[FindingGroup], gains: Sequence[float], loss: Loss
) -> list[GainRange | None]:
    """Return the least and the most that fixing each group alone would save; None where they differ by little."""
    pricing = evidence.pricing
    delays = [0.0] * len(groups)
    if evidence.analysis.run.misses_partners:
        late = [sum(pricing.unpriced_ns(finding.candidate) for finding in group.findings) for group in groups]
        delays = [min(ns, max(loss.ns or 0, 0)) for ns in late]
    return pricing.ranges([group.scenario for group in groups], gains, delays)


def _select_worth_fixing(
    analysis: RunAnalysis, evidence: Evidence, groups: Sequence[FindingGroup]
) -> tuple[list[FindingGroup], list[float], float]:
    """Return the groups worth fixing, what each saves alone, ns, and what all of them save together."""
    pricing = evidence.pricing
    kept = list(groups)
    while kept:
        scenarios = [group.scenario for group in kept]
        prices = pricing.price(scenarios)
        most = pricing.most(scenarios, [alone for alone, _ in prices])
        is_worth = [
            (alone >= 0 or analysis.run.matching.unpaired > 0)
            and any(pricing.is_worth_fixing(finding.candidate, alone, marginal) for finding in group.findings)
            for group, alone, (_, marginal) in zip(kept, most, prices, strict=True)
        ]
        if all(is_worth):
            return kept, [alone for alone, _ in prices], analysis.gains([together(scenarios)])[0]
        kept = [group for group, worth in zip(kept, is_worth, strict=True) if worth]
    return [], [], 0.0


def _split(evidence: Evidence, steps: Sequence[StepAnswer], loss: Loss) -> tuple[LossShare, ...]:
    """Split the loss of the steps that have one."""
    counted = [number for number, step in enumerate(steps) if step.loss_ns is not None]
    times = [step.step_time_ns for step in steps if step.loss_ns is not None and step.step_time_ns]
    return split_loss(map(evidence.losses, counted), loss.ns, sum(times) or None)


def _sum_loss(steps: Sequence[StepAnswer]) -> Loss:
    known_steps = [step for step in steps if step.loss_ns is not None]
    timed = [step for step in known_steps if step.step_time_ns]
    if not known_steps:
        return Loss(None, None)
    return Loss(
        sum(step.loss_ns or 0 for step in known_steps),
        sum(step.loss_ns or 0 for step in timed) / sum(step.step_time_ns or 0 for step in timed) if timed else None,
    )
