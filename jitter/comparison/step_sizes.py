"""How large the batches of a run's steps are: by their markers, else by the work that their kernels were launched with.

Launched work does not depend on how fast GPUs are, so it tells a larger batch from a slower GPU. It is that of one
kernel sequence: threads of other kernels are no measure of the same batch.
"""

from collections import Counter
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.comparison.document import size_tolerance
from jitter.core.numeric.arrays import spread_positions
from jitter.core.step_key import StepKey

if TYPE_CHECKING:
    from jitter.api import Lake

SHAPE_COLUMNS: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
_TRIED: Final = 8
"""Steps, at even distances, that tell whether the launched work varies at all."""


class StepSizes(NamedTuple):
    """Sizes of steps; NaN where unknown."""

    of: str | None
    """Digest of the kernel sequence whose launched threads these are; None: tokens or requests, as markers state."""
    sizes: dict[StepKey, float]


def list_step_sizes(lake: "Lake", keys: Sequence[StepKey]) -> StepSizes:
    """Return the sizes of these steps; without stated ones and where launched work does not tell, all are NaN."""
    stated = {key: lake.batch_sizes[key] for key in keys}
    if not keys or not all(np.isnan(size) for size in stated.values()):
        return StepSizes(None, stated)
    rank = lake.ranks_of(keys[0])[0]
    sequence_of = {key: lake.record_of(key, rank).step.sequence for key in keys if rank in lake.ranks_of(key)}
    (sequence, _), *_ = Counter(sequence_of.values()).most_common(1)
    same = [key for key, other in sequence_of.items() if other == sequence]
    peers = [one for one in lake.ranks_of(same[0]) if lake.record_of(same[0], one).step.sequence == sequence]
    sizes = _count_threads(lake, [same[at] for at in spread_positions(len(same), _TRIED)], {rank, peers[-1]})
    if len(sizes) and max(sizes.values()) > (1 + size_tolerance(sequence)) * min(sizes.values()):
        sizes = _count_threads(lake, same, {rank, peers[-1]})
    else:  # of one size
        sizes = dict.fromkeys(same, min(sizes.values(), default=np.nan))
    return StepSizes(sequence, stated | sizes)


def _count_threads(lake: "Lake", keys: Sequence[StepKey], ranks: Set[int]) -> dict[StepKey, float]:
    """Return the threads that a step's kernels were launched with, of the steps in which these ranks have as many."""
    sizes = {}
    for key in keys:
        there = sorted(ranks & set(lake.ranks_of(key)))
        read = lake.step_columns(key, SHAPE_COLUMNS, there)
        threads = np.prod([read.values(column).astype(np.float64) for column in SHAPE_COLUMNS], axis=0)
        of_ranks = np.bincount(read.of_rank, threads, len(there))
        if of_ranks.min() > 0 and of_ranks.max() <= (1 + THRESHOLDS.gpu_spread_share) * of_ranks.min():
            sizes[key] = float(of_ranks.min())
    return sizes
