"""The members of a trace beside its events (rank, base time, host, versions), and the processes of its rows.

Host rows state their process, GPU rows only their device.
"""

import re
from collections import Counter, defaultdict
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Raw

from jitter.core.numeric.arrays import Ints
from jitter.readers import Process
from jitter.readers.chrome_trace import opening_bracket, parse_object_tail

_SNIFFED_BYTES: Final = 64 * 1024
_CATEGORIES: Final = (
    rb"cpu_op|user_annotation|gpu_user_annotation|cuda_runtime|cuda_driver|kernel|gpu_memcpy|gpu_memset|overhead"
    rb"|python_function|cpu_instant_event|cuda_sync|ac2g|fwdbwd|Trace|Operator|Runtime|Kernel|Memcpy|Memset"
)
_KINETO: Final = re.compile(
    rb'"cat"\s*:\s*"(?:' + _CATEGORIES + rb')"|"(?:schemaVersion|deviceProperties|distributedInfo|process_labels'
    rb'|baseTimeNanoseconds|External id)"'
)
_NOT_KINETO: Final = re.compile(rb'"(?:BeginNs|rocprofiler-sdk-tool|rocprofiler-sdk)"|"CPU HIP API"')
_HANDLER_NAME: Final = re.compile(
    r"(?P<host>[\w.-]+)_(?P<pid>\d{1,10})\.\d{13,20}\.pt\.trace\.json(?:\.gz|\.zst)?", re.ASCII
)
"""As `torch.profiler.tensorboard_trace_handler` names traces; the time is in ms or ns."""
_NO_HOST: Final = re.compile(r"(?i)rank|^localhost$")
_VERSIONS: Final = (
    ("pytorch_version", "PyTorch"),
    ("torch_version", "PyTorch"),
    ("schemaVersion", "Kineto schema"),
    ("cupti_version", "CUPTI"),
    ("roctracer_version", "roctracer"),
    ("rocprofiler_version", "rocprofiler"),
)


def is_kineto(text: bytes) -> bool:
    """Return whether a file with this beginning is a PyTorch profiler trace and not another Chrome trace."""
    text = text[:_SNIFFED_BYTES]
    if _NOT_KINETO.search(text) or not _KINETO.search(text):
        return False
    words = {b"[": (b'"ph"',), b"{": (b'"traceEvents"', b'"schemaVersion"')}
    return any(word in text for word in words.get(opening_bracket(text), ()))


def parse_trailer(tail: bytes, *, is_bare: bool) -> tuple[dict[str, Raw], bool]:
    """Return the members after the events, and whether they are damaged or cut."""
    if is_bare:
        return {}, False
    members = parse_object_tail(tail)
    return (members, False) if members is not None else (members_in_damaged(tail), True)


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


def distributed_rank(members: dict[str, Raw]) -> int | None:
    """Return the rank in `distributedInfo`; None if absent or invalid."""
    return _distributed_number(members, "rank")


def distributed_world_size(members: dict[str, Raw]) -> int | None:
    """Return the world size in `distributedInfo`; None if absent or invalid."""
    return _distributed_number(members, "world_size") or None


def recorded_host(members: dict[str, Raw]) -> str | None:
    """Return the host's name, as PyTorch or `jitter.record` states it; None if neither does."""
    for name in ("host_name", "jitter_host"):
        host = member_value(members, name)
        if isinstance(host, str) and host:
            return host.partition(".")[0]
    return None


def host_in_file_name(file_name: str, pid: int | None) -> str | None:
    """Return the host in a name that PyTorch's own handler gives, `HOST_PID.TIME.pt.trace.json`; None in other names.

    The process must be the trace's. A name with a rank in place of the host was chosen by the job.

    >>> host_in_file_name("gpu-7_4242.1700000000000000000.pt.trace.json.gz", 4242)
    'gpu-7'
    """
    match = _HANDLER_NAME.fullmatch(file_name)
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


def _distributed_number(members: dict[str, Raw], name: str) -> int | None:
    info = member_value(members, "distributedInfo")
    if isinstance(info, str):  # some writers make it a string
        info = member_value({"": Raw(info.encode())}, "")
    number = info.get(name) if isinstance(info, dict) else None
    return number if type(number) is int and 0 <= number < 2**31 else None


def base_time_ns(members: dict[str, Raw]) -> int | None:
    """Return the base time in ns, which added to the times in the trace gives UTC; None if absent or invalid."""
    base = member_value(members, "baseTimeNanoseconds")
    if isinstance(base, str) and base.isdecimal() and len(base) < 20:
        base = int(base)
    return base if type(base) is int and 0 < base < 2**62 else None


def profiler_version(members: dict[str, Raw]) -> str | None:
    """Return the versions of the profiler and its libraries as text; None if none is stated."""
    versions = [(words, member_value(members, name)) for name, words in _VERSIONS]
    return ", ".join(f"{words} {value}" for words, value in versions if isinstance(value, str | int | float)) or None


_REMEMBERED: Final = 200_000
"""Calls kept per process to find the process of a GPU; a trace nearly always has one process."""
_LONGEST_WAIT_NS: Final = 60 * 10**9


class ProcessTable:
    """Host processes in order of appearance; `listed` grows as rows are added."""

    def __init__(self) -> None:
        self.listed: list[Process] = []
        self._index: dict[int | None, int] = {}
        self._callers: list[int] = []
        self._calls: dict[int, list[tuple[Ints, Ints]]] = defaultdict(list)
        self._remembered: Counter[int] = Counter()
        self._votes: dict[int | None, Counter[int]] = defaultdict(Counter)

    def of(self, pid: int | None) -> int:
        """Return the index of a host process."""
        index = self._index.get(pid)
        if index is None:
            waiting = self._index.pop(None, None) if pid is not None and len(self.listed) == 1 else None
            if waiting is not None:  # GPU rows came before the first host row
                self.listed[waiting].pid = pid
                index = waiting
            else:
                index = len(self.listed)
                self.listed.append(Process(pid))
            self._index[pid] = index
        return index

    def called(self, process: int, correlations: Ints, starts: Ints) -> None:
        """Record API calls of a process."""
        if process not in self._callers:
            self._callers.append(process)
        if self._remembered[process] < _REMEMBERED:
            self._remembered[process] += len(correlations)
            order = np.argsort(correlations, kind="stable")
            self._calls[process].append((correlations[order], starts[order]))

    def of_gpu(self, device: int | None, correlations: Ints, starts: Ints) -> int:
        """Return the process of a device's rows: the only one with calls, else the one whose calls the rows follow."""
        if len(self._callers) == 1:
            return self._callers[0]
        if not self._callers:
            return 0 if self.listed else self.of(None)
        votes = self._votes[device]
        best = np.full(len(starts), _LONGEST_WAIT_NS, dtype=np.int64)
        by = np.full(len(starts), -1, dtype=np.int64)
        for process, parts in self._calls.items():
            for called, at in parts:
                place = np.minimum(np.searchsorted(called, correlations), len(called) - 1)
                wait = starts - at[place]
                nearer = (called[place] == correlations) & (wait >= 0) & (wait < best)
                best[nearer] = wait[nearer]
                by[nearer] = process
        votes.update(by[by >= 0].tolist())
        return votes.most_common(1)[0][0] if votes else self._callers[0]

    def problems(self) -> list[str]:
        """Return what is uncertain about the processes, one sentence each."""
        if len(self._callers) < 2:
            return []
        pids = ", ".join(str(self.listed[process].pid) for process in self._callers)
        return [
            f"{len(self._callers)} processes ({pids}) use GPUs in this trace: each device was assigned to "
            "the process whose calls its activities follow"
        ]

    def only_one(self) -> Process | None:
        """Return the process that uses GPUs; None if several do."""
        if len(self._callers) == 1:
            return self.listed[self._callers[0]]
        return self.listed[0] if self.listed and not self._callers else None
