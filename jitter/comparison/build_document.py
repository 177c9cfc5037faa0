"""Make the baseline document of a lake."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitter._version import __version__
from jitter.analysis.alignment.program import Program
from jitter.analysis.replay.time_on_path import PathPart, PathTime, measure_kernel_times, measure_path_times
from jitter.api import Lake
from jitter.comparison.document import (
    DOCUMENT_KIND,
    DOCUMENT_SCHEMA_VERSION,
    CollectiveEntry,
    CulpritEntry,
    Document,
    Environment,
    Place,
    RankEntry,
    StepEntry,
    Team,
    ThroughputEntry,
)
from jitter.core.names.kernels import MEMORY
from jitter.core.numeric.arrays import Floats, spread_positions
from jitter.core.step_key import StepKey
from jitter.lake.derived.freshness import made_from

if TYPE_CHECKING:
    from jitter.analysis.detection.run_analysis import RunAnalysis
    from jitter.analysis.diagnosis.diagnosis import Diagnosis

_MAX_KERNEL_TIMES: Final = 140_000
"""Kernel times in a document, about 6 bytes each: a longer run keeps some steps at even distances."""
_MAX_STEPS: Final = 5_000
"""Steps in a document, about 90 bytes each: a longer run keeps the last ones."""
_MAX_NAME: Final = 320
"""Characters of a kernel's name; a longer one ends in a digest of the whole."""
_MAX_COLLECTIVES: Final = 500
_MAX_CULPRITS: Final = 50
_MANY_ROWS: Final = 4_000_000
"""Rows from which on collectives are measured in some steps only."""
_MEASURED_STEPS: Final = 8
_SHAPE_COLUMNS: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def build_document(lake: Lake, steps: Sequence[StepKey] | None = None, label: str | None = None) -> Document:
    """Return the document of these steps of the lake (default: all); `label` names the run, by default as its folder.

    Raises `LakeError` if a file of the lake is missing or damaged.
    """
    chosen = list(lake.step_keys if steps is None else steps)
    names = _Names()
    entries: list[StepEntry] = []
    teams: list[Team] = []
    ranks = [RankEntry(rank, lake.hosts.get(rank), None) for rank in lake.ranks]
    collectives: list[CollectiveEntry] = []
    diagnosis: Diagnosis | None = None
    notes: list[str] = []
    if chosen:
        diagnosis, analysis = lake.diagnose(chosen), lake.analyze(chosen)
        entries, teams = _measure(lake, analysis, diagnosis, chosen, names)
        ranks = _rank_entries(lake, analysis)
        collectives = _collectives(lake, chosen)
        notes = list(diagnosis.notes)
    return Document(
        kind=DOCUMENT_KIND,
        schema_version=DOCUMENT_SCHEMA_VERSION,
        jitter_version=__version__,
        label=label or lake.root.resolve().name,
        digest=made_from(
            DOCUMENT_KIND,
            sorted(source.digest for source in lake.sources),
            sorted(log.digest for log in lake.logs),
            chosen,
        ),
        ranks=len(ranks),
        hosts=tuple(sorted({host for host in lake.hosts.values() if host is not None})),
        formats=tuple(sorted({source.format for source in lake.sources})),
        marker=_marker(lake, set(chosen)),
        steps=tuple(entries[-_MAX_STEPS:]),
        names=tuple(names.known),
        teams=tuple(teams),
        loss_ns=None if diagnosis is None else diagnosis.loss.ns,
        loss_fraction=None if diagnosis is None else diagnosis.loss.fraction,
        rank_entries=tuple(ranks),
        collectives=tuple(collectives),
        culprits=() if diagnosis is None else _culprits(diagnosis),
        environment=_environment(lake),
        throughput=_throughput(lake),
        notes=tuple(notes),
    )


class _Names:
    """Kernel names, each one once."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def number(self, name: str) -> int:
        """Return the position of a name."""
        if len(name) > _MAX_NAME:
            name = f"{name[: _MAX_NAME - 9]}…{made_from(0, name)[:8]}"
        return self.known.setdefault(name, len(self.known))


def _measure(
    lake: Lake, analysis: "RunAnalysis", diagnosis: "Diagnosis", chosen: Sequence[StepKey], names: _Names
) -> tuple[list[StepEntry], list[Team]]:
    """Go through the steps once; return their entries, and the teams with the times of their kernels."""
    run = analysis.run
    losses = {step.key: step.loss_ns for step in diagnosis.steps}
    references = {team: _reference(program) for team, program in run.programs.items()}
    wanted = set(
        spread_positions(len(chosen), max(2, _MAX_KERNEL_TIMES // max(1, sum(map(len, references.values()))))).tolist()
    )
    entries: list[StepEntry] = []
    kept: list[int] = []
    times: list[Floats] = []
    for step, found in measure_path_times(analysis.steps):
        entries.append(_step_entry(found, losses.get(found.key)))
        if step.number in wanted:
            kept.append(step.number)
            times.append(measure_kernel_times(step, run.job))
        del step  # else it stays in memory while the next one is read
    offset = max(0, len(entries) - _MAX_STEPS)
    teams = []
    for team, places in references.items():
        first = int(run.job.first[team])
        own = np.array([found[first:][places] for found in times]).reshape(len(times), len(places))
        inside = [at for at, number in enumerate(kept) if number >= offset]
        teams.append(
            Team(
                tuple(rank for rank, its in run.team_of.items() if its == team),
                _places(lake, analysis, team, places, names),
                _copies(run.programs[team], names),
                tuple(kept[at] - offset for at in inside),
                tuple(
                    tuple(None if np.isnan(value) else round(value) for value in column)
                    for column in own[inside].T.tolist()
                ),
            )
        )
    return entries, teams


def _reference(program: Program) -> list[int]:
    """Return the places of the kernels in the team's commonest sequence."""
    places = program.places[program.reference].tolist()
    return [place for place in places if place >= 0 and program.operations[place].is_kernel]


def _copies(program: Program, names: _Names) -> tuple[int, ...]:
    operations = (program.operations[place] for place in program.places[program.reference].tolist() if place >= 0)
    return tuple(sorted({names.number(one.name) for one in operations if one.kind == MEMORY}))


def _step_entry(found: PathTime, loss_ns: int | None) -> StepEntry:
    if np.isnan(found.step_ns):
        return StepEntry(found.key.epoch, found.key.step, None, None, loss_ns)
    step_ns = round(found.step_ns)
    parts = None
    if not np.isnan(found.parts_ns).any():
        rounded = [round(value) for value in found.parts_ns.tolist()]
        rounded[PathPart.REST] += step_ns - sum(rounded)
        parts = tuple(rounded)
    return StepEntry(found.key.epoch, found.key.step, step_ns, parts, loss_ns)


def _places(lake: Lake, analysis: "RunAnalysis", team: int, places: Sequence[int], names: _Names) -> tuple[Place, ...]:
    run = analysis.run
    program = run.programs[team]
    shapes = _launch_shapes(lake, analysis, team)
    return tuple(
        Place(names.number(program.operations[place].name), not program.operations[place].on_main, shapes.get(place))
        for place in places
    )


def _launch_shapes(lake: Lake, analysis: "RunAnalysis", team: int) -> dict[int, tuple[int, ...]]:
    """Return the launch shape at each place, as the first rank that ran the team's commonest sequence recorded it."""
    run = analysis.run
    sequence = run.programs[team].reference[0]
    for key in analysis.keys:
        ranks = sorted(
            member.rank
            for index in lake.kernel_indices(key)
            for member in index.members
            if member.sequence == sequence and run.team_of.get(member.rank) == team
        )
        if ranks:
            break
    else:
        return {}
    rows = run.file_rows(key, team, ranks[:1])[:, 0]
    read = lake.step_columns(key, _SHAPE_COLUMNS, ranks[:1])
    known = np.logical_and.reduce([read.known(column) for column in _SHAPE_COLUMNS])
    shapes = np.stack([read.values(column) for column in _SHAPE_COLUMNS], axis=1)
    return {
        place: tuple(shapes[row].tolist())
        for place, row in enumerate(rows.tolist())
        if 0 <= row < len(known) and known[row]
    }


def _rank_entries(lake: Lake, analysis: "RunAnalysis") -> list[RankEntry]:
    from jitter.analysis.account.losses import OWN_CLASSES

    ranks = sorted(analysis.run.team_of)
    known = [account.losses for account in analysis.accounts if len(account.losses)]
    total = np.sum([losses.by_rank(ranks)[:, OWN_CLASSES].sum(axis=1) for losses in known], axis=0) if known else ()
    mean = {rank: round(ns / len(known)) for rank, ns in zip(ranks, total, strict=bool(known))}
    return [RankEntry(rank, lake.hosts.get(rank), mean.get(rank)) for rank in lake.ranks]


def _collectives(lake: Lake, chosen: Sequence[StepKey]) -> list[CollectiveEntry]:
    from jitter.analysis.metrics.communication import tabulate_collectives

    rows = sum(step.rows for source in lake.sources for step in source.steps)
    steps = chosen if rows < _MANY_ROWS else [chosen[at] for at in spread_positions(len(chosen), _MEASURED_STEPS)]
    measured = lake.measure_collectives(steps)
    count = max(1, len(measured.steps))
    return [
        CollectiveEntry(
            row.collective,
            row.size,
            row.dtype,
            row.group_size,
            row.hosts,
            row.calls / count,
            row.time_us,
            row.busbw,
            row.wait_us,
        )
        for row in tabulate_collectives(measured)[:_MAX_COLLECTIVES]
    ]


def _culprits(diagnosis: "Diagnosis") -> tuple[CulpritEntry, ...]:
    return tuple(
        CulpritEntry(
            one.scope,
            one.rank,
            tuple(one.ranks),
            one.host,
            one.device,
            one.cause,
            one.confidence,
            one.excess_ns,
            one.gain_ns,
            one.seen.steps,
            one.rung,
            one.loss_class,
            one.cause_certainty,
            one.seen.of,
            one.recurs,
            one.loss_ns,
            one.fraction,
        )
        for one in diagnosis.culprits[:_MAX_CULPRITS]
    )


def _marker(lake: Lake, chosen: set[StepKey]) -> str | None:
    texts = Counter(
        re.sub(r"\d+", "#", step.marker)
        for source in lake.sources
        if source.steps_from == "marker"
        for step in source.steps
        if step.marker is not None and step.key in chosen
    )
    return texts.most_common(1)[0][0] if texts else None


def _environment(lake: Lake) -> Environment:
    profilers = {f"{one.format} {one.profiler_version}" for one in lake.sources if one.profiler_version is not None}
    if not lake.logs:
        return Environment(tuple(sorted(profilers)))
    communicators = lake.log_table("communicators").to_pylist()
    edges = lake.log_table("edges").to_pylist()
    networks = {f"{one['network']} ({one['plugin']})" if one["plugin"] else one["network"] for one in communicators}
    transports = {f"{one['transport']}{' with GPUDirect' if one['gdr'] else ''}" for one in edges if one["transport"]}
    return Environment(
        tuple(sorted(profilers)),
        _sorted_texts(one["version"] for one in communicators),
        _sorted_texts(networks),
        _sorted_texts(transports),
    )


def _sorted_texts(values: Any) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value}))


def _throughput(lake: Lake) -> tuple[ThroughputEntry, ...]:
    if not lake.logs:
        return ()
    found = []
    seen: Counter[str] = Counter()
    for row in lake.log_table("throughput").to_pylist():
        name = Path(row["source"]).stem
        seen[name] += 1
        label = name if seen[name] == 1 else f"{name} {seen[name]}"
        found.append(ThroughputEntry(label, row["seconds"], row["samples_per_s"]))
    return tuple(found)
