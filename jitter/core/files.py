"""Write a file atomically: a reader never sees an incomplete one; and the folder of the user's cache."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jitter.core.errors import JitterError, reason_of


def cache_folder(name: str) -> Path:
    """Return the folder of this name in jitter's part of the user's cache; it may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "jitter" / name


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
        raise JitterError(f"{path} cannot be written: {reason_of(error)}", "choose another place with -o") from None
    finally:
        if not special:
            with suppress(OSError):
                half.unlink()
