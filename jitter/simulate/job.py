"""Parameters of a simulated job: size, shape, launches, noise."""

from dataclasses import dataclass
from typing import Final, Literal

from jitter.core.errors import UsageError

MarkerStyle = Literal["talk", "profiler", "iteration", "none"]
SYNCS: Final = ("loss", "before", "after")
"""Places where a step waits for the GPU: to read the loss, before and after the weight update."""
MIN_KERNELS = 8
MAIN_STREAM: Final = 7
"""Stream of the compute kernels."""
GRADIENT_STREAM: Final = 33
"""Stream on which gradients are reduced."""


@dataclass(frozen=True)
class Job:
    """A training job: its ranks repeat a step and synchronize in its collectives."""

    ranks: int = 8
    steps: int = 4
    kernels: int = 60
    """Kernels per step and rank, with collectives, without memory operations."""
    seed: int = 0
    gpus_per_node: int = 8
    first_step: int = 0
    epoch: int | None = 1
    """Epoch in the markers of style "talk"; other styles have none."""
    marker: MarkerStyle = "talk"
    """Text of step markers; formats with a single style (PyTorch profiler) use their own."""
    noise: float = 0.02
    """Relative standard deviation of every GPU duration."""
    cpu_noise: float = 0.08
    """Relative standard deviation of every CPU time."""
    second_thread: bool = True
    """Whether autograd's own thread launches the backward pass."""
    buckets: int | None = None
    """All-reduces per step; default: one per 40 kernels, 2 to 24."""
    cpu_ns: int = 6500
    """Mean CPU time between two calls."""
    call_ns: int = 5200
    """Mean duration of a launching call."""
    stream_gap_ns: int = 950
    """Mean time between two kernels of a busy stream."""
    gpu_scale: float = 1.0
    """Factor of all GPU durations."""
    warmup_kernels: int = 6
    """Kernels launched before the first step."""
    tail_kernels: int = 2
    """Kernels launched after the last step."""
    clock_error_ns: int = 1_500_000
    """Standard deviation of the error of a recording's wall clock (NTP)."""
    shape: str = "data_parallel"
    """Parallelism of the job; see `jitter.simulate.shapes.SHAPES`."""
    tensor: int | None = None
    """Ranks of a tensor-parallel group; default: as many of a node as leave several groups."""
    stages: int | None = None
    """Pipeline stages; default: 4, or fewer if 4 does not divide the ranks."""
    microbatches: int | None = None
    """Micro-batches per step of a pipeline; default: twice its stages."""
    experts: int | None = None
    """Ranks of an expert group; default: as many of a node as leave several groups."""
    cpu_bound: bool = False
    """Whether the CPU is slower than the GPU throughout."""
    launch_queue: int | None = None
    """Slots of the launch queue; a launch into a full queue returns when a pending one has started."""
    syncs: frozenset[str] = frozenset()
    """Additional places, of `SYNCS`, where the CPU waits for the GPU."""
    variable_work: float = 0.0
    """Largest relative variation of the input size between ranks and steps, which half of the kernels follow."""
    autotuned: float = 0.0
    """Fraction of matrix kernels for which autotuning chooses different kernels on different ranks."""
    side_stream: int | None = None
    """Second stream for a third of the compute kernels, synchronized by events."""
    interference: float = 0.0
    """By what part compute kernels take longer while a collective that was launched before them runs on their GPU."""

    def __post_init__(self) -> None:
        for what, least in (("ranks", 1), ("steps", 1), ("kernels", MIN_KERNELS), ("gpus_per_node", 1)):
            if getattr(self, what) < least:
                raise UsageError(f"a simulated job needs {what} >= {least}, not {getattr(self, what)}")
        if not 0 <= self.noise < 1 or not 0 <= self.cpu_noise < 1:
            raise UsageError("noise is a fraction from 0 to below 1", "0.02 is two percent")
        if self.buckets is not None and not 1 <= self.buckets <= self.kernels // 4:
            raise UsageError(
                f"{self.kernels} kernels a step hold 1 to {self.kernels // 4} all-reduces, not {self.buckets}"
            )

        if self.launch_queue is not None and self.launch_queue < 2:
            raise UsageError(f"a launch queue holds at least 2 launches, not {self.launch_queue}")
        for what in ("tensor", "stages", "microbatches", "experts"):
            size = getattr(self, what)
            if size is not None and size < 1:
                raise UsageError(f"{what}={size} is not 1 or more")
        for what in ("variable_work", "autotuned"):
            if not 0 <= getattr(self, what) <= 1:
                raise UsageError(f"{what} is a fraction from 0 to 1, not {getattr(self, what)}")
        if self.interference < 0:
            raise UsageError(f"interference={self.interference} is below 0", "0.2 is twenty percent")
        if self.side_stream is not None and self.side_stream in (MAIN_STREAM, GRADIENT_STREAM):
            raise UsageError(f"stream {self.side_stream} is taken", "name another as the side stream")
        if unknown := self.syncs - set(SYNCS):
            raise UsageError(f"no sync is called {min(unknown)!r}", f"there are {', '.join(SYNCS)}")

    @property
    def all_reduces(self) -> int:
        return self.buckets if self.buckets is not None else max(2, min(24, self.kernels // 40))

    @property
    def step_numbers(self) -> range:
        return range(self.first_step, self.first_step + self.steps)
