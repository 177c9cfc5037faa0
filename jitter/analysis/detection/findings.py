"""What costs time, each thing with what its repair gains: one rank's own time of one part, or slow links."""

from dataclasses import dataclass

from jitter.analysis.detection.outliers import Outlier
from jitter.analysis.detection.slow_collectives import SlowCommunication
from jitter.analysis.replay.what_if import Scenario

Candidate = Outlier | SlowCommunication


def repair_scenario(candidate: Candidate) -> Scenario:
    """What replays the run without it."""
    steps = frozenset(candidate.steps)
    if isinstance(candidate, Outlier):
        return Scenario(own={(candidate.rank, candidate.part): steps})
    return Scenario(transfers=dict.fromkeys(candidate.meetings, steps))


@dataclass(frozen=True)
class PricedFinding:
    """A candidate with its price."""

    what: Candidate
    gain_ns: float
    """What the run would gain if it alone were repaired."""
    marginal_ns: float
    """What it still adds when all other candidates are repaired."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Positions in the run of the steps it happens in."""
        return self.what.steps

    @property
    def scenario(self) -> Scenario:
        """Its repair."""
        return repair_scenario(self.what)
