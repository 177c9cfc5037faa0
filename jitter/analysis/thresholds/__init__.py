"""All thresholds of the analysis, each with its unit and its reason; code reads them from `THRESHOLDS`.

The fields of `Thresholds` decide findings and their confidence (guide: `confidence`). What only one method uses (its
sample, its resolution) is in that method's group.
"""

from dataclasses import dataclass, field
from typing import Final

from jitter.analysis.thresholds.detection import (
    LaunchedWorkThresholds,
    LikelyCommunicationThresholds,
    RecurrenceThresholds,
    SpreadThresholds,
    StageThresholds,
)
from jitter.analysis.thresholds.diagnosis import EfficiencyThresholds, EvidenceThresholds, SentenceThresholds
from jitter.analysis.thresholds.execution import (
    AccountThresholds,
    DependencyThresholds,
    ExchangeMatchingThresholds,
    GroupInferenceThresholds,
    HostWaitThresholds,
    InterferenceThresholds,
    LaunchQueueThresholds,
    MatchingThresholds,
    ReplayThresholds,
)


@dataclass(frozen=True)
class Thresholds:
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
    matching: MatchingThresholds = field(default_factory=MatchingThresholds)
    group_inference: GroupInferenceThresholds = field(default_factory=GroupInferenceThresholds)
    exchange_matching: ExchangeMatchingThresholds = field(default_factory=ExchangeMatchingThresholds)
    dependencies: DependencyThresholds = field(default_factory=DependencyThresholds)
    host_waits: HostWaitThresholds = field(default_factory=HostWaitThresholds)
    launch_queue: LaunchQueueThresholds = field(default_factory=LaunchQueueThresholds)
    interference: InterferenceThresholds = field(default_factory=InterferenceThresholds)
    replay: ReplayThresholds = field(default_factory=ReplayThresholds)
    account: AccountThresholds = field(default_factory=AccountThresholds)
    spread: SpreadThresholds = field(default_factory=SpreadThresholds)
    launched_work: LaunchedWorkThresholds = field(default_factory=LaunchedWorkThresholds)
    stages: StageThresholds = field(default_factory=StageThresholds)
    recurrence: RecurrenceThresholds = field(default_factory=RecurrenceThresholds)
    likely_communication: LikelyCommunicationThresholds = field(default_factory=LikelyCommunicationThresholds)
    efficiency: EfficiencyThresholds = field(default_factory=EfficiencyThresholds)
    evidence: EvidenceThresholds = field(default_factory=EvidenceThresholds)
    sentences: SentenceThresholds = field(default_factory=SentenceThresholds)


THRESHOLDS: Final = Thresholds()
"""The thresholds that jitter uses."""
