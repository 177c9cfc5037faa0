"""What the run would take if some own times were the median's: several scenarios in one pass over the steps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from jitter.analysis.execution.collectives import Meetings
from jitter.analysis.execution.run_model import Observed
from jitter.analysis.execution.time_part import OWN_PARTS
from jitter.analysis.replay.replay import Replay
from jitter.analysis.replay.scenario_times import Repairs
from jitter.analysis.replay.step_end import StepEnds
from jitter.analysis.replay.step_inputs import StepWork
from jitter.core.arrays import Floats, Ints


@dataclass(frozen=True)
class Scenario:
    """What is repaired: (rank, part) to the steps (positions in the run) in which, and transfers likewise."""

    own: Mapping[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    transfers: Mapping[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    """(meeting, group) to steps."""
    everything: bool = False

    @property
    def repairs(self) -> bool:
        """Whether it repairs anything."""
        return self.everything or bool(self.own) or bool(self.transfers)

    @property
    def steps(self) -> frozenset[int]:
        """The steps in which it repairs anything."""
        return frozenset(step for of in (self.own, self.transfers) for steps in of.values() for step in steps)

    def at(self, step: int) -> bool:
        """Whether anything is repaired in this step."""
        return self.everything or step in self.steps

    def with_(self, other: "Scenario") -> "Scenario":
        """Both repaired."""
        return Scenario(_joined(self.own, other.own), _joined(self.transfers, other.transfers))


def together(scenarios: Iterable[Scenario]) -> Scenario:
    """All of them repaired."""
    return reduce(Scenario.with_, scenarios, Scenario())


def _joined(
    one: Mapping[tuple[int, int], frozenset[int]], other: Mapping[tuple[int, int], frozenset[int]]
) -> dict[tuple[int, int], frozenset[int]]:
    return {key: one.get(key, frozenset()) | other.get(key, frozenset()) for key in {**one, **other}}


class WhatIf:
    """Computes scenarios step by step; give it every step in order."""

    def __init__(
        self,
        run: Observed,
        ends: StepEnds,
        scenarios: Sequence[Scenario],
        usual_transfers: Mapping[int, float],
    ) -> None:
        self._run, self._ends, self._scenarios = run, ends, scenarios
        self._usual = usual_transfers
        self._replay = Replay(run.programs, run.rules, run.meetings, run.schedule, len(scenarios))
        self._ahead = np.zeros(len(scenarios))
        self._apart = np.zeros(len(scenarios), np.bool_)
        """Which differ from what was recorded by more than being ahead: the others need not be computed."""
        self.gained: list[Floats] = []
        """For each step (scenarios,): how much shorter it would be, ns; NaN where nobody's step counts."""

    def step(self, number: int, work: StepWork) -> None:
        """Compute the run's `number`th step."""
        rows = self._to_compute(number, work)
        if not len(rows):
            self.gained.append(np.full(len(self._scenarios), 0.0 if self._counts(work) else np.nan))
            return
        places = self._ends.places(work)
        ends = self._replay.step(
            work.blocks,
            [self._repairs(number, block.ranks, rows) for block in self._run.meetings.blocks],
            self._transfers(number, work, rows),
            self._ahead[rows],
            rows,
            [frozenset() if place is None else frozenset({place}) for place in places],
        )
        moved = [
            block_ends[place] - block.recorded.row("end", place)
            for block_ends, block, place in zip(ends, work.blocks, places, strict=True)
            if place is not None
        ]
        shift = np.concatenate(moved, axis=1) if moved else np.empty((len(rows), 0))
        known = ~np.isnan(shift).any(axis=0)
        if not known.any():
            self.gained.append(np.full(len(self._scenarios), np.nan))
            return
        before = self._ahead.copy()
        self._ahead[rows] = -np.median(shift[:, known], axis=1)
        self.gained.append(self._ahead - before)

    def _to_compute(self, number: int, work: StepWork) -> Ints:
        """Find the scenarios that repair something in this step, or have not come back to what was recorded."""
        repairing = np.array([scenario.at(number) for scenario in self._scenarios], np.bool_)
        if (self._apart & ~repairing).any():
            self._apart &= repairing | ~self._replay.is_as_recorded(work.blocks, self._ahead)
        begins = np.flatnonzero(repairing & ~self._apart)
        self._replay.put_as_recorded(begins, work.blocks, self._ahead[begins])
        self._apart |= repairing
        return np.flatnonzero(self._apart)

    def _counts(self, work: StepWork) -> bool:
        """Whether anybody recorded where the step ends."""
        places = zip(work.blocks, self._ends.places(work), strict=True)
        return any(
            place is not None and not np.isnan(block.recorded.row("end", place)).all() for block, place in places
        )

    def is_over(self, number: int) -> bool:
        """Whether nothing is gained after the run's `number`th step, the last that was computed."""
        last = max((step for scenario in self._scenarios for step in scenario.steps), default=-1)
        return number > last and not self._apart.any() and not any(one.everything for one in self._scenarios)

    def _repairs(self, number: int, ranks: Sequence[int], rows: Ints) -> Repairs:
        masks = [np.zeros((len(rows), len(ranks)), np.bool_) for _ in OWN_PARTS]
        column_of = {rank: column for column, rank in enumerate(ranks)}
        for row, scenario in enumerate(self._scenarios[at] for at in rows.tolist()):
            if scenario.everything:
                for mask in masks:
                    mask[row] = True
            for (rank, part), steps in scenario.own.items():
                if number in steps and rank in column_of:
                    masks[part][row, column_of[rank]] = True
        return Repairs(*masks)

    def _transfers(self, number: int, work: StepWork, rows: Ints) -> dict[int, Floats]:
        found = {}
        scenarios = [self._scenarios[at] for at in rows.tolist()]
        for meeting, took in work.transfers.took.items():
            every = np.repeat(took[None], len(rows), axis=0)
            for row, scenario in enumerate(scenarios):
                if scenario.everything:
                    every[row] = self._usual[meeting]
            found[meeting] = every
        for row, scenario in enumerate(scenarios):
            if scenario.at(number):
                # what ranks that were not recorded waited for in these steps is taken to be what is repaired
                for meeting, every in found.items():
                    lacking = ~work.transfers.whole[meeting]
                    every[row, lacking] = np.fmin(every[row, lacking], self._usual[meeting])
            for (meeting, group), steps in scenario.transfers.items():
                if number in steps:
                    found[meeting][row, group] = self._usual[meeting]
        return found


def usual_transfers(meetings: Meetings, seen: Iterable[Mapping[int, Floats]]) -> dict[int, float]:
    """The lower median of each meeting's time from last arrival to end, over steps and groups."""
    stacked: dict[int, list[Floats]] = {number: [] for number in range(len(meetings.meetings))}
    for transfers in seen:
        for number, took in transfers.items():
            stacked[number].append(took[~np.isnan(took)])
    found = {}
    for number, pieces in stacked.items():
        values = np.concatenate(pieces) if pieces else np.empty(0)
        found[number] = float(np.sort(values)[(len(values) - 1) // 2]) if len(values) else np.nan
    return found
