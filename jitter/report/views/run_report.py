"""The data of a report over one lake, for a written and a live page; each part is computed once, on first use."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.model import StepAnswer
from jitter.api import Lake
from jitter.core.errors import UsageError
from jitter.core.formatting import format_rank
from jitter.core.parallel.prefetch import prefetch
from jitter.core.step_key import StepKey
from jitter.lake.step_reader import StepColumns
from jitter.report.text.step_text import StepText, describe_step
from jitter.report.views.excess_heatmap import (
    LOSS_LAYER,
    TRANSFER_LAYER,
    ExcessHeatmap,
    build_excess_heatmap,
    self_time_layer,
)
from jitter.report.views.run_overview import RunOverview, build_run_overview
from jitter.report.views.run_series import RunSeries, build_run_series
from jitter.report.views.step_grid import StepGrid
from jitter.report.views.step_tables import SECTION_COLUMNS, StepTables, build_step_tables
from jitter.report.views.step_view import KernelNames, StepView, build_step_view
from jitter.report.views.stream_shares import StreamShare, build_stream_shares


@dataclass(frozen=True)
class StepSection:
    """One step in detail: its findings as text and as data of figures."""

    step: StepAnswer
    text: StepText
    view: StepView
    place: int
    """Position of the step in the run."""
    max_rank: str
    min_rank: str
    tables: StepTables
    streams: Sequence[StreamShare]


class RunReport:
    """The steps of a lake as the report shows them. Every property is computed on first use."""

    def __init__(self, lake: Lake, steps: Sequence[StepKey] | None = None) -> None:
        """Use these steps of the lake; all by default."""
        self.lake = lake
        self.steps = lake.step_keys if steps is None else list(steps)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis of the steps."""
        return self.lake.results(self.steps).diagnosis

    @cached_property
    def examined(self) -> RunAnalysis:
        """The analysis that the diagnosis rests on."""
        return self.lake.analyze(self.steps)

    @cached_property
    def run(self) -> RunSeries:
        """The steps as a series."""
        return build_run_series(self.diagnosis, sorted(self.examined.run.team_of))

    @cached_property
    def excess(self) -> ExcessHeatmap | None:
        """The map of ranks by steps; None for fewer than two ranks."""
        return build_excess_heatmap(self.lake, self.examined, choose_first_layer(self.diagnosis))

    @cached_property
    def facts(self) -> RunOverview:
        """Counts over the run."""
        return build_run_overview(self.lake, self.steps)

    @cached_property
    def named(self) -> frozenset[int]:
        """Ranks of the findings."""
        return frozenset(rank for culprit in self.diagnosis.culprits for rank in culprit.ranks)

    @cached_property
    def _waited(self) -> dict[StepKey, Mapping[int, float]]:
        """How long each rank of each step waited in its collectives, ns."""
        return {key: one.waited_ns for key, one in zip(self.examined.keys, self.examined.arrivals, strict=True)}

    def answer(self, key: StepKey) -> StepAnswer:
        """Return the findings of a step; raise `UsageError` for a step that is not in the report."""
        for found in self.diagnosis.steps:
            if found.key == key:
                return found
        raise UsageError(f"{key} is not among the steps of these figures", "name one of them")

    def grid(self, key: StepKey) -> StepGrid:
        """Read a step; raise `UsageError` if no rank recorded it completely."""
        grid = StepGrid(self.lake, self.answer(key))
        if grid.empty:
            raise UsageError(f"{key}: no rank recorded it whole", "choose another step")
        return grid

    def view(self, grid: StepGrid, names: KernelNames) -> StepView:
        """Return the data of the figures of a step."""
        return build_step_view(grid, self.examined, self.answer(grid.key), self._waited[grid.key], names)

    def read(self, key: StepKey, names: KernelNames) -> tuple[StepGrid, StepSection]:
        """Read a step and return its grid and its section; raise as `grid` does."""
        columns, tables = self._tables(key)
        with self.lake.keep_columns(key, columns):
            grid = self.grid(key)
            return grid, self.section(grid, names, tables)

    def sections(self, keys: Sequence[StepKey], names: KernelNames) -> Iterator[StepSection]:
        """Yield the sections of those of these steps that a rank recorded completely; read the next one meanwhile."""
        for key, (columns, tables) in prefetch((key, self._tables(key)) for key in keys):
            with self.lake.keep_columns(key, columns):
                grid = StepGrid(self.lake, self.answer(key))
                if not grid.empty:
                    yield self.section(grid, names, tables)

    def _tables(self, key: StepKey) -> tuple[StepColumns, StepTables]:
        """Read a step and return the columns that its section needs, and its tables."""
        columns = self.lake.step_columns(key, SECTION_COLUMNS).joined()
        with self.lake.keep_columns(key, columns):
            return columns, build_step_tables(self.lake, key)

    def section(self, grid: StepGrid, names: KernelNames, tables: StepTables) -> StepSection:
        """Return the texts and the data of the figures of a step, with its tables."""
        step, view, place = self.answer(grid.key), self.view(grid, names), self.run.position(grid.key)
        cohorts, by_class = len(set(self.lake.cohorts.values())), step.by_class
        return StepSection(
            step,
            describe_step(step, view, self.lake.hosts, cohorts, None if by_class is None else by_class.transfer_ns),
            view,
            place,
            self._name(view.max_rank, "" if view.values else "max "),
            self._name(view.min_rank, "min "),
            tables,
            build_stream_shares(self.lake, step.key, view.max_rank, view.min_rank),
        )

    def _name(self, rank: int | None, word: str) -> str:
        return "" if rank is None else word + format_rank(rank, self.lake.hosts.get(rank))


def choose_first_layer(diagnosis: Diagnosis) -> str:
    """Return the layer of the map that shows the first finding best.

    Several ranks that are slow together share their loss, and communication is not attributed to a rank.
    """
    if not diagnosis.culprits:
        return LOSS_LAYER
    first = diagnosis.culprits[0]
    if first.cause == "communication":
        return TRANSFER_LAYER
    part = CAUSES[first.cause].part
    return LOSS_LAYER if first.scope == "rank" or part is None else self_time_layer(part)
