"""Ready times: when the host, the stream and what else it waits for let each operation begin, as recorded.

For operation i of a rank, with the thread and the stream it is on:

    back_before[i] = return of the call before i on its thread
    submit[i]      = min(return of i's own call, or back_before[i] where that is unknown; start[i])
    end_before[i]  = latest end of the operations before i on its stream

Across steps the carried state (`CarriedState`) tells what the step before left.
"""

import math
from math import isnan
from typing import NamedTuple

from jitter.analysis.execution.job_arrays import JobArrays
from jitter.analysis.execution.recorded.step_times import StepTimes
from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.numeric.compilation import compiled
from jitter.core.numeric.selection import later


class ReadyTimes(NamedTuple):
    """(operations,) each; ns from the rank's origin, NaN where nothing is known."""

    back_before: Floats
    submit: Floats
    """Time at which the GPU had the launch; the activities of one launch share it."""
    end_before: Floats


@compiled
def find_ready_times(
    job: JobArrays, step: StepTimes, rank: int, stream_end: Floats, back: Floats, base: int, ready: ReadyTimes
) -> None:
    """Follow one rank's threads and streams through a step; what it finds begins at `base` in `ready`.

    `stream_end` (ranks, streams) and `back` (ranks, threads) are how the rank comes to the step, and leaves it.
    """
    first = job.first[step.team[rank]]
    for op in range(job.first[step.team[rank] + 1] - first):
        cell = step.row[rank] + op
        thread, stream = job.thread[first + op], job.stream[first + op]
        before = back[rank, thread]
        returned = step.back[cell]
        launched = returned if not isnan(returned) else before
        start = step.start[cell]
        ready.back_before[base + op] = before
        # NaN where either is
        ready.submit[base + op] = launched if launched <= start or isnan(launched) else start
        if stream >= 0:
            ready.end_before[base + op] = stream_end[rank, stream]
            # a later kernel of a stream may end before an earlier one that overlaps it
            stream_end[rank, stream] = later(stream_end[rank, stream], step.end[cell])
        else:
            ready.end_before[base + op] = math.nan
        if not isnan(returned):
            back[rank, thread] = returned


@compiled
def find_awaited(
    job: JobArrays, step: StepTimes, rank: int, op: int, stream_end_before: Floats, base: int, ready: ReadyTimes
) -> float:
    """Return when the last of what an operation waits for ended; NaN for none.

    `stream_end_before` (ranks, carried ends) is what the steps before left. Where the rank lacks the awaited operation,
    the one before that on its stream counts.
    """
    at = job.first[step.team[rank]] + op
    return find_last_end(
        job.wait_on, job.first_wait[at], job.first_wait[at + 1], step, rank, stream_end_before, base, ready
    )


@compiled
def find_awaited_by_host(
    job: JobArrays, step: StepTimes, rank: int, op: int, stream_end_before: Floats, base: int, ready: ReadyTimes
) -> float:
    """Return the same of what the host waits for before an operation's call, without a record."""
    at = job.first[step.team[rank]] + op
    return find_last_end(
        job.host_wait_on,
        job.first_host_wait[at],
        job.first_host_wait[at + 1],
        step,
        rank,
        stream_end_before,
        base,
        ready,
    )


@compiled
def find_last_end(
    wait_on: Ints,
    first: int,
    after: int,
    step: StepTimes,
    rank: int,
    stream_end_before: Floats,
    base: int,
    ready: ReadyTimes,
) -> float:
    """Return when the last of some awaited operations ended; see `find_awaited`."""
    found = math.nan
    for wait in range(first, after):
        other = wait_on[wait]
        if other >= 0:
            end = step.end[step.row[rank] + other]
            end = end if not isnan(end) else ready.end_before[base + other]
        else:
            end = stream_end_before[rank, ~other]
        if not isnan(end) and not end <= found:
            found = end
    return found
