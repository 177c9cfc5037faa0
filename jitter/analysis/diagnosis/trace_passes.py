"""The diagnosis of a run by its traces: what its jitter costs, and the passes that add what all ranks lose alike."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias

from jitter.analysis.detection.likely_communication import survey_communication
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.answer_cache import Answers
from jitter.analysis.diagnosis.diagnose import diagnose, limit_to_communication
from jitter.analysis.diagnosis.diagnosed_lake import DiagnosedLake
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.efficiency import find_bound
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.loss.all_ranks import choose_steps, find_losses_of_all_ranks
from jitter.analysis.diagnosis.loss.waterfall import LowerRungs, charge_network, judge_lower_rungs
from jitter.analysis.metrics.bandwidth_baseline import Baseline
from jitter.core.step_key import StepKey
from jitter.lake.records import RankStepRecord


@dataclass(frozen=True)
class TracedRun:
    """What the passes read of a run, besides the diagnosis so far."""

    analysis: RunAnalysis
    traces: DiagnosedLake
    benchmark: Baseline | None
    """Bandwidths that the job's network reaches, if they were measured."""

    @cached_property
    def window(self) -> tuple[int, int]:
        """The first of the steps that stand for the run, and the one after their last."""
        return choose_steps(self.analysis.lake)

    @cached_property
    def rungs(self) -> LowerRungs:
        """The rungs of the waterfall below `ranks`."""
        return judge_lower_rungs(self.analysis, *self.window)


TracePass: TypeAlias = Callable[[Diagnosis, TracedRun], Diagnosis]


def doubt_unnamed_communication(diagnosis: Diagnosis, run: TracedRun) -> Diagnosis:
    """Limit what is said where kernels communicate, or seem to, and nothing names them so."""
    return limit_to_communication(diagnosis, survey_communication(run.analysis.run))


def add_bound(diagnosis: Diagnosis, run: TracedRun) -> Diagnosis:
    """Add whether computation or communication takes the time of all ranks."""
    first, last = run.window
    bound = find_bound(run.traces.measure_collectives(run.analysis.keys[first:last]), run.benchmark)
    return diagnosis if bound is None else replace(diagnosis, efficiency=(*diagnosis.efficiency, bound))


def add_lower_rungs(diagnosis: Diagnosis, run: TracedRun) -> Diagnosis:
    """Add the rungs of the waterfall below `ranks`; what `network` loses is charged to the finding about it."""
    timed = diagnosis.timed_steps
    time_ns = sum(step.step_time_ns or 0 for step in timed)
    culprits = charge_network(diagnosis.culprits, run.rungs, len(timed), time_ns)
    return replace(diagnosis, culprits=culprits, lower_rungs=run.rungs.step_ns)


def add_losses_of_all_ranks(diagnosis: Diagnosis, run: TracedRun) -> Diagnosis:
    """Add what in the program costs the loss of the lower rungs."""
    timed = diagnosis.timed_steps
    losses = find_losses_of_all_ranks(
        run.analysis,
        run.rungs,
        [step.key for step in timed],
        sum(step.step_time_ns or 0 for step in timed),
        next(iter(diagnosis.efficiency), None),
        lacks_ranks=diagnosis.conclusion.unrecorded is not None,
    )
    return replace(diagnosis, of_all_ranks=losses)


PASSES: Final[tuple[TracePass, ...]] = (
    doubt_unnamed_communication,
    add_bound,
    add_lower_rungs,
    add_losses_of_all_ranks,
)
"""In their order, after `diagnose`: each returns the diagnosis so far with what it adds."""


def diagnose_traces(
    analysis: RunAnalysis,
    records: Mapping[StepKey, Mapping[int, RankStepRecord]],
    traces: DiagnosedLake,
    benchmark: Baseline | None,
) -> Answers:
    """Return the diagnosis of a run by its traces alone; `records` are those of each rank in each step.

    Raises `LakeError` if a file of the lake is missing or damaged.
    """

    def first_and_last(key: StepKey) -> tuple[int | None, int | None]:
        """The ranks of the least and the greatest time to kernel end at k*; of several cohorts, the costliest's."""
        readings = [reading for reading in traces.ttke_readings([key]) if reading.max_rank is not None]
        worst = max(readings, key=lambda reading: reading.magnitude_ns or 0.0, default=None)
        return (None, None) if worst is None else (worst.min_rank, worst.max_rank)

    run = TracedRun(analysis, traces, benchmark)
    diagnosis = diagnose(analysis, Evidence(analysis, records, traces.unread_ranks), first_and_last)
    for add in PASSES:
        diagnosis = add(diagnosis, run)
    qualities = tuple(step.quality for step in analysis.measured.of_steps)
    return Answers(diagnosis, qualities, analysis.run.team_of, analysis.run.matching.unpaired)
