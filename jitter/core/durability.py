"""Make what was written safe from a power cut: wait until it is on the disk."""

import ctypes
import errno
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final

_THREADS: Final = 16
"""Waits for the disk that overlap."""
_NOT_FOR_FOLDERS: Final = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""Errors of file systems on which a folder cannot be synced, such as SMB."""


def sync_files(root: Path, files: Iterable[Path]) -> None:
    """Make files below `root` safe, with their entries in all folders up to `root`.

    On Linux the whole file system is synced: measured on ext4, 50 files of 30 kB take 15 ms, and one by one 450 ms.
    """
    if sync_file_system(root):
        return
    paths = list(files)
    folders = {folder for path in paths for folder in path.parents if folder.is_relative_to(root)}
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(sync_path, [*paths, *folders]):
            pass


def sync_path(path: Path) -> None:
    """Make a file's content, or a folder's entries, safe."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            error.filename = str(path)
            raise
    finally:
        os.close(descriptor)


def sync_file_system(folder: Path) -> bool:
    """Make everything on the file system of a folder safe; return False where the system has no call for that."""
    syncfs = _syncfs()
    if syncfs is None:
        return False
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(descriptor)
    return True


@cache
def _syncfs() -> Any:
    """Return the C library's `syncfs`, which Python lacks; None on systems other than Linux."""
    try:
        return ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError):
        return None
