"""One cohort's step as grids, kernels × ranks: what its figures select from."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from jitter.analysis.diagnosis.model import StepAnswer
from jitter.analysis.metrics.step_metrics import METRICS as MEASURED
from jitter.api import Lake
from jitter.core.errors import UsageError
from jitter.core.formatting import format_numbers

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
METRICS = tuple(MEASURED)


class StepGrid:
    """A cohort's ranks in one step. Times in ns, NaN for the unknown."""

    def __init__(self, lake: Lake, step: StepAnswer) -> None:
        """Read the cohort that the step's max rank is in (the first, where it has none)."""
        measured = lake.metrics(step.key)
        kernels = measured.kernels
        cohorts = np.unique(kernels.cohort_of)
        self.empty = not cohorts.size
        """Whether no rank recorded the step whole."""
        if self.empty:
            return
        self.key = step.key
        self.cohort: int = int(cohorts[0]) if step.max_rank is None else lake.cohorts[step.max_rank]
        self.names = next(index.names for index in measured.indices if index.cohort == self.cohort)
        """Of kernels, by index."""
        self.alignment: str = measured.alignments[self.cohort].method
        """How the ranks were aligned: collective, wall clock or none."""
        mine = kernels.cohort_of == self.cohort
        of_cohort = mine[kernels.of_rank]
        rows = np.flatnonzero(of_cohort & kernels.is_matched)
        index, rank = kernels.index[rows], kernels.of_rank[rows]
        every = np.array(kernels.ranks, np.int64)
        present, held = np.bincount(index) > 0, np.bincount(rank, minlength=every.size) > 0
        self.kernel_index: Ints = np.flatnonzero(present).astype(np.int32)
        self.ranks: Longs = every[held]
        # counted, not sorted: there are a million rows and few places
        self._place = ((np.cumsum(present) - 1)[index], (np.cumsum(held) - 1)[rank])
        self._grids = {}
        for name in METRICS:
            metric = measured.metric(name)
            deviates = name != "launch_latency" and not self.single
            values, known = measured.deviation(metric) if deviates else metric
            self._grids[name] = self._grid(np.where(known[rows], values[rows], np.nan))
            if name == "launch_latency":
                self.negative_latencies = int((metric.known & of_cohort & (metric.values < 0)).sum())
        bounds = [
            (first, end) for first, end in zip(kernels.bounds[:-1], kernels.bounds[1:], strict=True) if end > first
        ]
        spans = [int(kernels.end_ns[a:b].max() - kernels.start_ns[a:b].min()) for a, b in bounds if of_cohort[a]]
        self.span_ns = float(max(spans))
        """How long the step's kernels take on the rank that takes longest."""
        sizes = np.where(kernels.known("message_bytes"), kernels.values("message_bytes").astype(np.float64), np.nan)
        self._held = every[mine]
        row = (np.cumsum(mine) - 1)[kernels.of_rank[of_cohort]]
        place = (row, kernels.position[of_cohort])
        shape = (self._held.size, 1 + int(place[1].max(initial=-1)))
        self._index, self._sizes = np.full(shape, -1, np.int32), np.full(shape, np.nan)
        self._index[place], self._sizes[place] = np.maximum(kernels.index[of_cohort], -1), sizes[of_cohort]

    @property
    def single(self) -> bool:
        """Whether there is nobody to compare with: values stand for deviations then."""
        return self.ranks.size == 1

    def metric(self, name: str) -> Floats:
        """Deviations of a metric (values of launch latency, and of a single rank), shape (kernels, ranks)."""
        return self._grids[name]

    def of(self, rank: int, name: str) -> Floats:
        """One rank's; raises `UsageError` for a rank that the cohort lacks in this step."""
        at = int(np.searchsorted(self.ranks, rank))
        if at == self.ranks.size or self.ranks[at] != rank:
            raise UsageError(
                f"no rank {rank} among those that {self.key} shows", f"it has {format_numbers(self.ranks.tolist())}"
            )
        column: Floats = self._grids[name][:, at].copy()
        return column

    def at(self, ranks: Sequence[int] | Longs, positions: Longs) -> tuple[Ints, Floats]:
        """Kernel index (-1: none, or of another cohort) and message size, bytes, of ranks' rows by position."""
        given = np.asarray(ranks)
        here = np.isin(given, self._held)
        row = np.searchsorted(self._held, given[here])
        index, size = np.full(len(given), -1, np.int32), np.full(len(given), np.nan)
        index[here], size[here] = self._index[row, positions[here]], self._sizes[row, positions[here]]
        return index, size

    def _grid(self, values: Floats) -> Floats:
        grid = np.full((self.kernel_index.size, self.ranks.size), np.nan)
        grid[self._place] = values
        return grid
