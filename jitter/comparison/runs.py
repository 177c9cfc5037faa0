"""The runs of a comparison: lakes, open lakes or baseline files, as documents."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from jitter import api
from jitter.comparison.build_document import build_document
from jitter.comparison.compare_documents import compare_documents
from jitter.comparison.document import Document, decode_document
from jitter.comparison.labels import tell_apart
from jitter.comparison.step_selection import select_steps
from jitter.core.errors import JitterError, UsageError

if TYPE_CHECKING:
    from jitter.comparison.model import Comparison

Run = str | Path | api.Lake | Document
"""A lake's folder, a baseline file, an open lake, or a document."""


def compare(
    *runs: Run, steps: Collection[int] | None = None, base_steps: Collection[int] | None = None
) -> "Comparison":
    """Compare the last run with the others: its base, or several whose spread counts as noise.

    A run is a lake's folder, a file of `jitter export --baseline`, an open `Lake` or a `Document`. `steps` restricts
    the new run to the steps of these numbers, `base_steps` the bases (default: as `steps`). Raises `UsageError` for
    fewer than two runs or steps that a run lacks, and `JitterError` for a run that cannot be read.
    """
    if len(runs) < 2:
        raise UsageError("a comparison needs two runs", "name the base first, then the new run")
    of_base = steps if base_steps is None else base_steps
    loaded = [*(load_run(run, of_base) for run in runs[:-1]), load_run(runs[-1], steps)]
    *bases, new = tell_apart(loaded, [_path_of(run) for run in runs])
    return compare_documents(bases, new)


def _path_of(run: Run) -> Path | None:
    if isinstance(run, Document):
        return None
    return run.root if isinstance(run, api.Lake) else Path(run)


def load_run(run: Run, steps: Collection[int] | None = None) -> Document:
    """Return the document of a run, of the steps with these numbers (default: all); see `compare`."""
    if isinstance(run, Document):
        return run if steps is None else select_steps(run, steps)
    if isinstance(run, api.Lake):
        return describe_lake(run, steps)
    path = Path(run)
    if path.is_file():
        found = read_document(path)
        return found if steps is None else select_steps(found, steps)
    return describe_lake(api.open(path), steps)


def describe_lake(lake: api.Lake, steps: Collection[int] | None = None, label: str | None = None) -> Document:
    """Return the document of a lake's steps with these numbers; raise `UsageError` if it holds none of them."""
    return build_document(lake, lake.steps_numbered(steps), label)


def read_document(path: Path) -> Document:
    """Return the document in a file; raise `JitterError` if it cannot be read or is none."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise JitterError(f"{path} cannot be read: {error.strerror}", "name a lake, or a baseline file") from None
    return decode_document(content, str(path))
