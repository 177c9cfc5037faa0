"""A lake, opened for questions: the Python API. Read-only, the same for command line, notebook and report."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from jitter.analysis.metrics.kernel_index import KernelIndex, KernelIndices
from jitter.analysis.metrics.step_metrics import METRICS, StepMetrics
from jitter.core.errors import LakeError, UsageError
from jitter.core.step_key import StepKey
from jitter.lake import catalog
from jitter.lake.folder import LakeFolder
from jitter.lake.layout import DEFAULT_LAKE
from jitter.lake.records import StepRecord, records_by_step

if TYPE_CHECKING:
    import pandas as pd

    from jitter.analysis.detection.passes import Passes
    from jitter.analysis.detection.run_analysis import RunAnalysis
    from jitter.analysis.diagnosis.answer_cache import AnswerCache, Answers
    from jitter.analysis.diagnosis.model import Diagnosis, StepAnswer
    from jitter.analysis.execution.rules import Wait
    from jitter.analysis.execution.run_reader import LakeRun
    from jitter.analysis.metrics.communication.measure import Communication
    from jitter.analysis.metrics.run_summary import RunSummary
    from jitter.analysis.metrics.tables import MetricTable
    from jitter.analysis.metrics.ttke_reading import TtkeReading
    from jitter.analysis.replay.run_steps import ExaminedSteps


def open_lake(path: str | Path = DEFAULT_LAKE, progress: Callable[[int, int], None] | None = None) -> "Lake":
    """Open a lake; raise `LakeError` if there is none, or nothing in it.

    `progress` is told (done, in all) while what a large lake lacks of derived data is made, as its first reader does.
    """
    return Lake(Path(path), progress)


class Lake:
    """What a lake holds and what follows from it. Nothing is computed before it is asked for."""

    def __init__(self, root: Path, progress: Callable[[int, int], None] | None = None) -> None:
        folder = LakeFolder(root)
        folder.require()
        self.root = root
        self._progress = progress
        records = folder.records()
        catalog.refresh(root, folder.records)
        self.sources = [record for record in records if record.rank is not None]
        """One record a source that went in."""
        self.rejected = [record for record in records if record.rank is None]
        """One record a source that did not, with the reason in its problems."""
        self._by_step = records_by_step(self.sources)
        if not self._by_step:
            raise LakeError(f"{root}: holds no steps", "see why with: jitter inspect TRACES")
        self._lake_indices = KernelIndices(root, self._by_step)
        self._examined: dict[tuple[StepKey, ...], RunAnalysis] = {}
        self._answered: dict[tuple[StepKey, ...], Answers] = {}

    @cached_property
    def steps(self) -> list[StepKey]:
        """The steps of the run, in order."""
        return sorted(self._by_step, key=lambda key: key.order)

    @cached_property
    def ranks(self) -> list[int]:
        """The ranks that have at least one step."""
        return sorted({rank for found in self._by_step.values() for rank in found})

    @cached_property
    def hosts(self) -> dict[int, str | None]:
        """Each rank's host, None where the trace does not name it."""
        return {record.rank: record.host for record in self.sources if record.rank is not None}

    @property
    def cohorts(self) -> dict[int, int]:
        """Each rank's cohort: ranks of one run the same kernels and are compared with each other."""
        return self._lake_indices.cohorts

    def step(self, step: int, epoch: int | None = None) -> StepKey:
        """The step of this number; raise `UsageError` if there is none, or if it is in several epochs."""
        found = [key for key in self.steps if key.step == step and epoch in (None, key.epoch)]
        epochs = [key for key in self.steps if key.step == step]
        if not found and epochs:
            raise UsageError(f"{self.root}: no epoch {epoch}, step {step}", f"it holds {', '.join(map(str, epochs))}")
        if not found:
            first, last = self.steps[0], self.steps[-1]
            raise UsageError(f"{self.root}: no step {step}", f"it holds {len(self.steps)} steps, {first} to {last}")
        if len(found) > 1:
            raise UsageError(
                f"{self.root}: step {step} is in epochs {', '.join(str(key.epoch) for key in found)}", "give --epoch"
            )
        return found[0]

    def ranks_of(self, key: StepKey) -> list[int]:
        """The ranks that have this step."""
        return sorted(self._by_step[key])

    def steps_of(self, rank: int) -> list[StepRecord]:
        """What the records tell of one rank's steps, in order."""
        return [self._by_step[key][rank].step for key in self.steps if rank in self._by_step[key]]

    def metrics(self, step: int, epoch: int | None = None) -> StepMetrics:
        """Every kernel's metrics on every rank in one step, with their deviations and how ranks were aligned."""
        return self.metrics_of(self.step(step, epoch))

    def metrics_of(self, key: StepKey) -> StepMetrics:
        """Do as `metrics` does, for a step of `steps`."""
        return self._measured(key, METRICS)

    def _measured(self, key: StepKey, metrics: Sequence[str]) -> StepMetrics:
        members = self._lake_indices.members
        return StepMetrics(self.root, key, self._by_step[key], self.indices(key), members, metrics)

    def summaries(self, steps: Sequence[StepKey] | None = None) -> "list[TtkeReading]":
        """What each step tells, one a cohort and step, in order."""
        from jitter.analysis.metrics.run_summary import outstanding

        chosen = self.steps if steps is None else steps
        self.compact(chosen)
        return outstanding([found for key in chosen for found in self._summaries(key)])

    def run(self, steps: Sequence[StepKey] | None = None) -> "RunSummary":
        """Sum up the run: each step's time, and what its cohorts' summaries add up to."""
        from jitter.analysis.metrics.run_summary import summarise_run

        return summarise_run(self.summaries(steps))

    def diagnose(self, steps: Sequence[StepKey] | None = None) -> "Diagnosis":
        """Answer the seven questions for these steps (all): loss, steps, culprits, what repairing them gains."""
        return self.answers(steps).diagnosis

    def answers(self, steps: Sequence[StepKey] | None = None) -> "Answers":
        """Diagnose these steps (all), and tell how far to trust that; a large lake remembers what it was asked."""
        chosen = tuple(self.steps if steps is None else steps)
        if chosen not in self._answered:
            kept = self._kept_answers
            found = None if kept is None else kept.get(chosen)
            if found is None:
                found = self._answer(chosen)
                if kept is not None:
                    kept.keep(chosen, found)
            self._answered[chosen] = found
        return self._answered[chosen]

    def _answer(self, steps: tuple[StepKey, ...]) -> "Answers":
        from jitter.analysis.diagnosis.answer_cache import Answers
        from jitter.analysis.diagnosis.diagnose import diagnose
        from jitter.analysis.diagnosis.evidence import Evidence

        examined = self.analyze(steps)
        diagnosis = diagnose(examined, Evidence(examined, self._by_step), self._first_and_last)
        return Answers(diagnosis, tuple(examined.qualities), examined.run.team_of, examined.run.meetings.unpaired)

    @cached_property
    def _kept_answers(self) -> "AnswerCache | None":
        """None: the lake is so small that nothing is kept."""
        from jitter.analysis.diagnosis.answer_cache import MIN_ACTIVITIES, AnswerCache

        activities = sum(step.rows for source in self.sources for step in source.steps)
        return AnswerCache(self.root, self.sources) if activities >= MIN_ACTIVITIES else None

    def _first_and_last(self, key: StepKey) -> tuple[int | None, int | None]:
        """The ranks of the least and the greatest time to kernel end at k*; of several cohorts, the costliest's."""
        told = [summary for summary in self.summaries([key]) if summary.max_rank is not None]
        worst = max(told, key=lambda summary: summary.max_deviation_ns or 0.0, default=None)
        return (None, None) if worst is None else (worst.min_rank, worst.max_rank)

    def costliest(self, steps: Sequence[StepKey] | None = None) -> "StepAnswer":
        """Answer for the step of these (all) that loses most; the first, where none tells."""
        return self.diagnose(steps).costliest

    def analyze(
        self, steps: Sequence[StepKey] | None = None, passes: "Callable[[ExaminedSteps], Passes] | None" = None
    ) -> "RunAnalysis":
        """What the diagnosis rests on: dependencies, replay and critical path of these steps (all).

        `passes` makes what goes through the steps, if that is not to be done in this process.
        """
        from jitter.analysis.detection import pool_executor
        from jitter.analysis.detection.run_analysis import RunAnalysis
        from jitter.analysis.detection.thresholds import Thresholds
        from jitter.lake.derived.build_timing_cache import build_timing_cache

        chosen = tuple(self.steps if steps is None else steps)
        if chosen not in self._examined:
            build_timing_cache(self.root, self.sources, self._progress)
            if passes is None:
                rows = sum(one.step.rows for key in chosen for one in self._by_step[key].values())
                passes = pool_executor.passes(self.root.absolute(), rows, len(chosen))
            self._examined[chosen] = RunAnalysis(self.run_of(chosen), Thresholds(), passes)
        return self._examined[chosen]

    def communication(self, steps: Sequence[StepKey] | None = None, group: str | None = None) -> "Communication":
        """Measure the collectives of these steps (all), of one group or all; see `jitter collectives`.

        Raises `LakeError` where a rank's file cannot be read.
        """
        from jitter.analysis.metrics.communication.calls import COLUMNS
        from jitter.analysis.metrics.communication.measure import measure_communication
        from jitter.lake.step_reader import read_step

        chosen = self.steps if steps is None else steps
        self.compact(chosen)
        read = ((key, read_step(self.root, key, self._by_step[key], COLUMNS)) for key in chosen)
        return measure_communication(read, self.hosts, group)

    def run_of(self, steps: Sequence[StepKey]) -> "LakeRun":
        """Read these steps as the examination does."""
        from jitter.analysis.execution.run_reader import LakeRun

        return LakeRun(self.root, self._by_step, self.indices, steps)

    def dependencies(self, cohort: int | None = None) -> "list[Wait]":
        """What waits for what in a cohort's step, as inferred; places are ordinals of its commonest sequence.

        Of a cohort whose ranks exchange in different orders (pipeline stages), those of its first.
        """
        from jitter.analysis.execution.rules import waits_by_ordinal

        chosen = self.choose_cohort(cohort)
        run = self.analyze().run
        team = min(team for rank, team in run.team_of.items() if self.cohorts[rank] == chosen)
        return waits_by_ordinal(run.programs[team], run.rules[team])

    def table(
        self,
        metric: str,
        step: int,
        epoch: int | None = None,
        *,
        cohort: int | None = None,
        deviation: bool = False,
        ranks: Sequence[int] | None = None,
    ) -> "pd.DataFrame":
        """One metric of one step as the talk shows it: kernels × ranks, in ns.

        Columns: `kernel_name`, `mean` (over all ranks of the cohort, whatever `ranks` chooses), `rank_<R>`…; the index
        is `kernel_index`. Unknown values are NA. With `deviation`, value − mean in the ranks' columns. Raises
        `UsageError` for an unknown metric, step or rank, and where several cohorts need `cohort`.
        """
        return self.metric_table(metric, step, epoch, cohort=cohort, deviation=deviation, ranks=ranks).to_pandas()

    def metric_table(
        self,
        metric: str,
        step: int,
        epoch: int | None = None,
        *,
        cohort: int | None = None,
        deviation: bool = False,
        ranks: Sequence[int] | None = None,
    ) -> "MetricTable":
        """Do as `table` does, without pandas: arrays, which turn into Arrow too. Only what the metric needs is read."""
        from jitter.analysis.metrics.tables import build_metric_table

        if metric not in METRICS:
            raise UsageError(f"no metric {metric!r}", f"there are {', '.join(METRICS)}")
        key, chosen = self.step(step, epoch), self.choose_cohort(cohort)
        return build_metric_table(self._measured(key, (metric,)), metric, chosen, deviation, ranks)

    def unmatched(self, step: int, epoch: int | None = None) -> "pd.DataFrame":
        """List the kernels of one step that have no partner in the reference: evidence in itself."""
        found: pd.DataFrame = self.unmatched_rows(step, epoch).to_pandas()
        return found

    def unmatched_rows(self, step: int, epoch: int | None = None) -> pa.Table:
        """Do as `unmatched` does, without pandas."""
        from jitter.analysis.metrics.tables import select_unmatched

        return select_unmatched(self.metrics(step, epoch).rows)

    def sql(self, text: str) -> pa.Table:
        """Answer one SELECT over the lake's relations (`jitter query --relations` lists them) with an Arrow table.

        Raises `UsageError` for what is no SELECT and what DuckDB refuses.
        """
        from jitter.query.run_query import query_table

        return query_table(self, text)

    def choose_cohort(self, cohort: int | None) -> int:
        """Check a cohort's number, or take the only one; raise `UsageError` naming them otherwise."""
        numbers = sorted(set(self.cohorts.values()))
        if cohort is None and len(numbers) == 1:
            return numbers[0]
        if cohort in numbers:
            return cohort
        members = self._lake_indices.members
        told = "; ".join(f"cohort {n}: {len(found)} ranks from {min(found)}" for n, found in members.items())
        what = "several cohorts run different kernels" if cohort is None else f"no cohort {cohort}"
        raise UsageError(f"{self.root}: {what} ({told})", "choose one with --cohort")

    def indices(self, key: StepKey) -> list[KernelIndex]:
        """Align each cohort's ranks in one step."""
        return self._lake_indices.of(key)

    def compact(self, steps: Sequence[StepKey]) -> None:
        """Bring the files of these steps together, if they are so many that who goes through all of them gains."""
        from jitter.lake.derived.compaction import compact_if_large

        compact_if_large(self.root, {key: len(self._by_step[key]) for key in steps}, self._progress)

    def _summaries(self, key: StepKey) -> "list[TtkeReading]":
        import pyarrow.compute as pc

        from jitter.analysis.metrics.ttke_reading import read_ttke

        measured = self.metrics_of(key)
        clocks = {
            rank: (found.record.file_digest, found.record.utc_offset_ns) for rank, found in self._by_step[key].items()
        }
        return [
            read_ttke(
                key,
                index.cohort,
                measured.rows.filter(pc.equal(measured.rows["cohort"], index.cohort)),
                measured.alignments[index.cohort],
                clocks,
                index.left_out,
            )
            for index in measured.indices
        ]
