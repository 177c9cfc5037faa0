"""Writes what one capture holds into staging, a folder a GPU, and makes the records that go with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.step_key import StepKey
from jitter.ingestion.discover import Source
from jitter.ingestion.ranks import Verdict
from jitter.ingestion.transform.find_steps import ProcessSteps
from jitter.ingestion.transform.kernel_rows import Step, StepRows
from jitter.ingestion.transform.launch_join import Gpu, GpuUse, Joined
from jitter.ingestion.transform.phase import Phased
from jitter.lake.derived.timing_cache import TimingCacheWriter
from jitter.lake.layout import host_file, kernels_file, timing_cache_file
from jitter.lake.parquet import write_host, write_kernels
from jitter.lake.records import RECORD_VERSION, RepetitionRecord, SourceRecord, StepRecord
from jitter.readers import Recording, readers

_EXTRACT = Path("extract")


@dataclass
class Part:
    """One GPU of a source, staged: its record, and its files as (path in staging, step it holds; None: host's)."""

    record: SourceRecord
    staged: Path
    files: list[tuple[Path, StepKey | None]]
    phased: Phased | None
    """Set where steps were found by repetition: their numbers are this rank's own until brought into phase."""

    def places(self) -> list[tuple[Path, Path]]:
        """Where its files go: (path from `staged`, path from the lake's root)."""
        assert self.record.rank is not None
        kept = {step.key for step in self.record.steps}
        rank, digest = self.record.rank, self.record.digest
        places = [
            (path, host_file(rank, digest) if key is None else kernels_file(key, rank))
            for path, key in self.files
            if key is None or key in kept
        ]
        return [*places, (_EXTRACT, timing_cache_file(digest))] if (self.staged / _EXTRACT).exists() else places


class Stager:
    """Writes what one capture holds into staging, a folder a GPU, and makes the records."""

    def __init__(
        self,
        source: Source,
        file_digest: str,
        step_pattern: str | None,
        recording: Recording,
        joined: Joined,
        steps: dict[int, ProcessSteps],
    ) -> None:
        self._source = source
        self._file_digest = file_digest
        self._step_pattern = step_pattern
        self._recording = recording
        self._joined = joined
        self._steps = steps
        self._ranges = {process: found.ranges.ranges for process, found in steps.items()}
        self._lost = joined.lost_launches(self._ranges)
        self._before_capture = joined.before_capture()

    def stage(self, folder: Path, uses: Sequence[GpuUse], verdicts: Sequence[Verdict]) -> list[Part]:
        """Write the steps of every GPU that has a rank into `folder`; of several GPUs each has a folder in it."""
        ranked = [(use, verdict) for use, verdict in zip(uses, verdicts, strict=True) if verdict.rank is not None]
        parts: dict[Gpu, Part] = {}
        makers: dict[Gpu, StepRows] = {}
        extracts: dict[Gpu, TimingCacheWriter] = {}
        for number, (use, verdict) in enumerate(ranked):
            record = self._record(use, verdict, number, len(ranked))
            # folders take longer to remove than what was in them to move
            staged = folder / str(number) if len(ranked) > 1 else folder
            staged.mkdir(parents=True, exist_ok=True)
            parts[use.gpu] = Part(record, staged, [], self._phased(use, record))
            assert record.rank is not None
            makers[use.gpu] = StepRows(self._recording.names, record.rank, use.main_stream)
            extracts[use.gpu] = TimingCacheWriter()
        for gpu, activities in self._joined.in_steps(self._ranges):
            if gpu in parts:
                for step in makers[gpu].build(activities):
                    self._stage_step(parts[gpu], gpu, step)
                    extracts[gpu].add(parts[gpu].record.steps[-1], step.rows)
        host = self._joined.host(self._ranges)
        for gpu, part in parts.items():
            mine = host.filter(pc.equal(host["process"], gpu.process))
            self._stage_host(part, gpu, mine)
            extracts[gpu].write(part.staged / _EXTRACT, part.record, mine)
            self._remark(part, gpu)
        return list(parts.values())

    def _stage_step(self, part: Part, gpu: Gpu, step: Step) -> None:
        marked = self._steps[gpu.process].ranges.ranges[step.row]
        path = Path(f"{step.row}.parquet")
        write_kernels(part.staged / path, step.rows)
        part.files.append((path, marked.key))
        lost = self._lost.get((gpu.process, step.row), 0)
        part.record.steps.append(
            StepRecord(
                step=marked.key.step,
                epoch=marked.key.epoch,
                marker=marked.text,
                start_ns=marked.start_ns,
                end_ns=marked.end_ns,
                cut=bool(lost) or marked.end_ns is None,
                launches_without_kernel=lost,
                kernels=step.kernels,
                memory_activities=step.rows.num_rows - step.kernels,
                sequence=step.sequence,
            )
        )

    def _stage_host(self, part: Part, gpu: Gpu, mine: pa.Table) -> None:
        part.record.host_rows = mine.num_rows
        if mine.num_rows == 0:
            return
        keys = [step.key for step in self._steps[gpu.process].ranges.ranges]
        columns = {
            "epoch": pa.array([key.epoch for key in keys], pa.int64()).take(mine["step_row"]),
            "step": pa.array([key.step for key in keys], pa.int64()).take(mine["step_row"]),
            **{name: mine[name] for name in ("kind", "name", "thread", "start_ns", "end_ns")},
        }
        write_host(part.staged / "host.parquet", pa.table(columns))
        part.files.append((Path("host.parquet"), None))

    def _remark(self, part: Part, gpu: Gpu) -> None:
        """Say what is missing, once all steps are staged."""
        record = part.record
        record.outside_steps = record.kernels - record.before_capture - sum(step.kernels for step in record.steps)
        empty = len(self._steps[gpu.process].ranges.ranges) - len(record.steps)
        cut = [step.key for step in record.steps if step.cut]
        if record.outside_steps:
            record.problems.append(f"{record.outside_steps} kernels lie outside every step")
        if record.before_capture:
            record.problems.append(
                f"{record.before_capture} kernels were launched before the capture and are in no step"
            )
        if not record.has_launches:
            record.problems.append("no launches were recorded: kernels belong to the step in which they start")
        if empty:
            record.problems.append(f"{empty} steps have no activity on this GPU")
        if cut:
            record.problems.append(
                f"{len(cut)} steps are cut off ({', '.join(map(str, cut[:3]))}{', …' if len(cut) > 3 else ''})"
            )

    def _record(self, use: GpuUse, verdict: Verdict, number: int, parts: int) -> SourceRecord:
        source, recording, steps = self._source, self._recording, self._steps[use.gpu.process]
        process = recording.processes[use.gpu.process]
        digest = self._file_digest
        return SourceRecord(
            record_version=RECORD_VERSION,
            digest=digest if parts == 1 else f"{digest}-{number}",
            file=str(source.path.resolve()),
            file_digest=digest,
            size=source.size,
            mtime_ns=source.changed_ns,
            part=number,
            parts=parts,
            step_pattern=self._step_pattern,
            format=recording.format,
            reader_version=readers()[source.reader].version,
            profiler_version=recording.profiler_version,
            rank=verdict.rank,
            rank_told_by=verdict.told_by,
            host=process.host,
            device=use.gpu.device,
            pid=process.pid,
            clock="unknown" if recording.utc_offset_ns is None else "utc",
            utc_offset_ns=recording.utc_offset_ns,
            main_stream=use.main_stream,
            has_launches=use.gpu.process in self._joined.has_launches,
            steps_from=steps.found,
            repetition=None
            if steps.repetition is None
            else RepetitionRecord(
                steps.repetition.period,
                steps.repetition.end_ns,
                steps.collectives,
                list(steps.collectives_before),
            ),
            kernels=use.kernels,
            outside_steps=0,
            before_capture=self._before_capture.get(use.gpu, 0),
            steps=[],
            problems=[*recording.problems, *steps.ranges.problems],
        )

    def _phased(self, use: GpuUse, record: SourceRecord) -> Phased | None:
        steps = self._steps[use.gpu.process]
        if steps.repetition is None:
            return None
        return Phased(
            f"{self._source.path} (rank {record.rank})",
            record.file_digest,
            record.utc_offset_ns,
            steps.repetition,
            steps.collectives_before,
            steps.collectives,
        )
