"""Load the runs that `compare` and `check` name: lakes and baseline files."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitter.comparison.document import Document


def load_run(path: Path, steps: Collection[int] | None = None, label: str | None = None) -> "Document":
    """Return the document of a baseline file, or of a lake, whose derived data are written first.

    Raises `JitterError` for a path that is neither, `UsageError` if it holds none of the steps of these numbers.
    """
    from jitter.comparison.runs import choose_steps, describe_lake, load_run

    if path.is_file():
        return load_run(path, steps)
    from jitter.cli.open_lake import open_lake, prepare_diagnosis

    lake = open_lake(path)
    if chosen := choose_steps(lake, steps):
        prepare_diagnosis(lake, chosen)
    return describe_lake(lake, steps, label)


def load_baselines(named: str, last: int | None) -> "list[Document]":
    """Return the documents of a baseline: a lake, a file, or the last runs of `history:JOB` (default: 10)."""
    return [load_run(Path(named))]
