"""Answers without the recordings whose files in a lake are damaged.

Damage shows when a file is read, in the middle of a verb. The verb then begins again on a lake opened without that
recording, so that all its answers are of the same recordings.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from jitter.cli.output import stdio
from jitter.cli.output.stdio import say
from jitter.core.errors import DamagedFileError

if TYPE_CHECKING:
    from jitter.api import Lake

_MOST_CHANGES = 3
"""How often a verb begins again because another ingest replaced what it was reading."""


class DamagedFiles:
    """The damaged files that one command has met, by lake and digest of the recording or log."""

    def __init__(self) -> None:
        self._errors: dict[Path, dict[str, DamagedFileError]] = {}
        self._opened: dict[Path, Lake] = {}
        self._changes = 0
        self._is_allowed = True
        self._written = stdio.written_bytes()

    def begin(self, root: Path) -> Mapping[str, DamagedFileError]:
        """Return what to leave out of a lake that is about to be opened."""
        return self._errors.setdefault(root, {})

    def opened(self, lake: "Lake") -> None:
        """Note an open lake."""
        self._opened[lake.root] = lake

    def forbid(self) -> None:
        """Let every damaged file end the command: its result is kept or judged as that of the complete run."""
        self._is_allowed = False

    def leave_out(self, error: DamagedFileError) -> bool:
        """Leave out the recording of a damaged file and say so; return whether the command may begin again."""
        root = next((root for root in self._errors if error.path.is_relative_to(root)), None)
        if root is None or not self._is_allowed or stdio.written_bytes() != self._written:
            return False
        from jitter.lake.integrity.damage import find_damage, has_changed

        lake = self._opened.get(root)
        sources = [] if lake is None else lake.sources
        found = find_damage(root, error, sources)
        if self._changes < _MOST_CHANGES and any(has_changed(root, one) for one in sources if one.digest in found):
            self._changes += 1
            say(f"note: {root} has changed while it was read: reading it again")
            return True
        new = {digest: one for digest, one in found.items() if digest not in self._errors[root]}
        self._errors[root].update(new)
        return bool(new)


_of_command: ContextVar[DamagedFiles] = ContextVar("damaged files of the command")


@contextmanager
def damaged_files_left_out() -> Iterator[DamagedFiles]:
    """Collect damaged files while the block, which runs one command, lasts."""
    token = _of_command.set(DamagedFiles())
    try:
        yield _of_command.get()
    finally:
        _of_command.reset(token)


def damaged_files() -> DamagedFiles:
    """Return those of the command that runs; of a program that calls verbs itself, a new collection."""
    return _of_command.get(None) or DamagedFiles()
