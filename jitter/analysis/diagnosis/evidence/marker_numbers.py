"""Evidence from the numbers in step markers: a rank that states more work than all others in its slow steps."""

from collections.abc import Mapping, Sequence
from statistics import median_low

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.marker_numbers import parse_marker_numbers
from jitter.core.step_key import StepKey
from jitter.lake.records import RankStepRecord


def describe_marker_numbers(
    records: Mapping[StepKey, Mapping[int, RankStepRecord]], rank: int, steps: Sequence[StepKey]
) -> tuple[str, ...]:
    """Return a sentence on the first number of the markers that is larger than on all other ranks in all of `steps`.

    Nothing is returned where markers have different numbers of numbers, or other ranks did not record the steps.
    """
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for key in steps:
        numbers = {
            other: parse_marker_numbers(one.step.marker or "", key.step, key.epoch, other)
            for other, one in records[key].items()
        }
        own = numbers.pop(rank, ())
        if not own or not numbers or any(len(one) != len(own) for one in numbers.values()):
            return ()
        for at, number in enumerate(own):
            others = [one[at].value for one in numbers.values()]
            if number.value >= THRESHOLDS.evidence.marker_ratio * max(others) and number.value > max(others):
                found.setdefault((at, number.name), []).append((number.value, median_low(others)))
    always = [key for key, values in found.items() if len(values) == len(steps)]
    if not always:
        return ()
    (_, name), values = always[0], found[always[0]]
    own_value, other_value = values[0]
    what = name.replace("_", " ")
    return (f"its step markers state more work: {what} is {own_value:g} against {other_value:g} on the other ranks",)
