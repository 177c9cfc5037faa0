"""Whether computation or communication takes the time of all ranks alike, and what bandwidth communication reaches."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, Literal

import numpy as np

from jitter.analysis.metrics.bandwidth_baseline import Baseline, BaselineRow, below_in_every_step
from jitter.analysis.metrics.collective_calls import UNPAIRED
from jitter.analysis.metrics.communication import SHARES, Communication, tabulate_collectives
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_bandwidth, format_percent
from jitter.core.grouping import by_key
from jitter.core.names.kernels import copy_direction, is_collective

EfficiencyKind = Literal["compute_bound", "communication"]


@dataclass(frozen=True)
class EfficiencyFinding:
    """A limit of all ranks alike whose cost is not known."""

    kind: EfficiencyKind
    sentence: str
    share: float | None = None
    """The time that it concerns, as a fraction of the steps' time; None if unknown."""


_LIMITS: Final = THRESHOLDS.efficiency

_COMMUNICATION_OPERATORS: Final = ("record_param_comms", "nccl:", "c10d::", "gloo:", "mpi:", "ucc:")


def find_bound(measured: Communication, baseline: Baseline | None) -> EfficiencyFinding | None:
    """Return whether compute or communication, `measured` in some steps, takes the time; None if neither is known."""
    total = sum(rank_step.step_ns for rank_step in measured.rank_steps)
    is_alone = len({rank_step.rank for rank_step in measured.rank_steps}) == 1
    if not total or not (measured.kinds or is_alone):
        return None
    parts = np.array([rank_step.shares_ns for rank_step in measured.rank_steps], np.int64).sum(axis=0) / total
    share = dict(zip(SHARES, parts.tolist(), strict=True))
    exposed, compute = share["exposed"], share["compute"] + share["hidden"]
    if exposed < _LIMITS.compute_bound:
        if compute < THRESHOLDS.main_share or share["idle"] + share["waiting"] > THRESHOLDS.tolerance_share:
            return None
        other = (
            f"communication without compute {format_percent(exposed)}" if measured.kinds else "no communication seen"
        )
        sentence = f"compute-bound: compute takes {format_percent(compute)} of the steps, {other}"
        return EfficiencyFinding("compute_bound", sentence, compute)
    if any((calls.time_ns < 0).any() for calls in measured.calls) or any(
        kind.group_size == 1 for kind in measured.kinds
    ):
        return None  # waiting for ranks that were not recorded is not sentence from communication
    # of the collectives below the baseline in every step, if there are any
    slow = [] if baseline is None else below_in_every_step(measured, baseline)
    reach = _describe_reach(measured, baseline, slow)
    waiting = ", with waiting for partners," if measured.reasons[UNPAIRED] else ""
    sentence = f"communication without compute{waiting} takes {format_percent(exposed)} of the steps{reach}"
    return EfficiencyFinding("communication", sentence, exposed)


def _describe_reach(measured: Communication, baseline: Baseline | None, slow: Sequence[BaselineRow]) -> str:
    """Return the bandwidth of the collective that costs most time, of those below the baseline if there are any."""
    slow_by_size = {(row.collective, row.size_bytes): row for row in slow}
    for row in tabulate_collectives(measured):
        if row.collective is None or row.size is None or row.busbw is None or row.group_size is None:
            continue
        below = slow_by_size.get((row.collective, row.size))
        if slow_by_size and below is None:
            continue
        busbw = row.busbw if below is None else below.busbw
        if round(busbw, 1) == 0:
            continue  # latency, not bandwidth, bounds a few bytes
        reached = None if baseline is None else baseline.busbw(row.collective, row.size, row.group_size)
        return f" and reaches {format_bandwidth(busbw, of=reached)} ({row.collective} of {row.size:,} B)"
    return ""


def find_bounds_in_tables(operators: Iterable[Mapping[str, Any]]) -> list[EfficiencyFinding]:
    """Return what profilers' tables (relation `operators`) say of the whole job, one finding a table at most.

    Operators nest, so the largest share of a communication operator counts, not the sum.
    """
    tables = by_key(
        (row["source"], row) for row in operators if row["share"] is not None and row["self_device_ns"] is not None
    )
    bounds = []
    for source, rows in tables.items():
        name = PurePath(source).name
        of_network = [row for row in rows if is_communication(row["name"])]
        most = max(of_network, key=lambda row: float(row["share"]), default=None)
        if most is not None and most["share"] >= THRESHOLDS.main_share:
            sentence = f"communication-bound: {most['share']:.2%} of the GPU time in {name} is in {most['name']}"
            bounds.append(EfficiencyFinding("communication", sentence, float(most["share"])))
            continue
        copies = [row for row in rows if copy_direction(row["name"]) is not None]
        compute = sum(row["share"] for row in rows) - sum(row["share"] for row in [*of_network, *copies])
        exposed = 0.0 if most is None else float(most["share"])
        if exposed < _LIMITS.compute_bound and compute >= THRESHOLDS.whole_share:
            sentence = f"communication has {format_percent(exposed)} of the GPU time in {name}, compute nearly all"
            bounds.append(EfficiencyFinding("compute_bound", sentence, min(compute, 1.0)))
    return bounds


def is_communication(name: str) -> bool:
    """Return whether an operator or a kernel of a profiler's table communicates.

    >>> is_communication("record_param_comms"), is_communication("nccl:all_reduce"), is_communication("aten::mm")
    (True, True, False)
    """
    return name.startswith(_COMMUNICATION_OPERATORS) or is_collective(name)
