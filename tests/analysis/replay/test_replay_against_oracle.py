"""The replay against the slow one, with some ranks' own times at the median."""

import numpy as np
import pytest

from jitter.analysis.execution.time_part import TimePart
from jitter.analysis.replay import scenario_times
from jitter.analysis.replay.replay import Replay
from jitter.analysis.replay.scenario_times import Repairs
from jitter.core.kernels import SYNC
from tests.support.oracles.replay import Own, replay
from tests.support.oracles.replay_jobs import OracleJob

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("cells", [scenario_times.CELLS_AT_ONCE, 100, 1])
def test_repairs_give_the_same_ends(job: OracleJob, cells: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scenario_times, "CELLS_AT_ONCE", cells)
    scenarios = {
        "nothing": [],
        "one host": [(1, TimePart.CPU)],
        "one start and one GPU": [(0, TimePart.START), (2, TimePart.GPU)],
        "everything": [(rank, part) for rank in job.recorded for part in (TimePart.START, TimePart.CPU, TimePart.GPU)],
    }
    replayed = {
        key: [end - job.zeros[key[0]] for end in ends]
        for key, ends in replayed_ends(job.examined, list(scenarios.values())).items()
    }
    for at, which in enumerate(scenarios.values()):
        mixed = {}
        for (rank, number, op), mine in job.own.items():
            other = job.usual[rank, number, op]
            host, gpu = (
                (rank, TimePart.START if op <= job.first_kernel else TimePart.CPU) in which,
                (rank, TimePart.GPU) in which,
            )
            mixed[rank, number, op] = Own(*(other if host else mine)[:3], *(other if gpu else mine)[3:])
        slow = replay(job.recorded, job.rule, mixed, job.group, job.transfers)
        assert slow.keys() == replayed.keys()
        wrong = {key: (slow[key], replayed[key][at]) for key in slow if abs(slow[key] - replayed[key][at]) > 1e-3}
        assert wrong == {}, list(scenarios)[at]
        assert at == 0 or any(end != replayed[key][0] for key, end in slow.items())


def replayed_ends(examined, scenarios) -> dict[tuple[int, int, int], list[float]]:
    """(rank, step, operation) -> its end in each scenario, on the rank's clock."""
    found = {}
    run = examined.run
    fast = Replay(run.programs, run.rules, run.meetings, run.schedule, len(scenarios))
    on_gpu = [at for at, op in enumerate(run.programs[0].operations) if op.kind != SYNC]
    for number, work in examined.steps.works():
        repairs = []
        for block in run.meetings.blocks:
            masks = [
                [[(rank, part) in which for rank in block.ranks] for which in scenarios]
                for part in (TimePart.START, TimePart.CPU, TimePart.GPU)
            ]
            repairs.append(Repairs(*map(np.array, masks)))
        transfers = {
            meeting: np.repeat(took[None], len(scenarios), axis=0) for meeting, took in work.transfers.took.items()
        }
        every = np.arange(len(scenarios))
        asked = [frozenset(on_gpu) for _ in run.meetings.blocks]
        found_ends = fast.step(work.blocks, repairs, transfers, np.zeros(len(scenarios)), every, asked)
        for block, ends in zip(run.meetings.blocks, found_ends, strict=True):
            for at in on_gpu:
                scenario_ends = ends[at]
                for column, rank in enumerate(block.ranks):
                    if not np.isnan(scenario_ends[:, column]).any():
                        found[rank, number, at] = (scenario_ends[:, column] + examined.lake.origin_ns[rank]).tolist()
    return found
