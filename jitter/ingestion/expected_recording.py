"""Comparison of what was recorded with the number of ranks and steps that were expected."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from jitter.core.errors import UsageError
from jitter.core.formatting import format_count, format_numbers, format_ranks
from jitter.core.step_key import StepKey
from jitter.lake.records import SourceRecord

_FORM: Final = re.compile(r"(?P<ranks>[0-9]{1,7})[x×](?P<steps>[0-9]{1,7})")
_MOST: Final = 1_000_000
_SHOWN: Final = 4
"""Sets of ranks that lack the same steps which the sentence shows."""


class Expectation(NamedTuple):
    """Numbers of ranks, from 0 on, and of steps that each of them should have recorded."""

    ranks: int
    steps: int


@dataclass(frozen=True)
class MissingSteps:
    """What a recording lacks of an expectation. Only complete steps count as recorded."""

    expected: Expectation
    ranks: tuple[int, ...]
    """Ranks without a complete step."""
    steps: Mapping[StepKey, tuple[int, ...]]
    """The other ranks that lack a step, by step: of the expected number of steps, those that most ranks recorded."""
    recorded: tuple[StepKey, ...]
    """These steps, in order."""

    @property
    def absent_steps(self) -> int:
        """Return the number of expected steps that no rank recorded."""
        return self.expected.steps - len(self.recorded)

    def __bool__(self) -> bool:
        return bool(self.ranks or self.steps or self.absent_steps)

    def __str__(self) -> str:
        """Return one sentence for people."""
        shape = f"{format_count(self.expected.ranks, 'rank')} x {format_count(self.expected.steps, 'step')}"
        if not self:
            return f"all of the expected {shape} are recorded ({_describe_steps(self.recorded)})"
        parts = []
        if self.ranks:
            parts.append(f"{format_ranks(self.ranks)} ({len(self.ranks):,} of {self.expected.ranks:,})")
        by_ranks: dict[tuple[int, ...], list[StepKey]] = defaultdict(list)
        for key, ranks in self.steps.items():
            by_ranks[ranks].append(key)
        groups = [f"{_describe_steps(keys)} on {format_ranks(ranks)}" for ranks, keys in by_ranks.items()]
        parts += groups[:_SHOWN]
        if len(groups) > _SHOWN:
            others = sum(len(keys) for keys in list(by_ranks.values())[_SHOWN:])
            parts.append(f"{format_count(others, 'more step')} on other ranks")
        if self.absent_steps:
            has = f" (recorded: {_describe_steps(self.recorded)})" if self.recorded else ""
            parts.append(f"{self.absent_steps:,} of {format_count(self.expected.steps, 'step')} on every rank{has}")
        return f"of the expected {shape}, missing: {'; '.join(parts)}"


def parse_expectation(text: str) -> Expectation:
    """Return the expectation in a text such as `512x10`: ranks x steps. Raises `UsageError` for others."""
    match = _FORM.fullmatch(text.strip())
    numbers = (0, 0) if match is None else (int(match["ranks"]), int(match["steps"]))
    if not all(0 < number <= _MOST for number in numbers):
        raise UsageError(f"--expect: {text!r} states no number of ranks and steps", "write it like 512x10")
    return Expectation(*numbers)


def find_missing(records: Iterable[SourceRecord], expected: Expectation) -> MissingSteps:
    """Return what the records lack of the expected ranks and steps."""
    held: dict[StepKey, set[int]] = defaultdict(set)
    for record in records:
        if record.rank is not None and record.rank < expected.ranks:
            for step in record.steps:
                if not step.cut:
                    held[step.key].add(record.rank)
    present = set().union(*held.values())
    common = sorted(held, key=lambda key: (-len(held[key]), key.order))[: expected.steps]
    common.sort(key=lambda key: key.order)
    lacking = {key: tuple(sorted(present - held[key])) for key in common}
    return MissingSteps(
        expected,
        tuple(rank for rank in range(expected.ranks) if rank not in present),
        {key: ranks for key, ranks in lacking.items() if ranks},
        tuple(common),
    )


def _describe_steps(keys: Iterable[StepKey]) -> str:
    by_epoch: dict[int | None, list[int]] = defaultdict(list)
    for key in keys:
        by_epoch[key.epoch].append(key.step)
    return ", ".join(
        f"{'' if epoch is None else f'epoch {epoch} '}step{'s' if len(steps) > 1 else ''} {format_numbers(steps)}"
        for epoch, steps in by_epoch.items()
    )
