"""Reader of rocprofv3's CSV: a kernel trace and the files with the same prefix, in three versions of columns."""

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import map_distinct
from jitter.core.errors import UnreadableTraceError
from jitter.core.formatting import abbreviate, format_count
from jitter.readers import Advance, Batch, Files, Process, Reader, Recording
from jitter.readers.amd.rows import (
    NAMING_HINT,
    SHAPE,
    Agents,
    RowBuilder,
    decode_text,
    join_names,
    pid_in_file_name,
    rank_in_file_name,
    sibling_files,
)
from jitter.readers.columns import ColumnMap, Progress
from jitter.readers.csv_file import CsvFile, sniff_columns

_SPAN: Final = {"start_ns": "start_timestamp", "end_ns": "end_timestamp"}
_ALL: Final = {**_SPAN, "correlation": "correlation_id", "pid": "process_id"}
_CALLS: Final = ColumnMap({**_ALL, "thread": "thread_id"}, {"guid": "guid", "name": "function"})
_MARKERS: Final = ColumnMap(_CALLS.integers, {"guid": "guid", "text": "function", "domain": "domain"})
_KERNELS: Final = ColumnMap(
    {**_ALL, **SHAPE, "stream": ("stream_id", "queue_id"), "queue": "queue_id", "launched_by": "thread_id"},
    {"guid": "guid", "agent": "agent_id", "name": "kernel_name"},
)
_COPIES: Final = ColumnMap(
    {**_ALL, "stream": "stream_id"},
    {"guid": "guid", "name": ("direction", "name"), "from": "source_agent_id", "to": "destination_agent_id"},
)
_FILES: Final = (
    # calls come before kernels, and markers after them
    ("rccl", r"rccl(?:_api)?_trace", _CALLS),
    ("hsa", r"hsa(?:_core|_amd|_amd_ext)?(?:_api)?_trace", _CALLS),
    ("hip", r"hip(?:_runtime|_compiler)?(?:_api)?_trace", _CALLS),
    ("kernels", r"kernel_trace", _KERNELS),
    ("copy", r"memory_copy_trace", _COPIES),
    ("marker", r"marker(?:_api)?_trace", _MARKERS),
)
"""The files of a recording in the order of reading: kind, name after the prefix, columns."""
_PARTS: Final = {kind: name for kind, name, _ in _FILES if kind != "kernels"} | {"agents": r"agent_info"}
_NEEDED: Final = frozenset({"agent_id", "kernel_name", "start_timestamp", "end_timestamp"})
_KNOWN: Final = frozenset(
    {"guid", "domain", "function", "process_id", "thread_id", "start_timestamp", "end_timestamp", "correlation_id"}
    | {"agent_id", "queue_id", "stream_id", "kernel_name", "direction", "name", "source_agent_id", *SHAPE.values()}
    | {"destination_agent_id", "kind", "dispatch_id", "kernel_id", "region", "category", "pid", "tid", "size"}
    | {"private_segment_size", "group_segment_size", "lds_block_size", "lds_block_size_v", "scratch_size"}
    | {"vgpr_count", "accum_vgpr_count", "sgpr_count", "agent_abs_index"}
)
"""All columns of the known versions, in lower case."""
_KERNEL_TRACE: Final = re.compile(r"(?P<prefix>(?:.*_)?)kernel_trace\.csv", re.IGNORECASE)
_DOMAINS: Final = (
    r"(?:hsa|hip|kernel|marker|rccl|memory_copy|memory_allocation|scratch_memory|domain|rocdecode|rocjpeg|counter)"
    r"(?:_(?:api|runtime|compiler|core|amd|image|finalize|ext|range|control|name))*"
)
_SPARE: Final = re.compile(_DOMAINS + r"_(?:stats|trace|collection)\.csv|results\.json(?:\.gz)?", re.IGNORECASE)
_MOST_AGENTS: Final = 1 << 24
"""Bytes of a list of agents that are read."""
_MANY_THREADS: Final = 10_000


class RocprofCsvReader:
    """Reads `*_kernel_trace.csv` with the companion files that exist."""

    name = "rocprof-csv"
    version = 1

    def sniff(self, path: Path) -> bool:
        columns = sniff_columns(path)
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


@dataclass
class _Parts:
    """The companion files of one kernel trace by content."""

    stem: str = ""
    files: dict[str, list[Path]] = field(default_factory=dict)
    spare: list[Path] = field(default_factory=list)


class _Trace:
    """One open kernel trace with its companion files: its batches."""

    def __init__(self, kernels: CsvFile, parts: _Parts, recording: Recording) -> None:
        self._kernels = kernels
        self._parts = parts
        self._recording = recording
        self._problems: list[str] = []
        self._agents = Agents()
        self._rows = RowBuilder()
        self._threads: set[int] = set()
        """Threads that launched kernels; where no process id is recorded, it is one of them."""
        self._renamed: set[str] = set()
        """Kernel names that are texts of markers: rocprofv3 --kernel-rename wrote them."""

    def batches(self, advance: Advance) -> Iterator[Batch]:
        """Yield all rows, then complete the recording; an unreadable companion file becomes a problem."""
        files_of_kinds = self._parts.files.values()
        paths = [self._kernels.path, *(path for some in files_of_kinds for path in some)]
        progress = Progress(sum(path.stat().st_size for path in paths), advance)
        self._agents = self._read_agents(progress)
        files: list[CsvFile] = []
        for kind, _, columns in _FILES:
            if kind == "kernels":
                files.append(self._kernels)
                for read in self._kernels.read(columns, progress):
                    if len(self._threads) < _MANY_THREADS:
                        self._threads.update(pc.drop_null(pc.unique(read["launched_by"])).to_pylist())
                    changed = {"process": self._processes(read), "device": self._devices(read["agent"])}
                    yield self._rows.kernels(read | changed)
                if not self._rows.counts["kernels"]:
                    raise UnreadableTraceError(
                        f"{self._recording.path}: no kernels in it",
                        "did the process use a GPU? record with --kernel-trace",
                    )
                continue
            for path in self._parts.files.get(kind, []):
                files.append(CsvFile(path))
                yield from self._companion(kind, files[-1], columns, progress)
        self._finish(files)
        progress.finish()  # a companion file that could not be read

    def _companion(self, kind: str, file: CsvFile, columns: ColumnMap, advance: Advance) -> Iterator[Batch]:
        needed = {"copy": (), "marker": ("domain", "function")}.get(kind, ("function",))
        try:
            file.require(*needed, *_SPAN.values())
            for read in file.read(columns, advance):
                process = self._processes(read)
                if kind == "rccl":
                    self._rows.rccl_calls(read | {"process": process})
                elif kind == "copy":
                    # the device is the agent that is not the host
                    to_device = pc.match_substring(read["name"], b"HOST_TO_DEVICE")
                    device = self._devices(pc.if_else(to_device, read["to"], read["from"]))
                    yield self._rows.copies(read | {"process": process, "device": device})
                elif kind == "marker":
                    yield self._marker_rows(read | {"process": process})
                else:
                    yield self._rows.calls(read | {"process": process})
        except UnreadableTraceError as error:
            self._problems.append(f"{file.path.name}: {error.message.partition(': ')[2]}; it is left out")

    def _marker_rows(self, read: dict[str, pa.Array]) -> Batch:
        kernels = pa.array([name.encode() for name in self._rows.names], pa.binary())
        is_range = pc.starts_with(read["domain"], b"MARKER_CORE")
        columns = {name: column.filter(is_range) for name, column in read.items()}
        same = columns["text"].filter(pc.is_in(columns["text"], kernels))
        self._renamed.update(decode_text(text) for text in pc.unique(same).to_pylist())
        return self._rows.ranges(columns)

    def _devices(self, agents: pa.Array) -> pa.Array:
        return map_distinct(agents, lambda text: self._agents.device(decode_text(text)), pa.int32())

    def _processes(self, read: dict[str, pa.Array]) -> pa.Array:
        """Return the processes: one, or one per guid where databases were merged; with pids where recorded."""
        process_numbers = map_distinct(
            read["guid"], lambda guid: self._rows.process(guid, lambda: Process(None)), pa.int32()
        )
        positions = process_numbers.unique().to_pylist()
        for position in positions:
            process = self._rows.processes[position]
            if process.pid is None:
                pids = pc.drop_null(read["pid"].filter(pc.equal(process_numbers, position)))
                in_name = pid_in_file_name(self._parts.stem) if len(positions) == 1 else None
                process.pid = pids[0].as_py() if len(pids) else in_name
        return process_numbers

    def _read_agents(self, advance: Advance) -> Agents:
        agents: list[tuple[str, int, int | None]] = []
        for path in self._parts.files.get("agents", []):
            advance(path.stat().st_size)
            try:
                with path.open("rb") as file:
                    text = file.read(_MOST_AGENTS).decode("utf-8", "replace")
                for row in csv.DictReader(StringIO(text, newline="")):
                    cells = {(name or "").strip().lower(): value for name, value in row.items()}
                    node, logical = cells.get("node_id") or "", cells.get("logical_node_id") or ""
                    if node.isdecimal():
                        kind = cells.get("agent_type") or ""
                        agents.append((kind, int(node), int(logical) if logical.isdecimal() else None))
            except (OSError, csv.Error) as error:
                self._problems.append(f"{path.name}: cannot be read ({error}): GPUs are numbered as recorded")
        return Agents.of(agents)

    def _finish(self, files: list[CsvFile]) -> None:
        recording, problems = self._recording, self._problems
        for kind, option, consequence in (
            ("hip", "--hip-trace", "the launching calls are unknown"),
            ("marker", "--marker-trace", "roctx ranges that name steps are unknown"),
        ):
            if kind not in self._parts.files:
                problems.append(f"no {kind}_api_trace.csv in the folder: {consequence}; record with {option}")
        for file in files:
            problems += file.problems()
            recording.is_incomplete |= file.is_cut
            unknown = [name for name in file.columns if name not in _KNOWN]
            if unknown:
                problems.append(f"{file.path.name}: columns unknown to jitter are not read: {join_names(unknown)}")
        if self._renamed:
            count = format_count(len(self._renamed), "kernel name is the text", "kernel names are texts")
            problems.append(
                f"{count} of markers ({abbreviate(sorted(self._renamed)[0])}): kernels inside one marker look alike; "
                "record without --kernel-rename"
            )
        self._rows.complete(recording, self._parts.stem, problems)
        if all(process.pid is None for process in recording.processes):
            recording.rank_in_name = rank_in_file_name(self._parts.stem, frozenset(self._threads))


def is_companion_csv(prefix: str, name: str) -> bool:
    """Return whether rocprofv3 writes a file of this name with this prefix."""
    rest = name.removeprefix(prefix).lower()
    is_part = any(re.fullmatch(pattern + r"\.csv", rest) for pattern in _PARTS.values())
    return name.startswith(prefix) and (is_part or _SPARE.fullmatch(rest) is not None)


def _parts(path: Path) -> _Parts:
    """Return the companion files of a kernel trace: those with its prefix, none for a file of another name."""
    named = _KERNEL_TRACE.fullmatch(path.name)
    if named is None:
        return _Parts(path.stem)
    prefix = named["prefix"]
    parts = _Parts(prefix.rstrip("_"))
    for file in sibling_files(path, prefix):
        rest = file.name[len(prefix) :]
        kind = next((k for k, p in _PARTS.items() if re.fullmatch(p + r"\.csv", rest, re.IGNORECASE)), None)
        if kind is not None:
            parts.files.setdefault(kind, []).append(file)
        elif _SPARE.fullmatch(rest):
            parts.spare.append(file)
    return parts
