"""What waits for what in a run, inferred from some of its steps and ranks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from jitter.analysis.execution.dependencies import Dependencies, infer
from jitter.analysis.execution.host_waits import find_host_waits, follow_other_teams
from jitter.analysis.execution.run_programs import RunPrograms
from jitter.analysis.execution.sampled_steps import SampledSteps, threads_of
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import spread_positions
from jitter.core.parallel.prefetch import map_ahead
from jitter.core.step_key import StepKey

_LIMITS: Final = THRESHOLDS.dependencies
_WAIT_LIMITS: Final = THRESHOLDS.host_waits


def middle_of_longest_stretch(keys: Sequence[StepKey], most: int) -> tuple[int, int]:
    """Return the range of positions of at most so many consecutive steps, from the middle of the longest stretch."""
    breaks = [at for at in range(1, len(keys)) if keys[at] != StepKey(keys[at - 1].epoch, keys[at - 1].step + 1)]
    stretches = zip([0, *breaks], [*breaks, len(keys)], strict=True)
    begin, end = max(stretches, key=lambda stretch: stretch[1] - stretch[0])
    first = begin + max(0, (end - begin - most) // 2)
    return first, min(end, first + most)


def infer_rules(run: RunPrograms, team: int, steps: Sequence[StepKey]) -> Dependencies:
    """Infer the dependencies of a team's program from these steps alone."""
    program = run.programs[team]
    sizes = {key: size for key in steps if (size := len(run.ranks(key, team)))}
    having, wanted = list(sizes), max(2, _LIMITS.sampled_cells // max(sizes.values()))
    sampled = {having[at] for at in spread_positions(len(having), wanted)}
    tried = having[:: -(-len(having) // THRESHOLDS.tried_steps)]
    thread = threads_of(program, (run.team_times(key, team) for key in tried))
    chosen = run.spread_ranks(team, max(1, THRESHOLDS.max_cells // max(1, len(sampled) * len(program.operations))))
    cells, there = SampledSteps(program, thread, len(chosen)), set(run.keys)
    for key in sorted(sampled, key=lambda k: k.order):
        before = StepKey(key.epoch, key.step - 1)
        if before in there and before not in sampled:
            cells.follow(before, run.step_times(before, chosen))
        cells.add(key, run.step_times(key, chosen))
    rules = infer(program, thread, *cells.sample())
    return _with_host_waits(run, team, rules, having) if rules.has_launches else rules


def _with_host_waits(run: RunPrograms, team: int, rules: Dependencies, having: Sequence[StepKey]) -> Dependencies:
    """Add the waits of hosts that no call records, from consecutive ones of the steps that the team has."""
    program = run.programs[team]
    chosen = run.spread_ranks(team, THRESHOLDS.sampled_ranks)
    cells = int(chosen.sum()) * max(1, len(program.operations))
    most = min(_WAIT_LIMITS.max_steps, max(THRESHOLDS.few_steps, _WAIT_LIMITS.sampled_cells // cells))
    ordered = sorted(having, key=lambda key: key.order)
    keys = ordered[slice(*middle_of_longest_stretch(ordered, most))]
    steps = map_ahead(lambda key: (key, run.step_times(key, chosen)), keys, run.ahead)
    sampled = SampledSteps(program, rules.thread, len(chosen))
    known_calls = frozenset(wait.op_index for wait in rules.waits if wait.kind == "sync")
    sample = sampled.sample_hosts(steps, _WAIT_LIMITS.steps_back)
    host_waits = find_host_waits(program, known_calls, sample)
    following = frozenset[int]()
    if len(run.programs) > 1:
        of_others = [at for at, other in enumerate(run.programs) if other != team]
        ends = np.stack([run.last_ends(key) for key in keys])[:, of_others]
        following = follow_other_teams(program, known_calls, sample, ends)
    return replace(
        rules,
        waits=(*rules.waits, *host_waits.waits),
        host_lead_ns=host_waits.lead_ns,
        bound_waits=host_waits.bound_waits,
        bound_lead_ns=host_waits.bound_lead_ns,
        unexplained=host_waits.unexplained,
        following_teams=following,
    )
