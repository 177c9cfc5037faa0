"""Ranks of the job that were not recorded: what waiting for them may cost at most.

A recorded rank waits for an unrecorded one in collectives that both take part in. There the time from the last recorded
arrival to the end is that wait and the transfer, which one recording cannot tell apart: their sum bounds the wait. What
it costs is found by replay, in which these collectives end with the last recorded arrival.
"""

import numpy as np

from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.model import UnrecordedRanks
from jitter.core.formatting import format_numbers, format_percent, format_time


def bound_unrecorded(evidence: Evidence) -> UnrecordedRanks | None:
    """Return the unrecorded ranks with the bound of their cost; None if all ranks of the job were recorded."""
    if not evidence.has_unrecorded_ranks:
        return None
    analysis, ranks = evidence.analysis, evidence.missing_ranks
    incomplete = tuple(sorted(evidence.incomplete_ranks))
    groups = analysis.run.collective_arrays.incomplete
    if analysis.run.matching.lacks_groups:
        groups = np.ones_like(groups)  # a collective whose group was not recorded may span all ranks of the job
    whole = float(np.nansum(analysis.step_ns))
    if not groups.any() or not whole > 0:
        return UnrecordedRanks(ranks, None, None, incomplete)
    at_most_ns = analysis.gain_without_transfers(groups)
    if at_most_ns <= 0:  # these collectives take time: the replay does not tell what waits for them
        return UnrecordedRanks(ranks, None, None, incomplete)
    return UnrecordedRanks(ranks, round(at_most_ns), at_most_ns / whole, incomplete)


def explain_unrecorded(found: UnrecordedRanks) -> str:
    """Say which ranks of the job have no recording, and what they may cost."""
    if not found.ranks:
        subject, them = "Process groups name ranks that were not recorded", "such a rank"
    elif len(found.ranks) == 1:
        what = "recorded no step completely" if found.incomplete else "was not recorded"
        subject, them = f"Rank {found.ranks[0]} of the job {what}", "it"
    else:
        what = "were not recorded, or no step of theirs completely" if found.incomplete else "were not recorded"
        subject, them = f"Ranks {format_numbers(found.ranks)} of the job {what}", "them"
    if found.at_most_ns is None or found.fraction is None:
        verb = "they cannot" if them == "them" else f"{them} cannot"
        return f"{subject}: {verb} be cleared."
    return (
        f"{subject}: waiting for {them} may cost up to {format_time(found.at_most_ns)} "
        f"({format_percent(found.fraction)}), the time in collectives after the last recorded rank arrives."
    )
