"""One line a step, for people and for other programs."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from jitter.analysis.diagnosis.model import StepAnswer
from jitter.core.formatting import escape_control
from jitter.core.kernels import short_name
from jitter.query.answer_rows import answer_row

_MS = 1e6
_WHOLE = ("epoch", "step", "step_time_ns", "loss_ns", "min_rank", "max_rank", "kernel_index")
_WHOLE_NS = ("start_ns", "cpu_ns", "gpu_ns")


def tabulate_steps(steps: Sequence[StepAnswer]) -> pd.DataFrame:
    """Put the steps' answers into rows. Times in ns; NA where the step does not tell.

    `start_ns`, `cpu_ns` and `gpu_ns` are the max rank's excess on the critical path, by where it arose.
    """
    frame = pd.DataFrame([answer_row(step) for step in steps])
    types = dict.fromkeys((*_WHOLE, *_WHOLE_NS), "Int64") | {"loss_fraction": "Float64"}
    return frame.astype(types)


def format_steps(frame: pd.DataFrame) -> str:
    """Lay the lines out for a terminal or a pipe: milliseconds, `-` for the unknown."""
    heads = ["step", "time ms", "loss ms", "loss", "min rank", "max rank", "start ms", "cpu ms", "gpu ms"]
    rows = [[*heads, "cause", "began at"]]
    for line in frame.to_dict("records"):
        step = str(line["step"]) if pd.isna(line["epoch"]) else f"{line['epoch']}/{line['step']}"
        began = (
            "-"
            if pd.isna(line["kernel_index"])
            else f"{line['kernel_index']} {escape_control(short_name(line['kernel_name']))}"
        )
        rows.append(
            [
                step,
                _number(line["step_time_ns"], _MS),
                _number(line["loss_ns"], _MS),
                "-" if pd.isna(line["loss_fraction"]) else f"{line['loss_fraction']:.1%}",
                _text(line["min_rank"]),
                _text(line["max_rank"]),
                *(_number(line[name], _MS) for name in _WHOLE_NS),
                line["cause"],
                began,
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "".join(
        "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) + "\n"
        for row in rows
    )


def _number(value: Any, unit: float) -> str:
    return "-" if pd.isna(value) else f"{value / unit:.3f}"


def _text(value: Any) -> str:
    return "-" if pd.isna(value) else str(value)
