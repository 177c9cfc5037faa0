"""Who takes longer than the others, ranks by steps: on the critical path, and in all own time.

The path's excess is what METRICS calls excess: own time above the median where it held the job up. Own time above the
others' also counts what waits behind somebody else's lateness; its CPU and GPU parts overlap, so they are not added.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.collectives import Meetings
from jitter.analysis.execution.time_part import OWN_PARTS, TimePart
from jitter.api import Lake

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
MAX_ROWS = 120
"""Rows that can be told apart; of more ranks, neighbours on a host share one."""
MAX_COLUMNS = 300
MIN_SCALE_FRACTION = 0.02
"""Of a usual step: the scale ends there at the least."""
PATH_LAYER, TRANSFER_LAYER = "path", "transfers"


@dataclass(frozen=True)
class HeatmapLayer:
    """One reading of excess; (rows, columns) each. Of ranks and steps that share a cell, the highest."""

    name: str
    title: str
    excess_ns: Floats
    """NaN: nothing is known, or the path did not pass there."""
    rank: Ints
    """Whose it is."""
    step: Ints
    """Position in the run of the step it is of."""
    top_ns: float
    """Where the scale ends: nine tenths of the steps have nothing above it, or what is worth seeing if that is more."""
    most: tuple[int, int, float] | None
    """Rank, position and excess of the highest of all; None where nothing is above 0."""


@dataclass(frozen=True)
class MissingCells:
    """Columns `first` to `last` of a row in which no rank of it has the step."""

    row: int
    first: int
    last: int


@dataclass(frozen=True)
class ExcessHeatmap:
    """Ranks by steps."""

    rows: tuple[tuple[int, ...], ...]
    """The ranks of each row: by host, then by rank."""
    hosts: tuple[str | None, ...]
    """Of each row."""
    columns: tuple[tuple[int, int], ...]
    """The first and the last step, as positions in the run, of each column."""
    layers: tuple[HeatmapLayer, ...]
    """The path's first, where there is one."""
    holes: tuple[MissingCells, ...]


def build_excess_heatmap(lake: Lake, examined: RunAnalysis, first: str = PATH_LAYER) -> ExcessHeatmap | None:
    """Lay out who took longer than the others, the layer `first` first; None of fewer than two ranks."""
    ranks = sorted(examined.run.team_of)
    steps = len(examined.keys)
    if len(ranks) < 2:
        return None
    column = {rank: at for at, rank in enumerate(ranks)}
    own = np.full((len(OWN_PARTS), len(ranks), steps), np.nan)
    for team in examined.deviations:
        own[:, [column[rank] for rank in team.ranks.tolist()]] = team.total_ns.transpose(0, 2, 1)
    path, transfers = _charged(examined, column)
    values = {
        PATH_LAYER: ("on the critical path", path),
        TRANSFER_LAYER: ("transfers on the critical path, at all ranks of their groups", transfers),
    }
    values = {name: layer for name, layer in values.items() if not np.isnan(layer[1]).all()}
    values |= {
        self_time_layer(part): (f"{part.label}: own time above the others'", own[part]) for part in reversed(OWN_PARTS)
    }
    ordered = {name: values[name] for name in sorted(values, key=lambda name: name != first)}
    there = np.zeros((len(ranks), steps), np.bool_)
    for number, key in enumerate(examined.keys):
        there[[column[rank] for rank in lake.ranks_of(key) if rank in column], number] = True
    return arrange_heatmap(ranks, lake.hosts, ordered, there, MIN_SCALE_FRACTION * examined.usual_step_ns)


def self_time_layer(part: int) -> str:
    """The name of the layer of one part of own time."""
    return f"own:{part}"


def _charged(examined: RunAnalysis, column: Mapping[int, int]) -> tuple[Doubles, Doubles]:
    """Sum what the path charges ranks, and groups for transfers, (ranks, steps) each; NaN where it charges nothing."""
    path, transfers = np.full((2, len(column), len(examined.keys)), np.nan)
    for number, one in enumerate(examined.paths):
        own: dict[int, float] = {}
        shared: dict[tuple[int, int], float] = {}
        for charge in one.charges:
            if charge.part != TimePart.TRANSFER:
                own[charge.rank] = own.get(charge.rank, 0.0) + charge.excess_ns
            elif charge.meeting is not None and charge.group is not None:
                group = (charge.meeting, charge.group)
                shared[group] = shared.get(group, 0.0) + charge.excess_ns
        path[[column[rank] for rank in own], number] = list(own.values())
        for group, ns in shared.items():
            members = [column[rank] for rank in _members(examined.run.meetings, *group)]
            transfers[members, number] = np.nan_to_num(transfers[members, number]) + ns
    return path, transfers


def _members(meetings: Meetings, meeting: int, group: int) -> list[int]:
    """The ranks of one group that hold a collective."""
    found = []
    for member in meetings.meetings[meeting].members:
        ranks = np.array(meetings.blocks[member.block].ranks)
        found += ranks[member.group == group].tolist()
    return found


def arrange_heatmap(
    ranks: Sequence[int],
    hosts: Mapping[int, str | None],
    values: Mapping[str, tuple[str, npt.NDArray[np.float64]]],
    there: npt.NDArray[np.bool_],
    least_top_ns: float,
) -> ExcessHeatmap:
    """Arrange layers, name to (title, (ranks, steps) in ns), by host, and fold what is too fine to be seen.

    `there` tells which rank has which step; no scale ends below `least_top_ns`, so that noise stays pale.
    """
    groups = _by_host(ranks, hosts)
    most = max(MAX_ROWS, len(groups))
    fold = next(n for n in range(1, len(ranks) + 1) if sum(-(-len(group) // n) for group in groups) <= most)
    rows = [tuple(group[at : at + fold]) for group in groups for at in range(0, len(group), fold)]
    steps = there.shape[1]
    wide = -(-steps // MAX_COLUMNS)
    columns = [(first, min(first + wide, steps) - 1) for first in range(0, steps, wide)]
    place = {rank: at for at, rank in enumerate(ranks)}
    members = [[place[rank] for rank in row] for row in rows]
    recorded = np.array([[there[m, a : b + 1].any() for a, b in columns] for m in members])
    return ExcessHeatmap(
        rows=tuple(rows),
        hosts=tuple(hosts.get(row[0]) for row in rows),
        columns=tuple(columns),
        layers=tuple(
            _layer(name, title, ns, ranks, members, columns, least_top_ns) for name, (title, ns) in values.items()
        ),
        holes=tuple(hole for row, known in enumerate(recorded) for hole in _holes(row, known)),
    )


def _by_host(ranks: Sequence[int], hosts: Mapping[int, str | None]) -> list[list[int]]:
    """Ranks of one host together, hosts by their first ranks; hosts too many to have a row each are passed over."""
    found: dict[str | None, list[int]] = {}
    for rank in ranks:
        found.setdefault(hosts.get(rank), []).append(rank)
    return list(found.values()) if len(found) <= MAX_ROWS else [list(ranks)]


def _layer(
    name: str,
    title: str,
    ns: npt.NDArray[np.float64],
    ranks: Sequence[int],
    members: Sequence[Sequence[int]],
    columns: Sequence[tuple[int, int]],
    least_top_ns: float,
) -> HeatmapLayer:
    comparable = np.where(np.isnan(ns), -np.inf, ns)
    # each cell's ranks and steps, the last ones repeated where a cell has fewer
    fold = max(len(own) for own in members)
    which = np.array([[own[min(n, len(own) - 1)] for n in range(fold)] for own in members])
    when = np.array([[min(first + n, last) for n in range(columns[0][1] + 1)] for first, last in columns])
    cells = comparable[which[:, :, None, None], when].transpose(0, 2, 1, 3)
    best = cells.reshape(*cells.shape[:2], -1).argmax(axis=2)
    rank = np.take_along_axis(which, best // when.shape[1], axis=1)
    step = np.take_along_axis(when.T, best % when.shape[1], axis=0)
    of_steps = np.sort(np.maximum(comparable.max(axis=0), 0.0))
    top = float(of_steps[-(-9 * len(of_steps) // 10) - 1])
    most = divmod(int(comparable.argmax()), ns.shape[1])
    highest = float(comparable[most])
    return HeatmapLayer(
        name=name,
        title=title,
        excess_ns=ns[rank, step].astype(np.float32),
        rank=np.array(ranks)[rank].astype(np.int32),
        step=step.astype(np.int32),
        top_ns=max(top, least_top_ns),
        most=(ranks[most[0]], most[1], highest) if highest > 0 else None,
    )


def _holes(row: int, known: npt.NDArray[np.bool_]) -> list[MissingCells]:
    edges = np.flatnonzero(np.diff(np.concatenate([[True], known, [True]]).astype(np.int8)))
    return [MissingCells(row, int(first), int(last) - 1) for first, last in zip(edges[::2], edges[1::2], strict=True)]
