"""stdout and stderr of the command: they may be closed, full, or lack characters in their encoding."""

import errno
import os
import select
import sys
from io import TextIOWrapper

import click

from jitter.core.errors import JitterError
from jitter.core.formatting import escape_control

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def say(text: str) -> None:
    """Print a message on stderr as one line, with control characters replaced."""
    click.echo(escape_control(text), err=True)


def prepare_streams() -> None:
    """Make both streams accept any text, even if they are closed or a path is not UTF-8."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115  # open as long as the process runs
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            utf8 = stream.encoding.lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


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


def stdout_error(error: OSError) -> JitterError | None:
    """Return a readable error if `error` comes from writing stdout, else None."""
    if error.filename is not None or error.errno not in _DISK:
        return None
    return JitterError(f"stdout cannot be written: {error.strerror}", "is the disk full?")


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
