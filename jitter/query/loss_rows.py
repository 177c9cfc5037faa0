"""The account of lost time as rows: each share of each step's loss, with its rank or collective, class and place."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from jitter.analysis.account.losses import LossClass, Losses
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.evidence.after_last_launch import TimeAfterLaunches
from jitter.analysis.diagnosis.evidence.locations import KernelLocator
from jitter.analysis.metrics.step_kernels import UNMATCHED
from jitter.core.step_key import StepKey
from jitter.lake.records import RankStepRecord, commonest_kind
from jitter.lake.step_reader import StepColumns

LOSSES_SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("step", pa.int64()),
        ("kind", pa.string()),
        ("origin_epoch", pa.int64()),
        ("origin_step", pa.int64()),
        ("rung", pa.string()),
        ("rank", pa.int64()),
        ("host", pa.string()),
        ("device", pa.int64()),
        ("team", pa.int64()),
        ("collective", pa.int64()),
        ("ranks", pa.list_(pa.int64())),
        ("class", pa.string()),
        ("operation", pa.int64()),
        ("kernel_index", pa.int64()),
        ("kernel_name", pa.string()),
        ("phase", pa.string()),
        ("loss_ns", pa.float64()),
        ("excess_ns", pa.float64()),
    ]
)


ReadColumns = Callable[[StepKey, Sequence[str], Sequence[int]], StepColumns]
"""Returns columns of one step's rows of some ranks."""


def loss_rows(
    analysis: RunAnalysis,
    records: Mapping[StepKey, Mapping[int, RankStepRecord]],
    loss_ns: Sequence[int | None],
    read: ReadColumns,
) -> pa.Table:
    """Return the rows of all steps with a known loss (`LOSSES_SCHEMA`); those of a step add up to its loss.

    Args:
        analysis: of the run.
        records: by step and rank.
        loss_ns: of each step of the run, as the diagnosis states it; None where that is unknown.
        read: reads the lake.

    """
    phases = {team: _phases(analysis, team, read) for team in analysis.run.programs}
    after, locator = TimeAfterLaunches(analysis, records), KernelLocator(analysis)
    tables = [
        _rows(analysis, records, locator, phases, number, after.losses(number))
        for number, known_ns in enumerate(loss_ns)
        if known_ns is not None
    ]
    return pa.concat_tables([LOSSES_SCHEMA.empty_table(), *tables])


def _rows(
    analysis: RunAnalysis,
    records: Mapping[StepKey, Mapping[int, RankStepRecord]],
    locator: KernelLocator,
    phases: Mapping[int, Sequence[str | None]],
    number: int,
    losses: Losses,
) -> pa.Table:
    key, run = analysis.keys[number], analysis.run
    members = [_members(analysis, *of) for of in zip(losses.collective.tolist(), losses.group.tolist(), strict=True)]
    places = losses.place.tolist()
    index = _kernel_indices(analysis, locator, losses)
    ranks = [None if rank < 0 else rank for rank in losses.rank.tolist()]
    of_rank = {rank: records[key].get(rank) for rank in ranks if rank is not None}
    held = [None if rank is None else of_rank[rank] for rank in ranks]
    operations = list(zip(losses.team.tolist(), places, strict=True))
    names = [run.programs[team].operations[place].name if place >= 0 else None for team, place in operations]
    origins = [analysis.keys[at] for at in losses.origin.tolist()]
    size = len(losses)
    columns = {
        "epoch": [key.epoch] * size,
        "step": [key.step] * size,
        "kind": [commonest_kind(records[key].values())] * size,
        "origin_epoch": [origin.epoch for origin in origins],
        "origin_step": [origin.step for origin in origins],
        "rung": ["ranks"] * size,
        "rank": ranks,
        "host": [None if rank_record is None else rank_record.record.host for rank_record in held],
        "device": [None if rank_record is None else rank_record.record.device for rank_record in held],
        "team": [None if team < 0 else team for team in losses.team.tolist()],
        "collective": [None if collective < 0 else collective for collective in losses.collective.tolist()],
        "ranks": members,
        "class": [LossClass(loss_class).label for loss_class in losses.loss_class.tolist()],
        "operation": [None if place < 0 else place for place in places],
        "kernel_index": [None if kernel_index == UNMATCHED else kernel_index for kernel_index in index],
        "kernel_name": names,
        "phase": [phases[team][place] if place >= 0 else None for team, place in operations],
        "loss_ns": losses.loss_ns.tolist(),
        "excess_ns": [None if np.isnan(excess_ns) else excess_ns for excess_ns in losses.excess_ns.tolist()],
    }
    return pa.table(columns, LOSSES_SCHEMA)


def _phases(analysis: RunAnalysis, team: int, read: ReadColumns) -> list[str | None]:
    """Return the phase of each operation of a team's program, as its first rank recorded it in its first step."""
    run = analysis.run
    phase_of_operation: list[str | None] = [None] * len(run.programs[team].operations)
    key = next((key for key in analysis.keys if run.ranks(key, team)), None)
    if key is None:
        return phase_of_operation
    first = run.ranks(key, team)[:1]
    phases = read(key, ["phase"], first).table["phase"].to_pylist()
    for place, row in enumerate(run.file_rows(key, team, first)[:, 0].tolist()):
        if row >= 0:
            phase_of_operation[place] = phases[row]
    return phase_of_operation


def _members(analysis: RunAnalysis, collective: int, group: int) -> list[int] | None:
    """Return the ranks of a group of a collective; None without a collective."""
    if collective < 0:
        return None
    collectives = analysis.run.collective_arrays
    group_index = int(collectives.first_group[collective]) + group
    members = collectives.by_group[
        collectives.first_in_group[group_index] : collectives.first_in_group[group_index + 1]
    ]
    ranks: list[int] = np.sort(analysis.run.rank_numbers[collectives.rank[members]]).tolist()
    return ranks


def _kernel_indices(analysis: RunAnalysis, locator: KernelLocator, losses: Losses) -> list[int]:
    """Return the kernel index of each row's operation in its own step; `UNMATCHED` where there is none."""
    indices = np.full(len(losses), UNMATCHED, np.int64)
    for origin in np.unique(losses.origin).tolist():
        rows = np.flatnonzero(losses.origin == origin)
        indices[rows] = locator.locate_all(analysis.keys[origin], losses.where(rows))
    located: list[int] = indices.tolist()
    return located
