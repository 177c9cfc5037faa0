"""Thresholds of single methods of the diagnosis: evidence, efficiency, and what a sentence names."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EfficiencyThresholds:
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


@dataclass(frozen=True)
class EvidenceThresholds:
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


@dataclass(frozen=True)
class SentenceThresholds:
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
