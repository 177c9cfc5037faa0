"""Per-step computations over a range of steps (step statistics, replays, the account of lost time), on threads here.

A range of steps is from a first up to but not including a last one; the steps before it are read for what they leave.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from jitter.analysis.account.noise import Noise
from jitter.analysis.account.step_account import Account, StepAccounts, join_accounts
from jitter.analysis.alignment.kernel_index import KernelIndex
from jitter.analysis.detection.deviations import (
    KernelDeviations,
    StepDeviations,
    deviations_of_steps,
    kernel_deviations_of_steps,
)
from jitter.analysis.detection.expert_imbalance import (
    ExpertImbalance,
    Layers,
    find_expert_layers,
    measure_expert_imbalance,
)
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.step_times import IdenticalRanks
from jitter.analysis.metrics.clock_alignment import disagreements_ns
from jitter.analysis.replay.run_steps import RecordedSteps, RunSteps, Transfers
from jitter.analysis.replay.what_if import Scenario, ScenarioReplay
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.memory import release_freed_memory
from jitter.core.names.kernels import MEMORY
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.stats import sum_columns
from jitter.core.parallel.prefetch import map_ahead


class Arrivals(NamedTuple):
    """How ranks came to the collectives with other recorded ranks, (steps, ranks of the run); 0 without the step."""

    waited_ns: Floats
    """How long each rank waited for others, all together."""
    last_at: Ints
    """At how many each rank arrives last."""
    met_at: Ints
    """At how many each rank takes part."""


@dataclass(frozen=True, slots=True)
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
    alone = index.unmatched
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


class StepStatistics(NamedTuple):
    """Statistics of steps, each by itself, in arrays of all of them."""

    ends_ns: Floats
    """(steps, ranks of the run) when each leaves the operation with which a step ends, on its clock; NaN: unknown."""
    transfers: Transfers
    """(steps, groups of all collectives)."""
    deviations: StepDeviations
    kernels: tuple[KernelDeviations, ...]
    """Each team's."""
    qualities: list[StepQuality]
    arrivals: Arrivals
    experts: list[ExpertImbalance | None]


def join_statistics(parts: Sequence[Any]) -> Any:
    """Return the statistics of several parts of a run as those of all their steps, in order."""
    one = parts[0]
    if isinstance(one, np.ndarray):
        return np.concatenate(parts)
    if isinstance(one, list):
        return list(chain.from_iterable(parts))
    columns = [join_statistics(column) for column in zip(*parts, strict=True)]
    return one._make(columns) if hasattr(one, "_make") else tuple(columns)


@dataclass(frozen=True)
class RunReplay:
    """The run in several scenarios, and its account of lost time."""

    gained_ns: Floats
    """(steps, scenarios) how much shorter each step would be; NaN where no rank's step counts."""
    accounts: StepAccounts | None
    """Each step's; None if they were not asked for."""


class StepExecutor(Protocol):
    """Goes through all steps of the run."""

    def measure(self) -> StepStatistics:
        """Measure each step by itself."""

    def replay(self, usual: Sequence[Floats], scenarios: Sequence[Scenario], noise: Noise | None = None) -> RunReplay:
        """Replay the run in each scenario; with the `noise` of each step keep its account, too.

        `usual` are the usual transfers of each step.
        """


def measure_steps(steps: RunSteps, first: int, last: int) -> StepStatistics:
    """Measure each step of a range by itself, several at a time."""
    steps.prepare()
    measure = partial(_measure, steps, find_expert_layers(steps.run.programs))
    measured: StepStatistics = join_statistics(list(map_ahead(measure, steps.stretches(first, last), steps.run.ahead)))
    return measured


def _measure(steps: RunSteps, layers: Mapping[int, Layers], recorded: RecordedSteps) -> StepStatistics:
    run, baseline = steps.run, steps.find_baselines(recorded)
    experts = [
        measure_expert_imbalance(recorded.part(at, at + 1), layers, run.rank_numbers) if layers else None
        for at in range(len(recorded))
    ]
    return StepStatistics(
        recorded.ends_ns,
        recorded.transfers,
        deviations_of_steps(run.job, recorded, baseline),
        kernel_deviations_of_steps(run, recorded, baseline),
        list(_assess_quality(steps, recorded)),
        _arrivals(run, recorded),
        experts,
    )


def _assess_quality(steps: RunSteps, recorded: RecordedSteps) -> Iterator[StepQuality]:
    run, times, count = steps.run, recorded.times, len(recorded)
    start, end, call = (recorded.by_step(values) for values in (times.start, times.end, times.call))
    negative_latencies = np.count_nonzero(start < call, axis=1).tolist()
    aligned: list[dict[int, bool]] = [{} for _ in range(count)]
    spreads: list[list[int]] = [[] for _ in range(count)]
    for team in run.programs:
        here = times.row[(times.team == team) & (times.row >= 0)]
        if len(here) > 1:
            ends = end[:, here + steps.ends.aligning(team)[:, None]]
            is_shared = np.isnan(ends).sum(axis=2) == 0
            apart_ns = disagreements_ns(np.where(is_shared[:, :, None], ends, np.nan))
            for at, shared in enumerate(is_shared.sum(axis=1).tolist()):
                aligned[at][team] = shared > 0
                spreads[at] += [int(apart_ns[at])] if shared > 1 else []
    lossy, unplaced = _find_lossy(steps, recorded)
    for at, key in enumerate(recorded.keys):
        indices = steps.lake.indices(key)
        unmatched = [_unmatched(index, partial(steps.lake.rank_groups, key)) for index in indices]
        yield StepQuality(
            aligned[at],
            max(spreads[at], default=None),
            sum(count for count, _ in unmatched),
            sum(ns for _, ns in unmatched),
            sum(len(index.left_out) for index in indices),
            negative_latencies[at],
            tuple(len(index.names) for index in indices),
            *(tuple(run.rank_numbers[ranks[at]].tolist()) for ranks in (lossy, unplaced)),
        )


def _find_lossy(steps: RunSteps, recorded: RecordedSteps) -> tuple[Bools, Bools]:
    """Return, (steps, ranks of the run), the `lossy_ranks` and `unplaced_ranks` of `StepQuality`.

    A rank whose recording ends within a step has not that step, and its other steps lack nothing.
    """
    most, collectives, lost = 1 - THRESHOLDS.whole_share, recorded.collectives, steps.lost_shares(recorded)
    is_lossy = (lost.max(axis=0) > most) & (recorded.times.row >= 0)
    if not is_lossy.any():
        return is_lossy, is_lossy
    lacks = np.isnan(recorded.in_collectives) & recorded.transfers.partial[:, collectives.group]
    ranks = is_lossy.shape[1]
    attended, lacked = (sum_columns(collectives.rank, mask, ranks) for mask in (np.ones_like(lacks), lacks))
    return is_lossy, is_lossy & ((lost[1] > most) | (lacked > most * attended))


def _arrivals(run: RunModel, recorded: RecordedSteps) -> Arrivals:
    collectives = recorded.collectives
    waited = recorded.in_collectives - recorded.transfers.took[:, collectives.group]
    is_known = ~np.isnan(waited)
    groups = recorded.transfers.took.shape[1]
    arrived = sum_columns(collectives.awaiting, is_known[:, collectives.by_group], groups)
    met = is_known & (arrived[:, collectives.group] > 1)
    waited_ns, last_at, met_at = (
        sum_columns(collectives.rank, weights, len(run.rank_numbers))
        for weights in (np.nan_to_num(waited), met & (waited <= 0), met)
    )
    return Arrivals(waited_ns, last_at.astype(np.int64), met_at.astype(np.int64))


def replay_steps(
    steps: RunSteps,
    usual: Sequence[Floats],
    scenarios: Sequence[Scenario],
    noise: Noise | None = None,
    pool: ThreadPoolExecutor | None = None,
) -> RunReplay:
    """Replay the run in each scenario, from the first step that one repairs.

    With the `noise` of each step replay all steps and keep their account. The scenarios of a step are replayed on the
    threads of `pool`, if there is one.
    """
    run = steps.run
    replayed = ScenarioReplay(run, scenarios, usual, pool)
    account = None if noise is None else Account(run, usual, noise, is_spilled=run.has_large_steps)
    whole = account is not None or any(scenario.everything for scenario in scenarios)
    first = 0 if whole else min((step for scenario in scenarios for step in scenario.steps), default=0)

    def replay() -> Iterator[RecordedSteps]:
        for recorded in steps.stretches(first, ahead=account is None):
            replayed.replay(recorded, steps.find_baselines(recorded))
            yielded = [recorded]
            del recorded  # else it stays in memory while its loss is divided
            yield yielded.pop()

    replayed_steps = replay()
    accounts = None if account is None else _keep_account(account, steps, replayed_steps)
    for recorded in replayed_steps:  # without an account
        last = recorded.first + len(recorded) - 1
        del recorded  # else it stays in memory while the next one is read
        if replayed.is_over(last):
            break
    gained = np.zeros((len(run.keys), len(scenarios)))  # before the first repair, and when all is as recorded again
    gained[first : first + len(replayed.gained)] = replayed.gained
    return RunReplay(gained, accounts)


def _keep_account(account: Account, steps: RunSteps, replayed: Iterator[RecordedSteps]) -> StepAccounts:
    """Return the account of all steps.

    While the loss of a step is divided, the next one is compared and the one after that read and replayed.
    """
    ahead, accounts = min(steps.ahead, 1), list[StepAccounts]()
    recorded = filter(None, map_ahead(lambda _: next(replayed, None), steps.run.keys, ahead))
    for compared in map_ahead(lambda some: account.compare(some, steps.find_baselines(some)), recorded, ahead):
        accounts.append(account.divide(compared))
        del compared  # else it stays in memory while the next ones are compared
    release_freed_memory()
    return join_accounts(accounts)


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

    def measure(self) -> StepStatistics:
        """Measure each step by itself."""
        return measure_steps(self._steps, 0, len(self._steps.run.keys))

    def replay(self, usual: Sequence[Floats], scenarios: Sequence[Scenario], noise: Noise | None = None) -> RunReplay:
        """See `StepExecutor`."""
        threads = min(self._steps.run.ahead, len(scenarios))
        if threads < 2:
            return replay_steps(self._steps, usual, scenarios, noise)
        with ThreadPoolExecutor(threads, thread_name_prefix="scenarios") as pool:
            return replay_steps(self._steps, usual, scenarios, noise, pool)
