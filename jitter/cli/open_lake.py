"""Open and prepare a lake for a command, with a progress line on a terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

from jitter.cli.damaged_files import damaged_files
from jitter.cli.output.stdio import say
from jitter.core.errors import UsageError
from jitter.core.formatting import format_count
from jitter.core.parallel.prefetch import announce_reads
from jitter.lake.staging import running_ingests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jitter.api import Lake
    from jitter.core.parallel.executors import Executor
    from jitter.core.step_key import StepKey


def open_lake(path: Path) -> "Lake":
    """Open a lake; raise the errors of `jitter.open`, and `UsageError` if its path is not UTF-8."""
    check_lake_path(path)
    if not (path / "sources").is_symlink():
        announce_reads((path / "sources").glob("*.json"))  # the system reads the records while Python imports modules
    from jitter.core.memory import keep_freed_memory

    keep_freed_memory()  # before pyarrow is imported
    from jitter import api
    from jitter.core.arrow import hide_pandas
    from jitter.core.parallel.processes import reduce_gc

    hide_pandas()
    reduce_gc()
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
