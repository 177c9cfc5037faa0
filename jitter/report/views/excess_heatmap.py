"""Heatmap of ranks by steps: shares of the loss, and own time above the peers' median.

A share of the loss is what the job lost to a rank in a step (`jitter explain account`). Own time above the peers'
median also includes time that slower ranks mask. Its CPU and GPU parts overlap, so they are not added.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jitter.analysis.account.losses import OWN_CLASSES, LossClass
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.self_times import OWN_PARTS
from jitter.api import Lake
from jitter.core.grouping import by_key
from jitter.core.numeric.arrays import Bools, Codes, Floats

MAX_ROWS = 120
"""Rows that a reader can distinguish; with more ranks, neighbours on a host share a row."""
MAX_COLUMNS = 300
LOW_SCALE_FRACTION, HIGH_SCALE_FRACTION = 0.003, 0.02
"""Start of the colour scale, and the smallest end of it, as fractions of the median step time."""
LOSS_LAYER, TRANSFER_LAYER, NETWORK_LAYER, OWN_LAYER = "loss", "transfers", "network", "own"


@dataclass(frozen=True)
class HeatmapLayer:
    """One layer of the map, arrays of shape (rows, columns). A cell shows the highest value of its ranks and steps."""

    name: str
    title: str
    excess_ns: npt.NDArray[np.float32]
    """NaN: unknown, or a share of the loss below `low_ns`."""
    rank: Codes
    """Rank of the value."""
    step: Codes
    """Position in the run of the value's step."""
    low_ns: float
    """Start of the logarithmic colour scale: `LOW_SCALE_FRACTION` of a step."""
    high_ns: float
    """End of it: the highest value, at least `HIGH_SCALE_FRACTION` of a step, so that noise stays pale."""

    @property
    def shows_loss(self) -> bool:
        """Whether it shows shares of a loss only."""
        return self.name in (LOSS_LAYER, TRANSFER_LAYER, NETWORK_LAYER)


@dataclass(frozen=True)
class ExcessHeatmap:
    """The map of ranks by steps."""

    rows: tuple[tuple[int, ...], ...]
    """Ranks of each row, ordered by host, then by rank."""
    hosts: tuple[str | None, ...]
    """Host of each row; None if unknown."""
    columns: tuple[tuple[int, int], ...]
    """First and last step of each column, as positions in the run."""
    layers: tuple[HeatmapLayer, ...]
    """The layer to show comes first."""
    holes: tuple[tuple[int, int, int], ...]
    """Cells without a recording: a row, the first and the last of its columns."""
    own: HeatmapLayer | None = None
    """Own excess, the largest of its parts: shown where a rank has no share of the loss."""


def build_excess_heatmap(lake: Lake, examined: RunAnalysis, first: str = LOSS_LAYER) -> ExcessHeatmap | None:
    """Build the map, with the layer named `first` first; None for fewer than two ranks."""
    ranks = sorted(examined.run.team_of)
    steps = len(examined.keys)
    if len(ranks) < 2:
        return None
    column = {rank: at for at, rank in enumerate(ranks)}
    self_excess_ns = np.full((len(OWN_PARTS), len(ranks), steps), np.nan)
    for team in examined.measured.deviations:
        self_excess_ns[:, [column[rank] for rank in team.ranks.tolist()]] = team.total_ns.transpose(0, 2, 1)
    shares, transfers = _charged(examined, column)
    values = {
        LOSS_LAYER: ("share of the loss", shares),
        TRANSFER_LAYER: ("communication's share of the loss, at all ranks of its groups", transfers),
    }
    if first == NETWORK_LAYER:  # in place of how transfers vary
        above = "transfers above the benchmark, at all ranks of their groups", _above_benchmark(examined, column)
        values = {LOSS_LAYER: values[LOSS_LAYER], NETWORK_LAYER: above}
    for _, layer in values.values():
        layer[layer < LOW_SCALE_FRACTION * examined.measured.usual_step_ns] = np.nan  # too small a share to be seen
    values = {name: layer for name, layer in values.items() if not np.isnan(layer[1]).all()}
    values |= {
        self_time_layer(part): (f"{part.label}: own time above the peers' median", self_excess_ns[part])
        for part in reversed(OWN_PARTS)
    }
    ordered = {name: values[name] for name in sorted(values, key=lambda name: name != first)}
    there = np.zeros((len(ranks), steps), np.bool_)
    for number, key in enumerate(examined.keys):
        there[[column[rank] for rank in lake.ranks_of(key) if rank in column], number] = True
    ordered[OWN_LAYER] = ("own time above the peers' median, largest part", np.fmax.reduce(self_excess_ns))
    return arrange_heatmap(ranks, lake.hosts, ordered, there, examined.measured.usual_step_ns)


def self_time_layer(part: int) -> str:
    """Return the name of the layer of one part of own time."""
    return f"own:{part}"


def _charged(examined: RunAnalysis, column: Mapping[int, int]) -> tuple[Floats, Floats]:
    """Sum the shares of the loss per rank, and of communication per group: two arrays (ranks, steps) in ns.

    NaN marks a rank that has none.
    """
    rank_shares, transfers = np.full((2, len(column), len(examined.keys)), np.nan)
    for number, account in enumerate(examined.account.of_steps):
        of_ranks = account.losses.of(OWN_CLASSES)
        at = np.searchsorted(list(column), of_ranks.rank)
        rank_shares[at, number] = 0.0
        np.add.at(rank_shares[:, number], at, of_ranks.loss_ns)
        of_groups = account.losses.of([LossClass.TRANSFER])
        shared: dict[int, float] = {}
        for group, ns in zip(of_groups.group.tolist(), of_groups.loss_ns.tolist(), strict=True):
            shared[group] = shared.get(group, 0.0) + ns
        for group, ns in shared.items():
            members = [column[rank] for rank in examined.run.ranks_of_group(group)]
            transfers[members, number] = np.nan_to_num(transfers[members, number]) + ns
    return rank_shares, transfers


def _above_benchmark(examined: RunAnalysis, column: Mapping[int, int]) -> Floats:
    """Sum how much longer each rank's transfers take than a benchmark gives, (ranks, steps) in ns."""
    above_ns = np.zeros((len(column), len(examined.keys)))
    for number, (took, expected) in enumerate(zip(examined.transfers.took, examined.transfers.expected, strict=True)):
        for group in np.flatnonzero(took > expected).tolist():
            members = [column[rank] for rank in examined.run.ranks_of_group(group)]
            above_ns[members, number] += took[group] - expected[group]
    return above_ns


def arrange_heatmap(
    ranks: Sequence[int],
    hosts: Mapping[int, str | None],
    values: Mapping[str, tuple[str, Floats]],
    there: Bools,
    step_ns: float,
) -> ExcessHeatmap:
    """Arrange layers by host, and merge rows and columns that are too fine to see.

    `values` maps a layer's name to its title and its values, shape (ranks, steps), ns. `there` states which rank
    recorded which step. The colour scales are in proportion to the step time `step_ns`. The layer `OWN_LAYER` becomes
    `own`.
    """
    ranks_of_host = by_key((hosts.get(rank), rank) for rank in ranks)
    groups = list(ranks_of_host.values()) if len(ranks_of_host) <= MAX_ROWS else [list(ranks)]
    most = max(MAX_ROWS, len(groups))
    fold = next(n for n in range(1, len(ranks) + 1) if sum(-(-len(group) // n) for group in groups) <= most)
    rows = [tuple(group[at : at + fold]) for group in groups for at in range(0, len(group), fold)]
    steps = there.shape[1]
    wide = -(-steps // MAX_COLUMNS)
    columns = [(first, min(first + wide, steps) - 1) for first in range(0, steps, wide)]
    place = {rank: at for at, rank in enumerate(ranks)}
    members = [[place[rank] for rank in row] for row in rows]
    recorded = np.array([[there[m, a : b + 1].any() for a, b in columns] for m in members])
    # ranks and steps of each cell; a cell with fewer repeats its last one
    fold = max(map(len, members))
    source_rows = np.array([[merged[min(n, len(merged) - 1)] for n in range(fold)] for merged in members])
    when = np.array([[min(first + n, last) for n in range(columns[0][1] + 1)] for first, last in columns])

    def build_layer(name: str, title: str, ns: Floats) -> HeatmapLayer:
        comparable = np.where(np.isnan(ns), -np.inf, ns)
        cells = comparable[source_rows[:, :, None, None], when].transpose(0, 2, 1, 3)
        best = cells.reshape(*cells.shape[:2], -1).argmax(axis=2)
        rank = np.take_along_axis(source_rows, best // when.shape[1], axis=1)
        step = np.take_along_axis(when.T, best % when.shape[1], axis=0)
        return HeatmapLayer(
            name=name,
            title=title,
            excess_ns=ns[rank, step].astype(np.float32),
            rank=np.array(ranks)[rank].astype(np.int32),
            step=step.astype(np.int32),
            low_ns=LOW_SCALE_FRACTION * step_ns,
            high_ns=max(float(comparable.max()), HIGH_SCALE_FRACTION * step_ns),
        )

    layers = {name: build_layer(name, *titled) for name, titled in values.items()}
    own_times = layers.pop(OWN_LAYER, None)
    return ExcessHeatmap(
        rows=tuple(rows),
        hosts=tuple(hosts.get(row[0]) for row in rows),
        columns=tuple(columns),
        layers=tuple(layers.values()),
        holes=tuple(hole for row, is_recorded in enumerate(recorded) for hole in _holes(row, is_recorded)),
        own=own_times,
    )


def _holes(row: int, is_recorded: Bools) -> list[tuple[int, int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[True], is_recorded, [True]]).astype(np.int8)))
    return [(row, int(first), int(last) - 1) for first, last in zip(edges[::2], edges[1::2], strict=True)]
