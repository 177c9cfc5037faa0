"""Write a file atomically, and only over one that jitter wrote; tell whether files have changed; the user's cache."""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from jitter.core.errors import JitterError, UsageError, reason_of


def cache_folder(name: str) -> Path:
    """Return the folder of this name in jitter's part of the user's cache; it may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "jitter" / name


def name_archive_members(text: str) -> str:
    """Return a text in which paths of unpacked archives are those of the archives' members: `a.tar.gz/rank0.json`."""
    return re.sub(re.escape(f"{cache_folder('archives')}/") + r"[0-9a-f]{16}(?:-\d+)?/", "", text)


def made_from(layout: int | str, *rests_on: object) -> str:
    """Return the digest, 32 hexadecimal digits, of a file's layout and of the values that it was made from.

    A file that carries the digest is used as long as that of the present values is the same; else it counts as absent.
    """
    return hashlib.blake2b(msgspec.json.encode((layout, rests_on)), digest_size=16).hexdigest()


_FARTHEST_NS: Final = (1 << 62) - 1


def modified_ns(state: os.stat_result) -> int:
    """Return when a file was last modified, ns since 1970; of times that no record can state the nearest one."""
    return max(-_FARTHEST_NS, min(state.st_mtime_ns, _FARTHEST_NS))


class FileState(NamedTuple):
    """The state of a file as the file system reports it, which changes when the file is replaced."""

    size: int
    mtime_ns: int
    inode: int


def file_state(path: Path) -> FileState | None:
    """Return the state of a file; None if there is no such file."""
    try:
        stat = os.stat(path)  # noqa: PTH116  # called for each record of a lake
    except FileNotFoundError:
        return None
    return FileState(stat.st_size, stat.st_mtime_ns, stat.st_ino)


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Name the file in the block's errors: those of a full disk come from writing, and the system names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` when the block ends without an error.

    A symbolic link stays and its target is replaced. A pipe or device is written to directly. Raises `JitterError` if
    the file cannot be written.
    """
    special = path.exists() and not path.is_file()
    target = path if special else path.resolve()
    half = target if special else target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield half
        if not special:
            half.replace(target)
    except BrokenPipeError:  # the reader of a pipe has ended
        raise
    except OSError as error:
        raise JitterError(
            f"{path} cannot be written: {reason_of(error)}", "free space on the disk, or choose another place"
        ) from None
    finally:
        if not special:
            with suppress(OSError):
                half.unlink()


_HEAD_BYTES: Final = 2048


def check_overwrite(path: Path, force: bool, *signatures: bytes) -> None:
    """Raise `UsageError` if writing to `path` would overwrite a file that jitter did not write.

    jitter wrote a file if one of `signatures` is in its first 2048 bytes, with a line break put before them. Empty
    files, pipes and devices may be written. `force` allows every file, but no folder.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "choose a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}", "create it first")
    if force or not path.is_file():
        return
    try:
        with path.open("rb") as file:
            head = b"\n" + file.read(_HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "choose another file") from None
    if len(head) > 1 and not any(signature in head for signature in signatures):
        raise UsageError(f"{path} was not written by jitter", "choose another file or add --force")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically, by rename; raise `JitterError` if it cannot be written."""
    with atomic_file(path) as half:
        half.write_text(text, encoding="utf-8")
