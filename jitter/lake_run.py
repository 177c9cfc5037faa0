"""A lake's run, as the dependencies, the replay and the critical path see it."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from jitter.align import StepIndex
from jitter.cells import COLUMNS, Cell, Syncs, cells
from jitter.holdings import Held
from jitter.host_rows import HostRows
from jitter.meetings import Group
from jitter.observed import Member, Source
from jitter.step_columns import read_step
from jitter.steps import StepKey
from jitter.work_shape import Shapes

_ROWS_KEPT = 3_000_000
"""Rows of cells that stay in memory (some 70 bytes each); beyond, steps are read again whenever they are needed."""


class LakeRun:
    """Reads what `Source` needs, a step at a time."""

    def __init__(
        self,
        root: Path,
        held: Mapping[StepKey, Mapping[int, Held]],
        indices: Callable[[StepKey], Sequence[StepIndex]],
        steps: Sequence[StepKey],
    ) -> None:
        self._root, self._held, self._indices = root, held, indices
        self._steps = list(steps)
        self._cells: OrderedDict[StepKey, Mapping[int, Cell]] = OrderedDict()
        self._kept = 0
        self._hosts: dict[str, HostRows] = {}
        self.origin_ns: dict[int, int] = {}
        """Each rank's zero: its first step's begin, on its own clock."""
        for key in self._steps:
            for rank, one in held[key].items():
                self.origin_ns.setdefault(rank, one.step.start_ns)

    @property
    def source(self) -> Source:
        """The run."""
        main = {rank: one.record.main_stream for key in self._steps for rank, one in self._held[key].items()}
        return Source(self._steps, self._members, self._read, self._names, self._groups, main)

    def indices(self, key: StepKey) -> Sequence[StepIndex]:
        """The alignment of each cohort in a step."""
        return self._indices(key)

    def cells(self, key: StepKey) -> Mapping[int, Cell]:
        """A step's cells, by rank."""
        return self._read(key)

    def host(self, key: StepKey, rank: int) -> HostRows:
        """What the rank's host did, as the source of this step tells."""
        record = self._held[key][rank].record
        if record.digest not in self._hosts:
            self._hosts[record.digest] = HostRows(self._root, record)
        return self._hosts[record.digest]

    def launch_shapes(self, key: StepKey) -> dict[int, Shapes]:
        """What each rank's rows of a step were launched as."""
        axes = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
        found = read_step(self._root, key, self._held[key], ("kernel_name", *axes))
        names, _ = found.codes("kernel_name")
        known = np.logical_and.reduce([found.known(axis) for axis in axes])
        threads = np.where(known, np.prod([found.values(axis).astype(np.float64) for axis in axes], axis=0), np.nan)
        bounds = zip(found.ranks, found.bounds[:-1].tolist(), found.bounds[1:].tolist(), strict=True)
        return {rank: Shapes(names[first:last].astype(np.int64), threads[first:last]) for rank, first, last in bounds}

    def _members(self, key: StepKey) -> list[Member]:
        found = [
            Member(member.rank, index.cohort, member.sequence, member.cut)
            for index in self._indices(key)
            for member in index.members
        ]
        return sorted(found, key=lambda member: member.rank)

    def _read(self, key: StepKey) -> Mapping[int, Cell]:
        if key in self._cells:
            self._cells.move_to_end(key)
            return self._cells[key]
        found = read_step(self._root, key, self._held[key], COLUMNS)
        syncs: dict[int, Syncs] = {rank: self.host(key, rank).syncs(key) for rank in found.ranks}
        made = {cell.rank: cell for cell in cells(found.table, syncs, self.origin_ns)}
        self._cells[key] = made
        self._kept += found.table.num_rows
        while self._kept > _ROWS_KEPT and len(self._cells) > 1:
            _, dropped = self._cells.popitem(last=False)
            self._kept -= sum(int((cell.ordinal >= 0).sum()) for cell in dropped.values())
        return made

    def _names(self, key: StepKey, rank: int) -> list[str]:
        found = read_step(self._root, key, self._held[key], ("kernel_name",), [rank])
        names = found.table["kernel_name"].to_pylist()
        waits = iter(self.host(key, rank).syncs(key).names)
        return [names[row] if row >= 0 else next(waits) for row in self._read(key)[rank].ordinal.tolist()]

    def _groups(self, key: StepKey) -> dict[int, dict[int, Group]]:
        columns = ("rank", "ordinal", "kind", "group_name", "group_ranks", "group_size", "sequence")
        rows = read_step(self._root, key, self._held[key], columns).table
        collectives = rows.filter(np.array(rows["kind"].to_pylist()) == "collective") if rows.num_rows else rows
        found: dict[int, dict[int, Group]] = {rank: {} for rank in self._held[key]}
        for row in collectives.to_pylist():
            found[row["rank"]][row["ordinal"]] = _group(row)
        return found


def _group(row: Mapping[str, object]) -> Group:
    """Name a collective's group by its ranks, else by its own name; None where the trace tells neither."""
    ranks, name = row["group_ranks"], row["group_name"]
    if ranks:
        return ("ranks", *ranks)  # type: ignore[misc]
    return None if name is None else ("name", name)
