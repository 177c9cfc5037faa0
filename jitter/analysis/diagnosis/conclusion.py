"""The conclusion of a diagnosis: the state of the run, and what keeps ranks, hosts and links from being cleared.

Without recognised communication no rank is cleared, and none is blamed with confidence.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from jitter.analysis.detection.likely_communication import CommunicationSurvey
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.limitations import (
    CONTRADICTION,
    NO_COMMON_STEP,
    bound_unrecorded,
    describe_fast_ranks,
    describe_host_waits,
    describe_model_error,
    describe_possible_waits,
    doubt_first_starts,
    explain_no_peers,
    explain_unrecorded,
    find_peerless,
    lacks_common_step,
    unverified_transfers,
)
from jitter.analysis.diagnosis.model import Cleared, Conclusion, Culprit, Loss, Status, StepAnswer, UnrecordedRanks
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import short_name


def conclude(evidence: Evidence, loss: Loss, steps: Sequence[StepAnswer], culprits: Sequence[Culprit]) -> Conclusion:
    """Return the conclusion from the loss, the steps and the findings."""
    unrecorded = bound_unrecorded(evidence)
    status, doubts = _status(evidence, loss, steps, culprits), tuple(_doubts(evidence, loss, culprits, unrecorded))
    transfers = unverified_transfers(evidence)
    cleared: tuple[Cleared, ...] = ()
    if status == "within_noise" and not doubts and not evidence.is_single_rank:
        cleared = ("rank", "host", "link") if transfers is None else ("rank", "host")
    return Conclusion(status, doubts, cleared, transfers, unrecorded)


def _status(evidence: Evidence, loss: Loss, steps: Sequence[StepAnswer], culprits: Sequence[Culprit]) -> Status:
    if culprits:
        return "found"
    if loss.ns is None:
        return "unknown"
    if loss.fraction is None or loss.fraction < THRESHOLDS.min_loss_share:
        return "within_noise"
    counted = [number for number, step in enumerate(steps) if step.loss_ns is not None]
    noise = evidence.analysis.loss_from_noise(counted)
    is_small = loss.fraction < THRESHOLDS.min_lead_share and loss.ns <= THRESHOLDS.loss_noise_factor * noise
    return "within_noise" if is_small else "spread"


def _doubts(
    evidence: Evidence, loss: Loss, culprits: Sequence[Culprit], unrecorded: UnrecordedRanks | None
) -> Iterator[str]:
    run = evidence.analysis.run
    if lacks_common_step(evidence):
        yield NO_COMMON_STEP
    if unrecorded is not None:
        yield explain_unrecorded(unrecorded)
    if (starts := doubt_first_starts(evidence.analysis)) is not None:
        yield starts
    if evidence.analysis.contradicts_recording:
        yield CONTRADICTION
    yield from describe_model_error(evidence, loss)
    if evidence.analysis.is_unexplained:
        yield from describe_host_waits(evidence)
    elif not culprits:
        yield from describe_possible_waits(evidence, loss)
    if run.matching.unpaired:
        yield "Some exchanges name no partners, so waiting in them cannot be attributed to a rank."
    if peerless := find_peerless(run):
        yield explain_no_peers(peerless)
    yield from describe_fast_ranks(evidence, culprits)


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
    unnamed = len(survey.likely) - len(named)
    listed = ", ".join(named) + (f" and {unnamed} more" if unnamed else "")
    return f"{'the kernel' if len(survey.likely) == 1 else 'the kernels'} {listed}"
