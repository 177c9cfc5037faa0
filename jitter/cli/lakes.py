"""The lakes and runs that a command reads: opened, prepared with a progress line, without recordings that are damaged.

Damage shows when a file is read, in the middle of a verb. The verb then begins again on a lake opened without that
recording, so that all its answers are of the same recordings.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from jitter.cli.output import stdio
from jitter.cli.output.stdio import say
from jitter.core.errors import DamagedFileError, UsageError

if TYPE_CHECKING:
    from jitter.api import Lake
    from jitter.core.parallel.executors import Executor
    from jitter.core.step_key import StepKey

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
        self._opened[lake.root] = lake

    def forbid(self) -> None:
        """Let every damaged file end the command: its result is kept or judged as that of the complete run."""
        self._is_allowed = False

    def leave_out(self, error: DamagedFileError) -> bool:
        """Leave out the recording of a damaged file and say so; return whether the command may begin again."""
        root = next((root for root in self._errors if error.path.is_relative_to(root)), None)
        if root is None or not self._is_allowed or stdio.written_bytes() != self._written:
            return False
        from jitter.lake.integrity.verify import find_damage, has_changed

        lake = self._opened.get(root)
        sources = [] if lake is None else lake.sources
        damage_of_digest = find_damage(root, error, sources)
        if self._changes < _MOST_CHANGES and any(
            has_changed(root, source) for source in sources if source.digest in damage_of_digest
        ):
            self._changes += 1
            say(f"note: {root} has changed while it was read: reading it again")
            return True
        new = {digest: damage for digest, damage in damage_of_digest.items() if digest not in self._errors[root]}
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


def open_lake(path: Path) -> "Lake":
    """Open a lake; raise the errors of `jitter.open`, and `UsageError` if its path is not UTF-8."""
    from jitter.core.parallel.prefetch import announce_reads

    check_lake_path(path)
    if not (path / "sources").is_symlink():
        announce_reads((path / "sources").glob("*.json"))  # the system reads the records while Python imports modules
    from jitter.core.formatting import format_count
    from jitter.core.memory import keep_freed_memory

    keep_freed_memory()  # before pyarrow is imported
    from jitter import api
    from jitter.core.arrow import hide_pandas
    from jitter.lake.staging import running_ingests

    hide_pandas()
    damaged = damaged_files()
    lake = api.Lake(path, damaged.begin(path))
    damaged.opened(lake)
    for sentence in lake.damaged:
        say(f"note: {sentence}")
    for run in running_ingests(path):
        say(f"note: {run} {path}: this answer covers the {format_count(len(lake.sources), 'recording')} in it now")
    return lake


def prepare_diagnosis(
    lake: "Lake", steps: "Sequence[StepKey] | None" = None, executor: "Executor | None" = None
) -> None:
    """Keep the diagnosis of these steps (default: all) in the lake, unless the lake is small."""
    if executor is not None:
        lake.analyze(steps, executor)
    lake.prepare(forms=["answers"], steps=steps)


def check_lake_path(path: Path) -> None:
    """Raise `UsageError` for a path that is not UTF-8: DuckDB cannot open it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{path}: the path of a lake must be UTF-8", "choose another path") from None


def open_prepared(path: Path, steps: Collection[int] | None) -> "Lake":
    """Open a lake and keep the diagnosis of the steps of these numbers (None: all) in it."""
    lake = open_lake(path)
    if chosen := lake.steps_numbered(steps):
        prepare_diagnosis(lake, chosen)
    return lake
