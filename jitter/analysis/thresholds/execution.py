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
class GroupInferenceThresholds:
    """Which ranks leave collectives together, where the trace names no groups."""

    compared_steps: int = 12
    """Steps whose collectives' ends are compared."""
    resolution_ns: float = 100.0
    """Nanoseconds. Profilers record no finer: ends that differ by less are the same."""
    clock_error_ns: float = 10_000.0
    """Nanoseconds. Real ranks leave a collective up to so far apart, in the median collective."""
    max_spread_ns: float = 30_000.0
    """Nanoseconds. The same at worst: ranks that leave further apart are joined only if all ranks leave so."""
    clear_gap: float = 3.0
    """Factor between the spread within groups and between them."""
    robust_steps: int = 6
    """Steps in which the medians over a channel's collectives are compared: each rank with each."""
    robust_places: int = 48
    """Collectives of each of these steps."""
    max_partitions: int = 16
    """Ways in which collectives divide the ranks: as many as a job may have. Bounds the search for contradictions."""
    max_error_ratio: float = 6.0
    """Factor on the usual error of a channel's collectives. One with a larger error has other groups."""
    min_steps: int = 4
    """Steps. The line that clocks drift along takes two of them."""
    min_wait_ns: float = 2_000.0
    """Nanoseconds, on average. A group's last arrival that stays longer waits for a rank of another group."""
    min_wait_share: float = 0.15
    """Of the collective's time. The same: transfers of equal size vary."""


@dataclass(frozen=True)
class ExchangeMatchingThresholds:
    """Which sends and receives are one message, where the trace names no peers."""

    spreads_ns: tuple[float, ...] = (100.0, 1_000.0, 4_000.0, 16_000.0)
    """Nanoseconds. The ends of messages agree within the least of these that fits: clocks differ in accuracy."""
    min_messages: int = 3
    """Messages between two ranks that must agree: two of hundreds of pairs may do so by chance."""
    min_share: float = 0.25
    """Of the exchanges of the rank with fewer: the same."""
    spread_ratio: float = 8.0
    """Factor on that. By known clocks a message may end so far apart: the few that agree best tell the clocks."""
    tried_windows: int = 64
    """Differences of clocks that are tried, those that most pairs share first."""
    max_ranks_for_all_pairs: int = 24
    """Ranks. Of more, each is compared with ranks at distances at which some stage's first rank has a partner."""


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
class HostWaitThresholds:
    """Whether the host waited for the GPU where no call is recorded."""

    sampled_ranks: int = 16
    """Ranks of a team. All run the same program."""
    sampled_cells: int = 200_000
    """Operations × ranks × steps of a team: bounds the work."""
    min_steps: int = 6
    """Consecutive steps that are read at least, if the run has them."""
    max_steps: int = 48
    """Consecutive steps that are read at most."""
    steps_back: int = 2
    """Steps. A host that runs one step ahead waits, before a step, for the step before the last."""
    min_gap_share: float = 0.002
    """Of a step's time. Shorter host gaps change no price."""
    max_places: int = 64
    """Places of a program with the most host time: bounds the work."""
    min_inside_share: float = 0.1
    """Of the calls. At so many the awaited end must lie in the host's gap: a wait that never binds is not seen."""
    min_known_share: float = 0.5
    """Of the calls. Of so many the awaited end must be known: the first steps' earlier steps were not recorded."""
    binding_share: float = 0.9
    """Of the calls. From here on a wait binds always, and the host's own time before it is not seen."""
    min_calls: int = 2
    """Calls of each half of the steps. Fewer may follow an end by chance."""
    resolution_ns: float = 500.0
    """Nanoseconds. Profilers round to a microsecond: a smaller spread is not seen."""
    min_log_ratio: float = 0.25
    """Logarithm of the ratio of likelihoods, per call: the distance to the end must vary by a fifth less than the
    host's gap, and than the time since the same call of the step before, as where a loader sets the pace."""
    max_chance: float = 1e-3
    """Probability. By chance alone no end out of those tried would fit so well in all steps."""
    max_chance_again: float = 0.01
    """Probability. The same of the chosen end in the steps on which it was not chosen."""
    tolerance_share: float = 0.1
    """Of what a gap is longer than usual. A call within this of its place after the end is explained."""
    explained_share: float = 0.6
    """Of the long gaps. A wait that binds at times must explain this part of them."""
    chance_of_one: float = 0.3
    """Probability that an end explains one long gap by chance: some ends are near each call."""
    usual_gap: float = 0.25
    """Quantile of a place's gaps that stands for the host's own time, where a wait binds at times."""
    min_possible_share: float = 0.005
    """Of a step's time. Where a gap of this length may be a wait, prices are a range."""
    vary_share: float = 0.05
    """Of a gap. Gaps that vary less from step to step, between quartiles, do not vary."""


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
    """What the replay and the parts of a step's time tell apart."""

    max_launch_ns: float = 100_000.0
    """Nanoseconds of host time up to a launch's return. What is longer is other work of the host."""


@dataclass(frozen=True)
class AccountThresholds:
    """What the account of lost time tells apart."""

    unchanged_ns: float = 1e-3
    """Nanoseconds. A smaller change is none: times are whole ns, and what is computed from them is nearly so."""
    collectives_beside: int = 3
    """Collectives beside one kernel that are told apart: 2 to the power of 2 + 2 × that many ends are computed."""
    own_row_ns: float = 1e3
    """Nanoseconds. A smaller share has no row of its own: with one a kernel there were as many as recorded kernels."""
