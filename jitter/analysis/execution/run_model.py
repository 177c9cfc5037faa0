"""Model of the run: each team's program, dependencies, collective members; and the recorded steps."""

from functools import cached_property
from typing import NamedTuple

from jitter.analysis.alignment.program import Program
from jitter.analysis.collectives.matching import (
    CollectiveArrays,
    CollectiveMatching,
    RingArrivals,
    flatten_collectives,
    list_ring_arrivals,
)
from jitter.analysis.execution.attendance import match_collectives
from jitter.analysis.execution.dependencies import Dependencies
from jitter.analysis.execution.job_arrays import JobArrays, job_arrays
from jitter.analysis.execution.run_programs import RunPrograms
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.run_rules import infer_rules
from jitter.analysis.execution.schedule import Schedule, schedule
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import SYNC
from jitter.core.step_key import StepKey


class InferredModel(NamedTuple):
    """Inferences from the whole run, each from those before it and the recorded steps."""

    team_of: dict[int, int]
    programs: dict[int, Program]
    dependencies: dict[int, Dependencies]
    matching: CollectiveMatching
    schedule: Schedule


class RunModel(RunPrograms):
    """The inferences from the whole run."""

    def __init__(self, reader: RunReader, understood: InferredModel | None = None) -> None:
        """Infer from the rows that `reader` reads; `understood` is what another process inferred from the same run."""
        super().__init__(reader)
        if understood is not None:
            self.__dict__.update(understood._asdict())  # in place of what would be inferred

    @cached_property
    def dependencies(self) -> dict[int, Dependencies]:
        """The dependencies of each team's program."""
        return {team: infer_rules(self, team, self.keys) for team in self.programs}

    @cached_property
    def matching(self) -> CollectiveMatching:
        """The members of each collective."""
        return match_collectives(self)

    @cached_property
    def schedule(self) -> Schedule:
        """The order in which operations and collectives are computed."""
        return schedule(self.programs, self.dependencies, self.matching)

    @property
    def understood(self) -> InferredModel:
        """Inferences from the whole run."""
        return InferredModel(self.team_of, self.programs, self.dependencies, self.matching, self.schedule)

    @property
    def bound(self) -> InferredModel | None:
        """The inferences with the other waits of hosts that the recording allows; None where it leaves no choice."""
        others = {team: rules.bound for team, rules in self.dependencies.items()}
        if all(rules is None for rules in others.values()):
            return None
        chosen = {team: others[team] or rules for team, rules in self.dependencies.items()}
        ordered = schedule(self.programs, chosen, self.matching)
        return self.understood._replace(dependencies=chosen, schedule=ordered)

    @property
    def unexplained_fraction(self) -> float:
        """Share of the step time in host gaps that vary on most ranks and that no wait explains, of all ranks."""
        ranks = sum(self.sizes.values())
        return sum(rules.unexplained * self.sizes[team] for team, rules in self.dependencies.items()) / max(ranks, 1)

    @cached_property
    def following_hosts(self) -> dict[tuple[int, TimePart], frozenset[int]]:
        """By team and part of the time of its hosts the ranks whose calls then follow ends of another team."""
        following: dict[tuple[int, TimePart], frozenset[int]] = {}
        for team, rules in self.dependencies.items():
            for place in rules.following_teams:
                part = TimePart.START if place <= self.job.first_kernel[team] else TimePart.CPU
                following[team, part] = frozenset(rank for rank, of in self.team_of.items() if of == team)
        return following

    def follows(self, team: int, part: TimePart) -> bool:
        """Return whether a team's hosts then wait for other ranks: it may be these that are late."""
        return (team, part) in self.following_hosts

    @property
    def is_unexplained(self) -> bool:
        """Whether waits of hosts that no call records, and that no end explains, make every price doubtful."""
        return self.unexplained_fraction > THRESHOLDS.tolerance_share

    @property
    def misses_partners(self) -> bool:
        """Whether so many exchanges name no partners that the replay does not tell what a late rank costs."""
        return self.matching.unpaired > THRESHOLDS.matching.max_unpaired_share * len(self.collective_arrays.rank)

    @cached_property
    def job(self) -> JobArrays:
        """All programs and dependencies as flat arrays."""
        return job_arrays([self.sizes[team] for team in sorted(self.programs)], self.programs, self.dependencies)

    @cached_property
    def collective_arrays(self) -> CollectiveArrays:
        """All collectives as flat arrays."""
        return flatten_collectives(self.matching, self.operation_counts, self.number_of)

    @cached_property
    def ring_arrivals(self) -> RingArrivals:
        """Arrivals of neighbours that ranks wait for in exchanges in a ring."""
        return list_ring_arrivals(self.collective_arrays)

    @cached_property
    def has_consecutive_steps(self) -> bool:
        """Whether any step follows another: else nothing is known of what precedes a step but its marker."""
        keys = set(self.keys)
        return any(StepKey(key.epoch, key.step - 1) in keys for key in keys)

    def prepare(self) -> None:
        """Infer everything now, so that several threads may use it."""
        for inference in (*InferredModel._fields, "job", "collective_arrays", "ring_arrivals", "remembered"):
            getattr(self, inference)

    @cached_property
    def remembered(self) -> int:
        """Number of earlier steps that can delay a step: the one before, and as many as the launch queue holds."""
        held = [
            -(-rules.queue // max(1, sum(op.kind != SYNC for op in self.programs[team].operations)))
            for team, rules in self.dependencies.items()
            if rules.queue is not None
        ]
        return 1 + max(held, default=0)
