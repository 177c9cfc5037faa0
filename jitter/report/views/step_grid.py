"""One cohort's step as grids of kernels by ranks."""

from collections.abc import Mapping, Sequence

import numpy as np

from jitter.analysis.alignment.program import Program
from jitter.analysis.diagnosis.model import StepAnswer
from jitter.analysis.execution.step_times import TeamTimes
from jitter.analysis.metrics.step_metrics import METRICS as MEASURED
from jitter.api import Lake
from jitter.core.errors import UsageError
from jitter.core.formatting import format_numbers
from jitter.core.numeric.arrays import Codes, Floats, Ints

METRICS = tuple(MEASURED)


class StepGrid:
    """The metrics of a cohort in one step. Times in ns, NaN for the unknown."""

    def __init__(self, lake: Lake, step: StepAnswer) -> None:
        """Read the cohort of the step's max rank; the first cohort if the step has no max rank."""
        measured = lake.metrics(step.key)
        kernels = measured.kernels
        cohorts = np.unique(kernels.cohort_of)
        self.empty = not cohorts.size
        """Whether no rank recorded the step completely; nothing else is set then."""
        if self.empty:
            return
        self.key = step.key
        self.cohort: int = int(cohorts[0]) if step.max_rank is None else lake.cohorts[step.max_rank]
        self.names = next(index.names for index in measured.indices if index.cohort == self.cohort)
        """Kernel names by kernel index."""
        self.alignment: str = measured.alignments[self.cohort].method
        """Alignment method: collective, wall clock or none."""
        mine = kernels.cohort_of == self.cohort
        of_cohort = mine[kernels.of_rank]
        rows = np.flatnonzero(of_cohort & kernels.is_matched)
        index, rank = kernels.index[rows], kernels.of_rank[rows]
        every = np.array(kernels.ranks, np.int64)
        present, held = np.bincount(index) > 0, np.bincount(rank, minlength=every.size) > 0
        self.kernel_index: Codes = np.flatnonzero(present).astype(np.int32)
        self.ranks: Ints = every[held]
        # bincount instead of sorting: a step can have a million rows and few kernels
        cell = (np.cumsum(present) - 1)[index] * self.ranks.size + (np.cumsum(held) - 1)[rank]
        self._grids: dict[str, Floats] = {}
        for name in METRICS:
            metric = measured.metric(name)
            deviates = name != "launch_latency" and not self.single
            values, is_known = measured.deviation(metric) if deviates else metric
            grid = np.full(self.kernel_index.size * self.ranks.size, np.nan)
            grid[cell] = np.where(is_known, values, np.nan)[rows]
            self._grids[name] = grid.reshape(self.kernel_index.size, self.ranks.size)
            if name == "launch_latency":
                self.negative_latencies = int((metric.known & of_cohort & (metric.values < 0)).sum())
        bounds = [
            (first, end) for first, end in zip(kernels.bounds[:-1], kernels.bounds[1:], strict=True) if end > first
        ]
        spans = [int(kernels.end_ns[a:b].max() - kernels.start_ns[a:b].min()) for a, b in bounds if of_cohort[a]]
        self.span_ns = float(max(spans))
        """Longest time from first start to last end of a rank's kernels."""
        self.is_collective = np.zeros(self.kernel_index.size, np.bool_)
        """Of each kernel: whether it is a collective, whose duration includes waiting."""
        self.is_collective[(np.cumsum(present) - 1)[index[kernels.is_collective[rows]]]] = True
        self.waits_for_collective = np.zeros(self.kernel_index.size, np.bool_)
        """Of each kernel: whether its gap includes waiting for a collective; filled in by the analysis."""
        self.collectives = int(np.bincount(kernels.of_rank[of_cohort & kernels.is_collective], minlength=1).max())
        """The most collectives of a rank, whether they are matched across ranks or not."""
        sizes = np.where(kernels.known("message_bytes"), kernels.values("message_bytes").astype(np.float64), np.nan)
        self._held = every[mine]
        row, position = (np.cumsum(mine) - 1)[kernels.of_rank[of_cohort]], kernels.position[of_cohort]
        shape = (self._held.size, 1 + int(position.max(initial=0)))
        self._index, self._sizes = np.full(shape, -1, np.int32), np.full(shape, np.nan)
        place = row * shape[1] + position
        self._index.ravel()[place] = np.maximum(kernels.index[of_cohort], -1)
        self._sizes.ravel()[place] = sizes[of_cohort]

    @property
    def single(self) -> bool:
        """Whether the cohort has one rank: values take the place of deviations."""
        return self.ranks.size == 1

    def metric(self, name: str) -> Floats:
        """Return the deviations of a metric, shape (kernels, ranks); values of launch latency and of a single rank."""
        return self._grids[name]

    def add(self, grids: Mapping[str, Floats]) -> None:
        """Add further series, each of shape (kernels, ranks) in ns, to be read as metrics are."""
        self._grids.update(grids)

    def column(self, rank: int) -> int:
        """Return the column of a rank; raise `UsageError` for a rank that is not in the cohort's step."""
        at = int(np.searchsorted(self.ranks, rank))
        if at == self.ranks.size or self.ranks[at] != rank:
            raise UsageError(
                f"no rank {rank} among those that {self.key} shows", f"it has {format_numbers(self.ranks.tolist())}"
            )
        return at

    def at(self, ranks: Sequence[int] | Ints, positions: Ints) -> tuple[Codes, Floats]:
        """Return kernel index and message size (bytes) of kernels given by rank and position, (…, ranks).

        The index is -1 for a kernel without an index or of another cohort.
        """
        given = np.asarray(ranks)
        here = np.isin(given, self._held)
        row = np.searchsorted(self._held, given[here])
        index, size = np.full(positions.shape, -1, np.int32), np.full(positions.shape, np.nan)
        at = row, positions[..., here]
        index[..., here], size[..., here] = self._index[at], self._sizes[at]
        return index, size

    def of_operations(self, program: Program, times: TeamTimes) -> tuple[Codes, Floats]:
        """Return kernel index and message size (bytes) of a team's operations in this step, (operations, ranks).

        The index is -1 for an operation that is no kernel or that a rank lacks, and as in `at`.
        """
        is_kernel = times.present & np.array([operation.is_kernel for operation in program.operations])[:, None]
        index, size = self.at(times.ranks, np.cumsum(is_kernel, axis=0) - 1)
        return np.where(is_kernel, index, -1).astype(np.int32), size
