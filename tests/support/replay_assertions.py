"""The replay with nothing repaired, against the lake's own files."""

import numpy as np

import jitter
from jitter.analysis.execution.job_arrays import state_before
from jitter.analysis.replay.replay import Change, replay_step
from tests.support.simulated import activities


def assert_replay_matches_recording(lake: "jitter.Lake") -> None:
    """Every activity of every rank's step is there once, and ends when its file says."""
    examined = lake.analyze()
    run = examined.run
    state, instructions = state_before(run.job), run.schedule.array()
    seen = set()
    for step in examined.steps.steps():
        nothing = np.zeros((3, len(run.rank_numbers)), np.bool_)
        change = Change(nothing, step.transfers.took, np.zeros(len(step.transfers.took)))
        ends = replay_step(run.job, instructions, step, examined.steps.baseline(step), change, state).end
        for number in np.flatnonzero(step.times.row >= 0).tolist():
            rank, team = int(run.rank_numbers[number]), int(step.times.team[number])
            row = run.file_rows(step.key, team, [rank])[:, 0]
            told = activities(lake, rank, step.key)
            assert sorted(row[row >= 0]) == told["ordinal"].tolist()
            first = int(step.times.row[number])
            replayed = ends[first : first + len(row)][row >= 0]
            recorded = told["end_ns"].to_numpy()[row[row >= 0]] - examined.lake.origin_ns[rank]
            assert np.flatnonzero(replayed != recorded).tolist() == [], (rank, step.key)
            seen.add((rank, step.number))
    counted = {
        (member.rank, number)
        for number, key in enumerate(examined.keys)
        for index in lake.kernel_indices(key)
        for member in index.members
    }
    assert seen == counted
