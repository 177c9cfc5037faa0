"""Compare documents of runs: all that changed as plain data (JSON keys: `jitter explain compare`), and the verdict."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from jitter.analysis.account.losses import LossClass
from jitter.analysis.diagnosis.loss.split import LOSS_CLASS_INFO
from jitter.analysis.diagnosis.verdict import name_side
from jitter.analysis.thresholds import THRESHOLDS
from jitter.comparison.document import CollectiveEntry, CulpritEntry, Document, Environment, HostEntry, is_of_size
from jitter.comparison.kernel_changes import KernelChange, KernelComparison, compare_kernels
from jitter.comparison.log_tables import (
    BandwidthChange,
    ThroughputChange,
    compare_bandwidths,
    compare_throughputs,
    describe_logs,
)
from jitter.comparison.rows import BASE, NEW, AlignedRuns, Row, TeamPair, charge_difference, pair_teams
from jitter.comparison.significance import MIN_COMPARED, StepEffect, find_odd_runs, measure_effect
from jitter.core.formatting import (
    abbreviate,
    format_count,
    format_json,
    format_pace,
    format_percent,
    format_ranks,
    format_time,
)
from jitter.core.grouping import by_key
from jitter.core.names.kernels import is_collective, short_name
from jitter.core.numeric.arrays import Floats
from jitter.core.numeric.stats import middle_value

COMPARISON_SCHEMA_VERSION: Final = 3
_MOST_COSTS: Final = 200
Verdict = Literal["slower", "faster", "same", "incomparable"]


class Side(msgspec.Struct, frozen=True):
    """The base, or the new run."""

    label: str
    """Of several bases: all labels."""
    runs: int
    ranks: int
    hosts: int
    steps: int
    """Of several bases: of all of them."""
    formats: tuple[str, ...]
    has_unrecorded_ranks: bool
    """Whether the job had ranks without a recording."""
    left_out: tuple[str, ...] = ()
    """Labels of bases that are not alike the others, and no part of this."""


class PartChange(msgspec.Struct, frozen=True):
    """What one class of time adds to the new run's step, ns; all parts add up to the difference of the step times."""

    part: str
    """The label of a `LossClass`."""
    usual_ns: int
    """Of all ranks alike: between the usual steps, and of the median steps above them."""
    jitter_ns: int
    """Of ranks that are later than others, and transfers above their usual time."""
    difference_ns: int


class Cost(msgspec.Struct, frozen=True):
    """What one place adds to the new run's step, ns: the rows of one class, rank and kernel."""

    rung: str
    loss_class: str = msgspec.field(name="class")
    rank: int | None
    kernel_name: str | None
    new_kernel_name: str | None
    loss_ns: float


class HostChange(msgspec.Struct, frozen=True):
    """What operations of a name take of the usual host's time between launches, ns a step."""

    name: str
    is_start: bool
    """Whether they lie before the launch of the first kernel, after the last launch of the step before; else later."""
    base_ns: int
    new_ns: int

    @property
    def difference_ns(self) -> int:
        return self.new_ns - self.base_ns


class CollectiveChange(msgspec.Struct, frozen=True):
    """Collectives of one operation, size and group size; what a run lacks or does not tell is None."""

    collective: str | None
    size_bytes: int | None
    dtype: str | None
    group_size: int | None
    hosts: str | None
    base_calls_per_step: float | None
    new_calls_per_step: float | None
    base_busbw: float | None
    new_busbw: float | None
    ratio: float | None
    """New ÷ base bus bandwidth."""
    base_wait_us: float | None
    new_wait_us: float | None


class RankChange(msgspec.Struct, frozen=True):
    """What a usual step loses to a rank, ns; None where a run lacks the rank or cannot tell."""

    rank: int
    host: str | None
    base_ns: int | None
    new_ns: int | None
    difference_ns: int | None
    """None where neither is known."""


class CulpritChange(msgspec.Struct, frozen=True):
    """A finding of one of the runs or both."""

    entry: CulpritEntry
    """As the new run has it; of the base where the new run lacks it."""
    difference_ns: int | None
    """What its ranks and class add to the new run's step; None where it is neither of jitter nor of a stage."""


class CulpritChanges(msgspec.Struct, frozen=True):
    """Findings of the new run alone, of the base alone, and of both."""

    appeared: tuple[CulpritChange, ...]
    went: tuple[CulpritChange, ...]
    stayed: tuple[CulpritChange, ...]


class Comparison(msgspec.Struct, frozen=True):
    """The differences between the base and the new run. Times in ns a step."""

    verdict: Verdict
    """Of the median step; of the mean step where the median tells no difference."""
    reasons: tuple[str, ...]
    """Why the runs cannot be compared; empty where they can."""
    notes: tuple[str, ...]
    """How the two runs differ as recordings, and what limits the comparison."""
    base: Side
    new: Side
    effect: StepEffect | None
    """On the median step; None where the runs cannot be compared."""
    mean_effect: StepEffect | None
    """On the mean step, to which pauses in few steps add."""
    base_loss: float | None
    """Part of the run's time that jitter costs."""
    new_loss: float | None
    split: tuple[PartChange, ...]
    """Empty where a run has no usual step."""
    costs: tuple[Cost, ...]
    """The rows, the largest first; they add up to the difference of the step times."""
    hosts: tuple[HostChange, ...]
    """The largest change first; empty where a run's are unknown."""
    kernels: KernelComparison | None
    collectives: tuple[CollectiveChange, ...]
    ranks: tuple[RankChange, ...]
    culprits: CulpritChanges
    environment: Mapping[str, Environment] | None
    """That of `base` and that of `new` where they differ."""
    throughput: tuple[ThroughputChange, ...]
    """The trainings' speed, by the logs."""
    bandwidths: tuple[BandwidthChange, ...] = ()
    """What benchmarks measured in both runs."""

    @property
    def sentence(self) -> str:
        """The verdict with its size, its interval and what makes it."""
        return write_sentence(self)


def render_comparison_json(comparison: Comparison) -> str:
    """Return the document as text, one value per line."""
    return format_json(comparison_document(comparison))


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data; times in whole ns."""
    effect, kernels = comparison.effect, comparison.kernels
    document = {
        "schema_version": COMPARISON_SCHEMA_VERSION,
        **{name: getattr(comparison, name) for name in ("verdict", "sentence", "reasons", "notes", "base", "new")},
        "step_time": effect
        and {
            **_effect_values(effect),
            "noise_fraction": effect.noise_fraction,
            "p": effect.p,
            "mean": comparison.mean_effect and _effect_values(comparison.mean_effect),
        },
        "loss": {"base_fraction": comparison.base_loss, "new_fraction": comparison.new_loss},
        "split": comparison.split,
        "costs": [
            msgspec.structs.replace(cost, loss_ns=round(cost.loss_ns)) for cost in comparison.costs[:_MOST_COSTS]
        ],
        "hosts": comparison.hosts,
        "kernel_names": kernels and {"matched": kernels.names_matched, "base": kernels.names},
        "kernels": kernels.changes if kernels else [],
        "launch_shapes": kernels.shapes if kernels else [],
        "collectives": comparison.collectives,
        "ranks": comparison.ranks,
        "culprits": {
            kind: list(map(_culprit_document, getattr(comparison.culprits, kind)))
            for kind in CulpritChanges.__struct_fields__
        },
        "environment": comparison.environment,
        "throughput": comparison.throughput,
        "bandwidths": comparison.bandwidths,
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return plain


def _effect_values(effect: StepEffect) -> dict[str, Any]:
    times_ns = {name: round(getattr(effect, name)) for name in ("base_ns", "new_ns", "difference_ns")}
    return {**times_ns, "fraction": effect.fraction, "interval_ns": [round(effect.low_ns), round(effect.high_ns)]}


def _culprit_document(change: CulpritChange) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(change.entry)
    steps, of = fields.pop("steps"), fields.pop("of_steps")
    return {**fields, "seen": {"steps": steps, "of": of}, "difference_ns": change.difference_ns}


_NUMBER: Final = re.compile(r"\d[\d,.]*")
_HAS_USUAL_STEP: Final = 3
"""Version of the document."""
_UNITS: Final = {True: "tokens or requests", False: "launched threads"}
"""Of a step's size: whether markers state it."""
_SAME_PERIOD: Final = 1.25
"""Ratio of kernels per step up to which steps found without a common marker are taken for equal periods."""
_MIN_COST: Final = 0.005
"""Part of a step; a kernel that takes no longer on most ranks has changed if it costs more."""


def compare_documents(bases: Sequence[Document], new: Document) -> Comparison:
    """Compare a run with one or several bases.

    Step times are compared with those of all bases but odd ones. Kernels, collectives, ranks and culprits are compared
    with those of the base whose step time is the median.
    """
    bases, odd = _leave_out_odd(bases)
    timed = sorted((base for base in bases if len(step_times(base))), key=lambda base: middle_value(step_times(base)))
    base = timed[(len(timed) - 1) // 2] if timed else bases[-1]
    ordered = [base, *(document for document in bases if document is not base)]
    pairs = pair_teams(base, new)
    reasons = _find_reasons(ordered, new, pairs)
    times_of_bases = [step_times(document) for document in bases]
    measure = partial(measure_effect, times_of_bases, step_times(new), are_same_steps=_are_same_steps(bases, new))
    effect = None if reasons else measure()
    mean_effect = effect and measure("mean")
    verdict: Verdict = "incomparable"
    aligned, rows, kernels = None, list[Row](), None
    if effect is not None and mean_effect is not None:
        real = next((one for one in (effect, mean_effect) if one.is_real), None)
        verdict = "same" if real is None else "slower" if real.difference_ns > 0 else "faster"
        aligned = AlignedRuns(base, new, pairs)
        rows = charge_difference(aligned, round(effect.new_ns) - round(effect.base_ns))
        least_ns = _MIN_COST * effect.base_ns if effect.is_real else np.inf
        kernels = compare_kernels(aligned, rows, ordered[1:], least_ns)
    return Comparison(
        verdict=verdict,
        reasons=tuple(reasons),
        notes=(*odd.values(), *_describe_differences(ordered, new, pairs), *_limits(bases, new)),
        base=_side(bases, tuple(odd)),
        new=_side([new]),
        effect=effect,
        mean_effect=mean_effect,
        base_loss=base.loss_fraction,
        new_loss=new.loss_fraction,
        split=_split(rows),
        costs=() if aligned is None else _costs(aligned, rows),
        hosts=_hosts(base.hosts_time, new.hosts_time),
        kernels=kernels,
        collectives=tuple(_collectives(base.collectives, new.collectives)),
        ranks=_ranks(base, new),
        culprits=_culprits(base.culprits, new.culprits, rows, [] if aligned is None else aligned.ranks),
        environment=None if base.environment == new.environment else {"base": base.environment, "new": new.environment},
        throughput=compare_throughputs(base.throughput, new.throughput),
        bandwidths=compare_bandwidths(base.bandwidths, new.bandwidths),
    )


def _leave_out_odd(bases: Sequence[Document]) -> tuple[list[Document], dict[str, str]]:
    """Return the bases whose step times are like those of the others, and by label a sentence on each other one."""
    timed = [base for base in bases if len(step_times(base))]
    medians_ns = [middle_value(step_times(base)) for base in timed]
    odd = {at: timed[at] for at in find_odd_runs(medians_ns)}
    left = [base for base in bases if not any(base is run for run in odd.values())]
    usual_ns = middle_value(np.array([ns for at, ns in enumerate(medians_ns) if at not in odd])) if odd else 0.0
    sentences = {}
    for at, run in odd.items():
        what = format_pace(medians_ns[at] / usual_ns - 1)
        sentences[run.label] = (
            f"{run.label} is left out: it is {what} than the {len(left)} other bases, which are alike."
        )
    return left, sentences


def step_times(document: Document) -> Floats:
    """Return, (steps of known time,), the times of the steps that are compared."""
    return np.array(
        [step.step_time_ns for step in document.compared_steps if step.step_time_ns is not None], np.float64
    )


def _are_same_steps(bases: Sequence[Document], new: Document) -> bool:
    numbers = (
        [(step.epoch, step.step) for step in run.compared_steps if step.step_time_ns is not None]
        for run in (*bases, new)
    )
    return all(these == those for these, those in pairwise(numbers))


def _find_reasons(bases: Sequence[Document], new: Document, pairs: Sequence[TeamPair]) -> list[str]:
    """Return why step times cannot be compared; empty where they can. `pairs` are those of the first base."""
    sides = [*(("the base", base) for base in bases), ("the new run", new)]
    if lacks := [f"{side} ({run.label}) has {lack}" for side, run in sides if (lack := _describe_lack(run))]:
        return lacks
    differ = _describe_other_steps([*bases, new]) or _describe_other_program(bases[0], new, pairs)
    return [differ] if differ else []


def _describe_lack(document: Document) -> str:
    """Return what a run has of its steps, where that is too little; else empty."""
    if not any(team.places for team in document.teams):
        return "no kernels of a whole step"
    if len(document.compared_steps) < MIN_COMPARED:
        return f"{format_count(len(document.compared_steps), 'step')}, fewer than {MIN_COMPARED}"
    if len(step_times(document)) < MIN_COMPARED - 1:
        return "too few steps that follow each other: step times are unknown"
    return ""


def _describe_other_steps(runs: Sequence[Document]) -> str:
    """Return how the steps of runs, the new one last, differ in kind or size of their batches; else empty."""
    kinds = dict.fromkeys(run.step_kind for run in runs)
    if len(kinds) > 1:
        return f"most steps are of kind {' in one run, '.join(kinds)} in another: choose one with --kind"
    sizes, sizes_of = dict.fromkeys(run.step_size for run in runs if run.step_size is not None), runs[-1].sizes_of
    if sizes and not is_of_size(max(sizes), min(sizes), sizes_of):
        named = " in one run, ".join(f"{size:,.0f}" for size in sizes)
        return f"most batches have {named} {_UNITS[sizes_of is None]} in another: give the lakes in place of baselines"
    if any(run.sizes_of for run in runs) and len({run.step_size is None for run in runs}) > 1:
        return "one run is of batches of one size, and another has too few of it: give the lakes in place of baselines"
    return ""


def _describe_other_program(base: Document, new: Document, pairs: Sequence[TeamPair]) -> str:
    """Return how the programs of two runs differ, where their steps may do other work; else empty."""
    partner = next((pair.new for pair in pairs if pair.base == 0), None)
    if partner is None:
        took, takes = (format_time(middle_value(step_times(run))) for run in (base, new))
        nothing = f"nothing: a step takes {took} in the base, {takes} in the new run, and may do other work"
        return f"the runs' kernel sequences share {nothing if base.has_marker_of(new) else 'less than half'}"
    of_base, of_new = len(base.teams[0].places), len(new.teams[partner].places)
    if base.has_marker_of(new) or max(of_base, of_new) <= _SAME_PERIOD * min(of_base, of_new):
        return ""
    return (
        f"no common step marker, and the steps' periods differ: {of_base:,} kernels in the base, "
        f"{of_new:,} in the new run"
    )


def _describe_differences(bases: Sequence[Document], new: Document, pairs: Sequence[TeamPair]) -> list[str]:
    """Return sentences on how the recordings differ: ranks, hosts, steps, profilers, unmatched teams."""
    base = bases[0]
    sentences = []
    for what, base_count, new_count in (
        ("rank", base.ranks, new.ranks),
        ("host", len(base.hosts), len(new.hosts)),
        ("step", len(base.steps), len(new.steps)),
    ):
        if 0 < base_count != new_count > 0:  # no host: the recordings name none
            sentences.append(f"The base has {format_count(base_count, what)}, the new run {new_count:,}.")
    if any(len(document.compared_steps) < len(document.steps) for document in (base, new)):
        of_base, of_new = len(base.compared_steps), len(new.compared_steps)
        of_size = "" if new.step_size is None else f" with about {new.step_size:,.0f} {_UNITS[new.sizes_of is None]}"
        sentences.append(
            f"Steps of kind {new.step_kind}{of_size} are compared: {of_base:,} in the base, {of_new:,} in the new run."
        )
    if base.formats != new.formats:
        sentences.append(f"Profilers differ: {', '.join(base.formats)} and {', '.join(new.formats)}.")
    if pairs and (len(pairs) < len(base.teams) or len(pairs) < len(new.teams)):
        sentences.append(
            f"Ranks that run a program of their own: {len(base.teams)} in the base, {len(new.teams)} in the new run, "
            f"{len(pairs)} of them matched."
        )
    share = min((pair.share for pair in pairs), default=1.0)
    if share < 1:
        sentences.append(f"The kernel sequences share {format_percent(share)}.")
    lacking = [
        base_count.label
        for base_count in (*bases, new)
        if base_count.usual is None and base_count.schema_version < _HAS_USUAL_STEP
    ]
    if lacking:
        sentences.append(
            f"Of {', '.join(lacking)} the usual step is not known, so the difference is not split: an earlier jitter "
            "wrote the baseline. Write it again with: jitter export LAKE --baseline FILE."
        )
    return sentences


def _side(documents: Sequence[Document], left_out: tuple[str, ...] = ()) -> Side:
    return Side(
        label=", ".join(document.label for document in documents),
        runs=len(documents),
        ranks=documents[0].ranks,
        hosts=len(documents[0].hosts),
        steps=sum(len(document.steps) for document in documents),
        formats=tuple(sorted({name for document in documents for name in document.formats})),
        has_unrecorded_ranks=any(document.has_unrecorded_ranks for document in documents),
        left_out=left_out,
    )


def _limits(bases: Sequence[Document], new: Document) -> list[str]:
    """Return the notes with their runs; notes that differ in numbers only are one, with the numbers of the last run."""
    runs: dict[str, dict[str, str]] = {}
    for document in (*bases, new):
        for note in document.notes:
            runs.setdefault(_NUMBER.sub("#", note), {})[document.label] = note
    limits = []
    for notes in runs.values():
        label, note = list(notes.items())[-1]
        others = f" (and {format_count(len(notes) - 1, 'other run')})" if len(notes) > 1 else ""
        limits.append(note if note.startswith(f"{label}: ") else f"{label}{others}: {note}")
    return limits


def _split(rows: Sequence[Row]) -> tuple[PartChange, ...]:
    """Return what each class adds, in whole ns; what rounding leaves is unexplained."""
    if not rows:
        return ()
    usual_ns, jitter_ns = (dict.fromkeys((loss_class.label for loss_class in LossClass), 0.0) for _ in range(2))
    for row in rows:
        (jitter_ns if row.rung == "ranks" else usual_ns)[row.loss_class] += row.loss_ns
    parts = {part: (round(usual_ns[part]), round(jitter_ns[part])) for part in usual_ns}
    rounded_ns, (usual, jitter) = sum(map(sum, parts.values())), parts[LossClass.UNEXPLAINED.label]
    parts[LossClass.UNEXPLAINED.label] = usual + round(sum(row.loss_ns for row in rows)) - rounded_ns, jitter
    return tuple(PartChange(part, *pair_ns, sum(pair_ns)) for part, pair_ns in parts.items())


def _costs(runs: AlignedRuns, rows: Sequence[Row]) -> tuple[Cost, ...]:
    """Return the rows of equal names together, the largest first."""
    sums_ns: dict[tuple[str, str, int | None, str | None, str | None], float] = defaultdict(float)
    for row in rows:
        names = (None, None) if row.team is None or row.slot is None else runs.teams[row.team].slots[row.slot].names
        sums_ns[row.rung, row.loss_class, row.rank, *names] += row.loss_ns
    return tuple(Cost(*key, ns) for key, ns in sorted(sums_ns.items(), key=lambda item: -abs(item[1])) if ns)


def _hosts(base: Sequence[HostEntry] | None, new: Sequence[HostEntry] | None) -> tuple[HostChange, ...]:
    if base is None or new is None:
        return ()
    times_ns: dict[tuple[str, bool], list[int]] = defaultdict(lambda: [0, 0])
    for side, entries in enumerate((base, new)):
        for entry in entries:
            times_ns[entry.name, entry.is_start][side] += entry.time_ns
    changes = (HostChange(*key, *of_runs) for key, of_runs in times_ns.items())
    return tuple(sorted(changes, key=lambda change: (-abs(change.difference_ns), change.name)))


def _collectives(base: Sequence[CollectiveEntry], new: Sequence[CollectiveEntry]) -> list[CollectiveChange]:
    """Match collectives by operation, size and type; where there are several, by group size and hosts too."""

    def key_of(entry: CollectiveEntry) -> tuple[object, ...]:
        return entry.collective, entry.size_bytes, entry.dtype, entry.group_size, entry.hosts

    # a profiler that records no sizes: all calls of an operation are compared as one
    unsized = [{entry.collective for entry in entries if entry.size_bytes is None} for entries in (base, new)]
    base, new = (_join_calls(entries, unsized[BASE] ^ unsized[NEW]) for entries in (base, new))
    unmatched = {key_of(entry): entry for entry in new}
    partners = [unmatched.pop(key_of(entry), None) for entry in base]
    for size in (4, 3):  # parts of the key
        for at, entry in enumerate(base):
            rivals = [other for other, partner in zip(base, partners, strict=True) if partner is None]
            alone = sum(key_of(other)[:size] == key_of(entry)[:size] for other in rivals) == 1
            alike = [key for key in unmatched if key[:size] == key_of(entry)[:size]]
            if partners[at] is None and alone and len(alike) == 1:
                partners[at] = unmatched.pop(alike[0])
    changes = [_change(entry, partner) for entry, partner in zip(base, partners, strict=True)]
    return [*changes, *(_change(None, entry) for entry in unmatched.values())]


def _join_calls(entries: Sequence[CollectiveEntry], operations: Collection[str | None]) -> list[CollectiveEntry]:
    """Return the entries, those of each of these operations as one of any size."""
    joined = [entry for entry in entries if entry.collective not in operations]
    for operation in dict.fromkeys(entry.collective for entry in entries if entry.collective in operations):
        of_operation = [entry for entry in entries if entry.collective == operation]
        wait_us = max((entry.wait_us for entry in of_operation if entry.wait_us is not None), default=None)
        calls = sum(entry.calls_per_step for entry in of_operation)
        joined.append(CollectiveEntry(operation, None, None, None, None, calls, None, None, wait_us))
    return joined


def _change(base: CollectiveEntry | None, new: CollectiveEntry | None) -> CollectiveChange:
    either = base or new
    assert either is not None
    (base_calls, new_calls), (base_busbw, new_busbw), (base_wait_us, new_wait_us) = (
        [None if entry is None else getattr(entry, name) for entry in (base, new)]
        for name in ("calls_per_step", "busbw", "wait_us")
    )
    ratio = new_busbw / base_busbw if base_busbw and new_busbw is not None else None
    of_both = either.collective, either.size_bytes, either.dtype, either.group_size, either.hosts
    return CollectiveChange(*of_both, base_calls, new_calls, base_busbw, new_busbw, ratio, base_wait_us, new_wait_us)


def _ranks(base: Document, new: Document) -> tuple[RankChange, ...]:
    of_base, of_new = ({entry.rank: entry for entry in document.rank_entries} for document in (base, new))
    changes = []
    for rank in sorted({*of_base, *of_new}):
        entries = of_base.get(rank), of_new.get(rank)
        host = next((entry.host for entry in reversed(entries) if entry is not None and entry.host is not None), None)
        base_ns, new_ns = (None if entry is None else entry.excess_ns for entry in entries)
        is_known = base_ns is not None or new_ns is not None
        changes.append(RankChange(rank, host, base_ns, new_ns, (new_ns or 0) - (base_ns or 0) if is_known else None))
    return tuple(changes)


def _culprits(
    base: Sequence[CulpritEntry], new: Sequence[CulpritEntry], rows: Sequence[Row], teams: Sequence[Collection[int]]
) -> CulpritChanges:
    """Match findings of one cause that share ranks; `teams` are the ranks of each that the rows name."""

    def is_same(entry: CulpritEntry, candidate: CulpritEntry) -> bool:
        of_job = entry.scope == candidate.scope == "job"
        return entry.cause == candidate.cause and (of_job or not set(entry.ranks).isdisjoint(candidate.ranks))

    unmatched = list(base)
    changes: dict[str, list[CulpritEntry]] = {"appeared": [], "stayed": [], "went": unmatched}
    for entry in new:
        partner = next((candidate for candidate in unmatched if is_same(entry, candidate)), None)
        if partner is not None:
            unmatched.remove(partner)
        changes["appeared" if partner is None else "stayed"].append(entry)
    return CulpritChanges(
        **{
            change: tuple(CulpritChange(entry, _difference(entry, rows, teams)) for entry in entries)
            for change, entries in changes.items()
        }
    )


def _difference(entry: CulpritEntry, rows: Sequence[Row], teams: Sequence[Collection[int]]) -> int | None:
    """Return what a finding's class adds to the new run: as jitter of its ranks, or as a stage."""
    if not rows or entry.rung not in ("ranks", "balance") or entry.loss_class is None:
        return None
    of_class = [row for row in rows if row.loss_class == entry.loss_class]
    if entry.rung == "balance":
        stages = {team for team, ranks in enumerate(teams) if set(entry.ranks).issuperset(ranks)}
        return round(sum(row.loss_ns for row in of_class if row.rung != "ranks" and row.team in stages))
    ranks = None if entry.loss_class == LossClass.TRANSFER.label else {*entry.ranks}
    return round(sum(row.loss_ns for row in of_class if row.rung == "ranks" and (ranks is None or row.rank in ranks)))


_MIN_SHARE: Final = 0.3
"""Part of the difference that the sentence may leave without a name."""
_LONG_LIST: Final = 32
"""Characters; a sentence counts ranks whose list is longer."""
_MIN_KERNEL_SHARE: Final = 0.05
"""Part of the difference; a kernel that adds less is none that the sentence names."""


def write_sentence(comparison: Comparison) -> str:
    """Return the verdict with its size, its interval and what makes it."""
    effect, kernels, verdict = comparison.effect, comparison.kernels, comparison.verdict
    reasons = "; ".join(comparison.reasons)
    if effect is None or kernels is None:
        by_logs = describe_logs(comparison.bandwidths, comparison.throughput)
        return f"{by_logs} Step times are not comparable: {reasons}." if by_logs else f"Not comparable: {reasons}."
    rare = [f" Beside the median step, {clause}." for clause in describe_rare(comparison, effect)]
    unknown = "" if comparison.base.runs > 1 else " The spread between runs is unknown: there is one base."
    of_mean = _describe_mean(comparison, effect)
    size = f"a step, 95% interval {_span_of_effect(effect, signed=not effect.is_real)}"
    if not effect.is_real:
        is_noise = abs(effect.fraction) <= effect.noise_fraction
        costs = "" if is_noise or verdict == "same" else describe_costs(comparison, effect)
        first = next((change for change in kernels.changes[:1] if change.kind == "changed"), None)
        is_other_way = first is not None and first.cost_ns * effect.difference_ns < 0
        kernel = "" if is_other_way else _describe_kernel(comparison, effect)
        changed = "".join(f"; {what}" for what in (costs, kernel) if what)
        sign = "+" if effect.fraction >= 0.0001 else ""
        step = "median step" if of_mean else "step time"
        is_same = is_noise and max(map(abs, effect.interval)) <= THRESHOLDS.tolerance_share
        same = f"Same {step}" if is_same else f"No difference of the {step} can be told"
        size = f"{format_time(effect.difference_ns, signed=True)} {size}; noise {format_percent(effect.noise_fraction)}"
        by_median = f"{same}: {sign}{format_percent(effect.fraction)} ({size}){changed}."
        sentences = [by_median, of_mean] if verdict == "same" else [of_mean, by_median]
        return f"{' '.join(filter(None, sentences))}{''.join(rare)}{unknown}"
    least_ns = _MIN_KERNEL_SHARE * abs(effect.difference_ns)
    what = "; ".join(filter(None, (describe_costs(comparison, effect), _describe_kernel(comparison, effect, least_ns))))
    by_median = f"{format_pace(effect.fraction)} ({format_time(abs(effect.difference_ns))} {size})"
    return f"{by_median}{f': {what}' if what else ''}.{of_mean and f' {of_mean}'}{''.join(rare)}{unknown}"


def describe_costs(comparison: Comparison, effect: StepEffect) -> str:
    """Name classes of time, those of a rank apart where it adds more than noise, until they make the difference."""
    words = {name: info.words for name, info in LOSS_CLASS_INFO.items()}
    if comparison.base.has_unrecorded_ranks or comparison.new.has_unrecorded_ranks:
        words[LossClass.TRANSFER.label] += " or ranks without a recording"
    named, left_ns = [], effect.difference_ns
    noise_ns = effect.noise_fraction * effect.base_ns
    for loss_class, ranks, ns in _sum_costs(comparison.costs, noise_ns, _join_ranks(comparison.culprits)):
        if abs(left_ns) < _MIN_SHARE * abs(effect.difference_ns):
            break
        whose = f" of {format_ranks(ranks)}" if ranks else ""
        whose = whose if len(whose) < _LONG_LIST else f" of {format_count(len(ranks), 'rank')}"
        more = [] if len(ranks) > 1 else [_describe_call(comparison.costs, loss_class, next(iter(ranks), None), ns)]
        if not ranks:
            more += _describe_host(comparison.hosts, loss_class, ns)
        cause, stage = _find_cause(comparison, loss_class, ranks, ns)
        named.append(f"{cause or words[loss_class]}{whose or stage} {format_time(ns, signed=True)}{''.join(more)}")
        left_ns -= ns
    return ", ".join(named)


class _Sum(NamedTuple):
    """What a class of time adds to the difference."""

    loss_class: str
    ranks: tuple[int, ...]
    """The ranks that add it: each about as much, or those of one finding. Empty where none does, or all do by noise."""
    ns: float


def _join_ranks(culprits: CulpritChanges) -> dict[tuple[str | None, bool, int], int]:
    """Return a number for the first finding of one run alone that names a rank; by class, whether it adds, and rank."""
    number_of: dict[tuple[str | None, bool, int], int] = {}
    alone = [*((change, True) for change in culprits.appeared), *((change, False) for change in culprits.went)]
    for number, (change, adds) in enumerate(alone):
        for rank in change.entry.ranks if change.entry.rung == "ranks" else ():
            number_of.setdefault((change.entry.loss_class, adds, rank), number)
    return number_of


def _sum_costs(
    costs: Sequence[Cost], noise_ns: float, together: Mapping[tuple[str | None, bool, int], int]
) -> list[_Sum]:
    """Add up costs by class, and those of a rank apart where it adds more than noise; the largest sum first.

    Ranks that are `together` in a finding, see `_join_ranks`, count as one.
    """
    of_ranks: dict[tuple[str, int | None], float] = defaultdict(float)
    for cost in costs:
        of_ranks[cost.loss_class, cost.rank] += cost.loss_ns
    groups = by_key(
        ((loss_class, rank if rank is None else together.get((loss_class, ns > 0, rank), (rank,))), (rank, ns))
        for (loss_class, rank), ns in of_ranks.items()
    )
    sums_ns: dict[tuple[str, tuple[int, ...]], float] = defaultdict(float)
    for (loss_class, _), parts in groups.items():
        ranks, ns = tuple(sorted(rank for rank, _ in parts if rank is not None)), sum(ns for _, ns in parts)
        sums_ns[loss_class, ranks if abs(ns) >= noise_ns else ()] += ns
    largest_ns: dict[tuple[str, bool], float] = {}
    sums: dict[tuple[str, object], _Sum] = {}
    for (loss_class, ranks), ns in sorted(sums_ns.items(), key=lambda item: -abs(item[1])):
        key: tuple[str, object] = loss_class, ranks
        if ranks:
            like, largest = ("like the largest", ns > 0), largest_ns.setdefault((loss_class, ns > 0), ns)
            key = loss_class, like if abs(ns) >= THRESHOLDS.main_share * abs(largest) else ranks
        before = sums.get(key, _Sum(loss_class, (), 0.0))
        sums[key] = _Sum(loss_class, (*before.ranks, *ranks), before.ns + ns)
    return sorted(sums.values(), key=lambda part: -abs(part.ns))


def _describe_call(costs: Sequence[Cost], loss_class: str, rank: int | None, ns: float) -> str:
    """Say that a kernel is gone or new, whose launch alone adds `ns` to the host's time; else empty."""
    calls = (
        cost
        for cost in costs
        if cost.loss_class == loss_class == LossClass.LAUNCH.label
        and cost.rank == rank
        and (cost.kernel_name is None) != (cost.new_kernel_name is None)
    )
    call = next(calls, None)
    if call is None or abs(ns - call.loss_ns) >= _MIN_SHARE * abs(ns):
        return ""
    return f" ({call.kernel_name or call.new_kernel_name} is {'gone' if call.kernel_name else 'new'})"


def _find_cause(comparison: Comparison, loss_class: str, ranks: Sequence[int], ns: float) -> tuple[str, str]:
    """Return the cause by which these ranks alone cost one of the runs more; of none a stage, or links, and whose.

    In words, which are empty without such a finding.
    """
    for change in comparison.culprits.appeared if ns > 0 else comparison.culprits.went:
        entry = change.entry
        left_ns = ns - (change.difference_ns or 0)
        is_whole = not ranks and entry.rung in ("balance", "ranks") and abs(left_ns) < _MIN_SHARE * abs(ns)
        if entry.loss_class == loss_class and (is_whole or sorted(entry.ranks) == sorted(ranks)):
            return name_side(entry.cause_in_words, entry.side), f" of {entry.name}" if is_whole else ""
    return "", ""


_OF_KERNELS: Final = (LossClass.GPU.label, LossClass.TRANSFER.label)
"""Classes of the time of kernels, those of collectives among them."""
_AT_START: Final = {LossClass.START.label: True, LossClass.AFTER.label: True, LossClass.LAUNCH.label: False}
"""Classes of the host's time: whether they lie before the first kernel of a step, as in `HostChange`."""


def _describe_host(hosts: Sequence[HostChange], loss_class: str, ns: float) -> Iterator[str]:
    """Yield the operation that makes most of what hosts add in a class, if one does."""
    for change in hosts:
        is_of_class = change.is_start is _AT_START.get(loss_class)
        if is_of_class and change.difference_ns * np.sign(ns) >= THRESHOLDS.main_share * abs(ns):
            yield f" (`{abbreviate(change.name, 64)}`: {format_time(change.base_ns)} to {format_time(change.new_ns)})"
            return


def _beside_median(comparison: Comparison, effect: StepEffect) -> float:
    """Return what the mean step differs by and the median step does not, ns; 0 within noise, or where it is little."""
    mean = comparison.mean_effect
    beside_ns = 0.0 if mean is None else mean.difference_ns - effect.difference_ns
    least_ns = max(effect.noise_fraction * effect.base_ns, _MIN_SHARE * abs(effect.difference_ns))
    return beside_ns if abs(beside_ns) > least_ns else 0.0


def _describe_mean(comparison: Comparison, effect: StepEffect) -> str:
    """Say by how much the mean step differs where that is something else, or decides; else nothing."""
    mean = comparison.mean_effect
    decides = comparison.verdict != "same" and not effect.is_real
    if mean is None or not (decides or _beside_median(comparison, effect)):
        return ""
    size = f"{format_time(abs(mean.difference_ns))} a step, 95% interval {_span_of_effect(mean)}"
    return f"The mean step is {format_pace(mean.fraction)} ({size})."


def describe_rare(comparison: Comparison, effect: StepEffect) -> Iterator[str]:
    """Say which findings of one run alone cost its mean step more than noise, and its median step nothing."""
    whole_ns, mean = _beside_median(comparison, effect), comparison.mean_effect or effect
    culprits = comparison.culprits
    for run, changes, step_ns in (("new run", culprits.appeared, mean.new_ns), ("base", culprits.went, mean.base_ns)):
        for change in changes if (whole_ns > 0) == (run == "new run") else ():
            entry = change.entry
            mean_ns = (entry.fraction or 0.0) * step_ns  # of the steps of known time
            beside_ns = mean_ns - abs(change.difference_ns or 0)
            is_rare = entry.rung in ("ranks", "steps") and beside_ns <= THRESHOLDS.much_more * abs(whole_ns)
            if is_rare and beside_ns > effect.noise_fraction * effect.base_ns:
                yield f"{describe_lone(run, entry)}: {format_time(mean_ns)} a step on average"


def describe_lone(run: str, entry: CulpritEntry) -> str:
    """Say that one of the runs alone has a finding, and in how many of its steps."""
    whose = "" if entry.scope == "job" else f" of {entry.name}"
    seen = f"{entry.steps} of {format_count(entry.of_steps or entry.steps, 'step')}"
    return f"the {run} alone has {entry.cause_in_words}{whose} in {seen}"


def _describe_kernel(comparison: Comparison, effect: StepEffect, least_ns: float = 0.0) -> str:
    kernels = comparison.kernels
    if kernels is None or not kernels.changes or abs(kernels.changes[0].cost_ns) < least_ns:
        return ""
    alike, first = _change_alike(kernels), kernels.changes[0]
    told_ns = sum(
        change.difference_ns or 0
        for change in (*comparison.culprits.appeared, *comparison.culprits.went)
        if change.entry.rung == "ranks" and change.entry.loss_class in _OF_KERNELS
    )
    told_ns *= int(np.sign(effect.difference_ns))
    is_told = told_ns > 0 and told_ns >= THRESHOLDS.main_share * abs(effect.difference_ns)
    if is_told and (alike or (first.kind == "changed" and first.rank is None)):
        return ""  # the kernels of some ranks change, or some of their messages, and not those of all
    said = _describe_pace(alike) if alike else describe_change(first)
    others = len(kernels.changes) - max(len(alike), 1)
    return said + (f"; {format_count(others, 'more change')} of kernels" if others else "")


def _change_alike(kernels: KernelComparison) -> list[KernelChange]:
    """Return the changed kernels that compute, if nearly all changed, and by the same part of their time."""
    names = ((change, change.kernel_name or change.new_kernel_name or "") for change in kernels.changes)
    compute = [change for change, name in names if not is_collective(name)]
    places = sum(not is_collective(place.kernel_name) for place in kernels.differences)
    is_most = sum(change.places for change in compute) >= THRESHOLDS.nearly_all_share * places
    if (
        len(compute) < THRESHOLDS.min_repeats
        or not is_most
        or any(change.kind != "changed" or change.rank is not None or not change.base_ns for change in compute)
    ):
        return []
    whole = _pace_of(compute)
    are_alike = all(abs(_pace_of([one]) - whole) <= THRESHOLDS.tolerance_share * abs(whole) for one in compute)
    return compute if are_alike else []


def _pace_of(changes: Sequence[KernelChange]) -> float:
    return sum(change.difference_ns for change in changes) / sum(change.base_ns for change in changes)


def _describe_pace(alike: Sequence[KernelChange]) -> str:
    pace = _pace_of(alike)
    more, reasons = (
        ("more", "slower GPU clocks or a larger batch")
        if pace > 0
        else ("less", "faster GPU clocks or a smaller batch")
    )
    return f"{len(alike)} kernels each take {format_percent(abs(pace))} {more} time, as with {reasons}"


def describe_change(kernel: KernelChange) -> str:
    """Say what a changed kernel adds to a step."""
    name = abbreviate(short_name(kernel.kernel_name or kernel.new_kernel_name or ""))
    count = format_count(kernel.places or kernel.new_places, "kernel")
    if " + " in (kernel.kernel_name or kernel.new_kernel_name or ""):
        name = count
    change = f"{format_time(abs(kernel.cost_ns))} {'more' if kernel.cost_ns > 0 else 'less'} a step"
    verb = "are" if name == count else "is"
    is_own = abs(kernel.difference_ns) >= THRESHOLDS.main_share * abs(kernel.cost_ns) or kernel.rank is not None
    changed = "takes " if is_own else "costs "  # as where kernels wait for a collective that is as fast as before
    is_moved = kernel.kind == "changed" and not is_own and is_collective(kernel.kernel_name or "")
    hidden = f", as compute hides {'less' if kernel.cost_ns > 0 else 'more'} of it" if is_moved else ""
    often = f"runs {kernel.new_places or kernel.places:,} {'more' if kernel.new_places else 'fewer'} times, "
    if not kernel.cost_ns:
        changed, change = "changed, ", "which costs the step nothing"
    appeared, went = (often, often) if kernel.in_both else ("is new, ", "is gone, ")
    what = {"changed": changed, "appeared": appeared, "went": went, "replaced": f"{verb} replaced, "}
    return f"{name}{'' if kernel.rank is None else f' of rank {kernel.rank}'} {what[kernel.kind]}{change}{hidden}"


def _span_of_effect(effect: StepEffect, *, signed: bool = False) -> str:
    """Return the interval of an effect: `signed`, as the difference is then; else of its size, unless that may be 0."""
    low, high = effect.low_ns, effect.high_ns
    if high < 0 and not signed:
        low, high = -high, -low
    return f"{format_time(low)} to {format_time(high)}"
