"""All teams' programs and dependencies as flat arrays: what the compiled loops go through, operation by operation.

Ranks of the run are numbered team by team, and within a team by rank: `rank` in a loop is that number.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jitter.analysis.execution.dependencies.inference import Dependencies
from jitter.analysis.execution.dependencies.interference import collectives_before
from jitter.analysis.execution.program import NO_STREAM, Program
from jitter.core.numeric.arrays import Bools, Floats, Ints, begins_of, joined


class JobArrays(NamedTuple):
    """Teams one after another: (teams + 1,) where each one's ranks and operations begin, then one entry each."""

    first_rank: Ints
    """(teams + 1,)."""
    first: Ints
    """(teams + 1,) of the operations below."""
    kind: Ints
    """(operations,) codes of `kernels.KINDS`, or `SYNC`."""
    stream: Ints
    """(operations,) the stream; `NO_STREAM` for synchronising calls."""
    thread: Ints
    """(operations,) whose calls the operation's call follows."""
    first_wait: Ints
    """(operations + 1,) where what each operation waits for begins in `wait_on`."""
    wait_on: Ints
    """(waits,) a place in the team's program; below 0 ~stream: the last operation on it in the step before."""
    launch_ns: Floats
    """(teams,) usual time from a launch's return to its start."""
    stream_ns: Floats
    """(teams,) usual time from the end of the operation before it on its stream to its start."""
    queue: Ints
    """(teams,) launches that may be pending; 0: no limit."""
    first_kernel: Ints
    """(teams,) the place of the step's first main-stream kernel."""
    interference: Floats
    """(teams,) by what part compute kernels take longer beside collectives."""
    collective_before: Ints
    """(operations,) the place of the last collective launched before each operation, -1 for none."""
    has_launches: Bools
    """(teams,) whether launches were recorded; see `Dependencies`."""


def job_arrays(sizes: Sequence[int], programs: Mapping[int, Program], rules: Mapping[int, Dependencies]) -> JobArrays:
    """Flatten the programs and dependencies of all teams, numbered from 0; `sizes` are their numbers of ranks."""
    teams = range(len(sizes))
    waits = [rules[team].by_place.get(place, ()) for team in teams for place in range(len(programs[team].operations))]
    return JobArrays(
        first_rank=begins_of(sizes),
        first=begins_of(len(programs[team].operations) for team in teams),
        kind=joined(programs[team].kinds for team in teams),
        stream=joined(programs[team].streams for team in teams),
        thread=joined(rules[team].thread for team in teams),
        first_wait=begins_of(map(len, waits)),
        wait_on=np.array([other for others in waits for other in others], np.int64),
        launch_ns=np.array([rules[team].launch_ns for team in teams], np.float64),
        stream_ns=np.array([rules[team].stream_ns for team in teams], np.float64),
        queue=np.array([rules[team].queue or 0 for team in teams], np.int64),
        first_kernel=np.array([programs[team].first_kernel for team in teams], np.int64),
        interference=np.array([rules[team].interference for team in teams], np.float64),
        collective_before=joined(collectives_before(programs[team].kinds) for team in teams),
        has_launches=np.array([rules[team].has_launches for team in teams], np.bool_),
    )


def count_streams(job: JobArrays) -> int:
    """Return how many streams the busiest rank has."""
    return 1 + int(job.stream.max(initial=NO_STREAM))


def count_threads(job: JobArrays) -> int:
    """Return how many launching threads the busiest rank has."""
    return 1 + int(job.thread.max(initial=0))
