"""Evidence from the scheduling of threads: launching threads that the system moves between cores."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_time
from jitter.core.schema import MIGRATION, OFF_CPU
from jitter.core.step_key import StepKey
from jitter.lake.host_events import read_host_events
from jitter.lake.records import RankStepRecord

_LIMITS: Final = THRESHOLDS.evidence


class Recordings(Protocol):
    """The source of the evidence; `jitter.Lake` has these members."""

    root: Path

    def ranks_of(self, key: StepKey) -> list[int]:
        """Return the ranks that recorded this step."""

    def record_of(self, key: StepKey, rank: int) -> RankStepRecord:
        """Return the record of one rank in one step."""


def describe_migrations(recordings: Recordings, rank: int, steps: Sequence[StepKey]) -> str | None:
    """Say how often a rank's launching threads moved to another core in these steps, where that is unusual.

    None where the recording has no scheduling, or the rank moved about as often as the others. Raises `LakeError` if a
    file of the lake is missing or damaged.
    """
    own = _moves(recordings, rank, steps)
    if own is None or own[0] < _LIMITS.min_migrations:
        return None
    others = sorted(
        {other for key in steps for other in recordings.ranks_of(key)} - {rank}, key=lambda o: abs(o - rank)
    )
    known = [
        found
        for other in others[: _LIMITS.max_migration_peers]
        if (found := _moves(recordings, other, steps)) is not None
    ]
    told = f"its launching threads moved to another CPU core {own[0]:.1f} times per step"
    away = f", and were off the CPU for {format_time(own[1])} at that"
    if not known:
        return f"{told}{away}"
    usual = float(median(moves for moves, _ in known))
    if own[0] < _LIMITS.migration_ratio * usual:
        return None
    return f"{told} (the other ranks' {usual:.1f}){away}"


def _moves(recordings: Recordings, rank: int, steps: Sequence[StepKey]) -> tuple[float, float] | None:
    """Return moves to another core, and the time off the CPU in them, per step; None if scheduling is not recorded."""
    held = [(key, recordings.record_of(key, rank).record) for key in steps if rank in recordings.ranks_of(key)]
    if not held:
        return None
    by_source = {record.digest: record for _, record in held}
    moves, away_ns, has_any = 0, 0, False
    for digest, record in by_source.items():
        rows = read_host_events(recordings.root, record, ("name", "epoch", "step", "start_ns", "end_ns"))
        if rows is None:
            continue
        has_any |= bool(pc.any(pc.is_in(rows["name"], pa.array([MIGRATION, OFF_CPU]))).as_py())
        rows = rows.filter(pc.equal(rows["name"], MIGRATION))
        wanted = {(key.epoch, key.step) for key, own in held if own.digest == digest}
        columns = (rows[name].to_pylist() for name in ("epoch", "step", "start_ns", "end_ns"))
        for epoch, step, start_ns, end_ns in zip(*columns, strict=True):
            if (epoch, step) in wanted:
                moves += 1
                away_ns += end_ns - start_ns
    # without any row of it the recording may lack the scheduling: then nothing is known
    return (moves / len(held), away_ns / len(held)) if has_any else None
