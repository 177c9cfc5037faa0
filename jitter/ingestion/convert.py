"""Conversion of one recording to staged parquet files: read, join, divide into steps, write, describe."""

import errno
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

import pyarrow.compute as pc
import xxhash

from jitter.core.errors import FullDiskError, JitterError, UnknownRankError, UnreadableTraceError, reason_of
from jitter.core.formatting import format_count
from jitter.ingestion.discovery.discover import Source
from jitter.ingestion.names import compile_collective_pattern, compile_step_pattern, node_in_path
from jitter.ingestion.nsys_export import open_export
from jitter.ingestion.ranks.decide_ranks import (
    BY_HOSTS,
    BY_NAME,
    GpuEvidence,
    RankDecision,
    ReadOptions,
    decide_ranks,
    unknown_rank_error,
)
from jitter.ingestion.ranks.jobs import GivenRecording
from jitter.ingestion.ranks.windows import Window, window_of
from jitter.ingestion.stage import StagedRank, Stager
from jitter.ingestion.transform.capture import LONGEST_NAME, Capture
from jitter.ingestion.transform.launch_join import Gpu, GpuUsage
from jitter.ingestion.transform.launch_scopes import LaunchScopes
from jitter.ingestion.transform.steps.find_steps import ProcessSteps, find_steps
from jitter.ingestion.transform.steps.step_markers import describe_unmatched_pattern
from jitter.lake.parquet import read_kernels
from jitter.readers import Batch, ReaderError, Recording, describe_error, files_in, readers
from jitter.readers.columns import LARGEST_NS
from jitter.readers.validation import BatchValidator

_READ_BYTES = 1 << 18
"""Bytes read at a time into one reused buffer, which stays in the processor's cache."""
_FEW_FOREIGN = 3
_MOST_FOREIGN = 0.05
"""Share of a GPU's kernels that may seem to be another GPU's; in recordings of one process none does."""
_LARGE_HOLE = 1 << 30
"""Bytes of a hole in a sparse file that are not read as zeros: their number stands for them."""


@dataclass(frozen=True)
class Task:
    """One source to convert."""

    source: Source
    staging: Path
    options: ReadOptions = field(default_factory=ReadOptions)
    known: frozenset[str] = frozenset()
    """Digests of contents of this size that the lake holds: such a file is not read again."""
    patterns: tuple[tuple[str, ...], ...] = ()
    """Kernels of steps found on other ranks, to cut at the same kernel."""
    ignores_markers: bool = False
    """Whether steps are found as without markers, which most ranks lack."""
    is_only: bool = False
    """Whether the lake will hold this source alone, or windows of its process: then nothing need state its rank."""
    is_window: bool = False
    """Whether the number in its name is that of a window of its process."""
    devices: tuple[int, ...] = ()
    """The numbers of its node's GPUs, where each has a recording of its own and nothing states their ranks."""


@dataclass(eq=False)
class Outcome(GivenRecording):
    """The result of converting a source: staged ranks or an error; neither if the lake already holds the content."""

    ranks: list[StagedRank]
    task: Task
    file_digest: str
    staging: Path
    """The folder that holds all staged ranks of the source."""
    is_known: bool = False
    """Whether the lake already holds the content, so that it was not read."""
    error: JitterError | None = None
    warnings: list[str] = field(default_factory=list)
    window: Window | None = None
    """What was recorded of one process, where its rank is unknown: it may be one of several windows."""

    @property
    def source(self) -> Source:
        return self.task.source

    @property
    def is_new(self) -> bool:
        """Whether it was read, and the lake may take it."""
        return self.error is None and not self.is_known

    def find_window(self) -> Window | None:
        """Return what a process recorded whose rank nothing states but the file's name, if that does."""
        return self.window if self.error is not None or not self.ranks else window_of(self.ranks[0])


def convert(task: Task, advance: Callable[[int], None]) -> Outcome:
    """Read one source into `task.staging`. Errors are in the outcome; nothing is raised."""
    task.staging.mkdir(parents=True, exist_ok=True)
    source = task.source
    outcome = Outcome(source.path, [], task, "", Path(tempfile.mkdtemp(dir=task.staging)))
    try:
        outcome.file_digest = file_digest(source.files)
        outcome.is_known = outcome.file_digest in task.known
        if not outcome.is_known:
            opened: AbstractContextManager[tuple[Path, Callable[[int], None]]] = nullcontext((source.path, advance))
            if source.nsys is not None:
                opened = open_export(source.path, outcome.file_digest, source.nsys, advance)
            with _no_search_for_cycles(), opened as (path, advance_reading):
                _convert(task, outcome, path, advance_reading)
    except JitterError as error:
        outcome.error = error
    except OSError as error:
        outcome.error = _disk_error(task, error)
    except MemoryError:
        outcome.error = JitterError(f"{task.source.path}: not enough memory to read it", "use fewer jobs: --jobs 1")
    except Exception as error:  # any error of one source must leave the others unaffected
        outcome.error = JitterError(
            f"{task.source.path}: could not be converted: {describe_error(error)}",
            "this is a bug of jitter: please report it, if possible with the file",
        )
    return outcome


def _disk_error(task: Task, error: OSError) -> JitterError:
    """Return the error for a source that could not be read, or not written; of a full disk, say which one."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return JitterError(f"{task.source.path}: {reason_of(error)}", "check the file and the disk")
    temporary = Path(tempfile.gettempdir())
    is_temporary = error.filename is not None and Path(error.filename).is_relative_to(temporary)
    is_temporary = is_temporary and not task.staging.is_relative_to(temporary)
    place = f"TMPDIR ({temporary})" if is_temporary else f"the lake ({task.staging.parents[1]})"
    return FullDiskError(
        f"{task.source.path}: no space in {place} ({error.strerror})",
        "free space on that disk, then run this again: what is in the lake already is not read again",
    )


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Disable cycle collection: millions of objects are made, none in a cycle, and the search takes 10% of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def file_digest(paths: Sequence[Path], most: int | None = None) -> str:
    """Return the digest of a recording: of one file's content, or of all its files' names and contents.

    `most` is the number of bytes of each file that are read (default: all).
    """
    digest = xxhash.xxh3_128()  # not cryptographic: it detects equal contents, and traces are many gigabytes
    buffer = memoryview(bytearray(_READ_BYTES))
    for path in paths:
        for file in sorted(files_in(path)) if path.is_dir() else [path]:
            if path.is_dir() or len(paths) > 1:
                digest.update(file.relative_to(path if path.is_dir() else path.parent).as_posix().encode() + b"\0")
            with file.open("rb", buffering=0) as content:
                rest_bytes = sys.maxsize if most is None else most
                while size := content.readinto(buffer[: min(rest_bytes, _READ_BYTES)]):
                    digest.update(buffer[:size])
                    rest_bytes -= size
                    if most is None and not any(buffer[:64]) and (hole := _pass_hole(content)):
                        digest.update(hole.to_bytes(8, "big"))
    return digest.hexdigest()


def _pass_hole(file: FileIO) -> int:
    """Move over a hole of the file at this place, if it is large, and return its length in bytes; else 0."""
    at = file.tell()
    try:
        following = os.lseek(file.fileno(), at, os.SEEK_DATA)
    except OSError as error:  # ENXIO: no data follows
        following = os.fstat(file.fileno()).st_size if error.errno == errno.ENXIO else at
    if following - at < _LARGE_HOLE:
        following = at
    os.lseek(file.fileno(), following, os.SEEK_SET)
    return following - at


def _convert(task: Task, outcome: Outcome, path: Path, advance: Callable[[int], None]) -> None:
    """Read `path`, which is the source itself or its export."""
    recording, capture = _read(task, outcome.staging, path, advance)
    joined = capture.join(recording.names, recording.processes)
    uses = joined.gpus()
    if not uses:
        raise JitterError(f"{task.source.path}: no kernels in it", "did the process use a GPU?")
    _check_gpus(task.source.path, uses, joined.foreign_kernels())
    steps = {
        process: find_steps(
            joined,
            () if task.ignores_markers else capture.marked[process],
            recording,
            [use for use in uses if use.gpu.process == process],
            task.patterns,
        )
        for process in sorted({use.gpu.process for use in uses})
    }
    decisions = _decide_ranks(task, outcome, recording, uses, steps)
    outcome.warnings = list(dict.fromkeys(d.warning for d in decisions if d.warning is not None))
    stager = Stager(
        task.source,
        outcome.file_digest,
        task.options,
        recording,
        joined,
        capture.communication,
        steps,
        LaunchScopes(capture.code_ranges, recording.names),
    )
    outcome.ranks = stager.stage(outcome.staging, uses, decisions)
    _check_gpus(task.source.path, uses, joined.foreign_kernels())  # in time, too
    for staged in outcome.ranks:
        if staged.record.has_assumed_rank:
            _check_alone(task, recording, staged)
    if not outcome.ranks:
        raise JitterError(
            f"{task.source.path}: none of its {len(uses)} GPUs ran enough of its kernels to be the GPU of a rank",
            "give ranks with --rank-map (file,device,rank)",
        )


def _read(task: Task, scratch: Path, path: Path, advance: Callable[[int], None]) -> tuple[Recording, Capture]:
    """Return what a recording states of itself, and its rows."""
    recording, batches = _open(task.source.reader, path, advance)
    declared = compile_collective_pattern(task.options.collective_pattern)
    capture = Capture(compile_step_pattern(task.options.step_pattern), scratch, declared)
    for batch in batches:
        capture.add(batch)
    _shorten_names(recording, capture.long_texts)
    numbered = (marker for ranges in capture.marked.values() for marker in ranges if marker.role == "numbered")
    if task.options.step_pattern is not None and next(numbered, None) is None:
        recording.problems.append(describe_unmatched_pattern(capture.other_numbered))
    return recording, capture


def _decide_ranks(
    task: Task, outcome: Outcome, recording: Recording, uses: Sequence[GpuUsage], steps: Mapping[int, ProcessSteps]
) -> list[RankDecision]:
    """Return the rank decision of each GPU; where nothing states it, the outcome gets the window of the process."""
    path = task.source.path
    evidence = [_evidence(recording, use, steps[use.gpu.process]) for use in uses]
    if recording.is_incomplete:
        recording.rank_hint = "the file is cut, and what is lost may state it: copy it again"
    try:
        return decide_ranks(
            path,
            evidence,
            task.options,
            recording.rank_in_name,
            recording.rank_hint,
            _node(path, recording, task.options),
            is_only=task.is_only,
            is_window=task.is_window,
            devices=task.devices,
        )
    except UnknownRankError:
        if not any(gpu.stated for gpu in evidence):
            outcome.window = _window(path, recording, uses[0].gpu, steps)
        raise


def _node(path: Path, recording: Recording, options: ReadOptions) -> tuple[int, str] | None:
    """Return the number of a recording's node among the job's, and what states it; None if nothing does."""
    hosts = {process.host for process in recording.processes}
    host = hosts.pop() if len(hosts) == 1 else None
    if (by_hosts := options.node_of(path, host)) is not None:
        return by_hosts, BY_HOSTS
    if recording.node is not None:
        return recording.node, recording.node_from or "recording"
    in_path = node_in_path(path, host)
    return None if in_path is None else (in_path, BY_NAME)


def _window(path: Path, recording: Recording, gpu: Gpu, steps: Mapping[int, ProcessSteps]) -> Window | None:
    """Return what the process of a GPU recorded; None if there are several."""
    process, offset_ns = recording.processes[gpu.process], recording.utc_offset_ns
    ranges = steps[gpu.process].ranges
    if len(steps) > 1 or process.pid is None or not ranges:
        return None
    bus_id = recording.bus_ids.get(gpu.device, recording.bus_ids.get(None))
    last_ns = ranges[-1].start_ns if ranges[-1].end_ns is None else ranges[-1].end_ns
    return Window(
        (path.resolve().parent, process.host, process.pid, gpu.device, bus_id),
        None if offset_ns is None else (offset_ns + ranges[0].start_ns, offset_ns + last_ns),
        frozenset(step.key for step in ranges),
    )


def _check_gpus(path: Path, uses: Sequence[GpuUsage], foreign: Mapping[Gpu, int]) -> None:
    """Raise `UnreadableTraceError` if the kernels of a GPU cannot all be its own."""
    for use in uses:
        if foreign.get(use.gpu, 0) > max(_FEW_FOREIGN, _MOST_FOREIGN * use.kernels):
            raise UnreadableTraceError(
                f"{path}: holds the kernels of several GPUs as those of device {use.gpu.device}: "
                f"{foreign[use.gpu]:,} of {use.kernels:,} share a launch or ran within another one of their stream",
                "if it was merged of several recordings, give these",
            )


def _check_alone(task: Task, recording: Recording, staged: StagedRank) -> None:
    """Raise `UnknownRankError` if the recording states that its job has other ranks: its own may be any of them."""
    ranks = recording.world_size or 1
    for step in staged.record.steps:
        rows = read_kernels(staged.path_of(step.key), ("group_size", "group_ranks"))
        sizes = rows["group_size"], pc.list_value_length(rows["group_ranks"])
        ranks = max(ranks, *(pc.max(size).as_py() or 1 for size in sizes))
    if ranks > 1:
        reason = f", and its job has at least {ranks} ranks"
        raise unknown_rank_error(task.source.path, recording.rank_hint, reason, is_window=task.is_window)


def _open(name: str, path: Path, advance: Callable[[int], None]) -> tuple[Recording, Iterator[Batch]]:
    """Open the path with the reader of this name; its errors other than `JitterError` and OSError are bugs of it."""
    reader = readers()[name]
    validator = BatchValidator(name, path)
    with _reader_errors(name, path):
        recording, read = reader.open(path)

    def batches() -> Iterator[Batch]:
        with _reader_errors(name, path):
            for batch in read(advance):
                validator.check(batch)
                yield batch
        validator.finish(recording)
        if abs(recording.utc_offset_ns or 0) >= LARGEST_NS:
            recording.utc_offset_ns = None
            recording.problems.append("the wall clock that it states is not possible: it counts as not recorded")

    return recording, batches()


@contextmanager
def _reader_errors(name: str, path: Path) -> Iterator[None]:
    try:
        yield
    except (JitterError, OSError, MemoryError):
        raise
    except RecursionError:
        raise UnreadableTraceError(
            f"{path}: reader {name!r} failed: RecursionError: the content is nested too deeply",
            "the file may be damaged: copy it again, or record again",
        ) from None
    except Exception as error:
        raise ReaderError(
            f"{path}: reader {name!r} failed: {describe_error(error)}",
            "this is a bug of the reader: please report it, if possible with the file",
        ) from error


def _shorten_names(recording: Recording, long_texts: int) -> None:
    """Shorten names to `LONGEST_NAME` characters and state how many there were."""
    long_names = sum(len(name) > LONGEST_NAME for name in recording.names)
    if long_names:
        recording.names = [name[:LONGEST_NAME] for name in recording.names]
    for count, noun, of in (long_names, "name", "kernels or calls"), (long_texts, "text", "ranges"):
        if count:
            recording.problems.append(f"cut to {LONGEST_NAME:,} characters: {format_count(count, noun)} of {of}")


def _evidence(recording: Recording, use: GpuUsage, steps: ProcessSteps) -> GpuEvidence:
    process = recording.processes[use.gpu.process]
    in_text = {step.rank for step in steps.ranges if step.rank is not None}
    stated = [] if process.rank is None else [(process.rank, process.rank_from or "recording")]
    stated += [(in_text.pop(), "step marker")] if len(in_text) == 1 else []
    launcher = None
    if process.launcher_rank is not None:
        launcher = process.launcher_rank, process.launcher_rank_from or "environment"
    return GpuEvidence(use.gpu.process, use.gpu.device, use.kernels, tuple(stated), launcher)
