"""All thresholds of the analysis, each with its unit and its reason; code reads them from `THRESHOLDS`.

The fields of `Thresholds` decide findings and their confidence (guide: `confidence`). What only one method uses (its
sample, its resolution) is in that method's group.
"""

from typing import Final, NamedTuple


class MatchingThresholds(NamedTuple):
    """Which kernels, ranks and clocks belong together."""

    synchronous_within_ns: int = 100_000
    """Nanoseconds. A collective of unnamed operation whose ends disagree by more does not synchronise its ranks."""
    same_place_share: float = 0.03
    """Of a step's kernels. The work before one collective may differ by this much between the ranks of its group."""
    most_alternatives: float = 4.0
    """Times the operations of a program. So many may be added for kernels by which ranks do the same in different ways:
    bounds the memory, which grows with all of them × ranks."""
    clock_collectives: int = 9
    """Collectives that tell the clocks of two ranks; the median of more is hardly better."""


class GroupInferenceThresholds(NamedTuple):
    """Which ranks leave collectives together, where the trace names no groups."""

    resolution_ns: float = 100.0
    """Nanoseconds. Profilers record no finer: ends that differ by less are the same."""
    clock_error_ns: float = 10_000.0
    """Nanoseconds. Real ranks leave a collective up to so far apart, in the median collective."""
    max_spread_ns: float = 30_000.0
    """Nanoseconds. The same at worst: ranks that leave further apart are joined only if all ranks leave so."""
    clear_gap: float = 3.0
    """Factor between the spread within groups and between them."""
    turns_cells: int = 12_288
    """Ranks × collectives of a channel that are looked at by themselves, where communicators may take turns on it, at
    most `max_tried` collectives: bounds the work."""
    min_wait_share: float = 0.15
    """Of the collective's time. The same: transfers of equal size vary."""


class ExchangeMatchingThresholds(NamedTuple):
    """Which sends and receives are one message, where the trace names no peers."""

    spreads_ns: tuple[float, ...] = (100.0, 1_000.0, 4_000.0, 16_000.0)
    """Nanoseconds. The ends of messages agree within the least of these that fits: clocks differ in accuracy."""
    spread_ratio: float = 8.0
    """Factor on that. By known clocks a message may end so far apart: the few that agree best tell the clocks."""
    max_ranks_for_all_pairs: int = 24
    """Ranks. Of more, each is compared with ranks at distances at which some stage's first rank has a partner."""


class DependencyThresholds(NamedTuple):
    """What waits for what, inferred from sampled steps."""

    sampled_cells: int = 512
    """Ranks × steps of a team from which its dependencies are inferred."""
    surveyed_rows: int = 5_000_000
    """Rows of the run. Of a longer run not all steps are surveyed: that costs reading them all."""
    right_after_ns: int = 20_000
    """Nanoseconds. What begins within this of another operation's end began right after it."""
    min_queue: int = 8
    """Places. No GPU has a shorter queue."""
    overlapping_share: float = 0.01
    """Of the switches between threads. At so many a profiler's clock may err."""
    max_switches: int = 4
    """Switches per thread and step. Up to these, threads hand over to each other."""


class HostWaitThresholds(NamedTuple):
    """Whether the host waited for the GPU where no call is recorded."""

    sampled_cells: int = 200_000
    """Operations × ranks × steps of a team: bounds the work."""
    max_steps: int = 48
    """Consecutive steps that are read at most."""
    steps_back: int = 2
    """Steps. A host that runs one step ahead waits, before a step, for the step before the last."""
    min_calls: int = 2
    """Calls of each half of the steps. Fewer may follow an end by chance."""
    min_log_ratio: float = 0.25
    """Logarithm of the ratio of likelihoods, per call: the distance to the end must vary by a fifth less than the
    host's gap, and than the time since the same call of the step before, as where a loader sets the pace."""
    max_chance: float = 1e-3
    """Probability. By chance alone no end out of those tried would fit so well in all steps."""
    chance_of_one: float = 0.3
    """Probability that an end explains one long gap by chance: some ends are near each call."""


class InterferenceThresholds(NamedTuple):
    """By how much collectives slow the kernels that run beside them."""

    look_back: int = 16
    """Collectives that may run at once, or wait."""
    min_variation: float = 0.1
    """Squared variation of the part beside collectives, summed over a kernel's runs. With less it is not compared."""
    min_sigmas: float = 2.0
    """Standard errors. An estimate below it is taken for none."""


class AccountThresholds(NamedTuple):
    """What the account of lost time tells apart."""

    unchanged_ns: float = 1e-3
    """Nanoseconds. A smaller change is none: times are whole ns, and what is computed from them is nearly so."""
    no_multiplier: float = 1e-12
    """Of a step's end. A smaller multiplier is the rounding of those of several ranks that add up to none."""
    collectives_beside: int = 3
    """Collectives beside one kernel that are told apart: 2 to the power of 2 + 2 × that many ends are computed."""
    cells_kept: int = 1_000_000
    """Operations of all ranks in those steps: they stay in memory, 150 B each. One step always does."""
    pieces_of_file: int = 16
    """Of a large step, which lies in a file: one of them is in memory at a time."""


class LaunchedWorkThresholds(NamedTuple):
    """GPU time for the launched work, where the sizes of launches vary."""

    min_size_variation: float = 1e-3
    """Squared deviations of ln(threads), summed. With less, a kernel's growth is taken for 0."""
    max_power: float = 3.0
    """Power of the launch size. No kernel's work grows faster."""


class EfficiencyThresholds(NamedTuple):
    """Limits of all ranks alike (guide: `efficiency`)."""

    min_share: float = 0.03
    """Of a step's time. GPUs of one model differ by 1 to 2%; what costs less is not worth changing the program."""
    small_kernel_ns: float = 10_000.0
    """Nanoseconds. A launch takes the host 5 to 10 µs: shorter kernels do not keep the GPU busy."""
    compute_bound: float = 0.05
    """Of the steps. Exposed communication below it leaves a job compute-bound."""
    below_baseline: float = 0.8
    """Of the benchmark's bus bandwidth. A benchmark has the network for itself: a job reaches less."""


class EvidenceThresholds(NamedTuple):
    """What supports a cause, and where it lies in the program."""

    max_after_steps: int = 32
    """Steps that are read for that, those with the largest charges first."""
    min_first_start_ns: float = 1_000_000.0
    """Nanoseconds. The same of short steps."""
    max_code_kernels: int = 16
    """Kernel indices of a finding. Up to so many, its first kernel stands for it in the program."""
    min_corrected: int = 10
    """Errors of a PCIe link that were corrected. Links of healthy hosts have a few."""
    odd_counter: float = 10.0
    """To the lower quartile of all links' counters of a kind. Links of healthy hosts have counted errors since boot."""
    same_run_ns: int = 3_600_000_000_000
    """Nanoseconds. A recording that ends longer before a hang, or after it, tells nothing of it."""
    small_message_bytes: int = 4096
    """Bytes. Messages up to here take a network no time: what they take is waiting."""
    single_value_bytes: int = 16
    """Bytes. A smaller copy from the GPU reads a value or two."""
    min_small_copies: int = 100
    """Copies of single values in a run: fewer cost nothing."""
    max_overhead: float = 3.0
    """To the other steps' time. A larger ratio is that of another program, not of a profiler."""
    time_zones_ns: int = 14 * 3_600_000_000_000
    """Nanoseconds. Local time differs from UTC by at most so much."""
    log_sampling_ns: int = 5_000_000_000
    """Nanoseconds. Clock logs take a sample every few seconds, and steps are shorter: one so near belongs to a step."""


class SentenceThresholds(NamedTuple):
    """What a sentence states, and how much of it."""

    max_named: int = 3
    """Findings, ranks, kernels or pauses in one sentence; more are counted."""
    max_scope_characters: int = 80
    """Characters of an annotation's path; of a longer one the end is shown."""
    max_step_share: float = 10.0
    """Of a step. A larger excess is stated in steps, not as a percentage."""
    min_sigmas: float = 3.0
    """Standard deviations. Fewer say nothing for a finding, and are not stated."""
    max_sigmas: float = 10.0
    """Standard deviations. Noise is not known well enough to tell larger deviations apart."""
    min_rung_share: float = 0.001
    """Of a step. What costs less on its rung of the waterfall is not stated."""


class Thresholds(NamedTuple):
    """The thresholds. Shares are fractions, not percent."""

    # what several methods mean alike
    main_share: float = 0.5
    """Of a whole. From here on a part is its main part: it explains an excess or a loss, decides a cause, makes ranks
    late in the same steps, or is more than the clocks err by. What happens less often than in so many steps explains
    no late ones."""
    most_share: float = 0.6
    """Of a group. At least this part of a host's ranks, of the steps in which these are late, of a kernel's runs or of
    long gaps must show the same."""
    always_share: float = 0.9
    """Of the times that something may happen. From here on it always happens, and up to the rest of it never."""
    whole_share: float = 0.95
    """Of a sum, a clock or a power. What holds this part stands for all of it, so that stray values do not widen it; up
    to the rest of it a difference is none. With more than the rest of the collectives without partners, replay does not
    tell what a rank costs."""
    minor_share: float = 0.25
    """Of a whole. Up to here a part is a minor one: of absent ranks, of an excess, of what starts differ by, of gaps in
    which a host did not wait, of links that are faster than the others, of what a slow link costs, of other
    kernels in a larger batch."""
    tolerance_share: float = 0.1
    """Of a time or price. Within this two are the same; beyond it a price is a range."""
    min_samples: int = 4
    """Ranks, steps or launches. With fewer, their spread tells nothing of one: all operations are pooled, no drift of a
    clock is known, and no kernel is like communication."""
    max_tried: int = 64
    """Places, operations, launches, messages or differences of clocks that are tried, the likeliest first: bounds the
    work. A median of more is hardly another one."""
    min_repeats: int = 3
    """Ranks, steps, kernels or messages. Any two agree by chance: of fewer none is a pattern, none is the unusual one,
    and their spread is unknown."""
    min_steps: int = 5
    """Steps. So many tell what is usual: a rank's baseline without peers, a drift, and a rank that is late again and
    again from a pause that could hit any."""
    min_robust_ranks: int = 6
    """Ranks. Of fewer, a median absolute deviation tells too little, and they fall into two clusters by chance."""
    much_more: float = 2.0
    """Factor on the usual value. So much more is no variation of it. What may be a wait for unrecorded ranks, or lies
    in other collectives of a slow link, must save so much more than the least, a rank without peers is not late by so
    many steps, and a link that takes so much longer than the fastest one is no reference."""
    min_cost_share: float = 0.01
    """Of the usual time of its steps. What costs less, or would save less, is not worth a person's time."""
    min_clear_share: float = 0.02
    """Of the run's time. What no test of significance supports, as a lead or the network, must cost this much; a number
    in a marker must be so much larger, and kernels beside collectives so much longer."""
    min_gap_share: float = 0.002
    """Of a step's time. A shorter gap of the host changes no price, and is not looked into."""
    rounding_ns: float = 1_000.0
    """Nanoseconds. Profilers round a start and a duration each, to a microsecond at most."""
    later_ns: float = 2_000.0
    """Nanoseconds. What comes so long after all that is known to hold it back is not explained by that."""
    sampled_ranks: int = 16
    """Ranks of a team. All run the same program: more only cost time, and often a file each."""
    sampled_steps: int = 8
    """Steps. The same."""
    few_steps: int = 6
    """Steps. The same where each costs reading all ranks, or comparing each with each."""
    tried_steps: int = 3
    """Steps. The same where the costliest, or any, tell enough; and up to so many apart ranks are looked for whose
    profilers count steps otherwise."""
    most_in_flight: int = 8
    """Steps. A step may wait for what ranks ran so many steps before, and is charged for it: a pipeline has a batch per
    stage, and accumulated gradients take so many at most."""
    max_cells: int = 2_000_000
    """Operations × ranks × steps. Of more, steps or ranks at even distances are compared: bounds time and memory."""

    # outliers
    outlier_sigmas: float = 6.0
    """Standard deviations. From here on other steps of a late rank, transfers, slow steps, clusters of ranks and
    collectives of other groups stand out: healthy ranks, cut where they differ most, are less than 3 apart."""
    max_chance: float = 0.05
    """Probability. By chance alone at most this part of the runs has an outlier, over all ranks, steps and parts, or
    late ranks that share a host, a device or a series."""
    tail_degrees: int = 3
    """Degrees of freedom of Student's t, the worst case. Steps have heavy tails: with 3, excesses of 20 standard
    deviations occur."""
    max_degrees: int = 8
    """Degrees of freedom. Steps of one run resemble each other: more of them do not make a spread more certain."""
    gpu_spread_share: float = 0.01
    """Of a rank's GPU time. GPUs of one model differ by 1 to 2% for as long as they run; launches that vary less from
    step to step are not read."""
    host_spread_share: float = 0.05
    """Of a rank's host time, or of a step. Hosts differ by so much: memory, cores and neighbours."""
    spread_degrees: int = 4
    """Degrees of freedom. How much these two spreads count beside the spread of the other ranks."""
    min_excess_share: float = 0.004
    """Of a step's time. Outliers with less excess are not replayed: a replay costs more than it could show. Where a gap
    of this length may be a wait, prices are a range."""
    max_priced_outliers: int = 24
    """Outliers. Of more, ranks late in the same steps are priced as one; those with the most excess are replayed."""

    # the whole job
    cluster_gap_sigmas: float = 2.5
    """Standard deviations. The slowest fast and the fastest slow rank must be so far apart; the clusters over steps."""

    # confidence
    high_chance: float = 1e-4
    """Probability that noise explains the excess, over all ranks, steps and parts. Below it, confidence is high."""
    medium_chance: float = 0.01
    """Probability. The same for medium confidence; and for what counts as recurring, or as a wait of the host: chance
    must not choose it."""

    # causes
    unaffected_factor: float = 0.3
    """Factor on the mean slowdown. A kernel below it is unaffected: slow clocks slow memory-bound kernels by half."""
    held_factor: float = 5.0
    """Factor on the usual time. A launch that takes so many times as long, while at least three others of its kernel do
    not, was held up."""
    min_unaffected_share: float = 0.03
    """Of the GPU time. From so many unaffected kernels on, a slow GPU and more work cannot be told apart."""

    # patterns of steps
    nearly_all_share: float = 0.8
    """Of the steps: from here on the pattern is "nearly every step". Of the ranks: from here on any can have events."""
    lasting_ratio: float = 0.5
    """Squared changes from step to step ÷ squared distances from the mean. Up to here values go one way, or change
    once; values that vary by chance have 2."""
    drift_correlation: float = 0.9
    """Correlation of excess and step number from which a drift is named."""

    # where it begins
    divergence_sigmas: float = 5.0
    """Standard deviations. The summed excess of a stretch must stay above this for the stretch to have diverged."""

    # leads
    loss_noise_factor: float = 3.5
    """Factor on the loss that independent noise causes. A loss below it is within the run's noise. A healthy run of two
    ranks, whose lower median is the faster one, loses twice that."""
    max_share_of_one_rank: float = 0.7
    """Of the excess of a part. Above it the excess is that one rank's, and no finding of the whole job."""
    max_lead_chance: float = 0.1
    """Probability that chance makes one rank the last one as often. A rank above it is no lead."""

    # the replay and recurrence
    max_launch_ns: float = 100_000.0
    """Nanoseconds of host time up to a launch's return. What is longer is other work of the host."""
    max_needed: int = 20
    """Times that ranks would have to stand out. Where more are needed, further steps are not worth the recording."""

    # single methods, in the order of the analysis
    matching: MatchingThresholds = MatchingThresholds()
    group_inference: GroupInferenceThresholds = GroupInferenceThresholds()
    exchange_matching: ExchangeMatchingThresholds = ExchangeMatchingThresholds()
    dependencies: DependencyThresholds = DependencyThresholds()
    host_waits: HostWaitThresholds = HostWaitThresholds()
    interference: InterferenceThresholds = InterferenceThresholds()
    account: AccountThresholds = AccountThresholds()
    launched_work: LaunchedWorkThresholds = LaunchedWorkThresholds()
    efficiency: EfficiencyThresholds = EfficiencyThresholds()
    evidence: EvidenceThresholds = EvidenceThresholds()
    sentences: SentenceThresholds = SentenceThresholds()


THRESHOLDS: Final = Thresholds()
"""The thresholds that jitter uses."""
