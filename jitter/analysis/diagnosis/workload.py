"""Whether what takes long on a GPU is the work of the others: its kernels and their launch shapes beside theirs.

A rank without peers is compared with its own other steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from jitter.analysis.detection.outliers import Outlier
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.model import Cause
from jitter.analysis.execution.launch_shapes import Shapes
from jitter.core.arrays import Floats, Ints
from jitter.core.formatting import format_percent
from jitter.core.stats import lower_median
from jitter.core.step_key import StepKey

MOST: Final = 0.5
"""Part of an excess that must be of one kind for that to be the cause."""
_PEERS: Final = 128
"""Ranks whose launches a late one's are compared with: of each a file has to be read, for each suspect and step."""
_OTHER_STEPS: Final = 8
_T = TypeVar("_T")


def find_gpu_cause(examined: RunAnalysis, suspect: Outlier, steps: Sequence[int]) -> tuple[Cause, tuple[str, ...]]:
    """Tell the cause of one rank's GPU time, and why, from these steps of the run."""
    run, team, rank = examined.run, suspect.team, suspect.rank
    alone = run.sizes[team] == 1
    excess = differing = 0.0
    operations = others = extra = 0
    for number in steps:
        key = examined.keys[number]
        if rank not in run.ranks(key, team):
            continue
        beside = _own_steps(examined, suspect, key) if alone else [(key, _with_peers(rank, run.ranks(key, team)))]
        recorded = run.of_rank(key, rank)
        gpu = np.nan_to_num(recorded.end - recorded.start)[:, 0]
        gpu[run.collective_places(team)] = 0.0
        shape = compare_launch_shapes(
            np.hstack([run.rows(step, team, ranks) for step, ranks in beside]),
            gpu,
            examined.steps.typical[number][team].gpu[:, 0],
            [(step, one) for step, ranks in beside for one in ranks].index((key, rank)),
            [its for step, ranks in beside for its in examined.lake.launch_shapes(step, ranks)],
        )
        excess, differing = excess + shape.excess_ns, differing + shape.differing_ns
        operations, others, extra = operations + shape.operations, others + shape.differing, extra + shape.extra
    whose, they = ("its other steps'", "they") if alone else ("the others'", "the others")
    if excess and differing >= MOST * excess:
        told = f"{format_percent(differing / excess)} of the GPU time above {whose} is in {others} operations"
        more = f", {extra} of which {they} do not run" if extra else ""
        return "workload_imbalance", (f"{told} of another name or launch shape than theirs{more}",)
    same = operations - others
    return "gpu_compute", (f"{same} of {operations} operations that took longer have {whose} launch shape",)


def _own_steps(examined: RunAnalysis, suspect: Outlier, key: StepKey) -> list[tuple[StepKey, list[int]]]:
    """The step and some of the rank's others, those in which it is not late."""
    run, late = examined.run, set(suspect.steps)
    there = [
        other
        for number, other in enumerate(examined.keys)
        if number not in late and suspect.rank in run.ranks(other, suspect.team)
    ]
    return [(step, [suspect.rank]) for step in (key, *_spread(there, _OTHER_STEPS))]


def _with_peers(rank: int, ranks: Iterable[int]) -> list[int]:
    """The rank, and as many of the team's other `ranks` as it is compared with, in order."""
    return sorted([rank, *_spread([other for other in ranks if other != rank], _PEERS)])


def _spread(some: Sequence[_T], most: int) -> list[_T]:
    """So many of them at most, from the first to the last."""
    return [some[at] for at in np.linspace(0, len(some) - 1, min(len(some), most)).astype(int).tolist()]


@dataclass(frozen=True)
class LaunchShapeComparison:
    """Of one rank's GPU excess in a step: how much of it lies in operations that differ from the others'."""

    excess_ns: float
    """Over the operations that took longer than the median."""
    differing_ns: float
    """Of it, what more work explains: larger launches, in proportion; other kernels, or ones that most ranks lack."""
    operations: int
    """How many operations took longer."""
    differing: int
    """How many of them had more or other work."""
    extra: int
    """Of the differing, how many most ranks have not."""


def compare_launch_shapes(
    rows_of: Ints, gpu: Floats, usual: Floats, column: int, shapes: Sequence[Shapes]
) -> LaunchShapeComparison:
    """Look at one rank, which is one of the columns.

    `rows_of` (operations, columns) are rows in the columns' files, -1 for none, and `shapes` those files'; `gpu` and
    `usual`, (operations,) each, are its times on the GPU and what is usual, in ns.
    """
    late = np.where(rows_of[:, column] >= 0, gpu - usual, 0.0)
    slow = np.flatnonzero(late > 0)
    name, threads = _names_and_threads(rows_of[slow], shapes)
    others = (name >= 0).sum(axis=1)
    same = (name == name[:, [column]]).sum(axis=1)
    lacked = 2 * others <= len(shapes)
    another = ~lacked & (2 * same <= others)
    # by how much longer so much more work should take
    more = np.nan_to_num(threads[:, column] / lower_median(threads)[:, 0] - 1)
    larger = np.minimum(late[slow], np.maximum(more, 0.0) * usual[slow])
    explained = np.where(lacked | another, late[slow], larger)
    return LaunchShapeComparison(
        float(late[slow].sum()),
        float(explained.sum()),
        len(slow),
        int((explained > 0).sum()),
        int(lacked.sum()),
    )


def _names_and_threads(rows_of: Ints, shapes: Sequence[Shapes]) -> tuple[Ints, Floats]:
    """(operations, columns): kernel names as numbers, -1 where there is none, and threads, NaN there."""
    name = np.full(rows_of.shape, -1, np.int64)
    threads = np.full(rows_of.shape, np.nan)
    for column, shape in enumerate(shapes):
        there = rows_of[:, column] >= 0
        name[there, column] = shape.name[rows_of[there, column]]
        threads[there, column] = shape.threads[rows_of[there, column]]
    return name, threads
