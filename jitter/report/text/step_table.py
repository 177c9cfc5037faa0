"""The table of steps, one row a step: as text for a terminal, as a frame for other programs."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from jitter.analysis.diagnosis.model import StepAnswer
from jitter.core.formatting import abbreviate, escape_control
from jitter.core.names.kernels import short_name
from jitter.query.answer_rows import answer_row

_MS = 1e6
_INTEGER_COLUMNS = ("epoch", "step", "step_time_ns", "loss_ns", "min_rank", "max_rank", "kernel_index")
_SPLIT_COLUMNS = ("start_ns", "cpu_ns", "after_ns", "gpu_ns")
_MIN_DIVERGENCE_WIDTH = 24
"""Characters left for the divergence before the split columns are added."""


def tabulate_steps(steps: Sequence[StepAnswer]) -> pd.DataFrame:
    """Return one row a step, with the columns of the relation `answers`; times in ns, NA for the unknown.

    `start_ns`, `cpu_ns`, `after_ns` and `gpu_ns` are the max rank's excess on the critical path: late start, late
    launches, host time after the last launch, GPU.
    """
    frame = pd.DataFrame([answer_row(step) for step in steps])
    types = dict.fromkeys((*_INTEGER_COLUMNS, *_SPLIT_COLUMNS), "Int64") | {"loss_fraction": "Float64"}
    return frame.astype(types)


def format_steps(frame: pd.DataFrame, width: int = 80) -> str:
    """Format the rows of `tabulate_steps` as text of at most `width` columns: times in ms, `-` for the unknown.

    The split of the excess (late start, launches, after the last launch, GPU) is shown only if enough columns are left
    for the kernel at which the step began to diverge; that kernel's name is cut to what is left. Time after the last
    launch has a column if any step has such an excess.
    """
    rows = frame.to_dict("records")
    columns = [
        ["step", *(_step(row) for row in rows)],
        ["time ms", *(_milliseconds(row["step_time_ns"]) for row in rows)],
        ["loss ms", *(_milliseconds(row["loss_ns"]) for row in rows)],
        ["loss", *(_percent(row["loss_fraction"]) for row in rows)],
        ["min", *(_integer(row["min_rank"]) for row in rows)],
        ["max", *(_integer(row["max_rank"]) for row in rows)],
    ]
    shown = [name for name in _SPLIT_COLUMNS if name != "after_ns" or frame[name].fillna(0).any()]
    split = [[f"{name[:-3]} ms", *(_milliseconds(row[name]) for row in rows)] for name in shown]
    cause = ["cause", *(row["cause"] for row in rows)]
    if width - _used_width([*columns, *split, cause]) >= _MIN_DIVERGENCE_WIDTH:
        columns += split
    columns.append(cause)
    left = max(width - _used_width(columns), 1)
    began = ["began at kernel", *(_divergence(row) for row in rows)]
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for cells, last in zip(zip(*columns, strict=True), began, strict=True):
        aligned = (cell.rjust(size) for cell, size in zip(cells, widths, strict=True))
        lines.append("  ".join([*aligned, abbreviate(last, left)]) + "\n")
    return "".join(lines)


def _used_width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + 2 for column in columns)


def _step(row: dict[Any, Any]) -> str:
    return str(row["step"]) if pd.isna(row["epoch"]) else f"{row['epoch']}/{row['step']}"


def _divergence(row: dict[Any, Any]) -> str:
    if pd.isna(row["kernel_index"]):
        return "-"
    return f"{row['kernel_index']} {escape_control(short_name(row['kernel_name']))}"


def _milliseconds(ns: Any) -> str:
    return "-" if pd.isna(ns) else f"{round(ns / _MS, 3) + 0.0:.3f}"  # + 0.0: no "-0.000"


def _percent(fraction: Any) -> str:
    return "-" if pd.isna(fraction) else f"{round(fraction, 3) + 0.0:.1%}"


def _integer(value: Any) -> str:
    return "-" if pd.isna(value) else str(value)
