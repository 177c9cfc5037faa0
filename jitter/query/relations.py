"""The relations of a lake for SQL: what each is made from. `sql/<name>.sql` declares the columns that users see."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from jitter.analysis.account.losses import LossClass, Losses
from jitter.analysis.alignment.kernel_index import UNMATCHED
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.evidence.after_last_launch import TimeAfterLaunches
from jitter.analysis.diagnosis.evidence.locations import KernelLocator
from jitter.analysis.diagnosis.model import StepAnswer
from jitter.analysis.metrics.recorded_sizes import describe_disagreements
from jitter.analysis.replay.run_steps import RecordedSteps
from jitter.core.arrow import table_of_rows
from jitter.core.names.kernels import SYNC
from jitter.core.names.marker_numbers import parse_marker_numbers
from jitter.core.numeric.arrays import Floats
from jitter.core.schema import HOST, KERNELS
from jitter.core.step_key import StepKey
from jitter.lake.host_events import host_path
from jitter.lake.layout import kernels_file
from jitter.lake.parquet import check_files
from jitter.logs import SCHEMAS as LOG_SCHEMAS
from jitter.query.columns import table_schema
from jitter.query.diagnosis_rows import culprit_rows, efficiency_rows, fact_rows, steps_table

if TYPE_CHECKING:
    from jitter.api.lake import Lake


def loss_rows(lake: "Lake", analysis: RunAnalysis, steps: Sequence[StepAnswer]) -> pa.Table:
    """Return the rows of all analyzed steps with a known loss (`sql/losses.sql`); those of a step add up to its loss.

    `steps` are the diagnosis of each.
    """
    phases = {team: _phases(lake, analysis, team) for team in analysis.run.programs}
    after, locator = TimeAfterLaunches(analysis), KernelLocator(analysis)
    tables = [
        _rows(analysis, locator, phases, number, after.losses(number))
        for number, step in enumerate(steps)
        if step.loss_ns is not None
    ]
    return pa.concat_tables([table_schema("losses").empty_table(), *tables])


def _rows(
    analysis: RunAnalysis,
    locator: KernelLocator,
    phases: Mapping[int, Sequence[str | None]],
    number: int,
    losses: Losses,
) -> pa.Table:
    key, run = analysis.keys[number], analysis.run
    members = [None if group < 0 else run.ranks_of_group(group) for group in losses.group.tolist()]
    collectives = np.append(run.collective_arrays.collective, -1)[losses.group]  # -1 of no group
    places = losses.place.tolist()
    index = locator.locate_all(losses).tolist()
    ranks = [None if rank < 0 else rank for rank in losses.rank.tolist()]
    records = analysis.lake.records[key]
    of_rank = {rank: records.get(rank) for rank in ranks if rank is not None}
    held = [None if rank is None else of_rank[rank] for rank in ranks]
    operations = list(zip(losses.team.tolist(), places, strict=True))
    names = [run.programs[team].operations[place].name if place >= 0 else None for team, place in operations]
    origins = [analysis.keys[at] for at in losses.origin.tolist()]
    size = len(losses)
    columns = {
        "epoch": [key.epoch] * size,
        "step": [key.step] * size,
        "kind": [analysis.lake.kind(key)] * size,
        "origin_epoch": [origin.epoch for origin in origins],
        "origin_step": [origin.step for origin in origins],
        "rung": ["ranks"] * size,
        "rank": ranks,
        "host": [None if rank_record is None else rank_record.record.host for rank_record in held],
        "device": [None if rank_record is None else rank_record.record.device for rank_record in held],
        "team": [None if team < 0 else team for team in losses.team.tolist()],
        "collective": [None if collective < 0 else collective for collective in collectives.tolist()],
        "ranks": members,
        "class": [LossClass(loss_class).label for loss_class in losses.loss_class.tolist()],
        "operation": [None if place < 0 else place for place in places],
        "kernel_index": [None if kernel_index == UNMATCHED else kernel_index for kernel_index in index],
        "kernel_name": names,
        "phase": [phases[team][place] if place >= 0 else None for team, place in operations],
        "loss_ns": losses.loss_ns.tolist(),
        "excess_ns": [None if np.isnan(excess_ns) else excess_ns for excess_ns in losses.excess_ns.tolist()],
    }
    return pa.table(columns, table_schema("losses"))


def _phases(lake: "Lake", analysis: RunAnalysis, team: int) -> list[str | None]:
    """Return the phase of each operation of a team's program, as its first rank recorded it in its first step."""
    run = analysis.run
    phase_of_operation: list[str | None] = [None] * len(run.programs[team].operations)
    key = next((key for key in analysis.keys if run.ranks(key, team)), None)
    if key is None:
        return phase_of_operation
    first = run.ranks(key, team)[:1]
    phases = lake.step_columns(key, ["phase"], first).table["phase"].to_pylist()
    for place, row in enumerate(run.file_rows(key, team, first)[:, 0].tolist()):
        if row >= 0:
            phase_of_operation[place] = phases[row]
    return phase_of_operation


_TIMES = ("host", "call", "lead", "delay", "gpu")
"""Self times, as `SelfTimes` has them."""


def wait_rows(analysis: RunAnalysis) -> pa.Table:
    """Return one row a wait of each team's program."""
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
    return pa.Table.from_pylist(rows, table_schema("waits"))


def self_time_rows(analysis: RunAnalysis, keys: Collection[StepKey]) -> Iterator[pa.Table]:
    """Yield, step by step, one row an operation that a rank has."""
    for step in _steps(analysis, keys):
        analysis.steps.find_baselines(step)
        baseline = analysis.steps.baseline(step.first)
        for number in np.flatnonzero(step.times.row >= 0).tolist():
            yield _self_times(analysis, step, number, baseline)


def _self_times(analysis: RunAnalysis, step: RecordedSteps, number: int, baseline: tuple[Floats, ...]) -> pa.Table:
    run, team = analysis.run, int(step.times.team[number])
    of_team, cells = run.job.slices(step.times, number)
    operations = run.programs[team].operations
    begun_ns = np.where(run.job.kind[of_team] == SYNC, step.times.call[cells], step.times.start[cells])
    places = np.flatnonzero(~np.isnan(begun_ns))
    size = len(places)
    columns: dict[str, object] = {
        "epoch": [step.keys[0].epoch] * size,
        "step": np.full(size, step.keys[0].step),
        "rank": np.full(size, run.rank_numbers[number]),
        "team": np.full(size, team),
        "operation": places,
        "kernel_name": [operations[place].name for place in places.tolist()],
    }
    for name, self_times_ns, usual in zip(_TIMES, step.self_times, baseline, strict=True):
        columns[f"{name}_ns"] = pa.array(self_times_ns[cells][places], from_pandas=True)
        columns[f"usual_{name}_ns"] = pa.array(usual[of_team][places], from_pandas=True)
    return pa.table(columns, table_schema("self_times"))


def collective_call_rows(analysis: RunAnalysis, keys: Collection[StepKey]) -> Iterator[pa.Table]:
    run, usual = analysis.run, analysis.transfers.baseline
    collectives = run.collective_arrays
    for step in _steps(analysis, keys):
        indices = np.flatnonzero(~np.isnan(step.in_collectives[0]))
        rank, group = collectives.rank[indices], collectives.group[indices]
        number = collectives.collective[group]
        team, place = step.times.team[rank], collectives.place[indices]
        took = step.transfers.took[0, group]
        columns = {
            "epoch": [step.keys[0].epoch] * len(indices),
            "step": np.full(len(indices), step.keys[0].step),
            "collective": number,
            "group": group - collectives.first_group[number],
            "rank": run.rank_numbers[rank],
            "team": team,
            "operation": place,
            "kernel_name": [
                run.programs[of].operations[at].name for of, at in zip(team.tolist(), place.tolist(), strict=True)
            ],
            "waited_ns": step.in_collectives[0, indices] - took,
            "transfer_ns": took,
            "usual_transfer_ns": pa.array(usual[step.first][group], from_pandas=True),
        }
        yield pa.table(columns, table_schema("collective_calls"))


def _steps(analysis: RunAnalysis, keys: Collection[StepKey]) -> Iterator[RecordedSteps]:
    """Go through the steps up to the last of `keys`, and yield those."""
    numbers = {at for at, key in enumerate(analysis.keys) if key in set(keys)}
    if numbers:
        for step in analysis.steps.steps(min(numbers), max(numbers) + 1):
            if step.first in numbers:
                yield step
            del step  # else it stays in memory while the next one is read


Tables = Callable[["Lake", Sequence[StepKey]], Iterable[pa.Table]]
"""Makes the rows of a relation, of these steps where its rows are of steps."""


@dataclass(frozen=True)
class Relation:
    """A relation that `sql/<name>.sql` declares: a table that `tables` fills, or a view of parquet files.

    Rows and files are looked for only if a query names the relation.
    """

    name: str
    schema: pa.Schema
    """Of the table, or of the files."""
    tables: Tables | None = None
    files: Callable[["Lake"], Sequence[Path]] | None = None
    """The files in the variable `<name>_files`."""
    has_old_files: Callable[["Lake"], bool] = lambda _: False
    """Whether some of the files lack columns, which are null then. DuckDB reads all files' schemas before a query in
    that case: on 9,600 files one step takes 2 s of processor time instead of 0.6 s."""
    sentence: str | None = None
    """On the rows of a relation that logs fill: the metadata of its schema describes the columns, and no file."""


def relation_table(lake: "Lake", name: str, steps: Sequence[StepKey]) -> pa.Table:
    """Return the rows of a relation about these steps; of a lake without steps none."""
    relation = next(relation for relation in lake_relations() if relation.name == name)
    assert relation.tables is not None
    return pa.concat_tables([relation.schema.empty_table(), *(relation.tables(lake, steps) if lake.step_keys else ())])


@cache
def lake_relations() -> tuple[Relation, ...]:
    of_source = attrgetter(*table_schema("sources").names)
    return (
        Relation(
            "kernels",
            _PLAIN_KERNELS,
            files=_kernel_files,
            has_old_files=lambda lake: any(record.kernel_columns != len(KERNELS) for record in lake.sources),
        ),
        _table("metrics", metric_rows),
        _table("breakdown", lambda lake, _: [lake.table(by="step", arrow=True)]),
        _table("steps", lambda lake, steps: [steps_table(lake.diagnose(steps).steps)]),
        _table("culprits", lambda lake, steps: [culprit_rows(lake.diagnose(steps))]),
        _table("losses", lambda lake, _: [lake.losses(arrow=True)]),
        _table("waits", _of_program(lambda analysis, _: [wait_rows(analysis)])),
        _table("self_times", _of_program(self_time_rows)),
        _table("collective_calls", _of_program(collective_call_rows)),
        _table("efficiency", lambda lake, _: [efficiency_rows(lake.results().diagnosis)]),
        _table("facts", lambda lake, _: [fact_rows(lake.results().diagnosis)]),
        _table_of_rows("rank_steps", _rank_steps),
        _table_of_rows("marker_numbers", _marker_numbers),
        _table_of_rows("ranks", _ranks),
        Relation("host", HOST, files=_host_files),
        _table_of_rows("sources", lambda lake: list(map(of_source, [*lake.sources, *lake.rejected]))),
        _table_of_rows("problems", _problems),
        *(Relation(name, schema, _of_logs(name), sentence=LOG_SENTENCES[name]) for name, schema in LOG_SCHEMAS.items()),
    )


def _table(name: str, tables: Tables) -> Relation:
    return Relation(name, table_schema(name), tables)


def _table_of_rows(name: str, rows: Callable[["Lake"], Sequence[Sequence[object]]]) -> Relation:
    schema = table_schema(name)
    return Relation(name, schema, lambda lake, _: [table_of_rows(rows(lake), schema)])


def _of_logs(name: str) -> Tables:
    return lambda lake, _: [lake.log_table(name)]


def _of_program(rows: Callable[[RunAnalysis, Sequence[StepKey]], Iterable[pa.Table]]) -> Tables:
    return lambda lake, steps: rows(lake.analyze(), steps) if lake.step_keys else ()


LOG_SENTENCES: Final = {
    "bandwidth": "Bandwidths that nccl-tests or rccl-tests measured.",
    "benchmark_ranks": "Ranks of nccl-tests or rccl-tests with their hosts and GPUs.",
    "communicators": "NCCL's communicators: one row per rank of each.",
    "edges": "Connections between ranks in NCCL's channels, and their transport.",
    "recorded": "Collectives that NCCL's Inspector or profiler plug-in, or PyTorch's Flight Recorder, recorded.",
    "nccl_calls": "The last calls of each rank in each of NCCL's communicators (NCCL_DEBUG_SUBSYS=COLL).",
    "process_groups": "Process groups, their members, and how far each rank got in them.",
    "ras": "Answers of NCCL's health query `ncclras`: ranks without an answer, and operations launched.",
    "collective_timeouts": "Operations that PyTorch's watchdog gave up waiting for.",
    "exits": "Processes that failed or were killed, by torchrun, srun, Slurm, Kubernetes, the system and the program.",
    "gpu_clocks": "Clocks, power and temperature of GPUs over time.",
    "gpu_errors": "Errors of GPUs and NVSwitches: Xid and SXid of kernel logs, fabric manager and DCGM; memory errors.",
    "incidents": "What kernel, schedulers, sar, vmstat and PyTorch's allocator report of hosts, PCIe links and memory.",
    "links": "Speeds, states and error counters of NVLinks and of network adapters' ports.",
    "bindings": "CPUs and GPUs that ranks are bound to.",
    "topology": "CPUs and NICs near each GPU.",
    "mpi_calls": "Time in MPI calls by rank, function and message size.",
    "mpi_ranks": "Time in MPI, elapsed time and memory of each rank.",
    "operators": "Time of operators or kernels, summed up by a profiler.",
    "regions": "Time, kernels and copies of regions of the program, by HPE's Perftools.",
    "copy_sizes": "Copies of such a region by direction and size.",
    "throughput": "What a training program prints of its own speed, by step or of the whole run.",
}


_PLAIN_KERNELS = pa.schema([(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in KERNELS])


def _kernel_files(lake: "Lake") -> list[Path]:
    return _checked(
        (lake.root / kernels_file(step.key, record.rank), step.checksum)
        for record in lake.sources
        if record.rank is not None
        for step in record.steps
    )


def _host_files(lake: "Lake") -> list[Path]:
    paths = [(host_path(lake.root, record), record.host_checksum) for record in lake.sources]
    return _checked((path, recorded) for path, recorded in paths if path is not None)


def _checked(files: Iterable[tuple[Path, str | None]]) -> list[Path]:
    """Return files whose checksums, which DuckDB does not verify, are those of the records."""
    checked = list(files)
    check_files(checked)
    return [path for path, _ in checked]


def metric_rows(lake: "Lake", steps: Sequence[StepKey]) -> Iterator[pa.Table]:
    """Yield the metrics of each step, one row per kernel and rank."""
    schema = table_schema("metrics")
    for key in steps:
        rows = lake.metrics(key).rows
        for name, value in (("step", key.step), ("epoch", key.epoch)):
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.int64()), rows.num_rows))
        yield rows.select(schema.names).cast(schema)


def _rank_steps(lake: "Lake") -> list[tuple[object, ...]]:
    of_step = attrgetter(*table_schema("rank_steps").names[4:])
    return [
        (step.epoch, step.step, record.rank, record.digest, *of_step(step))
        for record in lake.sources
        for step in record.steps
    ]


def _marker_numbers(lake: "Lake") -> list[tuple[object, ...]]:
    return [
        (step.epoch, step.step, record.rank, position, *number)
        for record in lake.sources
        for step in record.steps
        for position, number in enumerate(parse_marker_numbers(step.marker or "", step.step, step.epoch, record.rank))
    ]


def _problems(lake: "Lake") -> list[tuple[object, ...]]:
    records = [*lake.sources, *lake.rejected]
    rows: list[tuple[object, ...]] = [(r.digest, r.file, r.rank, problem) for r in records for problem in r.problems]
    rows += [(log.digest, log.file, None, problem) for log in lake.logs for problem in log.problems]
    digests = {log.file: log.digest for log in lake.logs}
    disagreements = describe_disagreements(lake.recorded_sizes.disagreements())
    return rows + [(digests.get(file), file, rank, problem) for file, rank, problem in disagreements]


def _ranks(lake: "Lake") -> list[tuple[object, ...]]:
    last = {record.rank: record for record in lake.sources if record.steps}
    steps = Counter({record.rank: 0 for record in lake.sources})
    for record in lake.sources:
        steps[record.rank] += len(record.steps)
    near = {row["gpu"]: row["numa"] for row in lake.log_table("topology").select(["gpu", "numa"]).to_pylist()}
    rows: list[tuple[object, ...]] = []
    for rank, place in lake.places.items():
        recorded = last.get(rank)
        stream, form = (None, None) if recorded is None else (recorded.main_stream, recorded.format)
        where = (place.host, place.device, place.bus_id, place.process, near.get(place.device))
        sources = (place.host_from, place.device_from, place.bus_id_from, list(place.conflicts))
        rows.append((rank, *where, stream, form, steps[rank], *sources))
    return rows
