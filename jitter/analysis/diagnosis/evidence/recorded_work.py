"""Evidence from what step markers and annotations state: more work, checkpoints and validations."""

from collections.abc import Mapping, Sequence
from statistics import median_low

from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_ranks, format_time
from jitter.core.names.marker_numbers import parse_marker_numbers
from jitter.core.step_key import StepKey
from jitter.lake.records import RankStepRecord


def describe_marker_numbers(
    records: Mapping[StepKey, Mapping[int, RankStepRecord]], rank: int, steps: Sequence[StepKey]
) -> tuple[str, ...]:
    """Return a sentence on the first number of the markers that is larger than on all other ranks in all of `steps`.

    Nothing is returned where markers have different numbers of numbers, or other ranks did not record the steps.
    """
    larger: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for key in steps:
        numbers = {
            peer: parse_marker_numbers(step_record.step.marker or "", key.step, key.epoch, peer)
            for peer, step_record in records[key].items()
        }
        stated = numbers.pop(rank, ())
        if not stated or not numbers or any(len(peer_numbers) != len(stated) for peer_numbers in numbers.values()):
            return ()
        for at, number in enumerate(stated):
            others = [peer_numbers[at].value for peer_numbers in numbers.values()]
            if number.value >= THRESHOLDS.evidence.marker_ratio * max(others) and number.value > max(others):
                larger.setdefault((at, number.name), []).append((number.value, median_low(others)))
    always = [key for key, values in larger.items() if len(values) == len(steps)]
    if not always:
        return ()
    (_, name), values = always[0], larger[always[0]]
    own_value, other_value = values[0]
    what = name.replace("_", " ")
    return (f"its step markers state more work: {what} is {own_value:g} against {other_value:g} on the other ranks",)


SideWorkTimes = Mapping[str, Mapping[StepKey, Mapping[int, int]]]
"""By kind (`checkpoint`, `validation`) that occurs: its time, ns, by step and rank."""


def side_work_times(records: Mapping[StepKey, Mapping[int, RankStepRecord]]) -> SideWorkTimes:
    """Return the times of checkpoints and validations that the records of all steps and ranks state."""
    times_of: dict[str, dict[StepKey, dict[int, int]]] = {}
    for key, ranks in records.items():
        for rank, (_, step) in ranks.items():
            for kind, ns in (("checkpoint", step.checkpoint_ns), ("validation", step.validation_ns)):
                if ns is not None:
                    times_of.setdefault(kind, {}).setdefault(key, {})[rank] = ns
    return times_of


def describe_side_work(side_work: SideWorkTimes) -> list[str]:
    """Return a sentence on the steps that contain a checkpoint, and one on those with a validation."""
    sentences = []
    for kind, times in sorted(side_work.items()):
        shown = [str(key) for key in sorted(times)[: THRESHOLDS.sentences.max_named]]
        unlisted = len(times) - len(shown)
        listed = ", ".join(shown) + (f" and {format_count(unlisted, 'more step')}" if unlisted else "")
        ranks = sorted({rank for by_rank in times.values() for rank in by_rank})
        whose = format_ranks(ranks)
        longest = max(ns for by_rank in times.values() for ns in by_rank.values())
        sentences.append(f"A {kind} lies in {listed} ({whose}, up to {format_time(longest)}).")
    return sentences


def explain_by_side_work(
    side_work: SideWorkTimes, outlier: Outlier, steps: Sequence[StepKey], share: float
) -> tuple[str, ...]:
    """Return evidence that checkpoints or validations of the rank explain its excess in `steps`.

    A kind is named if its time, summed over the steps, is at least `share` of the outlier's excess per step.
    """
    sentences = []
    for kind, times in sorted(side_work.items()):
        times_of_rank = [times[key][outlier.rank] for key in steps if outlier.rank in times.get(key, {})]
        if times_of_rank and sum(times_of_rank) / len(steps) >= share * outlier.excess_ns / len(outlier.steps):
            sentences.append(
                f"a {kind} takes {format_time(sum(times_of_rank) / len(times_of_rank))} of its host's time in "
                f"{len(times_of_rank)} of {format_count(len(steps), 'step')}"
            )
    return tuple(sentences)
