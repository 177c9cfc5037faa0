"""The members of a trace beside its events: the rank, the base time, the host, the versions."""

import re
from typing import Any, Final

import msgspec
from msgspec import Raw

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
