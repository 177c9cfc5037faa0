"""Writing files: a file that jitter wrote is replaced, any other needs --force."""

from pathlib import Path

from jitter.core.errors import UsageError
from jitter.core.files import atomic_file

_HEAD_BYTES = 2048


def check_overwrite(path: Path, force: bool, signature: bytes | None) -> None:
    """Raise `UsageError` if writing to `path` would overwrite a file that jitter did not write.

    jitter wrote a file if `signature` is in its first 2048 bytes; None matches no file. Empty files, pipes and devices
    may be written. `force` allows every file, but no folder.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "choose a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}", "create it first")
    if force or not path.is_file():
        return
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "choose another file") from None
    if head and (signature is None or signature not in head):
        raise UsageError(f"{path} was not written by jitter", "choose another file or add --force")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically, by rename; raise `JitterError` if it cannot be written."""
    with atomic_file(path) as half:
        half.write_text(text, encoding="utf-8")
