"""NCCL Inspector (2.28.3 on, formats v4.0 to v4.2; RCCL alike): JSON objects, one a line or pretty-printed.

NVIDIA/nccl plugins/profiler/inspector: `header`, `metadata`, and `coll_perf` or `p2p_perf`. It records operations of
8 KiB and more, from a ring buffer: gaps in the sequence are normal. Ranks of a group join by (`header.id`, `coll_sn`).
"""

import re
from typing import Any, Final

from jitter.core.bandwidth import size_of_message
from jitter.core.names.kernels import parse_operation
from jitter.logs.line_parser import Context, LineParser
from jitter.logs.values import as_integer, as_text, decode_json

_KNOWN: Final = re.compile(r"v4\.[0-2]")
_PREFIX: Final = re.compile(rb'[^{"]+(?=\{\s*"header")')
_LARGEST: Final = 4 << 20
"""Bytes of an object."""
_BETWEEN: Final = re.compile(rb"(?<=\})\s*,?\s*(?=\{\s*\")")


class InspectorParser(LineParser):
    """Collectives and point-to-point operations, and the communicators that they name."""

    format = "nccl-inspector"
    triggers = (b'"coll_perf"', b'"p2p_perf"', b'"header"')

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._trigger = re.compile(rb"\{")  # of lines, in a file that holds records
        self._relevant = False
        self._lines: list[bytes] = []
        """Of an object that has begun: with `{` in the first column, until `}` there."""
        self._size = 0
        self._first = 0
        self._broken: list[int] = []
        """Numbers of the lines that began an object which cannot be read."""
        self._members: set[tuple[str, int]] = set()

    def wants(self, chunk: bytes) -> bool:
        """Return whether the file holds records; once one was seen, every line is read."""
        self._relevant = self._relevant or super().wants(chunk)
        return self._relevant

    def line(self, line: bytes, number: int) -> None:
        if prefix := _PREFIX.match(line):
            line = line[prefix.end() :]
        line = line.rstrip()
        if line.startswith(b"{"):
            self._give_up()
            self._size, self._first = 0, number
        elif not self._lines:
            return
        ends = line.startswith(b"}") if self._lines else line.endswith((b"}", b"},", b"]"))
        self._lines.append(line)
        self._size += len(line)
        self.is_open = not ends
        if ends:
            content, self._lines = b"\n".join(self._lines), []
            for record in self._objects_in(content):
                self._read_record(record, number)
        elif self._size > _LARGEST:
            self._give_up()

    def finish(self) -> None:
        """Report broken objects, unless the file holds no record: then its objects are something else."""
        self._give_up()
        if self.format in self.context.records:
            for number in self._broken:
                self.context.problems.broken(self.format, number)

    def _give_up(self) -> None:
        """Take an object that is open as broken."""
        if self._lines:
            self._broken.append(self._first)
            self._lines, self.is_open = [], False

    def _objects_in(self, content: bytes) -> list[dict[str, Any]]:
        """Return the objects of some lines: one, or several in one line."""
        content = content.rstrip(b",] \t")
        if (json_object := _decoded(content)) is not None:
            return [json_object]
        parts = _BETWEEN.split(content)
        read = [_decoded(part) for part in parts] if len(parts) > 1 else [None]
        if None in read:
            self._broken.append(self._first)
        return [part for part in read if part is not None]

    def _read_record(self, record: dict[str, Any], number: int) -> None:
        kind = "coll" if "coll_perf" in record else "p2p"
        measured = record.get(f"{kind}_perf")
        if not isinstance(measured, dict):
            return
        header = record.get("header", record)
        metadata = record.get("metadata", record)
        if not isinstance(header, dict) or not isinstance(metadata, dict):
            self.context.problems.broken(self.format, number)
            return
        version = metadata.get("inspector_output_format_version", "v4.0")
        if not isinstance(version, str) or not _KNOWN.fullmatch(version):
            self.context.problems.note(self.format, f"format {str(version)[:20]} is unknown; read as v4")
        trace = measured.get("event_trace_ts")  # of verbose records: the host's times, µs since 1970
        start = _nanoseconds(trace.get(f"{kind}_start_ts")) if isinstance(trace, dict) else None
        rank, ranks = _count(header.get("rank")), _count(header.get("n_ranks"))
        group = str(header["id"]) if "id" in header else None
        collective = parse_operation(str(measured.get(kind, "")))
        size = _count(measured.get(f"{kind}_msg_size_bytes"))
        if size is None or collective is None:
            self.context.problems.broken(self.format, number)
            return
        self.add(
            "recorded",
            rank=rank,
            group_name=group,
            sequence=_count(measured.get(f"{kind}_sn")),
            collective=collective,
            size_bytes=size_of_message(collective, size, ranks),
            start_ns=start,
            duration_ns=_nanoseconds(measured.get(f"{kind}_exec_time_us")),
            timing=as_text(measured.get(f"{kind}_timing_source")),
            algorithm=as_text(measured.get(f"{kind}_algo")),
            protocol=as_text(measured.get(f"{kind}_proto")),
            state="completed",
        )
        if group is not None and rank is not None and (group, rank) not in self._members:
            self._members.add((group, rank))
            host = as_text(metadata.get("hostname"))
            self.context.tables.add("communicators", comm=group, rank=rank, ranks=ranks, host=host)


def _nanoseconds(microseconds: Any) -> int | None:
    if isinstance(microseconds, int):
        return microseconds * 1_000
    return round(microseconds * 1e3) if isinstance(microseconds, float) else None


def _count(value: Any) -> int | None:
    number = as_integer(value)
    return None if number is None or number < 0 else number


def _decoded(content: bytes) -> dict[str, Any] | None:
    try:
        json_object = decode_json(content)
    except ValueError:
        return None
    return json_object if isinstance(json_object, dict) else None
