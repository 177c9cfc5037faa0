"""Reader of rocprofv3's JSON: one document for all processes, read in bounded memory.

A first pass finds the lists of records; each is then read in the order in which the batches need them. A compressed
document is decompressed again for each, which takes less time than reading its records.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from isal import igzip

from jitter.core.errors import UnreadableTraceError
from jitter.core.formatting import format_count
from jitter.readers import Advance, Batch, Files, Process, Reader, Recording
from jitter.readers.amd.batches import BatchBuilder
from jitter.readers.amd.file_names import NAMING_HINT
from jitter.readers.amd.rocprofv3.json_batches import TABLES, ToolBatches
from jitter.readers.amd.rocprofv3.json_records import Agent, Kind, Metadata, Symbol, Text, Tool
from jitter.readers.amd.rocprofv3.json_stream import JsonStream
from jitter.readers.compression import GZIP_DAMAGE, UnpackedLimit

_HEAD: Final = 4096
_NAME: Final = re.compile(r"(?P<stem>.*?)_?results\.json(?:\.gz)?", re.IGNORECASE)


class RocprofJsonReader:
    """Reads `*_results.json`, plain or gzip."""

    name = "rocprof-json"
    version = 1

    def sniff(self, path: Path) -> bool:
        if not path.name.lower().endswith((".json", ".json.gz")) or not path.is_file():
            return False
        try:
            with path.open("rb") as packed, _opened(packed, path) as file:
                head = file.read(_HEAD)
        except (OSError, *GZIP_DAMAGE):
            return False
        return b'"rocprofiler-sdk-tool"' in head[:200]

    def files(self, path: Path) -> Files:
        return Files((path,))

    def open(self, path: Path) -> tuple[Recording, Callable[[Advance], Iterator[Batch]]]:
        """Return the recording and its batches; the batches raise UnreadableTraceError for a damaged file."""
        recording = Recording(path=path, format=self.name, rank_hint=NAMING_HINT)
        return recording, lambda advance: _batches(recording, advance)


READER: Reader = RocprofJsonReader()


def _batches(recording: Recording, advance: Advance) -> Iterator[Batch]:
    """Yield all rows, then complete the recording. Raises UnreadableTraceError for cut or invalid JSON."""
    path = recording.path
    size = path.stat().st_size
    rows = BatchBuilder()
    problems: list[str] = []
    kernels = reported = done = 0
    with path.open("rb") as packed, _opened(packed, path) as file, _reading(path):
        stream = JsonStream(file, UnpackedLimit(path) if _is_packed(path) else None, packed.tell)
        tools = list(_tools(stream))
        length, stream.limit = stream.position, None
        for position, tool in enumerate(tools):
            process = rows.process(position, lambda tool=tool: Process(tool.metadata.pid, tool.metadata.node.hostname))  # type: ignore[misc]
            parts = ToolBatches(tool, stream, rows, process)
            for batch, read in parts.batches():
                kernels += batch.rows.num_rows if batch.table == "activities" else 0
                done += read
                advance(size * done // length - reported)
                reported = size * done // length
                if batch.rows.num_rows:
                    yield batch
            problems += parts.problems()
        if stream.invalid:
            left_out = format_count(stream.invalid, "record has", "records have")
            problems.append(f"{left_out} values of another type or size, and were left out")
    if not kernels:
        raise UnreadableTraceError(f"{path}: no kernels in it", "did the process use a GPU? record with --kernel-trace")
    advance(size - reported)
    named = _NAME.fullmatch(path.name)
    rows.complete(recording, named["stem"] if named else path.name.partition(".")[0], problems)


def _tools(stream: JsonStream) -> Iterator[Tool]:
    """Yield the processes of a document; their lists of records are located and not read."""
    for member in stream.members():
        if member == "rocprofiler-sdk-tool":
            for _ in stream.items():
                yield _tool(stream)
        else:
            stream.skip()


def _tool(stream: JsonStream) -> Tool:
    tool, has_records = Tool(), False
    for member in stream.members():
        if member == "metadata":
            tool.metadata = stream.value(Metadata)
        elif member == "agents":
            tool.agents = stream.value(list[Agent])
        elif member == "kernel_symbols":
            for symbols in stream.parts(Symbol):
                tool.names |= {one.kernel_id: one.formatted_kernel_name or one.kernel_name for one in symbols}
        elif member == "strings":
            _read_strings(stream, tool)
        elif member == "buffer_records":
            has_records = True
            tool.tables |= _locate_tables(stream)
        else:
            stream.skip()
    if not has_records:
        raise msgspec.DecodeError("a process without buffer_records")
    return tool


def _read_strings(stream: JsonStream, tool: Tool) -> None:
    for member in stream.members():
        if member == "buffer_records":
            tool.kinds = stream.value(list[Kind])
        elif member == "marker_api":
            for texts in stream.parts(Text):
                tool.texts |= {text.key: text.value for text in texts}
        else:
            stream.skip()


def _locate_tables(stream: JsonStream) -> dict[str, int]:
    """Return the position of each list of records that is read."""
    found = {}
    for member in stream.members():
        stream.peek()
        if member in TABLES:
            found[member] = stream.position
        stream.skip()
    return found


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, *GZIP_DAMAGE) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: BaseException) -> UnreadableTraceError:
    return UnreadableTraceError(
        f"{path}: damaged or cut short ({error})", "copy it again, or record again (as rocpd: it survives more)"
    )


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _opened(file: BinaryIO, path: Path) -> Any:
    return igzip.open(file, "rb") if _is_packed(path) else nullcontext(file)  # type: ignore[no-untyped-call]
