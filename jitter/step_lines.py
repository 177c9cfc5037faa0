"""One line a step, for people and for other programs."""

from typing import Any

import pandas as pd

from jitter.kernels import short_name
from jitter.run import RunSummary, StepOfRun

_MS = 1e6


def step_lines(run: RunSummary) -> pd.DataFrame:
    """Put the run's steps into rows. Times in ns; NA where the step does not tell.

    `loss_ns`, the ranks and the split are the talk's reading at the last synchronisation (see `jitter.summary`).
    """
    frame = pd.DataFrame([_line(step) for step in run.steps])
    whole = ["epoch", "step", "step_time_ns", "loss_ns", "min_rank", "max_rank", "kernel_index", "cohort"]
    return frame.astype(dict.fromkeys(whole, "Int64") | {name: "Float64" for name in frame if name in _FLOATS})


_FLOATS = {"loss_fraction", "max_deviation_ns", "min_deviation_ns", "start_ns", "cpu_ns", "gpu_ns"}


def _line(step: StepOfRun) -> dict[str, object]:
    worst = step.worst
    began, split = worst.divergence, worst.split
    return {
        "epoch": step.step.epoch,
        "step": step.step.step,
        "step_time_ns": step.step_time_ns,
        "loss_ns": step.loss_ns,
        "loss_fraction": step.loss_fraction,
        "min_rank": worst.min_rank,
        "max_rank": worst.max_rank,
        "min_deviation_ns": worst.min_deviation_ns,
        "max_deviation_ns": worst.max_deviation_ns,
        "kernel_index": None if began is None else began.kernel_index,
        "kernel_name": None if began is None else began.kernel_name,
        "start_ns": None if split is None else split.start_ns,
        "cpu_ns": None if split is None else split.cpu_ns,
        "gpu_ns": None if split is None else split.gpu_ns,
        "cohort": worst.cohort,
        "ranks": sum(cohort.ranks for cohort in step.cohorts),
    }


def step_text(frame: pd.DataFrame) -> str:
    """Lay the lines out for a terminal or a pipe: milliseconds, `-` for the unknown."""
    heads = ["step", "time ms", "loss ms", "loss", "min rank", "max rank", "start ms", "cpu ms", "gpu ms", "began at"]
    rows = [heads]
    for line in frame.to_dict("records"):
        step = str(line["step"]) if pd.isna(line["epoch"]) else f"{line['epoch']}/{line['step']}"
        began = "-" if pd.isna(line["kernel_index"]) else f"{line['kernel_index']} {short_name(line['kernel_name'])}"
        rows.append(
            [
                step,
                _number(line["step_time_ns"], _MS),
                _number(line["loss_ns"], _MS),
                "-" if pd.isna(line["loss_fraction"]) else f"{line['loss_fraction']:.1%}",
                _text(line["min_rank"]),
                _text(line["max_rank"]),
                _number(line["start_ns"], _MS),
                _number(line["cpu_ns"], _MS),
                _number(line["gpu_ns"], _MS),
                began,
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads) - 1)]
    return "".join(
        "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) + "\n"
        for row in rows
    )


def _number(value: Any, unit: float) -> str:
    return "-" if pd.isna(value) else f"{value / unit:.3f}"


def _text(value: Any) -> str:
    return "-" if pd.isna(value) else str(value)
