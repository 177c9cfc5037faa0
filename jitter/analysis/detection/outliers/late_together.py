"""Many ranks that are late in the same steps: one finding, because replays of each rank alone would show no saving."""

from collections.abc import Sequence

from jitter.analysis.detection.job_findings import JobFinding, join_outliers
from jitter.analysis.detection.outliers.find_outliers import Outlier
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count


def join_late_ranks(found: Sequence[Outlier]) -> list[Outlier | JobFinding]:
    """Return at most `max_priced_outliers` candidates, those with the most excess.

    Of more outliers, ranks that are late with one part of their time in the same steps are joined, the most ranks
    first: to leave out some of them would hide what fixing all of them saves.
    """
    single = sorted(found, key=lambda one: -one.excess_ns)
    clusters = sorted(_by_part_and_steps(single, THRESHOLDS.same_steps_share), key=len)
    joined: list[JobFinding] = []
    while len(single) + len(joined) > THRESHOLDS.max_priced_outliers and clusters:
        members = clusters.pop()
        if len(members) < THRESHOLDS.min_masked_ranks:
            break
        joined.append(_join(members))
        ranks = {(one.rank, one.part) for one in members}
        single = [one for one in single if (one.rank, one.part) not in ranks]
    every: list[Outlier | JobFinding] = [*joined, *single]
    return sorted(every, key=lambda one: -one.excess_ns)[: THRESHOLDS.max_priced_outliers]


def _by_part_and_steps(found: Sequence[Outlier], share: float) -> list[list[Outlier]]:
    """Divide outliers by part, and by steps: the Jaccard index of each one's and the first one's steps."""
    clusters: list[tuple[set[int], list[Outlier]]] = []
    for one in found:
        steps = set(one.steps)
        for known, members in clusters:
            is_alike = len(known & steps) >= share * len(known | steps)
            if is_alike and members[0].part is one.part and (members[0].pace is None) is (one.pace is None):
                members.append(one)
                break
        else:
            clusters.append((steps, [one]))
    return [members for _, members in clusters]


def _join(members: Sequence[Outlier]) -> JobFinding:
    told = f"{format_count(len(members), 'rank')} are late in the same steps"
    return join_outliers("late_together", members, told, max(one.chance for one in members))
