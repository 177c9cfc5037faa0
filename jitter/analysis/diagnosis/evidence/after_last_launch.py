"""Host time between the last launch of a step and its end: optimizer, logging, a pause before memory is freed.

The critical path charges it to the synchronising call that follows, or to the start of the next step. The end of the
step's marker separates it from late launches and late starts.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.time_part import TimePart
from jitter.analysis.replay.charges import Charges
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import SYNC
from jitter.core.numeric.arrays import Ints
from jitter.core.numeric.stats import lower_median
from jitter.core.step_key import StepKey
from jitter.lake.records import RankStepRecord

_LIMITS: Final = THRESHOLDS.evidence


class TimeAfterLaunches:
    """The part of the critical path's charges that lies after the last launch of a step."""

    def __init__(self, analysis: RunAnalysis, records: Mapping[StepKey, Mapping[int, RankStepRecord]]) -> None:
        """Take an analysis and the records of its steps; nothing is computed yet."""
        self._analysis, self._records = analysis, records
        self._last_launch = {
            team: max((at for at, op in enumerate(program.operations) if op.kind != SYNC), default=-1)
            for team, program in analysis.run.programs.items()
        }
        self._found: dict[int, dict[tuple[int, TimePart], float]] | None = None

    def of_step(self, number: int) -> Mapping[tuple[int, TimePart], float]:
        """Return by rank and charged part the ns of the path of the run's `number`th step."""
        if self._found is None:
            paths = [path.whole for path in self._analysis.paths]
            self._found = {at: self._trailing(charges) for at, charges in enumerate(paths)}
            for at in self._steps_with_late_starts(paths):
                self._found[at] |= self._between_steps(at, paths[at])
        return self._found[number]

    def of_rank(self, number: int, rank: int) -> dict[TimePart, float]:
        """Return a rank's ns of the path of the run's `number`th step, by charged part."""
        return {part: ns for (own, part), ns in self.of_step(number).items() if own == rank}

    def share(self, rank: int, part: TimePart, steps: tuple[int, ...]) -> float:
        """Return the share of a rank's charges of a part in these steps that lies after the last launch."""
        whole = after = 0.0
        for number in steps:
            charges = self._analysis.paths[number].whole
            whole += float(charges.excess_ns[(charges.rank == rank) & (charges.part == part)].sum())
            after += self.of_step(number).get((rank, part), 0.0)
        return after / whole if whole > 0 else 0.0

    def _trailing(self, charges: Charges) -> dict[tuple[int, TimePart], float]:
        """Sum the charges of calls that follow the last launch."""
        last = np.array([self._last_launch[team] for team in charges.team.tolist()], np.int64)
        own = charges.where((charges.part == TimePart.CPU) & (charges.place > last))
        return {
            (rank, TimePart.CPU): float(own.excess_ns[own.rank == rank].sum()) for rank in np.unique(own.rank).tolist()
        }

    def _steps_with_late_starts(self, paths: list[Charges]) -> list[int]:
        """Return the steps whose start, and the step before, are worth reading."""
        starts = [float(np.maximum(one.excess_ns[one.part == TimePart.START], 0).sum()) for one in paths]
        least = _LIMITS.min_after_share * self._analysis.usual_step_ns
        return [at for at in np.argsort(starts)[::-1].tolist() if at and starts[at] > least][: _LIMITS.max_after_steps]

    def _between_steps(self, number: int, charges: Charges) -> dict[tuple[int, TimePart], float]:
        """Divide the late starts of a step at the ends of the markers of the step before."""
        own = charges.where(charges.part == TimePart.START)
        found: dict[tuple[int, TimePart], float] = {}
        for team in np.unique(own.team).tolist():
            excess = self._excess_after(number, team)
            for rank in np.unique(own.rank[own.team == team]).tolist():
                charged = float(own.excess_ns[own.rank == rank].sum())
                if rank in excess and charged > 0:
                    found[rank, TimePart.START] = min(max(excess[rank], 0.0), charged)
        return found

    def _excess_after(self, number: int, team: int) -> dict[int, float]:
        """Return each rank's time from its last call to the end of the step before, less the team's median."""
        run, before = self._analysis.run, self._analysis.keys[number - 1]
        key = self._analysis.keys[number]
        if before.epoch != key.epoch or before.step != key.step - 1:
            return {}
        step = run.team_times(before, team)
        origins = self._analysis.lake.origins(before)
        ranks: Ints = step.ranks
        ends = np.array([self._end(before, rank) - origins[rank] for rank in ranks.tolist()])
        after = np.maximum(ends - np.fmax.reduce(step.back, axis=0), 0.0)
        known = ~np.isnan(after)
        if not known.any():
            return {}
        usual = float(lower_median(after[known][None, :])[0, 0])
        return {rank: ns - usual for rank, ns in zip(ranks[known].tolist(), after[known].tolist(), strict=True)}

    def _end(self, key: StepKey, rank: int) -> float:
        """Return the end of a rank's step marker; NaN where the trace has no marker."""
        found = self._records[key][rank]
        end = found.step.end_ns
        return np.nan if end is None or found.record.has_guessed_steps else float(end)
