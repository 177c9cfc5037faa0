"""The conclusion of a diagnosis: the state of the run, and what keeps ranks, hosts and links from being cleared."""

from collections.abc import Iterator, Sequence

from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.limitations import (
    NO_COMMON_STEP,
    NO_SYNC_CALLS,
    describe_fast_ranks,
    explain_no_peers,
    explain_unrecorded,
    find_peerless,
    lacks_common_step,
    unverified_transfers,
)
from jitter.analysis.diagnosis.loss.noise import loss_from_noise
from jitter.analysis.diagnosis.model import Cleared, Conclusion, Culprit, Loss, Status, StepAnswer
from jitter.analysis.thresholds import THRESHOLDS


def conclude(evidence: Evidence, loss: Loss, steps: Sequence[StepAnswer], culprits: Sequence[Culprit]) -> Conclusion:
    """Return the conclusion from the loss, the steps and the findings."""
    status, doubts = _status(evidence, loss, steps, culprits), tuple(_doubts(evidence, culprits))
    transfers = unverified_transfers(evidence)
    cleared: tuple[Cleared, ...] = ()
    if status == "within_noise" and not doubts and not evidence.is_single_rank:
        cleared = ("rank", "host", "link") if transfers is None else ("rank", "host")
    return Conclusion(status, doubts, cleared, transfers)


def _status(evidence: Evidence, loss: Loss, steps: Sequence[StepAnswer], culprits: Sequence[Culprit]) -> Status:
    if culprits:
        return "found"
    if loss.ns is None:
        return "unknown"
    if loss.fraction is None or loss.fraction < THRESHOLDS.min_loss_share:
        return "within_noise"
    counted = [number for number, step in enumerate(steps) if step.loss_ns is not None]
    noise = loss_from_noise(evidence.analysis, counted)
    is_small = loss.fraction < THRESHOLDS.min_lead_share and loss.ns <= THRESHOLDS.loss_noise_factor * noise
    return "within_noise" if is_small else "spread"


def _doubts(evidence: Evidence, culprits: Sequence[Culprit]) -> Iterator[str]:
    run = evidence.analysis.run
    if lacks_common_step(evidence):
        yield NO_COMMON_STEP
    if evidence.has_unrecorded_ranks:
        yield explain_unrecorded(evidence.missing_ranks)
    if evidence.analysis.lacks_sync_calls:
        yield NO_SYNC_CALLS
    if run.matching.unpaired:
        yield "Some exchanges name no partners, so waiting in them cannot be attributed to a rank."
    if peerless := find_peerless(run):
        yield explain_no_peers(peerless)
    yield from describe_fast_ranks(evidence, culprits)
