"""All findings about the efficiency of a job: from its traces, and from its logs."""

from collections.abc import Iterable, Mapping
from typing import Any

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.efficiency.bounds import describe_bound, find_bounds_in_tables
from jitter.analysis.diagnosis.efficiency.finding import EfficiencyFinding
from jitter.analysis.diagnosis.efficiency.program import find_program_losses
from jitter.analysis.diagnosis.evidence.logs.network import describe_network
from jitter.analysis.diagnosis.evidence.logs.placement import describe_placement
from jitter.analysis.diagnosis.evidence.logs.relations import JobLogs
from jitter.analysis.metrics.bandwidth_baseline import Baseline, below_in_every_step
from jitter.analysis.metrics.communication import Communication
from jitter.core.formatting import escape_control


def find_efficiency(
    analysis: RunAnalysis, measured: Communication, benchmark: Baseline | None
) -> tuple[EfficiencyFinding, ...]:
    """Return what the traces say of the whole job, `measured` being the communication of some steps."""
    slow = [] if benchmark is None else below_in_every_step(measured, benchmark)
    bound = describe_bound(measured, benchmark, slow)
    return (*(() if bound is None else (bound,)), *find_program_losses(analysis))


def find_efficiency_in_logs(operators: Iterable[Mapping[str, Any]], logs: JobLogs) -> tuple[EfficiencyFinding, ...]:
    """Return what the logs say of the whole job; `operators` are the rows of that relation."""
    return (
        *find_bounds_in_tables(operators),
        *(EfficiencyFinding("network", escape_control(text)) for text in describe_network(logs)),
        *(EfficiencyFinding("placement", escape_control(text)) for text in describe_placement(logs)),
    )
