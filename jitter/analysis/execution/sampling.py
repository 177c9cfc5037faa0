"""What the rules of a program are inferred from: some of its steps, side by side."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jitter.analysis.execution.dependencies import Sample
from jitter.analysis.execution.launch_queue import Launches
from jitter.analysis.execution.program import Program
from jitter.analysis.execution.ready_times import Readiness, Tail
from jitter.analysis.execution.step_times import StepArrays
from jitter.core.arrays import Floats
from jitter.core.kernels import SYNC
from jitter.core.step_key import StepKey

_SAMPLED_ORDERS = 8
"""Ranks whose launches are followed over all sampled steps, for the queue."""


class Followed(NamedTuple):
    """One team's step, what held its operations back, and how the step before left its ranks."""

    key: StepKey
    step: StepArrays
    ready: Readiness
    tail: Tail


def sample(program: Program, parts: Sequence[Followed]) -> Sample:
    """Put the steps' cells beside each other."""

    def beside(values: Sequence[Floats]) -> Floats:
        return np.concatenate(values, axis=1)

    return Sample(
        beside([p.start for _, p, _, _ in parts]),
        beside([r.end_by(slice(None)) for _, _, r, _ in parts]),
        beside([p.call for _, p, _, _ in parts]),
        beside([p.back for _, p, _, _ in parts]),
        beside([r.submit for _, _, r, _ in parts]),
        beside([r.end_before for _, _, r, _ in parts]),
        beside([t.lane_end for _, _, _, t in parts]),
        _orders(program, parts),
    )


def _orders(program: Program, parts: Sequence[Followed]) -> list[Launches]:
    """Launches of some ranks in order, each stretch of consecutive steps by itself."""
    launches = np.array([op.kind != SYNC for op in program.operations], np.bool_)
    found: dict[tuple[int, int], list[Launches]] = defaultdict(list)
    stretch, last = 0, None
    for key, step, _, _ in parts:
        stretch += last is None or key != StepKey(last.epoch, last.step + 1)
        last = key
        for column in range(min(_SAMPLED_ORDERS, len(step.ranks))):
            known = launches & ~np.isnan(step.back[:, column])
            times = (step.call[known, column], step.back[known, column], step.start[known, column])
            found[stretch, int(step.ranks[column])].append(Launches(*times))
    return [Launches(*map(np.concatenate, zip(*pieces, strict=True))) for pieces in found.values()]
