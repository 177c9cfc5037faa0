"""One step of several ranks on one clock, and the tracks of a timeline: one shows one slice at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jitter.analysis.diagnosis.model import StepAnswer
from jitter.analysis.metrics.collective_calls import COLUMNS, UNKNOWN, match_calls
from jitter.analysis.metrics.step_metrics import StepMetrics
from jitter.api import Lake
from jitter.core.errors import UsageError
from jitter.core.formatting import format_numbers
from jitter.core.schema import HOST
from jitter.core.step_key import StepKey
from jitter.lake.host_events import read_host_events
from jitter.lake.records import records_by_step
from jitter.lake.step_reader import read_step


def assign_tracks(spans: Iterable[tuple[int, int]]) -> list[int]:
    """Assign each span (start, end) to the first track that is free at its start.

    `spans` come in any order; the result has the track of each span, from 0.
    """
    given = list(spans)
    free_from: list[int] = []
    tracks = [0] * len(given)
    for number in sorted(range(len(given)), key=lambda n: given[n]):
        start, end = given[number]
        track = next((track for track, free in enumerate(free_from) if free <= start), len(free_from))
        if track == len(free_from):
            free_from.append(end)
        free_from[track] = max(free_from[track], end)
        tracks[number] = track
    return tracks


class Wait(NamedTuple):
    """A rank's wait in a collective for its last rank. Times in ns on the rank's clock."""

    start_ns: int
    end_ns: int
    last_rank: int


@dataclass(frozen=True)
class RankStep:
    """One step of one rank. Times in ns on the rank's clock; `zero_ns` is the reference common to all ranks."""

    rank: int
    host: str | None
    device: int | None
    main_stream: int | None
    zero_ns: int
    activities: list[dict[str, Any]]
    """Rows of the lake, in launch order."""
    metrics: list[dict[str, Any]]
    """Rows of `StepMetrics.rows`, by position; copies and fills have none."""
    calls: list[dict[str, Any]]
    """Synchronizing calls, data loading and long operations: rows of `schema.HOST`."""
    step_start_ns: int
    step_end_ns: int | None
    """None: the marker has no end."""
    waits: list["Wait"]


class AlignedStep:
    """One step of some ranks, aligned."""

    def __init__(self, lake: Lake, key: StepKey, ranks: Sequence[int]) -> None:
        """Raise `UsageError` if a rank lacks the step or the clocks of the ranks cannot be aligned."""
        self._lake = lake
        self.key = key
        self._held = records_by_step(lake.sources)[key]
        self.ranks = sorted(set(ranks))
        missing = [rank for rank in self.ranks if rank not in self._held]
        if missing:
            raise UsageError(f"{lake.root}: {key} has no rank {missing[0]}", f"it has {format_numbers(self._held)}")
        measured = lake.metrics(key)
        self._rows = measured.rows
        self._zeros, self.method = self._shared(measured)
        """The common reference on each rank's clock, and the alignment method."""

    def of(self, rank: int) -> RankStep:
        """Read one rank's step."""
        record = self._held[rank].record
        rows = self._rows.filter(pc.equal(self._rows["rank"], rank)).sort_by("position")
        return RankStep(
            rank,
            record.host,
            record.device,
            record.main_stream,
            self._zeros[rank],
            read_step(self._lake.root, self.key, self._held, ranks=[rank]).table.to_pylist(),
            rows.to_pylist(),
            self._calls(rank).to_pylist(),
            self._held[rank].step.start_ns,
            self._held[rank].step.end_ns,
            self._waits.get(rank, []),
        )

    @cached_property
    def _waits(self) -> dict[int, list[Wait]]:
        """The waits of each rank in collectives of which all ranks were recorded."""
        read = read_step(self._lake.root, self.key, self._held, COLUMNS)
        calls = match_calls(read)
        waits_of_rank: dict[int, list[Wait]] = {}
        columns = (calls.kernels.call, calls.kernels.rank, calls.kernels.start_ns, calls.kernels.end_ns)
        for call, place, start_ns, end_ns in zip(*(column.tolist() for column in columns), strict=True):
            rank, last_rank, time_ns = read.ranks[place], int(calls.last_rank[call]), int(calls.time_ns[call])
            if UNKNOWN not in (last_rank, time_ns) and rank != last_rank and end_ns - time_ns > start_ns:
                waits_of_rank.setdefault(rank, []).append(Wait(start_ns, end_ns - time_ns, last_rank))
        return waits_of_rank

    def earliest_ns(self) -> int:
        """Return the start of the first event of all ranks, in ns relative to the reference."""
        candidates_ns: list[int] = []
        for rank in self.ranks:
            read = read_step(self._lake.root, self.key, self._held, ["start_ns", "launch_start_ns"], [rank]).table
            starts = [read["start_ns"], read["launch_start_ns"], self._calls(rank)["start_ns"]]
            candidates_ns.append(self._held[rank].step.start_ns - self._zeros[rank])
            candidates_ns += [
                first - self._zeros[rank] for column in starts if (first := pc.min(column).as_py()) is not None
            ]
        return min(candidates_ns)

    def _shared(self, measured: StepMetrics) -> tuple[dict[int, int], str]:
        cohorts = {self._lake.cohorts[rank] for rank in self.ranks}
        if len(cohorts) > 1:
            raise UsageError(
                f"{self._lake.root}: ranks {format_numbers(self.ranks)} are of several cohorts: no common clock",
                "choose ranks of one cohort with --ranks",
            )
        moment = measured.alignments[cohorts.pop()]
        moments = moment.moments_ns
        if len(self.ranks) == 1:
            return {rank: moments.get(rank, self._held[rank].step.start_ns) for rank in self.ranks}, "its own clock"
        unaligned = [rank for rank in self.ranks if rank not in moments]
        if unaligned:
            raise UsageError(
                f"{self._lake.root}: {self.key}: the clock of rank {unaligned[0]} cannot be aligned "
                "(no collective that all ranks leave together, or its recording ends before it)",
                "choose one rank with --ranks",
            )
        return (
            moments,
            "the last collective that all ranks leave together" if moment.method == "collective" else moment.method,
        )

    def _calls(self, rank: int) -> pa.Table:
        rows = read_host_events(self._lake.root, self._held[rank].record, HOST.names)
        if rows is None:
            return HOST.empty_table()
        epoch = pc.is_null(rows["epoch"]) if self.key.epoch is None else pc.equal(rows["epoch"], self.key.epoch)
        return rows.filter(pc.and_(pc.equal(rows["step"], self.key.step), epoch))


def choose_ranks(lake: Lake, step: StepAnswer) -> list[int]:
    """Return min rank and max rank of a step and their neighbours; the first four ranks if neither is known.

    Only ranks of the max rank's cohort: the clocks of different cohorts cannot be aligned.
    """
    ends = [rank for rank in (step.max_rank, step.min_rank) if rank is not None]
    left_out = {rank for index in lake.kernel_indices(step.key) for rank in index.left_out}
    ends = [rank for rank in ends if rank not in left_out]
    whole = [rank for rank in lake.ranks_of(step.key) if rank not in left_out]
    if not whole:
        return lake.ranks_of(step.key)[:1]
    cohort = lake.cohorts[(ends or whole)[0]]
    present = [rank for rank in whole if lake.cohorts[rank] == cohort]
    places = {
        place for rank in ends if rank in present for place in range(present.index(rank) - 1, present.index(rank) + 2)
    }
    return [present[place] for place in sorted(places) if 0 <= place < len(present)] or present[:4]
