"""The data quality of one step: clock alignment, unmatched kernels, incomplete recordings, impossible times."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jitter.analysis.alignment.kernel_index import KernelIndex
from jitter.analysis.execution.step_times import IdenticalRanks, TeamTimes
from jitter.analysis.metrics.clock_alignment import disagreement_ns
from jitter.core.names.kernels import MEMORY


@dataclass(frozen=True)
class StepQuality:
    """The data quality of one step."""

    aligned: Mapping[int, bool]
    """By team of more than one rank: whether all its ranks leave some collective of the step at the same time."""
    uncertainty_ns: int | None
    """How far the ends of aligning collectives disagree: median over the collectives, of the worst team."""
    unmatched_kernels: int
    unmatched_ns: int
    left_out: int
    """Ranks whose recording ends before the step's last collective."""
    negative_latencies: int
    """Kernels that start before their own launch: impossible times."""
    kernels: tuple[int, ...]
    """How many kernels the kernel index has, by cohort."""


def assess_step_quality(
    teams: Mapping[int, TeamTimes],
    aligning: Callable[[int], Sequence[int]],
    indices: Sequence[KernelIndex],
    rank_groups: Callable[[], Sequence[IdenticalRanks]],
) -> StepQuality:
    """Return a step's data quality.

    Args:
        teams: each team's times.
        aligning: gives a team's collectives, by operation number, that all its ranks leave at the same time.
        indices: the kernel index of each cohort.
        rank_groups: reads the ranks' operations; called only where a kernel is unmatched.

    """
    aligned, spreads = {}, []
    for team, step in teams.items():
        if len(step.ranks) < 2:
            continue
        places = [place for place in aligning(team) if not np.isnan(step.end[place]).any()]
        aligned[team] = bool(places)
        spreads.append(disagreement_ns(step.end[places]))
    unmatched = [_unmatched(index, rank_groups) for index in indices]
    return StepQuality(
        aligned,
        max((ns for ns in spreads if ns is not None), default=None),
        sum(count for count, _ in unmatched),
        sum(ns for _, ns in unmatched),
        sum(len(index.left_out) for index in indices),
        sum(int((step.start < step.call).sum()) for step in teams.values()),
        tuple(len(index.names) for index in indices),
    )


def _unmatched(index: KernelIndex, rank_groups: Callable[[], Sequence[IdenticalRanks]]) -> tuple[int, int]:
    """Return how many kernels of a cohort have no kernel index, and their total duration, ns."""
    alone = {
        digest: np.array([partner is None for partner in partners], np.bool_)
        for digest, partners in index.partners.items()
        if None in partners
    }
    members = {member.rank for member in index.members if member.sequence in alone} if alone else ()
    count, ns = 0, 0.0
    for group in rank_groups() if members else ():
        is_member = np.isin(group.ranks, list(members))
        if is_member.any():
            times = group.times[is_member][:, :, group.kind[group.row >= 0] < MEMORY].astype(np.float64)
            durations = times[:, 1] - times[:, 0]
            count += int(is_member.sum() * alone[group.signature[0]].sum())
            ns += float(durations[:, alone[group.signature[0]]].sum())
    return count, round(ns)
