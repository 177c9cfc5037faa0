"""Price the candidates by the time that fixing them saves, and keep those above the reporting limit."""

from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple

from jitter.analysis.detection.findings import Finding, divide_by_steps, part_and_measure
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.replay.what_if import Scenario
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.stats import known_median


class GainRange(NamedTuple):
    """The least and the most that fixing something alone would save, ns."""

    least_ns: int
    most_ns: int
    unknown: tuple[str, ...]
    """What is not known, as clauses."""


HOST_GAPS: Final = "which host gaps are waits for the GPU is not recorded"
PARTNERS: Final = "some exchanges name no partners"
HOSTS: Final = "hosts wait for other ranks without a recorded call"
UNRECORDED: Final = "ranks that were not recorded may be as late"


class Pricing:
    """Prices findings of an analysis by replay."""

    def __init__(self, analysis: RunAnalysis) -> None:
        self._analysis = analysis

    @cached_property
    def worth_fixing(self) -> list[Finding]:
        """The candidates worth fixing, the costliest first."""
        candidates = self._analysis.candidates
        scenarios = [candidate.repair for candidate in candidates]
        gains, losses = self._analysis.gains(scenarios), list(map(self._analysis.account.loss_of, scenarios))
        most = self.most(scenarios, gains)
        together = self._worth_fixing_together(candidates, losses)
        costs = [
            (max(gain_ns, loss_ns), candidate)
            for candidate, gain_ns, most_ns, loss_ns in zip(candidates, gains, most, losses, strict=True)
            if self.is_worth_fixing(candidate, most_ns, loss_ns) or not together.isdisjoint(candidate.members)
        ]
        return [candidate for _, candidate in sorted(costs, key=lambda cost: -cost[0])]

    def _worth_fixing_together(self, candidates: Sequence[Finding], losses_ns: Sequence[float]) -> set[Outlier]:
        """Return ranks that are late in the same steps and share a loss: each of a node's GPUs has an eighth of it."""
        loss_of = {
            candidate.members[0]: max(loss_ns, 0.0)
            for candidate, loss_ns in zip(candidates, losses_ns, strict=True)
            if candidate.kind == "late_rank" and not self._analysis.measured.are_uncoupled
        }
        kept: set[Outlier] = set()
        for alike in divide_by_steps(loss_of, part_and_measure):
            shared_ns = sum(loss_of[outlier] for outlier in alike)
            if shared_ns >= THRESHOLDS.much_more * self.min_gain_ns(alike[0].steps):
                kept.update(outlier for outlier in alike if loss_of[outlier] >= shared_ns / len(alike) / 2)
        return kept

    @cached_property
    def beside_loss(self) -> list[Finding]:
        """Findings whose saving is no part of the loss, with the largest first."""
        network = self._analysis.slow_network
        kept = [
            candidate
            for candidate in [*self._analysis.job_findings, *([] if network is None else [network])]
            if (candidate.known_gain_ns or 0.0) >= self.min_gain_ns(candidate.steps)
        ]
        return sorted(kept, key=lambda candidate: -(candidate.known_gain_ns or 0.0))

    def most(self, scenarios: Sequence[Scenario], alone_ns: Sequence[float]) -> list[float]:
        """Return the most that each scenario may save alone, ns: waits of hosts without a record may be or not be."""
        return list(map(max, alone_ns, self._analysis.bound_gains(scenarios)))

    def ranges(
        self,
        scenarios: Sequence[Scenario],
        alone_ns: Sequence[float],
        delays_ns: Sequence[float],
        waits_ns: Sequence[float],
    ) -> list[GainRange | None]:
        """Return the least and the most that each scenario may save alone, ns; None where they differ by little.

        `delays_ns` is what each may delay other ranks by as `unpriced_because` says, `waits_ns` what the steps may have
        waited for unrecorded ranks after the recorded ones.
        """
        bounds, is_unexplained = self._analysis.bound_gains(scenarios), self._analysis.run.is_unexplained
        ranges: list[GainRange | None] = []
        for gain_ns, other_ns, delay_ns, wait_ns in zip(alone_ns, bounds, delays_ns, waits_ns, strict=True):
            low, high = sorted((gain_ns, other_ns))
            unknown = (HOST_GAPS,) if is_unexplained or _differ(low, high) else ()
            if delay_ns > high and _differ(low, delay_ns):
                unknown, high = (*unknown, self.unpriced_because), delay_ns
            if _differ(least := max(low - wait_ns, min(low, 0.0)), low):
                unknown, low = (*unknown, UNRECORDED), least
            ranges.append(GainRange(round(low), round(high), unknown) if unknown else None)
        return ranges

    def is_worth_fixing(self, candidate: Finding, alone_ns: float, loss_ns: float) -> bool:
        """Return whether fixing the candidate alone saves enough, or the account charges enough to it."""
        if self._analysis.measured.are_uncoupled:
            return False
        least = self.min_gain_ns(candidate.steps)
        if candidate.part is TimePart.TRANSFER:
            # the group may wait for unrecorded ranks, which waited for another fault: nothing is saved then
            sure_ns = min(alone_ns, loss_ns)
            if self._analysis.transfers.lacks_ranks(candidate):
                return sure_ns >= max(least, THRESHOLDS.minor_share * candidate.excess_ns)
            if self._analysis.transfers.are_incomplete(candidate.meetings):
                return sure_ns >= THRESHOLDS.much_more * least
        if self.unpriced_ns(candidate) >= THRESHOLDS.much_more * least:
            return True
        return max(alone_ns, loss_ns) >= least

    def unpriced_ns(self, candidate: Finding) -> float:
        """Return the excess of a rank whose effect on other ranks replay cannot tell; 0 of others.

        In the replay, exchanges that name no partners delay no other rank, nor does a host another one.
        """
        run = self._analysis.run
        if candidate.kind != "late_rank" or run.follows(candidate.worst.team, candidate.part):
            return 0.0
        return candidate.excess_ns if run.matching.unpaired or run.following_hosts else 0.0

    @property
    def unpriced_because(self) -> str:
        """Why replay cannot tell the effect of a rank on others, as a clause."""
        return HOSTS if self._analysis.run.following_hosts else PARTNERS

    def min_gain_ns(self, steps: Sequence[int]) -> float:
        """Return what fixing something that occurs in these steps must save for it to be reported."""
        # by their usual time: a restart within one of them makes no other fault smaller
        usual_ns = known_median(self._analysis.measured.assumed_step_ns[list(steps)])
        return THRESHOLDS.min_cost_share * usual_ns * len(steps)


def _differ(low_ns: float, high_ns: float) -> bool:
    """Return whether two savings differ by more than the error of one."""
    return high_ns - low_ns > THRESHOLDS.tolerance_share * max(high_ns, -low_ns)
