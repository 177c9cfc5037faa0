"""The results of one lake's runs: analysis and diagnosis of chosen steps, each computed or loaded once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING
from weakref import finalize

from jitter.core.errors import LakeError
from jitter.core.formatting import capitalize, format_count
from jitter.core.parallel.executors import DaskExecutor, Executor, LocalExecutor, PoolExecutor
from jitter.core.parallel.processes import cpu_count
from jitter.core.step_key import StepKey
from jitter.lake.records import RankStepRecord

if TYPE_CHECKING:
    from jitter.analysis.detection.passes import StepExecutor
    from jitter.analysis.detection.run_analysis import RunAnalysis
    from jitter.analysis.diagnosis.answer_cache import AnswerCache, Answers
    from jitter.analysis.diagnosis.diagnosis import Diagnosis
    from jitter.analysis.diagnosis.evidence.logs.job_logs import JobLogs
    from jitter.analysis.diagnosis.model import Culprit
    from jitter.analysis.metrics.bandwidth_baseline import Baseline
    from jitter.analysis.replay.run_steps import RunSteps
    from jitter.api.lake import Lake

Steps = tuple[StepKey, ...]


class RunResults:
    """Analyses and diagnoses of a lake, by the steps that they cover. Kept in memory; large ones in the lake too.

    `by_step` holds the record of each rank in each step.
    """

    def __init__(self, lake: "Lake", by_step: dict[StepKey, dict[int, RankStepRecord]]) -> None:
        self._lake = lake
        self._by_step = by_step
        self._analyses: dict[Steps, RunAnalysis] = {}
        self._by_traces: dict[Steps, Answers] = {}
        self._answers: dict[Steps, Answers] = {}
        self._connections = ExitStack()
        finalize(self, self._connections.close)

    def analysis(self, steps: Steps, executor: Executor | None) -> "RunAnalysis":
        """Return what the diagnosis of these steps rests on; see `Lake.analyze`."""
        from jitter.analysis.detection.run_analysis import RunAnalysis

        self.require_steps(steps)
        if steps not in self._analyses:
            make = self._step_executor(executor)
            self._analyses[steps] = RunAnalysis(self._lake.run_reader(steps), make, self._benchmark)
        return self._analyses[steps]

    def require_steps(self, steps: Steps) -> None:
        """Raise `LakeError` if there are none, as in a lake of logs alone."""
        if not steps:
            raise LakeError(f"{self._lake.root}: holds logs and no steps", "ingest the job's traces too")

    def answers(self, steps: Steps, executor: Executor | None) -> "Answers":
        """Return the diagnosis of these steps with its data quality: from memory, from the lake, or computed.

        Without steps, what the logs alone say.
        """
        if not steps:
            return self._with_evidence(_nothing_compared(), steps)
        if steps not in self._answers:
            self._answers[steps] = self._with_evidence(self._without_evidence(steps, executor), steps)
        return self._answers[steps]

    def _without_evidence(self, steps: Steps, executor: Executor | None) -> "Answers":
        """Return the diagnosis of these steps by the traces alone, which is what the lake keeps."""
        if steps not in self._by_traces:
            cached = None if self._cache is None else self._cache.get(steps)
            self._by_traces[steps] = cached or self._diagnose(steps, executor)
        return self._by_traces[steps]

    def diagnosed(self, steps: Steps) -> "Answers | None":
        """Return the diagnosis of these steps if this process has it already."""
        return self._answers.get(steps)

    def keep_answers(self, steps: Steps, executor: Executor | None) -> None:
        """Write the diagnosis of these steps to the lake, unless it is there or the lake is small."""
        if self._cache is not None and self._cache.get(steps) is None:
            self._cache.keep(steps, self._without_evidence(steps, executor))

    def _diagnose(self, steps: Steps, executor: Executor | None) -> "Answers":
        from jitter.analysis.diagnosis.answer_cache import Answers
        from jitter.analysis.diagnosis.diagnose import diagnose
        from jitter.analysis.diagnosis.efficiency import find_bound
        from jitter.analysis.diagnosis.evidence.facts import Evidence
        from jitter.analysis.diagnosis.loss.all_ranks import choose_steps, find_losses_of_all_ranks
        from jitter.analysis.diagnosis.loss.waterfall import charge_network, judge_lower_rungs

        analysis = self.analysis(steps, executor)
        first, last = choose_steps(analysis.lake)
        measure_collectives = partial(self._lake.measure_collectives, analysis.keys[first:last])
        with ThreadPoolExecutor(1, thread_name_prefix="collectives") as pool:
            # steps that are too large to be read ahead are not read twice at the same time either
            measured = pool.submit(measure_collectives) if analysis.steps.ahead else None
            evidence = Evidence(analysis, self._by_step, self._lake.unread_ranks)
            diagnosis = diagnose(analysis, evidence, self._first_and_last)
        timed = [step for step in diagnosis.steps if step.loss_ns is not None and step.step_time_ns is not None]
        rungs, time_ns = judge_lower_rungs(analysis, first, last), sum(step.step_time_ns or 0 for step in timed)
        lacks_ranks = len(analysis.run.team_of) == 1 or diagnosis.conclusion.unrecorded is not None
        keys = [step.key for step in timed]
        bound = find_bound(measured.result() if measured else measure_collectives(), self._benchmark)
        diagnosis = replace(
            diagnosis,
            culprits=charge_network(diagnosis.culprits, rungs, len(timed), time_ns),
            of_all_ranks=find_losses_of_all_ranks(analysis, rungs, keys, time_ns, bound, lacks_ranks=lacks_ranks),
            lower_rungs=rungs.step_ns,
            efficiency=() if bound is None else (bound,),
        )
        return Answers(diagnosis, tuple(analysis.qualities), analysis.run.team_of, analysis.run.matching.unpaired)

    def _first_and_last(self, key: StepKey) -> tuple[int | None, int | None]:
        """The ranks of the least and the greatest time to kernel end at k*; of several cohorts, the costliest's."""
        readings = [reading for reading in self._lake.ttke_readings([key]) if reading.max_rank is not None]
        worst = max(readings, key=lambda reading: reading.magnitude_ns or 0.0, default=None)
        return (None, None) if worst is None else (worst.min_rank, worst.max_rank)

    def _with_evidence(self, answers: "Answers", steps: Steps) -> "Answers":
        """Add what the program and the job's logs tell of the culprits, and the logs of the whole job."""
        from jitter.analysis.diagnosis.efficiency import find_bounds_in_tables
        from jitter.analysis.diagnosis.evidence.code import add_code_evidence

        lake = self._lake
        answers = replace(answers, diagnosis=add_code_evidence(answers.diagnosis, lake))
        if not lake.logs:
            return answers

        from jitter.analysis.diagnosis.evidence.logs.add_evidence import add_log_evidence
        from jitter.logs import VERSION

        logs = self._logs(steps)
        diagnosis = self._look_at_located(add_log_evidence(answers.diagnosis, logs))
        if outdated := sum(log.parsers_version < VERSION for log in lake.logs):
            read = format_count(outdated, "log was", "logs were")
            note = f"{read} read by an older jitter, which took less from them: ingest them again."
            diagnosis = replace(diagnosis, notes=(*diagnosis.notes, note))
        bounds = find_bounds_in_tables(lake.log_table("operators").to_pylist())
        diagnosis = replace(diagnosis, efficiency=(*diagnosis.efficiency, *bounds))
        if not steps:
            diagnosis = self._with_measurements(diagnosis)
        return replace(answers, diagnosis=self._with_hang(diagnosis, logs, has_steps=bool(steps)))

    def _look_at_located(self, diagnosis: "Diagnosis") -> "Diagnosis":
        """Point at the recording of the rank that logs name: its step, in place of another rank's kernels."""
        from jitter.analysis.diagnosis.model import ProfileLocation

        losses = {step.key: step.loss_ns or 0 for step in diagnosis.steps}

        def look(culprit: "Culprit") -> "ProfileLocation | None":
            place = self._by_step[max(culprit.steps, key=losses.__getitem__)].get(culprit.rank)
            if culprit.look_at is None or place is None or place.step.end_ns is None or not culprit.facts:
                return culprit.look_at
            if place.record.file == culprit.look_at.file:
                return culprit.look_at
            return ProfileLocation(place.record.file, place.step.start_ns, place.step.end_ns)

        return replace(
            diagnosis, culprits=tuple(replace(finding, look_at=look(finding)) for finding in diagnosis.culprits)
        )

    def _with_measurements(self, diagnosis: "Diagnosis") -> "Diagnosis":
        from jitter.analysis.diagnosis.evidence.logs.measurements import (
            MAX_MEASUREMENTS,
            MEASURED_RELATIONS,
            describe_measurements,
        )

        tables = {name: self._lake.log_table(name) for name in MEASURED_RELATIONS}
        tables["recorded"] = tables["recorded"].filter(tables["recorded"]["duration_ns"].is_valid())
        rows = {name: table.to_pylist() for name, table in tables.items()}
        sentences = [capitalize(text) for text in describe_measurements(rows)]
        said, others = sentences[:MAX_MEASUREMENTS], sentences[MAX_MEASUREMENTS:]
        return replace(diagnosis, measurements=tuple(said), notes=(*diagnosis.notes, *others))

    def _with_hang(self, diagnosis: "Diagnosis", logs: "JobLogs", *, has_steps: bool) -> "Diagnosis":
        relations = {"process_groups", "collective_timeouts", "ras", "nccl_calls"}
        if not any(relations & set(log.relations) for log in self._lake.logs):
            return diagnosis
        from jitter.analysis.diagnosis.evidence.logs.add_evidence import select_facts_of_hang
        from jitter.analysis.diagnosis.evidence.logs.measurements import failures
        from jitter.analysis.diagnosis.hang.find_hang import describe_last_kernels, find_hang
        from jitter.analysis.diagnosis.hang.nccl_calls import describe_calls, find_hang_in_calls, join_hangs
        from jitter.analysis.diagnosis.hang.ras import describe_ras, find_hang_in_ras
        from jitter.analysis.diagnosis.hang.rules import describe_stuck_watchdogs

        read = self._lake.log_table
        dumps = read("recorded"), read("process_groups"), read("collective_timeouts")
        hang, health = find_hang(*dumps, failures(logs.exits)), read("ras")
        calls, is_confirmed = read("nccl_calls").to_pylist(), bool(read("collective_timeouts").num_rows)
        hang = join_hangs(hang, find_hang_in_calls(calls, is_confirmed=is_confirmed))
        sentences = (*describe_ras(health.to_pylist()), *describe_calls(calls))
        hang = find_hang_in_ras(health.to_pylist()) if hang is None else hang.with_evidence(sentences)
        if hang is None:
            groups = read("process_groups").to_pylist()
            ranks = {row["rank"] for row in groups if row["rank"] is not None}
            stuck = {row["rank"]: row["watchdog_stuck_ns"] for row in groups if row["watchdog_stuck_ns"] is not None}
            unknown = read("collective_timeouts").num_rows
            if stuck or unknown:
                lines = [*map(capitalize, describe_stuck_watchdogs(stuck))]
                if unknown:
                    number = format_count(unknown, "operation")
                    lines.append(f"PyTorch's watchdog gave up {number} on ranks that the lines do not state.")
                diagnosis = replace(diagnosis, measurements=(*lines, *diagnosis.measurements))
            elif ranks and not has_steps:
                said = f"By the dumps of {format_count(len(ranks), 'rank')} no operation is stuck."
                diagnosis = replace(diagnosis, measurements=(said, *diagnosis.measurements))
            said_by_logs = tuple(map(capitalize, sentences))
            if has_steps:
                return replace(diagnosis, notes=(*diagnosis.notes, *said_by_logs))
            return replace(diagnosis, measurements=(*diagnosis.measurements, *said_by_logs))
        if has_steps:
            at = [*hang.culprits, *(rank for rank in hang.operation.waiting if rank not in hang.culprits)]
            hang = hang.with_evidence(describe_last_kernels(self._lake, at, hang.operation.since_ns))
        told = select_facts_of_hang(diagnosis.facts, hang.culprits, logs)
        hang = hang.with_evidence([fact.words for fact in told])
        return replace(diagnosis, hang=hang, facts=tuple(fact for fact in diagnosis.facts if fact not in told))

    def _logs(self, steps: Steps) -> "JobLogs":
        from jitter.analysis.diagnosis.evidence.logs.job_logs import EVIDENCE_RELATIONS, JobLogs
        from jitter.analysis.metrics.bandwidth_baseline import below_in_every_step
        from jitter.lake.records import step_times_utc

        lake, slow = self._lake, []
        recorded = lake.log_table("recorded")
        if self._benchmark and steps:
            slow = below_in_every_step(lake.measure_collectives(steps), self._benchmark)
        return JobLogs(
            **{name: lake.log_table(name).to_pylist() for name in EVIDENCE_RELATIONS},
            proxied=recorded.filter(recorded["proxy_ns"].is_valid()).to_pylist(),
            slow_network=slow,
            places=lake.places,
            step_times_ns=step_times_utc(lake.sources),
        )

    @cached_property
    def _benchmark(self) -> "Baseline | None":
        """Bandwidths that a benchmark among the logs measured; None without one."""
        if not any("bandwidth" in log.relations for log in self._lake.logs):
            return None
        from jitter.analysis.metrics.bandwidth_baseline import Baseline

        return Baseline("nccl-tests", self._lake.log_table("bandwidth").to_pylist())

    @cached_property
    def _cache(self) -> "AnswerCache | None":
        """None if the lake is too small to keep answers."""
        from jitter.analysis.diagnosis.answer_cache import MIN_ACTIVITIES, AnswerCache

        lake = self._lake
        activities = sum(step.rows for source in lake.sources for step in source.steps)
        digests = [log.digest for log in lake.logs]
        return AnswerCache(lake.root, lake.sources, digests) if activities >= MIN_ACTIVITIES else None

    def _step_executor(self, executor: Executor | None) -> "Callable[[RunSteps], StepExecutor]":
        from jitter.analysis.detection.passes import ThreadedStepExecutor

        if isinstance(executor, DaskExecutor):
            from jitter.analysis.detection.dask_executor import dask_executor

            return self._connections.enter_context(dask_executor(executor, self._lake.root))
        if isinstance(executor, LocalExecutor):
            return partial(ThreadedStepExecutor, threads=1)
        if isinstance(executor, PoolExecutor):
            return partial(ThreadedStepExecutor, threads=executor.workers or cpu_count())
        return ThreadedStepExecutor


def _nothing_compared() -> "Answers":
    from jitter.analysis.diagnosis.answer_cache import Answers
    from jitter.analysis.diagnosis.diagnosis import Diagnosis
    from jitter.analysis.diagnosis.model import Conclusion, Loss, WhatIf

    diagnosis = Diagnosis(Loss(None, None), (), (), WhatIf(None, None), 0, conclusion=Conclusion("unknown"))
    return Answers(diagnosis, (), {}, 0)
