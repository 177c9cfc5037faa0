"""The report as JSON, for scripts; `jitter explain json` lists the keys."""

import json
from dataclasses import asdict
from typing import Any, Final

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.hang.model import Hang
from jitter.analysis.diagnosis.loss.waterfall import build_waterfall
from jitter.analysis.diagnosis.model import Culprit, LossShare, StepAnswer, UnrecordedRanks
from jitter.analysis.diagnosis.verdict import write_advice
from jitter.query.diagnosis_rows import culprit_values, efficiency_row, fact_row, step_values
from jitter.report.text.run_text import alignment_method, describe_coverage, describe_excluded
from jitter.report.views.run_overview import RunOverview

REPORT_SCHEMA_VERSION: Final = 2


def render_json(diagnosis: Diagnosis, facts: RunOverview) -> str:
    """Return the document as text, one value per line."""
    return json.dumps(report_document(diagnosis, facts), indent=1, allow_nan=False) + "\n"


def report_document(diagnosis: Diagnosis, facts: RunOverview) -> dict[str, Any]:
    """Return the document as plain data; times in ns."""
    return {
        "schema_version": REPORT_SCHEMA_VERSION,
        "run": {
            "ranks": facts.ranks,
            "steps": facts.steps,
            "hosts": len(facts.hosts),
            "kernels": facts.kernels,
            "kernels_per_step": facts.kernels_per_step[1],
            "formats": list(facts.formats),
            "cohorts": len(facts.cohorts),
            "unmatched_kernels": facts.unmatched_kernels,
            "outside_steps": facts.outside_steps,
            "alignment": {
                "method": alignment_method(facts.alignment),
                "uncertainty_ns": facts.alignment.uncertainty_ns,
            },
            "unexplained_fraction": diagnosis.unexplained_fraction,
            "warnings": _warnings(diagnosis, facts),
        },
        "loss": asdict(diagnosis.loss),
        "waterfall": [rung_time._asdict() for rung_time in build_waterfall(diagnosis.steps, diagnosis.lower_rungs)],
        "steps": [_step(step) for step in diagnosis.steps],
        "split": [_share(share) for share in diagnosis.split],
        "culprits": [_culprit(culprit) for culprit in diagnosis.findings],
        "hang": None if diagnosis.hang is None else _hang(diagnosis.hang),
        "efficiency": [{"scope": "job", **efficiency_row(efficiency)} for efficiency in diagnosis.efficiency],
        "facts": [fact_row(fact) for fact in diagnosis.facts],
        "what_if": asdict(diagnosis.what_if),
        "conclusion": {
            "status": diagnosis.conclusion.status,
            "cleared": list(diagnosis.conclusion.cleared),
            "doubts": list(diagnosis.conclusion.doubts),
            "unverified_transfers": diagnosis.conclusion.unverified_transfers,
            "unrecorded": _unrecorded(diagnosis.conclusion.unrecorded or UnrecordedRanks((), 0, 0.0)),
        },
        "verdict": diagnosis.verdict,
    }


def _hang(hang: Hang) -> dict[str, Any]:
    operation = hang.operation
    return {
        "kind": hang.kind,
        **asdict(operation.call),
        "members": list(operation.members),
        "missing_ranks": list(operation.not_entered),
        "waiting_ranks": list(operation.waiting),
        "not_started_ranks": list(operation.not_started),
        "unrecorded_ranks": list(operation.unrecorded),
        "unknown_ranks": list(operation.unknown),
        "culprit_ranks": list(hang.culprits),
        "is_circular": hang.is_circular,
        "mismatch": [{"ranks": list(two.ranks), **asdict(two.call)} for two in operation.variants] or None,
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
                "missing_ranks": list(two.operation.not_entered),
                "waiting_ranks": list(two.operation.waiting),
            }
            for two in hang.others
        ],
        "headline": hang.headline,
        "evidence": list(hang.evidence),
        "advice": hang.advice,
    }


def _warnings(diagnosis: Diagnosis, facts: RunOverview) -> list[str]:
    missing = [] if facts.whole else describe_coverage(facts)
    refused = [f"{problem.first_file}: {problem.text}" for problem in facts.refused]
    noted = [f"{problem.first_file}: {problem.text}" for problem in facts.problems]
    waterfall = build_waterfall(diagnosis.steps, diagnosis.lower_rungs)
    unjudged = [rung_time.rung for rung_time in waterfall if rung_time.step_time_ns is None]
    rungs = (
        [f"The rungs {', '.join(unjudged)} of the waterfall are not judged."] if unjudged and diagnosis.steps else []
    )
    return [*diagnosis.notes, *missing, *describe_excluded(facts), *refused, *noted, *rungs]


def _unrecorded(missing: UnrecordedRanks) -> dict[str, Any]:
    return {"ranks": list(missing.ranks), "at_most_ns": missing.at_most_ns, "fraction": missing.fraction}


def _share(share: LossShare) -> dict[str, Any]:
    ranks = list(map(asdict, share.ranks))
    return {"class": share.loss_class, "ns": share.ns, "fraction": share.fraction, "ranks": ranks}


def _step(step: StepAnswer) -> dict[str, Any]:
    began, values = step.divergence, step_values(step)
    return {
        **values,
        "divergence": None if began is None else {"kernel_index": began.kernel_index, "kernel_name": began.kernel_name},
        "split": None if step.by_class is None else step.by_class._asdict(),
        "cause": step.cause,
    }


def _culprit(culprit: Culprit) -> dict[str, Any]:
    epochs = any(key.epoch is not None for key in culprit.steps)
    fields: dict[str, Any] = {
        **culprit_values(culprit),
        "kernel_index": None if culprit.kernel_index is None else asdict(culprit.kernel_index),
        "code": None if culprit.code is None else asdict(culprit.code),
        "evidence": list(culprit.evidence),
        "advice": write_advice(culprit),
        "look_at": None if culprit.look_at is None else asdict(culprit.look_at),
    }
    if epochs:
        fields["epochs"] = [key.epoch for key in culprit.steps]  # one per entry of `steps`
    return fields
