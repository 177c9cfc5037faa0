"""Reader of rocprofv3's CSV: a kernel trace and the files with the same prefix, in three versions of columns."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import map_distinct
from jitter.core.errors import UnreadableTraceError
from jitter.core.formatting import abbreviate, format_count, format_some
from jitter.core.grouping import by_key
from jitter.readers import Files, Process
from jitter.readers.amd.rows import (
    SHAPE,
    Agents,
    AmdReader,
    Columns,
    Kind,
    RowBuilder,
    decode_text,
    pid_in_file_name,
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
_FILES: Final[Mapping[str, tuple[Kind, str, ColumnMap, Sequence[str]]]] = {
    # calls come before kernels, and markers after them
    "rccl": ("rccl", r"rccl(?:_api)?_trace", _CALLS, ("function",)),
    "hsa": ("calls", r"hsa(?:_core|_amd|_amd_ext)?(?:_api)?_trace", _CALLS, ("function",)),
    "hip": ("calls", r"hip(?:_runtime|_compiler)?(?:_api)?_trace", _CALLS, ("function",)),
    "kernels": ("kernels", r"kernel_trace", _KERNELS, ()),
    "copy": ("copies", r"memory_copy_trace", _COPIES, ()),
    "marker": ("ranges", r"marker(?:_api)?_trace", _MARKERS, ("domain", "function")),
}
"""The files of a recording in the order of reading: what they hold, name after the prefix, columns, needed columns."""
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
_COMPANIONS: Final = {
    **{name: rf"{pattern}\.csv" for name, (_, pattern, *_) in _FILES.items() if name != "kernels"},
    "agents": r"agent_info\.csv",
    "spare": _DOMAINS + r"_(?:stats|trace|collection)\.csv|results\.json(?:\.gz)?",
}
"""The files that rocprofv3 writes beside a kernel trace, by the names after the prefix; `spare` ones are not read."""
_MOST_AGENTS: Final = 1 << 24
"""Bytes of a list of agents that are read."""
_MANY_THREADS: Final = 10_000
_MOST_NAMES: Final = 5


class RocprofCsvReader(AmdReader):
    """Reads `*_kernel_trace.csv` with the companion files that exist."""

    name = "rocprof-csv"
    version = AmdReader.version + 1

    def sniff(self, path: Path) -> bool:
        columns = sniff_columns(path)
        # a file with counters has one row per counter; another file has each kernel once
        return columns >= _NEEDED and "counter_name" not in columns

    def files(self, path: Path) -> Files:
        _, companions = _companions(path)
        spare = companions.pop("spare", [])
        return Files((path, *chain(*companions.values())), tuple(spare))

    def parts(self, path: Path, rows: RowBuilder, progress: Progress) -> Iterator[tuple[Kind, Columns]]:
        kernels = CsvFile(path)
        if not kernels.has(*_NEEDED):
            missing = format_some(sorted(_NEEDED.difference(kernels.columns)), _MOST_NAMES)
            raise UnreadableTraceError(f"{path}: no kernel trace of rocprofv3: no column {missing}", "record again")
        rows.stem, companions = _companions(path)
        agents, models = _read_agents(companions.get("agents", []), rows.problems)
        rows.recording.gpu_models = {None: ", ".join(sorted(models))} if models else {}
        renamed: set[bytes] = set()  # names of kernels that are texts of markers: rocprofv3 --kernel-rename wrote them
        read: list[CsvFile] = []
        for name, (kind, _, wanted, needed) in _FILES.items():
            for file in [kernels] if kind == "kernels" else map(CsvFile, companions.get(name, [])):
                read.append(file)
                with nullcontext() if kind == "kernels" else rows.leaving_out(file.path):
                    file.require(*needed, *_SPAN.values())
                    for columns in file.read(wanted, progress):
                        chosen = _chosen(kind, columns | {"process": _processes(columns, rows)}, agents)
                        if kind == "kernels" and len(rows.threads) < _MANY_THREADS:
                            rows.threads.update(pc.drop_null(pc.unique(chosen["launched_by"])).to_pylist())
                        if kind == "ranges":
                            names = pa.array([name.encode() for name in rows.names], pa.binary())
                            texts = pc.unique(chosen["text"])
                            renamed.update(texts.filter(pc.is_in(texts, names)).to_pylist())
                        yield kind, chosen
            if kind == "kernels" and not rows.counts["kernels"]:
                raise UnreadableTraceError(
                    f"{path}: no kernels in it", "did the process use a GPU? record with --kernel-trace"
                )
        for name, option, consequence in (
            ("hip", "--hip-trace", "the launching calls are unknown"),
            ("marker", "--marker-trace", "roctx ranges that name steps are unknown"),
        ):
            if name not in companions:
                rows.problems.append(f"no {name}_api_trace.csv in the folder: {consequence}; record with {option}")
        for file in read:
            rows.problems += file.problems()
            rows.recording.is_incomplete |= file.is_cut
            if unknown := [name for name in file.columns if name not in _KNOWN]:
                listed = format_some(unknown, _MOST_NAMES)
                rows.problems.append(f"{file.path.name}: columns unknown to jitter are not read: {listed}")
        if renamed:
            count = format_count(len(renamed), "kernel name is the text", "kernel names are texts")
            rows.problems.append(
                f"{count} of markers ({abbreviate(min(map(decode_text, renamed)))}): kernels inside one marker look "
                "alike; record without --kernel-rename"
            )


READER: Final = RocprofCsvReader()


def _chosen(kind: Kind, columns: Columns, agents: Agents) -> Columns:
    """Return the columns, with the devices of kernels and copies, and without the markers that are no ranges."""
    if kind == "ranges":
        is_range = pc.starts_with(columns["domain"], b"MARKER_CORE")
        return {name: column.filter(is_range) for name, column in columns.items()}
    named = columns.get("agent")
    if kind == "copies":
        # the device is the agent that is not the host
        to_device = pc.match_substring(columns["name"], b"HOST_TO_DEVICE")
        named = pc.if_else(to_device, columns["to"], columns["from"])
    if named is None:
        return columns
    device = map_distinct(named, lambda text: agents.device(decode_text(text)), pa.int32())
    return {**columns, "device": device}


def _processes(columns: Columns, rows: RowBuilder) -> pa.Array:
    """Return the processes: one, or one per guid where databases were merged; with pids where recorded."""
    process_numbers = map_distinct(columns["guid"], lambda guid: rows.process(guid, lambda: Process(None)), pa.int32())
    positions = process_numbers.unique().to_pylist()
    for position in positions:
        process = rows.processes[position]
        if process.pid is None:
            pids = pc.drop_null(columns["pid"].filter(pc.equal(process_numbers, position)))
            in_name = pid_in_file_name(rows.stem) if len(positions) == 1 else None
            # a process's first thread has its number: without it, that of the name was chosen by the user
            is_own = in_name is not None and pc.index(columns.get("launched_by", columns["pid"]), in_name).as_py() >= 0
            process.pid = pids[0].as_py() if len(pids) else in_name if is_own else None
    return process_numbers


def _read_agents(paths: Sequence[Path], problems: list[str]) -> tuple[Agents, set[str]]:
    """Return the GPUs of lists of agents, and their models."""
    agents: list[tuple[str, int, int | None]] = []
    models: set[str] = set()
    for path in paths:
        try:
            with path.open("rb") as file:
                text = file.read(_MOST_AGENTS).decode("utf-8", "replace")
            for row in csv.DictReader(StringIO(text, newline="")):
                cells = {(name or "").strip().lower(): value for name, value in row.items()}
                node, logical = cells.get("node_id") or "", cells.get("logical_node_id") or ""
                if node.isdecimal():
                    kind = cells.get("agent_type") or ""
                    models.update([cells.get("product_name") or cells.get("name") or kind] if kind == "GPU" else ())
                    agents.append((kind, int(node), int(logical) if logical.isdecimal() else None))
        except (OSError, csv.Error) as error:
            problems.append(f"{path.name}: cannot be read ({error}): GPUs are numbered as recorded")
    return Agents.of(agents), models


def is_companion_csv(prefix: str, name: str) -> bool:
    """Return whether rocprofv3 writes a file of this name with this prefix."""
    return name.startswith(prefix) and _content_of(name.removeprefix(prefix)) is not None


def _content_of(name: str) -> str | None:
    """Return which of `_COMPANIONS` a file is, by its name after the prefix; None for another file."""
    return next((kind for kind, pattern in _COMPANIONS.items() if re.fullmatch(pattern, name, re.IGNORECASE)), None)


def _companions(path: Path) -> tuple[str, dict[str, list[Path]]]:
    """Return the prefix of a kernel trace's name, and its companion files by content: none for another name."""
    named = _KERNEL_TRACE.fullmatch(path.name)
    if named is None:
        return path.stem, {}
    prefix = named["prefix"]
    contents = ((_content_of(file.name[len(prefix) :]), file) for file in sibling_files(path, prefix))
    return prefix.rstrip("_"), by_key((content, file) for content, file in contents if content is not None)
