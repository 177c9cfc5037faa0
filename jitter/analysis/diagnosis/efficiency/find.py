"""All findings about the efficiency of a job, from its traces."""

from jitter.analysis.diagnosis.efficiency.bounds import describe_bound
from jitter.analysis.diagnosis.efficiency.finding import EfficiencyFinding
from jitter.analysis.metrics.bandwidth_baseline import Baseline, below_in_every_step
from jitter.analysis.metrics.communication import Communication


def find_bound(measured: Communication, benchmark: Baseline | None) -> EfficiencyFinding | None:
    """Return whether compute or communication, `measured` in some steps, takes the time; None if neither is known."""
    return describe_bound(measured, benchmark, [] if benchmark is None else below_in_every_step(measured, benchmark))
