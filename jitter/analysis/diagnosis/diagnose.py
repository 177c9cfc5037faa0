"""Puts the seven answers together: the one diagnosis that every form of report shows."""

from collections.abc import Sequence

from jitter.analysis.detection.outliers import Outlier
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.culprits import FindingGroup, describe_culprit, group_findings
from jitter.analysis.diagnosis.evidence import Evidence
from jitter.analysis.diagnosis.model import Diagnosis, Loss, StepAnswer, WhatIf
from jitter.analysis.diagnosis.step_answers import TtkeExtremes, answer_steps
from jitter.analysis.diagnosis.verdict import explain_no_peers, write_verdict
from jitter.analysis.execution.run_model import Observed
from jitter.analysis.replay.scenario_times import CPU, GPU, START
from jitter.analysis.replay.what_if import together
from jitter.core.formatting import format_count, format_time

_PARTS = {START: "host time before its first kernel", CPU: "host time", GPU: "GPU time"}
_NAMED = 3


def diagnose(examined: RunAnalysis, facts: Evidence, talks_reading: TtkeExtremes) -> Diagnosis:
    """Answer. `talks_reading` names a step's (min rank, max rank) by time to kernel end, for steps without a path."""
    found, gains, all_gain = _worth_repairing(examined, group_findings(examined, facts))
    culprits = sorted(
        (describe_culprit(case, gain, examined, facts) for case, gain in zip(found, gains, strict=True)),
        key=lambda one: (-max(one.gain_ns, 0), -one.excess_ns),
    )
    steps = answer_steps(examined, facts, found, talks_reading)
    loss = _loss(steps)
    run = examined.run
    return Diagnosis(
        loss=loss,
        steps=steps,
        culprits=tuple(culprits),
        what_if=WhatIf(round(all_gain), loss.ns),
        verdict=write_verdict(
            loss,
            culprits,
            steps,
            round(all_gain),
            len(run.team_of),
            _lone(run),
            partial=bool(run.meetings.unpaired),
        ),
        notes=_notes(examined),
    )


def _worth_repairing(
    examined: RunAnalysis, found: Sequence[FindingGroup]
) -> tuple[list[FindingGroup], list[float], float]:
    """The cases that cost something, what each one's repair alone would gain, and all of them together."""
    kept = list(found)
    while kept:
        scenarios = [case.scenario for case in kept]
        prices = examined.prices(scenarios)
        costs = [
            alone >= 0 and any(examined.is_worth(one.what, alone, marginal) for one in case.found)
            for case, (alone, marginal) in zip(kept, prices, strict=True)
        ]
        if all(costs):
            return kept, [alone for alone, _ in prices], examined.gains([together(scenarios)])[0]
        kept = [case for case, cost in zip(kept, costs, strict=True) if cost]
    return [], [], 0.0


def _loss(steps: Sequence[StepAnswer]) -> Loss:
    known = [step for step in steps if step.loss_ns is not None]
    timed = [step for step in known if step.step_time_ns]
    if not known:
        return Loss(None, None)
    return Loss(
        sum(step.loss_ns or 0 for step in known),
        sum(step.loss_ns or 0 for step in timed) / sum(step.step_time_ns or 0 for step in timed) if timed else None,
    )


def _notes(examined: RunAnalysis) -> tuple[str, ...]:
    run = examined.run
    told: list[str] = []
    if run.meetings.unrecorded:
        told.append("The groups of some collectives were not recorded: these are read as held by all ranks.")
    if run.meetings.unpaired:
        told.append(
            "Some exchanges name no partners, and their ends show that not all ranks share them: "
            "waiting in them is not told from their own time."
        )
        told += _unpriced(examined)
    if run.schedule.uncoupled:
        told.append("Some collectives' recorded groups contradict their order: each rank's is taken by itself.")
    if lone := _lone(run):
        told.append(explain_no_peers(lone))
    if len(run.team_of) < 2:
        told.append("Only one rank was recorded: there is nobody to compare it with.")
    if len(run.keys) < 2:
        told.append("Only one step was recorded: what changes from step to step cannot be told.")
    return tuple(told)


def _lone(run: Observed) -> list[int]:
    """Ranks that nobody can be compared with, though there are others: these run other programs."""
    return sorted(rank for rank, team in run.team_of.items() if run.sizes[team] == 1 < len(run.team_of))


def _unpriced(examined: RunAnalysis) -> list[str]:
    """Ranks whose own time leaves the noise while the replay cannot tell what that costs."""
    priced = [found.what for found in examined.found]
    own = [one for one in examined.candidates if isinstance(one, Outlier) and one not in priced]
    return [
        f"Rank {one.rank}'s {_PARTS[one.part]} is {format_time(one.excess_ns / len(one.steps))} a step "
        f"above its peers' in {format_count(len(one.steps), 'step')}: whether that holds others up cannot be told."
        for one in own[:_NAMED]
    ]
