"""The replay with nothing repaired, against the lake's own files."""

import numpy as np

import jitter
from jitter.analysis.execution.job_arrays import state_before
from jitter.analysis.replay.replay import Change, no_shift, replay_steps
from tests.support.simulated import activities


def assert_replay_matches_recording(lake: "jitter.Lake") -> None:
    """Every activity of every rank's step is there once, and ends when its file says."""
    examined = lake.analyze()
    run = examined.run
    state, instructions = state_before(run.job), run.schedule.array()
    seen = set()
    for step in examined.steps.steps():
        nothing = np.zeros((1, 3, len(run.rank_numbers)), np.bool_)
        change = Change(nothing, step.transfers.took, np.zeros_like(step.transfers.took))
        baseline, shift = examined.steps.find_baselines(step), no_shift(len(run.rank_numbers))
        ends = replay_steps(run.job, instructions, step, baseline, change, state, shift).nodes.end
        for number in np.flatnonzero(step.times.row >= 0).tolist():
            rank, team = int(run.rank_numbers[number]), int(step.times.team[number])
            row = run.file_rows(step.keys[0], team, [rank])[:, 0]
            told = activities(lake, rank, step.keys[0])
            assert sorted(row[row >= 0]) == told["ordinal"].tolist()
            first = int(step.times.row[number])
            replayed = ends[first : first + len(row)][row >= 0]
            recorded = told["end_ns"].to_numpy()[row[row >= 0]] - examined.lake.origin_ns[rank]
            assert np.flatnonzero(replayed != recorded).tolist() == [], (rank, step.keys[0])
            seen.add((rank, step.first))
    counted = {
        (member.rank, number)
        for number, key in enumerate(examined.keys)
        for index in lake.kernel_indices(key)
        for member in index.members
    }
    assert seen == counted
