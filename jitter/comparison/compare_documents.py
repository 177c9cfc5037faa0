"""Compare documents of runs: the verdict, and all that changed."""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from jitter.analysis.replay.time_on_path import PathPart
from jitter.comparison.comparability import describe_differences, find_reasons
from jitter.comparison.document import CollectiveEntry, CulpritEntry, Document, Environment
from jitter.comparison.effect.step_effect import StepEffect, measure_effect, median
from jitter.comparison.kernel_changes import compare_kernels
from jitter.comparison.model import (
    CollectiveChange,
    Comparison,
    CulpritChanges,
    PartChange,
    RankChange,
    Side,
    ThroughputChange,
    Verdict,
)
from jitter.comparison.sentence import write_sentence
from jitter.comparison.sequence_alignment import pair_teams
from jitter.core.errors import UsageError
from jitter.core.formatting import format_count
from jitter.core.numeric.arrays import Floats

_NUMBER: Final = re.compile(r"\d[\d,.]*")


def compare_documents(bases: Sequence[Document], new: Document) -> Comparison:
    """Compare a run with one or several bases; raise `UsageError` without any.

    Step times are compared with those of all bases. Kernels, collectives, ranks and culprits are compared with those
    of the base whose step time is the median.
    """
    if not bases:
        raise UsageError("nothing to compare with", "name a base and the new run")
    base = _typical(bases)
    ordered = [base, *(one for one in bases if one is not base)]
    pairs = pair_teams(base, new)
    reasons = find_reasons(ordered, new, pairs)
    effect = None if reasons else measure_effect([step_times(one) for one in bases], step_times(new))
    split = () if effect is None else _split(bases, new, effect)
    kernels = compare_kernels(base, new, pairs, ordered[1:]) if effect is not None else None
    verdict: Verdict = "incomparable"
    if effect is not None:
        verdict = "same" if not effect.is_real else "slower" if effect.difference_ns > 0 else "faster"
    culprits = _culprits(base.culprits, new.culprits)
    ranks = _ranks(base, new)
    return Comparison(
        verdict=verdict,
        sentence=write_sentence(verdict, reasons, effect, split, kernels, culprits, len(bases)),
        reasons=tuple(reasons),
        notes=(*describe_differences(ordered, new, pairs), *_limits(bases, new)),
        base=_side(bases),
        new=_side([new]),
        effect=effect,
        base_loss=base.loss_fraction,
        new_loss=new.loss_fraction,
        split=split,
        kernels=kernels,
        collectives=tuple(_collectives(base.collectives, new.collectives)),
        ranks=ranks,
        culprits=culprits,
        environment=_environment(base, new),
        throughput=tuple(_throughput(base, new)),
    )


def step_times(document: Document) -> Floats:
    """Return, (steps of known time,), the step times."""
    return np.array([step.step_time_ns for step in document.steps if step.step_time_ns is not None], np.float64)


def _typical(bases: Sequence[Document]) -> Document:
    timed = [one for one in bases if len(step_times(one))]
    ordered = sorted(timed, key=lambda one: median(step_times(one)))
    return ordered[(len(ordered) - 1) // 2] if ordered else bases[-1]


def _side(documents: Sequence[Document]) -> Side:
    return Side(
        label=", ".join(one.label for one in documents),
        runs=len(documents),
        ranks=documents[0].ranks,
        hosts=len(documents[0].hosts),
        steps=sum(len(one.steps) for one in documents),
        formats=tuple(sorted({name for one in documents for name in one.formats})),
    )


def _limits(bases: Sequence[Document], new: Document) -> list[str]:
    """Return the notes with their runs; notes that differ in numbers only are one, with the numbers of the last run."""
    runs: dict[str, dict[str, str]] = {}
    for one in (*bases, new):
        for note in one.notes:
            runs.setdefault(_NUMBER.sub("#", note), {})[one.label] = note
    found = []
    for notes in runs.values():
        label, note = list(notes.items())[-1]
        others = f" (and {format_count(len(notes) - 1, 'other run')})" if len(notes) > 1 else ""
        found.append(note if note.startswith(f"{label}: ") else f"{label}{others}: {note}")
    return found


def _split(bases: Sequence[Document], new: Document, effect: StepEffect) -> tuple[PartChange, ...]:
    """Return the parts of both medians; each side's add up to its median step, the rest taking what remains."""
    old = _rounded(np.mean([usual_parts(one) for one in bases], axis=0), effect.base_ns)
    its = _rounded(usual_parts(new), effect.new_ns)
    return tuple(
        PartChange(part.name.lower(), part.label, one, other)
        for part, one, other in zip(PathPart, old, its, strict=True)
    )


def usual_parts(document: Document) -> Floats:
    """Return, (parts,), the parts of the median step: a straight line through the half of the steps next to it.

    Each step's parts add up to its time, so the lines' values at the median add up to the median.
    """
    known = [(step.step_time_ns, step.parts_ns) for step in document.steps if step.step_time_ns and step.parts_ns]
    if not known:
        return np.zeros(len(PathPart))
    times = np.array([time for time, _ in known], np.float64)
    parts = np.array([own for _, own in known], np.float64)
    apart = times - median(times)
    next_to_it = np.argsort(np.abs(apart), kind="stable")[: max(3, -(-len(times) // 2))]
    apart, parts = apart[next_to_it], parts[next_to_it]
    centred = apart - apart.mean()
    spread = float(centred @ centred)
    slopes = centred @ parts / spread if spread else np.eye(len(PathPart))[PathPart.REST]
    found: Floats = parts.mean(axis=0) - slopes * apart.mean()
    return found


def _rounded(parts: Floats, step_ns: float) -> list[int]:
    found = [round(value) for value in parts.tolist()]
    found[PathPart.REST] += round(step_ns) - sum(found)
    return found


def _collectives(base: Sequence[CollectiveEntry], new: Sequence[CollectiveEntry]) -> list[CollectiveChange]:
    """Match collectives by operation, size, type, group size and, if need be, whether they stay on one host."""
    left = {_collective_key(one, hosts=True): one for one in new}
    found = []
    for one in base:
        partner = left.pop(_collective_key(one, hosts=True), None)
        if partner is None:
            alike = [key for key, other in left.items() if key[:-1] == _collective_key(one, hosts=False)]
            partner = left.pop(alike[0]) if len(alike) == 1 else None
        found.append(CollectiveChange(one, partner))
    return [*found, *(CollectiveChange(None, one) for one in left.values())]


def _collective_key(one: CollectiveEntry, *, hosts: bool) -> tuple[object, ...]:
    key = (one.collective, one.size_bytes, one.dtype, one.group_size)
    return (*key, one.hosts) if hosts else key


def _ranks(base: Document, new: Document) -> tuple[RankChange, ...]:
    old = {one.rank: one for one in base.rank_entries}
    its = {one.rank: one for one in new.rank_entries}
    found = []
    for rank in sorted({*old, *its}):
        one, other = old.get(rank), its.get(rank)
        host = (other.host if other is not None else None) or (one.host if one is not None else None)
        excess = (None if entry is None else entry.excess_ns for entry in (one, other))
        found.append(RankChange(rank, host, *excess))
    return tuple(found)


def _culprits(base: Sequence[CulpritEntry], new: Sequence[CulpritEntry]) -> CulpritChanges:
    """Match findings of one cause that share ranks."""
    left = list(base)
    appeared, stayed = [], []
    for one in new:
        partner = next((other for other in left if _is_same(one, other)), None)
        if partner is None:
            appeared.append(one)
        else:
            left.remove(partner)
            stayed.append(one)
    return CulpritChanges(tuple(appeared), tuple(left), tuple(stayed))


def _is_same(one: CulpritEntry, other: CulpritEntry) -> bool:
    return one.cause == other.cause and (one.scope == other.scope == "job" or bool(set(one.ranks) & set(other.ranks)))


def _environment(base: Document, new: Document) -> tuple[tuple[str, Environment], tuple[str, Environment]] | None:
    if base.environment == new.environment:
        return None
    return ("base", base.environment), ("new", new.environment)


def _throughput(base: Document, new: Document) -> list[ThroughputChange]:
    """Match results of equal labels; else, where each run has one result, these."""
    its = {one.label: one for one in new.throughput}
    found = [
        ThroughputChange(one.label, one.seconds, its[one.label].seconds)
        for one in base.throughput
        if one.label in its and its[one.label].seconds > 0
    ]
    if not found and len(base.throughput) == len(new.throughput) == 1 and new.throughput[0].seconds > 0:
        one, other = base.throughput[0], new.throughput[0]
        found.append(ThroughputChange(other.label, one.seconds, other.seconds))
    return found
