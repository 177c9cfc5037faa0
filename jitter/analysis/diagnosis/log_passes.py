"""The diagnosis of a job with its logs: passes that add what they state, each to what those before it found."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from jitter.analysis.diagnosis.diagnosed_lake import DiagnosedLake
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.efficiency import find_bounds_in_tables
from jitter.analysis.diagnosis.evidence.logs.add_evidence import add_log_evidence, select_facts_of_hang
from jitter.analysis.diagnosis.evidence.logs.job_logs import EVIDENCE_RELATIONS, JobLogs
from jitter.analysis.diagnosis.evidence.logs.measurements import (
    MAX_MEASUREMENTS,
    MEASURED_RELATIONS,
    describe_measurements,
    failures,
)
from jitter.analysis.diagnosis.hang.find_hang import describe_last_kernels, find_hang
from jitter.analysis.diagnosis.hang.nccl_calls import describe_calls, find_hang_in_calls, join_hangs
from jitter.analysis.diagnosis.hang.ras import describe_ras, find_hang_in_ras
from jitter.analysis.diagnosis.hang.rules import describe_stuck_watchdogs
from jitter.analysis.diagnosis.model import Culprit, ProfileLocation
from jitter.analysis.metrics.bandwidth_baseline import Baseline, below_in_every_step
from jitter.core.formatting import capitalize, format_count
from jitter.core.step_key import StepKey
from jitter.lake.log_records import Rows
from jitter.lake.records import step_times_utc
from jitter.logs import VERSION

HANG_RELATIONS: Final = frozenset({"process_groups", "collective_timeouts", "ras", "nccl_calls"})
"""The relations that tell of a hang. `recorded` is none: logs of jobs that run fill it too."""


LogPass: TypeAlias = Callable[[Diagnosis, DiagnosedLake, JobLogs], Diagnosis]


def join_with_findings(diagnosis: Diagnosis, lake: DiagnosedLake, logs: JobLogs) -> Diagnosis:
    """Add what logs state of the findings, and of anything else."""
    return add_log_evidence(diagnosis, logs)


def look_at_named_ranks(diagnosis: Diagnosis, lake: DiagnosedLake, logs: JobLogs) -> Diagnosis:
    """Point at the recording of the rank that logs name: its step, in place of another rank's kernels."""
    losses = {step.key: step.loss_ns or 0 for step in diagnosis.steps}

    def look(culprit: Culprit) -> ProfileLocation | None:
        key = max(culprit.steps, key=losses.__getitem__)
        if culprit.look_at is None or not culprit.facts or culprit.rank not in lake.ranks_of(key):
            return culprit.look_at
        record, step = lake.record_of(key, culprit.rank)
        if step.end_ns is None or record.file == culprit.look_at.file:
            return culprit.look_at
        return ProfileLocation(record.file, step.start_ns, step.end_ns)

    return replace(diagnosis, culprits=tuple(replace(one, look_at=look(one)) for one in diagnosis.culprits))


def note_older_readers(diagnosis: Diagnosis, lake: DiagnosedLake, logs: JobLogs) -> Diagnosis:
    """Tell of logs from which a newer jitter takes more."""
    outdated = sum(log.parsers_version < VERSION for log in lake.logs)
    if not outdated:
        return diagnosis
    read = format_count(outdated, "log was", "logs were")
    note = f"{read} read by an older jitter, which took less from them: ingest them again."
    return replace(diagnosis, notes=(*diagnosis.notes, note))


def add_bounds_of_tables(diagnosis: Diagnosis, lake: DiagnosedLake, logs: JobLogs) -> Diagnosis:
    """Add what profilers' tables say takes the time of the whole job."""
    bounds = find_bounds_in_tables(lake.log_table("operators").to_pylist())
    return replace(diagnosis, efficiency=(*diagnosis.efficiency, *bounds))


def add_measurements(diagnosis: Diagnosis, lake: DiagnosedLake, logs: JobLogs) -> Diagnosis:
    """Add what logs measured, where there is nothing else to tell."""
    if diagnosis.steps:
        return diagnosis
    tables = {name: lake.log_table(name) for name in MEASURED_RELATIONS}
    tables["recorded"] = tables["recorded"].filter(tables["recorded"]["duration_ns"].is_valid())
    sentences = [
        capitalize(text) for text in describe_measurements({name: rows.to_pylist() for name, rows in tables.items()})
    ]
    said, others = sentences[:MAX_MEASUREMENTS], sentences[MAX_MEASUREMENTS:]
    return replace(diagnosis, measurements=tuple(said), notes=(*diagnosis.notes, *others))


def add_hang(diagnosis: Diagnosis, lake: DiagnosedLake, logs: JobLogs) -> Diagnosis:
    """Add the operation in which the job hangs, and who holds it up; if it does not hang, note what logs say of it."""
    if not any(HANG_RELATIONS & set(log.relations) for log in lake.logs):
        return diagnosis
    read = lake.log_table
    groups, timeouts = read("process_groups"), read("collective_timeouts")
    hang, health = find_hang(read("recorded"), groups, timeouts, failures(logs.exits)), read("ras").to_pylist()
    calls, is_confirmed = read("nccl_calls").to_pylist(), timeouts.num_rows > 0
    hang = join_hangs(hang, find_hang_in_calls(calls, is_confirmed=is_confirmed))
    sentences = (*describe_ras(health), *describe_calls(calls))
    hang = find_hang_in_ras(health) if hang is None else hang.with_evidence(sentences)
    if hang is None:
        diagnosis = _with_watchdogs(diagnosis, groups.to_pylist(), timeouts.num_rows)
        words = tuple(map(capitalize, sentences))
        if diagnosis.steps:
            return replace(diagnosis, notes=(*diagnosis.notes, *words))
        return replace(diagnosis, measurements=(*diagnosis.measurements, *words))
    if diagnosis.steps:
        at = [*hang.culprits, *(rank for rank in hang.operation.waiting if rank not in hang.culprits)]
        hang = hang.with_evidence(describe_last_kernels(lake, at, hang.operation.since_ns))
    facts = select_facts_of_hang(diagnosis.facts, hang.culprits, logs)
    hang = hang.with_evidence([fact.words for fact in facts])
    return replace(diagnosis, hang=hang, facts=tuple(fact for fact in diagnosis.facts if fact not in facts))


def _with_watchdogs(diagnosis: Diagnosis, groups: Rows, unknown: int) -> Diagnosis:
    """Return the diagnosis with what dumps and watchdogs say where no operation is known to be stuck.

    `groups` are rows of `process_groups`; of `unknown` operations that a watchdog gave up the rank is not stated.
    """
    ranks = {row["rank"] for row in groups if row["rank"] is not None}
    stuck = {row["rank"]: row["watchdog_stuck_ns"] for row in groups if row["watchdog_stuck_ns"] is not None}
    lines = [*map(capitalize, describe_stuck_watchdogs(stuck))]
    if unknown:
        number = format_count(unknown, "operation")
        lines.append(f"PyTorch's watchdog gave up {number} on ranks that the lines do not state.")
    if not stuck and not unknown and ranks and not diagnosis.steps:
        lines.append(f"By the dumps of {format_count(len(ranks), 'rank')} no operation is stuck.")
    return replace(diagnosis, measurements=(*lines, *diagnosis.measurements))


PASSES: Final[tuple[LogPass, ...]] = (
    join_with_findings,
    look_at_named_ranks,
    note_older_readers,
    add_bounds_of_tables,
    add_measurements,
    add_hang,
)
"""In their order: each returns the diagnosis so far with what it adds."""


def pass_over_logs(
    diagnosis: Diagnosis, lake: DiagnosedLake, steps: Sequence[StepKey], benchmark: Baseline | None
) -> Diagnosis:
    """Return the diagnosis of these steps, or of a job without traces, with what its logs say.

    Raises `LakeError` if a file of the lake is missing or damaged.
    """
    recorded, slow = lake.log_table("recorded"), []
    if benchmark and steps:
        slow = below_in_every_step(lake.measure_collectives(steps), benchmark)
    logs = JobLogs(
        **{name: lake.log_table(name).to_pylist() for name in EVIDENCE_RELATIONS},
        proxied=recorded.filter(recorded["proxy_ns"].is_valid()).to_pylist(),
        slow_network=slow,
        places=lake.places,
        step_times_ns=step_times_utc(lake.sources),
    )
    for add in PASSES:
        diagnosis = add(diagnosis, lake, logs)
    return diagnosis
