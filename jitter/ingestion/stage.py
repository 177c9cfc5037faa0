"""Staging: a capture's steps as rows of the lake, in parquet files, one folder per GPU, with their records."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import column_or_nulls
from jitter.core.formatting import format_count
from jitter.core.names.kernels import COLLECTIVE, COMPUTE, KINDS, MEMORY, copy_direction
from jitter.core.names.launchers import MAX_RANKS
from jitter.core.numeric.arrays import Bools
from jitter.core.schema import KERNELS
from jitter.core.step_key import StepKey
from jitter.ingestion.discovery.discover import Source
from jitter.ingestion.names import step_kind
from jitter.ingestion.ranks.decide_ranks import RankDecision, ReadOptions
from jitter.ingestion.ranks.jobs import RecordedRank
from jitter.ingestion.transform.collective_calls import CommunicationFinder
from jitter.ingestion.transform.launch_join import Gpu, GpuUsage, JoinedCapture, locate_in_steps
from jitter.ingestion.transform.launch_scopes import SCOPE_COLUMNS, LaunchScopes
from jitter.ingestion.transform.steps.find_steps import ProcessSteps, Repetition
from jitter.lake.layout import host_file, kernels_file, times_file
from jitter.lake.parquet import write_host, write_kernels
from jitter.lake.records import SIDE_WORK, RepetitionRecord, SourceRecord, StepRecord
from jitter.lake.times import append_times
from jitter.readers import Recording, readers

_NAMED = {"kernel_name": "name", "launch_name": "launch_name"}
_PEERS = ("source_rank", "destination_rank")
_COMPUTED = {
    *_NAMED,
    *_PEERS,
    "rank",
    "ordinal",
    "kind",
    "duration_ns",
    "correlation_id",
    "collective",
    "copy_direction",
}
_MOST_TO_COUNT = 1 << 20
_AS_READ = [field.name for field in KERNELS if field.name not in _COMPUTED]


class RankStepRows(NamedTuple):
    """One step of one rank: its rows (`schema.KERNELS`), sequence digest and number of kernels."""

    row: int
    """Index into the process's steps."""
    rows: pa.Table
    sequence: str
    kernels: int
    """Number of kernels, without copies and fills."""


class KernelRowBuilder:
    """Builds rows for one rank; `names` are the names of the recording, `main_stream` is the rank's main stream."""

    def __init__(
        self, names: Sequence[str], rank: int, main_stream: int | None, communication: CommunicationFinder
    ) -> None:
        self._names = pa.array(names, pa.string())
        self._kinds = pa.array(KINDS, pa.string())
        self._operations = pa.array(communication.operations(names), pa.string())
        self._directions = pa.array([copy_direction(name) for name in names], pa.string())
        digests = (hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).digest() for name in names)
        self._hashes = np.frombuffer(b"".join(digests), np.dtype("<u8"))
        self._rank = rank
        self._main_stream = main_stream

    def build(self, activities: pa.Table) -> Iterator[RankStepRows]:
        """Yield the rows of complete steps, given in order (column `step_row`) and in launch order."""
        activities = activities.combine_chunks()
        size = activities.num_rows
        step_rows = activities["step_row"].to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(step_rows)) + 1).tolist(), size]
        ids = activities["name"].to_numpy()
        is_memory = activities["is_memory"].to_numpy(zero_copy_only=False)
        is_collective = activities["is_collective"].to_numpy(zero_copy_only=False)
        kinds = np.where(is_memory, MEMORY, np.where(is_collective, COLLECTIVE, COMPUTE))
        on_main = (
            np.zeros(size, dtype=bool)
            if self._main_stream is None
            else pc.equal(activities["stream"], self._main_stream).fill_null(False).to_numpy()
        )
        concurrent = (kinds == COLLECTIVE) | ~on_main
        hashes = self._hashes[ids]
        starts = np.array(bounds[:-1])
        named = {name: self._named(activities[source]) for name, source in _NAMED.items()}
        named |= {name: activities[name].combine_chunks() for name in SCOPE_COLUMNS if name in activities.schema.names}
        operations = pc.if_else(
            pa.array(kinds == COLLECTIVE),
            pc.coalesce(_column(activities, "collective"), self._operations.take(activities["name"])),
            pa.scalar(None, pa.string()),
        )
        columns = {
            **named,
            "rank": pa.repeat(pa.scalar(self._rank, pa.int32()), size),
            "ordinal": np.arange(size, dtype=np.int32) - np.repeat(starts, np.diff(bounds)).astype(np.int32),
            "kind": pa.DictionaryArray.from_arrays(pa.array(kinds.astype(np.int32)), self._kinds),
            "duration_ns": pc.subtract(activities["end_ns"], activities["start_ns"]),
            "correlation_id": activities["correlation"],
            "collective": operations,
            "copy_direction": pc.if_else(
                activities["is_memory"], self._directions.take(activities["name"]), pa.scalar(None, pa.string())
            ),
            **{name: _column(activities, name) for name in _AS_READ if name not in named},
            **self._peers(activities),
        }
        rows = pa.table([columns[field.name] for field in KERNELS], schema=KERNELS)
        partly = {name: _lack_names(column, bounds) for name, column in named.items()}
        for number, (first, last) in enumerate(pairwise(bounds)):
            is_kernel = ~is_memory[first:last]
            step_activities = rows.slice(first, last - first)
            digest = hashlib.blake2b(hashes[first:last][is_kernel].tobytes(), digest_size=16)
            digest.update(concurrent[first:last][is_kernel].tobytes())
            yield RankStepRows(
                int(step_rows[first]),
                _with_names_that_occur(step_activities, [name for name, lacking in partly.items() if lacking[number]]),
                digest.hexdigest(),
                int(is_kernel.sum()),
            )

    def _peers(self, activities: pa.Table) -> dict[str, pa.Array]:
        """Return the ranks that send and receive; where the trace states one of them, this rank is the other."""
        peers = {name: _column(activities, name) for name in _PEERS}
        if all(column.null_count == activities.num_rows for column in peers.values()):
            return peers
        own_rank = pa.scalar(self._rank, pa.int32())
        source, destination = peers.values()
        return {
            "source_rank": pc.if_else(destination.is_valid(), source.fill_null(own_rank), source),
            "destination_rank": pc.if_else(source.is_valid(), destination.fill_null(own_rank), destination),
        }

    def _named(self, ids: pa.ChunkedArray) -> pa.DictionaryArray:
        """Return names as a dictionary array whose dictionary holds only names that occur."""
        encoded = ids.combine_chunks().dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices, self._names.take(encoded.dictionary))


def _column(activities: pa.Table, name: str) -> pa.Array:
    return column_or_nulls(activities, name, KERNELS.field(name).type)


def _lack_names(column: pa.DictionaryArray, bounds: Sequence[int]) -> Bools:
    """Return which slices between `bounds` may lack a name of the column's dictionary."""
    names, steps = len(column.dictionary), len(bounds) - 1
    if steps * names > _MOST_TO_COUNT:
        return np.ones(steps, np.bool_)
    step = np.repeat(np.arange(steps), np.diff(bounds))
    if column.null_count:
        step = step[column.is_valid().to_numpy(zero_copy_only=False)]
    step_and_name = step * names + column.indices.drop_null().to_numpy()
    lacking: Bools = (np.bincount(step_and_name, minlength=steps * names).reshape(steps, names) == 0).any(1)
    return lacking


def _with_names_that_occur(rows: pa.Table, partly: Iterable[str]) -> pa.Table:
    """Return the step's rows with the dictionaries of the columns `partly` reduced to names of this step."""
    for name in partly:
        column = rows[name].chunk(0)
        used = column.indices.dictionary_encode()
        fewer = pa.DictionaryArray.from_arrays(used.indices, column.dictionary.take(used.dictionary))
        rows = rows.set_column(rows.schema.get_field_index(name), KERNELS.field(name), fewer)
    return rows


_TIMES = Path("times.bin")


class StagedRank(RecordedRank):
    """One GPU of a source that was read: its files are staged, and in the lake once it is published."""

    def __init__(self, record: SourceRecord, folder: Path, repetition: Repetition | None) -> None:
        super().__init__(record, folder)
        self.repetition = repetition
        """Set if steps were found by repetition: their numbers are provisional until aligned with other ranks."""
        self.files: list[tuple[Path, StepKey | None]] = []
        """Staged files: path in `folder`, and step; None: the host's file."""

    def path_of(self, step: StepKey) -> Path:
        staged = next((path for path, key in self.files if key == step), None)
        return super().path_of(step) if staged is None else self.folder / staged

    def places(self) -> list[tuple[Path, Path]]:
        """Return where the files go, as (path in `folder`, path in the lake)."""
        kept = {step.key for step in self.record.steps}
        rank, digest = self.rank, self.record.digest
        places = [
            (path, host_file(rank, digest) if key is None else kernels_file(key, rank))
            for path, key in self.files
            if key is None or key in kept
        ]
        return [*places, (_TIMES, times_file(digest))] if self.record.steps else places


@dataclass
class Stager:
    """Writes one capture into staging, one folder per GPU, and makes the records."""

    source: Source
    file_digest: str
    options: ReadOptions
    recording: Recording
    joined: JoinedCapture
    communication: CommunicationFinder
    steps: dict[int, ProcessSteps]
    scopes: LaunchScopes

    def __post_init__(self) -> None:
        self._ranges = {process: process_steps.ranges for process, process_steps in self.steps.items()}
        self._lost = self.joined.lost_launches(self._ranges)
        self._uncertain = self.joined.uncertain(self._ranges)

    def stage(self, folder: Path, uses: Sequence[GpuUsage], decisions: Sequence[RankDecision]) -> list[StagedRank]:
        """Write the steps of every GPU that has a rank; several GPUs get a subfolder of `folder` each."""
        ranked = [(use, decision) for use, decision in zip(uses, decisions, strict=True) if decision.rank is not None]
        ranks: dict[Gpu, StagedRank] = {}
        builders: dict[Gpu, KernelRowBuilder] = {}
        for number, (use, decision) in enumerate(ranked):
            record = self._record(use, decision, number, len(ranked))
            # a folder takes longer to remove than its files take to move, so one GPU gets none
            rank_folder = folder / str(number) if len(ranked) > 1 else folder
            rank_folder.mkdir(parents=True, exist_ok=True)
            staged = StagedRank(record, rank_folder, self.steps[use.gpu.process].repetition)
            ranks[use.gpu] = staged
            builders[use.gpu] = KernelRowBuilder(self.recording.names, staged.rank, use.main_stream, self.communication)
        for gpu, activities in self.joined.in_steps(self._ranges):
            if gpu in ranks:
                for step in builders[gpu].build(self.scopes.annotate(gpu.process, activities)):
                    self._stage_step(ranks[gpu], gpu, step)
        host = self.joined.host(self._ranges)
        for gpu, staged in ranks.items():
            if self.recording.is_incomplete:
                # a cut file loses host and GPU events alike, so a step that lacks kernels need not have launches
                # without a kernel; but two steps that lost different events do not have equal sequences
                counts = Counter(step.sequence for step in staged.record.steps)
                for step_record in staged.record.steps:
                    step_record.cut |= counts[step_record.sequence] == 1
            mine = self._with_operations(host.filter(pc.equal(host["process"], gpu.process)), gpu.process)
            self._stage_host(staged, gpu, mine)
            self._note_side_work(staged, gpu, mine)
            self._remark(staged, gpu)
        return list(ranks.values())

    def _stage_step(self, staged: StagedRank, gpu: Gpu, step: RankStepRows) -> None:
        marked = self._ranges[gpu.process][step.row]
        path = Path(f"{step.row}.parquet")
        written = write_kernels(staged.folder / path, step.rows)
        staged.files.append((path, marked.key))
        rows, record = step.rows, staged.record
        record.empty_columns = [name for name in record.empty_columns if rows[name].null_count == rows.num_rows]
        lost = self._lost.get((gpu.process, step.row), 0)
        kind = marked.kind or step_kind(marked.text)
        record.steps.append(
            StepRecord(
                step=marked.key.step,
                epoch=marked.key.epoch,
                marker=marked.text,
                start_ns=marked.start_ns,
                end_ns=marked.end_ns,
                cut=bool(lost) or marked.end_ns is None,
                launches_without_kernel=lost,
                kernels=step.kernels,
                memory_activities=rows.num_rows - step.kernels,
                sequence=step.sequence,
                checksum=written.checksum,
                size=written.size,
                kind=kind.kind,
                requests=kind.requests,
                tokens=kind.tokens,
                times=append_times(staged.folder / _TIMES, rows, marked.start_ns),
            )
        )

    def _with_operations(self, host: pa.Table, process: int) -> pa.Table:
        """Return the host events of a process with the long operations and barriers in its steps, in order of start."""
        operations = self.scopes.operations(process)
        rows = locate_in_steps(operations["start_ns"].to_numpy(), self._ranges[process])
        is_known = pc.is_in(operations["start_ns"], host.filter(pc.not_equal(host["kind"], "sync"))["start_ns"])
        kept = pc.and_(pa.array(rows >= 0), pc.invert(is_known))  # a range that waits for data is recorded as such
        operations = operations.append_column("step_row", pa.array(rows)).filter(kept)
        if not operations.num_rows:
            return host
        operations = operations.append_column("process", pa.repeat(process, len(operations)))
        return pa.concat_tables([host, operations.select(host.schema.names).cast(host.schema)]).sort_by("start_ns")

    def _stage_host(self, staged: StagedRank, gpu: Gpu, mine: pa.Table) -> None:
        staged.record.host_rows = mine.num_rows
        if mine.num_rows == 0:
            return
        keys = [step.key for step in self._ranges[gpu.process]]
        columns = {
            "epoch": pa.array([key.epoch for key in keys], pa.int64()).take(mine["step_row"]),
            "step": pa.array([key.step for key in keys], pa.int64()).take(mine["step_row"]),
            **{name: mine[name] for name in ("kind", "name", "thread", "start_ns", "end_ns")},
        }
        written = write_host(staged.folder / "host.parquet", pa.table(columns))
        staged.record.host_checksum, staged.record.host_size = written
        staged.files.append((Path("host.parquet"), None))

    def _note_side_work(self, staged: StagedRank, gpu: Gpu, mine: pa.Table) -> None:
        """Add the time of checkpoints and validations to the records of the steps in which they begin.

        One between two steps makes the second one late.
        """
        keys = [step.key for step in self._ranges[gpu.process]]
        starts = np.array([step.start_ns for step in self._ranges[gpu.process]], np.int64)
        steps = {step.key: step for step in staged.record.steps}
        for kind in SIDE_WORK:
            covered_to = -1
            work = mine.filter(pc.equal(mine["kind"], kind)).sort_by("start_ns")
            columns = (work[name].to_pylist() for name in ("step_row", "start_ns", "end_ns"))
            for row, start_ns, end_ns in zip(*columns, strict=True):
                at = int(np.searchsorted(starts, start_ns)) if row is None else row
                step = steps.get(keys[at]) if at < len(keys) else None
                if step is None or end_ns is None or end_ns <= covered_to:  # inside the range before it
                    continue
                field = f"{kind}_ns"
                setattr(step, field, (getattr(step, field) or 0) + end_ns - max(start_ns, covered_to))
                covered_to = end_ns

    def _remark(self, staged: StagedRank, gpu: Gpu) -> None:
        """Add the problems to the record once all steps are staged."""
        record = staged.record
        record.outside_steps = record.kernels - record.before_capture - sum(step.kernels for step in record.steps)
        empty = len(self._ranges[gpu.process]) - len(record.steps)
        cut = [step.key for step in record.steps if step.cut]
        record.problems += record.describe_kernels()
        if uncertain := self._uncertain.get(gpu):
            record.problems.append(
                f"{format_count(uncertain, 'GPU activity', 'GPU activities')} without a recorded launch may be of a "
                "later step: counted in the step of the activity before on the stream"
            )
        if empty:
            record.problems.append(f"{format_count(empty, 'step has', 'steps have')} no activity on this GPU")
        if cut:
            listed = ", ".join(map(str, cut[:3])) + (", …" if len(cut) > 3 else "")
            record.problems.append(f"{format_count(len(cut), 'step is', 'steps are')} cut ({listed})")

    def _record(self, use: GpuUsage, decision: RankDecision, number: int, ranks: int) -> SourceRecord:
        source, recording, steps = self.source, self.recording, self.steps[use.gpu.process]
        process = recording.processes[use.gpu.process]
        digest = self.file_digest
        return SourceRecord(
            digest=digest if ranks == 1 else f"{digest}-{number}",
            file=str(source.path.resolve()),
            file_digest=digest,
            size=source.size,
            mtime_ns=source.changed_ns,
            part=number,
            parts=ranks,
            step_pattern=self.options.step_pattern,
            format=recording.format,
            reader_version=readers()[source.reader].version,
            profiler_version=recording.profiler_version,
            rank=decision.rank,
            rank_told_by=decision.decided_by,
            host=process.host,
            device=use.gpu.device,
            pid=process.pid,
            clock="unknown" if recording.utc_offset_ns is None else "utc",
            utc_offset_ns=recording.utc_offset_ns,
            main_stream=use.main_stream,
            has_launches=use.gpu.process in self.joined.has_launches,
            steps_from=steps.found,
            repetition=None
            if steps.repetition is None
            else RepetitionRecord(
                steps.repetition.period,
                steps.repetition.end_ns,
                steps.repetition.collectives,
                list(steps.repetition.collectives_before),
            ),
            kernels=use.kernels,
            before_capture=self.joined.before_capture[use.gpu],
            problems=[*recording.problems, *steps.problems],
            collective_pattern=self.options.collective_pattern,
            reader=source.reader,
            world_size=recording.world_size if (recording.world_size or 0) <= MAX_RANKS else None,
            bus_id=recording.bus_ids.get(use.gpu.device, recording.bus_ids.get(None)),
            gpu_model=recording.gpu_models.get(use.gpu.device, recording.gpu_models.get(None)),
            kernel_columns=len(KERNELS),
            empty_columns=[field.name for field in KERNELS if field.nullable],
        )
