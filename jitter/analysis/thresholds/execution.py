"""Thresholds of single methods that prepare the run: matching of kernels and ranks, dependencies, replay."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MatchingThresholds:
    """Which kernels, ranks and clocks belong together."""

    min_shared_kernels: float = 0.5
    """Of the longer sequence. Sequences with a longest common subsequence of this length are of one cohort."""
    synchronous_within_ns: int = 100_000
    """Nanoseconds. A collective of unnamed operation whose ends disagree by more does not synchronise its ranks."""
    same_place_share: float = 0.03
    """Of a step's kernels. The work before one collective may differ by this much between the ranks of its group."""
    same_place_kernels: int = 3
    """Kernels. The same of a short step."""
    few_absent_share: float = 0.25
    """Of a group's ranks. With so many not recorded, the last recorded arrival is still near the last one."""


@dataclass(frozen=True)
class DependencyThresholds:
    """What waits for what, inferred from sampled steps."""

    sampled_cells: int = 512
    """Ranks × steps of a team from which its dependencies are inferred."""
    max_sampled: int = 4_000_000
    """Operations × ranks × steps of a team. Of a larger sample, some ranks at even distances: bounds the memory."""
    surveyed_rows: int = 5_000_000
    """Rows of the run. Of a longer run not all steps are surveyed: that costs reading them all."""
    surveyed_steps: int = 6
    """Steps of such a run that are surveyed, besides those with new ranks or sequences."""
    steps_of_threads: int = 3
    """Steps that tell whether the threads of a rank take turns."""
    tried_steps: int = 4
    """Steps that tell whether ranks leave a collective without a recorded group together."""
    right_after_ns: int = 20_000
    """Nanoseconds. What begins within this of another operation's end began right after it."""
    later_ns: int = 2_000
    """Nanoseconds. A start so long after all that is known to hold an operation back is not explained by it."""
    rounding_ns: float = 1_000.0
    """Nanoseconds. Profilers round a start and a duration each, to a microsecond at most: an end may seem later."""
    explained_share: float = 0.5
    """Of the starts that nothing else explains. A wait must explain this part of them."""
    look_back: int = 64
    """Operations of another stream that may be pending at once."""
    sampled_orders: int = 8
    """Ranks whose launches are followed over all sampled steps, for the queue."""
    overlapping_share: float = 0.01
    """Of the switches between threads. At so many a profiler's clock may err."""
    max_switches: int = 4
    """Switches per thread and step. Up to these, threads hand over to each other."""


@dataclass(frozen=True)
class LaunchQueueThresholds:
    """Whether launches wait for a place in a full queue, and how long the queue is."""

    min_queue: int = 8
    """Places. No GPU has a shorter queue."""
    min_waited: int = 3
    """Launches that must have waited in a full queue: fewer may be long by chance."""
    long_call_ratio: float = 2.0
    """Times the usual length of a launching call. A longer one has waited."""
    min_when_freed: float = 0.9
    """Of the waiting launches. So many must return right after a place becomes free."""


@dataclass(frozen=True)
class InterferenceThresholds:
    """By how much collectives slow the kernels that run beside them."""

    look_back: int = 16
    """Collectives that may run at once, or wait."""
    free_share: float = 0.1
    """Of a kernel's duration. A kernel that runs less beside collectives runs without them."""
    mostly_free_share: float = 0.6
    """Of the ranks' steps. In so many a kernel must run without collectives to tell how fast each rank's step is."""
    max_ratio: float = 2.0
    """Of a duration to the kernel's median. A run further away is another kind of event, and is left out."""
    min_variation: float = 0.1
    """Squared variation of the part beside collectives, summed over a kernel's runs. With less it is not compared."""
    min_kernels: int = 3
    """Kernels that are compared: of fewer the spread is unknown."""
    min_sigmas: float = 2.0
    """Standard errors. An estimate below it is taken for none."""
    min_interference: float = 0.02
    """Of a duration. Less is within what kernels of different kinds differ by."""
    min_median: float = 0.5
    """Of the mean over kernels. With a smaller median only some kernels are slowed, and no one factor holds of all."""


@dataclass(frozen=True)
class ReplayThresholds:
    """What the replay and the walk along the critical path tell apart."""

    simultaneous_ns: float = 1.0
    """Nanoseconds. Times of one event differ by less: they are sums of floats."""
    max_launch_ns: float = 100_000.0
    """Nanoseconds of host time up to a launch's return. What is longer is other work of the host."""
