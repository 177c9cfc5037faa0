"""Recordings that hold the same step of the same rank: which of them is taken, and why.

The choice follows from the content of all recordings: their names and their order have no influence.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from jitter.core.step_key import StepKey
from jitter.ingestion.ranks.choose_job import GivenRecording
from jitter.ingestion.ranks.job_identity import RESTART_NS, RecordedRank, time_apart

_REASONS: Final = (
    "which runs the sequence of kernels of more other ranks",
    "which shares more kernels with the other ranks",
    "which was recorded nearer in time to the other ranks",
    "which holds more whole steps",
    "which holds more kernels",
    "which is of the format of more other ranks",
)
"""Why one of two recordings is the more likely one: for each value of `_fit`."""
_SAME_RUN: Final = "a second recording of the same time, of which one is enough"
_UNDECIDED: Final = "and nothing tells which of the two is right: neither is taken"


Claims = list[tuple[int, StepKey]]
"""Ranks with a step."""
Rivals = dict[GivenRecording, dict[GivenRecording, Claims]]
"""By recording the other ones that hold some of its steps, with these."""


class StepConflict(NamedTuple):
    """A recording that is left out, and another one that holds some of its steps; `reason` describes the other one."""

    recording: GivenRecording
    other: GivenRecording
    rank: int
    steps: list[StepKey]
    reason: str


def find_conflicts(recordings: Iterable[GivenRecording], ranks: Sequence[RecordedRank]) -> list[StepConflict]:
    """Return the recordings to leave out because another one holds the same step of the same rank.

    Of two such recordings the one that is more like the other `ranks` of the job is taken, then the more complete one.
    Of two that nothing tells apart, one is taken if they are of the same time, else none.
    """
    rivals = _rivals(recordings)
    fits = {one: _fit(one, ranks) for one in rivals}
    found: dict[GivenRecording, StepConflict] = {}
    undecided: set[GivenRecording] = set()
    for _, equals in groupby(sorted(rivals, key=lambda one: (fits[one], _content(one))), key=fits.__getitem__):
        left = []
        for one in equals:
            better = [other for other in rivals[one] if fits[other] < fits[one]]
            better = [other for other in better if other not in found or other in undecided]
            if better:
                found[one] = _conflict(one, better[0], rivals[one], _explain(fits[one], fits[better[0]]))
            else:
                left.append(one)
        for place, one in enumerate(left):
            alike = [other for other in left if other in rivals[one]]
            apart = [other for other in alike if not _is_same_time(one, other)]
            before = [other for other in alike if other in left[:place] and other not in found]
            if apart:
                found[one] = _conflict(one, apart[0], rivals[one], _UNDECIDED)
                undecided.add(one)
            elif before:
                found[one] = _conflict(one, before[0], rivals[one], _SAME_RUN)
    return list(found.values())


def _rivals(recordings: Iterable[GivenRecording]) -> Rivals:
    claims: dict[tuple[int, StepKey], list[GivenRecording]] = {}
    for recording in recordings:
        for rank in recording.ranks:
            for step in rank.record.steps:
                claims.setdefault((rank.rank, step.key), []).append(recording)
    rivals: Rivals = {}
    for claim, holders in claims.items():
        for one in holders if len(holders) > 1 else ():
            for other in holders:
                if other is not one:
                    rivals.setdefault(one, {}).setdefault(other, []).append(claim)
    return rivals


def _fit(recording: GivenRecording, ranks: Sequence[RecordedRank]) -> tuple[float, ...]:
    """Return how unlikely a recording is, compared with `ranks`: the least is the most likely."""
    own = {rank.rank for rank in recording.ranks}
    others = [other for other in ranks if other.rank not in own]
    pairs = [(rank, other) for rank in recording.ranks for other in others]
    steps = [step for rank in recording.ranks for step in rank.record.steps]
    return (
        -sum(bool(rank.sequences & other.sequences) for rank, other in pairs),
        -max((rank.shared_kernels(other) or 0.0 for rank, other in pairs), default=0.0),
        min((time_apart(rank.utc_range, other.utc_range) for rank, other in pairs), default=0),
        -sum(not step.cut for step in steps),
        -sum(step.kernels for step in steps),
        -sum(rank.record.format == other.record.format for rank, other in pairs),
    )


def _content(recording: GivenRecording) -> str:
    return recording.ranks[0].record.file_digest


def _explain(fit: tuple[float, ...], better: tuple[float, ...]) -> str:
    return next(reason for reason, own, other in zip(_REASONS, fit, better, strict=True) if own != other)


def _conflict(
    one: GivenRecording, other: GivenRecording, rivals: dict[GivenRecording, Claims], reason: str
) -> StepConflict:
    rank = min(rank for rank, _ in rivals[other])
    steps = sorted((key for of_rank, key in rivals[other] if of_rank == rank), key=lambda key: key.order)
    return StepConflict(one, other, rank, steps, reason)


def _is_same_time(one: GivenRecording, other: GivenRecording) -> bool:
    """Return whether two recordings state wall clocks that overlap: one execution was recorded twice."""
    ranges = one.utc_range, other.utc_range
    return None not in ranges and time_apart(*ranges) <= RESTART_NS
