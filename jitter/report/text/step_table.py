"""The table of steps as text for a terminal, one row a step."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from jitter.analysis.diagnosis.model import ClassShares
from jitter.core.formatting import abbreviate, escape_control, format_columns
from jitter.core.names.kernels import short_name
from jitter.lake.records import TRAIN

_MS = 1e6
_MIN_DIVERGENCE_WIDTH = 24
"""Characters left for the divergence before the split columns are added."""


def format_steps(table: pa.Table, width: int = 80) -> str:
    """Format the relation `steps` as text of at most `width` columns: times in ms, `-` for the unknown.

    The loss by class is shown only if enough columns are left for the kernel at which the step began to diverge; that
    kernel's name is cut to what is left. A class has a column if any step has a share, the kind if the job does not
    only train, and the imbalance of experts, with its rank, if any step has expert kernels.
    """
    rows = table.to_pylist()
    kinds = [row["kind"] for row in rows]
    columns = [
        ["step", *(_step(row) for row in rows)],
        *([["kind", *kinds]] if set(kinds) - {TRAIN} else []),
        ["time ms", *(_milliseconds(row["step_time_ns"]) for row in rows)],
        ["loss ms", *(_milliseconds(row["loss_ns"]) for row in rows)],
        ["loss", *(_percent(row["loss_fraction"]) for row in rows)],
        ["min", *(_integer(row["min_rank"]) for row in rows)],
        ["max", *(_integer(row["max_rank"]) for row in rows)],
        *(
            [["experts", *(_experts(row) for row in rows)]]
            if any(row["expert_rank"] is not None for row in rows)
            else []
        ),
    ]
    shown = [name for name in ClassShares._fields if any(row[name] for row in rows)]
    split = [[f"{name[:-3]} ms", *(_milliseconds(row[name]) for row in rows)] for name in shown]
    cause = ["cause", *(row["cause"] for row in rows)]
    if width - _used_width([*columns, *split, cause]) >= _MIN_DIVERGENCE_WIDTH:
        columns += split
    columns.append(cause)
    rest_width = max(width - _used_width(columns), 1)
    began = ["began at kernel", *(_divergence(row) for row in rows)]
    columns.append([abbreviate(cell, rest_width) for cell in began])
    return format_columns(zip(*columns, strict=True), left=[len(columns) - 1])


def _used_width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + 2 for column in columns)


def _step(row: dict[Any, Any]) -> str:
    return str(row["step"]) if row["epoch"] is None else f"{row['epoch']}/{row['step']}"


def _divergence(row: dict[Any, Any]) -> str:
    if row["kernel_index"] is None:
        return "-"
    return f"{row['kernel_index']} {escape_control(short_name(row['kernel_name']))}"


def _milliseconds(ns: Any) -> str:
    return "-" if ns is None else f"{round(ns / _MS, 3) + 0.0:.3f}"  # + 0.0: no "-0.000"


def _percent(fraction: Any) -> str:
    return "-" if fraction is None else f"{round(fraction, 3) + 0.0:.1%}"


def _experts(row: dict[Any, Any]) -> str:
    return "-" if row["expert_rank"] is None else f"{row['expert_imbalance']:.2f} ({row['expert_rank']})"


def _integer(value: Any) -> str:
    return "-" if value is None else str(value)
