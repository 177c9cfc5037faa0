"""Inferred waits against the program's: precision, recall, and whether rules of some steps hold on others."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from jitter.simulate import RankRecording, Run
from jitter.simulate.program import GPU_KINDS
from tests.support.true_dependencies import Dependency, true_dependencies

NOISE_NS: Final = 20_000
"""A wait that never held anything by more than this may be missed: METRICS cannot tell it from being right after."""


class Found(NamedTuple):
    """Counts over a job's programs."""

    right: int
    inferred: int
    seen: int
    """Of the true ones that held something by more than the noise."""
    binding: int


class _Wait(NamedTuple):
    ordinal: int
    on_ordinal: int
    kind: str


def compare(run: Run, lake: Any) -> Found:
    """The waits of all cohorts of the lake.

    A cohort of several stages has the waits of one of them, as its reference is one's: the one they fit best counts.
    """
    true = true_dependencies(run)
    total = Found(0, 0, 0, 0)
    for cohort in sorted(set(lake.cohorts.values())):
        inferred = _inferred(lake, cohort)
        stages = sorted({int(run.plan.stage[rank]) for rank, own in lake.cohorts.items() if own == cohort})
        best = max((_of_stage(run, stage, true[stage], inferred) for stage in stages), key=_fit)
        total = Found(*(one + other for one, other in zip(total, best, strict=True)))
    return total


def _fit(found: Found) -> float:
    return found.right - found.inferred + found.seen - found.binding


def _inferred(lake: Any, cohort: int) -> list[_Wait]:
    """Those within a step."""
    waits = [_Wait(wait.ordinal, wait.on_ordinal, wait.kind) for wait in lake.dependencies(cohort)]
    return [wait for wait in waits if wait.kind != "queue" and 0 <= wait.on_ordinal < wait.ordinal]


def _of_stage(run: Run, stage: int, true: Sequence[Dependency], inferred: Sequence[_Wait]) -> Found:
    streams = [op.stream for op in run.plan.programs[stage].step if op.kind in GPU_KINDS and not op.added]
    mine = [_Wait(*one[:3]) for one in true if one.kind != "queue" and one.steps_back == 0]
    follows, told = _reach(streams, mine), _reach(streams, [one for one in inferred if one.ordinal < len(streams)])
    right = sum(one.ordinal < len(streams) and follows[one.on_ordinal] >> one.ordinal & 1 for one in inferred)
    held = [one for one in true if one.kind != "queue" and not one.steps_back and one.margin_ns > NOISE_NS]
    held = [one for one in held if one.binding]
    return Found(right, len(inferred), sum(told[one.on_ordinal] >> one.ordinal & 1 for one in held), len(held))


def _reach(streams: Sequence[int], waits: Iterable[_Wait]) -> list[int]:
    """For each operation a number whose bit n tells whether operation n cannot start before it has ended.

    Operations of one stream follow each other; whatever is launched after a call that waited follows what that
    waited for.
    """
    count = len(streams)
    after: list[int] = [0] * count
    for wait in waits:
        # of launches in one order, all later ones come after one that waited
        later = ((1 << count) - 1) >> wait.ordinal << wait.ordinal
        after[wait.on_ordinal] |= later if wait.kind == "sync" else 1 << wait.ordinal
    following: dict[int, int] = {}
    reach = [0] * count
    for at in range(count - 1, -1, -1):
        direct = after[at] | (1 << following[streams[at]] if streams[at] in following else 0)
        following[streams[at]] = at
        reach[at] = direct
        for other in range(at + 1, count):
            if direct >> other & 1:
                reach[at] |= reach[other]
    return reach


def broken(run: Run, lake: Any, steps: Sequence[int]) -> tuple[int, int]:
    """(rules broken, rules) of the lake's waits in these steps of the run: an operation that starts too early."""
    count = wrong = 0
    recordings = {one.rank: _ordinals(one) for one in run.ranks()}
    for cohort in sorted(set(lake.cohorts.values())):
        inferred = _inferred(lake, cohort)
        ranks = [rank for rank, own in lake.cohorts.items() if own == cohort]
        stages = {int(run.plan.stage[rank]) for rank in ranks}
        of_stage = []
        for stage in stages:
            mine = [rank for rank in ranks if run.plan.stage[rank] == stage]
            cells = [recordings[rank][step] for rank in mine for step in steps if step in recordings[rank]]
            of_stage.append(sum(any(_too_early(cell, wait) for cell in cells) for wait in inferred))
        count += len(inferred)
        wrong += min(of_stage)
    return wrong, count


def _too_early(cell: Sequence[tuple[int, int, int]], wait: _Wait) -> bool:
    if wait.ordinal >= len(cell):
        return True
    launched, start, _ = cell[wait.ordinal]
    return (launched if wait.kind == "sync" else start) < cell[wait.on_ordinal][2]


def _ordinals(recording: RankRecording) -> dict[int, list[tuple[int, int, int]]]:
    """step -> (launch, start, end) of each operation that all ranks run."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    rows = zip(
        recording.ops(),
        recording.step.tolist(),
        recording.in_step.tolist(),
        recording.launch_start_ns.tolist(),
        recording.start_ns.tolist(),
        recording.end_ns.tolist(),
        strict=True,
    )
    for op, step, inside, launched, start, end in rows:
        if inside and not op.added:
            found.setdefault(step, []).append((launched, start, end))
    return found
