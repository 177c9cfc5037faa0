"""Adds to a diagnosis where the job hangs: by dumps of the Flight Recorder, NCCL's own account of calls, and RAS."""

from dataclasses import replace
from typing import Final, Protocol

import pyarrow as pa

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.evidence.code import RecordedCode
from jitter.analysis.diagnosis.evidence.logs.add_evidence import select_facts_of_hang
from jitter.analysis.diagnosis.evidence.logs.job_logs import JobLogs, Rows
from jitter.analysis.diagnosis.evidence.logs.measurements import failures
from jitter.analysis.diagnosis.hang.find_hang import describe_last_kernels, find_hang
from jitter.analysis.diagnosis.hang.nccl_calls import describe_calls, find_hang_in_calls, join_hangs
from jitter.analysis.diagnosis.hang.ras import describe_ras, find_hang_in_ras
from jitter.analysis.diagnosis.hang.rules import describe_stuck_watchdogs
from jitter.core.formatting import capitalize, format_count

HANG_RELATIONS: Final = frozenset({"process_groups", "collective_timeouts", "ras", "nccl_calls"})
"""The relations that tell of a hang. `recorded` is none: logs of jobs that run fill it too."""


class LoggedCalls(RecordedCode, Protocol):
    """What a hang is found in; `jitter.Lake` has these members."""

    def log_table(self, relation: str) -> pa.Table:
        """Return the rows of a relation that logs fill."""


def find_hang_of_job(diagnosis: Diagnosis, lake: LoggedCalls, logs: JobLogs, *, has_steps: bool) -> Diagnosis:
    """Return the diagnosis with the operation that is stuck and who holds it up; without one, with what logs say.

    `has_steps` says whether traces are diagnosed too: then what logs say without a hang are notes.
    """
    read = lake.log_table
    groups, timeouts = read("process_groups"), read("collective_timeouts")
    hang, health = find_hang(read("recorded"), groups, timeouts, failures(logs.exits)), read("ras").to_pylist()
    calls, is_confirmed = read("nccl_calls").to_pylist(), timeouts.num_rows > 0
    hang = join_hangs(hang, find_hang_in_calls(calls, is_confirmed=is_confirmed))
    sentences = (*describe_ras(health), *describe_calls(calls))
    hang = find_hang_in_ras(health) if hang is None else hang.with_evidence(sentences)
    if hang is None:
        diagnosis = _with_watchdogs(diagnosis, groups.to_pylist(), timeouts.num_rows, has_steps=has_steps)
        said = tuple(map(capitalize, sentences))
        if has_steps:
            return replace(diagnosis, notes=(*diagnosis.notes, *said))
        return replace(diagnosis, measurements=(*diagnosis.measurements, *said))
    if has_steps:
        at = [*hang.culprits, *(rank for rank in hang.operation.waiting if rank not in hang.culprits)]
        hang = hang.with_evidence(describe_last_kernels(lake, at, hang.operation.since_ns))
    told = select_facts_of_hang(diagnosis.facts, hang.culprits, logs)
    hang = hang.with_evidence([fact.words for fact in told])
    return replace(diagnosis, hang=hang, facts=tuple(fact for fact in diagnosis.facts if fact not in told))


def _with_watchdogs(diagnosis: Diagnosis, groups: Rows, unknown: int, *, has_steps: bool) -> Diagnosis:
    """Return the diagnosis with what dumps and watchdogs say where no operation is known to be stuck.

    `groups` are rows of `process_groups`; of `unknown` operations that a watchdog gave up the rank is not stated.
    """
    ranks = {row["rank"] for row in groups if row["rank"] is not None}
    stuck = {row["rank"]: row["watchdog_stuck_ns"] for row in groups if row["watchdog_stuck_ns"] is not None}
    lines = [*map(capitalize, describe_stuck_watchdogs(stuck))]
    if unknown:
        number = format_count(unknown, "operation")
        lines.append(f"PyTorch's watchdog gave up {number} on ranks that the lines do not state.")
    if not stuck and not unknown and ranks and not has_steps:
        lines.append(f"By the dumps of {format_count(len(ranks), 'rank')} no operation is stuck.")
    return replace(diagnosis, measurements=(*lines, *diagnosis.measurements))
