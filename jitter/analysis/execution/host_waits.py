"""Waits of the host for the GPU that no call records: at one place of the program, calls follow an end on the GPU.

A host that waits begins its next call a nearly constant time after the awaited end, whatever it did before. So at each
place with a long host gap the end is looked for, of this step or an earlier one and of any stream, whose distance to
the call varies least. Three explanations of a call compete:

    its own time    call = back_before + own
    a wait          call = max(back_before + lead, end) + rest
    a pace          call = same call of the step before + period      (a loader delivers at its own pace)

The end is chosen on half of the steps and verified on the other half. Of one or two steps, on half of the ranks; the
pace of a single step is unknown. Where no end explains the calls of all steps, the steps are told apart by what they
and the steps before them run: a host may wait only after a validation pass, a checkpoint or a logged value.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from jitter.analysis.alignment.program import Operation, Program
from jitter.analysis.execution.dependencies import Provenance, Wait
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import SYNC
from jitter.core.numeric.arrays import Bools, Floats, Ints, distinct_values
from jitter.core.numeric.stats import known_medians

_LIMITS: Final = THRESHOLDS.host_waits
_SLACK_NS: Final = THRESHOLDS.dependencies.right_after_ns
_LATER_NS: Final = THRESHOLDS.later_ns
_RESOLUTION_NS: Final = THRESHOLDS.rounding_ns / 2  # what is rounded to a microsecond is off by half of it at most
_NEEDED: Final = -math.log(THRESHOLDS.medium_chance)
_SCALES: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors of the usual deviation among which the likeliest is taken."""


class HostSample(NamedTuple):
    """Ranks' consecutive steps one after another, (cells, operations); ns from each rank's origin, NaN: unknown."""

    since: Floats
    """When the host's call before returned; of a synchronising call when it began."""
    until: Floats
    """When the call began; of a synchronising call when it returned."""
    ends: tuple[Floats, ...]
    """Ends on the GPU: of this step, of the step before, and so on. Of an operation that the rank lacks, and most ranks
    of its step have, the end before on its stream; NaN where most lack it.
    """
    stand_ins: Mapping[int, frozenset[int]]
    """By place the operations whose ends stand for its own on ranks that lack it."""
    rank: Ints
    """(cells,)."""
    step: Ints
    """(cells,) number of the step; consecutive steps have consecutive numbers."""
    loading: Floats
    """(cells, operations) how long before the call the host began to wait for data; 0 where it did not."""

    def cells_before(self, most: int) -> Ints:
        """Return, (cells, most), the cells of the rank one step before, two steps before and so on; -1 without one."""
        cell_of = {key: cell for cell, key in enumerate(zip(self.rank.tolist(), self.step.tolist(), strict=True))}
        number = self.step[:, None] - np.arange(1, most + 1)
        keys = zip(np.repeat(self.rank, most).tolist(), number.ravel().tolist(), strict=True)
        return np.array([cell_of.get(key, -1) for key in keys], np.int64).reshape(number.shape)


class HostWaits(NamedTuple):
    """The waits without a record of one program."""

    waits: tuple[Wait, ...]
    host_lead_ns: Mapping[int, float]
    """By place: how much of the host's own time lies before the wait."""
    bound_waits: tuple[Wait, ...]
    """Waits that may be, where none fits."""
    bound_lead_ns: Mapping[int, float]
    """By place of a wait that binds in every step: the most that may lie before it."""
    unexplained: float
    """Share of the step's time in gaps that vary on most ranks, may be waits, and that no wait explains."""


class _Ends(NamedTuple):
    """Ends that a host may have waited for."""

    which: Sequence[tuple[tuple[int, int], ...]]
    """Of each the operations, (place, steps back); a place below 0: the last operation on stream ~place."""
    at: Floats
    """(cells, ends)."""


class _Place(NamedTuple):
    """The calls at one place of the program, (calls,)."""

    gap: Floats
    period: Floats
    """Since the same call of the step before; NaN: unknown."""
    distance: Floats
    """(calls, ends) from each end to the call."""
    half: Bools
    """Whether the call is of the steps, or of the ranks, on which the end is chosen."""
    rank: Ints
    loading: Floats


def find_host_waits(program: Program, wait_calls: frozenset[int], sample: HostSample) -> HostWaits:
    """Find the waits of hosts that no call records, in a sample of steps; `wait_calls` are the calls of known waits."""
    period = _periods(sample)
    step_ns = _usual_step_ns(sample, period)
    waits: list[Wait] = []
    possible: list[Wait] = []
    lead, most_lead = dict[int, float](), dict[int, float]()
    unexplained = 0.0
    fitted_places = [
        (place, *place_fit)
        for place in _long_gaps(sample, step_ns)
        if place not in wait_calls
        for place_fit in _fit_place(program, sample, period, place)
    ]
    patterns = [
        pattern
        for place, ends, _, _, end, fits in fitted_places
        if fits and (pattern := _pattern(program, place, ends.which[end])) is not None
    ]
    for place, ends, calls, share, best, fitted in fitted_places:
        repeated = None if fitted else _repeated(program, place, ends, calls, patterns)
        end, fits = (best, fitted) if repeated is None else (repeated, True)
        distance = calls.distance[:, end]
        is_call = program.kinds[place] == SYNC
        provenance: Provenance = "recorded" if is_call else "inferred"
        spreads = _spread(distance), _spread(calls.gap)
        call_waits = [Wait(place, on, "sync", back, provenance, *spreads) for on, back in ends.which[end]]
        if fits:
            waits += call_waits
            if not is_call:
                shown, most = _lead(calls.gap, distance, calls.rank)
                lead[place] = min(shown, lead.get(place, shown))
                if most > shown:
                    most_lead[place] = max(most, most_lead.get(place, most))
        elif not is_call and not _contradicts(calls, end):
            # a host that waits for data waits for nothing else, nor does it once that has ended
            idle = calls._replace(gap=calls.gap - calls.loading)
            varies, gap_ns = _varies(idle), share * float(idle.gap.mean())
            before_end_ns = share * float(np.nanmean(np.clip(calls.gap - distance, 0.0, idle.gap)))
            unexplained += before_end_ns / step_ns if varies else 0.0
            if varies or gap_ns >= THRESHOLDS.min_excess_share * step_ns:
                possible += call_waits
    return HostWaits(tuple(waits), lead, tuple(possible), most_lead, min(unexplained, 1.0))


def follow_other_teams(
    program: Program, wait_calls: frozenset[int], sample: HostSample, ends: Floats
) -> frozenset[int]:
    """Find the places with long host gaps where every call follows the end of an earlier step of one other team.

    Hosts of a pipeline wait for the tokens of the last stage. `ends` (steps, teams) are the last ends of the sample's
    steps, each on the clock of one rank: only how they vary counts. They must explain the calls better than the host's
    own time, than its pace (what it caused ends at that), than any end on its own GPU, and than what the rank ran as
    many steps before: where a gap comes every third step, all that was three steps before is as far from the call.
    """
    back = np.arange(1, min(THRESHOLDS.most_in_flight, len(ends) - 1) + 1)
    number = sample.step[:, None] - back
    earlier = np.where((number < 0)[..., None], np.nan, ends[np.maximum(number, 0)]).reshape(len(number), -1)
    earlier = earlier[:, 2 * np.isnan(earlier).sum(axis=0) < len(earlier)]
    period, following = _periods(sample), set[int]()
    cell_before, last_end = sample.cells_before(len(back)), np.fmax.reduce(sample.ends[0], axis=1)
    for place in _long_gaps(sample, _usual_step_ns(sample, period)) if earlier.shape[1] else ():
        gap, until = sample.until[:, place] - sample.since[:, place], sample.until[:, place, None]
        every = _Place(
            gap, period[:, place], until - earlier, sample.step % 2 == 0, sample.rank, sample.loading[:, place]
        )
        calls = _of_calls(every, ~np.isnan(gap))
        end = _choose_end(calls)
        is_known = ~np.isnan(calls.distance[:, end])
        needed = max(math.log(earlier.shape[1] / _LIMITS.max_chance), _LIMITS.min_log_ratio * int(is_known.sum()))
        if place in wait_calls or not all(ratio >= needed for ratio in _log_ratios(calls, end, on_one_clock=False)):
            continue
        same_before = [np.where(cell_before < 0, np.nan, at[cell_before]) for at in (last_end, sample.until[:, place])]
        distances = np.column_stack(
            [until - _candidates(program, sample, place).at, *(until - at for at in same_before)]
        )
        distances = distances[~np.isnan(gap)][is_known]
        tried = np.column_stack([calls.distance[is_known, end], distances])
        tried = tried[:, 2 * np.isnan(tried).sum(axis=0) < len(tried)]
        per_call = _fit(tried, calls.rank[is_known]).log_likelihood / (~np.isnan(tried)).sum(axis=0)
        if (per_call[0] - per_call[1:].max(initial=-np.inf)) * len(tried) >= needed:
            following.add(place)
    return frozenset(following)


def _usual_step_ns(sample: HostSample, period: Floats) -> float:
    """Return the median period or, without any, the median time from a step's first call to its last call or end."""
    if not np.isnan(period).all():
        return float(np.nanmedian(period))
    last = np.fmax(np.fmax.reduce(sample.ends[0], axis=1), np.fmax.reduce(sample.until, axis=1))
    return float(np.nanmedian(last - np.fmin.reduce(sample.until, axis=1)))


class _Pattern(NamedTuple):
    """Where a wait lies among the operations of one kind, so that it may repeat: a layer waits for an earlier layer."""

    operation: Operation
    """Whose launch waits."""
    stream: int
    """Of the awaited operation: the last one there before an earlier, or this, operation of that kind."""
    earlier: int
    """How many operations of that kind earlier: 0 is before this one."""


class _FitOfPlace(NamedTuple):
    """How the calls at a place follow an end."""

    ends: _Ends
    calls: _Place
    share: float
    """Of the place's calls."""
    end: int
    """The best end."""
    fits: bool


def _fit_place(program: Program, sample: HostSample, period: Floats, place: int) -> list[_FitOfPlace]:
    """Fit the calls at a place: of all steps alike or, where no end fits those, of each kind of step."""
    every = np.ones(len(sample.rank), np.bool_)
    alike = _fit_calls(program, sample, period, place, every)
    if alike is not None and alike.fits:
        return [alike]
    fits = (_fit_calls(program, sample, period, place, kind) for kind in _kinds_of_steps(sample, place))
    by_kind = [fit for fit in fits if fit is not None]
    if alike is None or any(fit.fits for fit in by_kind):
        return by_kind
    return [alike]


def _fit_calls(program: Program, sample: HostSample, period: Floats, place: int, cells: Bools) -> _FitOfPlace | None:
    """Fit the calls at a place in some cells; None: no end is before all of them and in the gap of some."""
    of_cells = {name: getattr(sample, name)[cells] for name in ("since", "until", "rank", "step", "loading")}
    some = sample._replace(**of_cells, ends=tuple(ends_of_step[cells] for ends_of_step in sample.ends))
    ends, gap = _candidates(program, some, place), some.until[:, place] - some.since[:, place]
    # of every second step, or rank where every second one has no pace
    numbers = np.unique(some.step, return_inverse=True)[1]
    if numbers.max(initial=0) < 2:
        numbers = np.unique(some.rank, return_inverse=True)[1]
    distance = some.until[:, place, None] - ends.at
    calls = _Place(gap, period[cells, place], distance, numbers % 2 == 0, some.rank, some.loading[:, place])
    ends, calls = _feasible(ends, _of_calls(calls, ~np.isnan(gap)))
    if not len(ends.which):
        return None
    is_known = ~np.isnan(sample.until[:, place] - sample.since[:, place])
    return _FitOfPlace(ends, calls, len(calls.gap) / int(is_known.sum()), *_choose(calls))


def _kinds_of_steps(sample: HostSample, place: int) -> list[Bools]:
    """Return the cells, (cells,) each, of steps that ran the same up to a place, after steps that ran the same.

    Empty where the steps are alike, or too unlike to repeat.
    """
    ran = {
        step: 2 * np.isnan(sample.ends[0][sample.step == step]).sum(axis=0) < (sample.step == step).sum()
        for step in distinct_values(sample.step).tolist()
    }
    kinds: dict[tuple[bytes, bytes], list[int]] = {}
    for step in sorted(ran.keys() & {step + 1 for step in ran}):
        kinds.setdefault((ran[step][:place].tobytes(), ran[step - 1].tobytes()), []).append(step)
    if not 1 < len(kinds) <= len(ran) / 2:
        return []
    return [np.isin(sample.step, steps) for steps in kinds.values()]


def _pattern(program: Program, place: int, awaited: Sequence[tuple[int, int]]) -> _Pattern | None:
    """Return the pattern of a wait at a place; None: it is for several ends, for another step, or has no pattern."""
    if len(awaited) > 1 or awaited[0][1]:
        return None
    on = awaited[0][0]
    operation, stream = program.operations[place], int(program.streams[on])
    alike = _places_of(program, operation)
    earlier = sum(on < alike_place < place for alike_place in alike)
    pattern = _Pattern(operation, stream, earlier)
    return pattern if _awaited_by(program, pattern, place) == on else None


def _places_of(program: Program, operation: Operation) -> list[int]:
    return [at for at, candidate in enumerate(program.operations) if candidate == operation]


def _awaited_by(program: Program, pattern: _Pattern, place: int) -> int | None:
    """Return what a place would wait for by a pattern; None where the step begins later than that."""
    if program.operations[place] != pattern.operation:
        return None
    before = [at for at in _places_of(program, pattern.operation) if at <= place]
    if len(before) <= pattern.earlier:
        return None
    border = before[-1 - pattern.earlier]
    on = np.flatnonzero((program.streams[:border] == pattern.stream) & (program.kinds[:border] < SYNC))
    return int(on[-1]) if len(on) else None


def _repeated(program: Program, place: int, ends: _Ends, calls: _Place, patterns: Sequence[_Pattern]) -> int | None:
    """Return the end by which a place repeats a wait of the same kind of launch; None if its calls contradict that.

    No end is chosen among many, and a launch that waits makes it likely that the next one of its kind does.
    """
    possible = {_awaited_by(program, pattern, place) for pattern in patterns}
    ratios = {
        end: _log_ratios(calls, end)[0]
        for end, awaited in enumerate(ends.which)
        if len(awaited) == 1 and awaited[0][1] == 0 and awaited[0][0] in possible and not _contradicts(calls, end)
    }
    return max(ratios, key=ratios.__getitem__, default=None)


def _periods(sample: HostSample) -> Floats:
    """Return, (cells, operations), the time since the same call of the rank's step before; NaN: unknown."""
    before = sample.cells_before(1)
    return np.where(before < 0, np.nan, sample.until - sample.until[before[:, 0]])


def _long_gaps(sample: HostSample, step_ns: float) -> list[int]:
    """Return the places with long host gaps, in the order of the program."""
    gap = sample.until - sample.since
    is_known = ~np.isnan(gap)
    mean = np.where(is_known, gap, 0.0).sum(axis=0) / np.maximum(is_known.sum(axis=0), 1)
    enough = is_known.sum(axis=0) >= 2
    long = np.flatnonzero(enough & (mean >= max(_SLACK_NS, THRESHOLDS.min_gap_share * step_ns)))
    return sorted(long[np.argsort(-mean[long], kind="stable")][: THRESHOLDS.max_tried].tolist())


def _candidates(program: Program, sample: HostSample, place: int) -> _Ends:
    """Return the ends of what was launched before a place, in this step and the steps before."""
    on_gpu = np.flatnonzero(program.kinds < SYNC)
    before = on_gpu[on_gpu < place]
    tried = [(0, before), *((back, on_gpu) for back in range(1, len(sample.ends)))]
    columns = [sample.ends[back][:, places] for back, places in tried]
    awaited: list[tuple[tuple[int, int], ...]] = [
        ((at, back), *((stand_in, back) for stand_in in sorted(sample.stand_ins.get(at, ()))))
        for back, places in tried
        for at in places.tolist()
    ]
    # all that was launched before, as in a call that waits for the device
    last: set[tuple[int, int]] = set()
    for stream in distinct_values(program.streams[on_gpu]).tolist():
        for back, places in ((0, before), (1, on_gpu)):
            on_stream = places[program.streams[places] == stream]
            ran = ~np.isnan(sample.ends[back][:, on_stream])
            cells = ran.any(axis=1)
            latest = (
                on_stream[[]]
                if not cells.any()
                else on_stream[len(on_stream) - 1 - np.argmax(ran[cells, ::-1], axis=1)]
            )
            last |= {
                (at, back)
                for launched in set(latest.tolist())
                for at in (launched, *sample.stand_ins.get(launched, ()))
            }
            if cells.all():
                break
    every = np.fmax(
        np.fmax.reduce(columns[0], axis=1, initial=np.nan), np.fmax.reduce(columns[1], axis=1, initial=np.nan)
    )
    awaited.append(tuple(sorted(last)))
    return _Ends(awaited, np.column_stack([*columns, every]))


def _feasible(ends: _Ends, calls: _Place) -> tuple[_Ends, _Place]:
    """Keep the ends that lie before every call, and between it and the call before at some.

    A wait that binds begins after the call before, and ends with the awaited end.
    """
    distance, gap = calls.distance, calls.gap[:, None]
    with np.errstate(invalid="ignore"):
        never_later = ~(distance < -_SLACK_NS).any(axis=0)
        inside = (distance <= gap - _LATER_NS).sum(axis=0)
    known_count = (~np.isnan(distance)).sum(axis=0)
    kept = never_later & (inside >= (1 - THRESHOLDS.always_share) * known_count) & (inside >= 2)
    kept &= known_count >= THRESHOLDS.main_share * len(gap)
    chosen = np.flatnonzero(kept)
    return _Ends([ends.which[at] for at in chosen.tolist()], ends.at[:, chosen]), calls._replace(
        distance=distance[:, chosen]
    )


def _choose(calls: _Place) -> tuple[int, bool]:
    """Return the end that fits best, and whether it fits: as a wait at every call, or at times.

    It is chosen on half of the steps and verified on the other, both ways, and tested on all.
    """
    halves = [_of_calls(calls, is_in_half) for is_in_half in (calls.half, ~calls.half)]
    best = _choose_end(calls)
    if min(len(half.gap) for half in halves) < _LIMITS.min_calls:
        return best, False
    folds = list(zip(halves, halves[::-1], strict=True))
    verified = _log_share_of_gap(calls, best) + sum(_verify(chosen, held_out) for chosen, held_out in folds)
    if _follows(calls, best) and verified >= _NEEDED:
        return best, True
    at_times = _choose_end_at_times(calls)
    is_right = _follows_at_times(calls, at_times, _LIMITS.max_chance / calls.distance.shape[1]) and all(
        _follows_at_times(held_out, _choose_end_at_times(chosen), THRESHOLDS.medium_chance)
        for chosen, held_out in folds
    )
    return (at_times, True) if is_right else (best, False)


def _of_calls(calls: _Place, is_chosen: Bools) -> _Place:
    chosen: Any = (values[is_chosen] for values in calls)
    return _Place(*chosen)


def _choose_end(calls: _Place) -> int:
    """Return the end with the least varying distance to the calls; of ends that fit alike the latest.

    The best of so many ends is likelier by the logarithm of their number by chance alone.
    """
    count = np.maximum((~np.isnan(calls.distance)).sum(axis=0), 1)
    likely = _fit(calls.distance, calls.rank).log_likelihood / count
    alike = math.log(max(len(likely), 1)) / count.max(initial=1)
    return _latest(likely >= likely.max(initial=-np.inf) - alike, calls.distance)


def _choose_end_at_times(calls: _Place) -> int:
    """Return the end that explains most long gaps; of ends that explain as many the latest."""
    shares = _explained(calls)
    alike = math.log(len(shares)) / -math.log(_LIMITS.chance_of_one) / max(len(calls.gap), 1)
    return _latest(shares >= shares.max() - alike, calls.distance)


def _latest(alike: Bools, distance: Floats) -> int:
    """Return the latest of the ends that fit alike."""
    return int(np.argmin(np.where(alike & ~np.isnan(distance).all(axis=0), known_medians(distance), np.inf)))


def _follows(calls: _Place, end: int) -> bool:
    """Return whether every call follows an end: that explains it better than the host's own time, or than a pace."""
    distance = calls.distance[:, end]
    is_known = ~np.isnan(distance)
    with np.errstate(invalid="ignore"):
        inside = (distance <= calls.gap - _LATER_NS).sum()
    if inside < THRESHOLDS.most_share * is_known.sum():
        return False
    least = max(-math.log(_LIMITS.max_chance), _LIMITS.min_log_ratio * is_known.sum())
    ratios = _log_ratios(calls, end)
    return all(ratio >= least for ratio in ratios) and _is_likely(calls, min(ratios))


def _is_likely(calls: _Place, best: float) -> bool:
    """Return whether the calls follow some end that is not known beforehand: the mean likelihood ratio of all tried.

    Ends right after each other, as of a step's last kernels, fit alike: they count as one choice, not as many.

    Args:
        calls: of a place.
        best: the logarithm of the ratio of the end that fits best.

    """
    count, needed = calls.distance.shape[1], -math.log(_LIMITS.max_chance)
    if best >= needed + math.log(count):  # the other ends cannot change the answer
        return True
    ratios = np.nan_to_num([_log_ratios(calls, end) for end in range(count)], nan=-np.inf)
    return bool((np.logaddexp.reduce(ratios, axis=0) - math.log(count) >= needed).all())


def _log_ratios(calls: _Place, end: int, *, on_one_clock: bool = True) -> list[float]:
    """Return how much likelier an end explains the calls than the host's own time does, and than a known pace.

    As logarithms; NaN where too few calls tell. How soon they follow the end is known `on_one_clock`.
    """
    is_known = ~np.isnan(calls.distance[:, end])
    soon = _log_share_of_gap(calls, end) if on_one_clock else 0.0
    ratios = []
    for alternative in (calls.gap,) if np.isnan(calls.period).all() else (calls.gap, calls.period):
        both = is_known & ~np.isnan(alternative)
        if both.sum() < _LIMITS.min_calls:
            ratios.append(math.nan)
            continue
        likely = _fit(np.column_stack([calls.distance[:, end], alternative])[both], calls.rank[both]).log_likelihood
        ratios.append(float(likely[0] - likely[1]) + soon)
    return ratios


def _log_share_of_gap(calls: _Place, end: int) -> float:
    """Return how much likelier a wait than another explanation puts calls as soon after an end, as a logarithm.

    A host that waits goes on at once; a host that does not comes anywhere in its gap. This counts once, however many
    calls there are: times that do not vary are all equal.
    """
    soon = max(float(np.nanmedian(calls.distance[:, end])), _SLACK_NS)
    return max(0.0, math.log(max(float(np.median(calls.gap)), _SLACK_NS) / soon))


def _verify(chosen: _Place, held_out: _Place) -> float:
    """Return how much likelier the other calls follow the end that is chosen on some, as a logarithm.

    Both explanations keep what they expect of the first calls: nothing is fitted but the scale.
    """
    end = _choose_end(chosen)
    ratios = []
    rivals = [(chosen.gap, held_out.gap)]
    if not np.isnan(chosen.period).all() or not np.isnan(held_out.period).all():
        rivals.append((chosen.period, held_out.period))
    for of_first, of_held_out in rivals:
        first = np.column_stack([chosen.distance[:, end], of_first])
        values = np.column_stack([held_out.distance[:, end], of_held_out])
        both, is_known = ~np.isnan(first).any(axis=1), ~np.isnan(values).any(axis=1)
        if not both.any() or not is_known.any():
            return -math.inf
        expected = _fit(first[both], chosen.rank[both])
        likely = _around(values[is_known], expected.at(held_out.rank[is_known]))
        ratios.append(float(likely[0] - likely[1]))
    return min(ratios)


def _contradicts(calls: _Place, end: int) -> bool:
    """Return whether the calls of a place show that its host waits for no end: its own time, or a pace, fits."""
    is_known = ~np.isnan(calls.distance[:, end])
    needed = max(-math.log(_LIMITS.max_chance), _LIMITS.min_log_ratio * is_known.sum())
    return any(-ratio >= needed for ratio in _log_ratios(calls, end))


class _Fit(NamedTuple):
    """Medians that (calls, columns) values vary around."""

    log_likelihood: Floats
    """(columns,)."""
    ranks: Ints
    """Ascending."""
    of_ranks: Floats
    """(ranks, columns)."""
    common: Floats
    """(columns,)."""

    def at(self, rank: Ints) -> Floats:
        """Return, (calls, columns), what is expected of calls of these ranks."""
        where = np.minimum(np.searchsorted(self.ranks, rank), len(self.ranks) - 1)
        return np.where((self.ranks[where] == rank)[:, None], self.of_ranks[where], self.common)


def _fit(values: Floats, rank: Ints) -> _Fit:
    """Fit medians to (calls, columns) values: of all ranks, or one rank has its own, or each.

    The likeliest by the Bayesian information criterion.
    """
    ranks, number = np.unique(rank, return_inverse=True)
    common = known_medians(values)
    rank_medians = np.stack([known_medians(values[number == index]) for index in range(len(ranks))])
    rank_medians = np.where(np.isnan(rank_medians), common, rank_medians)
    apart = np.zeros_like(rank_medians, np.bool_)
    np.put_along_axis(apart, np.argmax(np.nan_to_num(np.abs(rank_medians - common)), axis=0)[None], True, axis=0)
    price = math.log(max(len(values), 1)) / 2
    models = [
        (np.broadcast_to(common, rank_medians.shape), 0.0),
        (np.where(apart, rank_medians, common), price + math.log(len(ranks))),
        (rank_medians, price * (len(ranks) - 1)),
    ]
    likely = np.stack([_around(values, centre[number]) - cost for centre, cost in models])
    best = np.argmax(likely, axis=0)
    chosen = np.choose(best, [centre for centre, _ in models])
    return _Fit(likely.max(axis=0), ranks, chosen, common)


def _around(values: Floats, centre: Floats) -> Floats:
    """Return, (columns,), the logarithm of the likelihood of values around a centre, normal or Cauchy's."""
    away = np.abs(values - centre)
    count = (~np.isnan(away)).sum(axis=0)
    usual = np.maximum(np.nan_to_num(known_medians(away)), _RESOLUTION_NS)
    variance = np.nansum(away**2, axis=0) / np.maximum(count, 1) + _RESOLUTION_NS**2
    log_likelihood: Floats = -count / 2 * (np.log(2 * np.pi * variance) + 1)
    for factor in _SCALES:
        scale = np.maximum(factor * usual, _RESOLUTION_NS)
        cauchy = -np.nansum(np.log(np.pi * scale) + np.log1p((away / scale) ** 2), axis=0)
        log_likelihood = np.maximum(log_likelihood, cauchy)
    return log_likelihood


def _long_calls(calls: _Place) -> tuple[Bools, Floats]:
    """Return which calls come after a longer gap than usual, and how much longer all gaps are."""
    excess = calls.gap - np.quantile(calls.gap, THRESHOLDS.minor_share)
    usual = np.abs(np.minimum(excess, 0.0)).max(initial=0.0)
    return excess > max(_SLACK_NS, 2 * usual), excess


def _explained(calls: _Place) -> Floats:
    """Return, (ends,), the share of the long gaps that each end explains; 0 where it contradicts other calls."""
    long, excess = _long_calls(calls)
    if long.sum() < 2:
        return np.zeros(calls.distance.shape[1])
    tolerance = np.maximum(_LATER_NS, THRESHOLDS.tolerance_share * excess[long])[:, None]
    distance = calls.distance[long]
    usual = np.nanmedian(np.where(np.isnan(distance).all(axis=0), 0.0, distance), axis=0)
    near = np.abs(distance - usual) <= tolerance
    with np.errstate(invalid="ignore"):
        inside = distance <= calls.gap[long, None] - _LATER_NS
        too_early = (calls.distance < usual - _SLACK_NS).mean(axis=0)
    shares: Floats = np.where(too_early <= 1 - THRESHOLDS.always_share, (near & inside).mean(axis=0), 0.0)
    return shares


def _follows_at_times(calls: _Place, end: int, max_chance: float) -> bool:
    """Return whether the calls after long gaps follow an end."""
    long, excess = _long_calls(calls)
    share = float(_explained(calls)[end])
    count = int(long.sum())
    if count < 2 or share < THRESHOLDS.most_share:
        return False
    period = calls.period[long]
    if not np.isnan(period).all():
        tolerance = np.maximum(_LATER_NS, THRESHOLDS.tolerance_share * excess[long])
        paced = np.abs(period - np.nanmedian(period)) <= tolerance
        if paced.mean() >= share:
            return False
    # Chernoff's bound of the binomial tail
    chance = _LIMITS.chance_of_one
    bits = math.log(share / chance) * share + (math.log((1 - share) / (1 - chance)) * (1 - share) if share < 1 else 0.0)
    return math.exp(-count * bits) <= max_chance


def _lead(gap: Floats, distance: Floats, rank: Ints) -> tuple[float, float]:
    """Return how much of the host's own time lies before a wait, and how much may lie there, ns.

    Where the wait does not bind, the call comes so much and the usual distance after the call before. Where it always
    binds, only the most is known, and the first is 0.
    """
    rest = float(np.nanmedian(distance[distance <= gap - _LATER_NS]))
    tolerance = max(_LATER_NS, 4 * float(np.nanmedian(np.abs(distance - rest))))
    binds = distance <= rest + tolerance
    most = max(0.0, float(np.quantile((gap - distance)[binds], 0.1))) if binds.any() else math.inf
    free = ~np.isnan(distance) & ~binds & (gap - rest <= most + tolerance)
    # a rank whose host is late after the wait looks free too
    if free.sum() >= 2 and 2 * len(distinct_values(rank[free])) > len(distinct_values(rank)):
        shown = max(0.0, min(most, float(np.median(gap[free] - rest))))
        return shown, shown
    return 0.0, most if most > _SLACK_NS and math.isfinite(most) else 0.0


def _spread(values: Floats) -> float:
    """Return the interquartile range."""
    low, high = np.nanquantile(values, (0.25, 0.75))
    return float(high - low)


def _varies(calls: _Place) -> bool:
    """Return whether the gaps vary from step to step on most ranks."""
    ranks = distinct_values(calls.rank).tolist()
    varying = 0
    for rank in ranks:
        rank_gaps = calls.gap[calls.rank == rank]
        varying += _spread(rank_gaps) > max(_LATER_NS, THRESHOLDS.host_spread_share * float(np.median(rank_gaps)))
    return 2 * varying > len(ranks)
