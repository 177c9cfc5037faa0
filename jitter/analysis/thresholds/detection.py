"""Thresholds of single methods of detection: unnamed communication, events, recurrence, launched work."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LikelyCommunicationThresholds:
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


@dataclass(frozen=True)
class LaunchedWorkThresholds:
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


@dataclass(frozen=True)
class RecurrenceThresholds:
    """Whether a finding recurs."""

    max_chance: float = 0.01
    """Probability that chance makes any rank, step and part stand out so: chance must not choose what is counted."""
    max_needed: int = 20
    """Times that ranks would have to stand out. Where more are needed, further steps are not worth the recording."""


@dataclass(frozen=True)
class SpreadThresholds:
    """How a spread is estimated."""

    min_robust_ranks: int = 6
    """Other ranks. With fewer, their median absolute deviation tells too little: all but the largest count."""
    mad_efficiency: float = 0.4
    """Degrees of freedom of a median absolute deviation, per value (its asymptotic efficiency is 0.37)."""


@dataclass(frozen=True)
class StageThresholds:
    """Pipeline stages that are longer than the others."""

    min_excess_share: float = 0.1
    """Of the GPU time. In most of it, by kernel names, a stage must be so much longer: GPUs differ by 1 to 2%."""
    max_unpaired_share: float = 0.02
    """Of the collectives, by rank. With more exchanges of unknown partners, replay does not tell what a stage costs."""
    max_lost_share: float = 0.05
    """Of a stage's kernels, by count. Without more of them its GPU time is unknown; half of the least excess share."""
    noise_share: float = 0.01
    """Of the other stages' GPU time. GPUs of one model differ by so much for as long as they run."""
