"""How far one step's figures can be trusted: how its ranks are aligned, what found no partner, impossible times."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from jitter.analysis.execution.rank_groups import Sheet
from jitter.analysis.metrics.clock_alignment import disagreement_ns
from jitter.analysis.metrics.kernel_index import KernelIndex
from jitter.core.arrays import Floats, Ints
from jitter.core.kernels import MEMORY


@dataclass(frozen=True)
class StepQuality:
    """One step."""

    aligned: Mapping[int, bool]
    """By team of more than one rank: whether it has a collective that all its ranks leave together."""
    uncertainty_ns: int | None
    """How far the ends of its aligning collectives disagree; the median over them, the worst team's."""
    unmatched_kernels: int
    unmatched_ns: int
    left_out: int
    """Ranks whose recording is cut before the step's last collective."""
    negative_latencies: int
    """Kernels that start before their own launch, which cannot be."""
    kernels: tuple[int, ...]
    """Kernels of the index, cohort by cohort."""


class StepEnds(Protocol):
    """What is asked of a team's step."""

    @property
    def ranks(self) -> Ints:
        """(ranks,)."""

    @property
    def end(self) -> Floats:
        """(operations, ranks)."""

    @property
    def negative_latencies(self) -> int:
        """Kernels that start before their own launch."""


def assess_step_quality(
    teams: Mapping[int, StepEnds],
    aligning: Callable[[int], Sequence[int]],
    indices: Sequence[KernelIndex],
    sheets: Callable[[], Sequence[Sheet]],
) -> StepQuality:
    """Judge a step; `aligning` gives a team's places of collectives that all its ranks leave together.

    `sheets` reads what the ranks did; it is asked only where some kernel has no partner.
    """
    aligned, spreads = {}, []
    for team, step in teams.items():
        if len(step.ranks) < 2:
            continue
        places = [place for place in aligning(team) if not np.isnan(step.end[place]).any()]
        aligned[team] = bool(places)
        spreads.append(disagreement_ns(step.end[places]))
    unmatched = [_unmatched(index, sheets) for index in indices]
    return StepQuality(
        aligned,
        max((ns for ns in spreads if ns is not None), default=None),
        sum(count for count, _ in unmatched),
        sum(ns for _, ns in unmatched),
        sum(len(index.left_out) for index in indices),
        sum(step.negative_latencies for step in teams.values()),
        tuple(len(index.names) for index in indices),
    )


def _unmatched(index: KernelIndex, sheets: Callable[[], Sequence[Sheet]]) -> tuple[int, int]:
    """Kernels of a cohort without a place in the index, and how much time they take."""
    alone = {
        digest: np.array([partner is None for partner in partners], np.bool_)
        for digest, partners in index.partners.items()
        if None in partners
    }
    members = {member.rank for member in index.members if member.sequence in alone} if alone else ()
    count, ns = 0, 0.0
    for sheet in sheets() if members else ():
        own = np.isin(sheet.ranks, list(members))
        if own.any():
            times = sheet.times()
            durations = (times.end - times.start)[:, own][sheet.kind < MEMORY]
            count += int(own.sum() * alone[sheet.signature[0]].sum())
            ns += float(durations[alone[sheet.signature[0]]].sum())
    return count, round(ns)
