"""JSON of nccl-tests (`-J FILE`, 2025-10 on; JSON_FILE_VERSION 3 and 4): times in µs, bandwidths in GB/s."""

from typing import Any, Final

import msgspec

from jitter.core.names.kernels import parse_operation
from jitter.logs.line_parser import Context

FORMAT: Final = "nccl-tests-json"
_KNOWN_VERSIONS: Final = range(1, 5)


class _Report(msgspec.Struct):
    results: list[msgspec.Raw]
    version: Any = None
    args: Any = None
    config: Any = None


class _Half(msgspec.Struct):
    alg_bw: float
    bus_bw: float
    time: float | None = None
    cpu_time: float | None = None
    nwrong: Any = None


class _Result(msgspec.Struct):
    size: int
    type: str
    out_of_place: _Half | None = None
    in_place: _Half | None = None
    experiment_name: Any = None


def is_report(head: bytes) -> bool:
    """Return whether a file begins like a report of nccl-tests."""
    return head.lstrip()[:1] == b"{" and b'"alg_bw"' in head and b'"bus_bw"' in head and b'"results"' in head


def read(content: bytes, context: Context) -> None:
    """Read the report; a result that cannot be read loses itself."""
    try:
        report = msgspec.json.decode(content, type=_Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        context.problems.broken(FORMAT, 1)
        return
    if report.version is not None and report.version not in _KNOWN_VERSIONS:
        context.problems.note(FORMAT, f"version {str(report.version)[:20]} is unknown; read as version 4")
    ranks = _ranks(report.config)
    program = report.args[0] if isinstance(report.args, list) and report.args else None
    named = parse_operation(str(program).rpartition("/")[2]) if program else None
    named = named or parse_operation(context.path.name)
    for at, raw in enumerate(report.results):
        try:
            _add(msgspec.json.decode(raw, type=_Result), named, ranks, context)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
            context.problems.broken(FORMAT, at + 1, "of the results cannot be read")


def _add(result: _Result, named: str | None, ranks: int | None, context: Context) -> None:
    for in_place, half in ((False, result.out_of_place), (True, result.in_place)):
        if half is None:
            continue
        wrong = half.nwrong
        context.tables.add(
            "bandwidth",
            label=context.label,
            collective=parse_operation(str(result.experiment_name)) or named,
            size_bytes=result.size,
            dtype=result.type,
            ranks=ranks,
            in_place=in_place,
            time_us=half.time if half.time is not None else half.cpu_time,
            algbw=half.alg_bw,
            busbw=half.bus_bw,
            wrong=int(wrong) if isinstance(wrong, int | float) else None,
        )
        context.count(FORMAT)


def _ranks(config: Any) -> int | None:
    devices = config.get("devices") if isinstance(config, dict) else None
    return len(devices) if isinstance(devices, list) and devices else None
