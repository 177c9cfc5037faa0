"""The members of a trace beside its events (rank, base time, host, versions), and the processes of its rows.

Host rows state their process, GPU rows only their device.
"""

import re
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Raw

from jitter.core.formatting import format_some
from jitter.core.numeric.arrays import Ints
from jitter.readers import Process, Recording
from jitter.readers.chrome_trace import opening_bracket
from jitter.readers.columns import parse_integer

SNIFFED_BYTES: Final = 64 * 1024
"""Bytes of a file's beginning that tell its format."""
_CATEGORIES: Final = (
    rb"cpu_op|user_annotation|gpu_user_annotation|cuda_runtime|cuda_driver|kernel|gpu_memcpy|gpu_memset|overhead"
    rb"|python_function|cpu_instant_event|cuda_sync|ac2g|fwdbwd|Trace|Operator|Runtime|Kernel|Memcpy|Memset"
)
_KINETO: Final = re.compile(
    rb'"cat"\s*:\s*"(?:' + _CATEGORIES + rb')"|"(?:schemaVersion|deviceProperties|distributedInfo|process_labels'
    rb'|baseTimeNanoseconds|External id)"'
)
_NOT_KINETO: Final = re.compile(
    rb'"(?:BeginNs|rocprofiler-sdk-tool|rocprofiler-sdk)"|"CPU HIP API"'
    rb'|"cat"\s*:\s*"Session"|"provider"\s*:\s*"\w{1,64}ExecutionProvider"'  # ONNX Runtime
)
_HANDLER_NAME: Final = re.compile(
    r"(?P<host>[\w.-]+)_(?P<pid>\d{1,10})\.\d{13,20}\.pt\.trace\.json(?:\.gz|\.zst)?", re.ASCII
)
"""As `torch.profiler.tensorboard_trace_handler` names traces; the time is in ms or ns."""
_PADDLE_NAME: Final = re.compile(
    r"host_(?P<host>[\w.-]+)pid_(?P<pid>\d{1,10})_time_[\d_]{1,40}\.paddle_trace\.json", re.ASCII
)
"""As `paddle.profiler.export_chrome_tracing` names traces."""
_PADDLE: Final = re.compile(rb'"schemaVersion"\s*:\s*"')
"""Paddle's version is a text, PyTorch's a number."""
_NO_HOST: Final = re.compile(r"(?i)rank|^localhost$")
_VERSIONS: Final = (
    ("pytorch_version", "PyTorch"),
    ("torch_version", "PyTorch"),
    ("schemaVersion", ""),
    ("cupti_version", "CUPTI"),
    ("roctracer_version", "roctracer"),
    ("rocprofiler_version", "rocprofiler"),
)


def is_kineto(text: bytes) -> bool:
    """Return whether a file with this beginning is a PyTorch profiler trace and not another Chrome trace."""
    if _NOT_KINETO.search(text) or not _KINETO.search(text):
        return False
    words = {b"[": (b'"ph"',), b"{": (b'"traceEvents"', b'"schemaVersion"')}
    return any(word in text for word in words.get(opening_bracket(text), ()))


def is_paddle(header: bytes) -> bool:
    """Return whether Paddle's profiler wrote the trace with these members before its events."""
    return _PADDLE.search(header) is not None


def members_in_damaged(text: bytes) -> dict[str, Raw]:
    """Return the needed members of damaged JSON that are complete."""
    members = {}
    for name, value in re.findall(rb'"(baseTimeNanoseconds|schemaVersion)"\s*:\s*(\d+)\b', text):
        members[name.decode()] = Raw(value)
    rank = re.search(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?("rank"\s*:\s*\d+)\b', text)
    if rank:
        members["distributedInfo"] = Raw(b"{" + rank[1] + b"}")
    return members


def member_value(members: dict[str, Raw], name: str) -> Any:
    """Return a member's value; None if it is absent or damaged."""
    try:
        return msgspec.json.decode(members[name]) if name in members else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def host_in_file_name(file_name: str, pid: int | None) -> str | None:
    """Return the host in a file name that PyTorch or Paddle chose, as `HOST_PID.TIME.pt.trace.json`; else None.

    Such a name states the trace's process, `pid`. One that has a rank in place of the host was chosen by the job.

    >>> host_in_file_name("gpu-7_4242.1700000000000000000.pt.trace.json.gz", 4242)
    'gpu-7'
    """
    match = _HANDLER_NAME.fullmatch(file_name) or _PADDLE_NAME.fullmatch(file_name)
    if match is None or pid is None or int(match["pid"]) != pid or _NO_HOST.search(match["host"]):
        return None
    return match["host"].partition(".")[0]


def gpu_models(members: dict[str, Raw]) -> dict[int | None, str]:
    """Return the model of each GPU in `deviceProperties`; None is the key of all if they are of one model."""
    listed = member_value(members, "deviceProperties")
    models: dict[int | None, str] = {}
    for device in listed if isinstance(listed, list) else []:
        if isinstance(device, dict) and type(device.get("id")) is int and isinstance(device.get("name"), str):
            models[device["id"]] = device["name"]
    return {None: next(iter(models.values()))} if len(set(models.values())) == 1 else models


def distributed_number(members: dict[str, Raw], name: str) -> int | None:
    """Return the `rank` or the `world_size` in `distributedInfo`; None if absent or invalid."""
    info = member_value(members, "distributedInfo")
    if isinstance(info, str):  # some writers make it a string
        info = member_value({"": Raw(info.encode())}, "")
    number = parse_integer(info.get(name)) if isinstance(info, dict) else None
    return number if number is not None and 0 <= number < 2**31 else None


def base_time_ns(members: dict[str, Raw]) -> int | None:
    """Return the base time in ns, which added to the times in the trace gives UTC; None if absent or invalid."""
    base = parse_integer(member_value(members, "baseTimeNanoseconds"))
    return base if base is not None and 0 < base < 2**62 else None


def describe(members: dict[str, Raw], recording: Recording, processes: "ProcessTable") -> None:
    """Set what the members state of a recording and of its processes."""
    is_paddles = isinstance(member_value(members, "schemaVersion"), str)
    versions = [(words, member_value(members, name)) for name, words in _VERSIONS]
    schema = "Paddle schema" if is_paddles else "Kineto schema"
    stated = [f"{words or schema} {value}" for words, value in versions if isinstance(value, str | int | float)]
    recording.profiler_version = ", ".join(stated) or None
    recording.gpu_models = gpu_models(members)
    recording.world_size = distributed_number(members, "world_size") or None
    rank, process = distributed_number(members, "rank"), processes.only_one()
    if rank is not None and process is not None:
        process.rank, process.rank_from = rank, "distributedInfo"
    elif rank is not None:
        recording.problems.append(
            f"distributedInfo names rank {rank}, but several processes use GPUs: its process is unknown"
        )
    # as PyTorch or `jitter.record` states it
    hosts = (member_value(members, name) for name in ("host_name", "jitter_host"))
    stated_host = next((host.partition(".")[0] for host in hosts if isinstance(host, str) and host), None)
    for process in recording.processes:
        process.host = stated_host or host_in_file_name(recording.path.name, process.pid)


Track = tuple[int | None, int | None]
"""A GPU of a trace: the process id of its rows, which is the device's number where one process wrote the file, and the
device."""
_REMEMBERED_CALLS: Final = 200_000
_REMEMBERED_ROWS: Final = 50_000
"""Calls of a process and rows of a GPU by which they are joined; a trace nearly always has one process."""
_LONGEST_WAIT_NS: Final = 60 * 10**9
_CLOCK_ERROR_NS: Final = 1_000
"""By how much a GPU row may begin before its call: times are rounded."""
_STRAY: Final = 0.01
"""Share of a GPU's rows that other processes may have launched: each leaves a few on the first GPU of its host."""
_SHOWN: Final = 4
_RANK_LABEL: Final = re.compile(r"(?i)\W*(?:global )?rank\W{0,3}(\d{1,9})\b")


class _Sample:
    """The first correlations and starts of a process's calls or of a GPU's rows."""

    def __init__(self, most: int) -> None:
        self._parts: list[tuple[Ints, Ints]] = []
        self._free = most

    def add(self, correlations: Ints, starts: Ints) -> None:
        if self._free > 0:
            self._free -= len(correlations)
            self._parts.append((correlations, starts))

    def rows(self) -> tuple[Ints, Ints]:
        """Return correlations and starts, by correlation, then start."""
        correlations, starts = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        order = np.lexsort((starts, correlations))
        return correlations[order], starts[order]

    def until(self) -> int:
        """Return the time in ns up to which all are held."""
        return np.iinfo(np.int64).max if self._free > 0 else min(int(self._parts[-1][1].max()), 2**62)


class ProcessTable:
    """Host processes in order of appearance; `listed` grows as rows are added.

    Where several processes make calls, each GPU has an entry of its own: `join_gpus` sets whose calls launched its
    rows.
    """

    def __init__(self) -> None:
        self.listed: list[Process] = []
        self._index: dict[int | None, int] = {}
        self._calls: dict[int, _Sample] = {}
        """By process."""
        self._rows: dict[Track, _Sample] = {}
        self._own: dict[Track, int] = {}
        """The entry of each GPU."""
        self._assumed: dict[Track, int] = {}
        """The process of rows that came before the calls of a second process."""
        self._ranks: dict[int | None, int] = {}
        """Ranks that labels or arguments state, by process id."""

    def of(self, pid: int | None) -> int:
        """Return the index of a host process."""
        index = self._index.get(pid)
        if index is None:
            waiting = self._index.pop(None, None) if pid is not None and len(self.listed) == 1 else None
            if waiting is not None:  # GPU rows came before the first host row
                self.listed[waiting].pid = parse_integer(pid)
                index = waiting
            else:
                index = len(self.listed)
                self.listed.append(Process(parse_integer(pid)))
            self._index[pid] = index
        return index

    def called(self, process: int, correlations: Ints, starts: Ints) -> None:
        """Record API calls of a process."""
        self._calls.setdefault(process, _Sample(_REMEMBERED_CALLS)).add(correlations, starts)

    def of_gpu(self, track: Track, correlations: Ints, starts: Ints) -> int:
        """Return the process of a GPU's rows: the only one with calls, else the GPU's own entry."""
        self._rows.setdefault(track, _Sample(_REMEMBERED_ROWS)).add(correlations, starts)
        if len(self._calls) < 2:
            index = next(iter(self._calls), 0) if self.listed else self.of(None)
            self._assumed[track] = index
            return index
        if track not in self._own:
            self._own[track] = len(self.listed)
            self.listed.append(Process(None))
        return self._own[track]

    def label(self, pid: int | None, text: str) -> None:
        """Record a label of a process or of a GPU; it may state the rank."""
        if match := _RANK_LABEL.match(text):
            self._ranks[pid] = int(match[1])

    def state_rank(self, process: int, rank: object) -> None:
        """Record the rank that the arguments of a process's events state."""
        if type(rank) is int and 0 <= rank < 2**31:
            self._ranks[self.listed[process].pid] = rank

    def join_gpus(self) -> str | None:
        """Set ranks, and whose calls launched the rows of each GPU; return what cannot be told, None if all can.

        A process may have launched a GPU's rows if it made a call before each of them with its correlation. Of as many
        processes as GPUs, each has one of its own.
        """
        for pid, index in self._index.items():
            if pid in self._ranks:
                self.listed[index].rank, self.listed[index].rank_from = self._ranks[pid], "a label in the trace"
        if len(self._calls) < 2:
            return None
        until = min(sample.until() for sample in self._calls.values())
        calls = {process: sample.rows() for process, sample in self._calls.items()}
        callers = {track: self._possible_callers(track, calls, until) for track in self._rows}
        joined: dict[Track, int] = {}
        while certain := {track: options[0] for track, options in callers.items() if len(options) == 1}:
            joined |= certain
            taken = set(certain.values()) if len(self._rows) == len(self._calls) else set()
            callers = {
                track: [process for process in options if process not in taken]
                for track, options in callers.items()
                if track not in certain
            }
        wrong = [track for track in self._rows if self._assumed.get(track, joined.get(track)) != joined.get(track)]
        for _, device in [*callers, *wrong]:
            return f"{self._describe()}, and which of them launched the kernels of device {device} cannot be told"
        for track, index in self._own.items():
            self.listed[index].launched_by = joined[track]
        return None

    def _possible_callers(self, track: Track, calls: dict[int, tuple[Ints, Ints]], until: int) -> list[int]:
        """Return the processes whose calls may have launched a GPU's rows; rows from `until` on are not looked at."""
        correlations, starts = self._rows[track].rows()
        kept = (correlations >= 0) & (starts < until)
        correlations, starts = correlations[kept], starts[kept]
        matched = {}
        for process, (called, at) in calls.items():
            place = np.minimum(np.searchsorted(called, correlations), len(called) - 1)
            wait = starts - at[place]
            matched[process] = (called[place] == correlations) & (wait >= -_CLOCK_ERROR_NS) & (wait < _LONGEST_WAIT_NS)
        known = int(np.logical_or.reduce(list(matched.values())).sum())
        rank = self._ranks.get(track[0])
        return [
            process
            for process, is_matched in matched.items()
            if known
            and known - int(is_matched.sum()) <= _STRAY * known
            and (rank is None or self.listed[process].rank in (None, rank))
        ]

    def problems(self) -> list[str]:
        """Return what is uncertain about the processes, one sentence each."""
        if len(self._calls) < 2:
            return []
        return [f"{self._describe()}: each has the GPU whose kernels its calls launched"]

    def _describe(self) -> str:
        pids = [str(self.listed[process].pid) for process in self._calls]
        return f"traces of {len(pids)} processes merged into one file ({format_some(pids, _SHOWN)})"

    def only_one(self) -> Process | None:
        """Return the process that uses GPUs; None if several do."""
        if len(self._calls) == 1:
            return self.listed[next(iter(self._calls))]
        return self.listed[0] if self.listed and not self._calls else None
