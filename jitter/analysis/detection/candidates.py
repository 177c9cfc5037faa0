"""Candidates: ranks, groups of ranks and collectives that may cost time, which the replay prices."""

import numpy as np

from jitter.analysis.detection.findings import Finding, join_late_ranks
from jitter.analysis.detection.run_outliers import RunOutliers
from jitter.analysis.detection.run_transfers import RunTransfers
from jitter.analysis.detection.slow_communication import attribute_to_ranks
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.execution.run_model import RunModel


def find_candidates(outliers: RunOutliers, transfers: RunTransfers) -> list[Finding]:
    """Return the candidates: late ranks, random pauses, halves of the ranks, and links."""
    run = transfers.run
    above_noise = [
        outlier
        for outlier in outliers.above_noise.of_ranks
        if outlier not in outliers.idle_moments and not (outlier.persistent and run.follows(outlier.team, outlier.part))
    ]
    halves = [finding for finding in outliers.clusters if finding.known_gain_ns is None]
    joined = {(rank, finding.part) for finding in halves for rank in finding.ranks}
    return [
        *join_late_ranks([outlier for outlier in above_noise if (outlier.rank, outlier.part) not in joined]),
        *outliers.above_noise.random,
        *halves,
        *_find_links(transfers, above_noise),
    ]


def _find_links(transfers: RunTransfers, outliers: list[Outlier]) -> list[Finding]:
    """Return slow collectives by the rank whose link explains them, and slow ones with unrecorded members."""
    run, slow = transfers.run, transfers.find_slow()
    if run.matching.unpaired:
        # what seems a slow transfer may be a wait for a late rank, through exchanges that name no partners
        late = {step for outlier in outliers for step in outlier.steps}
        # nor is known what the ranks ran before the first of consecutive steps, as when a pipeline fills
        late.update(np.flatnonzero(np.isnan(transfers.measured.step_ns)).tolist())
        slow = [collectives for collectives in slow if not set(collectives.steps) <= late]
        if run.following_hosts:  # which step of another rank is late through these is not known
            slow = [collectives for collectives in slow if not _has_exchanges(run, collectives)]
    links = [transfers.of_slowest_rank(link, transfers.baseline) for link in attribute_to_ranks(slow)]
    unrecorded = transfers.find_always_slow(incomplete=True)
    if unrecorded is not None and not any(
        set(link.meetings) >= set(unrecorded.meetings) and set(link.steps) >= set(unrecorded.steps) for link in links
    ):
        links.append(unrecorded)
    return links


def _has_exchanges(run: RunModel, collectives: Finding) -> bool:
    """Return whether any of these collectives is a send or a receive."""
    members = [member for number, _ in collectives.meetings for member in run.matching.collectives[number].members]
    places = [(run.matching.blocks[member.block].team, member.place) for member in members]
    return any(run.programs[team].operations[place].is_exchange for team, place in places)
