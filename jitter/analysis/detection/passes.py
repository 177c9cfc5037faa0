"""Per-step computations over a range of steps (step statistics, replays, the account of lost time), on threads here.

A range of steps is from a first up to but not including a last one; the steps before it are read for what they leave.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from jitter.analysis.account.noise import Noise
from jitter.analysis.account.step_account import Account, StepAccount
from jitter.analysis.alignment.kernel_index import KernelIndex
from jitter.analysis.detection.deviations import (
    KernelDeviations,
    StepDeviations,
    deviations_of_step,
    kernel_deviations_of_step,
)
from jitter.analysis.detection.expert_imbalance import (
    ExpertImbalance,
    Layers,
    find_expert_layers,
    measure_expert_imbalance,
)
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.self_times import SelfTimes
from jitter.analysis.execution.step_times import IdenticalRanks, of_team
from jitter.analysis.metrics.clock_alignment import disagreement_ns
from jitter.analysis.replay.run_steps import RecordedStep, RunSteps, Transfers
from jitter.analysis.replay.what_if import Scenario, ScenarioReplay
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import MEMORY
from jitter.core.numeric.arrays import Bools, Floats
from jitter.core.parallel.prefetch import map_ahead


class Arrivals(NamedTuple):
    """How the ranks of one step came to its collectives with other recorded ranks."""

    waited_ns: Mapping[int, float]
    """How long each rank waited for others, all together."""
    last_at: Mapping[int, int]
    """At how many each rank arrives last."""
    met_at: Mapping[int, int]
    """At how many each rank takes part."""

    @property
    def are_any(self) -> bool:
        """Whether any ranks met."""
        return any(self.met_at.values())


@dataclass(frozen=True)
class StepQuality:
    """The data quality of one step."""

    aligned: Mapping[int, bool]
    """By team of more than one rank: whether all its ranks leave some collective of the step at the same time."""
    uncertainty_ns: int | None
    """How far the ends of aligning collectives disagree: median over the collectives, of the worst team."""
    unmatched_kernels: int
    unmatched_ns: int
    left_out: int
    """Ranks whose recording ends before the step's last collective."""
    negative_latencies: int
    """Kernels that start before their own launch: impossible times."""
    kernels: tuple[int, ...]
    """How many kernels the kernel index has, by cohort."""
    lossy_ranks: tuple[int, ...] = ()
    """Whose recordings lack many of the kernels that were launched, or of their launches."""
    unplaced_ranks: tuple[int, ...] = ()
    """Those of `lossy_ranks` whose recordings lack launches or collectives, which tell what waited for them."""


def _unmatched(index: KernelIndex, rank_groups: Callable[[], Sequence[IdenticalRanks]]) -> tuple[int, int]:
    """Return how many kernels of a cohort have no kernel index, and their total duration, ns."""
    alone = {
        digest: np.array([partner is None for partner in partners], np.bool_)
        for digest, partners in index.partners.items()
        if None in partners
    }
    members = {member.rank for member in index.members if member.sequence in alone} if alone else ()
    count, ns = 0, 0.0
    for group in rank_groups() if members else ():
        is_member = np.isin(group.ranks, list(members))
        if is_member.any():
            times = group.times[is_member][:, :, group.kind[group.row >= 0] < MEMORY].astype(np.float64)
            durations = times[:, 1] - times[:, 0]
            count += int(is_member.sum() * alone[group.signature[0]].sum())
            ns += float(durations[:, alone[group.signature[0]]].sum())
    return count, round(ns)


@dataclass(frozen=True)
class StepStatistics:
    """Statistics of one step."""

    ends_ns: Floats
    """(ranks of the run,) when each leaves the operation with which the step ends, on its clock; NaN where unknown."""
    transfers: Transfers
    deviations: StepDeviations
    kernels: Sequence[KernelDeviations]
    """Each team's."""
    quality: StepQuality
    baseline: SelfTimes
    """(operations of all teams,) the medians of self times."""
    arrivals: Arrivals
    experts: ExpertImbalance | None


@dataclass(frozen=True)
class RunReplay:
    """The run in several scenarios, and its account of lost time."""

    gained_ns: Floats
    """(steps, scenarios) how much shorter each step would be; NaN where no rank's step counts."""
    accounts: list[StepAccount]
    """Each step's; empty if they were not asked for."""


class StepExecutor(Protocol):
    """Goes through all steps of the run."""

    def measure(self) -> list[StepStatistics]:
        """Measure each step by itself."""

    def replay(
        self, usual: Sequence[Floats], scenarios: Sequence[Scenario], noise: Sequence[Noise] | None = None
    ) -> RunReplay:
        """Replay the run in each scenario; with the `noise` of each step keep its account, too.

        `usual` are the usual transfers of each step.
        """


def measure_steps(steps: RunSteps, first: int, last: int) -> list[StepStatistics]:
    """Measure each step of a range by itself, several at a time."""
    steps.prepare()
    layers = find_expert_layers(steps.run.programs)
    return list(map_ahead(partial(_measure, steps, layers), steps.steps(first, last), steps.run.ahead))


def _measure(steps: RunSteps, layers: Mapping[int, Layers], step: RecordedStep) -> StepStatistics:
    run, cells, baseline = steps.run, step.end_cells, steps.baseline(step)
    ends = np.full(len(cells), np.nan)
    ends[cells >= 0] = step.times.end[cells[cells >= 0]]
    deviations, quality = deviations_of_step(run.job, step, baseline), _assess_quality(steps, step)
    kernels = kernel_deviations_of_step(run, step, baseline)
    experts = measure_expert_imbalance(step, layers, run.rank_numbers)
    return StepStatistics(ends, step.transfers, deviations, kernels, quality, baseline, _arrivals(run, step), experts)


def _assess_quality(steps: RunSteps, step: RecordedStep) -> StepQuality:
    aligned, spreads, negative_latencies = {}, [], 0
    for team, program in steps.run.programs.items():
        times = of_team(step.times, steps.run.rank_numbers, team, len(program.operations))
        negative_latencies += int((times.start < times.call).sum())
        if len(times.ranks) > 1:
            ends = steps.ends.shared(team, times.end)
            aligned[team] = len(ends) > 0
            spreads.append(disagreement_ns(ends))
    indices = steps.lake.indices(step.key)
    unmatched = [_unmatched(index, partial(steps.lake.rank_groups, step.key)) for index in indices]
    return StepQuality(
        aligned,
        max((ns for ns in spreads if ns is not None), default=None),
        sum(count for count, _ in unmatched),
        sum(ns for _, ns in unmatched),
        sum(len(index.left_out) for index in indices),
        negative_latencies,
        tuple(len(index.names) for index in indices),
        *(tuple(steps.run.rank_numbers[ranks].tolist()) for ranks in _find_lossy(steps, step)),
    )


def _find_lossy(steps: RunSteps, step: RecordedStep) -> tuple[Bools, Bools]:
    """Return, (ranks of the run,), the `lossy_ranks` and `unplaced_ranks` of `StepQuality`."""
    most, collectives = 1 - THRESHOLDS.whole_share, step.collectives
    is_lossy = steps.lost_shares(step) > most
    lacks = np.isnan(step.in_collectives) & step.transfers.partial[collectives.group]
    attended, lacked = (np.bincount(collectives.rank, weights, len(is_lossy)) for weights in (None, lacks))
    lost_launches = steps.lost_launches(step) > most
    return is_lossy, is_lossy & (lost_launches | (lacked > most * attended))


def _arrivals(run: RunModel, step: RecordedStep) -> Arrivals:
    collectives, numbers = step.collectives, run.rank_numbers
    waited = step.in_collectives - step.transfers.took[collectives.group]
    is_known = ~np.isnan(waited)
    arrived = np.bincount(collectives.awaiting[is_known[collectives.by_group]], minlength=len(step.transfers.took))
    met = is_known & (arrived[collectives.group] > 1)
    here = np.flatnonzero(step.times.row >= 0)
    ranks = numbers[here].tolist()

    def by_rank(weights: Floats) -> list[float]:
        sums: list[float] = np.bincount(collectives.rank, weights, len(numbers))[here].tolist()
        return sums

    last, all_met = (map(int, by_rank(mask.astype(np.float64))) for mask in (met & (waited <= 0), met))
    return Arrivals(
        dict(zip(ranks, by_rank(np.nan_to_num(waited)), strict=True)),
        dict(zip(ranks, last, strict=True)),
        dict(zip(ranks, all_met, strict=True)),
    )


def replay_steps(
    steps: RunSteps,
    usual: Sequence[Floats],
    scenarios: Sequence[Scenario],
    noise: Sequence[Noise] | None = None,
    pool: ThreadPoolExecutor | None = None,
) -> RunReplay:
    """Replay the run in each scenario, from the first step that one repairs.

    With the `noise` of each step replay all steps and keep their account. The scenarios of a step are replayed on the
    threads of `pool`, if there is one.
    """
    run = steps.run
    replayed = ScenarioReplay(run, steps.ends, scenarios, usual, pool)
    account = None if noise is None else Account(run, steps.ends, usual, noise, is_spilled=run.has_large_steps)
    whole = account is not None or any(scenario.everything for scenario in scenarios)
    first = 0 if whole else min((step for scenario in scenarios for step in scenario.steps), default=0)

    def replay() -> Iterator[RecordedStep]:
        for step in steps.steps(first, ahead=account is None):
            replayed.step(step, steps.baseline(step))
            yielded = [step]
            del step  # else it stays in memory while its loss is divided
            yield yielded.pop()

    replayed_steps = replay()
    accounts = [] if account is None else _keep_account(account, steps, replayed_steps)
    for step in replayed_steps:  # without an account
        if replayed.is_over(step.number):
            break
    gained = np.zeros((len(run.keys), len(scenarios)))  # before the first repair, and when all is as recorded again
    gained[first : first + len(replayed.gained)] = replayed.gained
    return RunReplay(gained, accounts)


def _keep_account(account: Account, steps: RunSteps, replayed: Iterator[RecordedStep]) -> list[StepAccount]:
    """Return the account of all steps.

    While the loss of a step is divided, the next one is compared and the one after that read and replayed.
    """
    ahead, accounts = min(steps.ahead, 1), []
    recorded = map_ahead(lambda _: next(replayed), steps.run.keys, ahead)
    for compared in map_ahead(lambda step: account.compare(step, steps.baseline(step)), recorded, ahead):
        accounts.append(account.divide(compared))
        del compared
    return accounts


def step_ranges(steps: int, ranges: int) -> list[tuple[int, int]]:
    """Cut so many steps into ranges as long as each other, no more than there are steps."""
    return list(pairwise(np.linspace(0, steps, min(steps, ranges) + 1).astype(int).tolist()))


class ThreadedStepExecutor:
    """Goes through the steps here."""

    def __init__(self, steps: RunSteps, threads: int | None = None) -> None:
        """Use this number of threads; None: one per processor."""
        self._steps = steps
        if threads is not None:
            steps.run.threads = threads

    def measure(self) -> list[StepStatistics]:
        """Measure each step by itself."""
        return measure_steps(self._steps, 0, len(self._steps.run.keys))

    def replay(
        self, usual: Sequence[Floats], scenarios: Sequence[Scenario], noise: Sequence[Noise] | None = None
    ) -> RunReplay:
        """See `StepExecutor`."""
        threads = min(self._steps.run.ahead, len(scenarios))
        if threads < 2:
            return replay_steps(self._steps, usual, scenarios, noise)
        with ThreadPoolExecutor(threads, thread_name_prefix="scenarios") as pool:
            return replay_steps(self._steps, usual, scenarios, noise, pool)
