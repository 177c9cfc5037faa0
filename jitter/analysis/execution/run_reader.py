"""The recorded rows of a run as the run model reads them, from a lake."""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise, starmap
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from jitter.analysis.alignment.kernel_index import KernelIndex, RankSequence
from jitter.analysis.alignment.program import MAIN, NO_STREAM, Example, number_streams
from jitter.analysis.collectives.matching import GROUP_COLUMNS, Group, read_groups
from jitter.analysis.execution.step_times import (
    HostCall,
    IdenticalRanks,
    StepActivities,
    StepSyncCalls,
    group_identical_ranks,
)
from jitter.analysis.metrics.collective_calls import COLUMNS_OF_ALL
from jitter.analysis.metrics.recorded_sizes import SIZE_COLUMNS, RecordedSizes
from jitter.core.arrow import to_list
from jitter.core.grouping import by_key
from jitter.core.names.kernels import HOST_BARRIER, KINDS, SYNC, copy_direction, host_memory, uncounted_name
from jitter.core.numeric.arrays import Floats, Ints, IntTimes, begins_of, is_unknown, joined, pieces_of, unknown_value
from jitter.core.step_key import StepKey
from jitter.lake.host_events import HostEvents, SyncCalls, step_bounds
from jitter.lake.rank_places import RankPlace, assign_nodes, first_device
from jitter.lake.records import RankStepRecord, SourceRecord, batch_size, kind_of_step
from jitter.lake.step_reader import StepColumns, read_step
from jitter.lake.times import TIMES, ActivityTimes, TimesReader, activity_times

_ROWS_AT_ONCE: Final = 1 << 18
"""Rows of ranks that are read together: more would only take more memory."""


class ActivityReader:
    """Reads the activities of a step's ranks."""

    def __init__(self, root: Path) -> None:
        self._root, self._times = root, TimesReader(root)

    def read(self, held: Mapping[int, RankStepRecord]) -> list[StepActivities]:
        """Return steps of ranks, together those of equal sequences of kernels and kinds.

        `held` are their records by any ascending numbers, which the result has for ranks. Raises `LakeError` if a
        rank's file is missing or damaged.
        """
        alike: dict[tuple[str, bytes], list[tuple[int, IntTimes]]] = {}
        for at, read in self._read(held).items():
            alike.setdefault((held[at].step.sequence, read.kinds.tobytes()), []).append((at, read.times))
        return [
            StepActivities(
                np.array([at for at, _ in members], np.int64),
                sequence,
                np.frombuffer(kinds, np.int8),
                np.array([held[at].step.start_ns for at, _ in members], np.int64),
                _stack([times for _, times in members]),
            )
            for (sequence, kinds), members in alike.items()
        ]

    def times(self, held: Sequence[RankStepRecord]) -> IntTimes:
        """Return, (ranks, 4, activities), the times of steps of ranks that ran as many activities; see `read`."""
        return _stack([read.times for read in self._read(dict(enumerate(held))).values()])

    def _read(self, held: Mapping[int, RankStepRecord]) -> dict[int, ActivityTimes]:
        """Return the times and kinds of steps of ranks, from the parquet files where the file of times lacks them."""
        read = dict(zip(held, self._times.read(list(held.values())), strict=True))
        times_of = {at: times for at, times in read.items() if times is not None}
        for key, numbers in by_key((_key_of(held[at]), at) for at in held if at not in times_of).items():
            records = {_rank_of(held[at]): held[at] for at in numbers}
            for some in pieces_of(begins_of([held[at].step.rows for at in numbers]), _ROWS_AT_ONCE):
                rows = read_step(self._root, key, records, (*TIMES, "kind"), list(records)[some])
                start_ns = np.array([records[rank].step.start_ns for rank in rows.ranks], np.int64)
                times, kinds = activity_times(rows.table, start_ns[rows.of_rank])
                for at, (first, last) in zip(numbers[some], pairwise(rows.bounds.tolist()), strict=True):
                    times_of[at] = ActivityTimes(times[:, first:last], kinds[first:last])
        return {at: times_of[at] for at in held}

    def columns_of_step(self, held: Mapping[int, RankStepRecord]) -> StepColumns:
        """Return kinds, starts and ends of all rows of a step's ranks, as `read_step` does."""
        ranks, rows = zip(*((rank, held[rank].step.rows) for rank in sorted(held)), strict=True)
        begins = begins_of(rows)
        (start_ns, end_ns), kinds = np.empty((2, begins[-1]), np.int64), np.empty(begins[-1], np.int8)
        for group in self.read(dict(sorted(held.items()))):
            at = begins[np.searchsorted(ranks, group.ranks)][:, None] + np.arange(len(group.kind))
            start_ns[at], end_ns[at] = (group.times[:, column] + group.zero_ns[:, None] for column in range(2))
            kinds[at] = group.kind
        columns = pa.DictionaryArray.from_arrays(kinds, list(KINDS)), start_ns, end_ns
        return StepColumns(pa.table(dict(zip(COLUMNS_OF_ALL, columns, strict=True))), ranks, rows)


def _key_of(held: RankStepRecord) -> StepKey:
    return StepKey(held.step.epoch, held.step.step)


def _rank_of(held: RankStepRecord) -> int:
    assert held.record.rank is not None
    return held.record.rank


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


class RunSyncCalls(NamedTuple):
    """The host calls by threads that launch, recording after recording, by start; arrays are (calls,)."""

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    name: Ints
    """Position in `names`."""
    names: tuple[HostCall, ...]
    of_recording: Mapping[str, Mapping[tuple[int | None, int], tuple[int, int]]]
    """By digest, of recordings that have any, and by step where its calls begin and end."""
    last_come_ns: Mapping[str, Ints]
    """By digest, (barriers,), when the last rank has come to each: see `find_last_come`."""

    def of_step(self, held: Mapping[int, RankStepRecord]) -> StepSyncCalls:
        """Return the calls of steps of ranks; `held` are their records by rank, or by other numbers in place of it."""
        where = [
            (rank, *of_steps[step_record.step.epoch, step_record.step.step])
            for rank, step_record in sorted(held.items())
            if (of_steps := self.of_recording.get(step_record.record.digest)) is not None
        ]
        ranks, first, last = np.array(where, np.int64).reshape(-1, 3).T.copy()
        return StepSyncCalls(ranks, first, last, *self[:5])


def divide_sync_calls(
    records: Mapping[str, SourceRecord],
    calls: Mapping[str, SyncCalls],
    threads: Mapping[int, Ints],
) -> RunSyncCalls:
    """Return which calls each step of each recording has.

    `records` and `calls` have the digests of recordings as keys. `threads` has the launching threads of each rank:
    calls of other threads are left out, as one that pins memory, or a watchdog, delays no launch. A barrier is two
    calls, the rank comes and it waits, until the last one has come: what it takes then is time of the host.
    """
    last_come_ns = find_last_come(records, calls)
    of_recording = dict[str, dict[tuple[int | None, int], tuple[int, int]]]()
    numbers, parts, count = dict[tuple[str, int], int](), list[list[Ints]](), 0
    for digest, sync_calls in calls.items():
        rank = records[digest].rank
        if sync_calls.names and rank is not None:
            by_them = np.flatnonzero(np.isin(sync_calls.thread, threads[rank]))
            rows = np.repeat(by_them, 1 + sync_calls.is_barrier[by_them])
            comes = sync_calls.is_barrier[rows] & (np.diff(rows, prepend=-1) > 0)
            kinds = np.where(comes, HOST_BARRIER, SYNC).tolist()
            made = zip((sync_calls.names[row] for row in rows.tolist()), kinds, strict=True)
            name = np.array([numbers.setdefault(call, len(numbers)) for call in made], np.int64)
            end_ns = sync_calls.end_ns.copy()
            end_ns[sync_calls.is_barrier] = last_come_ns[digest]
            parts.append([sync_calls.start_ns[rows], end_ns[rows], sync_calls.thread[rows], name])
            begins, keys = step_bounds(records[digest])
            bounds = pairwise((count + np.searchsorted(parts[-1][0], begins)).tolist())
            of_recording[digest] = dict(zip(keys, bounds, strict=True))
            count += len(parts[-1][0])
    start_ns, end_ns, thread, name = (joined(part[column] for part in parts) for column in range(4))
    return RunSyncCalls(start_ns, end_ns, thread, name, tuple(starmap(HostCall, numbers)), of_recording, last_come_ns)


def find_last_come(records: Mapping[str, SourceRecord], calls: Mapping[str, SyncCalls]) -> dict[str, Ints]:
    """Return by digest, (barriers,), when the last rank has come to each barrier of a recording, on its clock.

    That rank is in the barrier for as long as the barrier takes: the shortest time of any rank in the same barrier of
    the same step. Of what one rank alone recorded nothing tells when others came: then it is the end. Arguments are as
    in `divide_sync_calls`.
    """
    times_ns: dict[object, list[int]] = {}
    barriers_of: dict[str, list[object]] = {}
    for digest, sync_calls in calls.items():
        begins, keys = step_bounds(records[digest])
        rows = np.flatnonzero(sync_calls.is_barrier)
        steps = np.searchsorted(begins[:-1], sync_calls.start_ns[rows], side="right") - 1
        barriers, count = list[object](), Counter[tuple[int, str]]()
        for step, row in zip(steps.tolist(), rows.tolist(), strict=True):
            name = sync_calls.names[row]
            barriers.append((keys[step] if step >= 0 else None, name, count[step, name]))
            count[step, name] += 1
        for barrier, ns in zip(barriers, (sync_calls.end_ns - sync_calls.start_ns)[rows].tolist(), strict=True):
            times_ns.setdefault(barrier, []).append(ns)
        barriers_of[digest] = barriers
    took_ns = {barrier: min(of_ranks) if len(of_ranks) > 1 else 0 for barrier, of_ranks in times_ns.items()}
    return {
        digest: sync_calls.end_ns[sync_calls.is_barrier]
        - np.array([took_ns[barrier] for barrier in barriers_of[digest]], np.int64)
        for digest, sync_calls in calls.items()
    }


_ROWS_KEPT = 2_000_000
"""Rows of a run whose steps stay in memory once read: some 80 bytes each, with their self times."""
_ROWS_TOGETHER = 4_000
"""Rows of steps that are read together: larger ones are read on several threads."""


class LaunchShapes(NamedTuple):
    """Kernel names and launch sizes of one rank's rows in a step; arrays are (rows,), in launch order."""

    name: Ints
    """The kernel's name as a number, the same in all steps."""
    threads: Floats
    """Threads of its launch; NaN where the launch's shape is unknown."""


class KernelCounts(NamedTuple):
    """Kernels of the steps of some ranks; arrays are (steps, ranks), NaN where a rank lacks a step."""

    recorded: Floats
    """Compute kernels and collectives."""
    lost: Floats
    """Launches whose kernel was not recorded."""


class RunReader:
    """Reads the rows of a run's steps. Thread-safe.

    An analysis reads each step several times. Those of a small run stay in memory. Of those of a large one it stays
    which ranks did the same; their times are read again.
    """

    def __init__(
        self,
        root: Path,
        records: Mapping[StepKey, Mapping[int, RankStepRecord]],
        indices: Callable[[StepKey], Sequence[KernelIndex]],
        steps: Sequence[StepKey],
        recorded_sizes: RecordedSizes | None = None,
    ) -> None:
        self._sizes = recorded_sizes
        self._root, self.records, self.indices = root, records, indices
        """`records` are those of all steps of the lake; `indices` gives the alignment of each cohort in a step."""
        self.steps = list(steps)
        self._position = {key: at for at, key in enumerate(self.steps)}
        rows = [sum(step_record.step.rows for step_record in records[key].values()) for key in self.steps]
        self.rows, self.largest_step = sum(rows), max(rows, default=0)
        """Rows of all steps and ranks, and of the largest step."""
        self.is_small = self.rows <= _ROWS_KEPT
        """Whether all steps may stay in memory."""
        self._activities = ActivityReader(root)
        self._members: dict[int, tuple[Sequence[KernelIndex], list[RankSequence]]] = {}
        """By the identity of a step's indices, which most steps share."""
        self._kept: dict[StepKey, list[tuple[IdenticalRanks, slice]]] = {}
        """The groups of steps that were read before: their rows in the groups of all steps that were read together.

        Of a large run without times.
        """
        self._hosts: dict[str, HostEvents] = {}
        self._numbers: dict[str, int] = {}
        """Of kernels' names: the same in all steps."""
        self.origin_ns: dict[int, int] = {}
        """Each rank's zero: its first step's begin, on the clock of the recording that has it."""
        self._first_records: dict[int, SourceRecord] = {}
        for key in self.steps:
            for rank in records[key].keys() - self.origin_ns.keys():
                self.origin_ns[rank] = records[key][rank].step.start_ns
                self._first_records[rank] = records[key][rank].record

    @cached_property
    def sources(self) -> list[SourceRecord]:
        """The recordings of the lake."""
        records = [step_record.record for of_step in self.records.values() for step_record in of_step.values()]
        return list({record.digest: record for record in records}.values())

    def kind(self, key: StepKey) -> str:
        """Return the kind of a step: `train`, `prefill`, `decode`, …."""
        return kind_of_step(self.records[key].values())

    def batch_size(self, key: StepKey) -> float:
        """Return how much a step works on, as its markers state; NaN where they do not."""
        return batch_size(self.records[key].values())

    def origins(self, key: StepKey) -> dict[int, int]:
        """Return each rank's origin on the clock of the recording that has this step.

        Clocks of a rank's several recordings are related by UTC, where the profiler recorded it.
        """
        return {rank: self._origin(held) for rank, held in self.records[key].items()}

    def origin(self, key: StepKey, rank: int) -> int:
        """Return one rank's origin, as `origins` does."""
        return self._origin(self.records[key][rank])

    def _origin(self, held: RankStepRecord) -> int:
        rank = _rank_of(held)
        offset, first_offset = held.record.utc_offset_ns, self._first_records[rank].utc_offset_ns
        return self.origin_ns[rank] + (0 if offset is None or first_offset is None else first_offset - offset)

    def beginnings(self, key: StepKey) -> dict[int, float]:
        """Return by rank when its step marker begins, ns from its origin; only ranks whose steps have markers."""
        origins, held = self.origins(key), self.records[key]
        return {
            rank: float(step_record.step.start_ns - origins[rank])
            for rank, step_record in held.items()
            if not step_record.record.has_guessed_steps
        }

    def kernel_counts(self, ranks: Sequence[int], keys: Sequence[StepKey] | None = None) -> KernelCounts:
        """Return the kernels of each of these steps (all) of these ranks, from the records."""
        steps = slice(None) if keys is None else [self._position[key] for key in keys]
        of_records, column_of = self._of_records
        of_steps = of_records[:2, steps]
        return KernelCounts(*of_steps[:, :, [column_of[rank] for rank in ranks]])

    def kernel_sequences(self, ranks: Sequence[int]) -> Floats:
        """Return, (steps, ranks), a number for each sequence of kernels; NaN where a rank lacks the step."""
        of_records, column_of = self._of_records
        sequences: Floats = of_records[2][:, [column_of[rank] for rank in ranks]]
        return sequences

    @cached_property
    def _of_records(self) -> tuple[Floats, dict[int, int]]:
        """Of each record of a step its kernels, lost kernels, and the number of its sequence; and each rank's column.

        Shape (3, steps, ranks), NaN where a rank lacks the step.
        """
        column_of = {rank: column for column, rank in enumerate(sorted(self.origin_ns))}
        of_records, numbers = np.full((3, len(self.steps), len(column_of)), np.nan), dict[str, int]()
        for at, key in enumerate(self.steps):
            ranks = sorted(self.records[key])
            records = [self.records[key][rank].step for rank in ranks]
            of_records[:, at, [column_of[rank] for rank in ranks]] = (
                [step.kernels for step in records],
                [step.launches_without_kernel for step in records],
                [numbers.setdefault(step.sequence, len(numbers)) for step in records],
            )
        return of_records, column_of

    def host(self, key: StepKey, rank: int) -> HostEvents:
        """Host activity of the rank, from the source of this step."""
        record = self.records[key][rank].record
        if record.digest not in self._hosts:
            self._hosts[record.digest] = HostEvents(self._root, record, self._sync_calls.last_come_ns[record.digest])
        return self._hosts[record.digest]

    @cached_property
    def places(self) -> dict[int, RankPlace]:
        """Host and device of each rank."""
        recorded = {rank: step_record.record for key in self.steps for rank, step_record in self.records[key].items()}
        first = first_device(list(recorded.values()))
        return {
            rank: RankPlace(record.host, None if record.device is None else record.device - first)
            for rank, record in recorded.items()
        }

    @cached_property
    def nodes(self) -> dict[int, object]:
        """The node of each rank, as far as it is known."""
        return assign_nodes(self.places)

    def gpu_models(self, key: StepKey) -> dict[int, str | None]:
        """Return the model of the GPU of each rank that has a step; None where its recording does not state it."""
        return {rank: step_record.record.gpu_model for rank, step_record in self.records[key].items()}

    def launch_shapes(self, key: StepKey, ranks: Sequence[int]) -> list[LaunchShapes]:
        """Launch shapes of the rows of a step, for each of these ranks, which must ascend."""
        axes = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
        read = read_step(self._root, key, self.records[key], ("kernel_name", *axes), ranks)
        codes, names = read.codes("kernel_name")
        # a copy from pageable memory does what one from pinned memory does
        alike = [copy_direction(text) or text if host_memory(text) else uncounted_name(text) for text in names]
        name = np.array([self._numbers.setdefault(text, len(self._numbers)) for text in alike], np.int64)[codes]
        threads = np.ones(len(name))
        for axis in axes:  # some profilers record the product of the axes alone
            threads *= np.where(read.known(axis), read.values(axis), np.nan if axis.endswith("x") else 1)
        return [LaunchShapes(name[first:last], threads[first:last]) for first, last in pairwise(read.bounds.tolist())]

    def kernel_name(self, number: int) -> str:
        """Return the name of a kernel by its number in `LaunchShapes`."""
        return list(self._numbers)[number]

    def message_sizes(self, key: StepKey, ranks: Sequence[int]) -> list[Floats]:
        """Return the message sizes, bytes, of the rows of a step, of each of these ranks, which must ascend.

        NaN where a row is no collective or states no size.
        """
        columns = ("size_bytes",) if self._sizes is None else SIZE_COLUMNS
        read = read_step(self._root, key, self.records[key], columns, ranks)
        if self._sizes is not None:
            read = self._sizes.filled(key, read)
        sizes = np.where(read.known("size_bytes"), read.values("size_bytes").astype(np.float64), np.nan)
        return [sizes[first:last] for first, last in pairwise(read.bounds.tolist())]

    def members(self, key: StepKey) -> list[RankSequence]:
        """Return the ranks that count in a step (uncut, or cut after the step's last collective), ascending."""
        indices = self.indices(key)
        if id(indices) not in self._members:
            self._members[id(indices)] = indices, sorted(member for index in indices for member in index.members)
        return self._members[id(indices)][1]

    def rank_groups(
        self, key: StepKey, wanted: Iterable[int] | None = None, *, with_times: bool = True
    ) -> list[IdenticalRanks]:
        """Return a step's ranks, or at least those `wanted`, in groups that did the same.

        Their times may be missing if they are not asked for: those of a large run then need not be read again.

        Raises `LakeError` if a rank's file is missing or damaged.
        """
        some = None if self.is_small or wanted is None else list(wanted)
        if key in self._kept:
            if self.is_small or not with_times:
                return [group.cut(rows, group.times[rows]) for group, rows in self._kept[key]]
            return [self._with_times(key, group, rows, some) for group, rows in self._kept[key]]
        keys = [key] if some is not None else self._read_together(key)
        of_steps = self._read(keys, some)
        of_key = [group.cut(rows, group.times[rows]) for group, rows in of_steps[0]]
        if some is not None:
            return of_key
        if not self.is_small:  # a view of no times would hold all of them
            every = {id(group): group for groups in of_steps for group, _ in groups}
            without = {at: replace(group, times=group.times[:0].copy()) for at, group in every.items()}
            of_steps = [[(without[id(group)], rows) for group, rows in groups] for groups in of_steps]
        self._kept.update(zip(keys, of_steps, strict=True))
        return of_key

    def _read_together(self, key: StepKey) -> list[StepKey]:
        """Return a step and the small ones that follow it: to read one takes as long as to read many of them."""
        first, keys, rows = self._position[key], [key], 0
        for other in self.steps[first:]:
            rows += sum(step_record.step.rows for step_record in self.records[other].values())
            if rows > _ROWS_TOGETHER:
                break
            if other != key and other not in self._kept:
                keys.append(other)
        return keys

    def _read(self, keys: Sequence[StepKey], wanted: Sequence[int] | None) -> list[list[tuple[IdenticalRanks, slice]]]:
        """Return the groups of ranks of steps, of all ranks or of those wanted, as parts of those of all the steps."""
        chosen = None if wanted is None else frozenset(wanted)
        held = [
            step_record
            for key in keys
            for rank, step_record in sorted(self.records[key].items())
            if chosen is None or rank in chosen
        ]
        ranks = np.array([_rank_of(step_record) for step_record in held], np.int64)
        number_of = {key: number for number, key in enumerate(keys)}
        step = np.array([number_of[_key_of(step_record)] for step_record in held], np.int64)
        records = dict(enumerate(held))
        syncs, origins = self._sync_calls.of_step(records), {at: self._origin(one) for at, one in records.items()}
        of_steps: list[list[tuple[IdenticalRanks, slice]]] = [[] for _ in keys]
        for activities in self._activities.read(records):
            for on_streams, digest in self._split_by_streams(records, activities):
                for group in group_identical_ranks(on_streams, syncs, origins, digest):
                    steps, known = step[group.ranks], replace(group, ranks=ranks[group.ranks])
                    begins = np.flatnonzero(np.diff(steps, prepend=-1)).tolist()
                    for rows in starmap(slice, pairwise([*begins, len(steps)])):
                        of_steps[steps[rows.start]].append((known, rows))
        for groups in of_steps:
            groups.sort(key=lambda part: int(part[0].ranks[part[1].start]))
        return of_steps

    def _with_times(
        self, key: StepKey, group: IdenticalRanks, rows_of_step: slice, wanted: Sequence[int] | None
    ) -> IdenticalRanks:
        """Return part of a group, or those ranks of it that are wanted, with the times of a step."""
        ranks = group.ranks[rows_of_step]
        rows = np.arange(len(ranks)) if wanted is None else np.flatnonzero(np.isin(ranks, wanted))
        held = [self.records[key][rank] for rank in ranks[rows].tolist()]
        return group.cut(rows_of_step.start + rows, self._activities.times(held) if held else group.times)

    def _split_by_streams(
        self, held: Mapping[int, RankStepRecord], activities: StepActivities
    ) -> Iterator[tuple[StepActivities, bytes]]:
        """Yield ranks that used the same streams for the same activities, with a digest of these streams.

        Where launches are recorded the program tells the streams, and the digest is empty. `held` are the records by
        the numbers that the activities have for ranks.
        """
        digests = dict.fromkeys(activities.ranks.tolist(), b"")
        without = ((_key_of(held[at]), at) for at in digests if not held[at].record.has_launches)
        for key, numbers in by_key(without).items():
            ranks = [_rank_of(held[at]) for at in numbers]
            read = read_step(self._root, key, self.records[key], ("stream",), ranks)
            streams = read.values("stream")
            for at, (first, last) in zip(numbers, pairwise(read.bounds.tolist()), strict=True):
                digests[at] = hashlib.blake2b(streams[first:last].tobytes(), digest_size=8).digest()
        for digest in dict.fromkeys(digests.values()):
            rows = np.array([digests[at] == digest for at in activities.ranks.tolist()])
            if rows.all():
                yield activities, digest
            else:
                numbers, zero_ns = activities.ranks[rows], activities.zero_ns[rows]
                yield replace(activities, ranks=numbers, zero_ns=zero_ns, times=activities.times[rows]), digest

    @cached_property
    def _sync_calls(self) -> RunSyncCalls:
        records = {
            step_record.record.digest: step_record.record
            for key in self.steps
            for step_record in self.records[key].values()
        }
        calls = {digest: HostEvents(self._root, record).calls for digest, record in records.items()}
        threads: dict[int, Ints] = {}
        for digest, sync_calls in calls.items():
            rank = records[digest].rank
            if sync_calls.names and rank is not None:
                threads[rank] = np.union1d(threads.get(rank, sync_calls.thread[:0]), sync_calls.thread)
        return divide_sync_calls(records, calls, self._launching(threads))

    def _launching(self, threads: Mapping[int, Ints]) -> dict[int, Ints]:
        """Return the `threads` of each rank that launch anything in its first step or in its last."""
        launching_threads = {rank: rank_threads[:0] for rank, rank_threads in threads.items()}
        for steps in (self.steps, self.steps[::-1]):
            waiting = {
                rank for rank, rank_threads in threads.items() if len(launching_threads[rank]) < len(rank_threads)
            }
            for key in steps:
                if not waiting:
                    break
                if not (ranks := sorted(waiting & self.records[key].keys())):
                    continue
                rows = read_step(self._root, key, self.records[key], ("launch_thread",), ranks)
                launched, is_known = rows.values("launch_thread"), rows.known("launch_thread")
                for rank, (first, last) in zip(rows.ranks, pairwise(rows.bounds.tolist()), strict=True):
                    launching = np.union1d(launching_threads[rank], launched[first:last][is_known[first:last]])
                    launching_threads[rank] = np.intersect1d(threads[rank], launching)
                waiting -= self.records[key].keys()
        return launching_threads

    def example(self, key: StepKey, rank: int) -> Example:
        """Return the activities of a rank in a step."""
        columns = ("kernel_name", "stream", "launch_thread", "collective")
        table = read_step(self._root, key, self.records[key], columns, [rank]).table
        names, streams, threads, collectives = (to_list(table[column]) for column in columns)
        group = next(group for group in self.rank_groups(key, [rank]) if rank in group.ranks.tolist())
        record = self.records[key][rank].record
        is_timed = not record.has_launches and bool((group.row >= 0).all())
        appearing = [*sorted({stream for stream in streams if stream is not None}), *streams] if is_timed else streams
        numbers = number_streams(record.main_stream, appearing)
        of_rank = self._sync_calls.of_step(self.records[key]).by(rank)
        # hosts meet one after the other, as on a stream of their own
        stream_of = {SYNC: NO_STREAM, HOST_BARRIER: max(numbers.values(), default=MAIN) + 1}
        calls = ((call.name, stream_of[call.kind], thread, None) for call, thread in of_rank)
        operations = [
            (names[row], numbers[streams[row]], threads[row], collectives[row]) if row >= 0 else next(calls)
            for row in group.row.tolist()
        ]
        times = group.times[group.ranks.tolist().index(rank)]
        example = Example(group.kind.tolist(), *map(list, zip(*operations, strict=True)))
        if is_timed:
            return example._replace(starts_ns=times[0].tolist())
        return example._replace(graphs=_graphs_on_streams(group.row, np.array(example.streams), times))

    def groups(self, key: StepKey, wanted: Collection[int] | None = None) -> dict[int, dict[int, Group | None]]:
        """Return by rank, of all or of those `wanted`, and row in the step the group of the collective there."""
        groups_of: dict[int, dict[int, Group | None]] = {rank: {} for rank in self.records[key]}
        ungrouped = {"group_name", "group_ranks"}
        ranks = sorted(
            rank
            for rank, held in self.records[key].items()
            if (wanted is None or rank in wanted) and not ungrouped <= set(held.empty_columns)
        )
        if ranks:
            read = read_step(self._root, key, self.records[key], ("kind", *GROUP_COLUMNS), ranks)
            rows = np.flatnonzero(read.equals("kind", "collective"))
            of_rank = read.of_rank[rows]
            codes, groups = read_groups(read, rows)
            places = rows - read.bounds[of_rank]
            for at, place, code in zip(of_rank.tolist(), places.tolist(), codes.tolist(), strict=True):
                groups_of[read.ranks[at]][place] = groups[code]
        return groups_of


def _graphs_on_streams(row: Ints, stream: Ints, times: IntTimes) -> list[tuple[list[int], list[float]]]:
    """Return the operations of each launch that runs on several streams, and their starts.

    `row` and `stream` are (operations,), `times` (4, activities).
    """
    operations = np.flatnonzero(row >= 0)
    start, called = times[0][row[operations]], times[2][row[operations]]
    is_known = called[1:] != unknown_value(times.dtype)
    begins = np.flatnonzero(np.append(True, ~is_known | (np.diff(called) != 0)))
    launches = np.stack([begins, np.append(begins[1:], len(operations))], axis=1)
    graphs = []
    for first, last in launches[np.diff(launches, axis=1)[:, 0] > 1].tolist():  # most launches run one operation
        members = operations[first:last]
        if (stream[members] != stream[members[0]]).any():
            graphs.append((members.tolist(), start[first:last].tolist()))
    return graphs
