"""A run computed once more, rank by rank and call by call in plain Python: no vectors, no coroutines.

Collectives' ends are guessed, all ranks computed with the guess, the guess replaced by what their arrivals give, over
and over until nothing changes. Ends only ever move later, so the first fixed point is the run.
"""

from collections import defaultdict
from typing import Any

import numpy as np

from jitter.simulate import Run
from jitter.simulate.durations import draw_durations, phase_operations

Times = dict[tuple[int, int, int], tuple[int, int, int, int]]
"""(rank, phase, position) -> launch start, launch end, start, end of what happened."""
Meets = dict[tuple[str, int, int], int]
"""(group, its number, how many before) -> end."""


def simulation_oracle(run: Run) -> Times:
    prices = [_Prices(run, rank) for rank in range(run.job.ranks)]
    ends: Meets = defaultdict(int)
    while True:
        times: Times = {}
        arrivals: dict[tuple[str, int, int], list[tuple[int, int, int]]] = defaultdict(list)
        for price in prices:
            _one_rank(run, price, ends, times, arrivals)
        found = {
            # of several stages in a group, the transfer is the first's
            key: max(ready for _, ready, _ in come) + min(come)[2]
            for key, come in arrivals.items()
        }
        if found == ends:
            return times
        ends = defaultdict(int, found)


class _Prices:
    """The cost of each operation to one rank; the costs are the simulator's own, the computation with them is not."""

    def __init__(self, run: Run, rank: int) -> None:
        self.rank = rank
        self.stage = int(run.plan.stage[rank])
        self.program = run.plan.programs[self.stage]
        self.phases: list[Any] = [
            draw_durations(run.job, run.faults, self.program, run.plan.groups, phase, np.array([rank]))
            for phase in range(run.job.steps + 2)
        ]


def _one_rank(run: Run, own: _Prices, ends: Meets, times: Times, arrivals: dict[Any, list[Any]]) -> None:
    job = run.job
    clock = int(np.random.default_rng((job.seed, own.rank)).integers(400_000))
    stream_free: dict[int, int] = {}
    begun: list[int] = []  # when every launched activity started
    met: dict[str, int] = defaultdict(int)
    for phase, price in enumerate(own.phases):
        clock += 3_000 + 3_000 + int(price.loading[0])
        ended: dict[int, int] = {}
        for at, op in enumerate(phase_operations(own.program, phase, job.steps)):
            if price.absent is not None and price.absent[at, 0]:
                ended[at] = stream_free.get(op.stream, 0)
                continue
            called = clock + int(price.cpu[at, 0])
            returned = called + int(price.call[at, 0])
            start = end = 0
            if op.kind == "sync":
                if op.after:
                    awaited = [ended[other] for other in op.after]
                elif op.call == "cudaDeviceSynchronize":
                    awaited = list(stream_free.values())
                else:
                    awaited = [stream_free.get(op.stream, 0)]
                returned = max([returned, *(when + 6_000 for when in awaited)])
            elif op.kind != "call":
                if job.launch_queue is not None:
                    while sum(when > returned for when in begun) >= job.launch_queue:
                        returned = min(when for when in begun if when > returned)
                start = max(
                    returned + 2_400,
                    stream_free.get(op.stream, 0) + int(price.gap[at, 0]),
                    *(ended[other] for other in op.after),
                )
                end = start + int(price.duration[at, 0])
                if op.kind == "collective":
                    number = int(run.plan.groups[op.group][own.rank])
                    key = (op.group, number, met[op.group])
                    met[op.group] += 1
                    arrivals[key].append((own.stage, start, int(price.transfer[at, 0])))
                    end = max(start, ends[key])
                begun.append(start)
                ended[at] = stream_free[op.stream] = end
            times[own.rank, phase, at] = called, returned, start, end
            clock = returned
        clock += 3_000
