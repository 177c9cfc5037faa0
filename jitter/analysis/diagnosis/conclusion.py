"""The conclusion of a diagnosis: the state of the run, and what keeps ranks, hosts and links from being cleared."""

from collections.abc import Iterator, Sequence

from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.first_steps import doubt_first_starts
from jitter.analysis.diagnosis.limitations import (
    CONTRADICTION,
    NO_COMMON_STEP,
    describe_fast_ranks,
    describe_host_waits,
    describe_model_error,
    describe_possible_waits,
    explain_no_peers,
    find_peerless,
    lacks_common_step,
    unverified_transfers,
)
from jitter.analysis.diagnosis.model import Cleared, Conclusion, Culprit, Loss, Status, StepAnswer, UnrecordedRanks
from jitter.analysis.diagnosis.unrecorded_ranks import bound_unrecorded, explain_unrecorded
from jitter.analysis.thresholds import THRESHOLDS


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
