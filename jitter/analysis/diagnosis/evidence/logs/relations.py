"""Rows of the relations that a job's logs fill, as the evidence reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from jitter.analysis.metrics.bandwidth_baseline import BaselineRow
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.step_key import StepKey

_LIMITS: Final = THRESHOLDS.evidence

Rows = Sequence[Mapping[str, Any]]
EVIDENCE_RELATIONS: Final = ("communicators", "edges", "gpu_clocks", "gpu_errors", "bindings", "topology")
"""The relations of `JobLogs`."""


@dataclass(frozen=True)
class JobLogs:
    """Rows of the relations that logs fill."""

    communicators: Rows = ()
    edges: Rows = ()
    gpu_clocks: Rows = ()
    gpu_errors: Rows = ()
    bindings: Rows = ()
    topology: Rows = ()
    slow_network: Sequence[BaselineRow] = ()
    """Collectives whose bandwidth is below a measured baseline in every step."""
    hosts: Mapping[int, str | None] = field(default_factory=dict)
    """The ranks' hosts, as the traces state them."""
    devices: Mapping[int, int | None] = field(default_factory=dict)
    """The ranks' GPUs."""
    step_times_ns: Mapping[StepKey, tuple[int, int]] = field(default_factory=dict)
    """First start and last end of each step, ns since 1970; without steps whose traces record no wall clock."""

    def is_of(self, row_host: str | None, host: str | None) -> bool:
        """Return whether a row is of a host: names are equal up to the domain.

        A row without a host is of every host only if the job has one.
        """
        if row_host is None and host is not None:
            return len({one for one in self.hosts.values() if one is not None}) <= 1
        return host is None or str(row_host).partition(".")[0] == host.partition(".")[0]

    def during(self, steps: Sequence[StepKey]) -> "JobLogs":
        """Return the logs with GPU clocks and errors of these steps' times only.

        Rows without a time stay, and all rows if the time of none of the steps is known.
        """
        times = [self.step_times_ns[key] for key in steps if key in self.step_times_ns]
        if not times:
            return self
        return replace(self, gpu_clocks=_within(self.gpu_clocks, times), gpu_errors=_within(self.gpu_errors, times))


def _within(rows: Rows, times: Sequence[tuple[int, int]]) -> Rows:
    """Return the rows of these times, and of `log_sampling_ns` before and after them; rows without a time stay."""
    starts, ends = (np.array(column, np.int64) for column in zip(*sorted(times), strict=True))
    last_end = np.maximum.accumulate(ends)
    kept = []
    for row in rows:
        time_ns = row.get("time_ns")
        if time_ns is not None:
            begun = int(np.searchsorted(starts, time_ns + _LIMITS.log_sampling_ns, side="right"))
            if not begun or last_end[begun - 1] < time_ns - _LIMITS.log_sampling_ns:
                continue
        kept.append(row)
    return kept
