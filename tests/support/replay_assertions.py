"""The replay with nothing repaired, against the lake's own files."""

import numpy as np

import jitter
from jitter.analysis.execution.run_model import Observed
from jitter.analysis.replay.replay import Replay
from jitter.analysis.replay.scenario_times import Repairs
from jitter.core.kernels import SYNC
from tests.support.simulated import activities


def assert_replay_matches_recording(lake: "jitter.Lake") -> None:
    """Every activity of every rank's step is there once, and ends when its file says."""
    examined = lake.analyze()
    run = examined.run
    replay = Replay(run.programs, run.rules, run.meetings, run.schedule, 1)
    seen = set()
    for number, work in examined.steps.works():
        nothing = [_none(len(block.ranks)) for block in run.meetings.blocks]
        transfers = {meeting: took[None] for meeting, took in work.transfers.took.items()}
        on_gpu = [_on_gpu(run, block.team) for block in run.meetings.blocks]
        ends = replay.step(work.blocks, nothing, transfers, np.zeros(1), np.arange(1), on_gpu)
        for block, columns, block_ends in zip(run.meetings.blocks, work.columns, ends, strict=True):
            for column, (rank, of_team) in enumerate(zip(block.ranks, columns.tolist(), strict=True)):
                if of_team < 0:
                    continue
                key = examined.keys[number]
                row = run.rows(key, block.team, [rank])[:, 0]
                told = activities(lake, rank, key)
                assert sorted(row[row >= 0]) == told["ordinal"].tolist()
                replayed = np.array([block_ends[at][0, column] for at in np.flatnonzero(row >= 0).tolist()])
                recorded = told["end_ns"].to_numpy()[row[row >= 0]] - examined.lake.origin_ns[rank]
                assert np.flatnonzero(replayed != recorded).tolist() == [], (rank, key)
                seen.add((rank, number))
    counted = {
        (member.rank, number)
        for number, key in enumerate(examined.keys)
        for index in lake.kernel_indices(key)
        for member in index.members
    }
    assert seen == counted


def _none(ranks: int) -> Repairs:
    return Repairs(*(np.zeros((1, ranks), np.bool_) for _ in range(3)))


def _on_gpu(run: Observed, team: int) -> frozenset[int]:
    """Places of all that has an end to be asked for."""
    return frozenset(at for at, op in enumerate(run.programs[team].operations) if op.kind != SYNC)
