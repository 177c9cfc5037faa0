"""What is simulated: the shape of a training job, how it is launched and how noisy it is."""

from dataclasses import dataclass
from typing import Final, Literal

from jitter.core.errors import UsageError
from jitter.simulate.kernel_names import Era

MarkerStyle = Literal["talk", "profiler", "iteration", "none"]
SYNCS: Final = ("loss", "before", "after")
"""Where a step waits for the GPU: to read the loss after the forward, before and after the weight update."""
MIN_KERNELS = 8


@dataclass(frozen=True)
class Job:
    """A training job: its ranks run their step over and over and meet in its collectives."""

    ranks: int = 8
    steps: int = 4
    kernels: int = 60
    """Kernels a step and rank, collectives included, memory operations not."""
    seed: int = 0
    gpus_per_node: int = 8
    first_step: int = 0
    epoch: int | None = 1
    """Named by the markers of style "talk" only."""
    marker: MarkerStyle = "talk"
    """How step ranges are worded; formats that have only one way (PyTorch's profiler) use theirs."""
    era: Era = "2024"
    """Whose spelling of kernel names."""
    noise: float = 0.02
    """Relative standard deviation of every GPU duration."""
    cpu_noise: float = 0.08
    """The same of every time on the host."""
    second_thread: bool = True
    """Backward is launched by autograd's own thread."""
    buckets: int | None = None
    """All-reduces a step; by default one for every 40 kernels, 2 to 24."""
    main_stream: int = 7
    collective_streams: tuple[int, ...] = (33,)
    data_loading: bool = True
    """Whether the fetching of each batch is recorded as a range."""
    cpu_ns: int = 6500
    """Mean host time between two calls."""
    call_ns: int = 5200
    """Mean time in a launching call."""
    launch_floor_ns: int = 2400
    """Least time from the end of a launch to the start of its kernel."""
    stream_gap_ns: int = 950
    """Mean time between two kernels of a busy stream."""
    gpu_scale: float = 1.0
    """Factor on all GPU durations."""
    warmup_kernels: int = 6
    """Launched before the first step."""
    tail_kernels: int = 2
    """Launched after the last step."""
    clock_spread_ns: int = 90_000_000_000
    """The recordings of different ranks begin up to this far apart."""
    clock_error_ns: int = 1_500_000
    """Standard deviation of the wall clock that a recording states (NTP)."""
    shape: str = "data_parallel"
    """Which program the ranks run: see `jitter.simulate.shapes.SHAPES`."""
    tensor: int | None = None
    """Ranks of a tensor-parallel group; by default the most of a node that leave several groups."""
    stages: int | None = None
    """Pipeline stages; by default 4, or fewer if the ranks do not divide by that."""
    microbatches: int | None = None
    """Of a pipeline's step; by default twice its stages."""
    experts: int | None = None
    """Ranks of an expert group; by default the most of a node that leave several groups."""
    cpu_bound: bool = False
    """The host is slower than its GPU all through."""
    launch_queue: int | None = None
    """So many launches may wait for the GPU; the next call returns only when one of them has started."""
    syncs: frozenset[str] = frozenset()
    """Where the host waits for the GPU beside what the shape has: of `SYNCS`."""
    variable_work: float = 0.0
    """Each rank's input differs in size from step to step by up to this fraction, and half the kernels with it."""
    autotuned: float = 0.0
    """Fraction of the matrix products for which ranks chose different kernels."""
    side_stream: int | None = None
    """A second stream on which a third of the compute kernels run, with events both ways."""

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
        if self.side_stream is not None and self.side_stream in (self.main_stream, *self.collective_streams):
            raise UsageError(f"stream {self.side_stream} is taken", "name another as the side stream")
        if unknown := self.syncs - set(SYNCS):
            raise UsageError(f"no sync is called {min(unknown)!r}", f"there are {', '.join(SYNCS)}")

    @property
    def all_reduces(self) -> int:
        """All-reduces a step."""
        return self.buckets if self.buckets is not None else max(2, min(24, self.kernels // 40))

    @property
    def step_numbers(self) -> range:
        """The numbers of the recorded steps."""
        return range(self.first_step, self.first_step + self.steps)
