"""Clocks: each recording has its own zero, and states a wall clock with an error as NTP leaves it."""

from dataclasses import dataclass

import numpy as np

from jitter.simulate.job import Job

_START_UTC_NS = 1_718_000_000_000_000_000
"""The UTC at which a job runs step 0."""
_STEP_PITCH_NS = 10**9
"""UTC between the beginnings of two recordings, for each step between their first steps."""
_LEAD_NS = 1_500_000_000
"""Shortest time from the start of a recording to its first kernel."""
_CLOCKS = 2**41
"""Seed of the clocks, in place of a rank."""


def begin_utc_ns(job: Job) -> int:
    """Return the UTC at which the recording of a job begins: that of a later step begins later."""
    return _START_UTC_NS + job.first_step * _STEP_PITCH_NS


@dataclass(frozen=True)
class Clock:
    """A rank's clock: local = global + offset_ns; the UTC that the recording states = local + utc_epoch_ns."""

    offset_ns: int
    utc_epoch_ns: int
    error_ns: int
    """Error of the stated UTC."""


def make_clock(job: Job, rank: int) -> Clock:
    """Return the clock of a rank's recording. Ranks of a node share the error of the wall clock, but not the zero."""
    own = np.random.default_rng((job.seed, _CLOCKS, rank))
    offset = _LEAD_NS + round(float(own.random()) * job.clock_spread_ns)
    node = np.random.default_rng((job.seed, _CLOCKS + 1, rank // job.gpus_per_node))
    error = round(float(node.standard_normal()) * job.clock_error_ns)
    return Clock(offset, begin_utc_ns(job) - offset + error, error)
