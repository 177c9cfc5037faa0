"""A job: its shape, what is irregular about it, its faults; all random draws are made once and kept."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

Draws = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    kind: str
    """slow_gpu, more_work, pause, late, slow_link, slow_network, all_slow."""
    ranks: tuple[int, ...]
    size: float
    """A factor; of pause and late a part of a step."""
    steps: tuple[int, ...] | None = None
    """None: all."""
    place: float = 0.5
    """Of a pause: at which part of the step's launches."""

    def happens(self, rank: int, step: int) -> bool:
        """Return whether it occurs on this rank in this step."""
        return rank in self.ranks and (self.steps is None or step in self.steps)


@dataclass(frozen=True)
class IrregularJob:
    """Everything about one job."""

    seed: int
    shape: str
    """overlapped, blocking, sharded, prefetched, pipeline."""
    ranks: int
    steps: int
    kernels: int
    effect: str
    """The irregular property; the table's row."""
    noise: float = 0.01
    """Relative deviation of each operation, independent."""
    heavy_tails: float = 0.0
    """Scale of t-distributed (3 degrees of freedom) factors of a rank's step."""
    wander: float = 0.0
    """Standard deviation of autocorrelated clocks."""
    wandering: tuple[int, ...] = ()
    common_wander: float = 0.0
    spread: float = 0.0
    """Standard deviation of a GPU's constant factor."""
    checkpoints: tuple[int, ...] = ()
    """Steps with a host pause on all ranks, of unequal length."""
    long_inputs: float = 0.0
    """Chance of a rare long input, per rank and step."""
    lengths: float = 0.0
    """Sequence lengths vary by this part, per rank and step."""
    batches: float = 0.0
    """Standard deviation of the logarithm of a step's batch, alike on all ranks."""
    fixed_grids: bool = False
    collections: float = 0.0
    """Chance of a garbage-collection pause, per rank and step."""
    interference: float = 0.0
    naming: str = "pair"
    """Of a pipeline's groups: column, pair, direction."""
    stages: int = 1
    microbatches: int = 1
    unequal: float = 0.0
    """Standard deviation of the logarithm of a micro-batch's size, alike on all stages."""
    synchronises: bool = True
    wait: str = ""
    """Where the host waits for the GPU: middle, end, ahead (at the end of a step, for the step before), limiter (of a
    sharded job: each layer for the layer before the last); else nowhere."""
    wait_on: str = "kernel"
    """What a wait at the end is for: kernel, device (all that was launched)."""
    wait_rows: bool = False
    """Whether the trace has rows for these waits."""
    after_wait: float = 0.0
    """Host time after each wait, as part of a step's compute time."""
    host_noise: float = 0.05
    """Relative deviation of host times and, three times that, of launching calls."""
    launch: float = 1.0
    """Factor of the launching calls: from about 10 the host is slower than the GPU."""
    loader: float = 0.0
    """Mean time of loading, as part of a step's compute time; it varies by half between ranks and steps."""
    pace: float = 0.0
    """Period at which a loader delivers, as part of a step's compute time."""
    on_main: tuple[int, ...] = ()
    """Ranks whose collectives run on the stream of their kernels."""
    transfer: float = 0.08
    """All collectives of a step without waiting, as part of its compute time."""
    absent: tuple[int, ...] = ()
    """Ranks without a trace."""
    devices: int = 4
    """GPUs of a host."""
    faults: tuple[Fault, ...] = field(default=())

    def without(self, *faults: Fault) -> "IrregularJob":
        """Return the job without these faults; all draws are the same."""
        return replace(self, faults=tuple(one for one in self.faults if one not in faults))

    @property
    def columns(self) -> int:
        """Ranks of a pipeline's stage."""
        return self.ranks // self.stages

    def stage(self, rank: int) -> int:
        """Return the rank's stage."""
        return rank // self.columns

    def rng(self, what: int) -> np.random.Generator:
        """Return the generator of one kind of draws."""
        return np.random.default_rng((self.seed, what))

    @cached_property
    def clock(self) -> Draws:
        """(ranks, steps) factor of compute-bound kernels without faults."""
        rng = self.rng(1)
        own = _wander(rng, self.ranks, self.steps) * self.wander
        own[[rank for rank in range(self.ranks) if rank not in self.wandering]] = 0.0
        common = _wander(rng, 1, self.steps) * self.common_wander
        constant = 1 + self.spread * rng.standard_normal((self.ranks, 1))
        found: Draws = np.clip(constant * (1 + own + common), 0.7, 2.0)
        return found

    @cached_property
    def step_factor(self) -> Draws:
        """(ranks, steps) factor of all kernels of a rank's step, heavy-tailed."""
        drawn = self.rng(2).standard_t(3, (self.ranks, self.steps)) * self.heavy_tails
        found: Draws = np.clip(1 + np.abs(drawn), 0.9, 3.0) if self.heavy_tails else np.ones_like(drawn)
        return found

    @cached_property
    def length(self) -> Draws:
        """(ranks, steps) relative sequence length."""
        rng = self.rng(3)
        found = 1 - self.lengths * rng.random((self.ranks, self.steps))
        rare = rng.random((self.ranks, self.steps)) < self.long_inputs
        longer: Draws = np.where(rare, rng.uniform(1.3, 2.0, found.shape), 1.0)
        alike: Draws = np.exp(self.batches * self.rng(8).standard_normal((1, self.steps)))
        return found * longer * alike

    @cached_property
    def microbatch(self) -> Draws:
        """(steps, micro-batches) relative sizes."""
        found: Draws = np.exp(self.unequal * self.rng(6).standard_normal((self.steps, self.microbatches)))
        return found

    @cached_property
    def collected(self) -> tuple[Draws, Draws]:
        """(ranks, steps) pauses as parts of a step, 0 for none, and where they are."""
        rng = self.rng(4)
        shape = (self.ranks, self.steps)
        pause = np.where(rng.random(shape) < self.collections, rng.uniform(0.2, 0.6, shape), 0.0)
        return pause, rng.random(shape)

    @cached_property
    def checkpoint(self) -> Draws:
        """(ranks, steps) pauses of checkpoints as parts of a step."""
        rng = self.rng(5)
        found = np.zeros((self.ranks, self.steps))
        for step in self.checkpoints:
            found[:, step] = rng.uniform(0.5, 1.0) * np.exp(0.3 * rng.standard_normal(self.ranks))
        return found


def _wander(rng: np.random.Generator, rows: int, steps: int) -> Draws:
    """Return rows of a first-order autoregression with unit variance and correlation 0.85 from step to step."""
    found = np.zeros((rows, steps))
    now = rng.standard_normal(rows)
    for step in range(steps):
        found[:, step] = now
        now = 0.85 * now + np.sqrt(1 - 0.85**2) * rng.standard_normal(rows)
    return found
