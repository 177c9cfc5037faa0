"""Evidence from a job's logs for the causes that a diagnosis found: sentences, made from the relations of the lake.

Logs never make a culprit. They add to the evidence of one, and to the verdict what they tell of the first. They narrow
slow communication to the ranks whose network differs.
"""

from dataclasses import replace
from typing import Final

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.evidence.logs.gpu import list_gpu_errors
from jitter.analysis.diagnosis.evidence.logs.relations import JobLogs
from jitter.analysis.diagnosis.model import Culprit, Scope
from jitter.analysis.diagnosis.verdict import write_verdict
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import escape_control

_LIMITS: Final = THRESHOLDS.sentences


def add_log_evidence(diagnosis: Diagnosis, logs: JobLogs) -> Diagnosis:
    """Return the diagnosis with what logs tell of each culprit, and at the verdict's end with that of the first."""
    located = replace(diagnosis, culprits=tuple(_locate(one, logs) for one in diagnosis.culprits))
    located = replace(located, verdict=_reword(diagnosis, located, len(logs.hosts)))
    culprits, by_logs = [], ""
    for culprit in located.culprits:
        in_logs = log_evidence(culprit, logs)
        if culprit is located.culprits[0] and in_logs:
            by_logs = f" By the logs, {'; '.join(in_logs[: _LIMITS.max_told_by_logs])}."
        told = [*in_logs, *_describe_job(culprit, diagnosis)]
        prove = CAUSES[culprit.cause].prove_by_logs
        is_certain = prove is not None and bool(prove(culprit.ranks, logs.during(culprit.steps)))
        certainty = "certain" if is_certain else culprit.cause_certainty
        culprits.append(replace(culprit.with_evidence(told), cause_certainty=certainty))
    errors = map(escape_control, list_gpu_errors(logs.during(list(logs.step_times_ns))))
    notes = [text for text in (*_time_notes(logs), *errors) if text not in diagnosis.notes]
    verdict = located.verdict.removesuffix(by_logs) + by_logs
    return replace(diagnosis, culprits=tuple(culprits), notes=(*diagnosis.notes, *notes), verdict=verdict)


def _locate(culprit: Culprit, logs: JobLogs) -> Culprit:
    """Return the culprit with the ranks, or the host, to which the logs narrow its cause.

    Times alone do not tell which of the ranks of a collective makes it slow.
    """
    locate = CAUSES[culprit.cause].locate_by_logs
    ranks = () if locate is None else locate(culprit.ranks, logs.during(culprit.steps))
    if not ranks or len(ranks) == len(culprit.ranks):
        return culprit
    host = logs.hosts.get(ranks[0])
    of_host = tuple(rank for rank, its in sorted(logs.hosts.items()) if its == host)
    scope: Scope = "rank" if len(ranks) == 1 else "host" if host is not None and ranks == of_host else "ranks"
    device = logs.devices.get(ranks[0]) if scope == "rank" else None
    named = None if scope == "ranks" else host
    return replace(culprit, scope=scope, rank=ranks[0], ranks=ranks, host=named, device=device, is_part_of_job=False)


def _reword(before: Diagnosis, after: Diagnosis, ranks: int) -> str:
    """Return the verdict with the located culprits in place of the others; what was added to it stays."""
    old, new = (
        write_verdict(
            one.loss, one.culprits, one.steps, one.what_if.culprits_repaired_ns or 0, ranks, one.conclusion, one.split
        )
        for one in (before, after)
    )
    return new + before.verdict.removeprefix(old) if before.verdict.startswith(old) else before.verdict


def _describe_job(culprit: Culprit, diagnosis: Diagnosis) -> list[str]:
    """Return what communication takes and reaches, for a network that is slow for all ranks."""
    if culprit.scope != "job" or culprit.cause != "communication":
        return []
    return [one.sentence for one in diagnosis.efficiency if one.kind == "communication"]


def _time_notes(logs: JobLogs) -> list[str]:
    """Tell of GPU logs of another time than the steps: none of their rows can be evidence."""
    run = logs.during(list(logs.step_times_ns))
    return [
        f"The {name} in the logs are of another time than the steps (another run, or another time zone): not used."
        for name, rows, own in (
            ("GPU clocks", logs.gpu_clocks, run.gpu_clocks),
            ("GPU errors", logs.gpu_errors, run.gpu_errors),
        )
        if rows and not own
    ]


def log_evidence(culprit: Culprit, logs: JobLogs) -> list[str]:
    """Return what the logs tell of a culprit's cause, a sentence each; empty if nothing."""
    find = CAUSES[culprit.cause].find_in_logs
    return [] if find is None else [escape_control(text) for text in find(culprit.ranks, logs.during(culprit.steps))]
