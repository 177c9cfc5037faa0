"""What a reader is. A new profiler is one new file here, one entry point, one fixture.

A reader knows its format and nothing else: it turns one source into batches of three tables (see
`jitter.core.schema`: activities, calls, ranges) and says who recorded them. It does not know of steps, of the lake,
or of other ranks, and it never guesses a rank.
"""

from collections import UserDict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa

Advance = Callable[[int], None]
"""Called with the number of further bytes of the source that have been dealt with."""


class Batch(NamedTuple):
    """Some rows of one of the three tables; `rows` has that table's columns, nullable ones optional."""

    table: Literal["activities", "calls", "ranges"]
    rows: pa.RecordBatch


@dataclass
class Process:
    """One process of a recording, as the recording tells of it. What it does not tell is None."""

    pid: int | None
    host: str | None = None
    rank: int | None = None
    """The job's global rank, if the recording itself names it for this process."""
    rank_from: str | None = None
    """What named it, for people: "NVTX 'MPI Rank 3'", "SLURM_PROCID", "distributedInfo"."""
    launcher_rank: int | None = None
    """A rank read from the environment of the process that the profiler launched. It holds only if the
    recording has one GPU process: under torchrun all its children share this environment."""
    launcher_rank_from: str | None = None


@dataclass
class Recording:
    """What one source says of itself. All of it is final only once `batches` is drained."""

    path: Path
    format: str
    profiler_version: str | None = None
    utc_offset_ns: int | None = None
    """Added to a time of this recording it gives UTC; None where the profiler recorded no wall clock."""
    processes: list[Process] = field(default_factory=list)
    names: Sequence[str] = field(default_factory=list)
    """Kernel and call names; the tables hold positions in it."""
    problems: list[str] = field(default_factory=list)
    """What is missing or damaged, one sentence each, with its count."""
    rank_in_name: int | None = None
    """A rank told by the file's name in a way that only this format's users name files; the last resort."""
    rank_hint: str | None = None
    """How to record so that the rank is told, for people: said where it cannot be."""


class Files(NamedTuple):
    """The files of one recording."""

    read: tuple[Path, ...]
    """What is read (files, or the folder that is the recording), the recording's own path first."""
    spare: tuple[Path, ...] = ()
    """What lies beside it and tells the same in another form or in sums: neither read nor a recording of its own."""


class Reader(Protocol):
    """One profiler's format.

    `open` raises `UnreadableTraceError` for a source that cannot be read at all. Memory stays bounded: batches
    are produced as the source is read, at most some 10 MB each.
    """

    name: str
    """Also that of its entry point."""
    version: int

    def sniff(self, path: Path) -> bool:
        """Whether this file (or, for formats that are folders, this folder) is of the format; reads little."""
        ...

    def files(self, path: Path) -> Files:
        """All files of the recording at this path, which must be of the format; looks at names only."""
        ...

    def open(self, path: Path) -> tuple[Recording, Callable[[Advance], Iterator[Batch]]]:
        """The recording, and the function that yields its batches and reports bytes to `advance`."""
        ...


class _Readers(UserDict[str, Reader]):
    """Loads a reader when it is asked for: a run needs few of them."""

    data: dict[str, Any]
    """Readers, and functions that load one."""

    def __getitem__(self, name: str) -> Reader:
        found = self.data[name]
        if isinstance(found, partial):
            found = self.data[name] = found()
        reader: Reader = found
        return reader


@cache
def readers() -> MutableMapping[str, Reader]:
    """All installed readers by name: the built-in ones and those other packages add, under the names of their entry
    points. They are tried in this order, and loaded as they are.
    """
    found = _Readers()
    found.data.update((point.name, partial(point.load)) for point in entry_points(group="jitter.readers"))
    return found
