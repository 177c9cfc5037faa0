"""The table of steps as text for a terminal, one row a step."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from jitter.analysis.diagnosis.model import ClassShares
from jitter.core.formatting import abbreviate, escape_control, format_columns
from jitter.core.names.kernels import short_name
from jitter.core.step_key import StepKey
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

    def told(name: str, write: Callable[[Any], str]) -> list[str]:
        return ["-" if row[name] is None else write(row[name]) for row in rows]

    columns = [
        ["step", *(StepKey(row["epoch"], row["step"]).label for row in rows)],
        *([["kind", *kinds]] if set(kinds) - {TRAIN} else []),
        ["time ms", *told("step_time_ns", _milliseconds)],
        ["loss ms", *told("loss_ns", _milliseconds)],
        ["loss", *told("loss_fraction", lambda fraction: f"{round(fraction, 3) + 0.0:.1%}")],
        ["min", *told("min_rank", str)],
        ["max", *told("max_rank", str)],
    ]
    if any(row["expert_rank"] is not None for row in rows):
        imbalances = zip(told("expert_imbalance", "{:.2f}".format), told("expert_rank", "({})".format), strict=True)
        columns.append(["experts", *(" ".join(pair).removesuffix(" -") for pair in imbalances)])
    shown = [name for name in ClassShares._fields if any(row[name] for row in rows)]
    split = [[f"{name[:-3]} ms", *told(name, _milliseconds)] for name in shown]
    cause = ["cause", *(row["cause"] for row in rows)]
    if width - _used_width([*columns, *split, cause]) >= _MIN_DIVERGENCE_WIDTH:
        columns += split
    columns.append(cause)
    rest_width = max(width - _used_width(columns), 1)
    names = told("kernel_name", lambda name: escape_control(short_name(name)))
    began = [" ".join(pair).removesuffix(" -") for pair in zip(told("kernel_index", str), names, strict=True)]
    columns.append([abbreviate(cell, rest_width) for cell in ("began at kernel", *began)])
    return format_columns(zip(*columns, strict=True), left=[len(columns) - 1])


def _used_width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + 2 for column in columns)


def _milliseconds(ns: float) -> str:
    return f"{round(ns / _MS, 3) + 0.0:.3f}"  # + 0.0: no "-0.000"
