"""All thresholds of the analysis, each with its unit and its reason; code reads them from `THRESHOLDS`.

The fields of `Thresholds` decide findings and their confidence (guide: `confidence`). What only one method uses (its
sample, its resolution) is in that method's group.
"""

from typing import Final, NamedTuple


class MatchingThresholds(NamedTuple):
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
    clock_collectives: int = 9
    """Collectives that tell the clocks of two ranks; the median of more is hardly better."""


class GroupInferenceThresholds(NamedTuple):
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


class ExchangeMatchingThresholds(NamedTuple):
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


class DependencyThresholds(NamedTuple):
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


class HostWaitThresholds(NamedTuple):
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


class LaunchQueueThresholds(NamedTuple):
    """Whether launches wait for a place in a full queue, and how long the queue is."""

    min_queue: int = 8
    """Places. No GPU has a shorter queue."""
    min_waited: int = 3
    """Launches that must have waited in a full queue: fewer may be long by chance."""
    long_call_ratio: float = 2.0
    """Times the usual length of a launching call. A longer one has waited."""
    min_when_freed: float = 0.9
    """Of the waiting launches. So many must return right after a place becomes free."""


class InterferenceThresholds(NamedTuple):
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


class ReplayThresholds(NamedTuple):
    """What the replay and the parts of a step's time tell apart."""

    max_launch_ns: float = 100_000.0
    """Nanoseconds of host time up to a launch's return. What is longer is other work of the host."""


class AccountThresholds(NamedTuple):
    """What the account of lost time tells apart."""

    unchanged_ns: float = 1e-3
    """Nanoseconds. A smaller change is none: times are whole ns, and what is computed from them is nearly so."""
    collectives_beside: int = 3
    """Collectives beside one kernel that are told apart: 2 to the power of 2 + 2 × that many ends are computed."""
    own_row_ns: float = 1e3
    """Nanoseconds. A smaller share has no row of its own: with one a kernel there were as many as recorded kernels."""


class LikelyCommunicationThresholds(NamedTuple):
    """Which kernels behave like communication although nothing names them so."""

    sampled_steps: int = 8
    """Steps. The kernels of a team are the same in all of them: more only cost time."""
    sampled_ranks: int = 32
    """Ranks. The same."""
    min_samples: int = 4
    """Launches of a kernel. Fewer prove nothing."""
    min_spread_share: float = 0.1
    """Of the median duration. Durations of communication differ more between ranks; those of work do not."""
    min_apart_ns: float = 1_000.0
    """Nanoseconds. Starts must differ by more: less is the resolution of some profilers."""
    max_end_share: float = 0.25
    """Of what starts differ by. Ends differ by less."""
    min_paired_share: float = 0.75
    """Of the ranks. So many must have a partner that ends with them."""


class LaunchedWorkThresholds(NamedTuple):
    """GPU time for the launched work, where the sizes of launches vary."""

    min_variation: float = 0.01
    """Of a rank's GPU time, from step to step. With less, launches are not read: each costs a file."""
    min_sized_share: float = 0.05
    """Of the GPU time of a step. Kernels whose sizes differ between ranks must take as much."""
    max_cells: int = 2_000_000
    """Operations × ranks × steps. Of a longer run, steps at even distances are compared."""
    max_probed_ranks: int = 8
    """Ranks of one step. Their launches tell whether sizes vary at all."""
    min_size_variation: float = 1e-3
    """Squared deviations of ln(threads), summed. With less, a kernel's growth is taken for 0."""
    max_power: float = 3.0
    """Power of the launch size. No kernel's work grows faster."""


class RecurrenceThresholds(NamedTuple):
    """Whether a finding recurs."""

    max_chance: float = 0.01
    """Probability that chance makes any rank, step and part stand out so: chance must not choose what is counted."""
    max_needed: int = 20
    """Times that ranks would have to stand out. Where more are needed, further steps are not worth the recording."""


class SpreadThresholds(NamedTuple):
    """How a spread is estimated."""

    min_robust_ranks: int = 6
    """Other ranks. With fewer, their median absolute deviation tells too little: all but the largest count."""
    mad_efficiency: float = 0.4
    """Degrees of freedom of a median absolute deviation, per value (its asymptotic efficiency is 0.37)."""


class StageThresholds(NamedTuple):
    """Pipeline stages that are longer than the others."""

    min_excess_share: float = 0.1
    """Of the GPU time. In most of it, by kernel names, a stage must be so much longer: GPUs differ by 1 to 2%."""
    max_unpaired_share: float = 0.02
    """Of the collectives, by rank. With more exchanges of unknown partners, replay does not tell what a stage costs."""
    max_lost_share: float = 0.05
    """Of a stage's kernels, by count. Without more of them its GPU time is unknown; half of the least excess share."""
    noise_share: float = 0.01
    """Of the other stages' GPU time. GPUs of one model differ by so much for as long as they run."""


class EfficiencyThresholds(NamedTuple):
    """Limits of all ranks alike (guide: `efficiency`)."""

    min_share: float = 0.03
    """Of a step's time. GPUs of one model differ by 1 to 2%; what costs less is not worth changing the program."""
    small_kernel_ns: float = 10_000.0
    """Nanoseconds. A launch takes the host 5 to 10 µs: shorter kernels do not keep the GPU busy."""
    max_steps: int = 8
    """Steps that are replayed: more only cost time."""
    min_steps: int = 2
    """Steps. One alone may be unusual."""
    max_rung_steps: int = 4
    """Steps. On the rungs of the waterfall all steps are alike: after the first, which does not count, few tell."""
    max_cells: int = 2_000_000
    """Operations of all ranks in the replayed steps together: bounds the time of a large job."""
    compute_bound: float = 0.05
    """Of the steps. Exposed communication below it leaves a job compute-bound."""
    min_compute: float = 0.5
    """Of the steps. A job whose GPUs compute for less is bound by its hosts, not by compute."""
    communication_bound: float = 0.5
    """Of the device time in a profiler's table. From here on a job is bound by communication."""
    complete_share: float = 0.95
    """Of the device time. A table's rows must have this much for the rest not to matter."""
    below_baseline: float = 0.8
    """Of the benchmark's bus bandwidth. A benchmark has the network for itself: a job reaches less."""


class EvidenceThresholds(NamedTuple):
    """What supports a cause, and where it lies in the program."""

    slower_team_share: float = 0.5
    """Of the largest team's slowdown. A team that is slower by this much in the same steps is slow with it."""
    workload_share: float = 0.98
    """Of a step's GPU excess. The operations that hold this part of it are compared by kernel."""
    min_after_share: float = 0.002
    """Of a step's time. A smaller charge is not divided at its last launch: that costs reading the step."""
    max_after_steps: int = 32
    """Steps that are read for that, those with the largest charges first."""
    min_first_start_share: float = 0.25
    """Of a step's time. A smaller spread of the ranks' first starts is not worth a sentence."""
    min_first_start_ns: float = 1_000_000.0
    """Nanoseconds. The same of short steps."""
    marker_ratio: float = 1.02
    """To the largest number of the other ranks. A number in a marker stands out from here on."""
    max_code_kernels: int = 16
    """Kernel indices of a finding. Up to so many, its first kernel stands for it in the program."""
    host_operation_share: float = 0.5
    """Of a gap. A host operation explains a gap of which it covers this part."""
    max_migration_peers: int = 15
    """Ranks that a rank's moves between cores are compared with: each costs a file."""
    min_migrations: float = 0.5
    """Moves per step. Fewer explain no late launches in most steps."""
    migration_ratio: float = 2.0
    """To the median of the others. A rank moves often if it moves so many times as often."""
    lower_clock: float = 0.95
    """Of the other GPUs' median clock. A lower median is a lower clock."""
    same_run_ns: int = 3_600_000_000_000
    """Nanoseconds. A recording that ends longer before a hang, or after it, tells nothing of it."""
    small_message_bytes: int = 4096
    """Bytes. Messages up to here take a network no time: what they take is waiting."""
    single_value_bytes: int = 16
    """Bytes. A smaller copy from the GPU reads a value or two."""
    min_small_copies: int = 100
    """Copies of single values in a run: fewer cost nothing."""
    min_other_steps: int = 5
    """Steps without a recording that a training log times: fewer have no median to speak of."""
    min_overhead: float = 0.02
    """Of a step's time. A smaller difference is that of any two parts of a run."""
    max_overhead: float = 3.0
    """To the other steps' time. A larger ratio is that of another program, not of a profiler."""
    log_sampling_ns: int = 5_000_000_000
    """Nanoseconds. Clock logs take a sample every few seconds, and steps are shorter: one so near belongs to a step."""


class SentenceThresholds(NamedTuple):
    """What a sentence states, and how much of it."""

    max_named: int = 3
    """Findings, ranks, kernels or pauses in one sentence; more are counted."""
    max_listed: int = 4
    """Steps, interfaces or other short names in one sentence."""
    max_told_by_logs: int = 2
    """Sentences of logs in the verdict."""
    max_scope_characters: int = 80
    """Characters of an annotation's path; of a longer one the end is shown."""
    max_step_share: float = 10.0
    """Of a step. A larger excess is stated in steps, not as a percentage."""
    min_sigmas: float = 3.0
    """Standard deviations. Fewer say nothing for a finding, and are not stated."""
    max_sigmas: float = 10.0
    """Standard deviations. Noise is not known well enough to tell larger deviations apart."""
    min_part_share: float = 0.01
    """Of the loss. Smaller parts of it are not listed."""
    min_rank_share: float = 0.005
    """Of a part. A smaller share of a rank, which rounds to 0%, is not listed."""
    close_saving_share: float = 0.05
    """Of a culprit's loss. A saving that differs by no more is not stated beside it."""


class Thresholds(NamedTuple):
    """The thresholds. Shares are fractions, not percent."""

    # noise
    min_ranks_for_noise: int = 4
    """Ranks. With fewer, the spread over ranks does not tell the noise of one operation: all operations are pooled."""
    min_steps_for_scatter: int = 3
    """Steps. With fewer, totals have no scatter over steps: the spread over ranks stands in for it."""
    min_steps_for_drift: int = 6
    """Steps. From here on a steady drift is not counted as scatter; fewer steps cannot tell drift from noise."""
    max_scatter_lag: int = 24
    """Steps. Totals are compared with those of up to this many steps before: bounds the work of a long run."""

    # outliers
    step_sigmas: float = 6.0
    """Standard deviations. Of a rank with a significant step, its other steps from here on are outliers too."""
    run_sigmas: float = 6.0
    """Standard deviations of a mean. Slow collectives of all steps are outliers from here on."""
    max_chance: float = 0.05
    """Probability. By chance alone at most this part of the runs has an outlier, over all ranks, steps and parts."""
    tail_degrees: int = 3
    """Degrees of freedom of Student's t, the worst case. Steps have heavy tails: with 3, excesses of 20 standard
    deviations occur."""
    max_degrees: int = 8
    """Degrees of freedom. Steps of one run resemble each other: more of them do not make a spread more certain."""
    gpu_spread_share: float = 0.01
    """Of a rank's GPU time. GPUs of one model differ by 1 to 2% for as long as they run."""
    host_spread_share: float = 0.05
    """Of a rank's host time. The same of hosts: memory, cores and neighbours differ."""
    spread_degrees: int = 4
    """Degrees of freedom. How much these two spreads count beside the spread of the other ranks."""
    min_excess_share: float = 0.004
    """Of a step's time. Outliers with less excess are not replayed: a replay costs more than it could show."""
    max_priced_outliers: int = 24
    """Outliers. Of more, ranks late in the same steps are priced as one; those with the most excess are replayed."""
    min_steps_without_peers: int = 5
    """Steps. A rank without peers is compared with its other steps; fewer give no baseline."""

    # the whole job
    min_random_ranks: int = 3
    """Ranks. Events on so many ranks, none of which has more than chance gives, are one finding about the job."""
    min_cluster_ranks: int = 6
    """Ranks. Fewer fall into two clusters by chance."""
    cluster_sigmas: float = 6.0
    """Standard deviations. Within the clusters. Healthy ranks, cut where they differ most, are less than 3 apart."""
    cluster_gap_sigmas: float = 2.5
    """Standard deviations. The slowest fast and the fastest slow rank must be so far apart; the clusters over steps."""
    min_cluster_share: float = 0.02
    """Of a step's time. The clusters must differ by this much to be worth a report."""
    min_fast_share: float = 0.05
    """Of the usual step. Few ranks so much faster than all others are a doubt: GPUs of one model differ by 1 to 2%."""
    fast_gap_ratio: float = 3.0
    """Factor on the range of the slower ranks. The gap between them and the fast ones must be so wide."""
    min_slow_step_share: float = 0.05
    """Of the usual step. All ranks must be slower by this much in a slow step: less is usual."""

    # what is worth reporting
    min_gain_share: float = 0.01
    """Of the time of the steps in which it occurs. Fixing a finding must save this much to be worth a person's time."""
    max_unexplained_share: float = 0.1
    """Of the step time, in host gaps that no wait explains. Above it every price is a range, and confidence is low."""
    max_price_error: float = 0.1
    """Of a price. Where the waits that the recording leaves open change it by more, it is a range."""
    unrecorded_factor: float = 2.0
    """Factor on that. For slow collectives with unrecorded members, which may only have waited for those ranks, and
    for the excess of a rank whose exchanges name no partners, which has no known cost."""
    unrecorded_gain_share: float = 0.25
    """Of the excess of slow collectives in steps that a rank lacks. Fixing them must save this much, or the rank waited
    for another fault."""

    # confidence
    high_chance: float = 1e-4
    """Probability that noise explains the excess, over all ranks, steps and parts. Below it, confidence is high."""
    medium_chance: float = 0.01
    """Probability. The same for medium confidence."""
    max_clock_share: float = 0.5
    """Of an excess per step. Where the clocks of the ranks err by more, it is not known whose it is."""
    min_peers_to_recur: int = 3
    """Other ranks. With one or two it is undecided which rank is unusual: whether it recurs is unknown."""

    # causes
    cause_share: float = 0.5
    """Of an excess. A cause (more work, data loading) must explain at least this part of it."""
    unaffected_factor: float = 0.3
    """Factor on the mean slowdown. A kernel below it is unaffected: slow clocks slow memory-bound kernels by half."""
    min_unaffected_share: float = 0.03
    """Of the GPU time. From so many unaffected kernels on, a slow GPU and more work cannot be told apart."""
    max_compared_peers: int = 128
    """Ranks. Launch shapes are compared with at most this many peers: each costs one file per outlier and step."""
    max_compared_steps: int = 8
    """Steps. The same for a rank without peers, which is compared with its own other steps."""
    max_steps_per_cause: int = 3
    """Steps. The cause is decided from the steps with the most excess; more only cost time."""

    # groups of ranks
    same_steps_share: float = 0.5
    """Jaccard index. Ranks of which any two are late in steps with this overlap may be late for one reason."""
    group_share: float = 0.6
    """Of a host's, device's or series' ranks. At least this part must be late for the group to be named."""
    max_group_chance: float = 0.05
    """Probability that as many random late ranks would share any host (device, series) so. Above it: no group."""
    min_series_ranks: int = 3
    """Ranks. A series (every Nth rank) needs this many: any two ranks form a series."""
    min_masked_ranks: int = 3
    """Ranks. From here on, ranks that mask each other are one group; two are named one by one."""

    # patterns of steps
    min_steps_to_recur: int = 5
    """Steps. So many consecutive ones tell a rank that is late again and again from a pause that could hit any."""
    nearly_all_share: float = 0.8
    """Of the run's steps. From here on the pattern is "nearly every step"."""
    min_periods: int = 3
    """Steps. A period needs this many occurrences: any two steps have a distance."""
    min_steps_of_drift: int = 5
    """Steps. A drift is looked for from here on: over fewer steps noise correlates by chance."""
    drift_correlation: float = 0.9
    """Correlation of excess and step number from which a drift is named."""
    drift_growth: float = 2.0
    """Factor. A drift's last fifth must have this many times the excess of its first: less is not worth a name."""

    # where it begins
    divergence_sigmas: float = 5.0
    """Standard deviations. The summed excess of a stretch must stay above this for the stretch to have diverged."""
    divergence_floor_ns: float = 2_000.0
    """Nanoseconds. Less than the resolution of profilers is no divergence."""
    divergence_share: float = 0.02
    """Of the stretch's excess. Where less has accumulated, the divergence has not begun."""
    kernel_range_share: float = 0.95
    """Of a culprit's excess. Its kernel index range holds this part, so that a stray charge does not widen it."""

    # leads
    loss_noise_factor: float = 3.5
    """Factor on the loss that independent noise causes. A loss below it is within the run's noise. A healthy run of two
    ranks, whose lower median is the faster one, loses twice that."""
    min_lead_share: float = 0.02
    """Of the run's time. A lead, which no test of significance supports, must save this much to be named."""
    lead_share: float = 0.5
    """Of the loss. A lead must explain at least this part of it."""
    max_share_of_one_rank: float = 0.7
    """Of the excess of a part. Above it the excess is that one rank's, and no finding of the whole job."""
    max_lead_chance: float = 0.1
    """Probability that chance makes one rank the last one as often. A rank above it is no lead."""

    max_excess_share: float = 2.0
    """Of the time of its steps. A rank without peers is not late by more: its excess is waiting."""

    # verdict
    min_transfer_share: float = 0.02
    """Of the run's time. Transfers that take less cannot cost more, however slow the network is."""
    min_loss_share: float = 0.01
    """Of the run's time. From here on the verdict names the rank that is slowest most often, without a culprit."""
    contradiction_share: float = 0.01
    """Of the run's time. A replay with every own time at its baseline that is longer by more contradicts the run."""

    # single methods, in the order of the analysis
    matching: MatchingThresholds = MatchingThresholds()
    group_inference: GroupInferenceThresholds = GroupInferenceThresholds()
    exchange_matching: ExchangeMatchingThresholds = ExchangeMatchingThresholds()
    dependencies: DependencyThresholds = DependencyThresholds()
    host_waits: HostWaitThresholds = HostWaitThresholds()
    launch_queue: LaunchQueueThresholds = LaunchQueueThresholds()
    interference: InterferenceThresholds = InterferenceThresholds()
    replay: ReplayThresholds = ReplayThresholds()
    account: AccountThresholds = AccountThresholds()
    spread: SpreadThresholds = SpreadThresholds()
    launched_work: LaunchedWorkThresholds = LaunchedWorkThresholds()
    stages: StageThresholds = StageThresholds()
    recurrence: RecurrenceThresholds = RecurrenceThresholds()
    likely_communication: LikelyCommunicationThresholds = LikelyCommunicationThresholds()
    efficiency: EfficiencyThresholds = EfficiencyThresholds()
    evidence: EvidenceThresholds = EvidenceThresholds()
    sentences: SentenceThresholds = SentenceThresholds()


THRESHOLDS: Final = Thresholds()
"""The thresholds that jitter uses."""
