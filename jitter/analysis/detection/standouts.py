"""The test of self times: which ranks stand out above the noise, in single steps or usually, and whether that recurs.

Two questions are asked of each rank and part of its time. Of single steps: is the excess real, that is, above the
rank's own variation over steps and the ranks' spread in that step? Of all steps: is the rank's usual time unusual, that
is, above the spread of the other ranks' usual times? The replay prices what stands out.

A finding recurs (the same ranks again, any rank, several ranks at once, or unknown) if so many of all the times that a
rank stands out would seldom fall on one rank by chance. The guide's topic `confidence` has the formulas.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from jitter.analysis.detection.deviations import TeamDeviations, settle_halves, spread_within_steps
from jitter.analysis.detection.significance import (
    binomial_tail,
    changes_once,
    log_binomial,
    predictive_tails,
    quiet_level,
    scatter_over_steps,
    spread_of_others,
)
from jitter.analysis.execution.rank_clusters import find_reference_times, separate_clusters
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.stats import known_median, known_medians, lower_median, middle_value, qn_sigma
from jitter.core.numeric.student_t import student_tail


@dataclass(frozen=True)
class Outlier:
    """One rank's own time of one part, in the steps in which it stands out."""

    team: int
    rank: int
    part: TimePart
    steps: tuple[int, ...]
    """Positions in the run."""
    excess_ns: float
    """Own time above the other ranks' median, summed over the steps."""
    sigmas: float
    """The excess of the worst step (or of the usual step), in standard deviations of the noise."""
    chance: float = 1.0
    """At most this is the probability that chance alone makes any rank, step and part of the run stand out so."""
    persistent: bool = False
    """Whether the rank stands out in its usual step; else in single steps."""
    unknown_steps: int = 0
    """Steps among these whose excess is unknown: the first recorded one of a late start."""
    is_of_all_ranks: bool = False
    """Whether all ranks are as slow in these steps: the other steps are the baseline, not the other ranks."""
    is_in_turn: bool = False
    """Whether other ranks stand out as well, one after another."""
    pace: float | None = None
    """Ratio of its kernels' time to the time expected from their launch sizes, or from the other pipeline stages; None:
    it stands out by plain time.
    """
    kernels: tuple[str, ...] = ()
    """Names of kernels that alone take longer than the other ranks', the surest first; none: its whole time does."""
    longest_ns: float | None = None
    """The excess of its longest step; None where the excess of each step is not known."""
    peers: tuple[int, ...] = ()
    """The faster ranks that it is compared with; none: all others."""

    def is_compared_with(self, rank: int) -> bool:
        """Return whether another rank tells what is usual of it."""
        return rank in self.peers if self.peers else rank != self.rank

    @property
    def event_ns(self) -> float:
        """The excess of its longest step; where that is not known, of one of its steps on average."""
        mean_ns = self.excess_ns / max(len(self.steps) - self.unknown_steps, 1)
        return mean_ns if self.longest_ns is None else self.longest_ns


@dataclass(frozen=True)
class Standouts:
    """When the ranks of one team stand out with one part of their own time."""

    team: int
    part: TimePart
    ranks: Ints
    total_ns: Floats
    """(steps, ranks) own time above the other ranks' median; NaN where unknown."""
    sigmas: Floats
    """(steps, ranks) own time above the rank's usual one and above 0, in standard deviations; 0 where unknown."""
    chance_of_step: Floats
    """(steps, ranks) the probability that chance makes any rank and part in any step stand out so."""
    is_late: Bools
    """(steps, ranks) whether the rank stands out in the step."""
    is_event: Bools
    """(steps, ranks) whether that step shows it, alone or together with the rank's other late steps."""
    is_persistent: Bools
    """(ranks,) whether the rank stands out in its usual step."""
    usual_sigmas: Floats
    """(ranks,) the usual excess in standard deviations of a step."""
    chance: Floats
    """(ranks,) the probability that chance makes any rank and part stand out so; 1 where none does."""

    def columns(self, ranks: Collection[int]) -> Ints:
        """Return the columns of these ranks."""
        return np.flatnonzero(np.isin(self.ranks, list(ranks)))

    @property
    def is_countable(self) -> Bools:
        """(steps, ranks) whether the rank stands out in the step so that its recurrence can be asked.

        Of few steps or ranks none tells which usual time is the unusual one, and chance must not choose what counts.
        """
        steps, ranks = self.is_late.shape
        is_few = steps < THRESHOLDS.min_repeats or ranks <= THRESHOLDS.min_repeats
        is_sure = self.is_persistent & (self.chance < THRESHOLDS.medium_chance) & (not is_few)
        is_counted: Bools = self.is_late & (self.is_event | is_sure)
        return is_counted

    def with_all_events(self, step_ns: Floats) -> "Standouts":
        """Return these with every step in which a rank is as far above its usual time as others' events are.

        `step_ns` (steps,) is each step's time, NaN where unknown.
        """
        least_ns = THRESHOLDS.min_excess_share * known_median(step_ns)
        is_far = (self.sigmas >= THRESHOLDS.outlier_sigmas) & (self.total_ns >= least_ns)
        return replace(self, is_late=self.is_late | is_far)

    def with_rest_of_host(self, other: "Standouts", step_ns: Floats) -> "Standouts":
        """Return these with ranks whose `other` part of the host's time usually stands out, if this is as often late.

        A slow host is slow in all that it does. Of few steps and ranks the noise of one part is hardly known.
        `step_ns` is as in `outliers`.
        """
        is_known = ~np.isnan(self.total_ns)
        is_late = ~is_known | (self.total_ns >= THRESHOLDS.min_excess_share * known_median(step_ns))
        is_same = other.is_persistent & ~self.is_late.any(axis=0) & is_known.any(axis=0) & is_late.all(axis=0)
        return replace(
            self,
            is_late=self.is_late | is_same & (is_known | ~is_known.any(axis=1, keepdims=True)),
            is_persistent=self.is_persistent | is_same,
            chance=np.where(is_same, other.chance, self.chance),
        )

    def with_usual(self, chances: Floats) -> "Standouts":
        """Return these with what another test tells of usual times: the `chances` that each stands out so."""
        is_known = chances < THRESHOLDS.medium_chance
        chance = np.where(is_known, np.where(self.is_persistent, np.fmin(self.chance, chances), chances), self.chance)
        return replace(self, is_persistent=self.is_persistent | is_known, chance=chance)

    def with_places(self, of_places: "Standouts", places: Sequence[Ints], step_ns: Floats) -> "Standouts":
        """Return these with the late ranks of places whose median rank usually stands out among those of the places.

        Where each rank varies by itself from step to step, many of one place show what none shows alone. By GPU time
        they must also be apart from all others: work that grows from rank to rank is more at one place than at the
        next. `places` are the columns of their ranks, in the order of `of_places`; `step_ns` is as in `outliers`.
        """
        late = replace(
            self, is_late=self.is_late.copy(), is_persistent=self.is_persistent.copy(), chance=self.chance.copy()
        )
        usual_ns, is_known = np.nan_to_num(known_medians(self.total_ns)), ~np.isnan(self.total_ns)
        is_usual = usual_ns >= THRESHOLDS.min_excess_share * known_median(step_ns)
        for number in np.flatnonzero(of_places.is_persistent & (of_places.chance < THRESHOLDS.medium_chance)).tolist():
            place = places[number]
            if self.part is TimePart.GPU and not _are_apart(np.sort(usual_ns[place]), np.delete(usual_ns, place)):
                continue
            for column in place[(is_usual & ~self.is_persistent)[place]].tolist():
                here = is_known[:, column] & (self.total_ns[:, column] >= usual_ns[column] / 2)
                # as of a rank that is late by itself: a step of which no rank's total is known is no exception
                late.is_late[:, column] = here | (here[is_known[:, column]].all() & ~is_known.any(axis=1))
                late.is_persistent[column] = True
            named = place[late.is_persistent[place]]
            late.chance[named] = np.minimum(late.chance[named], of_places.chance[number])
        return late

    def with_rest_of_places(self, places: Sequence[Ints]) -> "Standouts":
        """Return these with more late ranks of a place, in the steps in which most of its ranks stand out.

        A rank is late with them if it is at least half as late as they are, in most of these steps. `places` are the
        columns of their ranks.
        """
        late = replace(
            self,
            is_late=self.is_late.copy(),
            is_event=self.is_event.copy(),
            is_persistent=self.is_persistent.copy(),
            usual_sigmas=self.usual_sigmas.copy(),
            chance=self.chance.copy(),
        )
        for place in places:
            is_late, is_persistent = self.is_late[:, place], self.is_persistent[place]
            steps = is_late.mean(axis=1, keepdims=True) >= THRESHOLDS.most_share
            usual_ns = known_medians(np.where(is_late, self.total_ns[:, place], np.nan), axis=1)[:, None]
            here = steps & (self.total_ns[:, place] >= usual_ns / 2)
            joins = here.sum(axis=0) >= max(THRESHOLDS.most_share * steps.sum(), 1)
            joins &= (here & ~is_late).any(axis=0)
            late.is_late[:, place] |= here & joins
            late.is_event[:, place] |= here & joins & self.is_event[:, place].any(axis=1, keepdims=True)
            if 2 * is_persistent.sum() > len(place):
                late.is_persistent[place[joins]] = True
                late.usual_sigmas[place[joins]] = np.median(self.usual_sigmas[place[is_persistent]])
            late.chance[place[joins]] = np.minimum(self.chance[place[joins]], np.median(self.chance[place]))
        return late

    def outliers(self, step_ns: Floats) -> list[Outlier]:
        """Return the ranks that stand out; `step_ns` (steps,) is each step's time, NaN where unknown."""
        rank_outliers = []
        for column in np.flatnonzero(self.is_late.any(axis=0)).tolist():
            late, total_ns = self.is_late[:, column], self.total_ns[:, column]
            if not self.is_persistent[column]:
                stray = late & (total_ns < THRESHOLDS.tolerance_share * np.nan_to_num(total_ns[late]).max())
                if np.nansum(total_ns[stray]) <= (1 - THRESHOLDS.whole_share) * np.nansum(total_ns[late]):
                    late = late & ~stray  # no part of the pause
            excess = float(np.nansum(total_ns[late]))
            if len(self.ranks) == 1 and excess > THRESHOLDS.much_more * float(np.nansum(step_ns[late])):
                continue  # operations side by side, each of which waited for what was not recorded
            if excess < THRESHOLDS.min_excess_share * known_median(step_ns) * late.sum():
                continue
            rank_outliers.append(self._outlier(column, late, is_persistent=bool(self.is_persistent[column])))
        return rank_outliers

    def _outlier(self, column: int, late: Bools, *, is_persistent: bool) -> Outlier:
        """Return the rank of a column as it stands out in the steps `late`, (steps,)."""
        late_ns = self.total_ns[late, column]
        sigmas = self.usual_sigmas[column] if is_persistent else self.sigmas[late, column].max()
        return Outlier(
            self.team,
            int(self.ranks[column]),
            self.part,
            tuple(np.flatnonzero(late).tolist()),
            float(np.nansum(late_ns)),
            float(sigmas),
            float(self.chance[column]),
            is_persistent,
            int(np.isnan(late_ns).sum()),
            longest_ns=float(np.nan_to_num(late_ns).max()),
        )

    def split_events(self, outlier: Outlier) -> tuple[Outlier, ...]:
        """Return two outliers of a rank, of its usual steps and of its far longer ones; none if it lacks either."""
        (column,) = self.columns([outlier.rank]).tolist()
        steps = np.isin(np.arange(len(self.is_event)), outlier.steps)
        events = steps & self.is_event[:, column]
        if not outlier.persistent or not events.any() or 2 * events.sum() >= steps.sum():
            return ()
        parts = (
            self._outlier(column, steps & ~events, is_persistent=True),
            self._outlier(column, events, is_persistent=False),
        )
        return tuple(replace(part, pace=outlier.pace, kernels=outlier.kernels, peers=outlier.peers) for part in parts)


def chances_of_places(deviations: TeamDeviations, places: Sequence[Ints], tests: int) -> Floats:
    """Return, (places,), the probability that the usual GPU times of a place's ranks are so far above the median place.

    Against how ranks of one place differ, how the place varies over steps, and what GPUs differ by for ever: not
    against the other places, which may all be of another speed. `places` are the columns of their ranks; `tests` is as
    in `find_standouts`.
    """
    total_ns = deviations.total_ns[TimePart.GPU]
    of_ranks = known_medians(total_ns)
    known = [place[~np.isnan(of_ranks[place])] for place in places]
    is_tested, chances = np.array([len(place) >= THRESHOLDS.min_repeats for place in known]), np.ones(len(places))
    if is_tested.sum() < 2:
        return chances
    known = [place for place, is_one in zip(known, is_tested, strict=True) if is_one]
    of_places = np.stack([known_medians(total_ns[:, place], axis=1) for place in known], axis=1)
    steps, ranks = (~np.isnan(of_places)).sum(axis=0), np.array([len(place) for place in known])
    if steps.min() < THRESHOLDS.min_repeats:
        return chances
    means_ns = np.array([of_ranks[place].mean() for place in known])
    within = sum(float(of_ranks[place].var()) * len(place) for place in known) / (ranks.sum() - len(known))
    floor_ns = THRESHOLDS.gpu_spread_share * float(np.nan_to_num(known_medians(deviations.usual_ns[TimePart.GPU])[0]))
    sigma_ns = np.sqrt(floor_ns**2 + within / ranks + qn_sigma(of_places) ** 2 / steps)
    above = (means_ns - lower_median(means_ns, axis=0)[0]) / np.maximum(sigma_ns, 1.0)
    chances[is_tested] = np.minimum(student_tail(above, THRESHOLDS.max_degrees) * (len(known) * tests), 1.0)
    return chances


def _are_apart(values: Floats, others: Floats) -> bool:
    """Return whether ascending values, which may vary more, lie apart from as many others next below, and above."""
    below, above = np.sort(others[others < values[0]]), np.sort(others[others > values[-1]])
    if len(below) < 2 or len(below) + len(above) < len(others):
        return False
    is_above = bool(separate_clusters(below[-len(values) :], values[:1]))
    return is_above and (not len(above) or bool(separate_clusters(values, above[: len(values)])))


def find_standouts(
    deviations: TeamDeviations,
    part: TimePart,
    step_ns: Floats,
    of_kinds: Sequence[Ints] | None = None,
    tests: int = len(OWN_PARTS),
) -> Standouts:
    """Return when the ranks of a team stand out with a part of their time.

    Args:
        deviations: of the team.
        part: of the own time.
        step_ns: (steps,) each step's time, NaN where unknown.
        of_kinds: the numbers of the steps of each kind, which are tested apart; None: all steps are alike.
        tests: how many parts are tested of each rank.

    """
    of_all = [np.arange(len(step_ns))] if of_kinds is None else of_kinds
    total = deviations.total_ns[part]
    if total.shape[1] == 1:  # without peers a rank is compared with its other steps
        of_all = [numbers for numbers in of_all if len(numbers) >= THRESHOLDS.min_steps]

    def sample(numbers: Ints) -> TestedTimes:
        return _sample(deviations.of_steps(numbers), part)

    return find_in_samples(deviations.team, part, deviations.ranks, total, sample, step_ns, of_all, tests)


def find_in_samples(
    team: int,
    part: TimePart,
    ranks: Ints,
    total: Floats,
    sample: Callable[[Ints], "TestedTimes"],
    step_ns: Floats,
    of_kinds: Sequence[Ints],
    tests: int,
) -> Standouts:
    """Return when ranks, or what stands in for ranks, stand out.

    `total` (steps, ranks) is what is tested, `sample` gives it with its noise for the steps of a kind; the others are
    as in `find_standouts`.
    """
    standouts = Standouts(
        team,
        part,
        ranks,
        total.copy(),
        np.zeros(total.shape),
        np.ones(total.shape),
        np.zeros(total.shape, np.bool_),
        np.zeros(total.shape, np.bool_),
        np.zeros(len(ranks), np.bool_),
        np.zeros(len(ranks)),
        np.ones(len(ranks)),
    )
    for numbers in of_kinds:
        _test_kind(standouts, numbers, sample(numbers), known_median(step_ns[numbers]), tests)
    return standouts


class TestedTimes(NamedTuple):
    """One part of one team's deviations in steps of one kind, with what they are compared with."""

    total: Floats
    """(steps, ranks), in proportion to the work of the step where that varies."""
    level: Floats
    """(ranks,) the usual value over steps; of what grows, that of its early steps."""
    middle: Floats
    """(ranks,) the same; of what grows, that of its middle."""
    noise: Floats
    """(steps, ranks) standard deviation of a step's total about the rank's usual value."""
    floor: Floats
    """(ranks,) the least standard deviation of a rank's usual value: ranks differ for ever, and steps are few."""
    work: Floats
    """(steps, 1) the work of each step, 1 for the usual one."""


def _sample(deviations: TeamDeviations, part: TimePart) -> TestedTimes:
    work = _relative_work(deviations.usual_ns[part]) if part is TimePart.GPU else np.ones((1, 1))
    total, is_split = settle_halves(deviations.total_ns[part] / work)
    # a start is unknown in the first step, of all ranks
    steps, ranks = int((~np.isnan(total)).any(axis=1).sum()), total.shape[1]
    is_many = steps >= THRESHOLDS.min_repeats
    # of two steps one may be an event
    over_steps, level = np.zeros(ranks), np.nan_to_num(lower_median(total, axis=0)[0])
    middle = level
    usual_scatter = 0.0
    if is_many:
        if deviations.is_usual is None:
            quiet, plain = quiet_totals(total)
        else:
            quiet = np.where(deviations.is_usual[part], total, np.nan)
            plain = qn_sigma(quiet)
        over_steps = scatter_over_steps(quiet, plain)
        level, middle = (np.nan_to_num(quiet_level(quiet, sigma)) for sigma in (over_steps, plain))
        # the plain scatter, which a rank that wanders raises; of few ranks, most may be ones that slow down
        usual_scatter = np.median(plain if ranks >= THRESHOLDS.min_samples else over_steps)
        # half of few steps may be events
        is_own = steps >= THRESHOLDS.min_steps or ranks < THRESHOLDS.min_samples
        over_steps = np.maximum(over_steps if is_own else 0.0, usual_scatter + np.zeros(ranks))
    operations = np.nan_to_num(deviations.noise_ns[part] / work)
    if is_many and ranks > 1:
        # the variation over steps includes it, and ranks that differ for ever would inflate it
        operations = np.zeros_like(operations)
    within = spread_within_steps(total - (level if is_many else 0.0), is_split)
    noise = np.maximum(np.sqrt(over_steps**2 + within**2 + operations**2), 1.0)
    share = THRESHOLDS.gpu_spread_share if part is TimePart.GPU else THRESHOLDS.host_spread_share
    usual_ns = float(np.nan_to_num(known_medians(deviations.usual_ns[part] / work)[0]))
    # of few steps the ranks' usual scatter tells more than the rank's own
    own_degrees, prior_degrees = max(steps - 1, 0), THRESHOLDS.spread_degrees
    of_ranks = np.median(noise**2 - over_steps**2, axis=0) + usual_scatter**2
    of_steps = (own_degrees * np.median(noise**2, axis=0) + prior_degrees * of_ranks) / (own_degrees + prior_degrees)
    floor = np.sqrt((share * usual_ns) ** 2 + of_steps / max(steps, 1))
    if is_many and (few := _count_known(total) < THRESHOLDS.min_repeats).any():
        # these are compared with the other ranks, which differ for ever
        noise[:, few] = np.hypot(noise[:, few], spread_of_others(level, floor)[1][few])
    return TestedTimes(total, level, middle, noise, floor, work)


def quiet_totals(total: Floats, usual_sigma: float | None = None) -> tuple[Floats, Floats]:
    """Return totals (steps, ranks) without the late steps of ranks that vary far more than usual and are often late.

    And, (ranks,), the standard deviation over the steps that are left (`qn_sigma`). By default most ranks tell the
    usual one.
    """
    quiet, sigmas = total.copy(), qn_sigma(total)
    if usual_sigma is None:
        usual_sigma = middle_value(sigmas)
    for column in np.flatnonzero(sigmas > THRESHOLDS.much_more * usual_sigma).tolist():
        quiet[~find_reference_times(total[:, column], usual_sigma), column] = np.nan
        sigmas[column] = qn_sigma(quiet[:, [column]])[0]
    return quiet, sigmas


def _relative_work(usual_ns: Floats) -> Floats:
    """Return (steps, 1) the usual time of each step ÷ that of the middle one; 1 where steps have about as much work.

    In batches of different sizes a slow GPU is later in the larger ones.
    """
    usual = float(np.nan_to_num(known_medians(usual_ns)[0]))
    if not usual > 0 or float(qn_sigma(usual_ns)[0]) <= THRESHOLDS.tolerance_share * usual:
        return np.ones((1, 1))
    relative: Floats = np.maximum(usual_ns / usual, THRESHOLDS.tolerance_share)
    return relative


def _count_known(total: Floats) -> Ints:
    """Return (ranks,) in how many steps each rank's total (steps, ranks) is known."""
    known: Ints = (~np.isnan(total)).sum(axis=0)
    return known


class _TestedSteps(NamedTuple):
    """How ranks stand out in each step; arrays are (steps, ranks)."""

    sigmas: Floats
    """How far a rank is above its usual total, in standard deviations of the noise; 0 where unknown."""
    tails: Floats
    """The probability of that by chance, of any one step."""
    chances: Floats
    """The same among all steps and parts that are tested, and among ranks that are late together; may be above 1."""


def _test_steps(sample: TestedTimes, tests: int) -> _TestedSteps:
    """Test each step of each rank by itself, and ranks that are far above the others in one step together."""
    total, is_known = sample.total, ~np.isnan(sample.total)
    # of fewer steps none tells which is the rank's usual one
    usual = np.where(_count_known(total) >= THRESHOLDS.min_repeats, sample.level, 0.0)
    sigmas = np.where(is_known, np.nan_to_num(total) - np.maximum(usual, 0.0), 0.0) / sample.noise
    # several steps of one rank resemble each other: their tail is the worst case
    tails = np.where(is_known, student_tail(sigmas, THRESHOLDS.tail_degrees), 1.0)
    chances = np.where(is_known, predictive_tails(sigmas, (total - usual) / sample.noise), 1.0) * is_known.sum() * tests
    likely = (tails <= THRESHOLDS.medium_chance).sum(axis=1) > 1
    for step in np.flatnonzero(likely).tolist():  # several ranks in one step, as those of a node
        tail, chance = _select_events(tails[step], 2 * len(total) * tests)
        are_together = tails[step] <= tail
        late, others = (
            np.sort((total - usual)[step, these & is_known[step]]) for these in (are_together, ~are_together)
        )
        # the step's noise, which they have in common, may be larger than it seems
        if 1 < len(late) < len(others) and separate_clusters(others, late) >= THRESHOLDS.outlier_sigmas:
            chances[step, are_together] = np.minimum(chances[step, are_together], chance)
    return _TestedSteps(sigmas, tails, chances)


def _test_usual(sample: TestedTimes, least_ns: float, tests: int) -> tuple[Bools, Floats]:
    """Return, (ranks,) each, whether a rank's usual total stands out, and the chance of that."""
    is_known, ranks = ~np.isnan(sample.total), len(sample.level)
    of_usual = _chances_of_usual(sample)
    # ranks of one slow host hide each other: each one widens the spread of the others. Of halves none is the usual one
    tail, together_by_chance = _select_events(np.where(of_usual <= THRESHOLDS.max_chance, of_usual, 1.0), 2 * tests)
    is_together = (of_usual <= tail) & (together_by_chance <= THRESHOLDS.medium_chance)
    is_together &= 2 * is_together.sum() < ranks
    chances = np.minimum(of_usual * (2 * ranks * tests), np.where(is_together, together_by_chance, 1.0))
    is_mostly = 2 * (np.nan_to_num(sample.total) > 0).sum(axis=0) > is_known.sum(axis=0)
    is_usual = is_mostly & (is_known.sum(axis=0) > 1) & (sample.level >= least_ns)  # of one step nothing is usual
    return is_usual & (chances <= THRESHOLDS.max_chance), chances


def _test_kind(standouts: Standouts, numbers: Ints, sample: TestedTimes, usual_step_ns: float, tests: int) -> None:
    """Fill in what stands out in the steps `numbers`, which are of one kind."""
    known_ns, is_known = np.nan_to_num(sample.total), ~np.isnan(sample.total)
    ranks, least_ns = known_ns.shape[1], THRESHOLDS.min_excess_share * usual_step_ns
    sigmas, tails, chances = _test_steps(sample, tests)
    always, chances_of_usual = _test_usual(sample, least_ns, tests)
    events = (chances < THRESHOLDS.medium_chance) & (known_ns >= least_ns)
    standouts.total_ns[numbers], standouts.sigmas[numbers] = sample.total * sample.work, sigmas
    standouts.chance_of_step[numbers] = np.minimum(chances, 1.0)
    for column in range(ranks):
        rank_ns, there = known_ns[:, column], is_known[:, column]
        if always[column]:
            level, noise = sample.level[column], sample.noise[:, column]
            # a step that is far below the usual one is not among its steps
            late, chance = (
                there & (rank_ns >= level - np.maximum(level / 2, 3 * noise)),
                float(chances_of_usual[column]),
            )
            if late[there].all():
                # nor is a step an exception of which no rank's total is known: the first one, by its start
                late |= ~is_known.any(axis=1)
            standouts.usual_sigmas[column] = max(standouts.usual_sigmas[column], level / float(np.median(noise)))
        else:
            tail, chance = _select_events(tails[there, column], 2 * ranks * tests)
            together = tails[:, column] <= tail
            is_far = events[:, column] | together
            if not is_far.any():
                continue
            if chance < THRESHOLDS.medium_chance:
                events[:, column] |= together & (rank_ns >= least_ns)
            chance = min(chance, float(chances[is_far, column].min()))
            is_far = is_far | (sigmas[:, column] >= THRESHOLDS.outlier_sigmas)
            late = there & is_far & (rank_ns >= least_ns)
        standouts.is_late[numbers, column] = late
        standouts.is_persistent[column] |= always[column]
        standouts.chance[column] = min(standouts.chance[column], chance)
    standouts.is_event[numbers] = events


def _chances_of_usual(sample: TestedTimes) -> Floats:
    """Return (ranks,) the probability that one rank of like ranks has a usual value so far above the others'."""
    ranks = len(sample.level)
    if ranks < 2:
        return np.ones(ranks)
    medians = np.nan_to_num(known_medians(sample.total))
    above, scale, degrees = spread_of_others(medians, sample.floor)
    # the others' medians: of few ranks, events of one lower the quiet level of the others
    return student_tail((above - (medians - sample.middle)) / np.maximum(scale, 1.0), degrees)


def _select_events(tails: Floats, trials: int) -> tuple[float, float]:
    """Select the steps of one rank, or the ranks, that chance explains least, by the tail probability of each of them.

    For k = 1, 2, 4, ... the k-th largest excess is compared with that of so many independent ones by chance. Of the
    least likely k and those up to the next one tried, the least likely then tells which they are. What chance gives
    in one of ten steps is none of them: the middle ones of thousands of steps tell how noise is distributed.

    Returns:
        the tail probability up to which a step is one of them, -1 if none is, and the probability that chance makes so
        many steps so late in any of the `trials`.

    """
    ordered, count = np.sort(tails[tails <= 1 - THRESHOLDS.always_share]), len(tails)

    def by_chance(most: int) -> float:
        return binomial_tail(most, count, float(ordered[most - 1]))

    tried = {1 << power: by_chance(1 << power) for power in range(len(ordered).bit_length())}
    best = min(tried, key=tried.__getitem__, default=0)
    chance = tried[best] * count.bit_length() * trials if best else 1.0
    if chance > THRESHOLDS.max_chance:
        return -1.0, 1.0
    most = min(range(best, min(2 * best, len(ordered) + 1)), key=by_chance)
    return float(ordered[most - 1]), chance


Recurs = Literal["yes", "no", "together", "unknown"]
"""`yes`: these ranks again. `no`: any rank could be next. `together`: several ranks in one step. `unknown`: too few
steps or ranks."""


@dataclass(frozen=True)
class Recurrence:
    """The answer of the test, and what would decide it."""

    answer: Recurs
    more_steps: int | None = None
    """Steps to record beside these until an unknown recurrence can be decided; None if more steps cannot."""


def decide_recurrence(
    standouts: Standouts, ranks: Collection[int], seen: Collection[int], place: Collection[int] = ()
) -> Recurrence:
    """Return whether a finding about these ranks recurs.

    Args:
        standouts: of the finding's team and part.
        ranks: of the finding.
        seen: positions of the steps in which it occurs.
        place: all ranks of the host that they are of, if the finding is about a host: any of them may be late there.

    """
    columns = standouts.columns(ranks)
    is_late = standouts.is_countable
    steps, all_ranks = is_late.shape
    # what its ranks have in other steps is another finding
    is_late[:, columns] &= np.isin(np.arange(steps), list(seen))[:, None]
    is_mine = is_late & np.isin(standouts.ranks, list(ranks)) & ~np.isnan(standouts.total_ns)
    if is_mine.any():
        total_ns = standouts.total_ns
        own_ns = np.where(is_mine, total_ns, np.nan)
        # a usual one is as long as it usually is, whatever one of its steps takes
        sizes_ns = np.where(standouts.is_persistent, known_medians(own_ns), np.fmax.reduce(own_ns, axis=0))
        # short pauses, as any host makes, are no part of long ones
        is_late &= np.isnan(total_ns) | (total_ns >= THRESHOLDS.tolerance_share * np.fmax.reduce(sizes_ns))
        # what is as long on another rank counts, too, though it stays the only one there
        is_as_long = total_ns >= total_ns[is_mine & is_late].min()
        is_late = is_late | is_as_long & (standouts.sigmas >= THRESHOLDS.outlier_sigmas)
    # a group recurs if most of its ranks are late at the same time
    late = is_late[:, columns].sum(axis=1) >= max(THRESHOLDS.most_share * len(columns), 1)
    # another rank whose usual time is unusual, or that is late again and again, is another thing that recurs
    counts, of_ranks = np.unique(is_late.sum(axis=0), return_inverse=True)
    events = int(is_late.sum())
    recurs = np.array([_is_repeated(count, events - count, 1 / all_ranks) for count in counts.tolist()])[of_ranks]
    is_usual = standouts.is_persistent & (standouts.chance < THRESHOLDS.medium_chance)
    is_other = ~(np.isin(standouts.ranks, list(ranks)) | is_usual | recurs)
    others = is_late[:, is_other].sum(axis=1)
    times, elsewhere = int(late.sum()), int(np.ceil(others / max(len(columns), 1)).sum())
    share = len(columns) / all_ranks
    # nor does chance put them in one stretch, without those of others in it
    if times and (_is_repeated(times, elsewhere, share) or changes_once(late[late | (others > 0)])):
        return Recurrence("yes")
    here = np.isin(standouts.ranks, list(place))
    at_place, at_others = (int(is_late[:, columns_of].any(axis=1).sum()) for columns_of in (here, ~here))
    if here.any() and _is_repeated(at_place, at_others, float(here.mean())):
        return Recurrence("yes")
    of_steps = is_late.sum(axis=1)
    if late.any():
        together = int(of_steps[late].max())
        if together > 1 and chance_of_repetition(together, events, 1 / steps) < THRESHOLDS.max_chance:
            return Recurrence("together")
    if is_late[:, columns].any() and is_random(is_late.sum(axis=0)):
        return Recurrence("no")
    if not times and 2 * len(seen) > steps >= THRESHOLDS.min_steps:
        return Recurrence("unknown")  # late in most steps, and by no more than the ranks differ for ever
    return Recurrence("unknown", count_more_steps(times or max(len(seen), 1), elsewhere, share, steps))


def decide_repetition(times: int, elsewhere: int, share: float, steps: int) -> Recurrence:
    """Return whether ranks, or links, recur that stand out in so many steps, and the other ones `elsewhere` times.

    Args:
        times: how often they stand out.
        elsewhere: how often other ones do.
        share: of all ranks.
        steps: recorded ones.

    """
    if _is_repeated(times, elsewhere, share):
        return Recurrence("yes")
    return Recurrence("unknown", count_more_steps(times, elsewhere, share, steps))


def is_random(events: Ints, odds: float = 1.0) -> bool:
    """Return whether events, (ranks,) how many each rank has, show that any rank can have them.

    At least `min_repeats` ranks have some, the rank with the most has no more than chance gives, and nearly all ranks
    have some, or the events are at least `odds` times as likely if all ranks can have them as if only these can.
    """
    count, hit, ranks = int(events.sum()), int((events > 0).sum()), len(events)
    if hit < THRESHOLDS.min_repeats or _is_repeated(int(events.max()), count - int(events.max()), 1 / ranks):
        return False
    return hit >= THRESHOLDS.nearly_all_share * ranks or log_odds_of_all_ranks(count, hit, ranks) >= math.log(odds)


def is_random_over(is_late: Bools, places: Iterable[Bools] = ()) -> bool:
    """Return whether events, (steps, ranks), show that any rank can have them in any step.

    As many in one step as in the fullest one are no chance: that is what all ranks share. Nor are as many at one of the
    `places`, (ranks,) which are there: it is as likely as it has ranks.
    """
    events, steps = int(is_late.sum()), len(is_late)
    if steps < THRESHOLDS.min_repeats or not is_random(is_late.sum(axis=0), THRESHOLDS.max_chance):
        return False
    counts = [(int(is_late.sum(axis=1).max()), 1 / steps)]
    counts += [(int(is_late[:, here].sum()), float(here.mean())) for here in places if not here.all()]
    return all(chance_of_repetition(times, events, share) > THRESHOLDS.medium_chance for times, share in counts)


def log_odds_of_all_ranks(events: int, hit: int, ranks: int) -> float:
    """Return the logarithm of how much likelier the events are if all ranks can have them than if only some can.

    Of so many events, all on the `hit` ranks: `(1 / ranks) ^ events` against `(1 / hit) ^ events / C(ranks, hit)`.
    """
    return log_binomial(ranks, hit) + events * math.log(hit / ranks)


def count_more_steps(seen: int, elsewhere: int, share: float, steps: int) -> int | None:
    """Return how many more steps show whether ranks recur that were late in `seen` of these steps.

    If the ranks, `share` of all, go on at this rate and other ranks (`elsewhere` times late) do not. None if it takes
    more than `max_needed` times.
    """
    for needed in range(seen + 1, THRESHOLDS.max_needed + 1):
        if _is_repeated(needed, elsewhere, share):
            return max(math.ceil(needed * steps / seen), THRESHOLDS.min_steps, steps + 1) - steps
    return None


def chance_of_repetition(times: int, all_times: int, share: float) -> float:
    """Return the probability that chance makes so many of all times fall on one share of what they may fall on.

    The binomial tail, times how many such shares there are.

    >>> round(chance_of_repetition(3, 3, 1 / 4), 4), chance_of_repetition(2, 2, 1 / 2)
    (0.0625, 0.5)
    """
    return min(1.0, binomial_tail(times, all_times, share) / share)


def _is_repeated(times: int, elsewhere: int, share: float) -> bool:
    """Return whether so many of the times that ranks stand out seldom fall on one share of the ranks by chance."""
    return chance_of_repetition(times, times + elsewhere, share) < THRESHOLDS.max_chance
