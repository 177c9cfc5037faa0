"""Reader of rocprofv3's CSV: a kernel trace and the files with the same prefix, in three versions of columns."""

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Final

from jitter.core.errors import UnreadableTraceError
from jitter.core.formatting import abbreviate, format_count
from jitter.readers import Advance, Batch, Files, Reader, Recording
from jitter.readers.amd.agents import Agents
from jitter.readers.amd.batches import join_names
from jitter.readers.amd.csv_file import CsvFile, read_header
from jitter.readers.amd.file_names import NAMING_HINT, pid_in_file_name, rank_in_file_name, sibling_files
from jitter.readers.amd.rocprofv3.csv_batches import KNOWN_COLUMNS, CsvBatches

_NEEDED: Final = frozenset({"agent_id", "kernel_name", "start_timestamp", "end_timestamp"})
_KERNEL_TRACE: Final = re.compile(r"(?P<prefix>(?:.*_)?)kernel_trace\.csv", re.IGNORECASE)
_PARTS: Final = {
    "hip": r"hip(?:_runtime|_compiler)?(?:_api)?_trace",
    "hsa": r"hsa(?:_core|_amd|_amd_ext)?(?:_api)?_trace",
    "marker": r"marker(?:_api)?_trace",
    "rccl": r"rccl(?:_api)?_trace",
    "copy": r"memory_copy_trace",
    "agents": r"agent_info",
}
_DOMAINS: Final = (
    r"(?:hsa|hip|kernel|marker|rccl|memory_copy|memory_allocation|scratch_memory|domain|rocdecode|rocjpeg|counter)"
    r"(?:_(?:api|runtime|compiler|core|amd|image|finalize|ext|range|control|name))*"
)
_SPARE: Final = re.compile(_DOMAINS + r"_(?:stats|trace|collection)\.csv|results\.json(?:\.gz)?", re.IGNORECASE)

_MOST_AGENTS: Final = 1 << 24
"""Bytes of a list of agents that are read."""


@dataclass
class _Parts:
    """The files of one recording by content."""

    stem: str = ""
    files: dict[str, list[Path]] = field(default_factory=dict)
    spare: list[Path] = field(default_factory=list)

    def of(self, kind: str) -> list[Path]:
        return self.files.get(kind, [])


class RocprofCsvReader:
    """Reads `*_kernel_trace.csv` with the companion files that exist."""

    name = "rocprof-csv"
    version = 1

    def sniff(self, path: Path) -> bool:
        if path.suffix.lower() != ".csv" or not path.is_file():
            return False
        try:
            columns = {name.lower() for name in read_header(path)}
        except OSError:
            return False
        # a file with counters has one row per counter; another file has each kernel once
        return columns >= _NEEDED and "counter_name" not in columns

    def files(self, path: Path) -> Files:
        parts = _parts(path)
        return Files((path, *(file for files in parts.files.values() for file in files)), tuple(parts.spare))

    def open(self, path: Path) -> tuple[Recording, Callable[[Advance], Iterator[Batch]]]:
        """Return the recording and its batches. Raises UnreadableTraceError for a file that is no kernel trace."""
        kernels = CsvFile(path)
        if not kernels.has(*_NEEDED):
            missing = join_names(sorted(_NEEDED.difference(kernels.columns)))
            raise UnreadableTraceError(f"{path}: no kernel trace of rocprofv3: no column {missing}", "record again")
        recording = Recording(path=path, format=self.name, rank_hint=NAMING_HINT)
        return recording, _Trace(kernels, _parts(path), recording).batches


READER: Reader = RocprofCsvReader()


class _Trace:
    """One open kernel trace with its companion files: its batches."""

    def __init__(self, kernels: CsvFile, parts: _Parts, recording: Recording) -> None:
        self._kernels = kernels
        self._parts = parts
        self._recording = recording
        self._problems: list[str] = []
        self._files = (kernels.path, *(file for found in parts.files.values() for file in found))
        self._kernel_rows = 0
        self._advanced = 0

    def batches(self, advance: Advance) -> Iterator[Batch]:
        """Yield all rows, then complete the recording; an unreadable companion file becomes a problem."""

        def counted(size: int) -> None:
            self._advanced += size
            advance(size)

        agents = self._agents(counted)
        rows = CsvBatches(agents, pid_in_file_name(self._parts.stem))
        files: list[CsvFile] = []
        for kind, make in (
            ("rccl", rows.rccl),
            ("hsa", rows.calls),
            ("hip", rows.calls),
        ):
            for path in self._parts.of(kind):
                files.append(CsvFile(path))
                yield from self._companion(make(files[-1], counted), files[-1])
        files.append(self._kernels)
        for batch in rows.kernels(self._kernels, counted):
            self._kernel_rows += batch.rows.num_rows
            yield batch
        for kind, make in (("copy", rows.copies), ("marker", rows.markers)):
            for path in self._parts.of(kind):
                files.append(CsvFile(path))
                yield from self._companion(make(files[-1], counted), files[-1])
        self._finish(rows, files)
        # the rest of a companion file that could not be read
        advance(sum(file.stat().st_size for file in self._files) - self._advanced)

    def _companion(self, batches: Iterator[Batch], file: CsvFile) -> Iterator[Batch]:
        try:
            yield from batches
        except UnreadableTraceError as error:
            self._problems.append(f"{file.path.name}: {error.message.partition(': ')[2]}; it is left out")

    def _agents(self, advance: Advance) -> Agents:
        found: list[tuple[str, int, int | None]] = []
        for path in self._parts.of("agents"):
            advance(path.stat().st_size)
            try:
                with path.open("rb") as file:
                    text = file.read(_MOST_AGENTS).decode("utf-8", "replace")
                for row in csv.DictReader(StringIO(text, newline="")):
                    cells = {(name or "").strip().lower(): value for name, value in row.items()}
                    node, logical = cells.get("node_id") or "", cells.get("logical_node_id") or ""
                    if node.isdecimal():
                        kind = cells.get("agent_type") or ""
                        found.append((kind, int(node), int(logical) if logical.isdecimal() else None))
            except (OSError, csv.Error) as error:
                self._problems.append(f"{path.name}: cannot be read ({error}): GPUs are numbered as recorded")
        return Agents.of(found)

    def _finish(self, rows: CsvBatches, files: list[CsvFile]) -> None:
        recording = self._recording
        if not self._kernel_rows:
            raise UnreadableTraceError(
                f"{recording.path}: no kernels in it", "did the process use a GPU? record with --kernel-trace"
            )
        recording.processes = rows.rows.processes
        recording.names = rows.rows.names
        pids = frozenset(p.pid for p in recording.processes if p.pid is not None)
        recording.rank_in_name = rank_in_file_name(self._parts.stem, pids or frozenset(rows.threads))
        recording.problems += self._problems
        for kind, option, consequence in (
            ("hip", "--hip-trace", "the launching calls are unknown"),
            ("marker", "--marker-trace", "roctx ranges that name steps are unknown"),
        ):
            if not self._parts.of(kind):
                recording.problems.append(f"no {kind}_api_trace.csv in the folder: {consequence}; record with {option}")
        for file in files:
            recording.problems += file.problems()
            recording.is_incomplete |= file.is_cut
            unknown = [name for name in file.columns if name not in KNOWN_COLUMNS]
            if unknown:
                recording.problems.append(
                    f"{file.path.name}: columns unknown to jitter are not read: {join_names(unknown)}"
                )
        if rows.renamed:
            count = format_count(len(rows.renamed), "kernel name is the text", "kernel names are texts")
            recording.problems.append(
                f"{count} of markers ({abbreviate(sorted(rows.renamed)[0])}): kernels inside one marker look alike; "
                "record without --kernel-rename"
            )
        recording.problems += rows.rows.problems()


def is_companion_csv(prefix: str, name: str) -> bool:
    """Return whether rocprofv3 writes a file of this name with this prefix."""
    rest = name.removeprefix(prefix).lower()
    known = any(re.fullmatch(pattern + r"\.csv", rest) for pattern in _PARTS.values())
    return name.startswith(prefix) and (known or _SPARE.fullmatch(rest) is not None)


def _parts(path: Path) -> _Parts:
    """Return the companion files of a kernel trace: those with its prefix, none for a file of another name."""
    named = _KERNEL_TRACE.fullmatch(path.name)
    if named is None:
        return _Parts(path.stem)
    prefix = named["prefix"]
    found = _Parts(prefix.rstrip("_"))
    for file in sibling_files(path, prefix):
        rest = file.name[len(prefix) :]
        kind = next((k for k, p in _PARTS.items() if re.fullmatch(p + r"\.csv", rest, re.IGNORECASE)), None)
        if kind is not None:
            found.files.setdefault(kind, []).append(file)
        elif _SPARE.fullmatch(rest):
            found.spare.append(file)
    return found
