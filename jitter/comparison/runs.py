"""The runs of a comparison, lakes, open lakes or baseline files, as documents; a lake's document is made here."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from jitter import api
from jitter._version import __version__
from jitter.analysis.account.losses import LossClass, join_losses
from jitter.analysis.account.usual_step import UsualRun, find_usual_step
from jitter.analysis.execution.self_times import SelfTimes
from jitter.analysis.execution.step_times import of_team
from jitter.analysis.replay.run_steps import cells_of
from jitter.analysis.thresholds import THRESHOLDS
from jitter.api import Lake
from jitter.comparison.compare_documents import Comparison, compare_documents
from jitter.comparison.document import (
    DOCUMENT_KIND,
    DOCUMENT_SCHEMA_VERSION,
    RULES,
    CollectiveEntry,
    CulpritEntry,
    Document,
    Environment,
    HostEntry,
    LossRow,
    Place,
    RankEntry,
    StepEntry,
    Team,
    TeamProgram,
    UsualMeeting,
    UsualStepEntry,
    decode_document,
    is_of_size,
    select_steps,
)
from jitter.comparison.log_tables import list_bandwidths, list_throughputs
from jitter.core.errors import JitterError, UsageError
from jitter.core.files import made_from
from jitter.core.formatting import format_count
from jitter.core.names.kernels import MEETINGS, MEMORY
from jitter.core.numeric.arrays import Floats, Ints, joined, spread_positions
from jitter.core.numeric.stats import known_medians, lower_median, middle_value
from jitter.core.step_key import StepKey
from jitter.lake.records import commonest_kind

if TYPE_CHECKING:
    from jitter.analysis.detection.run_analysis import RunAnalysis
    from jitter.analysis.diagnosis.diagnosis import Diagnosis
    from jitter.analysis.diagnosis.evidence.after_last_launch import TimeAfterLaunches


_SHAPE_COLUMNS: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_TRIED: Final = 8
"""Steps, at even distances, that tell whether the launched work varies at all."""
_COMPARED_WITH_ITSELF: Final = "It is compared with itself: the base holds the same recordings and steps."
_MIN_ALIKE: Final = 5
"""Steps of one size in each run, for which those of other sizes are left out."""


class RunSizes(NamedTuple):
    """The sizes of the batches of a run; NaN where unknown."""

    of: str | None
    """Digest of the kernel sequence whose launched threads these are; None: tokens or requests, as markers state."""
    of_steps: dict[StepKey, float]
    """Of all steps of a lake; empty for a document."""
    compared: list[float]
    """Those of the steps that can be compared, as far as they are known."""


def _list_sizes(lake: Lake, keys: Sequence[StepKey], kind: str | None) -> RunSizes:
    """Return the sizes of these steps, of which those of this kind (default: the commonest) are compared."""
    of, of_steps = None, {key: lake.batch_sizes[key] for key in keys}
    if keys and all(map(math.isnan, of_steps.values())):
        of, launched = _measure_launched_work(lake, keys)
        of_steps |= launched
    compared = kind or commonest_kind(lake.kinds[key] for key in keys)
    known = [size for key, size in of_steps.items() if lake.kinds[key] == compared and not math.isnan(size)]
    return RunSizes(of, of_steps, known)


def _measure_launched_work(lake: Lake, keys: Sequence[StepKey]) -> tuple[str, dict[StepKey, float]]:
    """Return a kernel sequence, and how many threads are launched in the steps that run it, as far as these tell.

    Launched work does not depend on how fast GPUs are, so it tells a larger batch from a slower GPU. It is that of one
    kernel sequence: threads of other kernels are no measure of the same batch.
    """
    rank = lake.ranks_of(keys[0])[0]
    sequence_of = {key: lake.record_of(key, rank).step.sequence for key in keys if rank in lake.ranks_of(key)}
    (sequence, _), *_ = Counter(sequence_of.values()).most_common(1)
    same = [key for key, other in sequence_of.items() if other == sequence]
    peers = [one for one in lake.ranks_of(same[0]) if lake.record_of(same[0], one).step.sequence == sequence]
    sizes = _count_threads(lake, [same[at] for at in spread_positions(len(same), _TRIED)], {rank, peers[-1]})
    least, most = (extreme(sizes.values(), default=np.nan) for extreme in (min, max))
    if most > least and not is_of_size(most, least, sequence):
        return sequence, _count_threads(lake, same, {rank, peers[-1]})
    return sequence, dict.fromkeys(same, least)


def _count_threads(lake: Lake, keys: Sequence[StepKey], ranks: Set[int]) -> dict[StepKey, float]:
    """Return the threads that a step's kernels were launched with, of the steps in which these ranks have as many."""
    sizes, reader = {}, lake.run_reader(keys)
    for key in keys:
        shapes = reader.launch_shapes(key, sorted(ranks & set(lake.ranks_of(key))))
        of_ranks = np.array([np.nansum(of_rank.threads) for of_rank in shapes])
        if of_ranks.min() > 0 and of_ranks.max() <= (1 + THRESHOLDS.gpu_spread_share) * of_ranks.min():
            sizes[key] = float(of_ranks.min())
    return sizes


_MAX_KERNEL_TIMES: Final = 100_000
"""Kernel times in a document, about 6 bytes each: a longer run keeps some steps at even distances."""
_SELF_TIMES: Final = 5
"""Kernel times that take as much room as an operation of the usual step."""
_MAX_LOSS_ROWS: Final = 3_000
"""Rows of an account with an operation, about 25 bytes each: the largest."""
_MAX_SLOW_STEPS: Final = 100
"""Steps next to the median one that are compared with the usual step."""
_LEAST_STEPS: Final = 3
"""Steps whose kernel times are kept, and steps next to the median one whose losses count (half of all, if more)."""
_MAX_STEPS: Final = 5_000
"""Steps in a document, about 70 bytes each: a longer run keeps the last ones."""
_MAX_NAME: Final = 320
"""Characters of a kernel's name; a longer one ends in a digest of the whole."""
_MAX_COLLECTIVES: Final = 500
_MAX_CULPRITS: Final = 50
_MAX_HOST_ENTRIES: Final = 50
_MANY_ROWS: Final = 4_000_000
"""Rows from which on collectives are measured in some steps only."""
_MEASURED_STEPS: Final = 8


def build_document(
    lake: Lake,
    steps: Sequence[StepKey] | None = None,
    label: str | None = None,
    step_kind: str | None = None,
    step_size: float | None = None,
    sizes: RunSizes | None = None,
) -> Document:
    """Return the document of these steps of the lake (default: all); `label` names the run, by default as its folder.

    `step_kind` is the kind of steps that are compared (default: the commonest), `step_size` the least size of their
    batches (default: any), `sizes` those of the steps if they are known. Raises `LakeError` if a file of the lake is
    missing or damaged, `UsageError` if no step is of this kind.
    """
    chosen = list(lake.step_keys if steps is None else steps)
    names = _Names()
    sizes = sizes or _list_sizes(lake, chosen, step_kind)
    measured = _measure(lake, chosen, names, step_kind, step_size, sizes) if chosen else {}
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
        ranks=len(lake.ranks),
        hosts=lake.host_names,
        formats=tuple(sorted({source.format for source in lake.sources})),
        marker=_marker(lake, set(chosen)),
        environment=_environment(lake),
        throughput=list_throughputs(lake.log_table("throughput").to_pylist()),
        bandwidths=list_bandwidths(lake.log_table("bandwidth").to_pylist()),
        sizes_of=sizes.of,
        names=tuple(names.known),
        rank_entries=_rank_entries(lake, measured.get("jitter", ())),
        **measured,
    )


def _measure(
    lake: Lake,
    chosen: Sequence[StepKey],
    names: "_Names",
    step_kind: str | None,
    step_size: float | None,
    step_sizes: RunSizes,
) -> dict[str, Any]:
    """Return the fields of a document that hold what these steps measure."""
    from jitter.analysis.diagnosis.evidence.after_last_launch import TimeAfterLaunches
    from jitter.analysis.diagnosis.limitations import explain_unverified_network

    diagnosis, analysis = lake.diagnose(chosen), lake.analyze(chosen)
    if not analysis.run.programs:  # no rank recorded a step completely
        return {"notes": tuple(diagnosis.notes)}
    unverified = diagnosis.conclusion.unverified_transfers
    # a comparison is what that note asks for
    known = None if unverified is None else explain_unverified_network(unverified)
    kinds = analysis.steps.alike.kinds
    compared = step_kind or commonest_kind(kinds)
    if compared not in kinds:
        raise UsageError(f"{lake.root}: no step of kind {compared}", f"it holds {', '.join(sorted(set(kinds)))}")
    sizes = [step_sizes.of_steps[key] for key in analysis.keys]
    of_this_kind = np.flatnonzero(np.array(kinds) == compared)
    # the steps of one kind and size have one usual step
    alike = of_this_kind[[is_of_size(sizes[number], step_size, step_sizes.of) for number in of_this_kind.tolist()]]
    times_ns = analysis.measured.step_ns[alike]
    # the programs of the run are those of its commonest steps; of steps that do not follow each other no start is known
    of_kind = (
        analysis
        if step_kind is None or len(of_this_kind) == len(kinds)
        else lake.analyze([analysis.keys[number] for number in of_this_kind.tolist()])
    )
    places = alike if of_kind is analysis else np.searchsorted(of_this_kind, alike)
    of_steps = [of_kind.transfers.baseline[number] for number in places.tolist()]
    transfers = lower_median(np.stack(of_steps), axis=0)[0]
    usual = find_usual_step(of_kind.run, of_kind.steps.baselines, places, transfers)
    near = _near_median(of_kind, places, times_ns)
    after = TimeAfterLaunches(of_kind)
    jitter = _jitter(of_kind, after, usual, near)
    return {
        "steps": _step_entries(analysis, diagnosis, sizes),
        "teams": _teams(lake, of_kind, names, places, alike - max(0, len(kinds) - _MAX_STEPS)),
        "loss_ns": diagnosis.loss.ns,
        "loss_fraction": diagnosis.loss.fraction,
        "collectives": tuple(_collectives(lake, chosen)),
        "culprits": _culprits(diagnosis),
        "notes": tuple(note for note in diagnosis.notes if note != known),
        "has_unrecorded_ranks": diagnosis.conclusion.unrecorded is not None,
        "step_kind": compared,
        "step_size": step_size,
        "usual": _usual_entry(usual, names),
        "jitter": jitter,
        "slow_steps": _slow_steps(of_kind, usual, near),
        "waterfall": diagnosis.waterfall,
        "hosts_time": _host_entries(lake, of_kind, [of_kind.keys[number] for number in places.tolist()]),
    }


class _Names:
    """Kernel names, each one once."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def number(self, name: str) -> int:
        if len(name) > _MAX_NAME:
            name = f"{name[: _MAX_NAME - 9]}…{made_from(0, name)[:8]}"
        return self.known.setdefault(name, len(self.known))


def _step_entries(analysis: "RunAnalysis", diagnosis: "Diagnosis", sizes: Sequence[float]) -> tuple[StepEntry, ...]:
    losses = {step.key: step.loss_ns for step in diagnosis.steps}
    # of steps that do not follow each other no time is known, but a span that another recording need not share
    times = analysis.measured.step_ns if analysis.run.has_consecutive_steps else np.full(len(analysis.keys), np.nan)
    return tuple(
        StepEntry(
            key.epoch,
            key.step,
            None if np.isnan(time) else round(time),
            losses.get(key),
            kind,
            None if np.isnan(size) else size,
        )
        for key, time, kind, size in zip(analysis.keys, times.tolist(), analysis.steps.alike.kinds, sizes, strict=True)
    )[-_MAX_STEPS:]


def _teams(lake: Lake, analysis: "RunAnalysis", names: "_Names", alike: Ints, entries: Ints) -> tuple[Team, ...]:
    """Return the teams with the times of their kernels, in all steps of one kind (`alike`), or some at even distances.

    `entries` (steps of the kind,) are their positions in the document; negative ones are not in it.
    """
    run = analysis.run
    # the places of the kernels in the team's commonest sequence, in launch order
    references = {
        team: sorted(
            place
            for place in program.places[program.reference].tolist()
            if place >= 0 and program.operations[place].is_kernel
        )
        for team, program in run.programs.items()
    }
    operations = sum(len(program.operations) for program in run.programs.values())
    most = max(
        _LEAST_STEPS, (_MAX_KERNEL_TIMES - _SELF_TIMES * operations) // max(1, sum(map(len, references.values())))
    )
    spread = spread_positions(len(alike), most)
    spread = spread[entries[spread] >= 0]
    kept = alike[spread].tolist()
    times = _kernel_times(analysis, kept)
    teams = []
    for team, places in references.items():
        first = int(run.job.first[team])
        program, shapes = run.programs[team], _launch_shapes(lake, analysis, team)
        kernels = [(place, program.operations[place]) for place in places]
        usual = [program.operations[place] for place in program.places[program.reference].tolist() if place >= 0]
        team_times = np.array([times[number][first:][places] for number in kept]).reshape(len(kept), len(places))
        teams.append(
            Team(
                tuple(rank for rank, rank_team in run.team_of.items() if rank_team == team),
                tuple(Place(names.number(of.name), not of.on_main, shapes.get(at)) for at, of in kernels),
                tuple(sorted({names.number(operation.name) for operation in usual if operation.kind == MEMORY})),
                tuple(entries[spread].tolist()),
                tuple(
                    tuple(None if np.isnan(value) else round(value) for value in column)
                    for column in team_times.T.tolist()
                ),
            )
        )
    return tuple(teams)


def _host_entries(lake: Lake, analysis: "RunAnalysis", keys: Sequence[StepKey]) -> tuple[HostEntry, ...]:
    """Return what operations take of the usual host's time in these steps; of files in paths the names alone."""
    from jitter.analysis.diagnosis.evidence.host_operations import HostGaps

    gaps, sampled = HostGaps(analysis.lake, lake), []
    for key in (keys[at] for at in spread_positions(len(keys), THRESHOLDS.tried_steps)):
        ranks = lake.ranks_of(key)
        sampled += [(key, ranks[at]) for at in spread_positions(len(ranks), THRESHOLDS.sampled_ranks)]
    entries = [
        HostEntry(is_start, name.rpartition("/")[2], round(ns))
        for is_start in (True, False)
        for name, ns in gaps.usual_times_ns(
            sampled, "before the first kernel" if is_start else "between launches"
        ).items()
    ]
    return tuple(sorted(entries, key=lambda entry: (-entry.time_ns, entry.name))[:_MAX_HOST_ENTRIES])


def _kernel_times(analysis: "RunAnalysis", kept: Collection[int]) -> dict[int, Floats]:
    """Return by step, (operations of all teams,), the median over a team's ranks of each operation's time on the GPU.

    That of a collective is from its last arrival to its end, the median over groups. NaN where no rank has it.
    """
    run, times_of_step = analysis.run, {}
    for step in analysis.steps.steps():
        if step.first in kept:
            collectives, transfers = step.collectives, step.transfers
            kinds = np.split(run.job.kind, run.job.first[1:-1])
            kind = joined(kinds[team] for team in step.times.team[step.times.row >= 0].tolist())
            durations_ns = np.where(np.isin(kind, MEETINGS), np.nan, step.times.end - step.times.start)
            cells, is_shared = cells_of(step.times, collectives), np.diff(collectives.first_in_group) > 1
            measured = (cells >= 0) & (transfers.mostly_complete[0] & is_shared)[collectives.group]
            durations_ns[cells[measured]] = transfers.took[0, collectives.group[measured]]
            of_teams = (
                of_team(step.times._replace(end=durations_ns), run.rank_numbers, team, len(team_kinds)).end
                for team, team_kinds in enumerate(kinds)
            )
            times_of_step[step.first] = np.concatenate([known_medians(of_ranks, axis=1) for of_ranks in of_teams])
        del step  # else it stays in memory while the next one is read
    return times_of_step


def _usual_entry(usual: UsualRun, names: "_Names") -> UsualStepEntry:
    teams, first = [], 0
    for team, program in usual.program.programs.items():
        rules, last = usual.program.rules[team], first + len(program.operations)
        teams.append(
            TeamProgram(
                tuple(names.number(operation.name) for operation in program.operations),
                tuple(program.kinds.tolist()),
                tuple(program.streams.tolist()),
                tuple(rules.thread.tolist()),
                tuple(tuple(map(round, values[first:last].tolist())) for values in usual.step.self_times),
                tuple(
                    (wait.op_index, wait.on_op_index, wait.steps_back, wait.provenance == "inferred")
                    for wait in rules.waits
                ),
                tuple((place, round(ns)) for place, ns in rules.host_lead_ns.items()),
                later_beside=tuple((place, tuple(others)) for place, others in rules.later_beside.items()),
                **{name: getattr(rules, name) for name in RULES},
            )
        )
        first = last
    meetings = zip(usual.step.transfers.tolist(), usual.program.meetings, strict=True)
    entries = tuple(UsualMeeting(round(ns), members) for ns, members in meetings)
    return UsualStepEntry(tuple(teams), usual.program.blocks, entries)


def _near_median(analysis: "RunAnalysis", alike: Ints, times_ns: Floats) -> list[int]:
    """Return the half of the steps of one kind (`alike`) whose times are next to their median, the nearest first."""
    has_losses = np.diff(analysis.account.of_steps.bounds)[::2][alike] > 0
    known = has_losses & ~np.isnan(times_ns)
    timed, times = alike[known], times_ns[known]
    if not len(timed):
        return []
    apart = np.abs(times - middle_value(times))
    near: list[int] = timed[np.argsort(apart, kind="stable")].tolist()
    return near[: max(_LEAST_STEPS, -(-len(near) // 2))]


def _jitter(
    analysis: "RunAnalysis", after: "TimeAfterLaunches", usual: UsualRun, near: Sequence[int]
) -> tuple[LossRow, ...]:
    """Return what a usual step loses to jitter: the mean over the steps next to the median one."""
    if not near:
        return ()
    run = analysis.run
    losses = join_losses([after.losses(number) for number in near])
    first_places = [run.matching.places(number)[0] for number in run.collective_arrays.collective.tolist()]
    numbers = [{place: at for at, place in enumerate(places)} for places in usual.places]
    sums: _Sums = defaultdict(float)
    for rank, own_team, loss_class, own_place, group, ns in losses.rows():
        team, place = (own_team, own_place) if group < 0 else first_places[group]
        sums[rank, team, loss_class, numbers[team].get(place, -1) if team >= 0 else -1] += ns / len(near)
    return _list_rows(sums)


def _slow_steps(analysis: "RunAnalysis", usual: UsualRun, near: Sequence[int]) -> tuple[LossRow, ...]:
    """Return what the steps next to the median one lose on all ranks alike against the usual step: the mean."""
    numbers = sorted(near[:_MAX_SLOW_STEPS])
    of_steps = [
        SelfTimes(
            *(
                np.where(np.isnan(values[usual.cells]), instead, values[usual.cells])
                for values, instead in zip(analysis.steps.baseline(number), usual.step.self_times, strict=True)
            )
        )
        for number in numbers
    ]
    sums: _Sums = defaultdict(float)
    for account in usual.program.account_steps(of_steps, usual.step) if numbers else ():
        for _, team, loss_class, place, _, ns in account.losses.rows():
            sums[-1, team, loss_class, place] += ns / len(numbers)
    return _list_rows(sums)


_Sums = defaultdict[tuple[int, int, int, int], float]
"""ns by rank, team, class and operation; -1 for none."""


def _list_rows(sums: _Sums) -> tuple[LossRow, ...]:
    """Return the rows, the largest first; where there are too many, small ones are summed up without operations."""
    for key in sorted(sums, key=lambda key: (-abs(sums[key]), key))[_MAX_LOSS_ROWS:]:
        whole = (*key[:3], -1)
        if key != whole:
            sums[whole] += sums.pop(key)
    return tuple(
        LossRow(_known(rank), _known(team), LossClass(loss_class).label, _known(operation), round(ns))
        for (rank, team, loss_class, operation), ns in sorted(
            sums.items(), key=lambda key_and_ns: (-abs(key_and_ns[1]), key_and_ns[0])
        )
        if round(ns)
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _launch_shapes(lake: Lake, analysis: "RunAnalysis", team: int) -> dict[int, tuple[int, ...]]:
    """Return the launch shape at each place, as the first rank that ran the team's commonest sequence recorded it."""
    run = analysis.run
    sequence = run.programs[team].reference[0]
    for key in analysis.keys:
        ranks = [rank for rank in run.ranks(key, team) if lake.record_of(key, rank).step.sequence == sequence][:1]
        if ranks:
            break
    else:
        return {}
    rows = run.file_rows(key, team, ranks)[:, 0]
    read = lake.step_columns(key, _SHAPE_COLUMNS, ranks)
    is_known = np.logical_and.reduce([read.known(column) for column in _SHAPE_COLUMNS])
    shapes = np.stack([read.values(column) for column in _SHAPE_COLUMNS], axis=1)
    return {
        place: tuple(shapes[row].tolist())
        for place, row in enumerate(rows.tolist())
        if 0 <= row < len(is_known) and is_known[row]
    }


def _rank_entries(lake: Lake, jitter: Sequence[LossRow]) -> tuple[RankEntry, ...]:
    lost = dict.fromkeys(lake.ranks, 0)
    for row in jitter:
        if row.rank is not None:
            lost[row.rank] += row.loss_ns
    return tuple(RankEntry(rank, lake.hosts.get(rank), lost[rank] if jitter else None) for rank in lake.ranks)


def _collectives(lake: Lake, chosen: Sequence[StepKey]) -> list[CollectiveEntry]:
    from jitter.analysis.metrics.communication import tabulate_collectives

    rows = sum(step.rows for source in lake.sources for step in source.steps)
    steps = chosen if rows < _MANY_ROWS else [chosen[at] for at in spread_positions(len(chosen), _MEASURED_STEPS)]
    measured = lake.measure_collectives(steps)
    count = max(1, len(measured.steps))
    same = ("collective", "dtype", "group_size", "hosts", "time_us", "busbw", "wait_us")
    return [
        CollectiveEntry(
            **{name: getattr(row, name) for name in same}, size_bytes=row.size, calls_per_step=row.calls / count
        )
        for row in tabulate_collectives(measured)[:_MAX_COLLECTIVES]
    ]


def _culprits(diagnosis: "Diagnosis") -> tuple[CulpritEntry, ...]:
    fields = [name for name in CulpritEntry.__struct_fields__ if name not in ("steps", "of_steps")]
    return tuple(
        CulpritEntry(
            **{name: getattr(finding, name) for name in fields}, steps=finding.seen.steps, of_steps=finding.seen.of
        )
        for finding in diagnosis.culprits[:_MAX_CULPRITS]
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
    """Return what the records and logs name, each once, in order."""
    communicators, edges = (
        lake.log_table(name).to_pylist() if lake.logs else [] for name in ("communicators", "edges")
    )
    named = (
        [source.profiler for source in lake.sources if source.profiler_version is not None],
        [row["version"] for row in communicators],
        [f"{row['network']} ({row['plugin']})" if row["plugin"] else row["network"] for row in communicators],
        [f"{row['transport']}{' with GPUDirect' if row['gdr'] else ''}" for row in edges if row["transport"]],
    )
    return Environment(*(tuple(sorted(set(filter(None, texts)))) for texts in named))


Run = str | Path | Lake | Document
"""A lake's folder, a baseline file, an open lake, or a document."""
OpenLake = Callable[[Path, Collection[int] | None], Lake]
"""Opens the lake in a folder; the numbers are those of the steps that will be asked for, None: all."""


def compare(
    *runs: Run,
    steps: Collection[int] | None = None,
    base_steps: Collection[int] | None = None,
    names: Sequence[str] = (),
    kind: str | None = None,
) -> Comparison:
    """Compare the last run with the others: its base, or several whose spread counts as noise.

    A run is a lake's folder, a file of `jitter export --baseline`, an open `Lake` or a `Document`. `steps` restricts
    the new run to the steps of these numbers, `base_steps` the bases (default: as `steps`). `names` are what the runs
    are called, one each (default: the shortest paths that differ). Steps of this `kind` are compared (default: the
    commonest of each run). Where markers state the size of batches, these are the steps of about one size: the
    commonest size that all runs have. Raises `UsageError` for fewer than two runs, another number of names or steps
    that a run lacks, and `JitterError` for a run that cannot be read.
    """
    return compare_documents(*load_runs(runs, steps, base_steps, names, kind))


def load_runs(
    runs: Sequence[Run],
    steps: Collection[int] | None,
    base_steps: Collection[int] | None,
    names: Sequence[str],
    kind: str | None,
    open_lake: OpenLake = lambda path, _: api.open(path),
) -> tuple[list[Document], Document]:
    """Return the documents of the bases and of the new run, with their names; see `compare` and `load_run`."""
    if len(runs) < 2:
        raise UsageError("a comparison needs two runs", "name the base first, then the new run")
    of_base = steps if base_steps is None else base_steps
    numbers = [*[of_base] * (len(runs) - 1), steps]
    opened = [(_open(run, of_run, open_lake), of_run) for run, of_run in zip(runs, numbers, strict=True)]
    loaded = _load(opened, kind, None)
    paths = [None if isinstance(run, Document) else run.root if isinstance(run, Lake) else Path(run) for run in runs]
    *bases, new = name_runs(loaded, paths, names)
    if any(base.digest == new.digest for base in bases):
        new = msgspec.structs.replace(new, notes=(_COMPARED_WITH_ITSELF, *new.notes))
    return bases, new


def load_run(
    run: Run,
    steps: Collection[int] | None = None,
    label: str | None = None,
    beside: Sequence[Document] = (),
    open_lake: OpenLake = lambda path, _: api.open(path),
) -> Document:
    """Return the document of a run, of the steps with these numbers (default: all); see `compare`.

    `label` names a lake (default: its folder). It will be compared with the documents `beside`. `open_lake` opens the
    lake in a folder, of which these steps are asked for.
    """
    return _load([(_open(run, steps, open_lake), steps), *((document, None) for document in beside)], None, label)[0]


def _open(run: Run, steps: Collection[int] | None, open_lake: OpenLake) -> Lake | Document:
    """Return an open run; raise `JitterError` for a file that cannot be read, or is no document."""
    if isinstance(run, Lake | Document):
        return run
    path = Path(run)
    if not path.is_file():
        return open_lake(path, steps)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise JitterError(f"{path} cannot be read: {error.strerror}", "name a lake, or a baseline file") from None
    return decode_document(content, str(path))


def _choose_size(runs: Sequence[RunSizes]) -> float | None:
    """Return the least size of the batches of a run that are compared; None: those of any size.

    They are those of which the run with fewest has most, where each run has any, else its own commonest. Launched work
    tells sizes only where it varies, and where enough steps of each run are of a common one. `runs` are the run, and
    each run that it is compared with.
    """
    of, sizes = runs[0].of, [run.compared for run in runs]
    if not all(sizes) or any(run.of != of for run in runs):
        return None
    counts = {
        least: [sum(is_of_size(size, least, of) for size in of_run) for of_run in sizes]
        for least in {size for of_run in sizes for size in of_run}
    }

    def frequency(least: float) -> tuple[int, int, float]:
        fewest = min(counts[least])
        return fewest, sum(counts[least]) if fewest else counts[least][0], least

    chosen = max(counts, key=frequency)
    is_of_one_size = all(is_of_size(max(of_run), min(of_run), of) for of_run in sizes)
    return None if of is not None and (is_of_one_size or min(counts[chosen]) < _MIN_ALIKE) else chosen


def _load(
    runs: Sequence[tuple[Lake | Document, Collection[int] | None]], kind: str | None, label: str | None
) -> list[Document]:
    """Return the documents of runs that are compared with each other; each is given with the numbers of its steps."""
    sizes = [
        RunSizes(run.sizes_of, {}, [step.size for step in run.compared_steps if step.size is not None])
        if isinstance(run, Document)
        else _list_sizes(run, run.steps_numbered(steps), kind)
        for run, steps in runs
    ]
    documents = []
    for (run, steps), of_run in zip(runs, sizes, strict=True):
        if isinstance(run, Lake):
            size = _choose_size([of_run, *(other for other in sizes if other is not of_run)])
            documents.append(build_document(run, run.steps_numbered(steps), label, kind, size, of_run))
        elif kind not in (None, run.step_kind):
            raise UsageError(
                f"{run.label}: a baseline of steps of kind {run.step_kind}, not {kind}", "give the lake in its place"
            )
        else:
            documents.append(run if steps is None else select_steps(run, steps))
    return documents


def name_runs(documents: Sequence[Document], paths: Sequence[Path | None], names: Sequence[str] = ()) -> list[Document]:
    """Return the documents, labelled by the names, else by the ends of their paths where labels are equal.

    A path is None for a run without one. Raises `UsageError` for another number of names than of runs.
    """
    if names and len(names) != len(documents):
        raise UsageError(
            f"{format_count(len(names), 'name')} for {format_count(len(documents), 'run')}",
            "give one name for each run, in the order of the runs",
        )
    times = Counter(document.label for document in documents)
    ends = shortest_ends([None if path is None else path.resolve() for path in paths])
    labels = names or [
        end if times[document.label] > 1 and end else document.label
        for document, end in zip(documents, ends, strict=True)
    ]
    return [msgspec.structs.replace(document, label=label) for document, label in zip(documents, labels, strict=True)]


def shortest_ends(paths: Sequence[Path | None]) -> list[str | None]:
    """Return the shortest end of each path that is no end of another one of the paths.

    >>> shortest_ends([Path("/a/run1/lake"), Path("/b/run2/lake"), None])
    ['run1/lake', 'run2/lake', None]
    """

    def end_of(path: Path) -> str:
        others = {other.parts for other in paths if other is not None and other != path}
        ends = (path.parts[-size:] for size in range(1, len(path.parts)))
        end = next((end for end in ends if all(parts[-len(end) :] != end for parts in others)), path.parts)
        return Path(*end).as_posix()

    return [None if path is None else end_of(path) for path in paths]
