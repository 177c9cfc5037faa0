"""The results of one lake's runs: analysis and diagnosis of chosen steps, each computed or loaded once."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING
from weakref import finalize

from jitter.core.errors import LakeError
from jitter.core.parallel.executors import DaskExecutor, Executor, LocalExecutor, PoolExecutor
from jitter.core.parallel.processes import cpu_count
from jitter.core.step_key import StepKey
from jitter.lake.records import RankStepRecord

if TYPE_CHECKING:
    from jitter.analysis.detection.passes import StepExecutor
    from jitter.analysis.detection.run_analysis import RunAnalysis
    from jitter.analysis.diagnosis.answer_cache import AnswerCache, Answers
    from jitter.analysis.execution.run_model import RunModel
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

    def model(self, steps: Steps) -> "RunModel":
        """Return what is inferred of the run: by an analysis of these steps and others, else from all steps."""
        for analyzed, analysis in self._analyses.items():
            if set(analyzed) >= set(steps):
                return analysis.run
        from jitter.analysis.replay.run_steps import RunSteps

        return RunSteps(self._lake.run_reader(self._lake.step_keys)).run

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
        from jitter.analysis.diagnosis.diagnose import diagnose_traces

        return diagnose_traces(self.analysis(steps, executor), self._by_step, self._lake, self._benchmark)

    def _with_evidence(self, answers: "Answers", steps: Steps) -> "Answers":
        """Add what the program and the job's logs tell of the culprits, and the logs of the whole job."""
        from jitter.analysis.diagnosis.evidence.code import add_code_evidence

        diagnosis = add_code_evidence(answers.diagnosis, self._lake)
        if self._lake.logs:
            from jitter.analysis.diagnosis.log_passes import pass_over_logs

            diagnosis = pass_over_logs(diagnosis, self._lake, steps, self._benchmark)
        return replace(answers, diagnosis=diagnosis)

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
