"""The clocks: every recording has its own zero, and states a wall clock that is off by what NTP leaves."""

from dataclasses import dataclass

import numpy as np

from jitter.simulate.job import Job

_BEGIN_UTC_NS = 1_718_000_000_000_000_000
_LEAD_NS = 1_500_000_000
"""A recording begins at least this long before its first kernel."""
_CLOCKS = 2**41
"""In the place of a rank: the random numbers of the clocks."""


@dataclass(frozen=True)
class Clock:
    """local = global + offset_ns; UTC, as the recording states it, = local + utc_epoch_ns."""

    offset_ns: int
    utc_epoch_ns: int
    error_ns: int
    """By how much that UTC is wrong."""


def make_clock(job: Job, rank: int) -> Clock:
    """The clock of this rank's recording. Ranks of one node share the wall clock's error, not the zero."""
    own = np.random.default_rng((job.seed, _CLOCKS, rank))
    offset = _LEAD_NS + round(float(own.random()) * job.clock_spread_ns)
    node = np.random.default_rng((job.seed, _CLOCKS + 1, rank // job.gpus_per_node))
    error = round(float(node.standard_normal()) * job.clock_error_ns)
    return Clock(offset, _BEGIN_UTC_NS - offset + error, error)
