"""Writing over files: what jitter wrote is replaced, anything else needs --force."""

from pathlib import Path

from jitter.core.errors import UsageError
from jitter.core.files import atomic_file

_HEAD_BYTES = 2048


def check_overwrite(path: Path, force: bool, mark: bytes) -> None:
    """Raise `UsageError` if writing to `path` would destroy what jitter did not write.

    A file is jitter's if `mark` stands in its first 2048 bytes; an empty file is nobody's, and what is no file (a
    pipe, `/dev/null`) is not destroyed. `force` lets any file go, but never a folder.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}", "make it first")
    if force or not path.is_file():
        return
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "name another file") from None
    if head and mark not in head:
        raise UsageError(f"{path} was not written by jitter", "name another file or add --force")


def write_text(path: Path, text: str) -> None:
    """Write a file in one go, by rename: a reader never sees half of it. Raises `JitterError` if it cannot be."""
    with atomic_file(path) as half:
        half.write_text(text, encoding="utf-8")
