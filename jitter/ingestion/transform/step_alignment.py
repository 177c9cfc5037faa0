"""Brings ranks without step markers into phase: the same number for the same step on all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jitter.core.errors import UnknownRankError
from jitter.ingestion.transform.repetition import Repetition


@dataclass(frozen=True)
class RankRepetition:
    """One rank's repetition with what can place it in time.

    `utc_offset_ns` added to its times gives UTC (None: unknown); ranks of one `clock` share their clock exactly.
    `collectives_before` counts, for each repetition, the collectives launched before it; `collectives` is a digest
    of the whole sequence of collectives, None where there are none.
    """

    label: str
    clock: str
    utc_offset_ns: int | None
    repetition: Repetition
    collectives_before: tuple[int, ...]
    collectives: str | None


def find_rotation(names: Sequence[str], of: Sequence[str]) -> int | None:
    """By how many kernels `names` is `of` begun later, as a circle: None where they are different programs."""
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
    """Add this to a repetition's position on `other` to get its position on `reference`.

    By the clock they share, else by wall clock, else because both recorded the same whole sequence of collectives.
    Raises `UnknownRankError` with the reason where none of these tells.
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
        f"{other.label}: has no step markers, and its repeating steps cannot be brought into phase with "
        f"{reference.label}: no wall clock was recorded and their sequences of collectives differ",
        "mark the steps (an NVTX range `step N`) or give --step-pattern",
    )


def _shift(reference: RankRepetition, other: RankRepetition) -> int | None:
    """Add this to a time of `other` to get the reference's; None where no clock relates them."""
    if reference.clock == other.clock:
        return 0
    if reference.utc_offset_ns is None or other.utc_offset_ns is None:
        return None
    return other.utc_offset_ns - reference.utc_offset_ns


def _offset_by_time(reference: RankRepetition, other: RankRepetition, shift_ns: int) -> int:
    """Match each start to the nearest of the reference's, by a quarter of a period at most."""
    theirs = np.array(reference.repetition.starts_ns)
    mine = np.array(other.repetition.starts_ns) + shift_ns
    period_ns = float(np.median(np.diff(theirs)))
    # outside what the reference recorded, its steps are thought on at its pace
    positions = np.interp(mine, theirs, np.arange(theirs.size))
    positions = np.where(mine < theirs[0], (mine - theirs[0]) / period_ns, positions)
    positions = np.where(mine > theirs[-1], theirs.size - 1 + (mine - theirs[-1]) / period_ns, positions)
    differences = positions - np.arange(mine.size)
    found = round(float(np.median(differences)))
    if abs(float(np.median(differences)) - found) > 0.25:
        raise UnknownRankError(
            f"{other.label}: has no step markers, and by wall clock its repeating steps fall between those of "
            f"{reference.label}",
            "mark the steps (an NVTX range `step N`) or give --step-pattern",
        )
    return found
