"""The diagnosis of a job with its logs: passes that add what they state, each to what those before it found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.efficiency import find_bounds_in_tables
from jitter.analysis.diagnosis.evidence.logs.add_evidence import add_log_evidence
from jitter.analysis.diagnosis.evidence.logs.job_logs import EVIDENCE_RELATIONS, JobLogs
from jitter.analysis.diagnosis.evidence.logs.measurements import (
    MAX_MEASUREMENTS,
    MEASURED_RELATIONS,
    describe_measurements,
)
from jitter.analysis.diagnosis.hang.add_hang import HANG_RELATIONS, LoggedCalls, find_hang_of_job
from jitter.analysis.diagnosis.model import Culprit, ProfileLocation
from jitter.analysis.metrics.bandwidth_baseline import Baseline, below_in_every_step
from jitter.analysis.metrics.communication import Communication
from jitter.core.formatting import capitalize, format_count
from jitter.core.step_key import StepKey
from jitter.lake.log_records import LogRecord
from jitter.lake.rank_places import RankPlace
from jitter.lake.records import step_times_utc
from jitter.logs import VERSION


class LoggedTraces(LoggedCalls, Protocol):
    """What the passes read; `jitter.Lake` has these members."""

    logs: list[LogRecord]

    @property
    def places(self) -> dict[int, RankPlace]:
        """Host, GPU and process of each rank."""

    def measure_collectives(self, steps: Sequence[StepKey]) -> Communication:
        """Return what the network did in these steps."""


@dataclass(frozen=True)
class LoggedJob:
    """What the passes read of a job, besides the diagnosis so far."""

    lake: LoggedTraces
    has_steps: bool
    """Whether traces are diagnosed too."""
    logs: JobLogs


LogPass: TypeAlias = Callable[[Diagnosis, LoggedJob], Diagnosis]


def join_with_findings(diagnosis: Diagnosis, job: LoggedJob) -> Diagnosis:
    """Add what logs state of the findings, and of anything else."""
    return add_log_evidence(diagnosis, job.logs)


def look_at_named_ranks(diagnosis: Diagnosis, job: LoggedJob) -> Diagnosis:
    """Point at the recording of the rank that logs name: its step, in place of another rank's kernels."""
    losses = {step.key: step.loss_ns or 0 for step in diagnosis.steps}

    def look(culprit: Culprit) -> ProfileLocation | None:
        key = max(culprit.steps, key=losses.__getitem__)
        if culprit.look_at is None or not culprit.facts or culprit.rank not in job.lake.ranks_of(key):
            return culprit.look_at
        record, step = job.lake.record_of(key, culprit.rank)
        if step.end_ns is None or record.file == culprit.look_at.file:
            return culprit.look_at
        return ProfileLocation(record.file, step.start_ns, step.end_ns)

    return replace(diagnosis, culprits=tuple(replace(one, look_at=look(one)) for one in diagnosis.culprits))


def note_older_readers(diagnosis: Diagnosis, job: LoggedJob) -> Diagnosis:
    """Tell of logs from which a newer jitter takes more."""
    outdated = sum(log.parsers_version < VERSION for log in job.lake.logs)
    if not outdated:
        return diagnosis
    read = format_count(outdated, "log was", "logs were")
    note = f"{read} read by an older jitter, which took less from them: ingest them again."
    return replace(diagnosis, notes=(*diagnosis.notes, note))


def add_bounds_of_tables(diagnosis: Diagnosis, job: LoggedJob) -> Diagnosis:
    """Add what profilers' tables say takes the time of the whole job."""
    bounds = find_bounds_in_tables(job.lake.log_table("operators").to_pylist())
    return replace(diagnosis, efficiency=(*diagnosis.efficiency, *bounds))


def add_measurements(diagnosis: Diagnosis, job: LoggedJob) -> Diagnosis:
    """Add what logs measured, where there is nothing else to tell."""
    if job.has_steps:
        return diagnosis
    tables = {name: job.lake.log_table(name) for name in MEASURED_RELATIONS}
    tables["recorded"] = tables["recorded"].filter(tables["recorded"]["duration_ns"].is_valid())
    sentences = [
        capitalize(text) for text in describe_measurements({name: rows.to_pylist() for name, rows in tables.items()})
    ]
    said, others = sentences[:MAX_MEASUREMENTS], sentences[MAX_MEASUREMENTS:]
    return replace(diagnosis, measurements=tuple(said), notes=(*diagnosis.notes, *others))


def add_hang(diagnosis: Diagnosis, job: LoggedJob) -> Diagnosis:
    """Add in which operation the job hangs, or that none is stuck."""
    if not any(HANG_RELATIONS & set(log.relations) for log in job.lake.logs):
        return diagnosis
    return find_hang_of_job(diagnosis, job.lake, job.logs, has_steps=job.has_steps)


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
    diagnosis: Diagnosis, lake: LoggedTraces, steps: Sequence[StepKey], benchmark: Baseline | None
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
    job = LoggedJob(lake, bool(steps), logs)
    for add in PASSES:
        diagnosis = add(diagnosis, job)
    return diagnosis
