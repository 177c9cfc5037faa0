"""Candidates for a cost: one rank's self time of one part, or slow communication; each with its saving."""

from dataclasses import dataclass

from jitter.analysis.detection.job_findings import JobFinding
from jitter.analysis.detection.slow_communication import SlowCommunication
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.replay.what_if import Scenario

Candidate = Outlier | SlowCommunication | JobFinding


def repair_scenario(candidate: Candidate) -> Scenario:
    """Return the what-if scenario in which the candidate's excess is gone."""
    steps = frozenset(candidate.steps)
    if isinstance(candidate, Outlier) and candidate.pace is not None:
        return Scenario(paces={candidate.rank: (candidate.pace, steps)})
    if isinstance(candidate, Outlier):
        return Scenario(own={(candidate.rank, candidate.part): steps})
    if isinstance(candidate, JobFinding):
        return Scenario(own={(rank, candidate.part): frozenset(own) for rank, own in candidate.steps_of_rank.items()})
    return Scenario(transfers=dict.fromkeys(candidate.meetings, steps))


@dataclass(frozen=True)
class PricedFinding:
    """A candidate with what fixing it would save."""

    candidate: Candidate
    gain_ns: float
    """Saved if this candidate alone were fixed."""
    marginal_ns: float
    """Saved in addition if all other candidates were fixed too."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Positions in the run of the steps in which it occurs."""
        return self.candidate.steps

    @property
    def scenario(self) -> Scenario:
        """The what-if scenario that fixes it."""
        return repair_scenario(self.candidate)
