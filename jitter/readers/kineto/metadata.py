"""The members of a trace beside its events (rank, base time, host, versions), and the processes of its rows.

Host rows state their process, GPU rows only their device: a trace is of one process that uses GPUs.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from jitter.readers import Process
from jitter.readers.chrome_trace import opening_bracket

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
    ("schemaVersion", "schema"),
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


def recorded_host(members: dict[str, Raw]) -> str | None:
    """Return the host's name, as PyTorch or `jitter.record` states it; None if neither does."""
    for name in ("host_name", "jitter_host"):
        host = member_value(members, name)
        if isinstance(host, str) and host:
            return host.partition(".")[0]
    return None


def host_in_file_name(file_name: str, pid: int | None) -> str | None:
    """Return the host in a name that PyTorch's or Paddle's own handler gives, `HOST_PID.TIME.pt.trace.json`.

    None in other names.

    The process must be the trace's. A name with a rank in place of the host was chosen by the job.

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
    number = info.get(name) if isinstance(info, dict) else None
    if isinstance(number, str) and number.isdecimal() and len(number) < 10:
        number = int(number)
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
    words_of_schema = "Paddle schema" if isinstance(member_value(members, "schemaVersion"), str) else "Kineto schema"
    return (
        ", ".join(
            f"{words_of_schema if words == 'schema' else words} {value}"
            for words, value in versions
            if isinstance(value, str | int | float)
        )
        or None
    )


_SHOWN: Final = 4
_STRAY: Final = 0.1
"""Share of the calls that damage may have given to another process."""
_RANK_LABEL: Final = re.compile(r"(?i)\W*(?:global )?rank\W{0,3}(\d{1,9})\b")


class ProcessTable:
    """Host processes in order of appearance; `listed` grows as rows are added."""

    def __init__(self) -> None:
        self.listed: list[Process] = []
        self._index: dict[int | None, int] = {}
        self._calls: Counter[int] = Counter()
        """Number of API calls by process."""
        self._ranks: dict[int | None, int] = {}
        """Ranks that labels state, by process id."""

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

    def called(self, calls: Mapping[int, int]) -> None:
        """Count API calls by process, without those of an unknown one."""
        self._calls.update(
            {process: number for process, number in calls.items() if self.listed[process].pid is not None}
        )

    def of_gpus(self) -> int:
        """Return the index of the process that uses the GPUs: the first one with calls."""
        return next(iter(self._calls), 0) if self.listed else self.of(None)

    def label(self, pid: int | None, text: str) -> None:
        """Record a label of a process; it may state the rank."""
        if match := _RANK_LABEL.match(text):
            self._ranks[pid] = int(match[1])

    def set_ranks(self) -> None:
        """Set the ranks that labels state."""
        for pid, index in self._index.items():
            if pid in self._ranks:
                self.listed[index].rank, self.listed[index].rank_from = self._ranks[pid], "a label in the trace"

    def describe_merged(self) -> str | None:
        """Return a clause if several processes made calls: GPU rows do not state whose calls launched them."""
        if self._calls.total() - self._calls[self.of_gpus()] <= _STRAY * self._calls.total():
            return None
        pids = [str(self.listed[process].pid) for process in self._calls]
        more = f" and {len(pids) - _SHOWN} more" if len(pids) > _SHOWN else ""
        return f"traces of {len(pids)} processes merged into one file ({', '.join(pids[:_SHOWN])}{more})"
