"""Read a log file in one pass: every format's parser sees its lines, whatever else the file holds."""

import codecs
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, islice, takewhile
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

import pyarrow as pa

from jitter.core.compression import is_packed, read_chunks, read_head
from jitter.core.files import modified_ns
from jitter.logs import cluster, flight_recorder, gpu, nccl_tests, ncclras, placement, throughput
from jitter.logs.inspector import InspectorParser
from jitter.logs.line_parser import Context, LineParser, Lines, Problem, Problems
from jitter.logs.mpitrace import MpitraceParser
from jitter.logs.nccl_debug import NcclDebugParser
from jitter.logs.perftools import PerftoolsParser
from jitter.logs.profiler_plugin import ProfilerPluginParser
from jitter.logs.tables import Tables
from jitter.logs.times import in_year_of
from jitter.logs.values import decode_json
from jitter.logs.watchdog import TracebackParser, WatchdogParser


class Document(NamedTuple):
    """A format whose files are read as a whole."""

    begin: bytes
    marks: tuple[bytes, ...]
    """What the first bytes hold."""
    any_mark: tuple[bytes, ...]
    """They hold one of these, too; empty: no more."""
    format: str
    read: Callable[[Any, Context], None]
    """Reads what the file holds; an error is damage, and what was read before stays."""
    decode: Callable[[bytes], Any] = decode_json


_DOCUMENTS: Final = (
    *(
        Document(
            begin, marks, flight_recorder.MARKS, flight_recorder.FORMAT, flight_recorder.read, flight_recorder.decode
        )
        for begin, marks in ((b"{", (b'"entries"',)), (b"\x80", ()))
    ),
    Document(b"{", (b'"communicators_count"',), (), ncclras.FORMAT, ncclras.read_json),
    Document(b"{", (b'"card',), (b"Power (W)", b"clock speed", b"(Sensor "), "amd-smi", gpu.read_amd_json),
    Document(b"{", (b'"gpu_data"',), (b'"socket_power"', b'"gfx_0"', b'"hotspot"'), "amd-smi", gpu.read_amd_json),
    Document(b"[", (b'"gpu"',), (b'"socket_power"', b'"gfx_0"', b'"hotspot"'), "amd-smi", gpu.read_amd_json),
    Document(b"{", (b'"test_categories"',), (), "dcgmi-diag", gpu.read_dcgm_diagnostic),
    Document(
        b"{",
        (b'"resultType"',),
        tuple(trigger.removesuffix(b"{") for exporter in gpu.EXPORTERS for trigger in exporter.triggers),
        gpu.DCGM.format,
        gpu.read_prometheus,
    ),
    Document(b"{", (b'"alg_bw"', b'"bus_bw"', b'"results"'), (), nccl_tests.JSON_FORMAT, nccl_tests.read_report),
)
_PARSERS: Final[tuple[Callable[[Context], LineParser], ...]] = (
    nccl_tests.NcclTestsParser,
    InspectorParser,
    ProfilerPluginParser,
    MpitraceParser,
    PerftoolsParser,
    WatchdogParser,
    TracebackParser,
    ncclras.RasParser,
    placement.JobstepParser,
    placement.NvidiaTopologyParser,
    placement.RocmTopologyParser,
    *(declared.parser for declared in (placement.BINDINGS, *cluster.FORMATS, *gpu.FORMATS, *throughput.FORMATS)),
)


def _document_of(head: bytes) -> Document | None:
    """Return the format of a file that begins like this, or None where it is read line by line."""
    for document in _DOCUMENTS:
        if head[:1] == document.begin or (document.begin == b"{" and head.lstrip()[:1] == b"{"):
            has_any = not document.any_mark or any(mark in head for mark in document.any_mark)
            if has_any and all(mark in head for mark in document.marks):
                return document
    return None


_CHUNK: Final = 1 << 20
_HOST_PREFIX: Final = re.compile(
    rb"(?!(?i:rank|worker|proc|process|task)[_-]?\d+:)([A-Za-z][\w.-]{0,62}\d[\w.-]{0,62}):(?: |$)"
)
_MOST_HOSTS: Final = 4_096
_OF_LAUNCHERS: Final = (b"pdsh@", b"clush: ")
"""Beginnings of lines that they print of a host: `pdsh@login: n7: ssh exited with exit code 1`."""
_ESCAPES: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\(B|\][^\x07\x1b\n]*(?:\x07|\x1b\\))")
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LONGEST_LINE: Final = 4 << 20
_HEAD: Final = 4 << 20
_TAIL: Final = 1 << 20
_SEARCHED: Final = 256 << 20
_BEGINS_WITH_TIME: Final = re.compile(
    rb"(?:<\d{1,3}>)?(?:\d{4}-\d\d-\d\d[T ]\d|[A-Z][a-z]{2} [ \d]\d \d\d:|\[ *\d+\.\d+\] |\[[A-Z][a-z]{2} [A-Z]|"
    rb"\{\"__|__CURSOR=)"
)
_OBJECT: Final = re.compile(rb"(?:\x1e|data: )?(?=\{)")
"""The beginning of a line of `journalctl -o json`, `json-seq` or `json-sse`, or of a container's log."""
_LAST_LINES: Final = 100
_LARGEST_DOCUMENT: Final = 256 << 20
_QUOTING_SUFFIXES: Final = frozenset((
    ".bash", ".c", ".cc", ".cpp", ".cu", ".cuh", ".go", ".h", ".hpp", ".html", ".ipynb", ".java", ".js", ".lua",
    ".py", ".rs", ".sbatch", ".sh", ".ts",
))  # fmt: skip
"""Source code and pages quote logs; they are not taken for logs."""


@dataclass(frozen=True)
class ParsedLog:
    """Tables and problems of a log file."""

    tables: dict[str, pa.Table]
    """By relation, of `SCHEMAS`; only those with rows."""
    problems: list[Problem]
    records: dict[str, int]
    """Records read, by format."""


def parse(path: str | Path, *, label: str | None = None, source: str | None = None) -> ParsedLog:
    """Read a log file of any of the formats, or of several at once, plain or packed with gzip or zstd.

    `label` names what was measured (default: the file's folder); `source` is what the column `source` holds
    (default: the path). Raises OSError where the file cannot be read, and `UnreadableTraceError` where it unpacks to
    suspiciously many bytes; broken lines are in `problems`.
    """
    path = Path(path)
    lost: list[str] = []
    blocks = read_chunks(path, _CHUNK, lambda _: None, lost)
    written_ns = modified_ns(path.stat())
    return parse_blocks(blocks, path, label=label, source=source, lost=lost, written_ns=written_ns)


def parse_blocks(
    blocks: Iterator[bytes],
    path: PurePath,
    *,
    label: str | None = None,
    source: str | None = None,
    lost: Sequence[str] = (),
    written_ns: int | None = None,
) -> ParsedLog:
    """Read the content of a log, in blocks of at most 1 MiB; `path` states its name.

    `lost` holds, once all blocks are read, what of the file cannot be unpacked. `written_ns` is when the file was last
    modified, where that is known: it tells the zone of times that state none.
    """
    label = path.parent.name if label is None else label
    context = Context(path, label, Tables(str(path) if source is None else source), Problems())
    head: list[bytes] = []
    while sum(map(len, head)) < _HEAD and (block := next(blocks, b"")):
        head.append(block)
    document = _document_of(b"".join(head))
    if document is None:
        _read_lines(chain(head, blocks), context)
    else:
        _read_document(chain(head, blocks), document, context)
    for text in lost:
        context.problems.note("text", text)
    tables = context.tables.finished()
    if written_ns is not None and (ahead_ns := context.times.ahead_ns(written_ns)):
        tables = {name: _in_utc(table, ahead_ns, written_ns) for name, table in tables.items()}
    return ParsedLog(tables, context.problems.listed(), context.records)


def _in_utc(table: pa.Table, ahead_ns: int, written_ns: int) -> pa.Table:
    """Return the rows of a log whose times are ahead of UTC, and which was last modified at `written_ns`."""
    if "time_ns" not in table.schema.names:
        return table
    at = table.schema.get_field_index("time_ns")
    column = table["time_ns"]
    times_ns = in_year_of(column.fill_null(0).to_numpy(), written_ns) - ahead_ns
    return table.set_column(at, table.schema.field(at), pa.array(times_ns, mask=column.is_null().to_numpy()))


def sniff(content: str | Path | bytes) -> str | None:
    """Return the format that most records of a log belong to, or None where it holds no record.

    Given a path, the first 4 MiB are read, then, to the first record, the first 256 MiB of a file that begins with a
    time, as logs of a system do, else the last 1 MiB of a plain file; given bytes, these are the file's first ones.
    """
    if isinstance(content, bytes):
        return _format_of(content, PurePath("log"))
    path = Path(content)
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if any(suffix in _QUOTING_SUFFIXES for suffix in (suffixes if is_packed(path) else suffixes[-1:])):
        return None
    head = read_head(path, _HEAD)
    format_name = _format_of(head, path)
    if format_name is None and _BEGINS_WITH_TIME.match(head):
        return _format_of_lines(islice(read_chunks(path, _CHUNK, lambda _: None, []), _SEARCHED // _CHUNK), path)
    if format_name is None and b"\0" not in head[:4096] and not is_packed(path):
        with path.open("rb") as file:
            rest = file.seek(0, io.SEEK_END) - len(head)
            if rest > 0:
                file.seek(-min(_TAIL, rest), io.SEEK_END)
                format_name = _format_of(file.read(), path)
    return format_name


def _format_of(content: bytes, path: PurePath) -> str | None:
    document = _document_of(content)
    if document is not None:
        return document.format
    if b"\0" in content[:4096] and not content.startswith(_UTF_16):
        return None
    return _format_of_lines((content,), path)


def _format_of_lines(blocks: Iterable[bytes], path: PurePath) -> str | None:
    context = Context(path, "", Tables(""), Problems())
    _read_lines(takewhile(lambda _: not context.tables.has_rows(), blocks), context)
    if not context.tables.has_rows():
        return None
    return max(context.records, key=lambda name: context.records[name])


def _read_document(blocks: Iterable[bytes], document: Document, context: Context) -> None:
    content = bytearray()
    for block in blocks:
        content += block
        if len(content) > _LARGEST_DOCUMENT:
            context.problems.note(document.format, f"larger than {_LARGEST_DOCUMENT >> 20} MiB; not read")
            return
    try:
        document.read(document.decode(bytes(content)), context)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        context.problems.note(document.format, "the file is damaged or cut off; the rest of it was not read")


def _read_lines(blocks: Iterable[bytes], context: Context) -> None:
    blocks = _as_utf8(iter(blocks))
    readers: dict[str | None, _Readers] = {}
    is_of_hosts: bool | None = None
    chunk = b""
    for whole, first in _chunks(blocks, context):
        chunk = _plain(_unwrapped(whole))
        is_of_hosts = _has_host_prefixes(chunk) if is_of_hosts is None else is_of_hosts
        numbers = range(first, first + chunk.count(b"\n") + 1)
        for host, lines, of_host in _by_host(chunk, numbers) if is_of_hosts else [(None, chunk, numbers)]:
            if host not in readers and len(readers) <= _MOST_HOSTS:
                readers[host] = _Readers(replace(context, host=host))
            if host in readers:
                readers[host].read(lines, of_host)
    for reader in readers.values():
        reader.end()
    for line in chunk.split(b"\n")[-_LAST_LINES:]:  # the file was last modified when they were written
        if _BEGINS_WITH_TIME.match(line):
            context.times.read_last(line.decode("utf-8", "replace"))


class _Readers:
    """The parsers of all formats, for the lines of one host or of a whole file."""

    def __init__(self, context: Context) -> None:
        self._nccl = NcclDebugParser(context)
        self._parsers = [parser(context) for parser in _PARSERS]

    def read(self, chunk: bytes, numbers: Sequence[int]) -> None:
        """Read whole lines, with their numbers in the file."""
        lines: Lines | None = None
        if self._nccl.wants(chunk):
            lines = self._nccl.take(list(zip(numbers, chunk.split(b"\n"), strict=True)))
            chunk = b"\n".join([line for _, line in lines])
        for parser in self._parsers:
            if parser.wants(chunk):
                lines = list(zip(numbers, chunk.split(b"\n"), strict=True)) if lines is None else lines
                parser.read(lines)

    def end(self) -> None:
        """Take the end of the file."""
        for parser in (self._nccl, *self._parsers):
            parser.end()


def _has_host_prefixes(chunk: bytes) -> bool:
    """Return whether every line begins with the name of a host, as `pdsh` and `clush` print the output of several."""
    lines = [line for line in chunk.split(b"\n") if line.strip() and not line.startswith(_OF_LAUNCHERS)]
    hosts = [match[1] for line in lines if (match := _HOST_PREFIX.match(line)) is not None]
    return len(hosts) == len(lines) >= 2 * len(set(hosts)) > 0 and len(set(hosts)) <= _MOST_HOSTS


def _by_host(chunk: bytes, numbers: Sequence[int]) -> Iterator[tuple[str | None, bytes, Sequence[int]]]:
    """Return the lines of each host without its name, with their numbers."""
    of_host: dict[str | None, tuple[list[bytes], list[int]]] = {}
    for number, line in zip(numbers, chunk.split(b"\n"), strict=True):
        match = _HOST_PREFIX.match(line)
        lines, of_lines = of_host.setdefault(match[1].decode() if match else None, ([], []))
        lines.append(line[match.end() :] if match else line)
        of_lines.append(number)
    yield from ((host, b"\n".join(lines), of_lines) for host, (lines, of_lines) in of_host.items())


def _as_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Return the blocks of a text in UTF-8; one in UTF-16 begins with a mark."""
    head = next(blocks, b"")
    if not head.startswith(_UTF_16):
        yield head.removeprefix(codecs.BOM_UTF8)
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for block in chain((head,), blocks):
        yield decoder.decode(block).encode("utf-8", "replace")


def _plain(chunk: bytes) -> bytes:
    """Return lines without what terminals and Windows add: escapes (colours, titles), and `\\r` at their ends."""
    if b"\x1b" in chunk:
        chunk = _ESCAPES.sub(b"", chunk)
    return chunk.replace(b"\r\n", b"\n").removesuffix(b"\r") if b"\r" in chunk else chunk


def _unwrapped(chunk: bytes) -> bytes:
    """Return lines without the JSON object that `journalctl -o json` or a container's log puts around each."""
    if b"\n__REALTIME_TIMESTAMP=" in chunk:
        chunk = b"\n\n".join(map(_exported, chunk.split(b"\n\n")))
    if b'"MESSAGE"' not in chunk and b'"log":' not in chunk:
        return chunk
    return b"\n".join(map(_unwrapped_line, chunk.split(b"\n")))


def _unwrapped_line(line: bytes) -> bytes:
    if (begin := _OBJECT.match(line)) is None:
        return line
    try:
        entry = decode_json(line[begin.end() :])
        text = entry.get("MESSAGE", entry.get("log"))
        if isinstance(text, list):  # bytes that are no text, as those of colours
            text = bytes(text).decode("utf-8", "replace")
        if not isinstance(text, str):
            return line
        if "log" in entry:
            return f"{entry.get('time', '')} {text}".strip().replace("\n", " ").encode()
        return _as_syslog(entry, text).encode("utf-8", "replace")
    except (ValueError, TypeError, KeyError, OverflowError, OSError, AttributeError):
        return line


def _as_syslog(entry: Mapping[str, Any], text: str) -> str:
    moment = datetime.fromtimestamp(int(entry["__REALTIME_TIMESTAMP"]) / 1e6, UTC).isoformat()
    program = entry.get("SYSLOG_IDENTIFIER", "kernel" if entry.get("_TRANSPORT") == "kernel" else "-")
    program = program if program == "kernel" else f"{program}[{entry.get('_PID', 0)}]"
    return f"{moment} {entry.get('_HOSTNAME', '-')} {program}: {text}".replace("\n", " ")


def _exported(content: bytes) -> bytes:
    """Return an entry of `journalctl -o export`, a field a line, as one of syslog in as many lines."""
    lines = content.decode("utf-8", "replace").split("\n")
    entry = dict(line.split("=", 1) for line in lines if "=" in line)
    try:
        lines = [_as_syslog(entry, entry["MESSAGE"]) if line.startswith("MESSAGE=") else "" for line in lines]
    except (ValueError, KeyError, OverflowError, OSError):
        return content
    return "\n".join(lines).encode("utf-8", "replace")


def _chunks(blocks: Iterable[bytes], context: Context) -> Iterator[tuple[bytes, int]]:
    """Return whole lines of about a MiB, without the last line end, each with the number of its first line.

    Those of `journalctl -o export` are whole entries, between which is an empty line.
    """
    first = 1
    rest = b""
    skipping = False
    between = b""
    for stored in blocks:
        block = stored
        between = between or (b"\n\n" if block.startswith(b"__CURSOR=") else b"\n")
        if skipping:
            end = block.find(b"\n")
            if end < 0:
                continue
            block, skipping, first = block[end + 1 :], False, first + 1
        end = block.rfind(between)
        if end < 0:
            rest += block
            if len(rest) > _LONGEST_LINE:
                context.problems.broken("text", first, f"longer than {_LONGEST_LINE >> 20} MiB")
                rest, skipping = b"", True
            continue
        chunk = rest + block[:end]
        rest = block[end + len(between) :]
        yield chunk, first
        first += chunk.count(b"\n") + len(between)
    if rest:
        yield rest, first
