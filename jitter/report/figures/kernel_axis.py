"""The shared parts of the figures over the kernel index: the step in view as sources, linked axis, crosshair."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, Range1d
from bokeh.models.annotations import Span

from jitter.core.names.kernels import short_name
from jitter.report.figures.kernel_marks import (
    KernelMarks,
    build_marks,
    collective_columns,
    mark_columns,
    wait_columns,
)
from jitter.report.figures.palette import OTHERS_COLOR
from jitter.report.views.step_view import SERIES, MetricSeries, StepView

CHOSEN_COLUMNS = ("xs", "ys", "rank", "color", "dash")
"""Columns of a source of chosen ranks: one line a rank."""


@dataclass(frozen=True)
class KernelAxis:
    """The step in view as Bokeh sources, with the range and the crosshair that its figures share."""

    x_range: Range1d
    """Its tag: whether zooming keeps the y ranges."""
    names: ColumnDataSource
    series: dict[str, ColumnDataSource]
    collectives: ColumnDataSource
    marks: KernelMarks
    chosen: dict[str, ColumnDataSource]
    """Lines of chosen ranks, by series; see `rank_lines`."""
    crosshair: Span


def build_sources(view: StepView, prefix: str) -> dict[str, ColumnDataSource]:
    """Return one source per series, and the sources of collectives, waits and marks, named `<prefix>:<part>`.

    Tags of a series: max rank, min rank, whether values take the place of deviations, number of kernels.
    """
    tags = [view.max_rank, view.min_rank, view.values, view.kernels]
    found = {name: _series_source(view.series[name], f"{prefix}:{name}", tags) for name in SERIES}
    found["collectives"] = ColumnDataSource(collective_columns(view), name=f"{prefix}:collectives")
    found["waits"] = ColumnDataSource(wait_columns(view), name=f"{prefix}:waits")
    found["marks"] = ColumnDataSource(mark_columns(view), name=f"{prefix}:marks")
    return found


def build_kernel_axis(view: StepView, names: list[str]) -> KernelAxis:
    """Build the axis for a view. The page's script replaces the data of the sources named `shown:…`."""
    sources = build_sources(view, "shown")
    pad = max(0.5, 0.01 * view.kernels)  # the same as in the page's script
    bounds = -pad, view.kernels - 1 + pad
    x_range = Range1d(start=bounds[0], end=bounds[1], name="kernels", tags=[False])
    return KernelAxis(
        x_range=x_range,
        names=ColumnDataSource(_names(names), name="names"),
        series={name: sources[name] for name in SERIES},
        collectives=sources["collectives"],
        marks=build_marks(x_range, bounds, sources["collectives"], sources["waits"], sources["marks"]),
        chosen={name: _nothing_chosen(name) for name in SERIES},
        crosshair=Span(dimension="height", line_color=OTHERS_COLOR, line_width=1, line_dash="dotted", name="crosshair"),
    )


def show_view(axis: KernelAxis, view: StepView, names: list[str]) -> None:
    """Replace the step that the axis shows. The page's script sets the range."""
    marks = {"collectives": axis.collectives, "waits": axis.marks.waits, "marks": axis.marks.flags}
    sources = axis.series | marks
    if len(names) > len(axis.names.data["full"]):
        axis.names.data = _names(names)
    for part, new in build_sources(view, "shown").items():
        sources[part].update(tags=new.tags, data=dict(new.data))


def _names(names: list[str]) -> dict[str, Any]:
    return {"full": list(names), "short": [short_name(name) for name in names]}


def _nothing_chosen(name: str) -> ColumnDataSource:
    columns: dict[str, Any] = {column: [] for column in CHOSEN_COLUMNS}
    return ColumnDataSource(columns, name=f"chosen:{name}")


def _series_source(series: MetricSeries, name: str, tags: list[int | bool | None]) -> ColumnDataSource:
    # half the bytes; exact to the nanosecond up to 16 ms, seven digits beyond
    columns = {
        key: values.astype(np.float32) if values.dtype == np.float64 else values for key, values in vars(series).items()
    }
    columns["zero"] = np.zeros(series.kernel_index.size, dtype=np.int8)
    return ColumnDataSource(columns, name=name, tags=tags)
