"""A lake may come from anyone: nothing in it may lead out of it, and no file in it may be read without bounds.

A link in a lake would make jitter read, write or remove files elsewhere. A pipe would block a reader for ever.
"""

import errno
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import Final

from jitter.core.errors import LakeError

LARGEST_FILE_BYTES: Final = 4 << 30
"""A larger file in a lake is refused: one GPU's step of 10 million kernels takes 0.3 GB."""
LAKE_ENTRIES: Final = (
    "jitter.json", "catalog.sqlite", ".staging", "derived", "sources", "kernels", "host", "times", "logs"
)  # fmt: skip
"""The names in a lake's folder that jitter uses. Other names are not touched."""


def refuse_links(root: Path) -> None:
    """Raise `LakeError` if a lake holds a symbolic link, a pipe, a socket or a device. The root itself may be a link.

    Lists every folder of the lake: 48,000 files take about 0.05 s.
    """
    for name in LAKE_ENTRIES:
        _refuse_entry(f"{root}/{name}")


def _refuse_entry(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return  # another run has just removed it
    if S_ISLNK(mode):
        _refuse(path, "a symbolic link")
    if not S_ISDIR(mode):
        if not S_ISREG(mode):
            _refuse(path, "neither a file nor a folder")
        return
    for entry in _entries(path):
        if entry.is_symlink():
            _refuse(entry.path, "a symbolic link")
        elif entry.is_dir(follow_symlinks=False):
            _refuse_entry(entry.path)
        elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
            _refuse(entry.path, "neither a file nor a folder")


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder; none if another run has just removed it."""
    try:
        listing = os.scandir(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise LakeError(f"{folder}: cannot be read ({error.strerror})", "check its permissions") from None
    with listing:
        yield from listing


def _refuse(path: str, kind: str) -> None:
    raise LakeError(
        f"{path}: is {kind}, and a lake holds none: jitter reads and writes nothing outside a lake's own folder",
        "put the file or folder itself there, or remove it",
    )


def read_lake_file(path: Path) -> bytes:
    """Return the content of a file in a lake. Raises `OSError` if it is missing, a link or pipe, or too large."""
    with open_lake_file(path) as file:
        return file.readall()


def open_lake_file(path: Path) -> FileIO:
    """Open a file in a lake, without a buffer; raise the errors of `read_lake_file`."""
    return open(path, "rb", buffering=0, opener=_open_bounded)  # `Path.open` takes no opener


def _open_bounded(path: str, flags: int) -> int:
    # a pipe would block without O_NONBLOCK
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    state = os.fstat(file)
    if not S_ISREG(state.st_mode) or state.st_size > LARGEST_FILE_BYTES:
        os.close(file)
        raise OSError(errno.EFBIG, "is no regular file" if not S_ISREG(state.st_mode) else "is too large")
    return file
