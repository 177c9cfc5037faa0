"""Step numbers for recordings without markers: equal on all ranks, and consistent with the lake."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.errors import LakeError, UnknownRankError
from jitter.core.formatting import format_count
from jitter.core.grouping import by_key
from jitter.core.schema import HOST
from jitter.core.step_key import StepKey
from jitter.ingestion.convert import Outcome
from jitter.ingestion.names import INFERENCE, compile_step_pattern, is_unnumbered_step
from jitter.ingestion.ranks.jobs import RESTART_NS, RecordedRank, UtcRange
from jitter.ingestion.stage import StagedRank
from jitter.ingestion.transform.steps.find_steps import (
    RankRepetition,
    Repetition,
    clear_offset,
    find_rotation,
    step_offset,
)
from jitter.lake.parquet import read_host, read_kernels, read_rank_step, write_host
from jitter.lake.records import TRAIN, RankStepRecord, SourceRecord, StepRecord

_WAY_OUT = "mark the steps (an NVTX range `step N`) or give --step-pattern"


def has_provisional_steps(outcome: Outcome) -> bool:
    """Return whether steps were found without markers: their numbers are aligned with those of other ranks later."""
    return any(staged.record.steps_from != "marker" for staged in outcome.ranks)


def are_marked(records: Sequence[SourceRecord], outcomes: Sequence[Outcome] = ()) -> bool:
    """Return whether the steps of most ranks, if there are any, are told by markers."""
    return _kind_of_most(outcomes, records) in (None, "marker")


def describe_other_kinds(records: Iterable[SourceRecord]) -> list[str]:
    """Return a note where ranks mark steps of one number as inference and as training, which only some ranks count."""
    first_of_kind: dict[StepKey, dict[str, int]] = defaultdict(dict)
    for record in records:
        for step in record.steps if record.rank is not None else ():
            first_of_kind[step.key].setdefault(step.kind, record.rank or 0)
    for key in sorted(first_of_kind, key=lambda key: key.order):
        ranks = first_of_kind[key]
        inference, training = (
            next(((kind, rank) for kind, rank in ranks.items() if kind in kinds), None)
            for kinds in (INFERENCE, _TRAINING)
        )
        if inference and training:
            return [
                f"{key} is of kind {inference[0]} on rank {inference[1]}, and of kind {training[0]} on rank "
                f"{training[1]}: these ranks mark other ranges, so that steps of one number may not belong together; "
                "mark the same ranges on all ranks"
            ]
    return []


_TRAINING: Final = frozenset((TRAIN, "update", "score"))


def reference_in_lake(root: Path, records: Sequence[SourceRecord]) -> RankRepetition | None:
    """Return the reference of the lake: the lowest rank whose steps were found by repetition, or None."""
    candidates = [r for r in records if r.repetition is not None and r.rank is not None and r.steps]
    if not candidates:
        return None
    record = min(candidates, key=lambda r: (r.rank or 0, r.digest))
    assert record.repetition is not None
    first = record.steps[0]
    names = tuple(_main_kernels(root, record, first)["kernel_name"].to_pylist())
    gpu_ns: list[int] = []
    with suppress(LakeError):  # of a damaged step: the hosts' times remain
        gpu_ns = [_main_kernels(root, record, step)["end_ns"][0].as_py() for step in record.steps]
    lake_repetition = record.repetition
    repetition = Repetition(
        names,
        tuple(step.start_ns for step in record.steps),
        lake_repetition.end_ns,
        tuple(lake_repetition.collectives_before),
        lake_repetition.collectives,
        tuple(gpu_ns),
    )
    return RankRepetition(record, repetition)


def _main_kernels(root: Path, record: SourceRecord, step: StepRecord) -> pa.Table:
    """Return the name and the end of the main stream's compute kernels in a step."""
    rows = read_rank_step(root, RankStepRecord(record, step), ("kernel_name", "kind", "stream", "end_ns"))
    return rows.filter(pc.and_(pc.equal(rows["kind"], "compute"), pc.equal(rows["stream"], record.main_stream)))


def step_programs(outcomes: Sequence[Outcome], reference: RankRepetition | None) -> list[tuple[str, ...]]:
    """Return the kernel names of one step for each distinct program.

    A program starts at the kernel at which the lake's reference starts it, else at the one most ranks start it.
    """
    programs = [] if reference is None else [reference.repetition.names]
    counts = Counter(staged.repetition.names for o in outcomes for staged in o.ranks if staged.repetition is not None)
    for names, _ in counts.most_common():
        if all(find_rotation(names, pattern) is None for pattern in programs):
            programs.append(names)
    return programs


def is_cut_otherwise(outcome: Outcome, programs: Sequence[tuple[str, ...]]) -> bool:
    """Return whether the steps may be those of a known program from another kernel on; the source is then cut again.

    A capture in which nothing repeats may hold steps too: the longest pause, at which steps begin, may lie in them.
    """
    names = [None if staged.repetition is None else staged.repetition.names for staged in outcome.ranks]
    return any(
        one not in programs and any(one is None or find_rotation(one, program) is not None for program in programs)
        for one in names
    )


def number_steps(
    outcomes: Sequence[Outcome], reference: RankRepetition | None, records: Sequence[SourceRecord]
) -> None:
    """Renumber the steps of the outcomes in place; an outcome whose steps cannot be numbered gets its error.

    Numbers continue those of the lake's reference. Without a reference the earliest step is number 0.
    """
    kind = _kind_of_most(outcomes, records)
    shifts: list[tuple[StagedRank, int]] = []
    used_reference = _common_reference(outcomes) if reference is None else reference
    for outcome in outcomes:
        if outcome.error is not None:
            continue
        # steps that are found in another way cannot be numbered alike
        if kind is not None and any(staged.record.steps_from != kind for staged in outcome.ranks):
            outcome.error = UnknownRankError(f"{outcome.path}: {_OTHERWISE[kind]}", _WAY_OUT)
            continue
        try:
            shifts += [
                (staged, step_offset(used_reference, RankRepetition(staged.record, staged.repetition)))
                for staged in outcome.ranks
                if staged.repetition and used_reference
            ]
        except UnknownRankError as error:
            outcome.error = error
    earliest = min((shift for _, shift in shifts), default=0)
    base = -earliest if reference is None else reference.record.steps[0].step
    for staged, shift in shifts:
        _renumber(staged, base + shift)


def number_windows(outcomes: Sequence[Outcome], in_lake: Sequence[RecordedRank]) -> str | None:
    """Make windows whose numbers of steps begin anew epochs 1, 2, … in order of time; return a note if there are any.

    A window is what all ranks recorded at one time; between two of them lies more than `RESTART_NS`. Epochs of the
    lake's windows go on. Nothing is done where a step has no wall clock, or an epoch already. Where each window would
    be of one host, and all have as many, their clocks differ: time counts from each one's first window.
    """
    held = [rank for rank in in_lake if rank.record.steps]
    added = [rank for outcome in outcomes for rank in outcome.ranks]
    if epoch_of(added) is not None or (held and all(rank.record.steps[0].epoch is None for rank in held)):
        return None
    timed: list[RecordedRank] = [*held, *added]
    claims = Counter((rank.rank, step.key) for rank in added for step in rank.record.steps)
    if (not held and max(claims.values(), default=0) < 2) or any(rank.utc_range is None for rank in timed):
        return None
    windows, order = _find_windows(timed)
    epochs = [*(rank.record.steps[0].epoch for rank in held), *[None] * len(added)]
    numbers = [0]
    for window in windows:
        numbers.append(max((epochs[place] or 0 for place in window), default=0) or numbers[-1] + 1)
    placed = [(place, number) for number, window in zip(numbers[1:], windows, strict=True) for place in window]
    is_held = all(epochs[place] in (None, number) for place, number in placed)
    if len(windows) < 2 or not is_held or (np.diff(numbers) <= 0).any():
        return None
    for place, number in placed:
        if place >= len(held):
            move_steps(added[place - len(held)], 0, number)
    return f"windows number their steps anew: they are epochs {numbers[1]} to {numbers[-1]}, {order}"


def _find_windows(ranks: Sequence[RecordedRank]) -> tuple[list[list[int]], str]:
    """Return the places of recordings in windows, and in which order these are."""
    ranges = [rank.utc_range or (0, 0) for rank in ranks]
    windows = _by_time(ranges)
    clocks = [rank.record.host or rank.rank for rank in ranks]
    begun = {clock: min(times)[0] for clock, times in by_key(zip(clocks, ranges, strict=True)).items()}
    of_windows = [{clocks[place] for place in window} for window in windows]
    counts = Counter(clock for on_clocks in of_windows for clock in on_clocks)
    has_moved = len({(rank.rank, clock) for rank, clock in zip(ranks, clocks, strict=True)}) > len(
        {rank.rank for rank in ranks}
    )
    if len(begun) < 2 or has_moved or max(map(len, of_windows)) > 1 or len(set(counts.values())) > 1:
        return windows, "in order of time"
    shifted = [(begin - begun[clock], end - begun[clock]) for (begin, end), clock in zip(ranges, clocks, strict=True)]
    return _by_time(shifted), "in order of time from each host's first, as the hosts' clocks differ"


def _by_time(ranges: Sequence[UtcRange]) -> list[list[int]]:
    """Return the places of the ranges of time in windows, between which lies more than `RESTART_NS`."""
    windows: list[list[int]] = []
    last_end = 0
    for place in sorted(range(len(ranges)), key=ranges.__getitem__):
        if not windows or ranges[place][0] - last_end > RESTART_NS:
            windows.append([])
        windows[-1].append(place)
        last_end = max(last_end, ranges[place][1])
    return windows


def epoch_of(ranks: Sequence[StagedRank]) -> int | None:
    """Return the first epoch of the steps of these ranks; None if they have none."""
    steps = [step for staged in ranks for step in staged.record.steps]
    return next((step.epoch for step in steps if step.epoch is not None), None)


def is_unnumbered(staged: StagedRank) -> bool:
    """Return whether markers state no number, so that steps are numbered in order from the first recorded one."""
    text = staged.record.steps[0].marker if staged.record.steps else None
    return text is not None and is_unnumbered_step(text) and compile_step_pattern(None).search(text) is None


def align_unnumbered(outcomes: Sequence[Outcome], records: Sequence[SourceRecord]) -> list[str]:
    """Renumber steps that markers do not number, where ranks began to record some steps apart; return a note.

    By wall clock: where steps of two ranks begin at one time on host and GPU (`clear_offset`), each epoch by itself. In
    an epoch of which the lake's `records` hold steps, numbers stay.
    """
    unnumbered = [staged for outcome in outcomes for staged in outcome.ranks if is_unnumbered(staged)]
    held = {step.epoch for record in records for step in record.steps}
    of_epoch = by_key((staged.record.steps[0].epoch, staged) for staged in unnumbered)
    moved = {rank for epoch, members in of_epoch.items() if epoch not in held for rank in _align_epoch(members, epoch)}
    return [f"{format_count(len(moved), 'rank')} began to record later: their steps are numbered on"] if moved else []


def _align_epoch(unnumbered: Sequence[StagedRank], epoch: int | None) -> list[int | None]:
    """Renumber the steps of ranks that began to record an epoch later than others, and return these ranks."""
    timed = [staged for staged in unnumbered if staged.record.utc_offset_ns is not None]
    if not timed:
        return []
    reference = max(timed, key=lambda staged: len(staged.record.steps))
    shifts = dict.fromkeys(map(id, timed), 0)
    of_reference = cache(partial(_gpu_starts, reference))  # read once, where any is wanted
    for staged in timed:
        # a host may run ahead of its GPU by whole steps, and GPUs wait for each other
        if by_host := clear_offset(_starts(reference), _starts(staged)):
            by_gpu = clear_offset(of_reference(), _gpu_starts(staged))
            shifts[id(staged)] = by_host if by_gpu == by_host else 0
    earliest = min(shifts.values())
    moved = []
    for staged in unnumbered:
        shift = shifts.get(id(staged), 0) - earliest
        if shift:
            moved.append(staged.record.rank)
            move_steps(staged, shift, epoch)
            from_first = "numbered in order from 0"
            staged.record.problems[:] = [
                problem.replace(from_first, f"{from_first[:-1]}{shift}") for problem in staged.record.problems
            ]
    return moved


def _starts(staged: StagedRank) -> list[int]:
    """Return the starts of the steps' markers, UTC."""
    return [step.start_ns + (staged.record.utc_offset_ns or 0) for step in staged.record.steps]


def _gpu_starts(staged: StagedRank) -> list[int]:
    """Return the starts of the steps' first kernels, UTC; those of the markers of steps without any."""
    starts = _starts(staged)
    for place, step in enumerate(staged.record.steps):
        if step.rows:
            rows = read_kernels(staged.path_of(step.key), ("start_ns",))
            starts[place] = pc.min(rows["start_ns"]).as_py() + (staged.record.utc_offset_ns or 0)
    return starts


def _common_reference(outcomes: Sequence[Outcome]) -> RankRepetition | None:
    """Return the lowest rank with which more than half of the ranks can be aligned, else the one with most of them."""
    staged = sorted((staged for outcome in outcomes for staged in outcome.ranks), key=lambda one: one.record.rank or 0)
    repetitions = [RankRepetition(one.record, one.repetition) for one in staged if one.repetition is not None]
    best, most = None, 0
    for reference in repetitions:
        aligned = 0
        for repetition in repetitions:
            with suppress(UnknownRankError):
                step_offset(reference, repetition)
                aligned += 1
        if aligned > most:
            best, most = reference, aligned
        if 2 * aligned > len(repetitions):
            break
    return best


def _kind_of_most(outcomes: Sequence[Outcome], records: Sequence[SourceRecord]) -> str | None:
    """Return how the steps of most ranks were found, in doubt the first of `_OTHERWISE`; None without ranks.

    The ranks of the lake (`records`) decide, if it has any.
    """
    held = [record for record in records if record.rank is not None]
    held = held or [staged.record for outcome in outcomes for staged in outcome.ranks]
    counts = Counter(record.steps_from for record in held)
    return max(_OTHERWISE, key=lambda kind: counts[kind]) if counts else None


_OTHERWISE: Final = {
    "marker": "has no step markers, but other ranks have",
    "repetition": "has no step markers, and its kernels do not repeat as those of other ranks do",
    "whole capture": "its steps are found where kernels repeat, and those of most ranks are whole captures",
}
"""How steps are found on most ranks, the best way first, and what is said of a rank where they are found otherwise."""


def _renumber(staged: StagedRank, shift: int) -> None:
    if shift == 0:
        return
    early = sum(step.step + shift < 0 for step in staged.record.steps)
    staged.record.steps[:] = [step for step in staged.record.steps if step.step + shift >= 0]
    if early:
        if staged.record.repetition is not None:
            del staged.record.repetition.collectives_before[:early]
        staged.record.problems.append(f"{early} steps lie before the first step of the lake and are left out")
    staged.files[:] = [(path, key) for path, key in staged.files if key is None or key.step + shift >= 0]
    move_steps(staged, shift, epoch_of([staged]))


def move_steps(staged: StagedRank, shift: int, epoch: int | None) -> None:
    """Add `shift` to the numbers of all steps, which are of no other epoch so far, and make them steps of `epoch`."""
    for step in staged.record.steps:
        step.step, step.epoch = step.step + shift, epoch
    staged.files[:] = [(path, key if key is None else StepKey(epoch, key.step + shift)) for path, key in staged.files]
    host = staged.folder / "host.parquet"
    if host.exists():
        rows = read_host(host, HOST.names)
        steps = pc.add(rows["step"], shift)
        early_or_new = pc.if_else(pc.less(steps, 0), pa.scalar(None, pa.int64()), steps)
        epochs = pc.if_else(early_or_new.is_valid(), pa.scalar(epoch, pa.int64()), pa.scalar(None, pa.int64()))
        for name, values in (("step", early_or_new), ("epoch", epochs)):
            rows = rows.set_column(rows.schema.get_field_index(name), name, values)
        staged.record.host_checksum, staged.record.host_size = write_host(host, rows)
