"""The command's own stdout and stderr: closed, full, or of an encoding that lacks some letters."""

import errno
import os
import select
import sys
from io import TextIOWrapper

from jitter.core.errors import JitterError

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def prepare_streams() -> None:
    """Make both able to take any text: a path need not be UTF-8, and neither need be open."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115  # as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            utf8 = stream.encoding.lower().replace("-", "") == "utf8"
            stream.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")


def flush_stdout() -> None:
    """Write what stdout still holds, while an error can be told. Raises as writing does."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_stdout()
        raise


def discard_stdout() -> None:
    """Give up what stdout still holds: at its end Python would try to write it again, and complain."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # it has no file below it
        return


def stdout_error(error: OSError) -> JitterError | None:
    """The error for a person, if this one is of stdout's: a full disk has no name to tell."""
    if error.filename is not None or error.errno not in _DISK:
        return None
    return JitterError(f"stdout cannot be written: {error.strerror}", "is the disk full?")


def is_reader_closed() -> bool:
    """Whether nobody reads stdout or stderr any more, which are pipes then."""
    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        try:
            poll.register(stream.fileno(), 0)  # of an end that is closed it tells unasked
        except (OSError, ValueError, AttributeError):
            continue
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
