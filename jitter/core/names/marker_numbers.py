"""Numbers in the text of a step's marker, besides step, epoch and rank: batch sizes, sequence lengths."""

import re
from functools import lru_cache
from typing import Final, NamedTuple

_NUMBER: Final = re.compile(
    r"(?:(?<![A-Za-z])(?P<name>[A-Za-z]{1,64}(?:[_ ][A-Za-z]{1,64}){0,15})[\s_:=#\-(\[]*)?(?P<value>\d+(?:\.\d+)?)"
)
"""Names are bounded: else the time would grow with the square of a text's length."""
_OF_STEP: Final = re.compile(
    r"(?i)(?:.*[_ ])?(?:\w*step|epoch|rank|iter(?:ation)?|it|update|batch(?:[_ ]?idx)?)(?:[_ ]num)?"
)


class MarkerNumber(NamedTuple):
    name: str
    """The word before it; `number_<N>` without one, N counting from 1."""
    value: float


@lru_cache(maxsize=65536)
def parse_marker_numbers(text: str, step: int, epoch: int | None, rank: int | None) -> tuple[MarkerNumber, ...]:
    """Return the numbers of a marker's text, without its step, epoch and rank.

    >>> [tuple(one) for one in parse_marker_numbers("epoch1_step2003-rank0-640_8", 2003, 1, 0)]
    [('number_1', 640.0), ('number_2', 8.0)]
    """
    numbers: list[MarkerNumber] = []
    excluded = {step, epoch, rank}
    for match in _NUMBER.finditer(text):
        name, value = match["name"], float(match["value"])
        if name is not None and value in excluded and _OF_STEP.fullmatch(name):
            continue
        numbers.append(MarkerNumber(name or f"number_{len(numbers) + 1}", value))
    return tuple(numbers)
