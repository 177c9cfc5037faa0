"""The reader contract and the registry of installed readers.

A new profiler format is one package here, one entry point and one fixture; `jitter.readers.testing.check` tests it.

A reader knows its format and nothing else. It converts one source into batches of tables (`jitter.core.schema`:
activities, calls, ranges; where recorded operators, backward) and describes the recording. It does not know steps, the
lake or other ranks, and it never guesses a rank.
"""

from abc import ABC, abstractmethod
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from jitter.core.errors import JitterError
from jitter.core.schema import READER_TABLES
from jitter.readers.columns import PossibleTimes, Progress, fit_integers

Advance = Callable[[int], None]
"""Called with the number of further bytes of the source that were read."""


class ReaderError(JitterError):
    """A reader that cannot be loaded, fails, or breaks the contract."""


TableName = Literal["activities", "calls", "ranges", "operators", "backward"]


class Batch(NamedTuple):
    """Rows of one of the tables; `rows` has the table's columns, nullable ones optional."""

    table: TableName
    rows: pa.RecordBatch


def make_batch(table: TableName, columns: Mapping[str, pa.Array]) -> Batch:
    """Return a batch of these columns, by name, in the table's order and types; integers that do not fit are null."""
    table_schema = READER_TABLES[table]
    schema = pa.schema([table_schema.field(name) for name in sorted(columns, key=table_schema.get_field_index)])
    arrays = [
        fit_integers(columns[field.name], field.type)
        if field.type == pa.int32()
        else columns[field.name].cast(field.type)
        for field in schema
    ]
    return Batch(table, pa.RecordBatch.from_arrays(arrays, schema=schema))


@dataclass
class Process:
    """One process of a recording; what the recording does not state is None."""

    pid: int | None
    host: str | None = None
    rank: int | None = None
    """The global rank, if the recording itself states it for this process."""
    rank_from: str | None = None
    """The source of `rank`, for people: "NVTX 'MPI Rank 3'", "SLURM_PROCID", "distributedInfo"."""
    launcher_rank: int | None = None
    """A rank from the environment of the process that the profiler launched. It is used only if one process of the
    recording uses GPUs: under torchrun all child processes share this environment."""
    launcher_rank_from: str | None = None
    launched_by: int | None = None
    """The process whose calls launched the activities of this one, where a reader knows it only after the last row."""


@dataclass
class Recording:
    """Statements of one source about itself, complete only after the last batch."""

    path: Path
    format: str
    profiler_version: str | None = None
    utc_offset_ns: int | None = None
    """Added to a time of this recording it gives UTC; None if the profiler recorded no wall clock."""
    processes: list[Process] = field(default_factory=list)
    names: Sequence[str] = field(default_factory=list)
    """Kernel and call names; the tables hold indices into it."""
    problems: list[str] = field(default_factory=list)
    """Missing or damaged content, one sentence each, with its count."""
    rank_in_name: int | None = None
    """A rank in the file's name by a convention of this format only; the last resort."""
    rank_hint: str | None = None
    """Advice how to record the rank; shown if the rank is unknown."""
    node: int | None = None
    """The number of its node among the job's, from 0, if the recording states it."""
    node_from: str | None = None
    """The variable that states it."""
    world_size: int | None = None
    """Number of ranks of the job, if the recording states it."""
    gpu_models: dict[int | None, str] = field(default_factory=dict)
    """Model of each GPU by its device number, if the recording states it; None: the model of all its GPUs."""
    bus_ids: dict[int | None, str] = field(default_factory=dict)
    """PCI address of each GPU by its device number, as domain:bus:device; None: of the only GPU."""
    is_incomplete: bool = False
    """Whether rows are known to be missing because the file is cut or damaged."""
    about_ns: int | None = None
    """A time of the capture, once a `SourceReader` has read a row."""


class Files(NamedTuple):
    """The files of one recording."""

    read: tuple[Path, ...]
    """Paths that are read (files, or the folder that is the recording), the recording's own path first."""
    spare: tuple[Path, ...] = ()
    """Files with the same content in another form, or with sums of it: neither read nor recordings of their own."""


class SourceReader(ABC):
    """One profiler's format: a reader needs `name`, `sniff` and `batches`, and `files` if a recording has several.

    Memory is bounded: batches are yielded while the source is read, about 10 MB each at most. A reader reports the
    bytes that it has read to a `Progress`; the rest is reported when it is done. Rows with an impossible start or end,
    or with a null where their table allows none, are left out and counted here.
    """

    name: str
    """Equal to the name of its entry point."""
    version = 1
    """Increased whenever the reader gives other rows for the same source; the lake records it with each source."""
    rank_hint: str | None = None

    @abstractmethod
    def sniff(self, path: Path) -> bool:
        """Return whether a file (for folder formats a folder) has this format; reads little of it."""

    def files(self, path: Path) -> Files:
        """Return all files of the recording at `path`, which has this format; looks only at names."""
        return Files((path,))

    def open(self, path: Path) -> tuple[Recording, Callable[[Advance], Iterator[Batch]]]:
        """Return the recording, and the function that yields its batches and reports bytes read to `advance`.

        It, or the first batch, raises `UnreadableTraceError` for a source that cannot be read at all.
        """
        recording = self.recording(path)
        return recording, partial(self._read, recording)

    def recording(self, path: Path) -> Recording:
        """Return what is known of the recording before it is read."""
        return Recording(path, self.name, rank_hint=self.rank_hint)

    @abstractmethod
    def batches(self, recording: Recording, progress: Progress) -> Iterator[Batch]:
        """Yield all rows, and complete the recording."""

    def _read(self, recording: Recording, advance: Advance) -> Iterator[Batch]:
        progress = Progress(size_of(*self.files(recording.path).read), advance)
        times = PossibleTimes()
        for batch in self.batches(recording, progress):
            possible = batch._replace(rows=times.keep(*batch))
            recording.about_ns = times.about_ns
            if possible.rows.num_rows:
                yield possible
        recording.problems += times.problems()
        progress.finish()


def files_in(*paths: Path) -> list[Path]:
    """Return the files at these paths; of folders all that they hold."""
    return [file for path in paths for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]


def size_of(*paths: Path) -> int:
    """Return the bytes of the files at these paths, and in the folders."""
    return sum(file.stat().st_size for file in files_in(*paths))


class ReaderRegistry(UserDict[str, SourceReader]):
    """Installed readers by entry point name; each is loaded on first use."""

    def __init__(self, points: Sequence[EntryPoint]) -> None:
        self._points = {point.name: point for point in points}
        self.data: dict[str, Any] = dict.fromkeys(self._points)

    def __getitem__(self, name: str) -> SourceReader:
        """Return a reader. Raises `ReaderError` if it cannot be loaded and `KeyError` if it is not installed."""
        if self.data[name] is None:
            self.data[name] = _load(self._points[name])
        reader: SourceReader | ReaderError = self.data[name]
        if isinstance(reader, ReaderError):
            raise reader
        return reader


@cache
def readers() -> ReaderRegistry:
    """Return the installed readers: jitter's own and those of other packages, in the order in which they are tried."""
    return ReaderRegistry(list(entry_points(group="jitter.readers")))


def _load(point: EntryPoint) -> SourceReader | ReaderError:
    try:
        reader = point.load()
    except Exception as error:  # code of another package, which may raise anything
        return ReaderError(
            f"reader {point.name!r} ({point.value}) cannot be loaded: {describe_error(error)}",
            "repair or uninstall its package; the other readers are used",
        )
    if not isinstance(reader, SourceReader):
        return ReaderError(
            f"reader {point.name!r} ({point.value}) is no reader: it does not inherit from jitter.readers.SourceReader",
            "repair or uninstall its package; the other readers are used",
        )
    return reader


def describe_error(error: BaseException) -> str:
    """Return an exception's type and first line, as one line for people."""
    kind, line = type(error).__name__, first_line(error)
    return kind if line == kind else f"{kind}: {line}"


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message; its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
