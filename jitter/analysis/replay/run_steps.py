"""The steps of a run one after another, as the replay and the account take them: all of them, or a range.

A step ends with its last aligning collective, else with its last main-stream kernel.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import isnan
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.collectives.matching import CollectiveArrays, RingArrivals
from jitter.analysis.execution.job_arrays import CarriedState, StateTracker, state_before
from jitter.analysis.execution.rank_clusters import find_reference_times
from jitter.analysis.execution.run_model import InferredModel, RunModel
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.self_times import OWN_PARTS, SelfTimes, baselines, follow_steps
from jitter.analysis.execution.step_times import StepTimes, cut_step
from jitter.analysis.replay.like_steps import LikeSteps
from jitter.analysis.replay.replay import Change, NodeTimes, no_shift, replay_steps
from jitter.analysis.replay.shared_work import at_usual_pace, parts_of_teams, work_of_operations
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.grouping import by_key
from jitter.core.memory import release_freed_memory
from jitter.core.names.kernels import ALIGNING_OPERATIONS, COLLECTIVE, MEMORY
from jitter.core.numeric.arrays import Bools, Floats, Ints, begins_of, joined
from jitter.core.numeric.compilation import compile_loops, compiled
from jitter.core.numeric.selection import select_median
from jitter.core.numeric.stats import lower_median, lower_medians_of_others, qn_sigma
from jitter.core.parallel.prefetch import map_ahead
from jitter.core.step_key import StepKey

_CELLS_AT_ONCE: Final = 1 << 14
"""Cells of steps that are gone through together."""


class StepEnds:
    """Finds the operation with which each rank's steps end."""

    def __init__(self, run: RunModel) -> None:
        self._aligning = _aligning_places(run)
        teams = sorted(run.programs)
        kernels = [[place for place, op in enumerate(run.programs[team].operations) if op.on_main] for team in teams]
        self._first_rank = begins_of(run.sizes[team] for team in teams)
        self._candidates = [
            (begins_of(map(len, places)), joined(np.array(team_places, np.int64) for team_places in places))
            for places in ([self._aligning[team] for team in teams], kernels)
        ]

    def aligning(self, team: int) -> Ints:
        """Return the places of collectives that the ranks of a team leave together."""
        return np.array(self._aligning[team], np.int64)

    def shared(self, team: int, end: Floats) -> Floats:
        """Return, (collectives, ranks), the ends of collectives that ranks of a team leave together, the last one last.

        Of ends (operations, ranks), NaN for what a rank lacks: of the collectives that all these ranks have.
        """
        ends = end[self._aligning[team]]
        ends = ends[~np.isnan(ends).any(axis=1)]
        return ends[np.argsort(np.median(ends, axis=1), kind="stable")] if ends.size else ends[:0]

    def cells(self, steps: StepTimes, count: int = 1) -> Ints:
        """Return, (steps × ranks of the run,), the cell of the operation with which each rank's step ends; -1: unknown.

        Of so many steps of the same ranks.
        """
        ranks = len(steps.row)
        end_cells, room = np.full(count * ranks, -1, np.int64), np.empty(ranks)
        for first, places in self._candidates:
            find_end_cells_of_steps(steps, count, self._first_rank, first, places, room, end_cells)
        return end_cells


@compiled
def find_end_cells_of_steps(
    steps: StepTimes, count: int, first_rank: Ints, first: Ints, places: Ints, room: Floats, end_cells: Ints
) -> None:
    """Fill in the cells of so many steps, (steps × ranks,): see `find_end_cells`."""
    ranks, cells = len(steps.row), len(steps.start) // count
    for at in range(count):
        of_step = end_cells[at * ranks : (at + 1) * ranks]
        find_end_cells(steps.row, cut_step(steps, at, cells).end, first_rank, first, places, room, of_step)


@compiled
def find_end_cells(
    row: Ints, end: Floats, first_rank: Ints, first: Ints, places: Ints, room: Floats, end_cells: Ints
) -> None:
    """Fill in the cells of the place that ends last of each team whose ranks have none yet.

    `first` (teams + 1,) is where each team's candidates begin in `places`, which ascend; `room` (ranks,) is
    overwritten.
    """
    for team in range(len(first_rank) - 1):
        is_open = False
        for rank in range(first_rank[team], first_rank[team + 1]):
            is_open = is_open or (row[rank] >= 0 and end_cells[rank] < 0)
        last = -1
        if is_open:
            last = find_last_place(
                row[first_rank[team] : first_rank[team + 1]], end, places[first[team] : first[team + 1]], room
            )
        for rank in range(first_rank[team], first_rank[team + 1]):
            if last >= 0 and row[rank] >= 0:
                end_cells[rank] = row[rank] + last


@compiled
def find_last_place(row: Ints, end: Floats, places: Ints, room: Floats) -> int:
    """Return the place whose median end over ranks is the latest, of equal ones the last; -1 if no rank has any."""
    # a place can only be last if its latest end is past every place's earliest
    least = -math.inf
    for at in range(len(places)):
        earliest = math.inf
        for rank in range(len(row)):
            if row[rank] >= 0 and end[row[rank] + places[at]] < earliest:
                earliest = end[row[rank] + places[at]]
        if earliest < math.inf:
            least = max(least, earliest)
    last, last_ns = -1, -math.inf
    for at in range(len(places)):
        count, latest = 0, -math.inf
        for rank in range(len(row)):
            if row[rank] >= 0 and not isnan(end[row[rank] + places[at]]):
                room[count] = end[row[rank] + places[at]]
                latest = max(latest, room[count])
                count += 1
        if count > 0 and latest >= least:
            median_ns = select_median(room, count)
            if median_ns >= last_ns:
                last, last_ns = places[at], median_ns
    return int(last)


def _aligning_places(run: RunModel) -> dict[int, list[int]]:
    """Return, by team, the places of collectives that the whole team leaves together."""
    matching, arrays = run.matching, run.collective_arrays
    blocks_of = by_key((team, block) for block, team in enumerate(matching.teams))
    places_of: dict[int, set[int]] = {team: set() for team in run.programs}
    for members in matching.members:
        for team, here in by_key((matching.teams[block], (block, place)) for block, place in members).items():
            groups = np.concatenate([arrays.groups_at(*member) for member in here])
            if {block for block, _ in here} != set(blocks_of[team]) or groups.min() != groups.max():
                continue
            for _, place in here:
                operation = run.programs[team].operations[place].collective
                if operation is None or operation in ALIGNING_OPERATIONS:
                    places_of[team].add(place)
    return {team: sorted(places) for team, places in places_of.items()}


class Transfers(NamedTuple):
    """A step's collectives, (groups of all collectives,) each."""

    took: Floats
    """From the last arrival to the end; NaN where no rank of the group was recorded."""
    complete: Bools
    """Whether this step of all its members was recorded."""
    mostly_complete: Bools
    """Whether it was of nearly all that are in the lake."""
    partial: Bools
    """Whether some ranks in the lake have it and others lack it: those may wait for these."""
    alone: Bools
    """Whether one of two stages has it, and the other one lacks it: which part of its time is waiting is unknown."""


@dataclass(frozen=True)
class RecordedSteps:
    """Steps of the same ranks that follow each other, in arrays of all of them: a large one alone, or small ones."""

    first: int
    """The number of the first one in the run."""
    keys: Sequence[StepKey]
    times: StepTimes
    """(steps × cells,) with the rows of each step."""
    self_times: SelfTimes
    """(steps × cells,)."""
    before: CarriedState
    """State of the ranks before each step, (steps, …)."""
    fresh: Bools
    """(steps, ranks of the run) whose step before is not known, or that have not this one."""
    collectives: CollectiveArrays
    end_cells: Ints
    """(steps, ranks of the run) the cell of the operation with which each rank's step ends; -1 if unknown."""

    def __len__(self) -> int:
        return len(self.keys)

    def by_step(self, cells: Floats) -> Floats:
        """Return, (steps, cells), what is (steps × cells,)."""
        return cells.reshape(len(self.keys), len(cells) // len(self.keys))

    def of_numbers(self, numbers: Collection[int]) -> Bools:
        """Return, (steps,), which of them have one of these numbers in the run."""
        return np.array([number in numbers for number in range(self.first, self.first + len(self))])

    @property
    def ends_ns(self) -> Floats:
        """(steps, ranks of the run) when each rank leaves the operation with which the step ends; NaN where unknown."""
        there = np.nonzero(self.end_cells >= 0)
        ends_ns = np.full(self.end_cells.shape, np.nan)
        ends_ns[there] = self.by_step(self.times.end)[there[0], self.end_cells[there]]
        return ends_ns

    @cached_property
    def in_collectives(self) -> Floats:
        """(steps, attendances)."""
        cells = cells_of(self.times, self.collectives)
        there, times_ns = cells >= 0, np.full((len(self), len(cells)), np.nan)
        end, start = (self.by_step(values)[:, cells[there]] for values in (self.times.end, self.times.start))
        times_ns[:, there] = end - start
        return times_ns

    @cached_property
    def transfers(self) -> Transfers:
        """(steps, groups of all collectives)."""
        return transfers_of(self.collectives, self.in_collectives)

    def part(self, low: int, high: int) -> "RecordedSteps":
        """Return some of the steps."""
        if low == 0 and high >= len(self):
            return self  # with what was computed
        team, row, *times = self.times
        part = RecordedSteps(
            self.first + low,
            self.keys[low:high],
            StepTimes(team, row, *(self.by_step(values)[low:high].ravel() for values in times)),
            SelfTimes(*(self.by_step(values)[low:high].ravel() for values in self.self_times)),
            CarriedState(*(values[low:high] for values in self.before)),
            self.fresh[low:high],
            self.collectives,
            self.end_cells[low:high],
        )
        # in place of what would be computed
        transfers = Transfers._make(values[low:high] for values in self.transfers)
        vars(part).update(in_collectives=self.in_collectives[low:high], transfers=transfers)
        return part


def cells_of(times: StepTimes, collectives: CollectiveArrays) -> Ints:
    """Return, (attendances,), where each lies in the step's arrays; -1 for ranks that have not the step."""
    row = times.row[collectives.rank]
    return np.where(row < 0, -1, row + collectives.place)


def transfers_of(collectives: CollectiveArrays, took: Floats) -> Transfers:
    """Measure each group: from the last arrival to the end, which is the shortest time since any arrival.

    `took` (steps, attendances) are the times in collectives.
    """
    members, since = np.diff(collectives.first_in_group), took[:, collectives.by_group] + collectives.lag
    least, absent = np.empty((len(took), len(members))), np.empty((len(took), len(members)), np.int64)
    find_least(collectives.first_in_group, since.ravel(), least.ravel(), absent.ravel())
    alone = (absent == 1) & (members == 2)
    if alone.any():
        pairs = np.flatnonzero(members == 2)
        attended = collectives.by_group[collectives.first_in_group[pairs, None] + np.arange(2)]
        alone[:, pairs] &= np.diff(collectives.block[collectives.rank[attended]]).any(axis=1)
    return Transfers(
        least,
        (absent == 0) & ~collectives.incomplete,
        absent <= THRESHOLDS.minor_share * members,
        (absent > 0) & (absent < members),
        alone,
    )


@compiled
def find_least(first: Ints, values: Floats, least: Floats, unknown: Ints) -> None:
    """Find the least known value of each part, NaN for none, and count the unknown ones.

    `first` (parts + 1,) is where the parts of some values begin; of each step's values, one after the other.
    """
    parts, size = len(first) - 1, first[-1]
    for number in range(len(least)):
        part, begin = number % parts, number // parts * size
        least[number], unknown[number] = math.nan, 0
        for at in range(begin + first[part], begin + first[part + 1]):
            if isnan(values[at]):
                unknown[number] += 1
            elif not values[at] >= least[number]:
                least[number] = values[at]


def measure_lags(rings: RingArrivals, times: StepTimes, collectives: CollectiveArrays) -> Floats:
    """Return, (arrivals,), how much later than the arriving rank a ring's rank leaves, by what they leave together."""
    end = np.append(times.end, np.nan)[cells_of(times, collectives)]
    end = np.append(end, np.nan)  # for places without another common collective
    ahead = np.sort(end[rings.of_owner] - end[rings.of_arriving], axis=1)  # NaN come last
    known_count = (~np.isnan(ahead)).sum(axis=1)
    clocks = np.take_along_axis(ahead, np.maximum(known_count - 1, 0)[:, None] // 2, axis=1)[:, 0]
    lag_ns = collectives.lag.copy()
    lag_ns[rings.at] = end[rings.owner] - end[collectives.by_group[rings.at]] - clocks
    return lag_ns


def join_steps(
    read: Iterable[tuple[int, StepTimes]], keys: Sequence[StepKey], first: int, most_cells: int
) -> Iterator[tuple[int, Sequence[StepKey], StepTimes]]:
    """Join steps of the same ranks that follow each other, as many as have so many cells; the `first` begins anew.

    Yields the number of the first of them in the run, their keys, and their times one after the other.
    """
    held: list[StepTimes] = []

    def joined_steps(after: int) -> tuple[int, Sequence[StepKey], StepTimes]:
        begin, (team, row, *times) = after - len(held), held[0]
        if len(held) > 1:
            times = list(map(np.concatenate, list(zip(*held, strict=True))[2:]))
        held.clear()
        return begin, keys[begin:after], StepTimes(team, row, *times)

    number = -1
    for number, times in read:
        follows = number != first and keys[number] == keys[number - 1]._replace(step=keys[number - 1].step + 1)
        if held and not (follows and np.array_equal(held[0].row, times.row)):
            yield joined_steps(number)
        held.append(times)
        is_full = (len(held) + 1) * len(times.start) > most_cells
        del times  # else it stays in memory until the next step is asked for
        if is_full:
            yield joined_steps(number + 1)
    if held:
        yield joined_steps(number + 1)


class LoneBaseline(NamedTuple):
    """The usual self times of a rank without peers in one step."""

    usual: Floats
    """(self times, operations), medians over like steps."""
    work: Floats
    """(operations,) the work of each on the GPU in the step, 1 for the usual one, as most teams show it."""
    is_usual: Bools
    """(parts of own time,) whether the rank's baseline is made of this step, too."""


@dataclass(frozen=True)
class Shared:
    """Facts of the whole run that every step's replay needs."""

    understood: InferredModel
    alone: Mapping[int, Mapping[int, LoneBaseline]]
    """By team of one rank, which has no peers, and number of a step."""


class RunSteps:
    """A run's steps; a process that computes a range of them is given what the whole run tells."""

    def __init__(self, lake: RunReader, shared: Shared | None = None) -> None:
        """Go through the steps that `lake` reads; `shared` is what another process inferred of the run."""
        compile_loops(lake.rows)
        self.lake = lake
        self.run = RunModel(lake, None if shared is None else shared.understood)
        self.alike = LikeSteps(self.run, lambda: self.baselines.gpu)
        self._kept: dict[int, RecordedSteps] = {}
        """Of a small run, by step, the steps that were gone through together."""
        self._aside: Sequence[int] = ()
        """Ranks that the baselines leave out."""
        if shared is not None:
            self.alone = shared.alone

    def with_model(self, understood: InferredModel) -> "RunSteps":
        """Return the same steps with other inferences."""
        run_steps = RunSteps(self.lake)
        run_steps.run, run_steps.alike = RunModel(self.lake, understood), self.alike
        return run_steps

    def leaving_aside(self, ranks: Sequence[int]) -> "RunSteps":
        """Return the same steps with baselines that leave out these ranks, as slow ones that are most of a team."""
        run_steps = copy(self)
        run_steps._aside = ranks
        for of_all_ranks in ("baselines", "_has_baseline"):
            vars(run_steps).pop(of_all_ranks, None)
        return run_steps

    @cached_property
    def baselines(self) -> SelfTimes:
        """(steps, operations of all teams) the medians of self times, as far as `find_baselines` was asked for them."""
        return SelfTimes(*np.full((len(SelfTimes._fields), len(self.run.keys), int(self.run.job.first[-1])), np.nan))

    @cached_property
    def _has_baseline(self) -> Bools:
        return np.zeros(len(self.run.keys), np.bool_)

    @property
    def known_baselines(self) -> SelfTimes | None:
        """The baselines of all steps; None where some are not known yet."""
        return self.baselines if self._has_baseline.all() else None

    def baseline(self, number: int) -> SelfTimes:
        """Return, (operations of all teams,), those of one step."""
        return SelfTimes(*(values[number] for values in self.baselines))

    def keep_baselines(self, first: int, known: SelfTimes) -> None:
        """Take the baselines of steps from the `first` on, (steps, operations of all teams)."""
        here = slice(first, first + len(known.gpu))
        for values, known_values in zip(self.baselines, known, strict=True):
            values[here] = known_values
        self._has_baseline[here] = True

    @cached_property
    def _lost(self) -> Floats:
        """(2, steps, ranks of the run) as in `lost_shares`; NaN where they are not known yet."""
        return np.full((2, len(self.run.keys), len(self.run.rank_numbers)), np.nan)

    @cached_property
    def ends(self) -> StepEnds:
        """Where the steps end; the first use infers what waits for what."""
        return StepEnds(self.run)

    def steps(self, first: int = 0, last: int | None = None, *, ahead: bool = True) -> Iterator[RecordedSteps]:
        """Go through steps from the `first` up to but not including the `last` (all); of a small run each is read once.

        With `ahead`, further steps are read while one is used.
        """
        for steps in self.stretches(first, last, ahead=ahead):
            yield from map(steps.part, range(len(steps)), range(1, len(steps) + 1))
            del steps  # else they stay in memory while the next ones are read

    def stretches(self, first: int = 0, last: int | None = None, *, ahead: bool = True) -> Iterator[RecordedSteps]:
        """Go through the same steps, small ones of the same ranks together."""
        after = len(self.run.keys) if last is None else last
        if all(number in self._kept for number in range(first, after)):
            return self._of_kept(first, after)
        release_freed_memory()  # what the pass before has left in pieces; each step reuses the memory of the one before
        return self._steps(first, after, self.ahead if ahead else 0)

    @contextmanager
    def keeping(self, first: int, last: int) -> Iterator[None]:
        """Keep some steps in memory in the block, if it has room for several: passes over them alone follow."""
        new = dict[int, RecordedSteps]()
        for steps in self.stretches(first, last) if self.ahead else ():
            new |= dict.fromkeys(range(steps.first, steps.first + len(steps)), steps)
        new = {number: steps for number, steps in new.items() if number not in self._kept}
        self._kept |= new
        try:
            yield
        finally:
            for number in new:
                del self._kept[number]

    def _of_kept(self, first: int, after: int) -> Iterator[RecordedSteps]:
        while first < after:
            kept = self._kept[first]
            yield kept.part(first - kept.first, after - kept.first)
            first = kept.first + len(kept)

    def _steps(self, first: int, last: int, ahead: int) -> Iterator[RecordedSteps]:
        """Read these steps, and before them the steps that can delay them."""
        run, tracker = self.run, StateTracker(state_before(self.run.job))
        numbers = range(max(0, first - run.remembered), last)
        are_apart = len(run.ring_arrivals.at) > 0 or not run.has_consecutive_steps
        read = map_ahead(lambda at: (at, run.step_times(run.keys[at])), numbers, ahead)
        for number, keys, times in join_steps(read, run.keys, first, 0 if are_apart else _CELLS_AT_ONCE):
            fresh = tracker.enter(keys, times.row >= 0)
            if not run.has_consecutive_steps:
                self._begin_at_markers(keys[0], times, tracker.state)
            self_times, before = follow_steps(run.job, times, tracker.state, len(keys))
            yielded = []
            if number >= first:
                ends = self.ends.cells(times, len(keys)).reshape(fresh.shape)
                collectives = run.collective_arrays
                if len(run.ring_arrivals.at):
                    collectives = collectives._replace(lag=measure_lags(run.ring_arrivals, times, collectives))
                steps = RecordedSteps(number, keys, times, self_times, before, fresh, collectives, ends)
                if not run.has_consecutive_steps:
                    steps = self._begin_together(steps)
                if self.lake.is_small:
                    self._kept |= dict.fromkeys(range(number, number + len(keys)), steps)
                yielded.append(steps)
                del steps
            del times, self_times, before  # else they stay in memory until the next step is asked for
            if yielded:
                yield yielded.pop()

    def _begin_at_markers(self, key: StepKey, times: StepTimes, state: CarriedState) -> None:
        """Let each rank begin with its step marker: the host time before its first launch is its own."""
        job = self.run.job
        for rank, begin_ns in enumerate(self.run.beginnings(key).tolist()):
            if times.row[rank] < 0 or np.isnan(begin_ns):
                continue
            operations, cells = job.slices(times, rank)
            called = np.flatnonzero(~np.isnan(times.call[cells]))
            if len(called) and times.call[cells][called[0]] >= begin_ns:
                state.back[rank, job.thread[operations][called[0]]] = begin_ns

    def _begin_together(self, step: RecordedSteps) -> RecordedSteps:
        """Return the step as if the ranks of a team came to it together, with the last one.

        Why that one comes late lies before the recording: it must neither cost time nor hide ranks that are late
        themselves. Clocks agree at the last collective that the team leaves together. Ranks without step markers begin
        as recorded, and so do all whose GPUs, or hosts, begin soon after each other, as they do after a step before.
        """
        job, times, later_ns = self.run.job, step.times, np.zeros(len(step.times.row))
        begun = np.fmin.reduce(step.before.back[0], axis=1)
        for team in self.run.programs:
            here, size = np.flatnonzero((times.team == team) & (times.row >= 0)), int(np.diff(job.first)[team])
            cells = times.row[here] + np.arange(size)[:, None]
            shared, busy = self.ends.shared(team, times.end[cells]), np.fmin.reduce(times.start[cells], axis=0)
            if len(shared) and not np.isnan(begun[here] + busy).any():
                ahead_ns, busy_ns = shared[-1] - begun[here], shared[-1] - busy
                if min(np.ptp(ahead_ns), np.ptp(busy_ns)) >= THRESHOLDS.min_clear_share * np.median(busy_ns):
                    later_ns[here] = ahead_ns - ahead_ns.min()
        if not later_ns.any():
            return step
        step = replace(step, before=step.before._replace(back=step.before.back + later_ns[:, None]))
        took, nodes = step.transfers.took, NodeTimes(*np.empty((4, len(times.start))))
        as_recorded = Change(np.zeros((1, len(OWN_PARTS), len(later_ns)), np.bool_), took, np.zeros_like(took))
        no_baseline, shift = (
            SelfTimes(*np.zeros((len(SelfTimes._fields), 1, int(job.first[-1])))),
            no_shift(len(later_ns)),
        )
        order, state = self.run.schedule.array(), state_before(job)
        replay_steps(job, order, step, no_baseline, as_recorded, state, shift, nodes)
        moved = times._replace(
            start=np.where(np.isnan(times.start), np.nan, nodes.start),
            end=np.where(np.isnan(times.end), np.nan, nodes.end),
            call=times.call + nodes.back - times.back,
            back=times.back + nodes.back - times.back,
        )
        return replace(step, times=moved)

    def prepare(self) -> Shared:
        """Infer what the whole run tells: so several threads, or workers, may go through the steps."""
        self.run.prepare()
        for of_all_steps in ("baselines", "_has_baseline", "_lost"):
            getattr(self, of_all_steps)
        return Shared(self.run.understood, self.alone)

    @property
    def ahead(self) -> int:
        """How many steps are read on threads while one is used, and how many are computed."""
        return self.run.ahead // 2

    def lost_shares(self, steps: RecordedSteps) -> Floats:
        """(2, steps, ranks of the run) the shares of each step's kernels, and of their launches, that were lost."""
        lost = self._lost[:, steps.first : steps.first + len(steps)]
        if np.isnan(lost).any():
            counts = self.lake.kernel_counts(self.run.rank_numbers.tolist(), steps.keys)
            lost[1] = 0.0
            lost[0] = np.nan_to_num(counts.lost / np.maximum(counts.lost + counts.recorded, 1.0))
            has_launches = self.run.job.has_launches[steps.times.team]
            for at, key in enumerate(steps.keys):
                for group in self.lake.rank_groups(key, with_times=False):
                    if group.unlaunched.any():
                        here = np.array([self.run.number_of.get(rank, -1) for rank in group.ranks.tolist()], np.int64)
                        kernels = int(np.count_nonzero(group.kind[group.row >= 0] < MEMORY))
                        shares = group.unlaunched[here >= 0] / max(kernels, 1)
                        here = here[here >= 0]  # some may have no complete step
                        lost[1, at, here] = shares * has_launches[here]
        return lost

    def find_baselines(self, steps: RecordedSteps) -> SelfTimes:
        """Return the medians of self times over each team's ranks, (steps, operations of all teams).

        Of a lone rank those over its like steps.
        """
        here = slice(steps.first, steps.first + len(steps))
        if not self._has_baseline[here].all():
            job, times = self.run.job, steps.times
            if self._aside:
                times = times._replace(row=np.where(np.isin(self.run.rank_numbers, self._aside), -1, times.row))
            lost = self.lost_shares(steps).max(axis=0)
            medians = baselines(job, times, steps.self_times, lost, self.run.alternatives)
            for team, of_steps in self.alone.items():
                operations = job.operations(team)
                for at in range(len(steps)):
                    if (lone := of_steps.get(steps.first + at)) is not None:
                        for values, usual in zip(medians, lone.usual, strict=True):
                            values[at, operations] = usual
                        # whole ns, as all times
                        medians.gpu[at, operations] = np.rint(medians.gpu[at, operations] * lone.work)
            self.keep_baselines(steps.first, medians)
        return SelfTimes(*(values[here] for values in self.baselines))

    @cached_property
    def alone(self) -> Mapping[int, Mapping[int, LoneBaseline]]:
        """By team of one rank, and number of a step, its baseline of like steps."""
        job = self.run.job
        lone = {team: job.operations(team) for team, size in self.run.sizes.items() if size == 1}
        if not lone:
            return {}
        medians = dict[int, SelfTimes]()
        for steps in self.stretches():
            lone_times = baselines(job, steps.times, steps.self_times, self.lost_shares(steps).max(axis=0))
            medians |= {
                steps.first + at: SelfTimes(*of_step) for at, of_step in enumerate(zip(*lone_times, strict=True))
            }
            del steps  # else they stay in memory while the next ones are read
        work = self._work_of_lone(lone, medians)
        of_teams = {team: self._like_times(here, medians, work[team]) for team, here in lone.items()}
        spread = np.stack([_spread_of_pace(of_sizes) for of_sizes in of_teams.values()], axis=1)
        return {
            team: dict(chain.from_iterable(like.baselines(of_others) for like in of_sizes))
            for (team, of_sizes), of_others in zip(
                of_teams.items(), np.nan_to_num(lower_medians_of_others(spread)).T, strict=True
            )
        }

    def _work_of_lone(
        self, lone: Mapping[int, slice], medians: Mapping[int, SelfTimes]
    ) -> dict[int, dict[int, Floats]]:
        """Return the work of operations by team of one rank, and step; `lone` says where a team's operations lie."""
        job, work = self.run.job, {team: dict[int, Floats]() for team in lone}
        labels = [operation.name for operation in self.run.operations]
        names = np.unique(labels, return_inverse=True)[1].astype(np.int64)
        between_collectives = np.cumsum(job.kind == COLLECTIVE)
        for alike in self.alike.by_known_size:
            if numbers := [number for number in alike.tolist() if number in medians]:
                gpu_ns = np.array([medians[number].gpu for number in numbers])
                is_absent = np.isnan(gpu_ns)
                size, gpu_ns = at_usual_pace(job.first, gpu_ns)
                parts = parts_of_teams(job.first, between_collectives, names, gpu_ns)
                for team, here in lone.items():
                    of_steps = np.broadcast_to(size[:, None], gpu_ns[:, here].shape)
                    if len(numbers) >= THRESHOLDS.min_steps:  # fewer do not tell which times vary alike
                        of_steps = work_of_operations(team, gpu_ns[:, here], names[here], size, parts)
                    there = np.flatnonzero(~is_absent[:, here].all(axis=1)).tolist()
                    work[team] |= {numbers[at]: of_steps[at] for at in there}
        return work

    def _like_times(
        self, here: slice, medians: Mapping[int, SelfTimes], work: Mapping[int, Floats]
    ) -> list["_LikeTimes"]:
        """Return a lone rank's times in its like steps; `here` are its operations in `medians` over ranks."""
        total_ns = {number: float(np.nansum(medians[number].gpu[here])) for number in work}
        like = list[_LikeTimes]()
        for alike in self.alike.of_lone_rank(total_ns):
            if not (numbers := [number for number in alike.tolist() if number in work]):
                continue
            of_steps = np.stack([work[number] for number in numbers])
            of_kinds = zip(*(medians[number] for number in numbers), strict=True)
            times = SelfTimes(*(np.stack([values[here] for values in of_kind], axis=1) for of_kind in of_kinds))
            np.divide(times.gpu, of_steps.T, out=times.gpu)
            like.append(_LikeTimes(numbers, times, of_steps))
        return like


class _LikeTimes(NamedTuple):
    """A lone rank's times in steps that should take as long."""

    numbers: list[int]
    """(steps,) of the run."""
    times: SelfTimes
    """(operations, steps), those of the GPU ÷ work."""
    work: Floats
    """(steps, operations) what each does on the GPU, as a ratio."""

    def paces_ns(self) -> Floats:
        """(host and GPU, steps) the whole time for the usual work."""
        host, call, _, delay, gpu = (np.nansum(values, axis=0) for values in self.times)
        return np.stack([host + call, gpu + delay])

    def baselines(self, spread: Floats) -> Iterator[tuple[int, LoneBaseline]]:
        """Yield each step's: the medians over the steps that tell what is usual of a host, and of a GPU.

        `spread` (host and GPU,) is how the paces of other ranks scatter, as a share; 0 where unknown.
        """
        paces_ns = self.paces_ns()
        sigmas = (spread * np.median(paces_ns, axis=1)).tolist()
        # where other ranks tell which batches are smaller, two steps tell
        host, gpu = (
            find_reference_times(pace_ns, sigma, 0.0 if sigma else THRESHOLDS.minor_share)
            for pace_ns, sigma in zip(paces_ns, sigmas, strict=True)
        )
        known = zip(self.times, (host, host, host, gpu, gpu), strict=True)
        usual = np.concatenate([lower_median(values[:, these]).T for values, these in known])
        for number, work, is_usual in zip(self.numbers, self.work, np.stack([host, host, gpu], axis=1), strict=True):
            yield number, LoneBaseline(usual, work, is_usual)


def _spread_of_pace(of_sizes: Sequence[_LikeTimes]) -> Floats:
    """Return, (host and GPU,), how the pace of a lone rank scatters over like steps, as a share; NaN without any."""
    shares = [qn_sigma(pace.T) / np.median(pace, axis=1).clip(1.0) for pace in (like.paces_ns() for like in of_sizes)]
    spread: Floats = np.median(shares, axis=0) if shares else np.full(2, np.nan)
    return spread
