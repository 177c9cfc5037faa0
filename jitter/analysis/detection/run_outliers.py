"""The ranks of a run that stand out by parts of their own time, and when: alone, in clusters, or any of them."""

from functools import cached_property
from typing import NamedTuple

from jitter.analysis.detection.findings import Clusters, Finding, find_clusters, find_fast_ranks, split_random_events
from jitter.analysis.detection.launched_work import WorkOfTeams, compare_launched_work, find_outliers_by_work
from jitter.analysis.detection.measured_run import MeasuredRun
from jitter.analysis.detection.standouts import Outlier, Standouts, find_standouts
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.replay.run_steps import RunSteps
from jitter.lake.records import ON_REQUEST


class OutliersAboveNoise(NamedTuple):
    """Outliers above the noise, whether they cost time or not."""

    of_ranks: list[Outlier]
    random: list[Finding]
    """Pauses that meet one rank after another."""


class RunOutliers:
    """When ranks stand out from their team, with which part of their time."""

    def __init__(self, measured: MeasuredRun) -> None:
        self._measured = measured
        self._lake, self._steps = measured.steps.lake, measured.steps

    @cached_property
    def standouts(self) -> dict[tuple[int, TimePart], Standouts]:
        """When ranks stand out, by team and part of their time."""
        measured = self._measured
        return {
            (team.team, part): find_standouts(
                team, part, measured.assumed_step_ns, self._steps.alike.by_program, self._tests(team.team)
            )
            for team in measured.deviations
            for part in OWN_PARTS
        }

    @cached_property
    def launched_work(self) -> WorkOfTeams:
        """GPU times for the launched work, of teams whose launches vary in size."""
        work_of_team = {
            team.team: compare_launched_work(self._steps, self._lake, team) for team in self._measured.deviations
        }
        return {team: work for team, work in work_of_team.items() if work is not None}

    @cached_property
    def _by_work(self) -> dict[int, Standouts]:
        """When ranks stand out by GPU time for the launched work, of teams whose launches vary in size."""
        return {
            team: find_standouts(work.deviations, TimePart.GPU, self._measured.assumed_step_ns, tests=self._tests(team))
            for team, work in self.launched_work.items()
        }

    def _tests(self, team: int) -> int:
        """Return how many parts of a rank's time are tested."""
        return len(OWN_PARTS) + (team in self.launched_work)

    def standouts_of(self, outlier: Outlier) -> Standouts:
        """Return when the ranks of an outlier's team stand out with its part of their time."""
        if outlier.pace is None:
            return self.standouts[outlier.team, outlier.part]
        return self._by_work[outlier.team]

    @cached_property
    def above_noise(self) -> OutliersAboveNoise:
        """Outliers above the noise, whether they cost time or not, and random pauses."""
        step_ns = self._measured.assumed_step_ns
        outliers = OutliersAboveNoise([], [])
        for team in self._measured.deviations:
            of_team = [outlier for part in OWN_PARTS for outlier in self.standouts[team.team, part].outliers(step_ns)]
            if (work := self.launched_work.get(team.team)) is not None:
                of_team = find_outliers_by_work(work, self._by_work[team.team], of_team, step_ns)
            for part in OWN_PARTS:
                of_part = [outlier for outlier in of_team if outlier.part is part]
                alone, shared = split_random_events(of_part, len(team.ranks), len(step_ns))
                if shared and all(outlier.pace is None for outlier in of_part):
                    # where any rank may pause, what is as far above its noise is one more of them
                    further = self.standouts[team.team, part].with_all_events(step_ns).outliers(step_ns)
                    alone_too, shared_too = split_random_events(further, len(team.ranks), len(step_ns))
                    alone, shared = (alone_too, shared_too) if shared_too else (alone, shared)
                outliers.of_ranks.extend(alone)
                outliers.random.extend(shared)
        return outliers

    @cached_property
    def idle_moments(self) -> list[Outlier]:
        """Those of the only recorded rank that may be moments without requests."""
        is_alone = len(self._steps.run.team_of) == 1
        return [late for late in self.above_noise.of_ranks if may_be_idle(self._steps, late)] if is_alone else []

    @cached_property
    def clusters(self) -> list[Finding]:
        """Slow clusters of each team's ranks; those of known saving are no part of the loss."""
        findings: list[Finding] = []
        for team in self._measured.deviations:
            of_team = [outlier for outlier in self.above_noise.of_ranks if outlier.team == team.team]
            findings += find_clusters(team, self._measured.step_ns, of_team)
        return findings

    @cached_property
    def fast_ranks(self) -> list[Clusters]:
        """The clusters of teams of which few ranks are much faster than the others: a doubt, and no finding."""
        usual_step_ns = self._measured.usual_step_ns
        fast_by_team = (find_fast_ranks(team, usual_step_ns) for team in self._measured.deviations)
        return [team_ranks for team_ranks in fast_by_team if team_ranks is not None]


def may_be_idle(steps: RunSteps, late: Finding | Outlier) -> bool:
    """Return whether a serving engine may have had no requests before the steps that all recorded ranks start late."""
    return late.part is TimePart.START and all(steps.alike.kinds[number] in ON_REQUEST for number in late.steps)
