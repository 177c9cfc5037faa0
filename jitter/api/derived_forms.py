"""The derived data that make a large lake faster to read, written on request."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, Literal

from jitter.core.parallel.executors import Executor
from jitter.core.step_key import StepKey
from jitter.lake import catalog
from jitter.lake.folder import LakeFolder

if TYPE_CHECKING:
    from jitter.api.lake import Lake
    from jitter.api.run_results import RunResults

Progress = Callable[[int, int], None]
"""Called with (done, total)."""

DerivedForm = Literal["catalog", "timings", "compacted", "answers"]
DERIVED_FORMS: Final[tuple[DerivedForm, ...]] = ("catalog", "timings", "compacted", "answers")
"""The records for SQL; the times that a diagnosis reads; rows of many ranks in one file; the diagnosis."""


def write_derived_forms(
    lake: "Lake",
    results: "RunResults",
    forms: Collection[DerivedForm],
    steps: tuple[StepKey, ...],
    progress: Progress | None,
    executor: Executor | None,
) -> None:
    """Write those of `forms` that the lake lacks, of these steps; see `Lake.prepare`."""
    from jitter.lake.derived.build_timing_cache import build_timing_cache
    from jitter.lake.derived.compaction import compact_large_steps

    if "catalog" in forms:
        catalog.refresh(lake.root, lambda: LakeFolder(lake.root).intact_records()[0])
    if "timings" in forms:
        build_timing_cache(lake.timing_caches, lake.sources, progress)
    if "compacted" in forms:
        compact_large_steps(lake.root, {key: len(lake.ranks_of(key)) for key in steps}, progress)
    if "answers" in forms:
        results.keep_answers(steps, executor)
