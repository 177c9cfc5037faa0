"""The account of each step in turn: the replay with the baseline, and what the difference is owed to."""

import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import isnan
from mmap import MADV_DONTNEED, mmap
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.account.graph import Heads, Inputs, Setting, StepGraph, Structure, find_heads
from jitter.analysis.account.losses import OWN_CLASSES, LossClass, Losses
from jitter.analysis.account.noise import Noise, loss_of_stretches
from jitter.analysis.account.shares import (
    SUBSETS_BESIDE,
    BackwardPass,
    Beside,
    Multipliers,
    Shares,
    Stretches,
    follow_queue,
    known,
    share_step,
)
from jitter.analysis.execution.job_arrays import (
    CarriedState,
    JobArrays,
    follow_call_alone,
    follow_stream_alone,
    launches_before,
    places_before,
    state_before,
)
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.schedule import CALLS
from jitter.analysis.execution.self_times import SelfTimes, TimePart, cut_self_times
from jitter.analysis.execution.step_times import StepTimes
from jitter.analysis.replay.replay import Change, NodeTimes, no_shift, replay_steps
from jitter.analysis.replay.run_steps import RecordedSteps
from jitter.analysis.replay.what_if import possible_waits, repaired_transfers
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.memory import release_freed_memory
from jitter.core.names.kernels import SYNC
from jitter.core.numeric.arrays import Bools, Floats, Ints, joined
from jitter.core.numeric.compilation import compiled
from jitter.core.numeric.selection import later

_LIMITS: Final = THRESHOLDS.account
_OWN_ROW_NS: Final = THRESHOLDS.rounding_ns
_CLASSES: Final = (*OWN_CLASSES, LossClass.OVERLAP)
"""Classes of a rank with places."""
_, _, _, GPU, TRANSFER, OVERLAP, CARRIED, UNEXPLAINED = (int(one) for one in LossClass)
"""For compiled loops, which know no enums."""


@dataclass(frozen=True)
class StepAccount:
    """The account of one step."""

    number: int
    """In the run."""
    loss_ns: float
    """How much earlier it would end after the step before with the baseline; NaN where no rank's end is known."""
    losses: Losses
    """They add up to the loss. Empty where that is unknown."""
    largest: Losses
    """All shares of own time of the rank to which most is lost, the small ones too; empty where none loses any."""
    groups: Ints
    """Numbers, of all groups of all collectives, of those that the step's end owes its time to."""
    passed: Floats
    """(groups,) how much later the step ends for each ns that a group ends later: about 1 if all waits for it."""
    noise_ns: float
    """What the step loses if every operation varies by itself, as far as its noise is known."""


@dataclass(frozen=True)
class ComparedStep:
    """A step in both settings."""

    number: int
    """In the run."""
    fresh: Bools
    """(ranks,) whose step before is not known, or that have not this one."""
    graph: StepGraph
    last: Ints
    """(ranks,) the operation with which the step ends for each; -1 where it is unknown."""
    ends: Ints
    """Numbers of the ranks whose ends are known in both settings."""
    shift: float
    """How much later than with the baseline the step ends, ns."""
    room: "_Room | None"
    """None if the graph lies in a file."""
    pages: mmap | None = None
    """Of that file."""

    def release_pages(self) -> None:
        """Give the memory back that holds parts of the file."""
        if self.pages is not None:
            self.pages.madvise(MADV_DONTNEED)


class Listing(NamedTuple):
    """What the rows of a run's account need of it: the graph's few arrays of that, as each one costs time to pass."""

    first: Ints
    first_kernel: Ints
    last_launch: Ints
    rank: Ints
    first_group: Ints


class GraphShares(NamedTuple):
    """Shares of a step's loss that lie in it, or in one step before it."""

    number: int
    """In the run, of the step in which they lie."""
    listing: Listing
    step: StepTimes
    self_times: SelfTimes
    baseline: SelfTimes
    excess: Floats
    """(groups of all collectives,) of the transfers."""
    last_listed: Ints
    """(ranks,) the last operation whose time above the baseline stands in another step's rows; -1 for none."""
    touched: Bools
    """(ranks,) which have shares."""
    shares: Shares
    carried: Floats
    """(ranks,) what is owed to how the ranks came to it, as far as no step before it has that."""


class LossRows(NamedTuple):
    """Room for the rows of a step's account."""

    numbers: Ints
    """(7, rows) as in `Losses`."""
    ns: Floats
    """(2, rows)."""
    of_rank: Floats
    """(ranks,) what is lost to each; NaN of ranks without a row."""


class _Room(NamedTuple):
    """Arrays of a compared step, which later steps use again."""

    upper: NodeTimes
    """Without starts, which are the step's."""
    lower: NodeTimes
    heads: Heads
    inputs: Inputs


class Account:
    """Keeps the account of a run; give it every step in order.

    One thread may compare a step while another one divides the loss of the step before.
    """

    def __init__(
        self,
        run: RunModel,
        usual: Sequence[Floats],
        noise: Sequence[Noise],
        own_row_ns: float = _OWN_ROW_NS,
        *,
        is_spilled: bool = False,
    ) -> None:
        """Begin the account.

        Args:
            run: the run.
            usual: the transfers' baselines of each step, (groups of all collectives,).
            noise: that of each step.
            own_row_ns: a smaller share of a rank and class has no row of its own.
            is_spilled: whether compared steps lie in temporary files, and the times of a given step are overwritten.

        """
        job, collectives = run.job, run.collective_arrays
        self._run, self._usual, self._noise = run, usual, noise
        self._structure = _structure(run)
        self._state = state_before(job)
        waits = int(np.diff(job.first_wait).max(initial=0)) + int(np.diff(job.first_host_wait).max(initial=0))
        first_group, structure = collectives.first_group, self._structure
        self._listing = Listing(job.first, job.first_kernel, structure.last_launch, structure.rank, first_group)
        self._most_inputs = max(int(np.diff(collectives.first_in_group).max(initial=0)), 3 + waits)
        operations = int(np.diff(job.first).max(initial=0))
        self._beside = Beside(np.empty(operations), np.empty(operations), np.empty(SUBSETS_BESIDE))
        self._shift = no_shift(len(run.rank_numbers))
        """How much later than with the baseline the step before ends."""
        cells = int(np.diff(job.first) @ np.diff(job.first_rank))
        self._past = deque[ComparedStep](
            maxlen=max(1, min(THRESHOLDS.most_in_flight, _LIMITS.cells_kept // max(cells, 1)))
        )
        """The steps before, the latest last: what a step's ranks come with was lost in them."""
        self._free_rooms = deque[_Room]()
        """Of steps that are no longer kept."""
        self._own_row_ns, self._is_spilled = own_row_ns, is_spilled
        self._rows = _loss_rows(1024, len(run.rank_numbers))
        self._multiplier: Multipliers | None = None
        self._shares: dict[int, Shares] = {}

    def step(self, step: RecordedSteps, baseline: SelfTimes) -> StepAccount:
        """Return the account of one step; `baseline` (1, operations of all teams) are its medians."""
        (compared,) = self.compare(step, baseline)
        return self.divide(compared)

    def divide(self, now: ComparedStep) -> StepAccount:
        """Divide a step's loss; give it every step in order."""
        if not len(now.ends):
            self._keep(now)
            none = np.empty(0, np.int64)
            nothing = _losses(self._rows, 0)
            return StepAccount(now.number, np.nan, nothing, nothing, none, np.empty(0), 0.0)
        if now.pages is not None:
            release_freed_memory()  # it held the step
        noise = self._noise[now.number]
        stretches = Stretches(noise.variance, noise.bias, *np.zeros((4, len(self._structure.group) + 1)))
        shared = self._share(now, stretches)
        losses = self._list_losses(shared)
        passed = shared[0].shares.passed
        groups, largest = np.flatnonzero(passed), self._of_largest(shared)
        self._keep(now)
        return StepAccount(
            now.number,
            now.shift - now.graph.shift,
            losses,
            largest,
            groups,
            passed[groups],
            loss_of_stretches(stretches, len(self._run.team_of)),
        )

    def _keep(self, now: ComparedStep) -> None:
        """Keep a step as one before the next, in place of the earliest one."""
        if len(self._past) == self._past.maxlen and (room := self._past[0].room) is not None:
            self._free_rooms.append(room)
        self._past.append(now)
        if self._is_spilled:
            now.release_pages()
            self._multiplier, self._shares = None, {}

    def compare(self, steps: RecordedSteps, baseline: SelfTimes) -> list[ComparedStep]:
        """Find the times of steps in both settings; `baseline` (steps, operations of all teams) are their medians."""
        count, size, job = len(steps), len(steps.times.start) // len(steps), self._run.job
        usual = np.stack(self._usual[steps.first : steps.first + count])
        transfer = repaired_transfers(steps, usual)
        repaired = np.ones((count, len(TimePart) - 1, len(self._run.rank_numbers)), np.bool_)
        change = Change(repaired, transfer, possible_waits(steps, transfer, usual))
        rooms = [self._free_room(size) for _ in range(count)]
        nodes = rooms[0].lower if count == 1 else NodeTimes(*np.empty((4, count * size)))
        of_run = self._state, self._shift, nodes
        replayed = replay_steps(job, self._structure.instructions, steps, baseline, change, *of_run)
        stream_end, back, pending = steps.before
        is_fresh = steps.fresh[:, :, None]
        before = CarriedState(np.where(is_fresh, np.nan, stream_end), back, np.where(is_fresh, -np.inf, pending))
        compared = []
        for at, room in enumerate(rooms):
            step, low, high = steps.part(at, at + 1), at * size, (at + 1) * size
            own = NodeTimes(*(values[low:high] for values in nodes))
            came, usual_came = (CarriedState(*(values[at] for values in state)) for state in (before, replayed.before))
            lower = self._setting(step.times, own, usual_came, transfer[at])
            medians, ends = SelfTimes(*(values[at] for values in baseline)), np.flatnonzero(replayed.is_known[at])
            shifts = float(replayed.entered_ns[at]), float(replayed.left_ns[at])
            compared.append(self._compared(step, medians, came, lower, ends, shifts, room))
        return compared

    def _free_room(self, size: int) -> "_Room":
        """Return room for a step of so many cells: that of one that is no longer kept, if there is any."""
        room = self._free_rooms.popleft() if self._free_rooms else None
        if room is not None and len(room.upper.free) == size:
            return room
        return _room(size, 0 if self._is_spilled else size, len(self._structure.group), self._most_inputs)

    def _compared(
        self,
        step: RecordedSteps,
        baseline: SelfTimes,
        before: CarriedState,
        lower: Setting,
        ends: Ints,
        shifts: tuple[float, float],
        room: "_Room",
    ) -> ComparedStep:
        """Return a step in both settings, given the lower one, and how the ranks came to it as recorded.

        `ends` is as in `ComparedStep`; `shifts` are how much later the ranks come to it, and how much later it ends.
        """
        nodes = room.upper._replace(start=step.times.start)
        if self._is_spilled:
            nodes = nodes._replace(end=step.times.end, back=step.times.back)
        find_recorded_nodes(self._run.job, step.times, before.copy(), nodes)
        upper = self._setting(step.times, nodes, before, step.transfers.took[0])
        # the nodes say the same of ends and returns, for longer than the recorded ones are kept
        times = step.times._replace(end=nodes.end, back=nodes.back)
        graph = StepGraph(
            self._run.job,
            self._structure,
            step.collectives,
            times,
            step.self_times,
            baseline,
            upper,
            lower,
            shifts[0],
            room.heads,
            room.inputs,
        )
        room.heads.parent.fill(-1)
        room.heads.moved.fill(np.nan)
        find_heads(graph, *(np.full(ends.shape, -1, np.int64) for ends in (before.back, before.stream_end)))
        cells = step.end_cells[0]
        last = np.where(cells >= 0, cells - step.times.row, -1)
        compared = ComparedStep(step.first, step.fresh[0], graph, last, ends, shifts[1], room)
        if self._is_spilled:
            with suppress(OSError):  # a full disk: the step stays in memory
                graph, pages = graph.in_file()
                compared = replace(compared, graph=graph, room=None, pages=pages)
        return compared

    def _setting(self, times: StepTimes, nodes: NodeTimes, before: CarriedState, transfer: Floats) -> Setting:
        """Return a step in a setting, with when launches had a place in the queue."""
        job = self._run.job
        if not job.queue.any():
            return Setting(nodes, before, transfer, np.empty(0), np.empty(0, np.int64))
        slot, holder = np.full(len(times.start), np.nan), np.full(len(times.start), -1, np.int64)
        pending, holders = before.pending.copy(), np.empty(before.pending.shape[1], np.int64)
        for rank in np.flatnonzero((times.row >= 0) & (job.queue[times.team] > 0)).tolist():
            follow_queue(job, times, rank, nodes, pending, holders, slot, holder)
        return Setting(nodes, before, transfer, slot, holder)

    def _share(self, now: ComparedStep, stretches: Stretches) -> list[GraphShares]:
        """Return the shares that lie in the step, and those that lie in each step before it, the latest first.

        The step ends later than the one before: the pass begins with a multiplier of 1 at its end and of -1 at the end
        of the step before, from which the step's maxima are measured. What comes to a step that is no longer kept is
        carried, as are ranks' sums below that of a row in the steps before the last.
        """
        multiplier, shares = self._cleared(now.graph, 0)
        _seed_end(now, 1.0, multiplier)
        cells = now.graph.step.row[now.ends] + now.last[now.ends]
        for weight in (stretches.reached, stretches.entered):
            np.add.at(weight, now.graph.heads.end[cells] + 1, 1 / len(now.ends))
        shared: list[GraphShares] = []
        current, last_listed = now, np.full(len(self._run.rank_numbers), -1, np.int64)
        for earlier in (*reversed(self._past), None):
            passed = stretches if current is now else stretches.cleared()
            backward = BackwardPass(current.last, multiplier, shares, self._beside, passed)
            instructions = len(self._structure.instructions)
            size = instructions if current.pages is None else -(-instructions // _LIMITS.pieces_of_file)
            for last in range(instructions, 0, -max(size, 1)):
                share_step(current.graph, backward, max(last - size, 0), last)
                current.release_pages()
            if len(shared) == 1:
                # what follows the last collective of the step before leads to the first one of this step
                stretches.varied[0] += max(passed.varied.sum(), 0.0)
                stretches.biased[0] += max(passed.biased.sum(), 0.0)
            touched, back = multiplier.touched.copy(), multiplier.back.copy()
            ended = multiplier.left + multiplier.stream
            carried, graph = _carried(current.graph, ended, back), current.graph
            excess = graph.upper.transfer - graph.lower.transfer
            times = graph.step, graph.self_times, graph.baseline, excess
            listed = partial(GraphShares, current.number, self._listing, *times, last_listed, touched, shares)
            least_ns = 0.0 if current is now else self._own_row_ns
            if earlier is None or not np.abs(carried).max() > least_ns:
                shared.append(listed(carried))
                break
            there, upper, lower = earlier.graph.step.row >= 0, current.graph.upper.before, current.graph.lower.before
            handed = [
                np.where((there & ~current.fresh)[:, None] & ~np.isnan(known), whole, 0.0)
                for whole, known in ((ended, upper.stream_end - lower.stream_end), (back, upper.back - lower.back))
            ]
            carried -= _carried(current.graph, *handed)
            shared.append(listed(carried))
            every = np.full(len(last_listed), np.iinfo(np.int64).max - 1)
            last_listed = np.where(earlier.last >= 0, earlier.last, every) if current is now else every
            current = earlier
            multiplier, shares = self._cleared(current.graph, len(shared))
            multiplier.stream[:], multiplier.back[:] = handed
            self._seed_carried(current.graph.step, multiplier)
            multiplier.touched[:] |= multiplier.stream.any(axis=1) | multiplier.back.any(axis=1)
            _seed_end(current, -float(sum(values.sum() for values in handed)), multiplier)
        return shared

    def _seed_carried(self, times: StepTimes, multiplier: Multipliers) -> None:
        """Hand what a step awaits of operations of the step before, whose `times` they are, to their ends."""
        job = self._run.job
        for team in range(len(job.launch_ns)):
            here = np.flatnonzero((times.team == team) & (times.row >= 0))
            for at in range(int(job.first_carried[team]), int(job.first_carried[team + 1])):
                column = int(job.carried_column[at])
                whole = multiplier.stream[here, column].copy()
                multiplier.stream[here, column] = 0.0
                if job.carried_steps[at] > 1:
                    multiplier.left[here, column - 1] += whole
                else:
                    multiplier.end[times.row[here] + job.carried_place[at]] += whole
                multiplier.touched[here] |= whole != 0

    def _list_losses(self, shared: list[GraphShares]) -> Losses:
        """Return the rows of a step; afterwards `_rows` has what is lost to each rank."""
        ranks = len(self._run.rank_numbers)
        while True:
            self._rows.of_rank.fill(np.nan)
            count = 0
            for of_step in shared:
                sums, excess = np.zeros((2, ranks, len(_CLASSES)))
                count = list_losses(of_step, self._own_row_ns, sums, excess, count, self._rows)
            if count <= self._rows.ns.shape[1]:
                return _losses(self._rows, count)
            self._rows = _loss_rows(2 * count, ranks)

    def _of_largest(self, shared: list[GraphShares]) -> Losses:
        """Return all shares of own time of the rank to which most is lost, in the order of its program."""
        of_rank, ranks, count = self._rows.of_rank, self._run.rank_numbers, 0
        most = of_rank[~np.isnan(of_rank)].max(initial=0.0)
        if most > 0:
            largest = np.flatnonzero(of_rank == most)
            rank = int(largest[ranks[largest].argmin()])
            room = 3 * sum(len(of_step.baseline.gpu) for of_step in shared)
            if room > self._rows.ns.shape[1]:
                self._rows = _loss_rows(room, len(of_rank))
            (sums, excess), every = np.zeros((2, len(of_rank), len(_CLASSES))), np.full(len(of_rank), -1)
            for of_step in reversed(shared):
                of_all = of_step._replace(last_listed=every)
                count = list_own_shares(of_all, rank, rank + 1, 0.0, sums, excess, count, self._rows)
        return _losses(self._rows, count).of(OWN_CLASSES)

    def _cleared(self, graph: StepGraph, slot: int) -> tuple[Multipliers, Shares]:
        """Return multipliers and shares of a step, all 0; the arrays of the same step size are used again.

        `slot` of the two shares that are kept. The multipliers are the same ones each time.
        """
        cells, ranks = len(graph.step.start), len(graph.step.row)
        if self._multiplier is None or len(self._multiplier.end) != cells:
            ends, threads = self._state.stream_end.shape[1], self._state.back.shape[1]
            self._multiplier = Multipliers(
                end=np.empty(cells),
                start=np.empty(cells),
                stream=np.empty((ranks, ends)),
                left=np.empty((ranks, ends)),
                back=np.empty((ranks, threads)),
                held=np.empty(cells if (graph.structure.instructions[:, 3] == CALLS).any() else 0),
                launch=np.empty((ranks, ends)),
                group=np.empty(int(graph.collectives.first_group[-1])),
                touched=np.empty(ranks, np.bool_),
            )
        if slot not in self._shares or len(self._shares[slot].host) != cells:
            groups = len(self._multiplier.group)
            self._shares[slot] = Shares(
                host=np.empty(cells),
                gpu=np.empty(cells),
                overlap=np.empty(cells if self._run.job.interference.any() else 0),
                transfer=np.empty(groups),
                passed=np.empty(groups),
                carried=np.empty(ranks),
                unexplained=np.empty(ranks),
            )
        for values in (*self._multiplier, *self._shares[slot]):
            values.fill(0)
        return self._multiplier, self._shares[slot]


def _seed_end(compared: ComparedStep, whole: float, multiplier: Multipliers) -> None:
    """Give a step's end, the mean over ranks, a multiplier."""
    if len(compared.ends):
        cells = compared.graph.step.row[compared.ends] + compared.last[compared.ends]
        multiplier.end[cells] += whole / len(compared.ends)
        multiplier.touched[compared.ends] = True


def _carried(graph: StepGraph, ends: Floats, back: Floats) -> Floats:
    """Return, (ranks,), what a step owes to how its ranks came to it, for the multipliers of its carried state."""
    upper, lower = graph.upper.before, graph.lower.before
    owed = np.zeros(len(ends))
    for whole, values, usual in ((ends, upper.stream_end, lower.stream_end), (back, upper.back, lower.back)):
        if whole.any():
            owed += np.where(whole != 0, whole * (values - usual - graph.shift), 0.0).sum(axis=1)
    owed[np.isnan(owed)] = 0.0
    return owed


@compiled
def list_losses(of_step: GraphShares, least_ns: float, sums: Floats, excess: Floats, count: int, rows: LossRows) -> int:
    """List the shares that lie in a step; return how many rows there are with `count` before.

    Shares of a rank and class below `least_ns` are one row. `rows` are filled as far as they have room. `sums` and
    `excess` (ranks, classes), 0 at first, are overwritten.
    """
    count = list_own_shares(of_step, 0, len(of_step.touched), least_ns, sums, excess, count, rows)
    number, step, shares = of_step.number, of_step.step, of_step.shares
    ranks, first_group = of_step.listing.rank, of_step.listing.first_group
    for rank in range(len(step.row)):
        for position in range(sums.shape[1]):
            share, above = sums[rank, position], excess[rank, position]
            if share != 0 or above != 0:
                loss_class = position if position <= GPU else OVERLAP
                add_row(rows, count, number, ranks[rank], step.team[rank], loss_class, -1, share, above)
                add_to_rank(rows.of_rank, rank, share)
                count += 1
    collective = 0
    for group in range(len(shares.transfer)):
        share = shares.transfer[group]
        if share != 0:
            while first_group[collective + 1] <= group:
                collective += 1
            add_row(rows, count, number, -1, -1, TRANSFER, -1, share, of_step.excess[group])
            if count < rows.ns.shape[1]:
                rows.numbers[5, count], rows.numbers[6, count] = collective, group - first_group[collective]
            count += 1
    count = list_sums(of_step, CARRIED, shares.carried, count, rows)
    count = list_sums(of_step, UNEXPLAINED, shares.unexplained, count, rows)
    return int(list_sums(of_step, CARRIED, of_step.carried, count, rows))


@compiled
def list_own_shares(
    of_step: GraphShares,
    first_rank: int,
    after_rank: int,
    least_ns: float,
    sums: Floats,
    excess: Floats,
    count: int,
    rows: LossRows,
) -> int:
    """List the shares of own time of some ranks that have rows of their own, and sum up the others; see `list_losses`.

    In the order of the ranks' programs.
    """
    listing, step, number = of_step.listing, of_step.step, of_step.number
    last_listed, touched, shares = of_step.last_listed, of_step.touched, of_step.shares
    has_overlap = len(shares.overlap) > 0
    for rank in range(first_rank, after_rank):
        team, row = step.team[rank], step.row[rank]
        low = 0 if touched[rank] else last_listed[rank] + 1
        size = listing.first[team + 1] - listing.first[team] - low
        if row < 0 or size <= 0:
            continue
        # numbers from 0 up, in parts of the arrays, need no test for places counted from the end
        begin = listing.first[team] + low
        usual = cut_self_times(of_step.baseline, begin, begin + size)
        begin = row + low
        recorded = cut_self_times(of_step.self_times, begin, begin + size)
        of_host, of_gpu = shares.host[begin : begin + size], shares.gpu[begin : begin + size]
        for at in range(size):
            is_new = low + at > last_listed[rank]
            if not is_new and of_host[at] == 0 and of_gpu[at] == 0 and not has_overlap:
                continue  # of a step in a file such times need not be read
            host_class = int(low + at > listing.first_kernel[team]) + int(low + at > listing.last_launch[team])
            host = known(recorded.host[at] - usual.host[at]) + recorded.call[at] - usual.call[at]
            host -= recorded.lead[at] - usual.lead[at]
            gpu = known(recorded.delay[at] - usual.delay[at]) + recorded.gpu[at] - usual.gpu[at]
            if not touched[rank]:
                excess[rank, host_class] += host
                excess[rank, GPU] += gpu
                continue
            for part in range(3 if has_overlap else 2):
                if part == 0:
                    position, share, above = host_class, of_host[at], host
                elif part == 1:
                    position, share, above = GPU, of_gpu[at], gpu
                else:
                    position, share, above = GPU + 1, shares.overlap[begin + at], 0.0
                if share == 0 or abs(share) < least_ns:
                    sums[rank, position] += share
                    excess[rank, position] += above if is_new else 0.0
                    continue
                loss_class = position if position <= GPU else OVERLAP
                above = above if is_new else math.nan
                add_row(rows, count, number, listing.rank[rank], team, loss_class, low + at, share, above)
                add_to_rank(rows.of_rank, rank, share)
                count += 1
    return count


@compiled
def list_sums(of_step: GraphShares, loss_class: int, losses: Floats, count: int, rows: LossRows) -> int:
    """List what is lost to each rank without a place, (ranks,); see `list_losses`."""
    team, ranks = of_step.step.team, of_step.listing.rank
    for rank in range(len(losses)):
        if losses[rank] != 0:
            lost = losses[rank]
            add_row(rows, count, of_step.number, ranks[rank], team[rank], loss_class, -1, lost, math.nan)
            if loss_class != UNEXPLAINED:
                add_to_rank(rows.of_rank, rank, lost)
            count += 1
    return count


@compiled
def add_row(
    rows: LossRows,
    at: int,
    origin: int,
    rank: int,
    team: int,
    loss_class: int,
    place: int,
    loss_ns: float,
    excess_ns: float,
) -> None:
    """Fill one row of `Losses`, of no collective, if there is room for it."""
    if at < rows.ns.shape[1]:
        numbers = rows.numbers
        numbers[0, at], numbers[1, at], numbers[2, at], numbers[3, at] = origin, rank, team, loss_class
        numbers[4, at], numbers[5, at], numbers[6, at] = place, -1, -1
        rows.ns[0, at], rows.ns[1, at] = loss_ns, excess_ns


@compiled
def add_to_rank(of_rank: Floats, rank: int, loss_ns: float) -> None:
    """Add to what is lost to a rank, unknown at first."""
    of_rank[rank] = loss_ns if isnan(of_rank[rank]) else of_rank[rank] + loss_ns


def _loss_rows(count: int, ranks: int) -> LossRows:
    return LossRows(np.empty((7, count), np.int64), np.empty((2, count)), np.empty(ranks))


def _losses(rows: LossRows, count: int) -> Losses:
    """Return the first rows as a table."""
    return Losses(rows.numbers[:, :count].copy(), rows.ns[:, :count].copy())


def _structure(run: RunModel) -> Structure:
    collectives, instructions = run.collective_arrays, run.schedule.array()
    coupled = np.ones(len(collectives.first) - 1, np.bool_)
    coupled[list(run.schedule.uncoupled)] = False
    is_coupled = np.zeros(len(collectives.number_at), np.bool_)
    there = collectives.number_at >= 0
    is_coupled[there] = coupled[collectives.number_at[there]]
    ordered = instructions[instructions[:, 0] < 0, 1].tolist()
    group = joined(
        [np.arange(collectives.first_group[number], collectives.first_group[number + 1]) for number in ordered]
    )
    instance = np.full(int(collectives.first_group[-1]), -1, np.int64)
    instance[group] = np.arange(len(group))
    blocks = np.repeat(np.arange(len(collectives.first_place) - 1), np.diff(collectives.first_place))
    attendance = np.full((len(collectives.first) - 1, len(collectives.first_place) - 1), -1, np.int64)
    attendance[collectives.number_at[there], blocks[there]] = collectives.attendance_at[there]
    collective = np.repeat(np.arange(len(collectives.first_group) - 1), np.diff(collectives.first_group))
    computed = np.empty(len(collectives.number_at), np.int64)
    for at, (block, low, high, of_operation) in enumerate(instructions.tolist()):
        if block >= 0 and of_operation != CALLS:
            computed[collectives.first_place[block] + low : collectives.first_place[block] + high] = at
    return Structure(
        instructions,
        is_coupled,
        follow_call_alone(run.job),
        follow_stream_alone(run.job),
        launches_before(run.job),
        places_before(run.job, run.job.thread),
        instance,
        group,
        collective,
        attendance,
        computed,
        np.array(
            [np.flatnonzero(kinds != SYNC).max(initial=-1) for kinds in np.split(run.job.kind, run.job.first[1:-1])]
        ),
        run.rank_numbers,
    )


def _room(cells: int, recorded: int, instances: int, most_inputs: int) -> _Room:
    """Make room for a step; `recorded` is for how many of its recorded ends and returns."""
    start, end, free, back = np.full((4, cells), -1, np.int32)
    upper, lower, factor = np.empty((3, most_inputs))
    goes, which, head, order = np.empty((4, most_inputs), np.int64)
    return _Room(
        NodeTimes(end=np.empty(recorded), start=np.empty(0), back=np.empty(recorded), free=np.empty(cells)),
        NodeTimes(*np.empty((4, cells))),
        Heads(start, end, free, back, np.empty(instances, np.int64), np.empty(instances)),
        Inputs(upper, lower, goes, which, head, factor, order, np.empty(most_inputs, np.bool_)),
    )


@compiled
def find_recorded_nodes(job: JobArrays, step: StepTimes, state: CarriedState, nodes: NodeTimes) -> None:
    """Fill the ends, returns and free streams of a step's nodes; their starts are the recorded ones.

    `state` is how the ranks come to the step, and is overwritten.
    """
    for rank in range(len(step.row)):
        if step.row[rank] < 0:
            continue
        team, row = step.team[rank], step.row[rank]
        for op in range(job.first[team + 1] - job.first[team]):
            place, cell = job.first[team] + op, row + op
            thread, stream = job.thread[place], job.stream[place]
            returned = state.back[rank, thread]
            if not isnan(step.call[cell]):
                returned = state.back[rank, thread] = step.back[cell]
            nodes.back[cell] = returned
            if job.kind[place] == SYNC:
                nodes.free[cell] = nodes.end[cell] = math.nan
                continue
            free = state.stream_end[rank, stream]
            end = free if isnan(step.start[cell]) else step.end[cell]
            nodes.free[cell], nodes.end[cell] = free, end
            state.stream_end[rank, stream] = later(free, end)
