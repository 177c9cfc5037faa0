"""Load the runs that `compare` and `check` name: lakes and baseline files."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitter.comparison.document import Document

HISTORY_PREFIX = "history:"
DEFAULT_LAST = 10
"""Runs of the history that a run is checked against."""


def load_run(path: Path, steps: Collection[int] | None = None, label: str | None = None) -> "Document":
    """Return the document of a baseline file, or of a lake, whose derived data are written first.

    Raises `JitterError` for a path that is neither, `UsageError` if it holds none of the steps of these numbers.
    """
    from jitter.comparison.runs import describe_lake, load_run

    if path.is_file():
        return load_run(path, steps)
    from jitter.cli.open_lake import open_lake, prepare_diagnosis

    lake = open_lake(path)
    if chosen := lake.steps_numbered(steps):
        prepare_diagnosis(lake, chosen)
    return describe_lake(lake, steps, label)


def load_baselines(named: str, last: int | None, run: "Document") -> "list[Document]":
    """Return the documents of a baseline: a lake, a file, or the last runs of `history:JOB` (default: 10).

    Of the history, `run` itself does not count. The list is empty for a job
    without other runs.
    """
    if not named.startswith(HISTORY_PREFIX):
        return [load_run(Path(named))]
    from contextlib import closing

    from jitter.core.errors import UsageError
    from jitter.history.database import Database, history_location
    from jitter.history.runs import list_runs, read_documents

    job = named.removeprefix(HISTORY_PREFIX)
    if not job:
        raise UsageError("--baseline history: names no job", "write --baseline history:JOB")
    with closing(Database(history_location(None))) as database:
        runs = [one for one in list_runs(database, job) if one.digest != run.digest]
        return read_documents(database, runs[-(last or DEFAULT_LAST) :])
