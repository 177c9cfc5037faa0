"""stdout and stderr of the command: they may be closed, full, or lack characters in their encoding; progress."""

import errno
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any

import click

from jitter.core.errors import JitterError
from jitter.core.files import name_archive_members
from jitter.core.formatting import escape_control

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
STDOUT = "stdout"
"""The file that an error names which comes from writing stdout to a full disk."""


class _StdoutFile(FileIO):
    """The file behind stdout. The system's errors name no file, and those of a full disk may be of any file."""

    written = 0
    """Bytes."""

    def write(self, content: Any, /) -> int:
        try:
            written = super().write(content)
            self.written += written or 0
            return written
        except OSError as error:
            if error.errno in _DISK:
                error.filename = STDOUT
            raise


def say(text: str) -> None:
    """Print a message on stderr as one line, with control characters replaced and members of archives named."""
    click.echo(escape_control(name_archive_members(text)), err=True)


def print_text(text: str) -> None:
    """Print to stdout; a reader that has left does not change the command's result."""
    try:
        click.echo(text, nl=False)
        flush_stdout()
    except BrokenPipeError:
        discard_stdout()


def prepare_streams() -> None:
    """Make both streams accept any text, even if they are closed or a path is not UTF-8."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115  # open as long as the process runs
    # the interpreter's own, which stays open behind the other; a program that embeds the command may have replaced it
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, TextIOWrapper):
        sys.stdout = _named_stdout(sys.stdout)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            utf8 = stream.encoding.lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


def _named_stdout(stream: TextIOWrapper) -> TextIOWrapper:
    """Return a stream like stdout whose errors of a full disk name it."""
    file = _StdoutFile(stream.fileno(), "w", closefd=False)
    buffer: Any = file if isinstance(stream.buffer, FileIO) else BufferedWriter(file)  # `python -u` has no buffer
    is_lined, is_direct = stream.line_buffering, stream.write_through
    return TextIOWrapper(buffer, stream.encoding, line_buffering=is_lined, write_through=is_direct)


def written_bytes() -> int:
    """Return how much has been written to stdout, as far as that is known."""
    file = getattr(getattr(sys.stdout, "buffer", None), "raw", getattr(sys.stdout, "buffer", None))
    try:
        sys.stdout.flush()
        return file.written if isinstance(file, _StdoutFile) else sys.stdout.tell()
    except (OSError, ValueError):  # cannot be told
        return 0


def flush_stdout() -> None:
    """Flush stdout while an error can still be reported; raises as writing does."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_stdout()
        raise


def discard_stdout() -> None:
    """Discard the buffer of stdout: Python would try to write it again at exit, and print an error."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # stdout has no file descriptor
        return


def disk_error(error: OSError) -> JitterError | None:
    """Return a readable error for one of a full disk, which names the file where that is known; else None."""
    if error.errno not in _DISK:
        return None
    return JitterError(f"{error.filename or 'a file'} cannot be written: {error.strerror}", "is the disk full?")


def is_reader_closed() -> bool:
    """Return whether the reader of stdout or stderr has closed the pipe."""
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        try:
            poll.register(stream.fileno(), 0)  # a closed end is reported without being asked for
        except (OSError, ValueError, AttributeError):
            continue
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


@contextmanager
def byte_progress(label: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that shows (bytes done, bytes in total) on stderr; None without a terminal or if `quiet`."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
