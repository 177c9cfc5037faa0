"""Run time with some self times replaced by the baseline's: several scenarios in one pass over the steps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from jitter.analysis.execution.job_arrays import (
    CarriedState,
    same_state,
    state_before,
)
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.self_times import CPU, GPU, START, SelfTimes
from jitter.analysis.replay.replay import Change, replay_step
from jitter.analysis.replay.run_steps import EndShift, RecordedStep, StepEnds
from jitter.core.numeric.arrays import Bools, Floats, Ints


@dataclass(frozen=True)
class Scenario:
    """Self times and transfers at the baseline, each in some steps, given by their positions in the run."""

    parts: Mapping[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    """(rank, part) to steps."""
    transfers: Mapping[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    """(collective, group) to steps."""
    paces: Mapping[int, tuple[float, frozenset[int]]] = field(default_factory=dict)
    """Rank to the factor by which its kernels take too long, and the steps in which their times, or those of the
    baseline where they are repaired too, are divided by it."""
    everything: bool = False
    """Whether all self times and transfers are at the baseline."""

    @property
    def repairs(self) -> bool:
        """Whether it repairs anything."""
        return self.everything or any(map(bool, (self.parts, self.transfers, self.paces)))

    @property
    def steps(self) -> frozenset[int]:
        """The steps in which it repairs anything."""
        return frozenset(step for steps in self._ranges() for step in steps)

    def _ranges(self) -> Iterator[frozenset[int]]:
        """The steps of each repair."""
        yield from self.parts.values()
        yield from self.transfers.values()
        yield from (steps for _, steps in self.paces.values())

    def at(self, step: int) -> bool:
        """Whether anything is repaired in this step."""
        return self.everything or any(step in steps for steps in self._ranges())


def together(scenarios: Iterable[Scenario]) -> Scenario:
    """Return the scenario with the repairs of all of them."""
    parts: dict[tuple[int, int], frozenset[int]] = {}
    transfers: dict[tuple[int, int], frozenset[int]] = {}
    paces: dict[int, tuple[float, frozenset[int]]] = {}
    for scenario in scenarios:
        for merged, added in ((parts, scenario.parts), (transfers, scenario.transfers)):
            for key, steps in added.items():
                merged[key] = merged.get(key, frozenset()) | steps
        paces.update(scenario.paces)
    return Scenario(parts, transfers, paces)


class ScenarioReplay:
    """Replays scenarios step by step; give it every step in order.

    A scenario that stands as recorded, but for being some time ahead, need not be computed until it repairs something.
    """

    def __init__(
        self,
        run: RunModel,
        ends: StepEnds,
        scenarios: Sequence[Scenario],
        baseline_transfers: Sequence[Floats],
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """`baseline_transfers` are each step's (groups of all collectives,) usual times from last arrival to end.

        The scenarios of a step are replayed on the threads of `pool`, if there is one.
        """
        self._run, self._ends, self._scenarios = run, ends, scenarios
        self._usual = baseline_transfers
        self._map = map if pool is None else pool.map
        self._instructions = run.schedule.array()
        self._states = [state_before(run.job) for _ in scenarios]
        self._shifts = [EndShift(len(run.rank_numbers)) for _ in scenarios]
        """How much earlier than recorded each scenario is."""
        self._diverged = np.zeros(len(scenarios), np.bool_)
        """Mask of the scenarios that differ from the recording by more than a constant shift."""
        self._last = max((step for scenario in scenarios for step in scenario.steps), default=-1)
        """The last step in which a scenario repairs anything."""
        self.gained: list[Floats] = []
        """For each step (scenarios,): how much shorter it would be, ns; NaN where no rank's step counts."""

    def step(self, step: RecordedStep, baseline: SelfTimes) -> None:
        """Compute one step; `baseline` (operations of all teams,) are its medians."""
        cells = step.end_cells
        cells = cells[cells >= 0]
        if np.isnan(step.times.end[cells]).all():
            self.gained.append(np.full(len(self._scenarios), np.nan))
            return
        chosen, gained = self._to_compute(step).tolist(), np.zeros(len(self._scenarios))
        for at, ends in zip(chosen, self._map(lambda at: self._replay(at, step, baseline), chosen), strict=True):
            before = self._shifts[at].mean_ns
            is_known = len(self._shifts[at].leave(step, ends)) > 0
            gained[at] = self._shifts[at].mean_ns - before if is_known else np.nan
        self.gained.append(gained)

    def _replay(self, at: int, step: RecordedStep, baseline: SelfTimes) -> Floats:
        scenario, ranks, saved_ns = self._scenarios[at], len(self._run.rank_numbers), self._shifts[at].enter(step)
        repaired, transfer = self._repaired(scenario, step.number, ranks), self._transfer(scenario, step)
        change = Change(repaired, transfer, possible_waits(step, transfer, self._usual[step.number]), saved_ns)
        paced = self._with_paces(scenario, step, baseline, repaired)
        return replay_step(self._run.job, self._instructions, paced, baseline, change, self._states[at]).end

    def _with_paces(self, scenario: Scenario, step: RecordedStep, baseline: SelfTimes, repaired: Bools) -> RecordedStep:
        """Return the step with the GPU times of ranks that run at another pace in this scenario.

        They need no repair any more: `repaired` is changed.
        """
        job, numbers = self._run.job, self._run.number_of
        changed = {
            numbers[rank]: pace
            for rank, (pace, steps) in scenario.paces.items()
            if step.number in steps and step.times.row[numbers[rank]] >= 0
        }
        if not changed:
            return step
        delay, gpu = step.self_times.delay.copy(), step.self_times.gpu.copy()
        for number, pace in changed.items():
            first, team = int(step.times.row[number]), int(step.times.team[number])
            of_team = slice(int(job.first[team]), int(job.first[team + 1]))
            cells = slice(first, first + of_team.stop - of_team.start)
            if repaired[GPU, number]:
                delay[cells], gpu[cells] = baseline.delay[of_team], baseline.gpu[of_team]
                repaired[GPU, number] = False
            gpu[cells] /= pace
        return replace(step, self_times=step.self_times._replace(delay=delay, gpu=gpu))

    def _to_compute(self, step: RecordedStep) -> Ints:
        """Find the scenarios that repair something in this step, or have not come back to what was recorded."""
        repairing = np.array([scenario.at(step.number) for scenario in self._scenarios], np.bool_)
        for at in np.flatnonzero(self._diverged & ~repairing).tolist():
            self._diverged[at] = not self.is_as_recorded(at, step)
        for at in np.flatnonzero(repairing & ~self._diverged).tolist():
            self.put_as_recorded(at, step)
        self._diverged |= repairing
        return np.flatnonzero(self._diverged)

    def is_as_recorded(self, at: int, step: RecordedStep) -> bool:
        """Whether a scenario comes to this step as recorded, but for a constant shift."""
        there = ~step.fresh
        return all(
            same_state(state[there] + self._shifts[at].mean_ns, recorded[there]).all()
            for state, recorded in zip(self._states[at], step.before, strict=True)
        )

    def put_as_recorded(self, at: int, step: RecordedStep) -> None:
        """Let a scenario come to this step as recorded, but for a constant shift."""
        self._states[at] = CarriedState(*(recorded - self._shifts[at].mean_ns for recorded in step.before))
        self._shifts[at].forget_ranks()

    def is_over(self, number: int) -> bool:
        """Whether nothing is gained after the run's `number`th step, the last that was computed."""
        return (
            number > self._last
            and not self._diverged.any()
            and not any(scenario.everything for scenario in self._scenarios)
        )

    def _repaired(self, scenario: Scenario, number: int, ranks: int) -> Bools:
        """(START, CPU, GPU; ranks) whose self times are the baseline's in a step."""
        repaired = np.full((len((START, CPU, GPU)), ranks), scenario.everything)
        for (rank, part), steps in scenario.parts.items():
            if number in steps and rank in self._run.number_of:
                repaired[part, self._run.number_of[rank]] = True
        return repaired

    def _transfer(self, scenario: Scenario, step: RecordedStep) -> Floats:
        """(groups of all collectives,) from the last arrival to the end, in a step."""
        usual, took = repaired_transfers(step, self._usual[step.number]), step.transfers.took
        transfer_ns = (usual if scenario.everything else took).copy()
        first = self._run.collective_arrays.first_group
        for (collective, group), steps in scenario.transfers.items():
            if step.number in steps:
                transfer_ns[first[collective] + group] = usual[first[collective] + group]
        return transfer_ns


def repaired_transfers(step: RecordedStep, usual: Floats) -> Floats:
    """Return, (groups of all collectives,), each transfer's baseline in a step; `usual` are those of its kind of step.

    What ranks that lack the step hide is a wait for them: a transfer took at most what was recorded. Of what one rank
    alone recorded, it is not known to be less.
    """
    took = step.transfers.took
    repaired = np.where(step.transfers.mostly_complete, usual, np.fmin(usual, took))
    return np.where(step.transfers.alone, took, repaired)


def possible_waits(step: RecordedStep, transfer: Floats, usual: Floats) -> Floats:
    """Return, (groups of all collectives,), how much of a transfer may be a wait for absent members: its excess."""
    return np.where(~step.transfers.complete & (transfer > usual), transfer - usual, 0.0)


def baseline_transfers(alike: Ints, seen: Sequence[Floats]) -> Floats:
    """Return, (groups of all collectives,), the lower median of transfers over steps and over groups of one number.

    Each group counts the same: where members lack steps, the group with more of them would be the usual one of two.

    Args:
        alike: (groups of all collectives,) a number for each group; groups of one number should take as long.
        seen: by step (groups of all collectives,) each transfer's time from the last arrival to the end, ns.

    """
    medians = np.full(len(alike), np.nan)
    every = np.stack(seen) if seen else np.empty((0, len(medians)))
    order = np.argsort(alike, kind="stable")
    for groups in np.split(order, np.flatnonzero(np.diff(alike[order])) + 1):
        is_known = ~np.isnan(took := every[:, groups])
        weight = (is_known / np.maximum(is_known.sum(axis=0), 1))[is_known]
        if len(weight):
            ascending = np.argsort(took[is_known])
            below = weight[ascending].cumsum()
            half = np.searchsorted(below, below[-1] / 2 - 1e-9)  # sums of fractions are not exact
            medians[groups] = took[is_known][ascending[half]]
    return medians
