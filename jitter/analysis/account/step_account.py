"""The account of each step in turn: the replay with the baseline, and what the difference is owed to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.account.graph import Heads, Inputs, Setting, Structure, find_heads
from jitter.analysis.account.losses import OWN_CLASSES, RANK_CLASSES, LossClass, Losses, join_losses
from jitter.analysis.account.noise import Noise, loss_of_stretches
from jitter.analysis.account.recorded_nodes import find_recorded_nodes
from jitter.analysis.account.shares import (
    SUBSETS_BESIDE,
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
    count_carried_ends,
    count_threads,
    follow_call_alone,
    follow_stream_alone,
    launches_before,
    places_before,
    unknown_state,
)
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.self_times import SelfTimes, TimePart, cut_self_times
from jitter.analysis.execution.step_times import StepTimes
from jitter.analysis.replay.replay import Change, NodeTimes, replay_step
from jitter.analysis.replay.run_steps import RecordedStep
from jitter.analysis.replay.step_end import StepEnds
from jitter.analysis.replay.what_if import possible_waits, repaired_transfers
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import SYNC
from jitter.core.numeric.arrays import Bools, Floats, Ints, joined
from jitter.core.numeric.compilation import compiled

_OWN_ROW_NS: Final = THRESHOLDS.account.own_row_ns
_CLASSES: Final = (*OWN_CLASSES, LossClass.OVERLAP)
"""Classes of a rank with places."""


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
class _Compared:
    """A step in both settings."""

    step: RecordedStep
    baseline: SelfTimes
    upper: Setting
    lower: Setting
    heads: Heads
    last: Ints
    """(ranks,) the operation with which the step ends for each; -1 where it is unknown."""
    ends: Ints
    """Numbers of the ranks whose ends are known in both settings."""
    shift_before: float
    """How much later than with the baseline the step before ends, ns."""
    shift: float
    """Likewise of this step."""


class _Shared(NamedTuple):
    """Shares of a step that lie in it, or in the step before."""

    of: _Compared
    border: Ints
    """As in `share_step`."""
    shares: Shares
    rows: list[Losses]


class _Room(NamedTuple):
    """Arrays of a step's nodes, which later steps use again."""

    upper: NodeTimes
    """Without starts, which are the step's."""
    lower: NodeTimes
    heads: Heads


class Account:
    """Keeps the account of a run; give it every step in order."""

    def __init__(
        self,
        run: RunModel,
        ends: StepEnds,
        usual: Sequence[Floats],
        noise: Sequence[Noise],
        own_row_ns: float = _OWN_ROW_NS,
    ) -> None:
        """Begin the account.

        Args:
            run: the run.
            ends: finds where its steps end.
            usual: the transfers' baselines of each step, (groups of all collectives,).
            noise: that of each step.
            own_row_ns: a smaller share of a rank and class has no row of its own.

        """
        job, collectives = run.job, run.collective_arrays
        self._run, self._ends, self._usual, self._noise = run, ends, usual, noise
        self._structure = _structure(run)
        ranks = len(run.rank_numbers)
        shape = (count_carried_ends(job), count_threads(job), int(job.queue.max(initial=0)))
        self._state = unknown_state(ranks, *shape)
        waits = int(np.diff(job.first_wait).max(initial=0)) + int(np.diff(job.first_host_wait).max(initial=0))
        most = max(int(np.diff(collectives.first_in_group).max(initial=0)), 3 + waits)
        self._inputs, self._inputs_of_heads = _inputs(most), _inputs(most)
        operations = int(np.diff(job.first).max(initial=0))
        self._beside = Beside(np.empty(operations), np.empty(operations), np.empty(SUBSETS_BESIDE))
        kinds = np.split(job.kind, job.first[1:-1])
        self._last_launch = np.array([np.flatnonzero(own != SYNC).max(initial=-1) for own in kinds])
        self._shift = 0.0
        """How much later than with the baseline the step before ends, ns."""
        self._last: _Compared | None = None
        self._rooms = [_room(0, 0) for _ in range(2)]
        """Of the last steps, the latest last: one is divided, and its tail is of the one before."""
        self._own_row_ns = own_row_ns
        self._own_rows = 1024
        """Room for shares of a step that have rows of their own."""
        self._multiplier: Multipliers | None = None
        self._shares: dict[int, Shares] = {}

    def step(self, step: RecordedStep, baseline: SelfTimes) -> StepAccount:
        """Return the account of one step; `baseline` (operations of all teams,) are its medians.

        Step after step, not side by side: that took no less time, and 0.1 GB more of 960 ranks x 903 kernels.
        """
        return self._divide(self._compare(step, baseline))

    def _divide(self, now: _Compared) -> StepAccount:
        """Divide a step's loss; give it every step in order."""
        before, self._last = self._last, now
        if not len(now.ends):
            none = np.empty(0, np.int64)
            return StepAccount(now.step.number, np.nan, self._nothing(), self._nothing(), none, np.empty(0), 0.0)
        noise = self._noise[now.step.number]
        stretches = Stretches(noise.variance, noise.bias, *np.zeros((4, len(self._structure.group) + 1)))
        shared = self._share(now, before, stretches)
        losses = join_losses([rows for one in shared for rows in one.rows])
        passed = shared[0].shares.passed
        groups = np.flatnonzero(passed)
        return StepAccount(
            now.step.number,
            now.shift - now.shift_before,
            losses,
            self._of_largest(losses, shared),
            groups,
            passed[groups],
            loss_of_stretches(stretches, len(self._run.team_of)),
        )

    def _compare(self, step: RecordedStep, baseline: SelfTimes) -> _Compared:
        """Find the times of a step in both settings."""
        room = self._rooms.pop(0)
        if len(room.lower.end) != len(step.times.start):
            room = _room(len(step.times.start), len(self._structure.group))
        self._rooms.append(room)
        usual = repaired_transfers(step, self._usual[step.number])
        change = Change(
            np.ones((len(TimePart) - 1, len(self._run.rank_numbers)), np.bool_),
            usual,
            possible_waits(step, usual, self._usual[step.number]),
            self._shift,
        )
        before = self._state_before(step, self._state, self._shift)
        replay_step(self._run.job, self._structure.instructions, step, baseline, change, self._state, room.lower)
        lower = Setting(room.lower, before, usual, *self._slots(step.times, room.lower, before))
        before = self._state_before(step, step.before, 0.0)
        nodes = room.upper._replace(start=step.times.start)
        find_recorded_nodes(self._run.job, step.times, before.copy(), nodes)
        upper = Setting(nodes, before, step.transfers.took, *self._slots(step.times, nodes, before))
        self._find_heads(step, baseline, upper, lower, room.heads)
        cells = step.end_cells
        last = np.where(cells >= 0, cells - step.times.row, -1)
        here, shift = np.flatnonzero(last >= 0), self._shift
        later = step.times.end[cells[here]] - lower.nodes.end[cells[here]]
        known = ~np.isnan(later)
        if known.any():
            self._shift = float(later[known].mean())
        # the nodes say the same of ends and returns, for longer than the recorded ones are kept
        kept = replace(step, times=step.times._replace(end=nodes.end, back=nodes.back))
        return _Compared(kept, baseline, upper, lower, room.heads, last, here[known], shift, self._shift)

    def _find_heads(
        self, step: RecordedStep, baseline: SelfTimes, upper: Setting, lower: Setting, heads: Heads
    ) -> None:
        heads.parent.fill(-1)
        heads.moved.fill(np.nan)
        threads, streams = (
            np.full(values.shape, -1, np.int64) for values in (upper.before.back, upper.before.stream_end)
        )
        find_heads(
            self._run.job,
            self._structure,
            step.collectives,
            step.times,
            step.own,
            baseline,
            upper,
            lower,
            self._shift,
            heads,
            threads,
            streams,
            self._inputs_of_heads,
        )

    def _state_before(self, step: RecordedStep, state: CarriedState, time_saved: float) -> CarriedState:
        """Return how the ranks come to a step; those that join in it begin as recorded, earlier by what is saved."""
        before = state.copy()
        before.forget(step.fresh)
        before.back[step.fresh] = step.before.back[step.fresh] - time_saved
        return before

    def _slots(self, times: StepTimes, nodes: NodeTimes, before: CarriedState) -> tuple[Floats, Ints]:
        """Return when launches had a place in the queue, and which operation had held it; empty without a queue."""
        job = self._run.job
        if not job.queue.any():
            return np.empty(0), np.empty(0, np.int64)
        slot, holder = np.full(len(times.start), np.nan), np.full(len(times.start), -1, np.int64)
        pending, holders = before.pending.copy(), np.empty(before.pending.shape[1], np.int64)
        for rank in np.flatnonzero((times.row >= 0) & (job.queue[times.team] > 0)).tolist():
            follow_queue(job, times, rank, nodes, pending, holders, slot, holder)
        return slot, holder

    def _share(self, now: _Compared, before: _Compared | None, stretches: Stretches) -> list[_Shared]:
        """Return the shares that lie in the step, and those that lie in the step before, if there are any."""
        step, ends, shift, ranks = now.step, now.ends, now.shift_before, len(self._run.rank_numbers)
        multiplier, shares = self._cleared(now, 0)
        cells = step.times.row[ends] + now.last[ends]
        multiplier.end[cells] = 1 / len(ends)
        multiplier.touched[ends] = True
        for weight in (stretches.reached, stretches.entered):
            np.add.at(weight, now.heads.end[cells] + 1, 1 / len(ends))
        # what the replay of the recording does not reproduce
        shares.unexplained[ends] = (step.times.end[cells] - now.upper.nodes.end[cells]) / len(ends)
        every = np.full(ranks, -1, np.int64)
        self._pass(now, every, shift, multiplier, shares, stretches)
        found = _Shared(now, every, shares, [self._rows(now, every, multiplier.touched, shares)])
        left = multiplier.left + multiplier.stream, multiplier.back.copy()
        if before is None or not any(values.any() for values in left):
            found.rows.append(self._carried(now, *left, shift))
            return [found]
        there = (before.step.times.row >= 0) & ~step.fresh
        ended, back = (np.where(there[:, None], values, 0.0) for values in left)
        found.rows.append(self._carried(now, left[0] - ended, left[1] - back, shift))
        multiplier, shares = self._cleared(before, 1)
        multiplier.stream[:], multiplier.back[:] = ended, back
        self._seed_carried(before, multiplier)
        multiplier.touched[:] = multiplier.stream.any(axis=1) | multiplier.back.any(axis=1) | multiplier.touched
        border = np.where(before.last >= 0, before.last, np.iinfo(np.int64).max)
        tail = stretches.cleared()
        self._pass(before, border, shift, multiplier, shares, tail)
        # what follows the last collective of the step before leads to the first one of this step
        stretches.varied[0] += tail.varied.sum()
        stretches.biased[0] += tail.biased.sum()
        rows = self._rows(before, border, multiplier.touched, shares)
        carried = self._carried(before, multiplier.left + multiplier.stream, multiplier.back, shift)
        return [found, _Shared(before, border, shares, [rows, carried])]

    def _pass(
        self,
        one: _Compared,
        border: Ints,
        shift: float,
        multiplier: Multipliers,
        shares: Shares,
        stretches: Stretches,
    ) -> None:
        step = one.step
        share_step(
            self._run.job,
            self._structure,
            step.collectives,
            step.times,
            step.own,
            one.baseline,
            one.upper,
            one.lower,
            one.heads,
            border,
            shift,
            multiplier,
            shares,
            self._inputs,
            self._beside,
            stretches,
        )

    def _seed_carried(self, before: _Compared, multiplier: Multipliers) -> None:
        """Hand what a step awaits of operations of the step before to their ends."""
        job, times = self._run.job, before.step.times
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

    def _carried(self, one: _Compared, ends: Floats, back: Floats, shift: float) -> Losses:
        """Return the rows of what a step owes to how its ranks came to it."""
        upper, lower = one.upper.before, one.lower.before
        owed = np.zeros(len(ends))
        for whole, values, usual in ((ends, upper.stream_end, lower.stream_end), (back, upper.back, lower.back)):
            owed += np.where(whole != 0, whole * (values - usual - shift), 0.0).sum(axis=1)
        return self._of_ranks(one.step, LossClass.CARRIED, np.nan_to_num(owed))

    def _list_shares(
        self, one: _Compared, border: Ints, touched: Bools, shares: Shares
    ) -> tuple[Ints, Floats, Floats, Floats]:
        """Return the shares with rows of their own, as `list_shares` fills them in, and the sums of the others."""
        step = one.step
        while True:
            sums, excess = np.zeros((2, len(step.times.row), len(_CLASSES)))
            numbers, values = np.empty((self._own_rows, 3), np.int64), np.empty((self._own_rows, 2))
            own = step.times, step.own, one.baseline, border, touched, shares
            count = list_shares(self._run.job, self._last_launch, *own, self._own_row_ns, sums, excess, numbers, values)
            if count <= self._own_rows:
                return numbers[:count], values[:count], sums, excess
            self._own_rows = 2 * count

    def _rows(self, one: _Compared, border: Ints, touched: Bools, shares: Shares) -> Losses:
        step = one.step
        collectives = step.collectives
        numbers, values, sums, excess = self._list_shares(one, border, touched, shares)
        rank, place, which = numbers.T
        own = self._table(step, rank, np.array(_CLASSES)[which], place, values[:, 0], values[:, 1])
        rest_rank, rest_class = np.nonzero((sums != 0) | (excess != 0))
        rest = self._table(
            step,
            rest_rank,
            np.array(_CLASSES)[rest_class],
            np.full(len(rest_rank), -1),
            sums[rest_rank, rest_class],
            excess[rest_rank, rest_class],
        )
        groups = np.flatnonzero(shares.transfer)
        nothing_of = np.full(len(groups), -1, np.int64)
        number = np.searchsorted(collectives.first_group, groups, side="right") - 1
        transfers = Losses(
            np.full(len(groups), step.number),
            nothing_of,
            nothing_of,
            np.full(len(groups), int(LossClass.TRANSFER)),
            nothing_of,
            number,
            groups - collectives.first_group[number],
            shares.transfer[groups],
            (one.upper.transfer - one.lower.transfer)[groups],
        )
        return join_losses(
            [
                own,
                rest,
                transfers,
                self._of_ranks(step, LossClass.CARRIED, shares.carried),
                self._of_ranks(step, LossClass.UNEXPLAINED, shares.unexplained),
            ]
        )

    def _of_largest(self, losses: Losses, shared: list[_Shared]) -> Losses:
        """Return all shares of own time of the rank to which most is lost, in the order of its program."""
        own = losses.of(RANK_CLASSES)
        ranks, of_row = np.unique(own.rank, return_inverse=True)
        lost = np.bincount(of_row, own.loss_ns, len(ranks))
        if not len(ranks) or not lost.max() > 0:
            return self._nothing()
        rank = self._run.number_of[int(ranks[lost.argmax()])]
        return join_losses([self._shares_of(rank, *one[:3]) for one in reversed(shared)])

    def _shares_of(self, rank: int, one: _Compared, border: Ints, shares: Shares) -> Losses:
        """Return all shares of a rank, by number, that lie in a step, in the order of its program."""
        job, times = self._run.job, one.step.times
        row = int(times.row[rank])
        if row < 0:
            return self._nothing()
        team = int(times.team[rank])
        size = int(job.first[team + 1] - job.first[team])
        places = np.arange(size)
        of_host = np.where(places <= job.first_kernel[team], LossClass.START, LossClass.LAUNCH)
        of_host[places > self._last_launch[team]] = LossClass.AFTER
        classes = np.stack([of_host, np.full(size, LossClass.GPU)], axis=1)
        cells, every = slice(row, row + size), slice(int(job.first[team]), int(job.first[team + 1]))
        more = SelfTimes(*(mine[cells] - usual[every] for mine, usual in zip(one.step.own, one.baseline, strict=True)))
        found = np.stack([shares.host[cells], shares.gpu[cells]], axis=1)
        found[places <= border[rank]] = 0.0
        above = np.stack(
            [np.nan_to_num(more.host) + more.call - more.lead, np.nan_to_num(more.delay) + more.gpu], axis=1
        )
        place, which = np.nonzero(found)
        own = np.full(len(place), rank)
        return self._table(one.step, own, classes[place, which], place, found[place, which], above[place, which])

    def _of_ranks(self, step: RecordedStep, which: LossClass, loss_ns: Floats) -> Losses:
        ranks = np.flatnonzero(loss_ns)
        size = len(ranks)
        return self._table(
            step, ranks, np.full(size, int(which)), np.full(size, -1), loss_ns[ranks], np.full(size, np.nan)
        )

    def _table(
        self, step: RecordedStep, rank: Ints, which: Ints, place: Ints, loss_ns: Floats, excess_ns: Floats
    ) -> Losses:
        """Return rows of ranks, by number."""
        nothing = np.full(len(rank), -1, np.int64)
        return Losses(
            np.full(len(rank), step.number),
            self._run.rank_numbers[rank],
            step.times.team[rank],
            which,
            place,
            nothing,
            nothing,
            loss_ns,
            excess_ns,
        )

    def _nothing(self) -> Losses:
        return Losses(*np.empty((7, 0), np.int64), *np.empty((2, 0)))

    def _cleared(self, one: _Compared, which: int) -> tuple[Multipliers, Shares]:
        """Return multipliers and shares of a step, all 0; the arrays of the same step size are used again.

        `which` of the two shares that are kept. The multipliers are the same ones each time.
        """
        cells, ranks = len(one.step.times.start), len(one.step.times.row)
        if self._multiplier is None or len(self._multiplier.end) != cells:
            ends, threads = self._state.stream_end.shape[1], self._state.back.shape[1]
            self._multiplier = Multipliers(
                end=np.empty(cells),
                start=np.empty(cells),
                stream=np.empty((ranks, ends)),
                left=np.empty((ranks, ends)),
                back=np.empty((ranks, threads)),
                launch=np.empty(cells),
                group=np.empty(int(one.step.collectives.first_group[-1])),
                touched=np.empty(ranks, np.bool_),
            )
        if which not in self._shares or len(self._shares[which].host) != cells:
            groups = len(self._multiplier.group)
            self._shares[which] = Shares(
                host=np.empty(cells),
                gpu=np.empty(cells),
                overlap=np.empty(cells if self._run.job.interference.any() else 0),
                transfer=np.empty(groups),
                passed=np.empty(groups),
                carried=np.empty(ranks),
                unexplained=np.empty(ranks),
            )
        for values in (*self._multiplier, *self._shares[which]):
            values.fill(0)
        return self._multiplier, self._shares[which]


@compiled
def list_shares(
    job: JobArrays,
    last_launch: Ints,
    step: StepTimes,
    own: SelfTimes,
    baseline: SelfTimes,
    border: Ints,
    touched: Bools,
    shares: Shares,
    least_ns: float,
    sums: Floats,
    excess: Floats,
    numbers: Ints,
    values: Floats,
) -> int:
    """List the shares that have a row of their own and sum up the others; return how many are listed.

    `last_launch` (teams,) is the last operation that is launched; shares below `least_ns` are summed up. `numbers`
    (rows, 3) are filled with rank, operation and position of the class, `values` (rows, 2) with share and excess, as
    far as they have room; `sums` and `excess` (ranks, classes), 0 at first, with the other ones. Ranks that are not
    `touched` (ranks,) have no shares.
    """
    count, has_overlap = 0, len(shares.overlap) > 0
    for rank in range(len(step.row)):
        team, row, low = step.team[rank], step.row[rank], border[rank] + 1
        size = job.first[team + 1] - job.first[team] - low
        if row < 0 or size <= 0:
            continue
        # numbers from 0 up, in parts of the arrays, need no test for places counted from the end
        begin = job.first[team] + low
        usual = cut_self_times(baseline, begin, begin + size)
        begin = row + low
        recorded = cut_self_times(own, begin, begin + size)
        of_host, of_gpu = shares.host[begin : begin + size], shares.gpu[begin : begin + size]
        for at in range(size):
            which = int(low + at > job.first_kernel[team]) + int(low + at > last_launch[team])
            host = known(recorded.host[at] - usual.host[at]) + recorded.call[at] - usual.call[at]
            host -= recorded.lead[at] - usual.lead[at]
            gpu = known(recorded.delay[at] - usual.delay[at]) + recorded.gpu[at] - usual.gpu[at]
            if not touched[rank]:
                excess[rank, which] += host
                excess[rank, 3] += gpu
                continue
            for part in range(3 if has_overlap else 2):
                if part == 0:
                    position, share, above = which, of_host[at], host
                elif part == 1:
                    position, share, above = 3, of_gpu[at], gpu
                else:
                    position, share, above = 4, shares.overlap[begin + at], 0.0
                if abs(share) < least_ns:
                    sums[rank, position] += share
                    excess[rank, position] += above
                    continue
                if count < len(numbers):
                    numbers[count, 0], numbers[count, 1], numbers[count, 2] = rank, low + at, position
                    values[count, 0], values[count, 1] = share, above
                count += 1
    return count


def _structure(run: RunModel) -> Structure:
    collectives, instructions = run.collective_arrays, run.schedule.array()
    coupled = np.ones(len(collectives.first) - 1, np.bool_)
    coupled[list(run.schedule.uncoupled)] = False
    is_coupled = np.zeros(len(collectives.number_at), np.bool_)
    there = collectives.number_at >= 0
    is_coupled[there] = coupled[collectives.number_at[there]]
    ordered = instructions[instructions[:, 0] < 0, 1].tolist()
    group = joined([np.arange(collectives.first_group[one], collectives.first_group[one + 1]) for one in ordered])
    instance = np.full(int(collectives.first_group[-1]), -1, np.int64)
    instance[group] = np.arange(len(group))
    blocks = np.repeat(np.arange(len(collectives.first_place) - 1), np.diff(collectives.first_place))
    attendance = np.full((len(collectives.first) - 1, len(collectives.first_place) - 1), -1, np.int64)
    attendance[collectives.number_at[there], blocks[there]] = collectives.attendance_at[there]
    collective = np.repeat(np.arange(len(collectives.first_group) - 1), np.diff(collectives.first_group))
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
    )


def _room(cells: int, instances: int) -> _Room:
    upper, lower = (NodeTimes(*np.empty((4, cells))) for _ in range(2))
    start, end, free, back = np.empty((4, cells), np.int32)
    return _Room(
        upper._replace(start=np.empty(0)),
        lower,
        Heads(start, end, free, back, np.empty(instances, np.int64), np.empty(instances)),
    )


def _inputs(count: int) -> Inputs:
    return Inputs(
        upper=np.empty(count),
        lower=np.empty(count),
        goes=np.empty(count, np.int64),
        which=np.empty(count, np.int64),
        head=np.empty(count, np.int64),
        factor=np.empty(count),
        order=np.empty(count, np.int64),
        chosen=np.empty(count, np.bool_),
    )
