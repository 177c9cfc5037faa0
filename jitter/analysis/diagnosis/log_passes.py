"""The diagnosis of a job with its logs: passes that add what they state, each to what those before it found.

Logs never make a culprit: the traces state what is lost. A fact that names the ranks of a finding, or their host, and
speaks for its cause is evidence of it; every other fact is an item of its own.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from jitter.analysis.diagnosis.diagnosed_lake import DiagnosedLake
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.efficiency import find_bounds_in_tables
from jitter.analysis.diagnosis.evidence.logs.job_logs import EVIDENCE_RELATIONS, JobLogs
from jitter.analysis.diagnosis.evidence.logs.measurements import (
    MAX_MEASUREMENTS,
    MEASURED_RELATIONS,
    describe_measurements,
    failures,
)
from jitter.analysis.diagnosis.evidence.logs.rules import find_facts
from jitter.analysis.diagnosis.hang.find_hang import describe_last_kernels, find_hang
from jitter.analysis.diagnosis.hang.model import Hang, describe_stuck_watchdogs
from jitter.analysis.diagnosis.hang.nccl import (
    describe_calls,
    describe_ras,
    find_hang_in_calls,
    find_hang_in_ras,
    join_hangs,
)
from jitter.analysis.diagnosis.loss.waterfall import join_rungs
from jitter.analysis.diagnosis.model import (
    SLOW_LINKS,
    Cause,
    CauseCertainty,
    Culprit,
    Fact,
    FactKind,
    ProfileLocation,
    Scope,
)
from jitter.analysis.metrics.bandwidth_baseline import Baseline, below_in_every_step
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import capitalize, format_count
from jitter.core.grouping import by_key
from jitter.core.step_key import StepKey
from jitter.lake.log_records import Rows
from jitter.lake.rank_places import is_same_host
from jitter.lake.records import step_times_utc
from jitter.logs import VERSION

_LIMITS: Final = THRESHOLDS.evidence
_OF_TIMES: Final[tuple[FactKind, ...]] = ("gpu_clock", "gpu_error", "host")
"""Facts of samples and events: those of a finding's steps count for it."""
_OF_EVENTS: Final[tuple[FactKind, ...]] = ("gpu_error", "host", "network", "exit")
_OF_HANG: Final[tuple[FactKind, ...]] = ("gpu_error", "host", "network")
_OF_LINKS: Final[tuple[Cause, ...]] = (*SLOW_LINKS, "exposed_communication")
"""Causes whose times alone do not tell which of the ranks has them."""
_OTHER_CLOCKS: Final = Fact(
    "gpu_clock",
    "GPU clocks of another time than the steps are not used (another run, or another time zone: nvidia-smi prints "
    "local time, with TZ=UTC that of the recordings)",
    causes=(),
)
_ORDER: Final[tuple[CauseCertainty, ...]] = ("unknown", "likely", "certain")


def add_log_evidence(diagnosis: Diagnosis, logs: JobLogs) -> Diagnosis:
    """Return the diagnosis with what logs state of its findings, and of anything else."""
    logs = logs.reconciled()
    run = logs.during(list(logs.step_times_ns))
    facts = find_facts(run)
    facts_of: dict[tuple[StepKey, ...], tuple[Fact, ...]] = {}
    joined = []
    for culprit in diagnosis.culprits:
        if culprit.steps not in facts_of:
            of_steps = find_facts(logs.during(culprit.steps), _OF_TIMES)
            facts_of[culprit.steps] = (*(fact for fact in facts if fact.kind not in _OF_TIMES), *of_steps)
        joined.append(_join(culprit, facts_of[culprit.steps], logs, diagnosis))
    culprits = join_rungs(joined)
    # what makes links slower than their peers' or the benchmark has no part in what is left without that
    explained = {fact for culprit in culprits if culprit.cause in SLOW_LINKS for fact in culprit.facts}
    shared = []
    for culprit in diagnosis.of_all_ranks:
        of_all = tuple(fact for fact in facts if fact not in explained and _costs_all(fact, culprit))
        shared.append(_join(culprit, of_all, logs, diagnosis))
    stated = [fact for culprit in (*culprits, *shared) for fact in culprit.facts if not fact.excludes]
    causes_of: dict[object, set[Cause]] = defaultdict(set)
    for fact in stated:
        for subject in (fact.subject, *((fact.kind, rank) for rank in fact.ranks)):
            causes_of[subject].update(fact.causes)

    def is_told(fact: Fact, subject: object) -> bool:
        return subject in causes_of and (not fact.causes or not causes_of[subject].isdisjoint(fact.causes))

    items = [
        fact
        for fact in facts
        if fact.is_item
        and not is_told(fact, fact.subject)
        and not (fact.ranks and all(is_told(fact, (fact.kind, rank)) for rank in fact.ranks))
    ]
    items += [_OTHER_CLOCKS] if logs.gpu_clocks and not run.gpu_clocks else []
    items += _errors_of_another_time(logs, run)
    return replace(
        diagnosis,
        culprits=culprits,
        of_all_ranks=tuple(shared),
        facts=tuple(items),
    )


def _join(culprit: Culprit, facts: tuple[Fact, ...], logs: JobLogs, diagnosis: Diagnosis) -> Culprit:
    """Return the culprit with the facts of its ranks and its cause, and with the scope that they narrow it to."""
    of_culprit = [fact for fact in facts if culprit.cause in fact.causes and _is_of(fact, culprit, logs)]
    of_culprit.sort(key=lambda fact: (fact.is_of_job, -_ORDER.index(fact.certainty)))  # else in the order of the rules
    if culprit.cause in _OF_LINKS:
        culprit = _locate(culprit, of_culprit, logs)
        of_culprit = [fact for fact in of_culprit if _is_of(fact, culprit, logs)]
    sentences = list(dict.fromkeys(fact.words for fact in of_culprit))
    if culprit.scope == "job" and culprit.cause in _OF_LINKS:  # a network that is slow for all ranks
        sentences += [finding.sentence for finding in diagnosis.efficiency if finding.kind == "communication"]
    certainty = max((culprit.cause_certainty, *(fact.certainty for fact in of_culprit)), key=_ORDER.index)
    return replace(culprit.with_evidence(sentences), cause_certainty=certainty, facts=tuple(of_culprit))


def _costs_all(fact: Fact, culprit: Culprit) -> bool:
    """Return whether a fact may cost the ranks of a finding of all of them: one slow link does, as they wait for it."""
    is_of_most = 2 * len(set(fact.ranks).intersection(culprit.ranks)) >= len(culprit.ranks)
    is_link = fact.kind == "network" and fact.certainty != "unknown"
    return fact.is_of_job or (is_link and (culprit.cause in _OF_LINKS or is_of_most))


def _is_of(fact: Fact, culprit: Culprit, logs: JobLogs) -> bool:
    """Return whether a fact is about all ranks, some of the culprit's ranks, or their host.

    What excludes a cause by comparing ranks is about all of the culprit's, and tells nothing where these are all ranks.
    """
    if fact.excludes and (len(culprit.ranks) == len(logs.places) or not set(culprit.ranks) <= set(fact.ranks)):
        return False
    is_of_all = not fact.ranks and fact.host is None
    return is_of_all or _is_about(fact, culprit.ranks, logs)


def _is_about(fact: Fact, ranks: Sequence[int], logs: JobLogs) -> bool:
    """Return whether a fact is about some of these ranks, or their host."""
    if fact.ranks:
        return not set(fact.ranks).isdisjoint(ranks)
    return any(is_same_host(fact.host, logs.places[rank].host) for rank in ranks if rank in logs.places)


def _locate(culprit: Culprit, facts: list[Fact], logs: JobLogs) -> Culprit:
    """Return slow communication with the ranks, or the host, that a certain fact names.

    Times alone do not tell which of the ranks of a collective makes it slow.
    """
    named = next((fact.ranks for fact in facts if fact.ranks and fact.certainty == "certain"), ())
    ranks = tuple(rank for rank in named if rank in culprit.ranks)
    if not ranks or len(ranks) == len(culprit.ranks):
        return culprit
    place = logs.places.get(ranks[0])
    host = None if place is None else place.host
    of_host = tuple(rank for rank, location in sorted(logs.places.items()) if location.host == host)
    scope: Scope = "rank" if len(ranks) == 1 else "host" if host is not None and ranks == of_host else "ranks"
    return replace(
        culprit,
        scope=scope,
        rank=ranks[0],
        ranks=ranks,
        host=None if scope == "ranks" else host,
        is_part_of_job=False,
    )


def _errors_of_another_time(logs: JobLogs, run: JobLogs) -> Iterator[Fact]:
    """Yield errors of GPUs, hosts and links at other times than the steps: evidence of nothing, and worth a look."""
    near = logs.during(list(logs.step_times_ns), _LIMITS.time_zones_ns)
    for of_time, nearer, unless in ((near, run, ", unless the log is in another time zone"), (logs, near, "")):
        known_rows = {id(row) for row in (*nearer.gpu_errors, *nearer.incidents, *nearer.links, *nearer.exits)}
        others = JobLogs(
            gpu_errors=[row for row in of_time.gpu_errors if id(row) not in known_rows],
            incidents=[row for row in of_time.incidents if id(row) not in known_rows],
            links=[row for row in of_time.links if id(row) not in known_rows],
            exits=[row for row in of_time.exits if id(row) not in known_rows],
            places=logs.places,
        )
        for fact in filter(lambda fact: fact.is_item, find_facts(others, _OF_EVENTS)):
            words = f"{fact.words}, at another time than the steps{unless}"
            yield replace(fact, words=words, causes=(), certainty="unknown")


HANG_RELATIONS: Final = frozenset({"process_groups", "collective_timeouts", "ras", "nccl_calls"})
"""The relations that tell of a hang. `recorded` is none: logs of jobs that run fill it too."""


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
    recorded, health = read("recorded"), read("ras").to_pylist()
    hang = find_hang(recorded, groups, timeouts, failures(logs.exits))
    of_time = _around(logs, hang)
    if len(of_time.exits) < len(logs.exits):  # a rank that failed on another day is not the one to blame
        hang = find_hang(recorded, groups, timeouts, failures(of_time.exits))
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
    # how processes ended, and what logs state of the GPUs, the hosts and the links of the ranks that may be to blame
    facts = [
        fact
        for fact in _facts_around(diagnosis, logs, hang)
        if fact.kind == "exit" or (fact.kind in _OF_HANG and _is_about(fact, hang.suspects, logs))
    ]
    hang = hang.with_evidence([fact.words for fact in facts])
    # what another fact adds to the words is that its time is not that of the steps
    said = by_key((fact.subject, fact.words) for fact in facts)
    others = (fact for fact in diagnosis.facts if not fact.words.startswith(tuple(said.get(fact.subject, ()))))
    return replace(diagnosis, hang=hang, facts=tuple(others))


def _around(logs: JobLogs, hang: Hang | None) -> JobLogs:
    """Return the logs of half a day around the hang; all if its time is not known."""
    if hang is None or hang.operation.since_ns is None:
        return logs
    key, since_ns = StepKey(None, 0), hang.operation.since_ns
    return replace(logs, step_times_ns={key: (since_ns, since_ns)}).during([key], _LIMITS.time_zones_ns)


def _facts_around(diagnosis: Diagnosis, logs: JobLogs, hang: Hang) -> Sequence[Fact]:
    """Return what logs state of half a day around the hang, besides what is evidence of findings."""
    if hang.operation.since_ns is None:
        return diagnosis.facts
    known_facts = {fact for culprit in (*diagnosis.culprits, *diagnosis.of_all_ranks) for fact in culprit.facts}
    return [fact for fact in find_facts(_around(logs.reconciled(), hang)) if fact.is_item and fact not in known_facts]


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


PASSES: Final[tuple[Callable[[Diagnosis, DiagnosedLake, JobLogs], Diagnosis], ...]] = (
    lambda diagnosis, _, logs: add_log_evidence(diagnosis, logs),
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
