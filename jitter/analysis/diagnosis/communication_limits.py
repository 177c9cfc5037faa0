"""Limits of a diagnosis without recognised communication: no rank is cleared, none is blamed with confidence."""

import re
from dataclasses import replace
from typing import Final

from jitter.analysis.detection.likely_communication import CommunicationSurvey
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.model import Culprit
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import short_name

_LIMITS: Final = THRESHOLDS.sentences


def limit_to_communication(diagnosis: Diagnosis, survey: CommunicationSurvey) -> Diagnosis:
    """Return the diagnosis with confidence, verdict and notes limited by what is known of the communication.

    Where kernels behave like communication and nothing names them, waiting in them counts as the rank's own GPU time:
    a finding of cause `gpu_compute` is of low confidence. Every finding is, if no communication is recognised.
    """
    reason = _reason(survey)
    if reason is None:
        return diagnosis
    culprits = tuple(
        replace(culprit, confidence="low") if _rests_on_communication(culprit, survey) else culprit
        for culprit in diagnosis.culprits
    )
    notes = [f"{reason[:1].upper()}{reason[1:]}."]
    if survey.likely:
        pattern = "|".join(re.escape(short_name(kernel.name)) for kernel in survey.likely[: _LIMITS.max_named])
        notes.append(
            f"If these kernels communicate, declare them: jitter ingest TRACES --collective '{pattern}' --replace."
        )
    verdict = f"{diagnosis.verdict} Confidence is low: {reason}."
    conclusion = diagnosis.conclusion
    if not culprits:
        cost, _, _ = diagnosis.verdict.partition(";")
        verdict = f"{cost.removesuffix('.')}; no rank can be blamed or cleared: {reason}."
        conclusion = replace(conclusion, doubts=(*conclusion.doubts, notes[0]), cleared=())
    elif culprits == diagnosis.culprits and survey.is_recognized:
        verdict = f"{diagnosis.verdict} Note: {reason}."
    return replace(
        diagnosis, culprits=culprits, verdict=verdict, notes=(*diagnosis.notes, *notes), conclusion=conclusion
    )


def _rests_on_communication(culprit: Culprit, survey: CommunicationSurvey) -> bool:
    return not survey.is_recognized or survey.is_graphs_only or culprit.cause in ("gpu_compute", "gpu_time")


def _reason(survey: CommunicationSurvey) -> str | None:
    """Return why the diagnosis is limited; None if it is not."""
    if survey.ranks < 2:
        return None
    if survey.is_graphs_only:
        return "the traces hold whole graphs only, so communication inside them is not seen"
    if survey.likely:
        does, it = (
            ("starts apart on the ranks and ends together", "it")
            if len(survey.likely) == 1
            else (
                "start apart on the ranks and end together",
                "them",
            )
        )
        return f"{_kernels(survey)} {does}, as communication does, and nothing names {it} so"
    if not survey.is_recognized:
        return f"no communication is recognised between the {survey.ranks} ranks"
    return None


def _kernels(survey: CommunicationSurvey) -> str:
    named = [short_name(kernel.name) for kernel in survey.likely[: _LIMITS.max_named]]
    more = len(survey.likely) - len(named)
    listed = ", ".join(named) + (f" and {more} more" if more else "")
    return f"{'the kernel' if len(survey.likely) == 1 else 'the kernels'} {listed}"
