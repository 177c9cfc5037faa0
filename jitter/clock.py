"""A moment that all ranks share, on each rank's own clock: the end of a collective that all leave together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

from jitter.kernels import ALIGNING

TOGETHER_NS = 100_000
"""Ends of a collective that names no operation may disagree by this much; more, and it synchronises nobody."""


class Moment(NamedTuple):
    """A moment as one recording's clock tells it; `utc_offset_ns` added gives UTC, None where that is unknown."""

    clock: str
    utc_offset_ns: int | None
    at_ns: int

    def since(self, earlier: "Moment") -> int | None:
        """The ns between two moments; None where no clock relates them."""
        if self.clock == earlier.clock:
            return self.at_ns - earlier.at_ns
        if self.utc_offset_ns is None or earlier.utc_offset_ns is None:
            return None
        return self.at_ns + self.utc_offset_ns - earlier.at_ns - earlier.utc_offset_ns


class CollectiveEnd(NamedTuple):
    """One rank's end of a collective kernel. What the trace does not tell is None."""

    rank: int
    kernel_index: int
    operation: str | None
    end_ns: int
    group_ranks: tuple[int, ...] | None
    group_size: int | None


@dataclass(frozen=True)
class SharedMoment:
    """How a step's ranks are aligned.

    `moments_ns` is the moment on each rank's clock. `method` is `collective`, `wall clock` or `none` (no moments).
    `uncertainty_ns` is how far the ends of the step's aligning collectives disagree (median over them; None with
    fewer than two); for wall clock 0 where all share one clock, None where it rests on the hosts' clocks.
    `unsynchronised` counts collectives of unnamed operation that turned out to align nobody.
    """

    method: str
    moments_ns: dict[int, int]
    kernel_index: int | None = None
    uncertainty_ns: int | None = None
    unsynchronised: int = 0


def shared_moment(
    ranks: Sequence[int], ends: Sequence[CollectiveEnd], starts_ns: Mapping[int, int], whole: frozenset[int]
) -> SharedMoment | None:
    """Find the end of the step's last aligning collective; None if there is none.

    `ranks` are the cohort's in this step, `whole` the cohort's in the run; `starts_ns` is where each rank's first
    kernel starts, from which "last" is told.
    """
    by_index: dict[int, dict[int, CollectiveEnd]] = {}
    for end in ends:
        by_index.setdefault(end.kernel_index, {})[end.rank] = end
    shared = {
        index: found
        for index, found in by_index.items()
        if len(found) == len(ranks) and all(_may_align(end, whole) for end in found.values())
    }
    apart = _unsynchronised(shared)
    aligning = {index: found for index, found in shared.items() if index not in apart}
    if not aligning:
        return SharedMoment("none", {}, unsynchronised=len(apart)) if apart else None

    def reached(index: int) -> tuple[int, int]:
        return median_low(end.end_ns - starts_ns.get(rank, 0) for rank, end in aligning[index].items()), index

    last = max(aligning, key=reached)
    return SharedMoment(
        "collective",
        {rank: end.end_ns for rank, end in aligning[last].items()},
        last,
        _spread(aligning),
        len(apart),
    )


def wall_clock(utc_offsets_ns: Mapping[int, int | None], clocks: Mapping[int, str]) -> SharedMoment | None:
    """Align by the clocks the profiler recorded, None where a rank has none.

    Ranks of one recording (`clocks` names it) share its clock exactly; between hosts it is as good as theirs.
    """
    if len(set(clocks.values())) == 1:
        return SharedMoment("wall clock", dict.fromkeys(utc_offsets_ns, 0), uncertainty_ns=0)
    known = {rank: offset for rank, offset in utc_offsets_ns.items() if offset is not None}
    if len(known) < len(utc_offsets_ns) or not known:
        return None
    latest = max(known.values())
    return SharedMoment("wall clock", {rank: latest - offset for rank, offset in known.items()})


def _may_align(end: CollectiveEnd, whole: frozenset[int]) -> bool:
    if end.operation is not None and end.operation not in ALIGNING:
        return False
    if end.group_ranks is not None:
        return whole <= set(end.group_ranks)
    return end.group_size is None or end.group_size >= len(whole)


def _unsynchronised(shared: Mapping[int, Mapping[int, CollectiveEnd]]) -> set[int]:
    """Collectives of unnamed operation whose ends contradict the clock offsets that the others give.

    What names its operation is believed; else the median rules, to which from three on each belongs itself: two that
    agree are not outvoted by one that does not.
    """
    offsets = {index: _offsets(found) for index, found in shared.items()}
    named = {index for index, found in shared.items() if any(end.operation is not None for end in found.values())}
    voters = named or shared.keys()
    apart = set()
    for index in shared.keys() - named:
        others = [
            offset for other, offset in offsets.items() if other in voters and (other != index or len(voters) > 2)
        ]
        if others and any(
            abs(ns - median_low(other[rank] for other in others)) > TOGETHER_NS for rank, ns in offsets[index].items()
        ):
            apart.add(index)
    return apart


def _offsets(found: Mapping[int, CollectiveEnd]) -> dict[int, int]:
    """Each rank's clock against the lowest rank's, as this collective's end tells it."""
    origin = found[min(found)].end_ns
    return {rank: end.end_ns - origin for rank, end in found.items()}


def _spread(aligning: Mapping[int, Mapping[int, CollectiveEnd]]) -> int | None:
    if len(aligning) < 2:
        return None
    offsets = [_offsets(found) for found in aligning.values()]
    usual = {rank: median_low(offset[rank] for offset in offsets) for rank in offsets[0]}
    spreads = []
    for offset in offsets:
        residuals = [ns - usual[rank] for rank, ns in offset.items()]
        spreads.append(max(residuals) - min(residuals))
    return median_low(spreads)
