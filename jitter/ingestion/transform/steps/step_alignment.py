"""Step alignment of ranks without markers: the offset that gives the same step the same number on two ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jitter.core.errors import UnknownRankError
from jitter.ingestion.transform.steps.repetition import Repetition


@dataclass(frozen=True)
class RankRepetition:
    """The repetition of one rank, with its clock and collectives.

    `utc_offset_ns` added to the times gives UTC (None: unknown); ranks with equal `clock` share one clock exactly.
    `collectives_before` counts, for each repetition, the collectives launched before it. `collectives` is a digest of
    the sequence of collectives of the whole capture, None if there are none.
    """

    label: str
    clock: str
    utc_offset_ns: int | None
    repetition: Repetition
    collectives_before: tuple[int, ...]
    collectives: str | None


def find_rotation(names: Sequence[str], of: Sequence[str]) -> int | None:
    """Return by how many kernels `names` is a rotation of `of`; None if it is none."""
    if len(names) != len(of):
        return None
    ids = {name: number for number, name in enumerate(dict.fromkeys(of))}
    if not ids.keys() >= set(names):
        return None
    circle = np.array([ids[name] for name in of] * 2, dtype=np.int64)
    wanted = np.array([ids[name] for name in names], dtype=np.int64)
    hits = np.flatnonzero(circle[: len(of)] == wanted[0])
    return next((int(hit) for hit in hits if np.array_equal(circle[hit : hit + len(of)], wanted)), None)


def step_offset(reference: RankRepetition, other: RankRepetition) -> int:
    """Return the number to add to a repetition's index on `other` to get its index on `reference`.

    Uses the clock they share, else wall clock, else an equal sequence of collectives. Raises `UnknownRankError` if
    none of these relates the two ranks.
    """
    shift_ns = _shift(reference, other)
    if shift_ns is not None:
        return _offset_by_time(reference, other, shift_ns)
    if reference.collectives is not None and reference.collectives == other.collectives:
        counts = {count: position for position, count in enumerate(reference.collectives_before)}
        found = {counts[count] - position for position, count in enumerate(other.collectives_before) if count in counts}
        if len(found) == 1:
            return found.pop()
    raise UnknownRankError(
        f"{other.label}: has no step markers, and its repeating steps cannot be aligned with those of "
        f"{reference.label}: no wall clock was recorded and their sequences of collectives differ",
        "mark the steps (an NVTX range `step N`) or give --step-pattern",
    )


def _shift(reference: RankRepetition, other: RankRepetition) -> int | None:
    """Return the ns to add to a time of `other` to get the reference's time; None if no clock relates them."""
    if reference.clock == other.clock:
        return 0
    if reference.utc_offset_ns is None or other.utc_offset_ns is None:
        return None
    return other.utc_offset_ns - reference.utc_offset_ns


def _offset_by_time(reference: RankRepetition, other: RankRepetition, shift_ns: int) -> int:
    """Match each start to the nearest start of the reference, at most a quarter of a period away."""
    reference_starts = np.array(reference.repetition.starts_ns)
    starts = np.array(other.repetition.starts_ns) + shift_ns
    period_ns = float(np.median(np.diff(reference_starts)))
    # steps before and after the reference's recording are extrapolated with its period
    positions = np.interp(starts, reference_starts, np.arange(reference_starts.size))
    positions = np.where(starts < reference_starts[0], (starts - reference_starts[0]) / period_ns, positions)
    positions = np.where(
        starts > reference_starts[-1],
        reference_starts.size - 1 + (starts - reference_starts[-1]) / period_ns,
        positions,
    )
    differences = positions - np.arange(starts.size)
    found = round(float(np.median(differences)))
    if abs(float(np.median(differences)) - found) > 0.25:
        raise UnknownRankError(
            f"{other.label}: has no step markers, and by wall clock its repeating steps fall between those of "
            f"{reference.label}",
            "mark the steps (an NVTX range `step N`) or give --step-pattern",
        )
    return found
