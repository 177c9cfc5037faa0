"""Marks along the kernel index: collectives (as a density strip where there are many), long waits, the divergence."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from bokeh.models import ColumnDataSource, CustomJS, Range1d, Text, VSpan
from bokeh.plotting import figure

from jitter.core.formatting import format_time
from jitter.report.figures.frame import read_script
from jitter.report.figures.palette import BACKGROUND_COLOR, COLLECTIVE_COLOR, MARK_COLOR, TEXT_COLOR
from jitter.report.views.step_view import StepView

MAX_MARKS: Final = 200
"""Most collectives in view that are marked one by one."""
DENSITY_BINS: Final = 150
MAX_WAITS: Final = 12
"""Most long waits with a line; the longest."""


@dataclass(frozen=True)
class KernelMarks:
    """The sources of the marks."""

    ticks: ColumnDataSource
    """The collectives in view (`x`); empty if there are more than `MAX_MARKS`."""
    density: ColumnDataSource
    """Otherwise bins of the view: `left`, `right`, and `alpha`, the bin's share of the fullest bin."""
    waits: ColumnDataSource
    flags: ColumnDataSource


def collective_columns(view: StepView) -> dict[str, Any]:
    """Return the collectives of a view as columns."""
    columns = {name: values for name, values in vars(view.collectives).items() if name != "operation"}
    return columns | {"operation": [word.replace("_", " ") for word in view.collectives.operation]}


def wait_columns(view: StepView) -> dict[str, Any]:
    """Return the kernel indices of the longest waits."""
    return {"kernel_index": view.collectives.kernel_index[list(view.waits[:MAX_WAITS])]}


def mark_columns(view: StepView) -> dict[str, Any]:
    """Return the marks with text: the divergence, and the longest wait."""
    flags = []
    if view.divergence is not None:
        flags.append((view.divergence, "diverges here", 1.0))
    if view.waits:
        met, at = view.collectives, view.waits[0]
        told = f"rank {met.waiter[at]} waited {format_time(float(met.waited_ns[at]))} for rank {met.last[at]}"
        flags.append((int(met.kernel_index[at]), told, 0.0))
    leftwards = [index > 0.5 * view.kernels for index, _, _ in flags]  # on the side with more room
    return {
        "kernel_index": [index for index, _, _ in flags],
        "text": [text for _, text, _ in flags],
        "alpha": [alpha for _, _, alpha in flags],
        "align": ["right" if left else "left" for left in leftwards],
        "offset": [-6 if left else 6 for left in leftwards],
        "height": [0.98 - 0.08 * n for n in range(len(flags))],
    }


def build_marks(
    x_range: Range1d,
    bounds: tuple[float, float],
    collectives: ColumnDataSource,
    waits: ColumnDataSource,
    flags: ColumnDataSource,
) -> KernelMarks:
    """Build the marks; ticks and density follow the x range, which is at `bounds` now, and the collectives."""
    at = np.asarray(collectives.data["kernel_index"])
    few = at.size <= MAX_MARKS
    ticks = ColumnDataSource({"x": at if few else []}, name="ticks")
    empty: dict[str, Any] = {"left": [], "right": [], "alpha": []}
    density = ColumnDataSource(empty if few else _bins(at, *bounds), name="density")
    follow = CustomJS(
        args={
            "kernels": x_range,
            "collectives": collectives,
            "ticks": ticks,
            "density": density,
            "most": MAX_MARKS,
            "bins": DENSITY_BINS,
        },
        code=read_script("density.js"),
    )
    x_range.js_on_change("start", follow)
    x_range.js_on_change("end", follow)
    collectives.js_on_change("data", follow)
    return KernelMarks(ticks, density, waits, flags)


def _bins(at: "np.ndarray[Any, Any]", start: float, end: float) -> dict[str, Any]:
    counts, edges = np.histogram(at, DENSITY_BINS, (start, end))
    return {"left": edges[:-1], "right": edges[1:], "alpha": counts / max(int(counts.max()), 1)}


def draw_marks(plot: figure, marks: KernelMarks, *, flagged: bool) -> None:
    """Mark collectives along the bottom, long waits and the divergence; with text if `flagged`."""
    plot.extra_y_ranges = {"strip": Range1d(start=0, end=1)}
    plot.segment("x", 0, "x", 0.07, source=marks.ticks, y_range_name="strip", line_color=COLLECTIVE_COLOR, line_width=2)
    plot.quad(
        "left",
        "right",
        0.07,
        0,
        source=marks.density,
        y_range_name="strip",
        fill_color=COLLECTIVE_COLOR,
        fill_alpha="alpha",
        line_color=None,
    )
    plot.add_glyph(marks.waits, VSpan(x="kernel_index", line_color=COLLECTIVE_COLOR, line_width=1.2, line_alpha=0.8))
    plot.add_glyph(
        marks.flags,
        VSpan(x="kernel_index", line_color=MARK_COLOR, line_dash="dashed", line_width=1.8, line_alpha="alpha"),
    )
    if not flagged:
        return
    text = Text(
        x="kernel_index",
        y="height",
        text="text",
        text_color=TEXT_COLOR,
        background_fill_color=BACKGROUND_COLOR,
        background_fill_alpha=0.75,
        text_font_size="12px",
        text_align="align",
        text_baseline="top",
        x_offset="offset",
    )
    drawn = plot.add_glyph(marks.flags, text)
    drawn.y_range_name, drawn.name = "strip", "flags"
