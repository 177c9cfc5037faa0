"""The times of a step's nodes as recorded, in the form in which the replay returns those of a scenario."""

import math
from math import isnan

from jitter.analysis.execution.job_arrays import CarriedState, JobArrays
from jitter.analysis.execution.step_times import StepTimes
from jitter.analysis.replay.replay import NodeTimes
from jitter.core.names.kernels import SYNC
from jitter.core.numeric.compilation import compiled
from jitter.core.numeric.selection import later


@compiled
def find_recorded_nodes(job: JobArrays, step: StepTimes, state: CarriedState, nodes: NodeTimes) -> None:
    """Fill the ends, returns and free streams of a step's nodes; their starts are the recorded ones.

    `state` is how the ranks come to the step, and is overwritten.
    """
    for rank in range(len(step.row)):
        if step.row[rank] < 0:
            continue
        team, row = step.team[rank], step.row[rank]
        for op in range(job.first[team + 1] - job.first[team]):
            place, cell = job.first[team] + op, row + op
            thread, stream = job.thread[place], job.stream[place]
            returned = state.back[rank, thread]
            if not isnan(step.call[cell]):
                returned = state.back[rank, thread] = step.back[cell]
            nodes.back[cell] = returned
            if job.kind[place] == SYNC:
                nodes.free[cell] = nodes.end[cell] = math.nan
                continue
            free = state.stream_end[rank, stream]
            end = free if isnan(step.start[cell]) else step.end[cell]
            nodes.free[cell], nodes.end[cell] = free, end
            state.stream_end[rank, stream] = later(free, end)
