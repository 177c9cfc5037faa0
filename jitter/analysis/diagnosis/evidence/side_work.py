"""Checkpoints and validations inside steps: work beside the training that makes a step long."""

from collections.abc import Mapping, Sequence

from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_ranks, format_time
from jitter.core.step_key import StepKey
from jitter.lake.records import RankStepRecord

SideWorkTimes = Mapping[str, Mapping[StepKey, Mapping[int, int]]]
"""By kind (`checkpoint`, `validation`) that occurs: its time, ns, by step and rank."""


def side_work_times(records: Mapping[StepKey, Mapping[int, RankStepRecord]]) -> SideWorkTimes:
    """Return the times of checkpoints and validations that the records of all steps and ranks state."""
    found: dict[str, dict[StepKey, dict[int, int]]] = {}
    for key, ranks in records.items():
        for rank, (_, step) in ranks.items():
            for kind, ns in (("checkpoint", step.checkpoint_ns), ("validation", step.validation_ns)):
                if ns is not None:
                    found.setdefault(kind, {}).setdefault(key, {})[rank] = ns
    return found


def describe_side_work(side_work: SideWorkTimes) -> list[str]:
    """Return a sentence on the steps that contain a checkpoint, and one on those with a validation."""
    found = []
    for kind, times in sorted(side_work.items()):
        shown = [str(key) for key in sorted(times)[: THRESHOLDS.sentences.max_listed]]
        more = len(times) - len(shown)
        listed = ", ".join(shown) + (f" and {format_count(more, 'more step')}" if more else "")
        ranks = sorted({rank for own in times.values() for rank in own})
        whose = format_ranks(ranks)
        longest = max(ns for own in times.values() for ns in own.values())
        found.append(f"A {kind} lies in {listed} ({whose}, up to {format_time(longest)}).")
    return found


def explain_by_side_work(
    side_work: SideWorkTimes, outlier: Outlier, steps: Sequence[StepKey], share: float
) -> tuple[str, ...]:
    """Return evidence that checkpoints or validations of the rank explain its excess in `steps`.

    A kind is named if its time, summed over the steps, is at least `share` of the outlier's excess per step.
    """
    told = []
    for kind, times in sorted(side_work.items()):
        own = [times[key][outlier.rank] for key in steps if outlier.rank in times.get(key, {})]
        if own and sum(own) / len(steps) >= share * outlier.excess_ns / len(outlier.steps):
            told.append(
                f"a {kind} takes {format_time(sum(own) / len(own))} of its host's time in "
                f"{len(own)} of {format_count(len(steps), 'step')}"
            )
    return tuple(told)
