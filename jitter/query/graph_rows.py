"""The graph that the account rests on as rows: what waits for what, own times and their baselines, collective calls."""

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.replay.run_steps import RecordedStep
from jitter.core.names.kernels import SYNC
from jitter.core.numeric.arrays import Floats
from jitter.core.step_key import StepKey

WAITS_SCHEMA = pa.schema(
    [
        ("team", pa.int64()),
        ("operation", pa.int64()),
        ("kernel_name", pa.string()),
        ("waits", pa.string()),
        ("on_operation", pa.int64()),
        ("on_kernel_name", pa.string()),
        ("on_stream", pa.int64()),
        ("steps_back", pa.int64()),
        ("provenance", pa.string()),
        ("spread_ns", pa.float64()),
        ("gap_spread_ns", pa.float64()),
    ]
)
_TIMES = ("host", "call", "lead", "delay", "gpu")
"""Self times, as `SelfTimes` has them."""
SELF_TIMES_SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("epoch", "step", "rank", "team", "operation")),
        ("kernel_name", pa.string()),
        *((f"{name}_ns", pa.float64()) for name in _TIMES),
        *((f"usual_{name}_ns", pa.float64()) for name in _TIMES),
    ]
)
COLLECTIVE_CALLS_SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("epoch", "step", "collective", "group", "rank", "team", "operation")),
        ("kernel_name", pa.string()),
        ("waited_ns", pa.float64()),
        ("transfer_ns", pa.float64()),
        ("usual_transfer_ns", pa.float64()),
    ]
)


def wait_rows(analysis: RunAnalysis) -> pa.Table:
    """Return one row a wait of each team's program (`WAITS_SCHEMA`)."""
    rows = []
    for team, program in analysis.run.programs.items():
        operations = program.operations
        for wait in analysis.run.dependencies[team].waits:
            is_known = wait.on_op_index >= 0
            rows.append(
                {
                    "team": team,
                    "operation": wait.op_index,
                    "kernel_name": operations[wait.op_index].name,
                    "waits": "host" if wait.kind == "sync" else "gpu",
                    "on_operation": wait.on_op_index if is_known else None,
                    "on_kernel_name": operations[wait.on_op_index].name if is_known else None,
                    "on_stream": operations[wait.on_op_index].stream if is_known else ~wait.on_op_index,
                    "steps_back": wait.steps_back if is_known else 1,
                    "provenance": wait.provenance,
                    "spread_ns": wait.spread_ns,
                    "gap_spread_ns": wait.gap_spread_ns,
                }
            )
    return pa.Table.from_pylist(rows, WAITS_SCHEMA)


def self_time_rows(analysis: RunAnalysis, keys: Collection[StepKey]) -> Iterator[pa.Table]:
    """Yield, step by step, one row an operation that a rank has (`SELF_TIMES_SCHEMA`)."""
    for step in _steps(analysis, keys):
        baseline = analysis.steps.baseline(step)
        for number in np.flatnonzero(step.times.row >= 0).tolist():
            yield _self_times(analysis, step, number, baseline)


def _self_times(analysis: RunAnalysis, step: RecordedStep, number: int, baseline: tuple[Floats, ...]) -> pa.Table:
    run, team = analysis.run, int(step.times.team[number])
    first, row = int(run.job.first[team]), int(step.times.row[number])
    operations = run.programs[team].operations
    places = np.arange(len(operations))
    has_it = ~np.isnan(
        np.where(run.job.kind[first + places] == SYNC, step.times.call[row + places], step.times.start[row + places])
    )
    places = places[has_it]
    size = len(places)
    columns: dict[str, object] = {
        "epoch": [step.key.epoch] * size,
        "step": np.full(size, step.key.step),
        "rank": np.full(size, run.rank_numbers[number]),
        "team": np.full(size, team),
        "operation": places,
        "kernel_name": [operations[place].name for place in places.tolist()],
    }
    for name, self_times_ns, usual in zip(_TIMES, step.own, baseline, strict=True):
        columns[f"{name}_ns"] = pa.array(self_times_ns[row + places], from_pandas=True)
        columns[f"usual_{name}_ns"] = pa.array(usual[first + places], from_pandas=True)
    return pa.table(columns, SELF_TIMES_SCHEMA)


def collective_call_rows(analysis: RunAnalysis, keys: Collection[StepKey]) -> Iterator[pa.Table]:
    """Yield, step by step, one row a rank in each of its collectives (`COLLECTIVE_CALLS_SCHEMA`)."""
    run, usual = analysis.run, analysis.baseline_transfers
    collectives = run.collective_arrays
    number = np.repeat(np.arange(len(collectives.first) - 1), np.diff(collectives.first))
    for step in _steps(analysis, keys):
        indices = np.flatnonzero(~np.isnan(step.in_collectives))
        rank, group = collectives.rank[indices], collectives.group[indices]
        team, place = step.times.team[rank], collectives.place[indices]
        took = step.transfers.took[group]
        columns = {
            "epoch": [step.key.epoch] * len(indices),
            "step": np.full(len(indices), step.key.step),
            "collective": number[indices],
            "group": group - collectives.first_group[number[indices]],
            "rank": run.rank_numbers[rank],
            "team": team,
            "operation": place,
            "kernel_name": [
                run.programs[of].operations[at].name for of, at in zip(team.tolist(), place.tolist(), strict=True)
            ],
            "waited_ns": step.in_collectives[indices] - took,
            "transfer_ns": took,
            "usual_transfer_ns": pa.array(usual[step.number][group], from_pandas=True),
        }
        yield pa.table(columns, COLLECTIVE_CALLS_SCHEMA)


def _steps(analysis: RunAnalysis, keys: Collection[StepKey]) -> Iterator[RecordedStep]:
    """Go through the steps up to the last of `keys`, and yield those."""
    numbers = {at for at, key in enumerate(analysis.keys) if key in set(keys)}
    if numbers:
        for step in analysis.steps.steps(min(numbers), max(numbers) + 1):
            if step.number in numbers:
                yield step
            del step  # else it stays in memory while the next one is read
