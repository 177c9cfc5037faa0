"""Whether what takes long on a GPU is the work of the others: its kernels and their launch shapes beside theirs.

A rank without peers is compared with its own other steps.
"""

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import numpy as np

from jitter.analysis.detection.outliers import Suspect
from jitter.analysis.detection.run_analysis import Examination
from jitter.analysis.diagnosis.model import Cause
from jitter.analysis.diagnosis.work_shape import work_shape
from jitter.core.formatting import format_percent
from jitter.core.step_key import StepKey

MOST: Final = 0.5
"""Part of an excess that must be of one kind for that to be the cause."""
_PEERS: Final = 128
"""Ranks whose launches a late one's are compared with: of each a file has to be read, for each suspect and step."""
_OTHER_STEPS: Final = 8
_T = TypeVar("_T")


def gpu_cause(examined: Examination, suspect: Suspect, steps: Sequence[int]) -> tuple[Cause, tuple[str, ...]]:
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
        shape = work_shape(
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


def _own_steps(examined: Examination, suspect: Suspect, key: StepKey) -> list[tuple[StepKey, list[int]]]:
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
