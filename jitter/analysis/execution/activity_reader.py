"""A step's times as an analysis reads them: from the lake once, and later from a temporary file."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import Any, Final
from weakref import finalize

import numpy as np

from jitter.analysis.execution.step_times import IdenticalRanks, StepActivities
from jitter.core.numeric.arrays import IntTimes, begins_of, is_unknown, pieces_of, unknown_value
from jitter.core.step_key import StepKey
from jitter.lake.records import RankStepRecord
from jitter.lake.step_reader import read_step
from jitter.lake.times import TIMES, ActivityTimes, TimesReader, activity_times

_ROWS_AT_ONCE: Final = 1 << 18
"""Rows of ranks that are read together: more would only take more memory."""


class ActivityReader:
    """Reads the ranks of a step, in groups that did the same. Thread-safe.

    An analysis reads each step several times. Those of a large run come from a temporary file from the second time on,
    where the times of a step's ranks lie in one piece; the caller keeps those of a small run in memory.
    """

    def __init__(
        self,
        root: Path,
        held: Mapping[StepKey, Mapping[int, RankStepRecord]],
        group: Callable[[StepKey, StepActivities], Iterable[IdenticalRanks]],
        *,
        is_large: bool,
    ) -> None:
        """Read steps of `held`; `group` divides ranks with equal sequences of kernels and kinds."""
        self._root, self._held, self._group, self._times = root, held, group, TimesReader(root)
        self._file = TemporaryFile(buffering=0) if is_large else None  # noqa: SIM115  # open as long as the reader
        if self._file is not None:
            finalize(self, self._file.close)
        self._kept: dict[StepKey, list[tuple[IdenticalRanks, int]]] = {}
        """The groups of steps that were read before, without times, and where these are in the file."""
        self._lock = Lock()

    def of_step(self, key: StepKey) -> list[IdenticalRanks]:
        """Return a step's ranks, together for ranks that did the same.

        Raises `LakeError` if a rank's file is missing or damaged.
        """
        if key in self._kept:
            return [self._with_times(group, at) for group, at in self._kept[key]]
        groups = [group for part in self._read(key) for group in self._group(key, part)]
        if self._file is not None:
            with self._lock, suppress(OSError):  # a full disk: the ranks' files are read again
                places = []
                for group in groups:
                    nothing = group.times[:0].copy()  # a view would hold the step's times
                    places.append((replace(group, times=nothing), self._file.seek(0, os.SEEK_END)))
                    group.times.tofile(self._file)
                self._kept[key] = places
        return groups

    def _with_times(self, group: IdenticalRanks, at: int) -> IdenticalRanks:
        assert self._file is not None
        shape = len(group.ranks), *group.times.shape[1:]
        with self._lock:
            self._file.seek(at)
            times: Any = np.fromfile(self._file, group.times.dtype, int(np.prod(shape)))
        return replace(group, times=times.reshape(shape))

    def _read(self, key: StepKey) -> list[StepActivities]:
        held = dict(sorted(self._held[key].items()))
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
