"""The run's steps one after another, ready to be computed again: all of them, or a stretch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from jitter.analysis.execution.own_time import OwnTimes, side_by_side
from jitter.analysis.execution.run_model import Observed, Understood
from jitter.analysis.execution.run_reader import LakeRun
from jitter.analysis.replay.step_end import StepEnds
from jitter.analysis.replay.step_inputs import StepWork, medians, usual_of, work_of


@dataclass(frozen=True)
class Shared:
    """What the whole run tells of any of its steps."""

    understood: Understood
    alone: Mapping[int, OwnTimes]
    """Of teams of one rank, which has no peers: the medians over its steps."""


class ExaminedSteps:
    """A run's steps; whoever computes a stretch of them elsewhere is told what the whole run tells."""

    def __init__(self, lake: LakeRun, shared: Shared | None = None) -> None:
        self.lake = lake
        self.run = Observed(lake.source, None if shared is None else shared.understood)
        self.ends = StepEnds(self.run)
        self.typical: dict[int, Mapping[int, OwnTimes]] = {}
        """Each step's medians by team, as far as they are known."""
        if shared is not None:
            self.alone = shared.alone

    @property
    def shared(self) -> Shared:
        """What others need to know to compute a stretch."""
        return Shared(self.run.understood, self.alone)

    def works(self, first: int = 0, last: int | None = None) -> Iterator[tuple[int, StepWork]]:
        """Steps from the `first` up to but not including the `last` (all), with their numbers in the run."""
        for number, step in enumerate(self.run.steps(first, last), first):
            if number not in self.typical:
                self.typical[number] = usual_of(step, self.alone)
            yield number, work_of(self.run, step, self.typical[number])

    @cached_property
    def alone(self) -> Mapping[int, OwnTimes]:
        """Of teams of one rank, which has no peers: the medians over its steps."""
        alone = {team for team, size in self.run.sizes.items() if size == 1}
        if not alone:
            return {}
        seen: dict[int, list[OwnTimes]] = {team: [] for team in alone}
        for step in self.run.steps():
            for team in alone & step.teams.keys():
                seen[team].append(step.teams[team].own)
        return {team: medians(side_by_side(found)) for team, found in seen.items()}
