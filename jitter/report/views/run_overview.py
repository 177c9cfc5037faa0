"""The run in figures: what went in, what is missing, what was left out, how ranks were aligned."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jitter.analysis.diagnosis.answer_cache import Answers
from jitter.analysis.metrics.clock_alignment import align_by_wall_clock
from jitter.api import Lake
from jitter.core.step_key import StepKey
from jitter.lake.records import SourceRecord


@dataclass(frozen=True)
class MissingSteps:
    """Ranks that all lack the same steps."""

    ranks: tuple[int, ...]
    steps: tuple[StepKey, ...]


@dataclass(frozen=True)
class SourceProblem:
    """What is wrong with sources, said once; `first_file` is one of them."""

    text: str
    sources: int
    first_file: str


@dataclass(frozen=True)
class AlignmentSummary:
    """How the steps' ranks were aligned. `steps` counts steps (one a cohort) by method."""

    steps: dict[str, int]
    uncertainty_ns: int | None
    """The largest over steps; None where no step tells it."""
    unsynchronised: int
    """Collectives of one rank's step whose partners are unknown."""


@dataclass(frozen=True)
class RunOverview:
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
    holes: tuple[MissingSteps, ...]
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
    negative_latencies: int
    """Kernels that start before their own launch, which cannot be."""
    problems: tuple[SourceProblem, ...]
    refused: tuple[SourceProblem, ...]
    alignment: AlignmentSummary

    @property
    def whole(self) -> bool:
        """Whether every rank has every step, whole."""
        return not (self.holes or self.cut or self.left_out)


def build_run_overview(lake: Lake, steps: Sequence[StepKey]) -> RunOverview:
    """Count what the report is made from. `steps` are those asked for."""
    chosen = set(steps)
    held: dict[int, set[StepKey]] = {}
    records = [(source, step) for source in lake.sources for step in source.steps if step.key in chosen]
    for source, step in records:
        assert source.rank is not None
        held.setdefault(source.rank, set()).add(step.key)
    answers = lake.results(steps)
    qualities = answers.qualities
    counts = [kernels for quality in qualities for kernels in quality.kernels]
    hosts = {host for host in lake.hosts.values() if host is not None}
    return RunOverview(
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
        left_out=sum(quality.left_out for quality in qualities),
        unmatched_kernels=sum(quality.unmatched_kernels for quality in qualities),
        unmatched_ns=sum(quality.unmatched_ns for quality in qualities),
        outside_steps=sum(source.outside_steps for source in lake.sources),
        before_capture=sum(source.before_capture for source in lake.sources),
        without_launches=len({source.rank for source in lake.sources if not source.has_launches}),
        negative_latencies=sum(quality.negative_latencies for quality in qualities),
        problems=_problems(lake.sources),
        refused=_problems(lake.rejected),
        alignment=_alignment(lake, answers),
    )


def _members(cohorts: dict[int, int]) -> dict[int, tuple[int, ...]]:
    return {n: tuple(rank for rank, its in cohorts.items() if its == n) for n in sorted(set(cohorts.values()))}


def _formats(sources: Iterable[SourceRecord]) -> tuple[str, ...]:
    names = {f"{source.format} {source.profiler_version or ''}".strip() for source in sources}
    return tuple(sorted(names))


def _holes(ranks: Sequence[int], held: dict[int, set[StepKey]], steps: Sequence[StepKey]) -> tuple[MissingSteps, ...]:
    lacking: dict[tuple[StepKey, ...], list[int]] = {}
    for rank in ranks:
        missing = tuple(step for step in steps if step not in held.get(rank, set()))
        if missing:
            lacking.setdefault(missing, []).append(rank)
    return tuple(MissingSteps(tuple(found), missing) for missing, found in lacking.items())


def _problems(sources: Iterable[SourceRecord]) -> tuple[SourceProblem, ...]:
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for source in sorted(sources, key=lambda s: (s.rank is None, s.rank or 0, s.file)):
        for text in source.problems:
            counts[text] += 1
            first.setdefault(text, "/".join(Path(source.file).parts[-2:]))  # enough to find it, on any machine
    return tuple(SourceProblem(text, count, first[text]) for text, count in counts.items())


def _alignment(lake: Lake, answers: Answers) -> AlignmentSummary:
    """How steps were aligned: at a collective where all of a team leave one together, else by recorded clocks."""
    offsets = {source.rank: source.utc_offset_ns for source in lake.sources if source.rank is not None}
    clocks = {source.rank: source.file_digest for source in lake.sources if source.rank is not None}
    methods: Counter[str] = Counter()
    known = [q.uncertainty_ns for q in answers.qualities if q.uncertainty_ns is not None]
    for quality in answers.qualities:
        for team, aligned in quality.aligned.items():
            ranks = [rank for rank, its in answers.team_of.items() if its == team]
            clock = align_by_wall_clock({rank: offsets[rank] for rank in ranks}, {rank: clocks[rank] for rank in ranks})
            methods["collective" if aligned else "none" if clock is None else clock.method] += 1
            if not aligned and clock is not None and clock.uncertainty_ns is not None:
                known.append(clock.uncertainty_ns)
    return AlignmentSummary(dict(methods), max(known, default=None), answers.unpaired)
