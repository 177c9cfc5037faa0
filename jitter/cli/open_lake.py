"""Open and prepare a lake for a command, with a progress line on a terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

from jitter.cli.output.progress import preparation_progress
from jitter.core.errors import UsageError
from jitter.core.parallel.prefetch import announce_reads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jitter.api import Lake
    from jitter.core.parallel.executors import Executor
    from jitter.core.step_key import StepKey


def open_lake(path: Path) -> "Lake":
    """Open a lake; raise the errors of `jitter.open`, and `UsageError` if its path is not UTF-8."""
    check_lake_path(path)
    announce_reads((path / "sources").glob("*.json"))  # the system reads the records while Python imports modules
    from jitter.core.memory import keep_freed_memory

    keep_freed_memory()  # before pyarrow is imported
    from jitter import api
    from jitter.core.arrow import hide_pandas
    from jitter.core.parallel.processes import reduce_gc

    hide_pandas()
    reduce_gc()
    return api.open(path)


def prepare_diagnosis(
    lake: "Lake", steps: "Sequence[StepKey] | None" = None, executor: "Executor | None" = None
) -> None:
    """Write the derived data that a diagnosis of these steps (default: all) uses and makes."""
    lake.prepare(preparation_progress(), forms=["timings"])
    if executor is not None:
        lake.analyze(steps, executor)
    lake.prepare(forms=["answers"], steps=steps)


def check_lake_path(path: Path) -> None:
    """Raise `UsageError` for a path that is not UTF-8: DuckDB cannot open it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{path}: the path of a lake must be UTF-8", "choose another path") from None
