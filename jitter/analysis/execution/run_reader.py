"""The recorded rows of a run as the run model reads them, from a lake."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np

from jitter.analysis.alignment.kernel_index import KernelIndex
from jitter.analysis.alignment.program import NO_STREAM, Example, number_streams
from jitter.analysis.collectives.matching import GROUP_COLUMNS, Group, read_groups
from jitter.analysis.execution.activity_reader import ActivityReader
from jitter.analysis.execution.step_times import IdenticalRanks, StepActivities, StepSyncCalls, group_identical_ranks
from jitter.analysis.metrics.recorded_sizes import COLUMNS as SIZE_COLUMNS
from jitter.analysis.metrics.recorded_sizes import RecordedSizes
from jitter.core.arrow import to_list
from jitter.core.numeric.arrays import Floats, Ints, joined
from jitter.core.step_key import StepKey
from jitter.lake.host_events import HostEvents, SyncCalls, step_bounds
from jitter.lake.records import RankStepRecord, SourceRecord, commonest_kind
from jitter.lake.step_reader import read_step


class Member(NamedTuple):
    """One rank in one step that counts (uncut, or cut after the step's last collective)."""

    rank: int
    cohort: int
    sequence: str
    cut: bool


@dataclass(frozen=True)
class Source:
    """Source of the run's rows."""

    steps: Sequence[StepKey]
    members: Callable[[StepKey], Sequence[Member]]
    rank_groups: Callable[[StepKey], Sequence[IdenticalRanks]]
    """The ranks of a step, in groups that did the same."""
    example: Callable[[StepKey, int], Example]
    """Activities of a rank in a step."""
    groups: Callable[[StepKey], Mapping[int, Mapping[int, Group | None]]]
    """By rank and row in the step (ordinal) the group of the collective there."""
    rows: int
    """Rows of all steps and ranks."""
    beginnings: Callable[[StepKey], Mapping[int, float]]
    """By rank when its step marker begins, ns from the rank's origin; only ranks whose steps have markers."""
    make_room: Callable[[], None]
    """Drops cached steps, if they take much memory."""


class RunSyncCalls:
    """Calls of launching threads: a thread that pins memory, or a watchdog, delays no launch."""

    def __init__(
        self,
        steps: Sequence[StepKey],
        held: Mapping[StepKey, Mapping[int, RankStepRecord]],
        calls: Mapping[str, SyncCalls],
        threads: Mapping[int, Ints],
    ) -> None:
        """Take the `calls`, by digest of the recording, of the `threads` that launch, (threads,) by rank."""
        self._number: dict[tuple[int | None, int], int] = {key: number for number, key in enumerate(steps)}
        self._ranks = np.array(sorted({rank for key in steps for rank in held[key]}), np.int64)
        row_of = {rank: row for row, rank in enumerate(self._ranks.tolist())}
        self._first, self._last = np.zeros((2, len(steps), len(self._ranks)), np.int64)
        names: dict[str, int] = {}
        start, end, thread, name, so_far = [], [], [], [], 0
        recordings = {held[key][rank].record.digest: (rank, held[key][rank]) for key in steps for rank in held[key]}
        for rank, step_record in recordings.values():
            sync_calls = calls[step_record.record.digest]
            if not sync_calls.names:
                continue
            own_names = np.array([names.setdefault(text, len(names)) for text in sync_calls.names], np.int64)
            by_them = np.isin(sync_calls.thread, threads[rank])
            start.append(sync_calls.start_ns[by_them])
            end.append(sync_calls.end_ns[by_them])
            thread.append(sync_calls.thread[by_them])
            name.append(own_names[by_them])
            begins, keys = step_bounds(step_record.record)
            cuts = (np.searchsorted(start[-1], begins) + so_far).tolist()
            for at, step in enumerate(keys):
                number = self._number.get(step)
                holder = None if number is None else held[steps[number]].get(rank)
                if holder is not None and holder.record is step_record.record:
                    self._first[number, row_of[rank]], self._last[number, row_of[rank]] = cuts[at], cuts[at + 1]
            so_far += len(start[-1])
        self._start_ns, self._end_ns, self._thread, self._name = map(joined, (start, end, thread, name))
        self._names = tuple(names)

    def of(self, key: StepKey) -> StepSyncCalls:
        """One step's."""
        number = self._number[key]
        where = self._ranks, self._first[number], self._last[number]
        return StepSyncCalls(*where, self._start_ns, self._end_ns, self._thread, self._name, self._names)


_BYTES_KEPT = 64 << 20
"""Size of the steps of a run that stay in memory."""
_BYTES_PER_ROW = 4 * 8
_BYTES_OF_GROUP = 1 << 10
"""Size of the objects that hold a group of ranks, their times aside."""


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
    """Reads what `Source` needs, a step at a time."""

    def __init__(
        self,
        root: Path,
        held: Mapping[StepKey, Mapping[int, RankStepRecord]],
        indices: Callable[[StepKey], Sequence[KernelIndex]],
        steps: Sequence[StepKey],
        recorded_sizes: RecordedSizes | None = None,
    ) -> None:
        self._sizes = recorded_sizes
        self._root, self._held, self._indices = root, held, indices
        self._steps = list(steps)
        self._rows = sum(step_record.step.rows for key in self._steps for step_record in held[key].values())
        is_large = self._rows * _BYTES_PER_ROW > _BYTES_KEPT
        self._activities = ActivityReader(root, held, self._group, is_large=is_large)
        self._most_bytes_kept = 0 if is_large else _BYTES_KEPT
        """In memory; passes over the steps of a large run would drop each step before they come to it again."""
        self._rank_groups: OrderedDict[StepKey, list[IdenticalRanks]] = OrderedDict()
        self._bytes_kept = 0
        self._stream_digests: dict[tuple[StepKey, int], bytes] = {}
        """Of the streams of activities that were recorded without launches."""
        self._hosts: dict[str, HostEvents] = {}
        self._numbers: dict[str, int] = {}
        """Of kernels' names: the same in all steps."""
        self._one_looks = Lock()
        self.origin_ns: dict[int, int] = {}
        """Each rank's zero: its first step's begin, on the clock of the recording that has it."""
        self._first_records: dict[int, SourceRecord] = {}
        for key in self._steps:
            for rank in held[key].keys() - self.origin_ns.keys():
                self.origin_ns[rank] = held[key][rank].step.start_ns
                self._first_records[rank] = held[key][rank].record

    @property
    def digests(self) -> frozenset[str]:
        """Return the digests of all recordings of the run."""
        return frozenset(step_record.record.digest for held in self._held.values() for step_record in held.values())

    @cached_property
    def source(self) -> Source:
        """The run."""
        return Source(
            self._steps,
            self._members,
            self.rank_groups,
            self._example,
            self._groups,
            self._rows,
            self._beginnings,
            self.make_room,
        )

    def kind(self, key: StepKey) -> str:
        """Return the kind of a step: `train`, `prefill`, `decode`, …."""
        return commonest_kind(self._held[key].values())

    def origins(self, key: StepKey) -> dict[int, int]:
        """Return each rank's origin on the clock of the recording that has this step.

        Clocks of a rank's several recordings are related by UTC, where the profiler recorded it.
        """
        shifted_origins = {}
        for rank, held in self._held[key].items():
            offset, first_offset = held.record.utc_offset_ns, self._first_records[rank].utc_offset_ns
            shift = 0 if offset is None or first_offset is None else first_offset - offset
            shifted_origins[rank] = self.origin_ns[rank] + shift
        return shifted_origins

    def _beginnings(self, key: StepKey) -> dict[int, float]:
        origins, held = self.origins(key), self._held[key]
        return {
            rank: float(step_record.step.start_ns - origins[rank])
            for rank, step_record in held.items()
            if not step_record.record.has_guessed_steps
        }

    def kernel_counts(self, ranks: Sequence[int]) -> KernelCounts:
        """Return the kernels of each step of these ranks, from the records."""
        counts = KernelCounts(*np.full((2, len(self._steps), len(ranks)), np.nan))
        for row, key in enumerate(self._steps):
            for column, rank in enumerate(ranks):
                if rank in self._held[key]:
                    step = self._held[key][rank].step
                    counts.recorded[row, column], counts.lost[row, column] = step.kernels, step.launches_without_kernel
        return counts

    def indices(self, key: StepKey) -> Sequence[KernelIndex]:
        """The alignment of each cohort in a step."""
        return self._indices(key)

    def host(self, key: StepKey, rank: int) -> HostEvents:
        """Host activity of the rank, from the source of this step."""
        return self._host(self._held[key][rank].record)

    def _host(self, record: SourceRecord) -> HostEvents:
        if record.digest not in self._hosts:
            self._hosts[record.digest] = HostEvents(self._root, record)
        return self._hosts[record.digest]

    def launch_shapes(self, key: StepKey, ranks: Sequence[int]) -> list[LaunchShapes]:
        """Launch shapes of the rows of a step, for each of these ranks, which must ascend."""
        axes = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
        read = read_step(self._root, key, self._held[key], ("kernel_name", *axes), ranks)
        codes, names = read.codes("kernel_name")
        name = np.array([self._numbers.setdefault(text, len(self._numbers)) for text in names], np.int64)[codes]
        threads = np.ones(len(name))
        for axis in axes:
            threads *= read.values(axis)
            threads[~read.known(axis)] = np.nan
        return [LaunchShapes(name[first:last], threads[first:last]) for first, last in pairwise(read.bounds.tolist())]

    def message_sizes(self, key: StepKey, ranks: Sequence[int]) -> list[Floats]:
        """Return the message sizes, bytes, of the rows of a step, of each of these ranks, which must ascend.

        NaN where a row is no collective or states no size.
        """
        columns = ("size_bytes",) if self._sizes is None else SIZE_COLUMNS
        read = read_step(self._root, key, self._held[key], columns, ranks)
        if self._sizes is not None:
            read = self._sizes.filled(key, read)
        sizes = np.where(read.known("size_bytes"), read.values("size_bytes").astype(np.float64), np.nan)
        return [sizes[first:last] for first, last in pairwise(read.bounds.tolist())]

    def _members(self, key: StepKey) -> list[Member]:
        members = [
            Member(member.rank, index.cohort, member.sequence, member.cut)
            for index in self._indices(key)
            for member in index.members
        ]
        return sorted(members, key=lambda member: member.rank)

    def rank_groups(self, key: StepKey) -> list[IdenticalRanks]:
        """Return a step's ranks in groups that did the same. Thread-safe; steps stay in memory while there is room."""
        with self._one_looks:
            if key in self._rank_groups:
                self._rank_groups.move_to_end(key)
                return self._rank_groups[key]
        self.make_room()
        groups = self._activities.of_step(key)
        with self._one_looks:
            if key not in self._rank_groups:
                self._bytes_kept += _size(groups)
            self._rank_groups[key] = groups
        return groups

    def _group(self, key: StepKey, activities: StepActivities) -> Iterator[IdenticalRanks]:
        syncs, origins = self._syncs.of(key), self.origins(key)
        for on_streams, digest in self._split_by_streams(key, activities):
            yield from group_identical_ranks(on_streams, syncs, origins, digest)

    def _split_by_streams(self, key: StepKey, activities: StepActivities) -> Iterator[tuple[StepActivities, bytes]]:
        """Yield ranks that used the same streams for the same activities, with a digest of these streams.

        Where launches are recorded the program tells the streams, and the digest is empty.
        """
        without = [rank for rank in activities.ranks.tolist() if not self._held[key][rank].record.has_launches]
        digests = dict.fromkeys(activities.ranks.tolist(), b"")
        if without and (key, without[-1]) not in self._stream_digests:
            read = read_step(self._root, key, self._held[key], ("stream",), without)
            streams = read.values("stream")
            for rank, (first, last) in zip(read.ranks, pairwise(read.bounds.tolist()), strict=True):
                digest = hashlib.blake2b(streams[first:last].tobytes(), digest_size=8).digest()
                self._stream_digests[key, rank] = digest
        digests |= {rank: self._stream_digests[key, rank] for rank in without}
        for digest in dict.fromkeys(digests.values()):
            rows = np.array([digests[rank] == digest for rank in activities.ranks.tolist()])
            if rows.all():
                yield activities, digest
            else:
                ranks, zero_ns = activities.ranks[rows], activities.zero_ns[rows]
                yield replace(activities, ranks=ranks, zero_ns=zero_ns, times=activities.times[rows]), digest

    def make_room(self) -> None:
        """Drop cached steps, the oldest first, while they take much memory."""
        with self._one_looks:
            while self._bytes_kept > self._most_bytes_kept:
                self._bytes_kept -= _size(self._rank_groups.popitem(last=False)[1])

    @cached_property
    def _syncs(self) -> RunSyncCalls:
        records = {
            step_record.record.digest: step_record.record
            for key in self._steps
            for step_record in self._held[key].values()
        }
        calls = {digest: HostEvents(self._root, record).calls for digest, record in records.items()}
        calling: dict[int, Ints] = {}
        for digest, sync_calls in calls.items():
            rank = records[digest].rank
            if sync_calls.names and rank is not None:
                calling[rank] = np.union1d(calling.get(rank, sync_calls.thread[:0]), sync_calls.thread)
        return RunSyncCalls(self._steps, self._held, calls, self._launching(calling))

    def _launching(self, threads: Mapping[int, Ints]) -> dict[int, Ints]:
        """Return the `threads` of each rank that launch anything in its first step or in its last."""
        launching_threads = {rank: rank_threads[:0] for rank, rank_threads in threads.items()}
        for steps in (self._steps, self._steps[::-1]):
            waiting = {
                rank for rank, rank_threads in threads.items() if len(launching_threads[rank]) < len(rank_threads)
            }
            for key in steps:
                if not waiting:
                    break
                if not (ranks := sorted(waiting & self._held[key].keys())):
                    continue
                rows = read_step(self._root, key, self._held[key], ("launch_thread",), ranks)
                launched, is_known = rows.values("launch_thread"), rows.known("launch_thread")
                for rank, (first, last) in zip(rows.ranks, pairwise(rows.bounds.tolist()), strict=True):
                    launching = np.union1d(launching_threads[rank], launched[first:last][is_known[first:last]])
                    launching_threads[rank] = np.intersect1d(threads[rank], launching)
                waiting -= self._held[key].keys()
        return launching_threads

    def _example(self, key: StepKey, rank: int) -> Example:
        columns = ("kernel_name", "stream", "launch_thread", "collective")
        table = read_step(self._root, key, self._held[key], columns, [rank]).table
        names, streams, threads, collectives = (to_list(table[column]) for column in columns)
        group = next(group for group in self.rank_groups(key) if rank in group.ranks.tolist())
        record = self._held[key][rank].record
        is_timed = not record.has_launches and bool((group.row >= 0).all())
        appearing = [*sorted({stream for stream in streams if stream is not None}), *streams] if is_timed else streams
        numbers = number_streams(record.main_stream, appearing)
        waits = iter(self._syncs.of(key).by(rank))
        operations = [
            (names[row], numbers[streams[row]], threads[row], collectives[row]) if row >= 0 else _call(*next(waits))
            for row in group.row.tolist()
        ]
        starts_ns = group.times[group.ranks.tolist().index(rank), 0].tolist() if is_timed else None
        return Example(group.kind.tolist(), *map(list, zip(*operations, strict=True)))._replace(starts_ns=starts_ns)

    def _groups(self, key: StepKey) -> dict[int, dict[int, Group | None]]:
        groups_of: dict[int, dict[int, Group | None]] = {rank: {} for rank in self._held[key]}
        ungrouped = {"group_name", "group_ranks"}
        ranks = sorted(rank for rank, held in self._held[key].items() if not ungrouped <= set(held.empty_columns))
        if ranks:
            read = read_step(self._root, key, self._held[key], ("kind", *GROUP_COLUMNS), ranks)
            rows = np.flatnonzero(read.equals("kind", "collective"))
            of_rank = read.of_rank[rows]
            codes, groups = read_groups(read, rows)
            places = rows - read.bounds[of_rank]
            for at, place, code in zip(of_rank.tolist(), places.tolist(), codes.tolist(), strict=True):
                groups_of[read.ranks[at]][place] = groups[code]
        return groups_of


def _size(groups: Sequence[IdenticalRanks]) -> int:
    """Return the memory that groups of ranks take, in bytes."""
    return sum(_BYTES_OF_GROUP + group.times.nbytes for group in groups)


def _call(name: str, thread: int) -> tuple[str, int, int, None]:
    return name, NO_STREAM, thread, None
