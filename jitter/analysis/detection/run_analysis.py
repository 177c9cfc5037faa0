"""The run examined: each step's time, its path, the suspects, and by replay what each of them costs."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from jitter.analysis.detection.data_quality import StepQuality
from jitter.analysis.detection.deviations import TeamDeviations, collect_deviations
from jitter.analysis.detection.findings import Candidate, PricedFinding, repair_scenario
from jitter.analysis.detection.outliers import find_outliers, largest_outliers
from jitter.analysis.detection.passes import Passes, PassesHere, SeenStep, StepPath
from jitter.analysis.detection.slow_collectives import SlowCommunication, attribute_to_ranks, find_slow_collectives
from jitter.analysis.detection.thresholds import Thresholds
from jitter.analysis.execution.run_reader import LakeRun
from jitter.analysis.replay.critical_path import Part
from jitter.analysis.replay.run_steps import ExaminedSteps
from jitter.analysis.replay.scenario_times import CPU, GPU, START
from jitter.analysis.replay.what_if import Scenario, together, usual_transfers
from jitter.core.arrays import Floats
from jitter.core.step_key import StepKey


class RunAnalysis:
    """Goes through the run's steps as often as it must, and keeps what is small."""

    def __init__(
        self, lake: LakeRun, limits: Thresholds, passes: Callable[[ExaminedSteps], Passes] = PassesHere
    ) -> None:
        """`passes` makes what goes through the steps."""
        self.lake, self.limits = lake, limits
        self.steps = ExaminedSteps(lake)
        self.run, self.ends = self.steps.run, self.steps.ends
        self._passes = passes(self.steps)
        self._known: list[tuple[Scenario, float]] = []

    @cached_property
    def keys(self) -> list[StepKey]:
        """The steps, in order."""
        return list(self.run.keys)

    @cached_property
    def _seen(self) -> list[SeenStep]:
        seen = self._passes.look()
        self.steps.typical.update((number, one.typical) for number, one in enumerate(seen))
        return seen

    @property
    def qualities(self) -> list[StepQuality]:
        """How far each step's figures can be trusted."""
        return [seen.quality for seen in self._seen]

    @cached_property
    def step_ns(self) -> Floats:
        """(steps,) each step's time; NaN for the first of a stretch."""
        return np.array([seen.time_ns for seen in self._seen])

    @property
    def unrecorded_ranks(self) -> bool:
        """Whether the job has ranks that the lake has not: groups name them, or the ranks' numbers have holes."""
        ranks = self.run.team_of
        return max(self.run.meetings.named, max(ranks, default=-1) + 1) > len(ranks)

    @cached_property
    def deviations(self) -> list[TeamDeviations]:
        """Each team's."""
        return collect_deviations([one for seen in self._seen for one in seen.deviations], len(self.keys))

    def deviations_of(self, team: int) -> TeamDeviations:
        """One team's."""
        return next(own for own in self.deviations if own.team == team)

    def variance_of(self, number: int, team: int, part: Part) -> float:
        """The variance by chance alone, ns², of one operation's own time of this part in the run's `number`th step.

        What the part's operations have together, shared out evenly.
        """
        size, first = len(self.run.programs[team].operations), self.run.programs[team].first_kernel + 1
        operations = {START: first, CPU: size - first, GPU: size}[int(part)]
        return float(self.deviations_of(team).noise_ns[part, number, 0]) ** 2 / max(operations, 1)

    def total(self, gained: Floats) -> Floats:
        """(scenarios,) the sum of (steps, scenarios) over steps of a known time; over all, if no step's is known.

        Of the first step of a stretch nobody knows when it began.
        """
        timed = ~np.isnan(self.step_ns)
        found: Floats = np.nansum(gained[timed if timed.any() else slice(None)], axis=0)
        return found

    @property
    def usual_step_ns(self) -> float:
        """The median step's time."""
        return float(np.median(self._typical_step_ns))

    def transfer_excess(self, meetings: Sequence[tuple[int, int]], number: int) -> float:
        """How much longer than usual these (meeting, group) took in a step."""
        took = self._seen[number].transfers
        return float(np.nansum([took[meeting][group] - self.usual_transfers[meeting] for meeting, group in meetings]))

    @property
    def _transfers(self) -> list[Mapping[int, Floats]]:
        return [seen.transfers for seen in self._seen]

    @cached_property
    def usual_transfers(self) -> dict[int, float]:
        """By meeting, ns."""
        return usual_transfers(self.run.meetings, self._transfers)

    @cached_property
    def candidates(self) -> list[Candidate]:
        """What leaves the noise, whether it costs anything or not."""
        limits, step_ns = self.limits, self._typical_step_ns
        own = [one for team in self.deviations for one in find_outliers(team, step_ns, limits)]
        slow = find_slow_collectives(self.run.meetings, self._transfers, self.usual_transfers, step_ns, limits)
        return [*largest_outliers(own, limits), *attribute_to_ranks(slow)]

    @cached_property
    def _typical_step_ns(self) -> Floats:
        """Each step's time, where unknown the median of those known; without any, the span of the step."""
        if not np.isnan(self.step_ns).all():
            return np.where(np.isnan(self.step_ns), np.nanmedian(self.step_ns), self.step_ns)
        spans = []
        for _, work in self.steps.works():
            of_ranks = [
                np.fmax.reduce(step.recorded.end) - np.fmin.reduce(step.recorded.start)
                for step in work.observed.teams.values()
            ]
            spans.append(float(np.median(np.concatenate(of_ranks))) if of_ranks else np.nan)
        known = [span for span in spans if not np.isnan(span)]
        return np.nan_to_num(spans, nan=float(np.median(known)) if known else 0.0)

    @cached_property
    def _second_pass(self) -> tuple[Floats, list[StepPath]]:
        """The replay with everything at the median, (steps,), and the paths; on the way, what each suspect costs."""
        alone = [repair_scenario(candidate) for candidate in self.candidates]
        scenarios = [Scenario(everything=True), *alone]
        if len(alone) > 1:
            scenarios.append(together(alone))
        gone = self._passes.go(self.usual_transfers, scenarios, walk=True)
        self._known += zip(scenarios, self.total(gone.gained_ns).tolist(), strict=True)
        return gone.gained_ns[:, 0], gone.paths

    def gains(self, scenarios: Sequence[Scenario]) -> list[float]:
        """What the run would gain by each of these repairs, ns; replays those that it has not replayed yet."""
        self._second_pass  # noqa: B018  # what it has replayed need not be again
        new = [scenario for scenario in scenarios if scenario.repairs and not self._gain_of(scenario)]
        if new:
            gone = self._passes.go(self.usual_transfers, new, walk=False)
            self._known += zip(new, self.total(gone.gained_ns).tolist(), strict=True)
        return [next(iter(self._gain_of(scenario)), 0.0) for scenario in scenarios]

    def _gain_of(self, scenario: Scenario) -> list[float]:
        return [gain for known, gain in self._known if known == scenario]

    def is_worth(self, what: Candidate, alone_ns: float, marginal_ns: float) -> bool:
        """Whether repairing it gains enough, by itself or when everything else is repaired."""
        least = self.least_gain(what.steps)
        if isinstance(what, SlowCommunication):
            meetings = self.run.meetings.meetings
            if any(meetings[number].incomplete[group] for number, group in what.meetings):
                # the wait may be for ranks that were not recorded, which waited for what else was wrong
                return marginal_ns >= self.limits.unrecorded_factor * least
        return max(alone_ns, marginal_ns) >= least

    def least_gain(self, steps: Sequence[int]) -> float:
        """What the repair of something in these steps must gain, ns, for it to be named."""
        return self.limits.step_share * float(self._typical_step_ns[list(steps)].sum())

    @property
    def loss_ns(self) -> Floats:
        """(steps,) what each step would take less with every own time at its median."""
        return self._second_pass[0]

    @cached_property
    def paths(self) -> list[StepPath]:
        """Each step's; who knows the answers already, and wants nothing else, does not wait for replays."""
        if "_second_pass" in self.__dict__:
            return self._second_pass[1]
        return self._passes.go(self.usual_transfers, [], walk=True).paths

    @cached_property
    def found(self) -> list[PricedFinding]:
        """What costs enough to be worth repairing, most first."""
        scenarios = [repair_scenario(candidate) for candidate in self.candidates]
        priced = [
            PricedFinding(candidate, alone, marginal)
            for candidate, (alone, marginal) in zip(self.candidates, self.prices(scenarios), strict=True)
        ]
        kept = [found for found in priced if self.is_worth(found.what, found.gain_ns, found.marginal_ns)]
        return sorted(kept, key=lambda one: -max(one.gain_ns, one.marginal_ns))

    def prices(self, scenarios: Sequence[Scenario]) -> list[tuple[float, float]]:
        """What each repair gains by itself, and what it still adds when all the others are done.

        The latter is asked only where the former is too little to be named for: then it is the same.
        """
        alone = self.gains(scenarios)
        hidden = [
            at
            for at, (scenario, gain) in enumerate(zip(scenarios, alone, strict=True))
            if scenario.transfers or gain < self.least_gain(sorted(scenario.steps))
        ]
        others = [together([*scenarios[:at], *scenarios[at + 1 :]]) for at in hidden]
        every, *without = self.gains([together(scenarios), *others])
        marginal = dict(zip(hidden, (every - gain for gain in without), strict=True))
        return [(gain, marginal.get(at, gain)) for at, gain in enumerate(alone)]
