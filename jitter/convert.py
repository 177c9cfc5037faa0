"""One recording to staged parquet: read, joined, cut into steps, with a record of what was found."""

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from jitter.capture import Capture, Gpu, GpuUse, Outside
from jitter.discover import Source
from jitter.errors import JitterError
from jitter.lake import write_host, write_kernels
from jitter.lake_paths import host_file, kernels_file
from jitter.phase import Phased
from jitter.process_steps import ProcessSteps, find_steps
from jitter.ranks import GpuEvidence, Told, Verdict, resolve
from jitter.readers import Recording, readers
from jitter.records import RECORD_VERSION, RepetitionRecord, SourceRecord, StepRecord
from jitter.rows import StepRows
from jitter.steps import StepKey, step_pattern_of


@dataclass(frozen=True)
class Task:
    """One source to convert; `patterns` are steps found on other ranks, to be cut at the same kernel."""

    source: Source
    staging: Path
    step_pattern: str | None = None
    told: Told = field(default_factory=Told)
    known: frozenset[str] = frozenset()
    """Digests of file contents that are in the lake already: such a file is not read again."""
    patterns: tuple[tuple[str, ...], ...] = ()

    def cut_like(self, patterns: tuple[tuple[str, ...], ...]) -> "Task":
        """Make the task of converting the source again, its steps cut like these."""
        return replace(self, patterns=patterns)


@dataclass
class Part:
    """One GPU of a source, staged: its record, and its files as (path in staging, step it holds; None: host)."""

    record: SourceRecord
    staged: Path
    files: list[tuple[Path, StepKey | None]]
    phased: Phased | None
    """Set where steps were found by repetition: their numbers are this rank's own until brought into phase."""

    def places(self) -> list[tuple[Path, Path]]:
        """Where its files go: (path from `staged`, path from the lake's root)."""
        assert self.record.rank is not None
        kept = {step.key for step in self.record.steps}
        return [
            (
                path,
                host_file(self.record.rank, self.record.digest) if key is None else kernels_file(key, self.record.rank),
            )
            for path, key in self.files
            if key is None or key in kept
        ]


@dataclass
class Outcome:
    """What became of a source: parts to publish, or an error; neither if the lake holds it already."""

    source: Source
    file_digest: str
    staging: Path
    """The folder that holds all its parts."""
    parts: list[Part] = field(default_factory=list)
    error: JitterError | None = None
    warnings: list[str] = field(default_factory=list)


def convert(task: Task, advance: Callable[[int], None]) -> Outcome:
    """Read one source into `task.staging`; what is wrong with it is in the outcome, never raised."""
    task.staging.mkdir(parents=True, exist_ok=True)
    outcome = Outcome(task.source, "", Path(tempfile.mkdtemp(dir=task.staging)))
    try:
        outcome.file_digest = file_digest(task.source.files)
        if outcome.file_digest not in task.known:
            _convert(task, outcome, advance)
    except JitterError as error:
        outcome.error = error
    except OSError as error:
        outcome.error = JitterError(f"{task.source.path}: {error.strerror or error}", "check the file and the disk")
    except Exception as error:  # whatever it is, the other sources go in
        first_line = str(error).partition("\n")[0]
        outcome.error = JitterError(
            f"{task.source.path}: could not be read: {type(error).__name__}: {first_line}",
            "this is a bug of ours: please report it, if you can with the file",
        )
    return outcome


def file_digest(paths: Sequence[Path]) -> str:
    """A digest of a recording: of its file's content, or of all its files (or a folder's) with their names."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for file in files:
            if path.is_dir() or len(paths) > 1:
                digest.update(file.relative_to(path if path.is_dir() else path.parent).as_posix().encode() + b"\0")
            with file.open("rb") as content:
                while chunk := content.read(1 << 20):
                    digest.update(chunk)
    return digest.hexdigest()


def _convert(task: Task, outcome: Outcome, advance: Callable[[int], None]) -> None:
    recording, batches = readers()[task.source.reader].open(task.source.path)
    with Capture(step_pattern_of(task.step_pattern), outcome.staging) as capture:
        for batch in batches(advance):
            capture.add(batch)
        capture.join(recording.names)
        uses = capture.gpus()
        steps = {
            process: find_steps(capture, recording, [use for use in uses if use.gpu.process == process], task.patterns)
            for process in sorted({use.gpu.process for use in uses})
        }
        evidence = [_evidence(recording, use, steps[use.gpu.process]) for use in uses]
        verdicts = resolve(task.source.path, evidence, task.told, recording.rank_in_name, recording.rank_hint)
        outcome.warnings = list(dict.fromkeys(v.warning for v in verdicts if v.warning is not None))
        capture.set_steps({process: found.ranges.ranges for process, found in steps.items()})
        _Stager(task, outcome, recording, capture, steps).stage(uses, verdicts)


def _evidence(recording: Recording, use: GpuUse, steps: ProcessSteps) -> GpuEvidence:
    process = recording.processes[use.gpu.process]
    in_text = {step.rank for step in steps.ranges.ranges if step.rank is not None}
    return GpuEvidence(
        process=use.gpu.process,
        device=use.gpu.device,
        kernels=use.kernels,
        step_text_rank=in_text.pop() if len(in_text) == 1 else None,
        process_rank=process.rank,
        process_rank_from=process.rank_from,
        launcher_rank=process.launcher_rank,
        launcher_rank_from=process.launcher_rank_from,
    )


class _Stager:
    """Writes what one capture holds into staging, a folder a GPU, and makes the records."""

    def __init__(
        self, task: Task, outcome: Outcome, recording: Recording, capture: Capture, steps: dict[int, ProcessSteps]
    ) -> None:
        self._task = task
        self._outcome = outcome
        self._recording = recording
        self._capture = capture
        self._steps = steps
        self._unanswered = capture.unanswered_launches()
        self._outside = capture.outside()

    def stage(self, uses: Sequence[GpuUse], verdicts: Sequence[Verdict]) -> None:
        """Write every GPU that has a rank; the others' kernels are counted in the warnings."""
        ranked = [(use, verdict) for use, verdict in zip(uses, verdicts, strict=True) if verdict.rank is not None]
        parts: dict[Gpu, Part] = {}
        makers: dict[Gpu, StepRows] = {}
        for number, (use, verdict) in enumerate(ranked):
            record = self._record(use, verdict, number, len(ranked))
            staged = self._outcome.staging / str(number)
            staged.mkdir(parents=True)
            parts[use.gpu] = Part(record, staged, [], self._phased(use, record))
            assert record.rank is not None
            makers[use.gpu] = StepRows(self._recording.names, record.rank, use.main_stream)
        for gpu, row, table in self._capture.in_steps():
            if gpu in parts:
                self._stage_step(parts[gpu], makers[gpu], gpu, row, table)
        host = self._capture.host()
        for gpu, part in parts.items():
            self._stage_host(part, gpu, host)
            self._note_empty_steps(part, gpu)
        self._outcome.parts = list(parts.values())

    def _stage_step(self, part: Part, maker: StepRows, gpu: Gpu, row: int, table: pa.Table) -> None:
        step = self._steps[gpu.process].ranges.ranges[row]
        rows, digest, kernels = maker.build(table)
        path = Path(f"{row}.parquet")
        write_kernels(part.staged / path, rows)
        part.files.append((path, step.key))
        lost = self._unanswered.get((gpu.process, row), 0)
        part.record.steps.append(
            StepRecord(
                step=step.key.step,
                epoch=step.key.epoch,
                marker=step.text,
                start_ns=step.start_ns,
                end_ns=step.end_ns,
                cut=bool(lost) or step.end_ns is None,
                launches_without_kernel=lost,
                kernels=kernels,
                memory_activities=rows.num_rows - kernels,
                sequence=digest,
            )
        )

    def _stage_host(self, part: Part, gpu: Gpu, host: pa.Table) -> None:
        mine = host.filter(pc.equal(host["process"], gpu.process))
        if mine.num_rows == 0:
            return
        numbers = pa.array([step.key.step for step in self._steps[gpu.process].ranges.ranges], pa.int64())
        columns = {name: mine[name] for name in ("kind", "name", "thread", "start_ns", "end_ns")}
        write_host(part.staged / "host.parquet", pa.table({"step": numbers.take(mine["step_row"]), **columns}))
        part.files.append((Path("host.parquet"), None))

    def _note_empty_steps(self, part: Part, gpu: Gpu) -> None:
        empty = len(self._steps[gpu.process].ranges.ranges) - len(part.record.steps)
        if empty:
            part.record.problems.append(f"{empty} steps have no activity on this GPU")
        cut = [step.key for step in part.record.steps if step.cut]
        if cut:
            part.record.problems.append(
                f"{len(cut)} steps are cut off ({', '.join(map(str, cut[:3]))}{', …' if len(cut) > 3 else ''})"
            )

    def _record(self, use: GpuUse, verdict: Verdict, number: int, parts: int) -> SourceRecord:
        source, recording, steps = self._task.source, self._recording, self._steps[use.gpu.process]
        process = recording.processes[use.gpu.process]
        outside = self._outside.get(use.gpu, Outside(0, 0))
        digest = self._outcome.file_digest
        has_launches = use.gpu.process in self._capture.has_launches
        return SourceRecord(
            record_version=RECORD_VERSION,
            digest=digest if parts == 1 else f"{digest}-{number}",
            file=str(source.path.resolve()),
            file_digest=digest,
            size=source.size,
            mtime_ns=source.changed_ns,
            part=number,
            parts=parts,
            step_pattern=self._task.step_pattern,
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
            has_launches=has_launches,
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
            outside_steps=outside.outside_steps,
            before_capture=outside.before_capture,
            steps=[],
            problems=[*recording.problems, *steps.ranges.problems, *_remarks(outside, has_launches)],
        )

    def _phased(self, use: GpuUse, record: SourceRecord) -> Phased | None:
        steps = self._steps[use.gpu.process]
        if steps.repetition is None:
            return None
        return Phased(
            f"{self._task.source.path} (rank {record.rank})",
            record.file_digest,
            record.utc_offset_ns,
            steps.repetition,
            steps.collectives_before,
            steps.collectives,
        )


def _remarks(outside: Outside, has_launches: bool) -> list[str]:
    remarks = []
    if outside.outside_steps:
        remarks.append(f"{outside.outside_steps} kernels lie outside every step")
    if outside.before_capture:
        remarks.append(f"{outside.before_capture} kernels were launched before the capture and are in no step")
    if not has_launches:
        remarks.append("no launches were recorded: kernels belong to the step in which they start")
    return remarks
