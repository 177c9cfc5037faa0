"""The waterfall: the step's time at each rung of baselines, from the recorded time down."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.model import SLOW_LINKS, Culprit, Rung, RungTime
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.run_rules import middle_of_longest_stretch
from jitter.analysis.replay.ladder import PAUSES, list_rungs, time_programs
from jitter.analysis.replay.run_steps import RunSteps
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_time


class LowerRungs(NamedTuple):
    """The rungs below `ranks` that can be judged."""

    step_ns: Mapping[Rung, int]
    """The step time of each, ns."""
    cost_ns: Mapping[str, float]
    """What each change of the program saves per step; those of a rung add up to its loss."""


NO_RUNGS: Final = LowerRungs({}, {})
RUNG_OF_CHANGE: Final[Mapping[str, Rung]] = MappingProxyType(
    {
        "slow_steps": "steps",
        "slow_network": "network",
        "sync_calls": "sync",
        "blocking_copies": "sync",
        "late_start": "launch",
        "cpu_launch": "launch",
        "launch_bound": "launch",
        "exposed_communication": "overlap",
        "serial_copies": "overlap",
        "unequal_stages": "balance",
    }
)
"""By change, as in `list_rungs`; of all but the first two the name is that of the cause."""
_WAITS: Final = tuple(change for change, rung in RUNG_OF_CHANGE.items() if rung == "sync")


def judge_lower_rungs(analysis: RunAnalysis, first: int, last: int) -> LowerRungs:
    """Return the rungs below `ranks` that can be judged.

    Consecutive steps from the `first` up to but not including the `last` are replayed. Without a bandwidth benchmark
    `network` is not judged; where waits of hosts contradict the recording, no rung is. Where they are not recorded none
    is, either, and a change costs what it does with or without them: the less. A pause is then what is left after any
    end on the GPU that the host may wait for.
    """
    has_steps = first < last and any(analysis.run.sizes.values())
    if not has_steps or analysis.account.contradicts_recording:
        return NO_RUNGS
    rungs = _judge(analysis, analysis.steps, first, last)
    if not analysis.run.is_unexplained:
        return rungs
    if analysis.bound_steps is None:
        return NO_RUNGS
    for some in analysis.bound_steps.stretches():
        analysis.bound_steps.find_baselines(some)
        del some  # else they stay in memory while the next ones are read
    bound = _judge(analysis, analysis.bound_steps, first, last).cost_ns
    least = {cause: min(ns, bound[cause]) for cause, ns in rungs.cost_ns.items() if cause in bound}
    return LowerRungs({}, least)


def _judge(analysis: RunAnalysis, steps: RunSteps, first: int, last: int) -> LowerRungs:
    """Return the rungs by these steps: those of the analysis, or the same with other waits of hosts."""
    window = analysis.measured.step_ns, first, min(last, first + (1 + THRESHOLDS.tried_steps))
    if len(analysis.steps.alike.by_size) > 1:  # a few steps of several kinds or sizes are not the run's mixture
        window = analysis.measured.step_ns, 0, len(analysis.keys)
    stages = [stage for stage in analysis.long_stages if stage.kind == "slow_stage"]
    # of one that is slow in most steps the usual time is a slow one
    repairs = [stage.repair.paces for stage in stages if 2 * len(stage.steps) > len(analysis.keys)]
    paces = {analysis.run.team_of[rank]: pace for ranks in repairs for rank, (pace, _) in ranks.items()}
    usual, expected = analysis.transfers.baseline, analysis.transfers.expected
    programs, beside = list_rungs(
        steps, usual, expected, *window, slow_steps=_slow_steps_of_teams(analysis), pace_of_team=paces
    )
    replayed = time_programs(steps, [*programs.values(), *beside], *window)
    times = dict(zip(programs, replayed, strict=False))
    waiting_ns, *pauseless_ns = replayed[len(programs) :]
    alone_ns = {cause: waiting_ns - time for cause, time in zip(PAUSES, pauseless_ns, strict=True)}
    if all(np.isnan(of_step).all() for of_step in expected):
        del times["slow_network"]
    known = {cause: time for cause, time in times.items() if not np.isnan(time)}
    known_times = dict(zip(known, np.minimum.accumulate([*known.values()]).tolist(), strict=True))
    of_rungs = {RUNG_OF_CHANGE[cause]: round(time) for cause, time in known_times.items()}
    costs = {
        cause: above - known_times[cause]
        for above, cause in zip(known_times.values(), list(known_times)[1:], strict=False)
    }
    charged = _charge_pauses(costs, alone_ns)
    if "sync" in of_rungs:
        of_rungs["sync"] += round(sum(costs.get(wait, 0.0) - charged.get(wait, 0.0) for wait in _WAITS))
    return LowerRungs(of_rungs, charged)


def _slow_steps_of_teams(analysis: RunAnalysis) -> dict[int, set[int]]:
    """Return by team the positions of the steps that findings about all ranks, or all of a stage, call slow."""
    teams, slow = analysis.run.team_of, dict[int, set[int]]()
    stages = (stage for stage in analysis.long_stages if stage.kind == "stage_slow_at_times")
    for finding in (*analysis.slow_steps.findings, *stages):
        # a finding about awaited ranks is about a step in which all others wait for these
        ranks = teams if finding.kind == "awaited" else finding.ranks
        for team in {teams[rank] for rank in ranks}:
            slow.setdefault(team, set()).update(finding.steps)
    return slow


def choose_steps(lake: RunReader) -> tuple[int, int]:
    """Return the range of positions of consecutive steps that are replayed."""
    fitting = THRESHOLDS.max_cells // max(lake.largest_step, 1)
    most = min(THRESHOLDS.sampled_steps, max(2, fitting))  # one step alone may be unusual
    return middle_of_longest_stretch(lake.steps, most)


def _charge_pauses(costs_ns: Mapping[str, float], alone_ns: Mapping[str, float]) -> dict[str, float]:
    """Return what each change loses, ns a step, with pauses of hosts charged what is saved without them alone.

    A host that waits for its GPU hides nothing of what it does next: without the wait that is hidden, without the pause
    there is nothing to hide. The wait keeps what the pause does not save, and what few hosts alone wait for. `alone_ns`
    is that of `late_start`, and of both together.
    """
    charged = dict(costs_ns)
    told_ns = 0.0
    for pause, saved_ns in alone_ns.items():
        for wait in _WAITS:
            hidden_ns = saved_ns - told_ns - charged.get(pause, 0.0)
            taken_ns = max(min(hidden_ns, charged.get(wait, 0.0)), 0.0)
            charged[pause] = charged.get(pause, 0.0) + taken_ns
            charged[wait] = charged.get(wait, 0.0) - taken_ns
        told_ns += charged[pause]
    return charged


def join_rungs(culprits: Iterable[Culprit]) -> tuple[Culprit, ...]:
    """Return the findings, the costliest first, with one for links that are slow on several rungs.

    A link that is slower than its peers' is slower than the benchmark, too: one thing to mend. Rungs lose different
    times, so the losses add up; fixing it saves what its lowest rung saves.
    """
    joined: list[Culprit] = []
    for culprit in sorted(culprits, key=lambda one: -one.order_ns):
        at = next((at for at, larger in enumerate(joined) if _are_same_links(larger, culprit)), None)
        if at is None:
            joined.append(culprit)
            continue
        larger = joined[at]
        fraction = None if larger.fraction is None else larger.fraction + (culprit.fraction or 0.0)
        joined[at] = replace(
            larger,
            loss_ns=larger.loss_ns + culprit.loss_ns,
            fraction=fraction,
            gain_ns=max(larger.gain_ns, culprit.gain_ns),
            excess_ns=max(larger.excess_ns, culprit.excess_ns),
        ).with_evidence(culprit.evidence)
    return tuple(joined)


def _are_same_links(larger: Culprit, culprit: Culprit) -> bool:
    """Return whether the larger of two findings names the slow links of the other one, as narrowly or more so."""
    return (
        larger.cause in SLOW_LINKS
        and culprit.cause in SLOW_LINKS
        and larger.steps == culprit.steps
        and set(larger.ranks) <= set(culprit.ranks)
    )


RUNG_WORDS: Final[Mapping[Rung, str]] = MappingProxyType(
    {
        "ranks": "jitter",
        "steps": "steps that are slow for all ranks or a pipeline stage",
        "network": "a slow network",
        "sync": "calls in which hosts wait for GPUs",
        "launch": "late launches",
        "overlap": "communication and copies that nothing hides",
        "balance": "unequal pipeline stages",
    }
)
"""What a step loses on each rung, in prose."""


def list_costs(rungs: Sequence[RungTime]) -> list[RungTime]:
    """Return the rungs below the recorded one that are judged and cost more than next to nothing."""
    least_ns = THRESHOLDS.sentences.min_rung_share * (rungs[0].step_time_ns or 0) if rungs else 0.0
    return [rung_time for rung_time in rungs[1:] if rung_time.loss_ns and abs(rung_time.loss_ns) >= least_ns]


def describe_waterfall(rungs: Sequence[RungTime]) -> str:
    """Return a sum: `a step of 2.62 ms is 314 µs jitter + … + 2.10 ms at best`; empty without a rung below `ranks`.

    Rungs that cost little are left out.
    """
    judged = [rung_time for rung_time in rungs if rung_time.step_time_ns is not None]
    if len(judged) < len(("recorded", "ranks", "steps")):
        return ""
    whole, best = judged[0].step_time_ns, judged[-1].step_time_ns
    costs = [f"{format_time(rung_time.loss_ns)} {RUNG_WORDS[rung_time.rung]}" for rung_time in list_costs(judged)]
    return f"a step of {format_time(whole)} is {' + '.join([*costs, f'{format_time(best)} at best'])}"
