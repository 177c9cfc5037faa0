"""The report as JSON, for scripts; `jitter explain json` lists the keys."""

import json
from dataclasses import asdict
from typing import Any

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.model import Culprit, LossShare, StepAnswer
from jitter.query.answer_rows import culprit_values, efficiency_row, step_values
from jitter.report.text.run_text import alignment_method, describe_coverage, describe_excluded
from jitter.report.views.run_overview import RunOverview

REPORT_SCHEMA_VERSION = 1


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
            "warnings": _warnings(diagnosis, facts),
        },
        "loss": asdict(diagnosis.loss),
        "steps": [_step(step) for step in diagnosis.steps],
        "split": [_share(share) for share in diagnosis.split],
        "culprits": [_culprit(culprit) for culprit in diagnosis.culprits],
        "efficiency": [{"scope": "job", **efficiency_row(one)} for one in diagnosis.efficiency],
        "what_if": asdict(diagnosis.what_if),
        "conclusion": {
            "status": diagnosis.conclusion.status,
            "cleared": list(diagnosis.conclusion.cleared),
            "doubts": list(diagnosis.conclusion.doubts),
            "unverified_transfers": diagnosis.conclusion.unverified_transfers,
        },
        "verdict": diagnosis.verdict,
    }


def _warnings(diagnosis: Diagnosis, facts: RunOverview) -> list[str]:
    missing = [] if facts.whole else describe_coverage(facts)
    refused = [f"{problem.first_file}: {problem.text}" for problem in facts.refused]
    noted = [f"{problem.first_file}: {problem.text}" for problem in facts.problems]
    return [*diagnosis.notes, *missing, *describe_excluded(facts), *refused, *noted]


def _share(share: LossShare) -> dict[str, Any]:
    return {"part": share.part, "ns": share.ns, "fraction": share.fraction, "ranks": list(map(asdict, share.ranks))}


def _step(step: StepAnswer) -> dict[str, Any]:
    began = step.divergence
    return {
        **step_values(step),
        "divergence": None if began is None else {"kernel_index": began.kernel_index, "kernel_name": began.kernel_name},
        "split": None if step.split is None else asdict(step.split),
        "cause": step.cause,
    }


def _culprit(culprit: Culprit) -> dict[str, Any]:
    epochs = any(key.epoch is not None for key in culprit.steps)
    found: dict[str, Any] = {
        **culprit_values(culprit),
        "kernel_index": None if culprit.kernel_index is None else asdict(culprit.kernel_index),
        "code": None if culprit.code is None else asdict(culprit.code),
        "evidence": list(culprit.evidence),
        "look_at": None if culprit.look_at is None else asdict(culprit.look_at),
    }
    if epochs:
        found["epochs"] = [key.epoch for key in culprit.steps]  # one per entry of `steps`
    return found
