"""The replay against the slow one, with some ranks' own times at the median; steps against numbers taken one by one."""

import numpy as np
import pytest

from jitter.analysis.execution.job_arrays import state_before
from jitter.analysis.execution.self_times import CPU, GPU, START
from jitter.analysis.replay.replay import Change, replay_step
from jitter.core.names.kernels import SYNC
from tests.support.loops import WAYS, run_loops
from tests.support.oracles.replay import OracleJob, Own, replay

pytestmark = pytest.mark.slow


def test_repairs_give_the_same_ends(job: OracleJob):
    scenarios = {
        "nothing": [],
        "one host": [(1, CPU)],
        "one start and one GPU": [(0, START), (2, GPU)],
        "everything": [(rank, part) for rank in job.recorded for part in (START, CPU, GPU)],
    }
    replayed_by = {}
    for way in WAYS:
        with run_loops(way):
            ends_of = replayed_ends(job.examined, list(scenarios.values()))
        replayed_by[way] = {key: [end - job.zeros[key[0]] for end in ends] for key, ends in ends_of.items()}
    for at, which in enumerate(scenarios.values()):
        mixed = {}
        for (rank, number, op), mine in job.own.items():
            other = job.usual[rank, number, op]
            host, gpu = (rank, START if op <= job.first_kernel else CPU) in which, (rank, GPU) in which
            mixed[rank, number, op] = Own(*(other if host else mine)[:3], *(other if gpu else mine)[3:])
        slow = replay(job.recorded, job.rule, mixed, job.group, job.transfers)
        for way, replayed in replayed_by.items():
            assert slow.keys() == replayed.keys()
            wrong = {key: (slow[key], replayed[key][at]) for key in slow if abs(slow[key] - replayed[key][at]) > 1e-3}
            assert wrong == {}, (list(scenarios)[at], way)
            assert at == 0 or any(end != replayed[key][0] for key, end in slow.items())


def replayed_ends(examined, scenarios) -> dict[tuple[int, int, int], list[float]]:
    """(rank, step, operation) -> its end in each scenario, on the rank's clock."""
    found: dict[tuple[int, int, int], list[float]] = {}
    run = examined.run
    states, instructions = [state_before(run.job) for _ in scenarios], run.schedule.array()
    on_gpu = [at for at, op in enumerate(run.programs[0].operations) if op.kind != SYNC]
    for step in examined.steps.steps():
        for which, state in zip(scenarios, states, strict=True):
            repaired = np.array([[(rank, part) in which for rank in run.rank_numbers] for part in (START, CPU, GPU)])
            change = Change(repaired, step.transfers.took, np.zeros(len(step.transfers.took)), 0.0)
            ends = replay_step(run.job, instructions, step, examined.steps.baseline(step), change, state).end
            for row, rank in zip(step.times.row.tolist(), run.rank_numbers.tolist(), strict=True):
                if row >= 0:
                    for at in on_gpu:
                        end = float(ends[row + at]) + examined.lake.origin_ns[rank]
                        found.setdefault((rank, step.number, at), []).append(end)
    return {key: ends for key, ends in found.items() if not np.isnan(ends).any()}


def test_the_min_rank_waits_longest(job: OracleJob):
    answers = job.lake.diagnose().steps
    for number in range(job.run.job.steps):
        waited = dict.fromkeys(job.recorded, 0.0)
        for at, op in enumerate(job.recorded[0][number]):
            if op.kind != "collective":
                continue
            for rank in job.recorded:
                mine = [other for other in job.recorded if job.group(other, at) == job.group(rank, at)]
                last = max(job.recorded[other][number][at].start for other in mine)
                waited[rank] += last - job.recorded[rank][number][at].start
        assert answers[number].min_rank == max(waited, key=lambda rank: (waited[rank], -rank))


def test_step_times_are_the_simulators(job: OracleJob):
    assert [answer.step_time_ns for answer in job.lake.diagnose().steps] == list(job.run.step_times().values())
    assert np.isnan(job.examined.step_ns[0])
