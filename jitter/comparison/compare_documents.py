"""Compare documents of runs: the verdict, and all that changed."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from jitter.analysis.account.losses import LossClass
from jitter.comparison.alignment import TeamPair, pair_teams
from jitter.comparison.document import CollectiveEntry, CulpritEntry, Document, Environment
from jitter.comparison.kernel_changes import compare_kernels
from jitter.comparison.log_tables import compare_bandwidths, compare_throughputs, describe_logs
from jitter.comparison.model import (
    CollectiveChange,
    Comparison,
    Cost,
    CulpritChange,
    CulpritChanges,
    PartChange,
    RankChange,
    Side,
    Verdict,
)
from jitter.comparison.rows import AlignedRuns, Row, charge_difference
from jitter.comparison.sentence import write_sentence
from jitter.comparison.significance import MIN_STEPS, measure_effect, median
from jitter.core.errors import UsageError
from jitter.core.formatting import format_count, format_percent
from jitter.core.numeric.arrays import Floats

_NUMBER: Final = re.compile(r"\d[\d,.]*")
_HAS_USUAL_STEP: Final = 3
"""Version of the document."""
_SAME_PERIOD: Final = 1.25
"""Ratio of kernels per step up to which steps found without a common marker are taken for equal periods."""
_MIN_COST: Final = 0.005
"""Part of a step; a kernel that takes no longer on most ranks has changed if it costs more."""


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
    reasons = _find_reasons(ordered, new, pairs)
    effect = None if reasons else measure_effect([step_times(one) for one in bases], step_times(new))
    verdict: Verdict = "incomparable"
    rows: list[Row] = []
    split: tuple[PartChange, ...] = ()
    costs: tuple[Cost, ...] = ()
    kernels = None
    if effect is not None:
        verdict = "same" if not effect.is_real else "slower" if effect.difference_ns > 0 else "faster"
        runs = AlignedRuns(base, new, pairs)
        rows = charge_difference(runs, round(effect.new_ns) - round(effect.base_ns))
        split, costs = _split(rows), _costs(runs, rows)
        least_ns = _MIN_COST * effect.base_ns if effect.is_real else np.inf
        kernels = compare_kernels(runs, rows, ordered[1:], least_ns)
    throughputs = compare_throughputs(base.throughput, new.throughput)
    bandwidths = compare_bandwidths(base.bandwidths, new.bandwidths)
    sentence = write_sentence(verdict, reasons, effect, split, costs, kernels, len(bases))
    if effect is None and (by_logs := describe_logs(bandwidths, throughputs)):
        sentence = f"{by_logs} Step times are not comparable: {'; '.join(reasons)}."
    return Comparison(
        verdict=verdict,
        sentence=sentence,
        reasons=tuple(reasons),
        notes=(*_describe_differences(ordered, new, pairs), *_limits(bases, new)),
        base=_side(bases),
        new=_side([new]),
        effect=effect,
        base_loss=base.loss_fraction,
        new_loss=new.loss_fraction,
        split=split,
        costs=costs,
        kernels=kernels,
        collectives=tuple(_collectives(base.collectives, new.collectives)),
        ranks=_ranks(base, new),
        culprits=_culprits(base.culprits, new.culprits, rows),
        environment=_environment(base, new),
        throughput=throughputs,
        bandwidths=bandwidths,
    )


def step_times(document: Document) -> Floats:
    """Return, (steps of known time,), the times of the steps that are compared."""
    return np.array(
        [step.step_time_ns for step in document.compared_steps if step.step_time_ns is not None], np.float64
    )


def _find_reasons(bases: Sequence[Document], new: Document, pairs: Sequence[TeamPair]) -> list[str]:
    """Return why step times cannot be compared; empty where they can. `pairs` are those of the first base."""
    reasons = []
    for side, document in (*(("the base", one) for one in bases), ("the new run", new)):
        if not any(team.places for team in document.teams):
            reasons.append(f"{side} ({document.label}) has no kernels")
        elif len(document.compared_steps) < MIN_STEPS:
            had = format_count(len(document.compared_steps), "step")
            reasons.append(f"{side} ({document.label}) has {had}, fewer than {MIN_STEPS}")
        elif len(step_times(document)) < MIN_STEPS - 2:
            reasons.append(
                f"{side} ({document.label}) has too few steps that follow each other: step times are unknown"
            )
    if reasons:
        return reasons
    kinds = dict.fromkeys(one.step_kind for one in (*bases, new))
    if len(kinds) > 1:
        return [f"most steps are of kind {' in one run, '.join(kinds)} in another: choose one with --kind"]
    if not any(pair.base == 0 for pair in pairs):
        reasons.append("the runs' kernel sequences share less than half")
    elif bases[0].marker is None or new.marker is None or bases[0].marker != new.marker:
        of_base, of_new = len(bases[0].teams[0].places), len(new.teams[_partner(pairs)].places)
        if max(of_base, of_new) > _SAME_PERIOD * min(of_base, of_new):
            reasons.append(
                f"no common step marker, and the steps' periods differ: {of_base:,} kernels in the base, "
                f"{of_new:,} in the new run"
            )
    return reasons


def _partner(pairs: Sequence[TeamPair]) -> int:
    return next(pair.new for pair in pairs if pair.base == 0)


def _describe_differences(bases: Sequence[Document], new: Document, pairs: Sequence[TeamPair]) -> list[str]:
    """Return sentences on how the recordings differ: ranks, hosts, steps, profilers, unmatched teams."""
    base = bases[0]
    found = []
    for what, one, other in (
        ("rank", base.ranks, new.ranks),
        ("host", len(base.hosts), len(new.hosts)),
        ("step", len(base.steps), len(new.steps)),
    ):
        if one != other:
            found.append(f"The base has {format_count(one, what)}, the new run {other:,}.")
    if any(len(one.compared_steps) < len(one.steps) for one in (base, new)):
        of_base, of_new = len(base.compared_steps), len(new.compared_steps)
        found.append(f"Steps of kind {new.step_kind} are compared: {of_base:,} in the base, {of_new:,} in the new run.")
    if base.formats != new.formats:
        found.append(f"Profilers differ: {', '.join(base.formats)} and {', '.join(new.formats)}.")
    if pairs and (len(pairs) < len(base.teams) or len(pairs) < len(new.teams)):
        found.append(
            f"Ranks that run a program of their own: {len(base.teams)} in the base, {len(new.teams)} in the new run, "
            f"{len(pairs)} of them matched."
        )
    share = min((pair.share for pair in pairs), default=1.0)
    if share < 1:
        found.append(f"The kernel sequences share {format_percent(share)}.")
    lacking = [one.label for one in (*bases, new) if one.usual is None and one.schema_version < _HAS_USUAL_STEP]
    if lacking:
        found.append(
            f"Of {', '.join(lacking)} the usual step is not known, so the difference is not split: an earlier jitter "
            "wrote the baseline. Write it again with: jitter export LAKE --baseline FILE."
        )
    return found


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


def _split(rows: Sequence[Row]) -> tuple[PartChange, ...]:
    """Return what each class adds, in whole ns; what rounding leaves is unexplained."""
    if not rows:
        return ()
    sums = {(one.label, is_jitter): 0.0 for one in LossClass for is_jitter in (False, True)}
    for row in rows:
        sums[row.loss_class, row.rung == "ranks"] += row.loss_ns
    parts = {
        one.label: PartChange(one.label, *(round(sums[one.label, which]) for which in (False, True)))
        for one in LossClass
    }
    rest = parts[LossClass.UNEXPLAINED.label]
    left = round(sum(row.loss_ns for row in rows)) - sum(one.difference_ns for one in parts.values())
    parts[rest.part] = replace(rest, usual_ns=rest.usual_ns + left)
    return tuple(parts.values())


def _costs(runs: AlignedRuns, rows: Sequence[Row]) -> tuple[Cost, ...]:
    """Return the rows of equal names together, the largest first."""
    sums: dict[tuple[str, str, int | None, str | None, str | None], float] = {}
    for row in rows:
        names = (None, None) if row.team is None or row.slot is None else runs.teams[row.team].names[row.slot]
        key = row.rung, row.loss_class, row.rank, *names
        sums[key] = sums.get(key, 0.0) + row.loss_ns
    return tuple(Cost(*key, ns) for key, ns in sorted(sums.items(), key=lambda one: -abs(one[1])) if ns)


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


def _culprits(base: Sequence[CulpritEntry], new: Sequence[CulpritEntry], rows: Sequence[Row]) -> CulpritChanges:
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

    def charged(ones: Sequence[CulpritEntry]) -> tuple[CulpritChange, ...]:
        return tuple(CulpritChange(one, _difference(one, rows)) for one in ones)

    return CulpritChanges(charged(appeared), charged(left), charged(stayed))


def _difference(one: CulpritEntry, rows: Sequence[Row]) -> int | None:
    """Return what the jitter of a finding's class and ranks adds to the new run's step."""
    if not rows or one.rung != "ranks" or one.loss_class is None:
        return None
    ranks = None if one.loss_class == LossClass.TRANSFER.label else {*one.ranks}
    own = [row for row in rows if row.rung == "ranks" and row.loss_class == one.loss_class]
    return round(sum(row.loss_ns for row in own if ranks is None or row.rank in ranks))


def _is_same(one: CulpritEntry, other: CulpritEntry) -> bool:
    return one.cause == other.cause and (one.scope == other.scope == "job" or bool(set(one.ranks) & set(other.ranks)))


def _environment(base: Document, new: Document) -> tuple[tuple[str, Environment], tuple[str, Environment]] | None:
    if base.environment == new.environment:
        return None
    return ("base", base.environment), ("new", new.environment)
