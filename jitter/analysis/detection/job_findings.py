"""Findings about the whole job: what slows all of its ranks, or single ranks at random. Each is one thing to fix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jitter.analysis.detection.outliers.find_outliers import Outlier, places_in
from jitter.analysis.execution.self_times import TimePart
from jitter.core.numeric.arrays import Ints

JobFindingKind = Literal[
    "launch_bound", "slow_steps", "random_pauses", "two_clusters", "late_together", "unequal_stages", "slow_stage"
]
"""`launch_bound`: launches are late on all ranks, at different places. `slow_steps`: all ranks are slow in some steps.
`random_pauses`: single ranks pause in steps that chance may choose. `two_clusters`: the ranks fall into a slow and a
fast group. `late_together`: many ranks are late in the same steps. `unequal_stages`: a pipeline stage has more work
than the others. `slow_stage`: it runs the same kernels more slowly.
"""


@dataclass(frozen=True)
class JobFinding:
    """Own time of one part on several ranks, in the steps in which each of them is slow."""

    kind: JobFindingKind
    part: TimePart
    steps_of_rank: Mapping[int, tuple[int, ...]]
    """Positions in the run of the steps in which each rank is slow."""
    excess_ns: float
    """Own time above the baseline, summed over these ranks and steps."""
    sigmas: float
    """The excess in standard deviations of the noise."""
    evidence: tuple[str, ...] = ()
    """Sentences with the numbers that the finding rests on."""
    chance: float = 1.0
    """At most this is the probability that chance alone explains it."""
    members: tuple[Outlier, ...] = ()
    """Each rank's own part of it, where ranks stand out by themselves."""
    known_gain_ns: float | None = None
    """Time that fixing it would save, where replay does not tell; None: replay tells."""

    def in_run(self, its: Ints) -> "JobFinding":
        """Return the finding of a run of which only the steps `its` were looked at."""
        steps_of_rank = {rank: places_in(its, steps) for rank, steps in self.steps_of_rank.items()}
        members = tuple(replace(one, steps=places_in(its, one.steps)) for one in self.members)
        return replace(self, steps_of_rank=steps_of_rank, members=members)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks, ascending."""
        return tuple(sorted(self.steps_of_rank))

    @property
    def steps(self) -> tuple[int, ...]:
        """Positions in the run of the steps in which any of the ranks is slow."""
        return tuple(sorted({step for steps in self.steps_of_rank.values() for step in steps}))


def join_outliers(kind: JobFindingKind, members: Sequence[Outlier], evidence: str, chance: float) -> JobFinding:
    """Return one finding in place of the outliers of several ranks in one part of their time."""
    return JobFinding(
        kind,
        members[0].part,
        {one.rank: one.steps for one in members},
        sum(one.excess_ns for one in members),
        max(one.sigmas for one in members),
        (evidence,),
        chance,
        tuple(members),
    )
