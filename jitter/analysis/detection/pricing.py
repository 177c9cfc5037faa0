"""Price the candidates by the time that fixing them saves, and keep those above the reporting limit."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from jitter.analysis.detection.job_findings import JobFinding
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.detection.slow_communication import SlowCommunication
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.replay.what_if import Scenario, together
from jitter.analysis.thresholds import THRESHOLDS

Candidate = Outlier | SlowCommunication | JobFinding


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
        return self.candidate.repair


class GainRange(NamedTuple):
    """The least and the most that fixing something alone would save, ns."""

    least_ns: int
    most_ns: int
    unknown: tuple[str, ...]
    """What is not known, as clauses."""


HOST_GAPS: Final = "which host gaps are waits for the GPU is not recorded"
PARTNERS: Final = "some exchanges name no partners"


class Pricing:
    """Prices findings of an analysis by replay."""

    def __init__(self, analysis: RunAnalysis) -> None:
        self._analysis = analysis

    @cached_property
    def findings(self) -> list[PricedFinding]:
        """The candidates worth fixing, with the largest gain first."""
        candidates = self._analysis.candidates
        prices = self.price([candidate.repair for candidate in candidates])
        priced = [
            PricedFinding(candidate, alone, marginal)
            for candidate, (alone, marginal) in zip(candidates, prices, strict=True)
        ]
        most = self.most([finding.scenario for finding in priced], [finding.gain_ns for finding in priced])
        kept = [
            finding
            for finding, gain_ns in zip(priced, most, strict=True)
            if self.is_worth_fixing(finding.candidate, gain_ns, finding.marginal_ns)
        ]
        return sorted(kept, key=lambda finding: -max(finding.gain_ns, finding.marginal_ns))

    @cached_property
    def beside_loss(self) -> list[PricedFinding]:
        """Findings whose saving is no part of the loss, with the largest first."""
        candidates: list[JobFinding | SlowCommunication] = list(self._analysis.job_findings)
        if (network := self._analysis.slow_network) is not None:
            candidates.append(network)
        priced = [
            PricedFinding(candidate, candidate.known_gain_ns or 0.0, candidate.known_gain_ns or 0.0)
            for candidate in candidates
        ]
        kept = [finding for finding in priced if finding.gain_ns >= self.min_gain_ns(finding.steps)]
        return sorted(kept, key=lambda finding: -finding.gain_ns)

    def price(self, scenarios: Sequence[Scenario]) -> list[tuple[float, float]]:
        """Return what each scenario saves alone, ns, and what it saves in addition to all the others.

        The second is computed for slow communication, and where the first is below the minimum; else it is the first.
        """
        alone = self._analysis.gains(scenarios)
        masked = [
            at
            for at, (scenario, gain) in enumerate(zip(scenarios, alone, strict=True))
            if scenario.transfers or gain < self.min_gain_ns(sorted(scenario.steps))
        ]
        others = [together([*scenarios[:at], *scenarios[at + 1 :]]) for at in masked]
        every, *without = self._analysis.gains([together(scenarios), *others])
        marginal = dict(zip(masked, (every - gain for gain in without), strict=True))
        return [(gain, marginal.get(at, gain)) for at, gain in enumerate(alone)]

    def most(self, scenarios: Sequence[Scenario], alone_ns: Sequence[float]) -> list[float]:
        """Return the most that each scenario may save alone, ns: waits of hosts without a record may be or not be."""
        return list(map(max, alone_ns, self._analysis.bound_gains(scenarios)))

    def ranges(
        self, scenarios: Sequence[Scenario], alone_ns: Sequence[float], delays_ns: Sequence[float]
    ) -> list[GainRange | None]:
        """Return the least and the most that each scenario may save alone, ns; None where they differ by little.

        `delays_ns` is what each may delay other ranks by in exchanges that name no partners.
        """
        bounds, is_unexplained = self._analysis.bound_gains(scenarios), self._analysis.is_unexplained
        ranges: list[GainRange | None] = []
        for gain_ns, other_ns, delay_ns in zip(alone_ns, bounds, delays_ns, strict=True):
            low, high = sorted((gain_ns, other_ns))
            unknown = (HOST_GAPS,) if is_unexplained or _differ(low, high) else ()
            if delay_ns > high and _differ(low, delay_ns):
                unknown, high = (*unknown, PARTNERS), delay_ns
            ranges.append(GainRange(round(low), round(high), unknown) if unknown else None)
        return ranges

    def is_worth_fixing(self, candidate: Candidate, alone_ns: float, marginal_ns: float) -> bool:
        """Return whether fixing the candidate saves enough, alone or in addition to everything else."""
        if self._analysis.are_uncoupled:
            return False
        least = self.min_gain_ns(candidate.steps)
        if isinstance(candidate, SlowCommunication):
            collectives = self._analysis.run.matching.collectives
            # the group may wait for unrecorded ranks, which waited for another fault
            if self._analysis.lacks_ranks(candidate):
                least = max(least, THRESHOLDS.unrecorded_gain_share * candidate.excess_ns)
                return marginal_ns >= least
            if any(collectives[number].is_incomplete(group) for number, group in candidate.meetings):
                return marginal_ns >= THRESHOLDS.unrecorded_factor * least
        if self.unpriced_ns(candidate) >= THRESHOLDS.unrecorded_factor * least:
            return True
        return max(alone_ns, marginal_ns) >= least

    def unpriced_ns(self, candidate: Candidate) -> float:
        """Return the excess of a rank whose effect on other ranks replay cannot tell; 0 of others.

        In the replay, exchanges that name no partners delay no other rank.
        """
        is_unpriced = isinstance(candidate, Outlier) and self._analysis.run.matching.unpaired > 0
        return candidate.excess_ns if is_unpriced else 0.0

    def min_gain_ns(self, steps: Sequence[int]) -> float:
        """Return what fixing something that occurs in these steps must save for it to be reported."""
        return THRESHOLDS.min_gain_share * float(self._analysis.assumed_step_ns[list(steps)].sum())


def _differ(low_ns: float, high_ns: float) -> bool:
    """Return whether two savings differ by more than the error of one."""
    return high_ns - low_ns > THRESHOLDS.max_price_error * max(high_ns, -low_ns)
