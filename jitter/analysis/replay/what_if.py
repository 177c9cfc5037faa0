"""Run time with some self times replaced by the baseline's: several scenarios in one pass over the steps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from jitter.analysis.execution.job_arrays import state_before
from jitter.analysis.execution.rank_clusters import find_reference_times
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.self_times import CPU, GPU, START, SelfTimes
from jitter.analysis.replay.like_steps import first_of_drift
from jitter.analysis.replay.replay import AS_RECORDED, CHANGED, SKIPPED, Change, no_shift, replay_steps
from jitter.analysis.replay.run_steps import RecordedSteps
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.stats import known_medians


@dataclass(frozen=True)
class Scenario:
    """Self times and transfers at the baseline, each in some steps, given by their positions in the run."""

    parts: Mapping[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    """(rank, part) to steps."""
    transfers: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Group, of all groups of all collectives, to steps."""
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
    transfers: dict[int, frozenset[int]] = {}
    paces: dict[int, tuple[float, frozenset[int]]] = {}
    for scenario in scenarios:
        for key, steps in scenario.parts.items():
            parts[key] = parts.get(key, frozenset()) | steps
        for group, steps in scenario.transfers.items():
            transfers[group] = transfers.get(group, frozenset()) | steps
        for rank, (pace, steps) in scenario.paces.items():
            known_pace, known_steps = paces.get(rank, (1.0, steps))
            paces[rank] = _compose(known_pace, pace), known_steps | steps
    return Scenario(parts, transfers, paces)


def _compose(pace: float, other_pace: float) -> float:
    """Return the pace of a rank of which two repairs change the work: what it takes over from others adds up."""
    if max(1 / pace, 1 / other_pace) <= 1:
        return pace * other_pace
    return 1 / (1 / pace + 1 / other_pace - 1)


class ScenarioReplay:
    """Replays scenarios; give it every step in order.

    A scenario that stands as recorded, but for being some time ahead, need not be computed until it repairs something.
    """

    def __init__(
        self,
        run: RunModel,
        scenarios: Sequence[Scenario],
        baseline_transfers: Sequence[Floats],
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """`baseline_transfers` are each step's (groups of all collectives,) usual times from last arrival to end.

        The scenarios of a step are replayed on the threads of `pool`, if there is one.
        """
        self._run, self._scenarios = run, scenarios
        self._usual = baseline_transfers
        self._map = map if pool is None else pool.map
        self._instructions = run.schedule.array()
        self._states = [state_before(run.job) for _ in scenarios]
        self._shifts = [no_shift(len(run.rank_numbers)) for _ in scenarios]
        """How much earlier than recorded each scenario is."""
        self._diverged = np.zeros((len(scenarios), 1), np.bool_)
        """Mask of the scenarios that differ from the recording by more than a constant shift."""
        self._last = max((step for scenario in scenarios for step in scenario.steps), default=-1)
        """The last step in which a scenario repairs anything."""
        self.gained: list[Floats] = []
        """For each step (scenarios,): how much shorter it would be, ns; NaN where no rank's step counts."""

    def replay(self, steps: RecordedSteps, baseline: SelfTimes) -> None:
        """Compute some steps; `baseline` (steps, operations of all teams) are their medians."""
        counts = ~np.isnan(steps.ends_ns).all(axis=1)
        gained = np.where(counts, 0.0, np.nan)[:, None].repeat(len(self._scenarios), axis=1)
        turns = [self._turns(scenario, steps) for scenario in self._scenarios]
        chosen = [at for at, of_steps in enumerate(turns) if self._diverged[at, 0] or (of_steps == CHANGED).any()]
        for at, of_steps in zip(
            chosen,
            self._map(lambda at: self._replay(at, steps, baseline, np.where(counts, turns[at], SKIPPED)), chosen),
            strict=True,
        ):
            gained[:, at] = of_steps
        self.gained += list(gained)

    def _turns(self, scenario: Scenario, steps: RecordedSteps) -> Ints:
        """Return, (steps,), in which steps a scenario repairs something: others stand as recorded if it has come back.

        See `replay_steps`.
        """
        numbers = range(steps.first, steps.first + len(steps))
        return np.array([CHANGED if scenario.at(number) else AS_RECORDED for number in numbers])

    def _replay(self, at: int, steps: RecordedSteps, baseline: SelfTimes, turns: Ints) -> Floats:
        scenario, usual = self._scenarios[at], np.stack(self._usual[steps.first : steps.first + len(steps)])
        repaired, transfer = self._repaired(scenario, steps), self._transfer(scenario, steps, usual)
        change = Change(repaired, transfer, possible_waits(steps, transfer, usual))
        paced = self._with_paces(scenario, steps, baseline, repaired)
        of_scenario = self._states[at], self._shifts[at], None, turns, self._diverged[at]
        return replay_steps(self._run.job, self._instructions, paced, baseline, change, *of_scenario).gained_ns

    def _with_paces(
        self, scenario: Scenario, steps: RecordedSteps, baseline: SelfTimes, repaired: Bools
    ) -> RecordedSteps:
        """Return the steps with the GPU times of ranks that run at another pace in this scenario.

        They need no repair any more: `repaired` is changed.
        """
        job, numbers, times = self._run.job, self._run.number_of, steps.times
        changed = [
            (numbers[rank], pace, chosen)
            for rank, (pace, where) in scenario.paces.items()
            if times.row[numbers[rank]] >= 0 and (chosen := steps.of_numbers(where)).any()
        ]
        if not changed:
            return steps
        delay, gpu = (steps.by_step(values).copy() for values in (steps.self_times.delay, steps.self_times.gpu))
        for number, pace, chosen in changed:
            of_team, cells = job.slices(times, number)
            usual = chosen & repaired[:, GPU, number]
            delay[usual, cells], gpu[usual, cells] = baseline.delay[usual, of_team], baseline.gpu[usual, of_team]
            repaired[usual, GPU, number] = False
            gpu[chosen, cells] /= pace
        return replace(steps, self_times=steps.self_times._replace(delay=delay.ravel(), gpu=gpu.ravel()))

    def is_over(self, number: int) -> bool:
        """Whether nothing is gained after the run's `number`th step, the last that was computed."""
        return (
            number > self._last
            and not self._diverged.any()
            and not any(scenario.everything for scenario in self._scenarios)
        )

    def _repaired(self, scenario: Scenario, steps: RecordedSteps) -> Bools:
        """(steps; START, CPU, GPU; ranks) whose self times are the baseline's."""
        repaired = np.full((len(steps), len((START, CPU, GPU)), len(self._run.rank_numbers)), scenario.everything)
        for (rank, part), where in scenario.parts.items():
            if rank in self._run.number_of:
                repaired[steps.of_numbers(where), part, self._run.number_of[rank]] = True
        return repaired

    def _transfer(self, scenario: Scenario, steps: RecordedSteps, usual: Floats) -> Floats:
        """(steps, groups of all collectives) from the last arrival to the end."""
        repaired, took = repaired_transfers(steps, usual), steps.transfers.took
        transfer_ns = (repaired if scenario.everything else took).copy()
        for group, where in scenario.transfers.items():
            chosen = steps.of_numbers(where)
            transfer_ns[chosen, group] = repaired[chosen, group]
        return transfer_ns


def repaired_transfers(steps: RecordedSteps, usual: Floats) -> Floats:
    """Return, (steps, groups of all collectives), each transfer's baseline; `usual` are those of its kind of step.

    What ranks that lack the step hide is a wait for them: a transfer took at most what was recorded. Of what one rank
    alone recorded, it is not known to be less.
    """
    took = steps.transfers.took
    repaired = np.where(steps.transfers.mostly_complete, usual, np.fmin(usual, took))
    return np.where(steps.transfers.alone, took, repaired)


def possible_waits(steps: RecordedSteps, transfer: Floats, usual: Floats) -> Floats:
    """Return, (steps, groups of all collectives), how much of each may be a wait for absent members: its excess."""
    return np.where(~steps.transfers.complete & (transfer > usual), transfer - usual, 0.0)


def baseline_transfers(alike: Ints, seen: Sequence[Floats]) -> Floats:
    """Return, (groups of all collectives,), the lower median of transfers over steps and over groups of one number.

    If some were clearly faster than all others (`find_reference_times`), these alone tell: the network may be slow more
    than half of the time. Times that grow from step to step are compared with those of the first steps. Each group
    counts the same: where members lack steps, the group with more of them would be the usual one of two.

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
            took_ns = took[is_known]
            is_usual = find_reference_times(took_ns)
            took_ns, weight = took_ns[is_usual], weight[is_usual]
            ascending = np.argsort(took_ns)
            below = weight[ascending].cumsum()
            half = np.searchsorted(below, below[-1] / 2 - 1e-9)  # sums of fractions are not exact
            medians[groups] = took_ns[ascending[half]]
            is_run = len(every) >= THRESHOLDS.min_steps
            if is_run and (first_ns := first_of_drift(known_medians(took, axis=1))) is not None:
                medians[groups] = first_ns
    return medians
