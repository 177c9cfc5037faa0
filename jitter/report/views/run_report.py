"""The data of a report over one lake, for a written and a live page; each part is computed once, on first use."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.model import StepAnswer
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.metrics.breakdown import NOT_RECORDED, columns_of
from jitter.analysis.metrics.collective_calls import COLUMNS as COMMUNICATION_COLUMNS
from jitter.analysis.metrics.step_metrics import ALL_COLUMNS as METRIC_COLUMNS
from jitter.api import Lake
from jitter.core.errors import UsageError
from jitter.core.formatting import format_rank
from jitter.core.memory import release_freed_memory
from jitter.core.parallel.prefetch import map_ahead
from jitter.core.step_key import StepKey
from jitter.lake.step_reader import StepColumns
from jitter.report.text.fix_list import costliest_step
from jitter.report.text.step_text import StepText, describe_step
from jitter.report.views.excess_heatmap import (
    LOSS_LAYER,
    NETWORK_LAYER,
    TRANSFER_LAYER,
    ExcessHeatmap,
    build_excess_heatmap,
    self_time_layer,
)
from jitter.report.views.run_overview import RunOverview, build_run_overview
from jitter.report.views.step_view import (
    KernelDurations,
    StepGrid,
    StepView,
    build_step_view,
    choose_kernels,
    measure_kernel_durations,
)

MAX_RANKS: Final = 96
"""Rows in the table of a step. Of more ranks, one half of the rows wait least, and the other half wait most."""
MAX_GROUPS: Final = 40
"""Kernels, operators or phases in a table; those with the most time."""
GROUPS: Final = ("kernel", "operator", "phase")
SECTION_COLUMNS: Final = tuple(
    sorted({*METRIC_COLUMNS, *COMMUNICATION_COLUMNS, *(name for by in (*GROUPS, "stream") for name in columns_of(by))})
)
"""Columns of a step's rows that its metrics, its tables and the shares of its streams need."""
_MOST_ROWS_KEPT: Final = 1 << 21
"""Rows of a step, some 100 bytes each, that stay in memory between its tables and its figures."""


@dataclass(frozen=True)
class RunSeries:
    """The steps in order; the x coordinate of a step is its position."""

    steps: tuple[StepAnswer, ...]
    labels: tuple[str, ...]
    """The step in figures and in the address of the page, such as `2017` or `1/2017`."""
    is_calm: bool
    """Whether jitter is noise, or a lead beside a larger finding: figures of it are grey."""

    def position(self, key: StepKey) -> int:
        return next(at for at, step in enumerate(self.steps) if step.key == key)


@dataclass(frozen=True)
class StepSection:
    """One step in detail: its findings as text and as data of figures."""

    step: StepAnswer
    text: StepText
    view: StepView
    place: int
    """Position of the step in the run."""
    max_rank: str
    """The rank drawn as max rank with its host; empty if there is none."""
    min_rank: str


@dataclass(frozen=True)
class StepTables:
    """The rows of the tables, times in ns."""

    ranks: tuple[dict[str, Any], ...]
    """Columns of `Lake.table(by="step")` and `host`, by rank."""
    ranks_left_out: int
    groups: dict[str, tuple[dict[str, Any], ...]]
    """By group the columns of `Lake.table(by=…)`, without groups of which none is recorded."""


class RunReport:
    """The steps of a lake as the report shows them. Every property is computed on first use."""

    def __init__(self, lake: Lake, steps: Sequence[StepKey] | None = None) -> None:
        """Use these steps of the lake; all by default."""
        self.lake = lake
        self.steps = lake.step_keys if steps is None else list(steps)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        return self.lake.results(self.steps).diagnosis

    @cached_property
    def examined(self) -> RunAnalysis:
        return self.lake.analyze(self.steps)

    @cached_property
    def run(self) -> RunSeries:
        steps = self.diagnosis.steps
        several = len({step.key.epoch for step in steps}) > 1
        labels = tuple(step.key.label if several else str(step.key.step) for step in steps)
        return RunSeries(steps, labels, is_calm(self.diagnosis))

    @cached_property
    def excess(self) -> ExcessHeatmap | None:
        """The map of ranks by steps; None for fewer than two ranks."""
        return build_excess_heatmap(self.lake, self.examined, choose_first_layer(self.diagnosis))

    @cached_property
    def facts(self) -> RunOverview:
        return build_run_overview(self.lake, self.steps)

    @cached_property
    def named(self) -> frozenset[int]:
        return frozenset(rank for culprit in self.diagnosis.culprits for rank in culprit.ranks)

    @cached_property
    def by_cost(self) -> list[StepKey]:
        """The steps: the one that shows the headline best, then the costliest first."""
        ordered = sorted(self.diagnosis.steps, key=lambda step: (step.loss_ns is None, -(step.loss_ns or 0)))
        first = self.diagnosis.headline
        opened = None if first is None else costliest_step(first, self.diagnosis)
        return [step.key for step in sorted(ordered, key=lambda step: step is not opened)]

    def answer(self, key: StepKey) -> StepAnswer:
        """Return the findings of a step; raise `UsageError` for a step that is not in the report."""
        for step in self.diagnosis.steps:
            if step.key == key:
                return step
        raise UsageError(f"{key} is not among the steps of these figures", "name one of them")

    def grid(self, key: StepKey) -> StepGrid:
        """Read a step; raise `UsageError` if no rank recorded it completely."""
        grid = StepGrid(self.lake, self.answer(key))
        if grid.empty:
            raise UsageError(f"{key}: no rank recorded it whole", "choose another step")
        return grid

    def view(self, grid: StepGrid) -> StepView:
        view = build_step_view(grid, self.examined, self.answer(grid.key))
        return replace(view, is_calm=view.is_calm or self.run.is_calm)

    def section(self, grid: StepGrid) -> StepSection:
        """Return the texts and the data of the figures of a step."""
        step, view = self.answer(grid.key), self.view(grid)
        text = describe_step(step, view, self.lake.hosts, len(self.lake.cohort_members))
        drawn = (view.max_rank, view.min_rank)
        names = ("" if rank is None else format_rank(rank, self.lake.hosts.get(rank)) for rank in drawn)
        return StepSection(step, text, view, self.run.position(grid.key), *names)

    def sections(self, keys: Sequence[StepKey]) -> Iterator[tuple[StepGrid, StepSection, StepTables]]:
        """Yield grid, section and tables of those of these steps that a rank recorded completely.

        The next one is read meanwhile, unless the steps are large.
        """
        ahead = min(1, self.examined.run.ahead) if keys else 0  # a lake of logs alone has no run
        for key, (columns, tables) in map_ahead(lambda key: (key, self._tables(key)), keys, ahead):
            with nullcontext() if columns is None else self.lake.keep_columns(key, columns):
                grid = StepGrid(self.lake, self.answer(key))
                if not grid.empty:
                    yield grid, self.section(grid), tables
            del columns, grid  # else they stay in memory while the next step is read

    def _tables(self, key: StepKey) -> tuple[StepColumns | None, StepTables]:
        """Read a step and return the columns that its section needs, and its tables; a large one is read again."""
        rows = sum(self.lake.record_of(key, rank).step.rows for rank in self.lake.ranks_of(key))
        if rows > _MOST_ROWS_KEPT:
            release_freed_memory()  # the analysis held whole steps
            return None, build_step_tables(self.lake, key)
        columns = self.lake.step_columns(key, SECTION_COLUMNS).joined()
        with self.lake.keep_columns(key, columns):
            return columns, build_step_tables(self.lake, key)

    def durations(self, grid: StepGrid, kernels: Sequence[int] | None = None) -> KernelDurations:
        """Return the durations of these kernels of a step over all steps; by default those that a page holds."""
        release_freed_memory()
        if kernels is None:
            began = [step.divergence.kernel_index for step in self.run.steps if step.divergence is not None]
            ranges = [
                finding.kernel_index.first for finding in self.diagnosis.culprits if finding.kernel_index is not None
            ]
            kernels = choose_kernels(grid, [*ranges, *began], len(self.steps))
        return measure_kernel_durations(self.examined, grid, kernels)


def is_calm(diagnosis: Diagnosis) -> bool:
    """Return whether no finding of jitter is the headline or has at least medium confidence."""
    late = [one for one in diagnosis.culprits if one.rung == "ranks"]
    return not any(one is diagnosis.headline or one.confidence != "low" for one in late)


def choose_first_layer(diagnosis: Diagnosis) -> str:
    """Return the layer of the map that shows the headline best.

    Several ranks that are slow together share their loss, and communication is not attributed to a rank.
    """
    first = diagnosis.headline if diagnosis.headline in diagnosis.culprits else next(iter(diagnosis.culprits), None)
    if first is None:
        return LOSS_LAYER
    if first.rung == "network":
        return NETWORK_LAYER
    part = CAUSES[first.cause].part
    if part is TimePart.TRANSFER:
        return TRANSFER_LAYER
    return LOSS_LAYER if first.scope == "rank" or part is None else self_time_layer(part)


def build_step_tables(lake: Lake, key: StepKey) -> StepTables:
    parts = lake.table(by="step", step=key, arrow=True).to_pylist()
    rows = [row | {"host": lake.hosts.get(row["rank"])} for row in parts]
    by_wait = sorted(rows, key=lambda row: row["waiting_ns"] or 0)
    kept = by_wait if len(rows) <= MAX_RANKS else by_wait[: MAX_RANKS // 2] + by_wait[-(MAX_RANKS // 2) :]
    tables = {by: lake.table(by=by, step=key, ranks=[], arrow=True).slice(0, MAX_GROUPS) for by in GROUPS}
    groups = {by: tuple(table.to_pylist()) for by, table in tables.items()}
    return StepTables(
        ranks=tuple(sorted(kept, key=lambda row: row["rank"])),
        ranks_left_out=len(rows) - len(kept),
        groups={
            by: group_rows
            for by, group_rows in groups.items()
            if any(row[by] not in (None, NOT_RECORDED) for row in group_rows)
        },
    )
