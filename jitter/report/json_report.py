"""The report as JSON, for scripts; `jitter explain json` lists the keys."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import msgspec

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.hang.model import Hang
from jitter.analysis.diagnosis.model import Culprit, RungTime, StepAnswer, UnrecordedRanks
from jitter.analysis.diagnosis.verdict import write_advice
from jitter.core.formatting import format_json
from jitter.query.diagnosis_rows import culprit_values, efficiency_row, fact_row, step_values
from jitter.report.text.run_text import alignment_method, describe_coverage, describe_excluded
from jitter.report.views.run_overview import RunOverview

REPORT_SCHEMA_VERSION: Final = 2


def render_json(diagnosis: Diagnosis, facts: RunOverview) -> str:
    """Return the document as text, one value per line."""
    return format_json(report_document(diagnosis, facts))


def report_document(diagnosis: Diagnosis, facts: RunOverview) -> dict[str, Any]:
    """Return the document as plain data; times in ns."""
    waterfall = diagnosis.waterfall
    conclusion, headline = diagnosis.conclusion, diagnosis.headline
    missing = conclusion.unrecorded or UnrecordedRanks((), 0, 0.0)
    document = {
        "schema_version": REPORT_SCHEMA_VERSION,
        "run": {
            "ranks": facts.ranks,
            "steps": facts.steps,
            "hosts": len(facts.hosts),
            "kernels": facts.kernels,
            "kernels_per_step": facts.kernels_per_step[1],
            "formats": facts.formats,
            "cohorts": len(facts.cohorts),
            "unmatched_kernels": facts.unmatched_kernels,
            "outside_steps": facts.outside_steps,
            "alignment": {
                "method": alignment_method(facts.alignment),
                "uncertainty_ns": facts.alignment.uncertainty_ns,
            },
            "unexplained_fraction": diagnosis.unexplained_fraction,
            "warnings": _warnings(diagnosis, facts, waterfall),
        },
        "loss": diagnosis.loss,
        "waterfall": [rung_time._asdict() for rung_time in waterfall],
        "steps": [_step(step) for step in diagnosis.steps],
        "split": [
            {"class": share.loss_class, "ns": share.ns, "fraction": share.fraction, "ranks": share.ranks}
            for share in diagnosis.split
        ],
        "culprits": [_culprit(culprit) for culprit in diagnosis.findings],
        "headline": next((at for at, one in enumerate(diagnosis.findings) if one is headline), None),
        "hang": None if diagnosis.hang is None else _hang(diagnosis.hang),
        "efficiency": [{"scope": "job", **efficiency_row(efficiency)} for efficiency in diagnosis.efficiency],
        "facts": [fact_row(fact) for fact in diagnosis.facts],
        "what_if": diagnosis.what_if,
        "conclusion": {
            "status": conclusion.status,
            "cleared": conclusion.cleared,
            "doubts": conclusion.doubts,
            "unverified_transfers": conclusion.unverified_transfers,
            "unrecorded": {name: getattr(missing, name) for name in ("ranks", "unplaced", "at_most_ns", "fraction")},
        },
        "verdict": diagnosis.verdict,
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return plain


def _hang(hang: Hang) -> dict[str, Any]:
    operation = hang.operation
    return {
        "kind": hang.kind,
        **asdict(operation.call),
        "members": operation.members,
        "missing_ranks": operation.not_entered,
        "waiting_ranks": operation.waiting,
        "not_started_ranks": operation.not_started,
        "unrecorded_ranks": operation.unrecorded,
        "unknown_ranks": operation.unknown,
        "culprit_ranks": hang.culprits,
        "is_circular": hang.is_circular,
        "mismatch": [{"ranks": two.ranks, **asdict(two.call)} for two in operation.variants] or None,
        "since_ns": operation.since_ns,
        "waited_ns": operation.waited_ns,
        "timeout_ns": operation.timeout_ns,
        "last_calls": [
            {"rank": last.rank, "completed": last.completed, **asdict(last.call)} for last in hang.last_calls
        ],
        "others": [
            {
                "kind": two.kind,
                **asdict(two.operation.call),
                "missing_ranks": two.operation.not_entered,
                "waiting_ranks": two.operation.waiting,
            }
            for two in hang.others
        ],
        "headline": hang.headline,
        "evidence": hang.evidence,
        "advice": hang.advice,
    }


def _warnings(diagnosis: Diagnosis, facts: RunOverview, waterfall: Sequence[RungTime]) -> list[str]:
    missing = [] if facts.whole else describe_coverage(facts)
    problems = [f"{problem.first_file}: {problem.text}" for problem in (*facts.refused, *facts.problems)]
    unjudged = [rung_time.rung for rung_time in waterfall if rung_time.step_time_ns is None]
    warnings = [*diagnosis.notes, *missing, *describe_excluded(facts), *problems]
    if unjudged and diagnosis.steps:
        rungs, verb = ("rung", "is") if len(unjudged) == 1 else ("rungs", "are")
        warnings.append(f"The {rungs} {', '.join(unjudged)} of the waterfall {verb} not judged.")
    return warnings


def _step(step: StepAnswer) -> dict[str, Any]:
    began = step.divergence
    return {
        **step_values(step),
        "divergence": began and {"kernel_index": began.kernel_index, "kernel_name": began.kernel_name},
        "split": step.by_class and step.by_class._asdict(),
        "cause": step.cause,
    }


def _culprit(culprit: Culprit) -> dict[str, Any]:
    fields: dict[str, Any] = {
        **culprit_values(culprit),
        "kernel_index": culprit.kernel_index,
        "code": culprit.code,
        "evidence": culprit.evidence,
        "advice": write_advice(culprit),
        "look_at": culprit.look_at,
    }
    if any(key.epoch is not None for key in culprit.steps):
        fields["epochs"] = [key.epoch for key in culprit.steps]  # one per entry of `steps`
    return fields
