"""Like steps: which steps of a run are compared with each other, by kind, program and size of their batches."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from jitter.analysis.alignment.step_programs import number_programs, split_by_size
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.self_times import SelfTimes
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.numeric.stats import qn_sigma
from jitter.lake.records import ON_REQUEST


class LikeSteps:
    """Three divisions of a run's steps, by their positions in the run; each divides the parts of the one before."""

    def __init__(self, lake: RunReader, run: RunModel, baselines: Mapping[int, SelfTimes]) -> None:
        """`baselines` are by step the medians of self times, (operations of all teams,)."""
        self._lake, self._run, self._baselines = lake, run, baselines

    @cached_property
    def kinds(self) -> list[str]:
        """The kind of each step: `train`, `prefill`, `decode`, …, as its marker says."""
        return [self._lake.kind(key) for key in self._run.keys]

    @cached_property
    def kernel_counts(self) -> Floats:
        """(steps, ranks) the kernels of each step and rank; NaN where a rank lacks the step."""
        return self._lake.kernel_counts(sorted(self._run.team_of)).recorded

    @cached_property
    def programs(self) -> Ints:
        """(steps,) the number of each step's program among those of its kind, 0 for the commonest one."""
        numbers = np.zeros(len(self.kinds), np.int64)
        sequences = self._lake.kernel_sequences(sorted(self._run.team_of))
        for kind in sorted(set(self.kinds)):
            alike = np.flatnonzero(np.array(self.kinds) == kind)
            counts = self.kernel_counts[alike]
            numbers[alike] = number_programs(counts, sequences[alike], on_request=kind in ON_REQUEST)
        return numbers

    @cached_property
    def by_program(self) -> list[Ints]:
        """The numbers of the steps in which ranks have like work: those of one kind and one program."""
        kinds = list(zip(self.kinds, self.programs.tolist(), strict=True))
        return [np.array([at for at, of_step in enumerate(kinds) if of_step == kind]) for kind in sorted(set(kinds))]

    @cached_property
    def by_stated_size(self) -> list[Ints]:
        """The numbers of the steps of one kind and program whose batches are about as large, as markers state it."""
        sizes = np.array([self._lake.batch_size(key) for key in self._run.keys])
        return [alike for numbers in self.by_program for alike in split_by_size(numbers, sizes[numbers])]

    @cached_property
    def by_size(self) -> list[Ints]:
        """The numbers of the steps that should take as long: the same, and of about one measured size.

        Where the usual rank's GPU time varies from step to step, it tells how large batches are. Of the whole run all
        `baselines` must be known.
        """
        share = THRESHOLDS.gpu_spread_share  # what differs by more may be a larger batch
        return [
            alike
            for numbers in self.by_stated_size
            for alike in split_by_size(numbers, self._measure_work(numbers), share)
        ]

    def _measure_work(self, numbers: Ints) -> Floats:
        """Return, (steps,), the GPU time of the usual rank in like steps, ns; NaN where it hardly varies."""
        work_ns = np.array([float(np.nansum(self._baselines[number].gpu)) for number in numbers.tolist()])
        usual_ns, varies_by_ns = float(np.median(work_ns)), float(qn_sigma(work_ns[:, None])[0])
        is_varied = len(numbers) >= THRESHOLDS.min_steps and varies_by_ns > THRESHOLDS.tolerance_share * usual_ns
        return work_ns if is_varied else np.full(len(numbers), np.nan)

    @cached_property
    def size_of(self) -> Ints:
        """(steps,) the position of each step's size in `by_size`."""
        return _positions(self.by_size)

    @cached_property
    def stated_size_of(self) -> Ints:
        """(steps,) the position of each step's size in `by_stated_size`."""
        return _positions(self.by_stated_size)


def _positions(parts: Sequence[Ints]) -> Ints:
    """Return, (steps,), the position of the part that has each step."""
    positions = np.empty(sum(map(len, parts)), np.int64)
    for position, numbers in enumerate(parts):
        positions[numbers] = position
    return positions
