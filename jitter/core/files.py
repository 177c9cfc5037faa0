"""A file of a user's written in one go: who reads it never sees half of it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jitter.core.errors import JitterError


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a path to write to, which takes the place of `path` when the block is left without an error.

    A link keeps its name and gets its target replaced; what is no file (a pipe, `/dev/null`) is written to and never
    replaced. Raises `JitterError` where the disk refuses.
    """
    special = path.exists() and not path.is_file()
    target = path if special else path.resolve()
    half = target if special else target.with_name(f".{target.name}.part")
    try:
        yield half
        if not special:
            half.replace(target)
    except BrokenPipeError:  # whoever read it has left
        raise
    except OSError as error:
        said = error.strerror or str(error)
        raise JitterError(f"{path} cannot be written: {said}", "choose another place with -o") from None
    finally:
        if not special:
            with suppress(OSError):
                half.unlink()
