"""The results of all jobs together: the targets, and where they were missed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tests.accuracy.scoring import Score


@dataclass(frozen=True)
class Target:
    """One figure and its bound."""

    name: str
    value: float | None
    """A fraction; None where no job told."""
    bound: float
    at_least: bool
    count: int
    """Of so many."""

    @property
    def met(self) -> bool:
        """Whether it is reached."""
        return self.value is not None and (self.value >= self.bound if self.at_least else self.value <= self.bound)

    def __str__(self) -> str:
        value = "  none" if self.value is None else f"{self.value:7.2%}"
        word = "at least" if self.at_least else "at most"
        return f"{self.name:44} {value}  {word} {self.bound:4.0%}  of {self.count:5}  {'' if self.met else 'MISSED'}"


def targets(scores: Sequence[Score]) -> list[Target]:
    """All that was promised."""
    verdicts = [verdict.right for one in scores for verdict in one.verdicts]
    healthy = [one.innocent for one in scores if one.is_healthy]
    off = what_if_errors(scores)
    waits = [sum(counts) for counts in zip(*(one.waits for one in scores), strict=True)]
    wrong, rules = (sum(counts) for counts in zip(*(one.halves for one in scores), strict=True))
    return [
        Target("culprit's ranks and cause right, faults over 2%", share(verdicts), 0.98, True, len(verdicts)),
        Target("no culprit in healthy jobs", share(healthy), 0.98, True, len(healthy)),
        Target("what-if off, median", median(off) if off else None, 0.05, False, len(off)),
        Target("what-if off, worst tenth begins at", _decile(off), 0.15, False, len(off)),
        Target("dependencies: precision", waits[0] / waits[1] if waits[1] else None, 0.99, True, waits[1]),
        Target("dependencies: recall", waits[2] / waits[3] if waits[3] else None, 0.99, True, waits[3]),
        Target("rules of odd steps that even ones keep", 1 - wrong / rules if rules else None, 1.0, True, rules),
        Target("jobs diagnosed", share([one.error is None for one in scores]), 1.0, True, len(scores)),
    ]


def what_if_errors(scores: Sequence[Score]) -> list[float]:
    """By what part the told gain of repairing the culprits is off, in jobs of which a costly fault was found."""
    return [
        abs(one.told_ns - one.gain_ns) / one.gain_ns
        for one in scores
        if any(verdict.right for verdict in one.verdicts) and one.gain_ns > 0
    ]


def share(outcomes: Sequence[bool]) -> float | None:
    """The part of them that is true."""
    return sum(outcomes) / len(outcomes) if outcomes else None


def _decile(values: Sequence[float]) -> float | None:
    """Nine of ten are at most this."""
    return sorted(values)[max(0, -(-len(values) * 9 // 10) - 1)] if values else None


_BY: Final[dict[str, Callable[[Score], str]]] = {
    "shape": lambda one: one.shape,
    "noise": lambda one: f"{one.noise:.1%}",
    "format": lambda one: one.form,
    "fault": lambda one: one.kind,
}


def table(scores: Sequence[Score]) -> list[str]:
    """The lines to print."""
    lines = [str(target) for target in targets(scores)]
    for name, key in _BY.items():
        lines += ["", f"{name:34} {'jobs':>5} {'faults':>7} {'right':>7} {'healthy':>8} {'silent':>7} {'off':>7}"]
        for value in sorted({key(one) for one in scores}):
            lines.append(_line(value, [one for one in scores if key(one) == value]))
    seconds = [sum(part) / len(scores) for part in zip(*(one.seconds for one in scores), strict=True)]
    told = "traces {:.2f}, ingest {:.2f}, diagnosis {:.2f}".format(*seconds)
    return [*lines, "", *_beside(scores), f"seconds a job: {told}"]


def _beside(scores: Sequence[Score]) -> list[str]:
    """Missed targets among the faults that a culprit names with just their ranks."""
    named = [verdict for one in scores for verdict in one.verdicts if verdict.told_ns is not None]
    steps = [verdict.steps_right for verdict in named if verdict.steps_right is not None]
    off = [abs((verdict.told_ns or 0) - verdict.gain_ns) / verdict.gain_ns for verdict in named]
    lines = [f"named with just their steps: {sum(steps)} of {len(steps)} faults"] if steps else []
    if off:
        lines.append(f"gain of each alone off: median {median(off):.1%}, worst tenth from {_decile(off):.1%}")
    return lines


def _line(value: str, scores: Sequence[Score]) -> str:
    verdicts = [verdict.right for one in scores for verdict in one.verdicts]
    healthy = [one.innocent for one in scores if one.is_healthy]
    off = what_if_errors(scores)
    error = f"{median(off):7.1%}" if off else f"{'-':>7}"
    return f"{value:34} {len(scores):5} {len(verdicts):7} {sum(verdicts):7} {len(healthy):8} {sum(healthy):7} {error}"


def misses(scores: Sequence[Score]) -> list[str]:
    """Every job that went wrong, with the command that shows it again."""
    lines = []
    for one in scores:
        said = list(_wrong(one))
        if said:
            lines += [f"python -m tests.accuracy --only {one.seed}", f"  {one.about}"]
            lines += [f"  {line}" for line in said]
    return lines


def _wrong(one: Score) -> list[str]:
    if one.error is not None:
        return [one.error]
    said = [f"missed: {verdict.kind}, costs {verdict.gain_ns} ns" for verdict in one.verdicts if not verdict.right]
    if not one.innocent:
        said.append("blames ranks that have no fault")
    if any(verdict.right for verdict in one.verdicts) and abs(one.told_ns - one.gain_ns) > 0.15 * one.gain_ns:
        said.append(f"what if: {one.told_ns} ns instead of {one.gain_ns}")
    if one.waits.right < one.waits.inferred or one.waits.seen < one.waits.binding:
        said.append(f"waits: {one.waits}")
    if one.halves[0]:
        said.append(f"rules of odd steps: even ones break {one.halves[0]} of {one.halves[1]}")
    return [*said, *(f"said: {words}" for words in one.found or ("nobody",))] if said else []
