"""Counts over the run: what was recorded, what is missing or excluded, how the ranks were aligned."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jitter.analysis.diagnosis.answer_cache import Answers
from jitter.analysis.metrics.clock_alignment import align_by_wall_clock
from jitter.analysis.metrics.recorded_sizes import describe_disagreements
from jitter.api import Lake
from jitter.core.grouping import by_key
from jitter.core.step_key import StepKey
from jitter.lake.records import SourceRecord, StepRecord


@dataclass(frozen=True)
class StepHole:
    """Ranks that lack the same steps."""

    ranks: tuple[int, ...]
    steps: tuple[StepKey, ...]


@dataclass(frozen=True)
class SourceProblem:
    """A problem that `sources` sources share; `first_file` is one of them."""

    text: str
    sources: int
    first_file: str


@dataclass(frozen=True)
class AlignmentSummary:
    """Alignment of the ranks' clocks. `steps` counts the steps of each peer group by method."""

    steps: dict[str, int]
    uncertainty_ns: int | None
    """Largest uncertainty over the steps; None if unknown."""
    unsynchronised: int
    """Collectives without a recorded group that do not end together, counted once per rank and step."""


@dataclass(frozen=True)
class RunOverview:
    """Counts over the steps of the report; times in ns."""

    lake: Path
    ranks: int
    steps: int
    timed_steps: int
    """Those whose time is known: when the first of consecutive steps began is not."""
    steps_left_out: int
    """Steps that `--steps` leaves out."""
    hosts: tuple[str, ...]
    ranks_without_host: int
    cohorts: Mapping[int, Collection[int]]
    kernels: int
    """Kernels over all ranks and steps."""
    kernels_per_step: tuple[int, int]
    """Smallest and largest number over steps and cohorts."""
    formats: tuple[str, ...]
    holes: tuple[StepHole, ...]
    cut: int
    """Incomplete recordings of a step by a rank: they end early or lost kernels."""
    left_out: int
    """Those of them that are excluded from all results."""
    unmatched_kernels: int
    unmatched_ns: int
    outside_steps: int
    before_capture: int
    without_launches: int
    """Ranks without recorded launches."""
    negative_latencies: int
    """Kernels that start before their own launch: a sign of disagreeing clocks."""
    problems: tuple[SourceProblem, ...]
    refused: tuple[SourceProblem, ...]
    damaged: tuple[str, ...]
    """A sentence for each recording or log that is left out, because a file of its in the lake is damaged."""
    alignment: AlignmentSummary

    @property
    def whole(self) -> bool:
        """Whether all ranks of the lake recorded all steps completely."""
        return not (self.holes or self.cut or self.left_out or self.damaged)


def build_run_overview(lake: Lake, steps: Sequence[StepKey]) -> RunOverview:
    """Count over these steps of the lake."""
    chosen = set(steps)
    held: dict[int, set[tuple[int | None, int]]] = {}
    records = list[StepRecord]()
    for source in lake.sources:
        assert source.rank is not None
        # equal to their keys, and made in a third of the time
        named = {(step.epoch, step.step): step for step in source.steps if (step.epoch, step.step) in chosen}
        held.setdefault(source.rank, set()).update(named)
        records += named.values()
    answers = lake.results(steps)
    qualities = answers.qualities
    counts = [kernels for quality in qualities for kernels in quality.kernels]
    formats = {source.profiler for source in lake.sources}
    disagreements = describe_disagreements(lake.recorded_sizes.disagreements())
    of_logs = [(log.file, text) for log in lake.logs for text in log.problems]
    of_logs += [(file, text) for file, _, text in disagreements]
    return RunOverview(
        lake=lake.root,
        ranks=len(lake.ranks),
        steps=len(steps),
        timed_steps=sum(step.step_time_ns is not None for step in answers.diagnosis.steps),
        steps_left_out=len(lake.step_keys) - len(steps),
        hosts=lake.host_names,
        ranks_without_host=sum(lake.hosts.get(rank) is None for rank in lake.ranks),
        cohorts=lake.cohort_members,
        kernels=sum(step.kernels for step in records),
        kernels_per_step=(min(counts, default=0), max(counts, default=0)),
        formats=tuple(sorted(formats)),
        holes=_holes(lake.ranks, held, steps),
        cut=sum(step.cut for step in records),
        left_out=sum(quality.left_out for quality in qualities),
        unmatched_kernels=sum(quality.unmatched_kernels for quality in qualities),
        unmatched_ns=sum(quality.unmatched_ns for quality in qualities),
        outside_steps=sum(source.outside_steps for source in lake.sources),
        before_capture=sum(source.before_capture for source in lake.sources),
        without_launches=len({source.rank for source in lake.sources if not source.has_launches}),
        negative_latencies=sum(quality.negative_latencies for quality in qualities),
        problems=_problems([*_source_problems(lake.sources), *of_logs]),
        refused=_problems(_source_problems(lake.rejected)),
        damaged=tuple(lake.damaged),
        alignment=_alignment(lake, answers),
    )


def _holes(
    ranks: Sequence[int], held: Mapping[int, Collection[object]], steps: Sequence[StepKey]
) -> tuple[StepHole, ...]:
    lacking = by_key((tuple(step for step in steps if step not in held.get(rank, ())), rank) for rank in ranks)
    return tuple(StepHole(tuple(lacking_ranks), missing) for missing, lacking_ranks in lacking.items() if missing)


def _source_problems(sources: Iterable[SourceRecord]) -> list[tuple[str, str]]:
    """Return (file, problem) of recordings, by rank; the problem without the path that it may begin with.

    What the overview counts over all recordings is left out.
    """
    problems = []
    for source in sorted(sources, key=lambda s: (s.rank is None, s.rank or 0, s.file)):
        for text in source.problems:
            path, _, rest = text.partition(": ")  # a link may spell the path in another way
            has_path = rest and Path(path).name == Path(source.file).name
            if text not in source.describe_kernels():
                problems.append((source.file, rest if has_path else text))
    return problems


def _problems(problems: Iterable[tuple[str, str]]) -> tuple[SourceProblem, ...]:
    """Count the sources of each problem, given as (file, problem)."""
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for file, text in problems:
        counts[text] += 1
        first.setdefault(text, "/".join(Path(file).parts[-2:]))  # the path differs between machines
    return tuple(SourceProblem(text, count, first[text]) for text, count in counts.items())


def _alignment(lake: Lake, answers: Answers) -> AlignmentSummary:
    """Count the alignment methods: a collective that all ranks of a peer group leave together, else recorded clocks."""
    offsets = {source.rank: source.utc_offset_ns for source in lake.sources if source.rank is not None}
    clocks = {source.rank: source.file_digest for source in lake.sources if source.rank is not None}
    methods: Counter[str] = Counter()
    uncertainties_ns = [q.uncertainty_ns for q in answers.qualities if q.uncertainty_ns is not None]
    for quality in answers.qualities:
        for team, aligned in quality.aligned.items():
            ranks = [rank for rank, rank_team in answers.team_of.items() if rank_team == team]
            clock = align_by_wall_clock({rank: offsets[rank] for rank in ranks}, {rank: clocks[rank] for rank in ranks})
            methods["collective" if aligned else "none" if clock is None else clock.method] += 1
            if not aligned and clock is not None and clock.uncertainty_ns is not None:
                uncertainties_ns.append(clock.uncertainty_ns)
    return AlignmentSummary(dict(methods), max(uncertainties_ns, default=None), answers.unpaired)
