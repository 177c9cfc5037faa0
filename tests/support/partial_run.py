"""The part of a run that was recorded."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from jitter.simulate import Job, RankRecording, Run


class PartialRun:
    """A run as far as profilers saw it: in the place of a `Run` where traces are written."""

    def __init__(self, run: Run, absent: frozenset[int], sees: Callable[[int, int], bool]) -> None:
        """`sees(rank, step)`: whether this step of this rank was recorded."""
        self.job: Job = run.job
        self._run, self._absent, self._sees = run, absent, sees

    def ranks(self, wanted: Any = None) -> Iterator[RankRecording]:
        """The recordings there are."""
        for recording in self._run.ranks([rank for rank in range(self.job.ranks) if rank not in self._absent]):
            steps = [step for step in self.job.step_numbers if self._sees(recording.rank, step)]
            yield recording if len(steps) == self.job.steps else _only(recording, steps)


def _only(recording: RankRecording, steps: list[int]) -> RankRecording:
    """The recording of a profiler that ran in these steps alone."""
    kept = recording.kept(recording.in_step & np.isin(recording.step, steps))
    return replace(
        kept,
        calls=tuple(call for call in recording.calls if call.step in steps),
        ranges=tuple(one for one in recording.ranges if one.step in steps),
    )
