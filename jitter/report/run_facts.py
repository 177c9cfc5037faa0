"""The run in figures: what went in, what is missing, what was left out, how ranks were aligned."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jitter.analysis import Lake
from jitter.records import SourceRecord
from jitter.run import RunSummary
from jitter.steps import StepKey
from jitter.summary import StepSummary


@dataclass(frozen=True)
class Hole:
    """Ranks that all lack the same steps."""

    ranks: tuple[int, ...]
    steps: tuple[StepKey, ...]


@dataclass(frozen=True)
class Problem:
    """What is wrong with sources, said once; `first_file` is one of them."""

    text: str
    sources: int
    first_file: str


@dataclass(frozen=True)
class Alignment:
    """How the steps' ranks were aligned. `steps` counts steps (one a cohort) by method."""

    steps: dict[str, int]
    uncertainty_ns: int | None
    """The largest over steps; None where no step tells it."""
    unsynchronised: int


@dataclass(frozen=True)
class RunFacts:
    """Counts over the steps in the report; times in ns."""

    ranks: int
    steps: int
    steps_left_out: int
    """By --steps."""
    hosts: tuple[str, ...]
    ranks_without_host: int
    cohorts: dict[int, tuple[int, ...]]
    kernels: int
    """Kernels of all ranks and steps."""
    kernels_per_step: tuple[int, int]
    """Least and most over steps and cohorts."""
    formats: tuple[str, ...]
    holes: tuple[Hole, ...]
    cut: int
    """Recordings of a rank's step that end before it does, or lost kernels."""
    left_out: int
    """Of these, so short that they are in no figure."""
    unmatched_kernels: int
    unmatched_ns: int
    outside_steps: int
    before_capture: int
    without_launches: int
    """Ranks whose trace has no launches."""
    problems: tuple[Problem, ...]
    refused: tuple[Problem, ...]
    alignment: Alignment

    @property
    def whole(self) -> bool:
        """Whether every rank has every step, whole."""
        return not (self.holes or self.cut or self.left_out)


def run_facts(lake: Lake, run: RunSummary, steps: Sequence[StepKey]) -> RunFacts:
    """Count what the report is made from. `steps` are those asked for; `run` sums them up."""
    chosen = set(steps)
    held: dict[int, set[StepKey]] = {}
    records = [(source, step) for source in lake.sources for step in source.steps if step.key in chosen]
    for source, step in records:
        assert source.rank is not None
        held.setdefault(source.rank, set()).add(step.key)
    every = [summary for step in run.steps for summary in step.cohorts]
    summaries = [summary for summary in every if summary.ranks]
    counts = [summary.kernels for summary in summaries]
    hosts = {host for host in lake.hosts.values() if host is not None}
    return RunFacts(
        ranks=len(lake.ranks),
        steps=len(steps),
        steps_left_out=len(lake.steps) - len(steps),
        hosts=tuple(sorted(hosts)),
        ranks_without_host=sum(lake.hosts.get(rank) is None for rank in lake.ranks),
        cohorts=_members(lake.cohorts),
        kernels=sum(step.kernels for _, step in records),
        kernels_per_step=(min(counts, default=0), max(counts, default=0)),
        formats=_formats(lake.sources),
        holes=_holes(lake.ranks, held, steps),
        cut=sum(step.cut for _, step in records),
        left_out=sum(len(summary.left_out) for summary in every),
        unmatched_kernels=sum(summary.unmatched_kernels for summary in summaries),
        unmatched_ns=sum(summary.unmatched_ns for summary in summaries),
        outside_steps=sum(source.outside_steps for source in lake.sources),
        before_capture=sum(source.before_capture for source in lake.sources),
        without_launches=len({source.rank for source in lake.sources if not source.has_launches}),
        problems=_problems(lake.sources),
        refused=_problems(lake.refused),
        alignment=_alignment(summaries),
    )


def _members(cohorts: dict[int, int]) -> dict[int, tuple[int, ...]]:
    return {n: tuple(rank for rank, its in cohorts.items() if its == n) for n in sorted(set(cohorts.values()))}


def _formats(sources: Iterable[SourceRecord]) -> tuple[str, ...]:
    names = {f"{source.format} {source.profiler_version or ''}".strip() for source in sources}
    return tuple(sorted(names))


def _holes(ranks: Sequence[int], held: dict[int, set[StepKey]], steps: Sequence[StepKey]) -> tuple[Hole, ...]:
    lacking: dict[tuple[StepKey, ...], list[int]] = {}
    for rank in ranks:
        missing = tuple(step for step in steps if step not in held.get(rank, set()))
        if missing:
            lacking.setdefault(missing, []).append(rank)
    return tuple(Hole(tuple(found), missing) for missing, found in lacking.items())


def _problems(sources: Iterable[SourceRecord]) -> tuple[Problem, ...]:
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for source in sorted(sources, key=lambda s: (s.rank is None, s.rank or 0, s.file)):
        for text in source.problems:
            counts[text] += 1
            first.setdefault(text, "/".join(Path(source.file).parts[-2:]))  # enough to find it, on any machine
    return tuple(Problem(text, count, first[text]) for text, count in counts.items())


def _alignment(summaries: Sequence[StepSummary]) -> Alignment:
    moments = [summary.alignment for summary in summaries if summary.ranks > 1]
    known = [moment.uncertainty_ns for moment in moments if moment.uncertainty_ns is not None]
    return Alignment(
        steps=dict(Counter(moment.method for moment in moments)),
        uncertainty_ns=max(known, default=None),
        unsynchronised=sum(moment.unsynchronised for moment in moments),
    )
