"""A step's activities, read from the files of its ranks."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from jitter.analysis.execution.step_times import StepActivities
from jitter.core.numeric.arrays import IntTimes, begins_of, is_unknown, pieces_of, unknown_value
from jitter.core.step_key import StepKey
from jitter.lake.records import RankStepRecord
from jitter.lake.step_reader import read_step
from jitter.lake.times import TIMES, ActivityTimes, TimesReader, activity_times

_ROWS_AT_ONCE: Final = 1 << 18
"""Rows of ranks that are read together: more would only take more memory."""


class ActivityReader:
    """Reads the activities of a step's ranks."""

    def __init__(self, root: Path) -> None:
        self._root, self._times = root, TimesReader(root)

    def of_step(self, key: StepKey, held: Mapping[int, RankStepRecord]) -> list[StepActivities]:
        """Return ranks that have a step, together for ranks with equal sequences of kernels and kinds.

        `held` is the record that has the step, by rank. Raises `LakeError` if a rank's file is missing or damaged.
        """
        held = dict(sorted(held.items()))
        times_of_rank = dict(zip(held, self._times.read(list(held.values())), strict=True))
        ranks = [rank for rank, times in times_of_rank.items() if times is None]
        rows_of_ranks = [held[rank].step.rows for rank in ranks]
        for some in pieces_of(begins_of(rows_of_ranks), _ROWS_AT_ONCE) if ranks else []:
            rows = read_step(self._root, key, held, (*TIMES, "kind"), ranks[some])
            start_ns = np.array([held[rank].step.start_ns for rank in rows.ranks], np.int64)
            times, kinds = activity_times(rows.table, start_ns[rows.of_rank])
            for rank, (first, last) in zip(rows.ranks, pairwise(rows.bounds.tolist()), strict=True):
                times_of_rank[rank] = ActivityTimes(times[:, first:last], kinds[first:last])
        alike: dict[tuple[str, bytes], list[tuple[int, IntTimes]]] = {}
        for rank, read in times_of_rank.items():
            assert read is not None
            alike.setdefault((held[rank].step.sequence, read.kinds.tobytes()), []).append((rank, read.times))
        return [
            StepActivities(
                np.array([rank for rank, _ in members], np.int64),
                sequence,
                np.frombuffer(kinds, np.int8),
                np.array([held[rank].step.start_ns for rank, _ in members], np.int64),
                _stack([times for _, times in members]),
            )
            for (sequence, kinds), members in alike.items()
        ]


def _stack(times: list[IntTimes]) -> IntTimes:
    """Return the times of ranks, (4, activities) each, as one array of the widest type."""
    whole: IntTimes | None = times[0].base
    if (
        whole is not None
        and whole.shape == (len(times), *times[0].shape)
        and all(rank_times.base is whole for rank_times in times)
    ):
        return whole  # all ranks that were read together
    stacked: Any = np.stack(times)
    for stacked_times, rank_times in zip(stacked, times, strict=True):
        if rank_times.dtype != stacked.dtype:
            stacked_times[is_unknown(rank_times)] = unknown_value(stacked.dtype)
    widest: IntTimes = stacked
    return widest
