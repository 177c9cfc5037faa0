"""Reader of rocprofv3's JSON: one document for all processes, memory-mapped and decoded a few MB at a time."""

import errno
import gzip
import mmap
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

import msgspec

from jitter.core.errors import JitterError, UnreadableTraceError
from jitter.readers import Advance, Batch, Files, Process, Reader, Recording
from jitter.readers.amd.batches import BatchBuilder
from jitter.readers.amd.file_names import NAMING_HINT, rank_in_file_name
from jitter.readers.amd.rocprofv3.json_batches import ToolBatches
from jitter.readers.amd.rocprofv3.json_records import Tool
from jitter.readers.compression import UnpackedLimit

_HEAD: Final = 4096
_NAME: Final = re.compile(r"(?P<stem>.*?)_?results\.json(?:\.gz)?", re.IGNORECASE)


class _Document(msgspec.Struct):
    """The whole file; its large arrays stay undecoded."""

    tools: list[Tool] = msgspec.field(name="rocprofiler-sdk-tool")


class RocprofJsonReader:
    """Reads `*_results.json`, plain or gzip."""

    name = "rocprof-json"
    version = 1

    def sniff(self, path: Path) -> bool:
        if not path.name.lower().endswith((".json", ".json.gz")) or not path.is_file():
            return False
        try:
            with _opened(path) as file:
                head = file.read(_HEAD)
        except (OSError, EOFError, zlib.error):
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
    kernels = reported = 0
    with _mapped(path) as content:
        document = _decoded(path, content)
        for position, tool in enumerate(document.tools):
            process = rows.process(position, lambda tool=tool: Process(tool.metadata.pid, tool.metadata.node.hostname))  # type: ignore[misc]
            parts = ToolBatches(tool, rows, process)
            for batch, done in _guarded(path, parts.batches()):
                kernels += batch.rows.num_rows if batch.table == "activities" else 0
                due = size * min(done, len(content)) // max(len(content), 1)
                advance(max(0, due - reported))
                reported = max(due, reported)
                if batch.rows.num_rows:
                    yield batch
            problems += parts.problems()
    if not kernels:
        raise UnreadableTraceError(f"{path}: no kernels in it", "did the process use a GPU? record with --kernel-trace")
    advance(size - reported)
    recording.processes, recording.names = rows.processes, rows.names
    named = _NAME.fullmatch(path.name)
    pids = frozenset(process.pid for process in rows.processes if process.pid is not None)
    recording.rank_in_name = rank_in_file_name(named["stem"] if named else path.name.partition(".")[0], pids)
    recording.problems += [*problems, *rows.problems()]


def _guarded(path: Path, parts: Iterator[Any]) -> Iterator[Any]:
    while True:
        try:
            part = next(parts, None)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _damaged(path, error) from error
        if part is None:
            return
        yield part


def _decoded(path: Path, content: mmap.mmap) -> _Document:
    try:
        return msgspec.json.decode(content, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: BaseException) -> UnreadableTraceError:
    return UnreadableTraceError(
        f"{path}: damaged or cut short ({error})", "copy it again, or record again (as rocpd: it survives more)"
    )


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """Yield the document memory-mapped; a compressed one is unpacked into a temporary file first."""
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        if path.suffix.lower() == ".gz":
            plain = stack.enter_context(_temporary_file(path))
            _unpack(path, file, plain)
            file = plain  # type: ignore[assignment]
        try:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise _damaged(path, EOFError("0 bytes")) from error
        yield content
        # not closed here: decoded records may still refer to it


def _unpack(path: Path, file: BinaryIO, plain: IO[bytes]) -> None:
    """Decompress `file` into `plain`. Raises UnreadableTraceError for damage, a full disk and suspicious sizes."""
    limit = UnpackedLimit(path)
    for chunk in _unpacked(path, file):
        limit.add(len(chunk))
        try:
            plain.write(chunk)
        except OSError as error:
            raise _no_space(path, error) from error


def _unpacked(path: Path, file: BinaryIO) -> Iterator[bytes]:
    try:
        with gzip.open(file) as packed:
            while chunk := packed.read(1 << 20):
                yield chunk
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from error


def _temporary_file(path: Path) -> IO[bytes]:
    """Open an unbuffered temporary file, so that a full disk is an error of the write that fills it."""
    try:
        return tempfile.TemporaryFile(buffering=0)
    except OSError as error:  # the folder is full, too, if no file can be made in it
        raise _no_space(path, error) from error


def _no_space(path: Path, error: OSError) -> JitterError:
    place = f"TMPDIR ({os.environ.get('TMPDIR') or tempfile.gettempdir()})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return JitterError(f"{path}: no space in {place} to unpack it", "set TMPDIR to a folder with more space")
    return JitterError(f"{path}: cannot be unpacked in {place} ({error.strerror})", "set TMPDIR to another folder")


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")
