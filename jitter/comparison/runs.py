"""The runs of a comparison: lakes, open lakes or baseline files, as documents."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from jitter import api
from jitter.comparison.build_document import StepSizes, build_document, commonest, list_step_sizes
from jitter.comparison.compare_documents import compare_documents
from jitter.comparison.document import Document, decode_document, is_compared, select_steps, size_tolerance
from jitter.comparison.significance import MIN_STEPS
from jitter.core.errors import JitterError, UsageError
from jitter.core.formatting import format_count
from jitter.lake.records import TRAIN

if TYPE_CHECKING:
    from jitter.comparison.compare_documents import Comparison

Run = str | Path | api.Lake | Document
"""A lake's folder, a baseline file, an open lake, or a document."""


def compare(
    *runs: Run,
    steps: Collection[int] | None = None,
    base_steps: Collection[int] | None = None,
    names: Sequence[str] = (),
    kind: str | None = None,
) -> "Comparison":
    """Compare the last run with the others: its base, or several whose spread counts as noise.

    A run is a lake's folder, a file of `jitter export --baseline`, an open `Lake` or a `Document`. `steps` restricts
    the new run to the steps of these numbers, `base_steps` the bases (default: as `steps`). `names` are what the runs
    are called, one each (default: the shortest paths that differ). Steps of this `kind` are compared (default: the
    commonest of each run). Where markers state the size of batches, these are the steps of about one size: the
    commonest size that all runs have. Raises `UsageError` for fewer than two runs, another number of names or steps
    that a run lacks, and `JitterError` for a run that cannot be read.
    """
    return compare_documents(*load_runs(runs, steps, base_steps, names, kind))


def load_runs(
    runs: Sequence[Run],
    steps: Collection[int] | None,
    base_steps: Collection[int] | None,
    names: Sequence[str],
    kind: str | None,
    open_lake: Callable[[Path], api.Lake] = api.open,
) -> tuple[list[Document], Document]:
    """Return the documents of the bases and of the new run, with their names; see `compare`."""
    if len(runs) < 2:
        raise UsageError("a comparison needs two runs", "name the base first, then the new run")
    of_base = steps if base_steps is None else base_steps
    opened = [_open(run, open_lake) for run in runs]
    of_runs = [*([of_base] * (len(runs) - 1)), steps]
    sizes = [_list_sizes(*run, kind) for run in zip(opened, of_runs, strict=True)]
    loaded = [
        _load(run, run_steps, kind, None, [own, *(other for other in sizes if other is not own)])
        for run, run_steps, own in zip(opened, of_runs, sizes, strict=True)
    ]
    paths = [
        None if isinstance(run, Document) else run.root if isinstance(run, api.Lake) else Path(run) for run in runs
    ]
    *bases, new = name_runs(loaded, paths, names)
    return bases, new


def load_run(
    run: Run,
    steps: Collection[int] | None = None,
    label: str | None = None,
    open_lake: Callable[[Path], api.Lake] = api.open,
    beside: Sequence[Document] = (),
) -> Document:
    """Return the document of a run, of the steps with these numbers (default: all); see `compare`.

    `label` names a lake (default: its folder); `open_lake` opens the lake in a folder. It will be compared with the
    documents `beside`.
    """
    opened = _open(run, open_lake)
    sizes = [_list_sizes(opened, steps, None), *(_list_sizes(one, None, None) for one in beside)]
    return _load(opened, steps, None, label, sizes)


def _open(run: Run, open_lake: Callable[[Path], api.Lake]) -> api.Lake | Document:
    if isinstance(run, api.Lake | Document):
        return run
    path = Path(run)
    return read_document(path) if path.is_file() else open_lake(path)


class _RunSizes(NamedTuple):
    """The sizes of the batches of a run."""

    of_steps: StepSizes | None
    """Of all steps of a lake; None for a document."""
    of: str | None
    compared: list[float]
    """Those of the steps that can be compared, as far as they are known."""


def _list_sizes(run: api.Lake | Document, steps: Collection[int] | None, kind: str | None) -> _RunSizes:
    if isinstance(run, Document):
        return _RunSizes(None, run.sizes_of, [step.size for step in run.compared_steps if step.size is not None])
    keys = run.steps_numbered(steps)
    of_steps = list_step_sizes(run, keys)
    compared = kind or commonest([run.kinds[key] for key in keys]) if keys else None
    sizes = [of_steps.sizes[key] for key in keys if run.kinds[key] == compared]
    return _RunSizes(of_steps, of_steps.of, [size for size in sizes if not math.isnan(size)])


def _choose_size(runs: Sequence[_RunSizes]) -> float | None:
    """Return the least size of the batches of a run that are compared; None: those of any size.

    They are those of which the run with fewest has most, where each run has any, else its own commonest. Launched work
    tells sizes only where it varies, and where enough steps of each run are of a common one. `runs` are the run, and
    each run that it is compared with.
    """
    sizes = [run.compared for run in runs]
    if not all(sizes) or len({run.of for run in runs}) > 1:
        return None
    tolerance = size_tolerance(runs[0].of)
    counts = {
        least: [sum(is_compared(TRAIN, size, TRAIN, least, tolerance) for size in of_run) for of_run in sizes]
        for least in {size for of_run in sizes for size in of_run}
    }

    def frequency(least: float) -> tuple[int, int, float]:
        fewest = min(counts[least])
        return fewest, sum(counts[least]) if fewest else counts[least][0], least

    chosen = max(counts, key=frequency)
    is_of_one_size = all(is_compared(TRAIN, max(of_run), TRAIN, min(of_run), tolerance) for of_run in sizes)
    if runs[0].of is not None and (is_of_one_size or min(counts[chosen]) < MIN_STEPS):
        return None
    return chosen


def _load(
    run: api.Lake | Document,
    steps: Collection[int] | None,
    kind: str | None,
    label: str | None,
    sizes: Sequence[_RunSizes],
) -> Document:
    """Return the document of a run; `sizes` are its own and those of the runs that it is compared with."""
    if isinstance(run, api.Lake):
        chosen = run.steps_numbered(steps)
        return build_document(run, chosen, label, kind, _choose_size(sizes), sizes[0].of_steps)
    if kind not in (None, run.step_kind):
        raise UsageError(
            f"{run.label}: a baseline of steps of kind {run.step_kind}, not {kind}", "give the lake in its place"
        )
    return run if steps is None else select_steps(run, steps)


def read_document(path: Path) -> Document:
    """Return the document in a file; raise `JitterError` if it cannot be read or is none."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise JitterError(f"{path} cannot be read: {error.strerror}", "name a lake, or a baseline file") from None
    return decode_document(content, str(path))


def name_runs(documents: Sequence[Document], paths: Sequence[Path | None], names: Sequence[str] = ()) -> list[Document]:
    """Return the documents, labelled by the names, else by the ends of their paths where labels are equal.

    A path is None for a run without one. Raises `UsageError` for another number of names than of runs.
    """
    if names and len(names) != len(documents):
        raise UsageError(
            f"{format_count(len(names), 'name')} for {format_count(len(documents), 'run')}",
            "give one name for each run, in the order of the runs",
        )
    times = Counter(document.label for document in documents)
    ends = shortest_ends([None if path is None else path.resolve() for path in paths])
    labels = names or [
        end if times[document.label] > 1 and end else document.label
        for document, end in zip(documents, ends, strict=True)
    ]
    return [msgspec.structs.replace(document, label=label) for document, label in zip(documents, labels, strict=True)]


def shortest_ends(paths: Sequence[Path | None]) -> list[str | None]:
    """Return the shortest end of each path that is no end of another one of the paths.

    >>> shortest_ends([Path("/a/run1/lake"), Path("/b/run2/lake"), None])
    ['run1/lake', 'run2/lake', None]
    """
    ends: list[str | None] = []
    for path in paths:
        others = {other_path.parts for other_path in paths if other_path is not None and other_path != path}
        size = 1
        while (
            path is not None and size < len(path.parts) and any(parts[-size:] == path.parts[-size:] for parts in others)
        ):
            size += 1
        ends.append(None if path is None else Path(*path.parts[-size:]).as_posix())
    return ends
