"""All findings about the efficiency of a job, from its traces."""

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.efficiency.bounds import describe_bound
from jitter.analysis.diagnosis.efficiency.finding import EfficiencyFinding
from jitter.analysis.diagnosis.efficiency.program import find_program_losses
from jitter.analysis.metrics.bandwidth_baseline import Baseline, below_in_every_step
from jitter.analysis.metrics.communication import Communication


def find_efficiency(
    analysis: RunAnalysis, measured: Communication, benchmark: Baseline | None
) -> tuple[EfficiencyFinding, ...]:
    """Return what the traces say of the whole job, `measured` being the communication of some steps."""
    slow = [] if benchmark is None else below_in_every_step(measured, benchmark)
    bound = describe_bound(measured, benchmark, slow)
    return (*(() if bound is None else (bound,)), *find_program_losses(analysis))
