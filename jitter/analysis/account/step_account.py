"""The account of each step in turn: the replay with the baseline, and what the difference is owed to."""

import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from math import isnan
from mmap import MADV_DONTNEED, mmap
from typing import Final, NamedTuple, overload

import numpy as np

from jitter.analysis.account.graph import Heads, Inputs, Setting, StepGraph, Structure, cut_graph, find_heads
from jitter.analysis.account.losses import OWN_CLASSES, LossClass, Losses, join_losses
from jitter.analysis.account.noise import Noise, expected_maximum, loss_of_stretches
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
from jitter.analysis.execution.step_times import StepTimes, cut_step
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


@dataclass(frozen=True, eq=False)
class StepAccounts(Sequence[StepAccount]):
    """The accounts of steps that follow each other, in arrays of all of them."""

    first: int
    """The number of the first one in the run."""
    loss_ns: Floats
    """(steps,) as in `StepAccount`."""
    noise_ns: Floats
    """(steps,) as in `StepAccount`."""
    rows: Losses
    """Of each step the losses, and then the largest ones."""
    bounds: Ints
    """(2 × steps + 1,) where these begin in the rows."""
    groups: Ints
    """Of one step after the other, as in `StepAccount`."""
    passed: Floats
    """As long, as in `StepAccount`."""
    first_group: Ints
    """(steps + 1,) where each step's begin."""

    def __len__(self) -> int:
        return len(self.loss_ns)

    @overload
    def __getitem__(self, at: int) -> StepAccount: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[StepAccount]: ...
    def __getitem__(self, at: int | slice) -> StepAccount | Sequence[StepAccount]:
        """Return the account of one of the steps, or of some."""
        numbers = range(len(self))[at]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        begin, middle, end = self.bounds[2 * numbers : 2 * numbers + 3].tolist()
        of_groups = slice(*self.first_group[numbers : numbers + 2].tolist())
        return StepAccount(
            self.first + numbers,
            float(self.loss_ns[numbers]),
            self.rows.part(begin, middle),
            self.rows.part(middle, end),
            self.groups[of_groups],
            self.passed[of_groups],
            float(self.noise_ns[numbers]),
        )

    @property
    def step_of_row(self) -> Ints:
        """(rows,) which of the steps lost it, from 0; -1 for the rows of the largest ones, which repeat others."""
        steps = np.stack([np.arange(len(self)), np.full(len(self), -1)], axis=1).ravel()
        return steps.repeat(np.diff(self.bounds))


def join_accounts(parts: Sequence[StepAccounts]) -> StepAccounts:
    """Return the accounts of all steps of several parts, which follow each other, as one."""
    rows, groups = (
        np.cumsum([0, *map(len, of_parts)])
        for of_parts in zip(*((part.rows, part.groups) for part in parts), strict=True)
    )
    return StepAccounts(
        parts[0].first,
        np.concatenate([part.loss_ns for part in parts]),
        np.concatenate([part.noise_ns for part in parts]),
        join_losses([part.rows for part in parts]),
        np.append(0, np.concatenate([part.bounds[1:] + begin for part, begin in zip(parts, rows, strict=False)])),
        np.concatenate([part.groups for part in parts]),
        np.concatenate([part.passed for part in parts]),
        np.append(
            0, np.concatenate([part.first_group[1:] + begin for part, begin in zip(parts, groups, strict=False)])
        ),
    )


class Graphs(NamedTuple):
    """Steps of the same ranks that follow each other, in both settings."""

    graph: StepGraph
    """All of them: the arrays of a step follow those of the one before. Its `shift` means nothing."""
    shift: Floats
    """(steps,) that of each."""
    fresh: Bools
    """(steps × ranks,) whose step before is not known, or that have not this one."""
    last: Ints
    """(steps × ranks,) the operation with which the step ends for each; -1 where it is unknown."""
    is_known: Bools
    """(steps × ranks,) whose ends are known in both settings."""
    noise: Noise
    """(steps × teams, START/CPU/GPU)."""


@dataclass(frozen=True)
class ComparedSteps:
    """Steps in both settings."""

    first: int
    """The number of the first one in the run."""
    graphs: Graphs
    left_ns: Floats
    """(steps,) how much later than with the baseline each ends."""
    pages: mmap | None = None
    """Of the file in which the graph of a large step lies."""

    def __len__(self) -> int:
        return len(self.left_ns)

    def release_pages(self) -> None:
        """Give the memory back that holds parts of the file."""
        if self.pages is not None:
            self.pages.madvise(MADV_DONTNEED)


class Room(NamedTuple):
    """What the division of one step's loss overwrites.

    It goes back through the step and those before it, each of which has a slot: 0 is the step itself.
    """

    multiplier: Multipliers
    """Of the step that is gone through."""
    shares: Shares
    """(slots × …)."""
    touched: Bools
    """(slots × ranks,) which have shares."""
    carried: Floats
    """(slots × ranks,) what is owed to how the ranks came to it, as far as no step before it has that."""
    ended: Floats
    """(ranks, carried ends) the multipliers of what the steps before left."""
    back: Floats
    """(ranks, threads)."""
    beside: Beside
    stretches: Stretches
    """Of the step itself."""
    earlier: Stretches
    """Of a step before it."""
    sums: Floats
    """(ranks, classes) of the shares that have no rows of their own."""
    excess: Floats
    """(ranks, classes) of their time above the baseline."""


class LossRows(NamedTuple):
    """Room for the rows of steps' accounts."""

    numbers: Ints
    """(6, rows) as in `Losses`."""
    ns: Floats
    """(2, rows)."""
    of_rank: Floats
    """(ranks,) what is lost to each in the last step; NaN of ranks without a row."""


class Divided(NamedTuple):
    """What the division of steps' losses tells besides rows."""

    listed: Ints
    """(steps, 2) up to where the rows of each step are, and those of the rank to which most is lost."""
    passed: Floats
    """(steps × groups,) as in `Shares`."""
    noise_ns: Floats
    """(steps,)."""


class Account:
    """Keeps the account of a run; give it every step in order.

    One thread may compare steps while another one divides the losses of those before.
    """

    def __init__(
        self,
        run: RunModel,
        usual: Sequence[Floats],
        noise: Noise,
        own_row_ns: float = _OWN_ROW_NS,
        *,
        is_spilled: bool = False,
    ) -> None:
        """Begin the account.

        Args:
            run: the run.
            usual: the transfers' baselines of each step, (groups of all collectives,).
            noise: (steps, teams, START/CPU/GPU).
            own_row_ns: a smaller share of a rank and class has no row of its own.
            is_spilled: whether compared steps lie in temporary files, and the times of a given step are overwritten.

        """
        job, collectives = run.job, run.collective_arrays
        self._run, self._usual, self._noise = run, usual, noise
        self._structure = _structure(run)
        self._state = state_before(job)
        waits = int(np.diff(job.first_wait).max(initial=0)) + int(np.diff(job.first_host_wait).max(initial=0))
        self._most_inputs = max(int(np.diff(collectives.first_in_group).max(initial=0)), 3 + waits)
        self._shift = no_shift(len(run.rank_numbers))
        """How much later than with the baseline the step before ends."""
        self._cells = int(np.diff(job.first) @ np.diff(job.first_rank))
        self._most_back = max(1, min(THRESHOLDS.most_in_flight, _LIMITS.cells_kept // max(self._cells, 1)))
        """Steps before a step in which its loss may lie: what its ranks come with was lost in them."""
        self._past = deque[ComparedSteps]()
        """That many steps, or more, the latest last."""
        self._given = 0
        """The steps before."""
        self._own_row_ns, self._is_spilled = own_row_ns, is_spilled
        self._rows = _loss_rows(1 << 14, len(run.rank_numbers))
        self._room: Room | None = None

    def step(self, step: RecordedSteps, baseline: SelfTimes) -> StepAccount:
        """Return the account of one step; `baseline` (1, operations of all teams) are its medians."""
        (account,) = self.divide(self.compare(step, baseline))
        return account

    def compare(self, steps: RecordedSteps, baseline: SelfTimes) -> ComparedSteps:
        """Find the times of steps in both settings; `baseline` (steps, operations of all teams) are their medians."""
        (count, ranks), job, structure = steps.fresh.shape, self._run.job, self._structure
        chosen = slice(steps.first, steps.first + count)
        usual = np.stack(self._usual[chosen])
        transfer = repaired_transfers(steps, usual)
        repaired = np.ones((count, len(TimePart) - 1, ranks), np.bool_)
        change = Change(repaired, transfer, possible_waits(steps, transfer, usual))
        cells, launches = len(steps.times.start), len(steps.times.start) if job.queue.any() else 0
        lower = NodeTimes(*np.empty((4, cells)))
        of_run = self._state, self._shift, lower
        replayed = replay_steps(job, structure.instructions, steps, baseline, change, *of_run)
        stream_end, back, pending = steps.before
        is_fresh = steps.fresh[:, :, None]
        before = CarriedState(np.where(is_fresh, np.nan, stream_end), back, np.where(is_fresh, -np.inf, pending))
        end, back = (steps.times.end, steps.times.back) if self._is_spilled else np.empty((2, cells))
        upper = NodeTimes(end, steps.times.start, back, np.empty(cells))
        recorded, usual_setting = (
            Setting(
                nodes,
                CarriedState(*(values.reshape(count * ranks, values.shape[2]) for values in state)),
                transfers.ravel(),
                np.full(launches, np.nan),
                np.full(launches, -1),
            )
            for nodes, state, transfers in ((upper, before, steps.transfers.took), (lower, replayed.before, transfer))
        )
        graph = StepGraph(
            job,
            structure,
            steps.collectives,
            # the nodes say the same of ends and returns, for longer than the recorded ones are kept
            steps.times._replace(end=end, back=back),
            steps.self_times,
            SelfTimes(*(values.ravel() for values in baseline)),
            recorded,
            usual_setting,
            0.0,
            _empty_heads(cells, count * len(structure.group)),
            _empty_inputs(self._most_inputs),
        )
        graphs = Graphs(
            graph,
            replayed.entered_ns,
            steps.fresh.ravel(),
            np.where(steps.end_cells >= 0, steps.end_cells - steps.times.row, -1).ravel(),
            replayed.is_known.ravel(),
            Noise(*(values[chosen].reshape(-1, values.shape[2]) for values in self._noise)),
        )
        if self._is_spilled:
            with suppress(OSError):  # a full disk: the step stays in memory
                graph, pages = graph.in_file()
                return ComparedSteps(steps.first, graphs._replace(graph=graph), replayed.left_ns, pages)
        compared = ComparedSteps(steps.first, graphs, replayed.left_ns)
        self._find_heads(compared, steps.times)
        return compared

    def _find_heads(self, compared: ComparedSteps, recorded: StepTimes) -> None:
        """Find the recorded nodes of steps, and the heads."""
        state = self._state.copy()
        threads, streams = (np.full(values.shape, -1) for values in (state.back, state.stream_end))
        find_nodes(compared.graphs, recorded, state, np.empty(state.pending.shape[1], np.int64))
        compared.release_pages()
        for part in self._parts(compared):
            find_heads_of_steps(compared.graphs, threads, streams, *part)
            compared.release_pages()

    def _parts(self, steps: ComparedSteps) -> list[tuple[int, int]]:
        """Return the instructions that are followed at once, from and up to: of a step in a file some."""
        count, is_large = len(self._structure.instructions), steps.pages is not None and len(steps) == 1
        parts = _LIMITS.pieces_of_file if is_large else 1
        return list(pairwise(np.linspace(0, count, parts + 1).astype(int).tolist()))

    def divide(self, now: ComparedSteps) -> StepAccounts:
        """Divide the losses of steps; give it every step in order."""
        if now.pages is not None:
            release_freed_memory()  # it held the step
            self._find_heads(now, now.graphs.graph.step)
        if self._room is None:
            self._room = self._make_room(now.graphs.graph.structure.instructions)
        count, groups = len(now), int(self._run.collective_arrays.first_group[-1])
        divided = Divided(np.zeros((count, 2), np.int64), np.zeros(count * groups), np.zeros(count))
        maximum, rows, listed, done = expected_maximum(len(self._run.team_of)), list[Losses](), 0, 0
        limits = self._most_back, self._given, self._own_row_ns, maximum
        while done < count:
            first = after = done
            if first > 0:
                after = divide_steps(now.graphs, now.first, first, *limits, self._room, self._rows, divided)
            if after == first:  # its loss may lie in steps that were compared before, too
                self._divide_one(now, first, maximum, divided)
                after += 1
            rows.append(_losses(self._rows, int(divided.listed[after - 1, 1])))
            divided.listed[first:after] += listed
            listed, done = listed + len(rows[-1]), after
        self._keep(now)
        step, owed = np.nonzero(divided.passed.reshape(count, groups))
        return StepAccounts(
            now.first,
            now.left_ns - now.graphs.shift,
            divided.noise_ns,
            join_losses(rows),
            np.append(0, divided.listed),
            owed,
            divided.passed.reshape(count, groups)[step, owed],
            np.searchsorted(step, np.arange(count + 1)),
        )

    def _keep(self, now: ComparedSteps) -> None:
        """Keep steps as those before the next, in place of the earliest ones."""
        self._past.append(now)
        self._given += len(now)
        while sum(map(len, self._past)) - len(self._past[0]) >= self._most_back:
            self._past.popleft()
        if self._is_spilled:
            now.release_pages()
            self._room = None

    def _divide_one(self, now: ComparedSteps, at: int, maximum: float, divided: Divided) -> None:
        """Divide the loss of one step, which may lie in any step before it."""
        assert self._room is not None
        room, ranks, kept = self._room, len(self._run.rank_numbers), min(self._most_back, self._given + at)
        if not now.graphs.is_known[at * ranks : (at + 1) * ranks].any():
            return
        gone = list[tuple[Graphs, int, int, int]]()
        before = ((steps, position) for steps in reversed(self._past) for position in reversed(range(len(steps))))
        for slot, (steps, position) in enumerate(chain(((now, position) for position in range(at, -1, -1)), before)):
            gone.append((steps.graphs, steps.first, position, slot))
            enter_step(steps.graphs, position, slot, room)
            for part in reversed(self._parts(steps)):
                share_part(steps.graphs, position, slot, *part, room)
                steps.release_pages()
            if leave_step(steps.graphs, position, slot, kept, self._own_row_ns, room):
                break
        while True:
            self._rows.of_rank.fill(np.nan)
            count = 0
            for passed in gone:
                count = list_losses(*passed, self._own_row_ns, room, count, self._rows)
            divided.listed[at] = count
            largest = find_largest(self._rows.of_rank, self._structure.rank)
            for passed in reversed(gone):
                count = list_own_shares(*passed, largest, 0.0, room, count, self._rows)
            divided.listed[at, 1] = count
            if count <= self._rows.ns.shape[1]:
                break
            self._rows = _loss_rows(2 * count, ranks)
        close_step(room, at, maximum, divided)

    def _make_room(self, instructions: Ints) -> Room:
        job, cells, slots = self._run.job, self._cells, self._most_back + 1
        ranks, ends, threads = *self._state.stream_end.shape, self._state.back.shape[1]
        groups, stretches = int(self._run.collective_arrays.first_group[-1]), len(self._structure.group) + 1
        noise = np.empty((2, len(job.launch_ns), len(TimePart) - 1))
        operations = int(np.diff(job.first).max(initial=0))
        return Room(
            Multipliers(
                end=np.empty(cells),
                start=np.empty(cells),
                stream=np.empty((ranks, ends)),
                left=np.empty((ranks, ends)),
                back=np.empty((ranks, threads)),
                held=np.empty(cells if (instructions[:, 3] == CALLS).any() else 0),
                launch=np.empty((ranks, ends)),
                group=np.empty(groups),
                touched=np.empty(ranks, np.bool_),
            ),
            Shares(
                host=np.empty(slots * cells),
                gpu=np.empty(slots * cells),
                overlap=np.empty(slots * cells if job.interference.any() else 0),
                transfer=np.empty(slots * groups),
                passed=np.empty(slots * groups),
                carried=np.empty(slots * ranks),
                unexplained=np.empty(slots * ranks),
            ),
            np.empty(slots * ranks, np.bool_),
            np.empty(slots * ranks),
            np.empty((ranks, ends)),
            np.empty((ranks, threads)),
            Beside(np.empty(operations), np.empty(operations), np.empty(SUBSETS_BESIDE)),
            Stretches(*noise, *np.empty((4, stretches))),
            Stretches(*noise, *np.empty((4, stretches))),
            *np.empty((2, ranks, len(_CLASSES))),
        )


@compiled
def find_nodes(graphs: Graphs, recorded: StepTimes, state: CarriedState, holders: Ints) -> None:
    """Fill in the recorded nodes of steps, and when launches had a place in the queue; all heads become -1.

    The arguments after `recorded` are overwritten.
    """
    steps, job = len(graphs.shift), graphs.graph.job
    for at in range(steps):
        graph = cut_graph(graphs.graph, at, steps, graphs.shift[at])
        before, step, heads = graph.upper.before, graph.step, graph.heads
        for rank in range(len(step.row)):
            for column in range(state.stream_end.shape[1]):
                state.stream_end[rank, column] = before.stream_end[rank, column]
            for thread in range(state.back.shape[1]):
                state.back[rank, thread] = before.back[rank, thread]
        find_recorded_nodes(job, cut_step(recorded, at, len(recorded.start) // steps), state, graph.upper.nodes)
        for rank in range(len(step.row)):
            if step.row[rank] >= 0 and job.queue[step.team[rank]] > 0:
                follow_queue(job, step, rank, graph.upper, holders)
                follow_queue(job, step, rank, graph.lower, holders)
        for cell in range(len(heads.start)):
            heads.start[cell] = heads.end[cell] = heads.free[cell] = heads.back[cell] = -1
        for instance in range(len(heads.moved)):
            heads.parent[instance], heads.moved[instance] = -1, math.nan


@compiled
def find_heads_of_steps(graphs: Graphs, threads: Ints, streams: Ints, first: int, last: int) -> None:
    """Find the heads of some instructions of each step, as `find_heads` does: of several steps those of all."""
    steps = len(graphs.shift)
    for at in range(steps):
        for rank in range(len(threads) if at > 0 else 0):
            for thread in range(threads.shape[1]):
                threads[rank, thread] = -1
            for column in range(streams.shape[1]):
                streams[rank, column] = -1
        find_heads(cut_graph(graphs.graph, at, steps, graphs.shift[at]), threads, streams, first, last)


@compiled
def divide_steps(
    graphs: Graphs,
    number: int,
    first: int,
    most_back: int,
    given: int,
    own_row_ns: float,
    maximum: float,
    room: Room,
    rows: LossRows,
    divided: Divided,
) -> int:
    """Divide the losses of steps from the `first` on; return the one at which it stops, if any.

    That is one whose rows have no room, or whose loss may lie before these steps. `number` is that of step 0 in the
    run, `given` how many there are before it, of which `most_back` may hold a loss.
    """
    count, ranks = 0, len(graphs.graph.step.row)
    for at in range(first, len(graphs.shift)):
        is_known = False
        for rank in range(ranks):
            rows.of_rank[rank] = math.nan
            is_known = is_known or graphs.is_known[at * ranks + rank]
        if is_known:
            slots = share_back(graphs, at, min(most_back, given + at), own_row_ns, room)
            if slots < 0:
                return at
            listed = count
            for slot in range(slots):
                listed = list_losses(graphs, number, at - slot, slot, own_row_ns, room, listed, rows)
            largest, count = find_largest(rows.of_rank, graphs.graph.structure.rank), listed
            for slot in range(slots - 1, -1, -1):
                count = list_own_shares(graphs, number, at - slot, slot, largest, 0.0, room, count, rows)
            if count > rows.ns.shape[1]:
                return at
            divided.listed[at, 0] = listed
            close_step(room, at, maximum, divided)
        else:
            divided.listed[at, 0] = count
        divided.listed[at, 1] = count
    return len(graphs.shift)


@compiled
def close_step(room: Room, at: int, maximum: float, divided: Divided) -> None:
    """Note what the division of a step's loss tells besides rows."""
    groups = len(room.multiplier.group)
    for group in range(groups):
        divided.passed[at * groups + group] = room.shares.passed[group]
    divided.noise_ns[at] = loss_of_stretches(room.stretches, maximum)


@compiled
def share_back(graphs: Graphs, last: int, kept: int, own_row_ns: float, room: Room) -> int:
    """Go back from a step through the steps in which its loss may lie; return how many these are.

    -1 if it may lie before the first of these steps.

    The step ends later than the one before: the pass begins with a multiplier of 1 at its end and of -1 at the end
    of the step before, from which the step's maxima are measured. What comes to a step before which no further step is
    `kept` is carried, as are ranks' sums below that of a row in the steps before the last.
    """
    for slot in range(last + 1):
        enter_step(graphs, last - slot, slot, room)
        share_part(graphs, last - slot, slot, 0, len(graphs.graph.structure.instructions), room)
        if leave_step(graphs, last - slot, slot, kept, own_row_ns, room):
            return slot + 1
    return -1


@compiled
def enter_step(graphs: Graphs, at: int, slot: int, room: Room) -> None:
    """Begin a pass through a step with the multipliers of its end, and of what the steps after it hand to it."""
    graph, multiplier = cut_graph(graphs.graph, at, len(graphs.shift), graphs.shift[at]), room.multiplier
    shares, cells, ranks = cut_shares(room, slot), len(graph.step.start), len(graph.step.row)
    clear(multiplier.end, cells)
    clear(multiplier.start, cells)
    clear(multiplier.held, min(cells, len(multiplier.held)))
    clear(multiplier.group, len(multiplier.group))
    clear(shares.host, cells)
    clear(shares.gpu, cells)
    clear(shares.overlap, min(cells, len(shares.overlap)))
    clear(shares.transfer, len(shares.transfer))
    clear(shares.passed, len(shares.passed))
    clear(shares.carried, ranks)
    clear(shares.unexplained, ranks)
    stretches = room.stretches if slot == 0 else room.earlier
    clear(stretches.varied, len(stretches.varied))
    clear(stretches.biased, len(stretches.biased))
    clear(stretches.reached, len(stretches.reached))
    clear(stretches.entered, len(stretches.entered))
    by_ends = by_threads = 0.0
    for rank in range(ranks):
        multiplier.touched[rank] = False
        for column in range(room.ended.shape[1]):
            whole = room.ended[rank, column] if slot > 0 else 0.0
            multiplier.stream[rank, column] = whole
            multiplier.left[rank, column] = multiplier.launch[rank, column] = 0.0
            by_ends += whole
            multiplier.touched[rank] = multiplier.touched[rank] or whole != 0
        for thread in range(room.back.shape[1]):
            whole = room.back[rank, thread] if slot > 0 else 0.0
            multiplier.back[rank, thread] = whole
            by_threads += whole
            multiplier.touched[rank] = multiplier.touched[rank] or whole != 0
    seed_carried(graph.job, graph.step, multiplier)
    known_count = 0
    for rank in range(ranks):
        known_count += int(graphs.is_known[at * ranks + rank])
    for rank in range(ranks):
        if graphs.is_known[at * ranks + rank]:
            cell = graph.step.row[rank] + graphs.last[at * ranks + rank]
            multiplier.end[cell] += (1.0 if slot == 0 else -(by_ends + by_threads)) / known_count
            multiplier.touched[rank] = True
            if slot == 0:
                stretches.reached[graph.heads.end[cell] + 1] += 1 / known_count
                stretches.entered[graph.heads.end[cell] + 1] += 1 / known_count
    if slot == 0:
        teams = len(stretches.variance)
        for team in range(teams):
            for part in range(stretches.variance.shape[1]):
                stretches.variance[team, part] = graphs.noise.variance[at * teams + team, part]
                stretches.bias[team, part] = graphs.noise.bias[at * teams + team, part]


@compiled
def clear(values: Floats, count: int) -> None:
    """Set the first `count` values to 0."""
    for at in range(count):
        values[at] = 0.0


@compiled
def seed_carried(job: JobArrays, times: StepTimes, multiplier: Multipliers) -> None:
    """Hand what a step awaits of operations of the step before, whose `times` they are, to their ends."""
    for team in range(len(job.launch_ns)):
        for at in range(job.first_carried[team], job.first_carried[team + 1]):
            column = job.carried_column[at]
            for rank in range(job.first_rank[team], job.first_rank[team + 1]):
                if times.row[rank] < 0:
                    continue
                whole = multiplier.stream[rank, column]
                multiplier.stream[rank, column] = 0.0
                if job.carried_steps[at] > 1:
                    multiplier.left[rank, column - 1] += whole
                else:
                    multiplier.end[times.row[rank] + job.carried_place[at]] += whole


@compiled
def share_part(graphs: Graphs, at: int, slot: int, first: int, last: int, room: Room) -> None:
    """Go back through a part of a step, as `share_step` does."""
    ranks = len(graphs.graph.step.row)
    share_step(
        cut_graph(graphs.graph, at, len(graphs.shift), graphs.shift[at]),
        BackwardPass(
            graphs.last[at * ranks : (at + 1) * ranks],
            room.multiplier,
            cut_shares(room, slot),
            room.beside,
            room.stretches if slot == 0 else room.earlier,
        ),
        first,
        last,
    )


@compiled
def leave_step(graphs: Graphs, at: int, slot: int, kept: int, own_row_ns: float, room: Room) -> bool:
    """End a pass through a step; return whether nothing is to be handed to the step before."""
    graph, multiplier = cut_graph(graphs.graph, at, len(graphs.shift), graphs.shift[at]), room.multiplier
    upper, lower, ranks = graph.upper.before, graph.lower.before, len(graph.step.row)
    if slot == 1:
        # what follows the last collective of the step before leads to the first one of this step
        varied = biased = 0.0
        for stretch in range(len(room.earlier.varied)):
            varied += room.earlier.varied[stretch]
            biased += room.earlier.biased[stretch]
        room.stretches.varied[0] += max(varied, 0.0)
        room.stretches.biased[0] += max(biased, 0.0)
    most_ns = 0.0
    for rank in range(ranks):
        room.touched[slot * ranks + rank] = multiplier.touched[rank]
        for column in range(room.ended.shape[1]):
            room.ended[rank, column] = multiplier.left[rank, column] + multiplier.stream[rank, column]
        for thread in range(room.back.shape[1]):
            room.back[rank, thread] = multiplier.back[rank, thread]
        carried_ns = owed_to_state(graph, room, rank)
        room.carried[slot * ranks + rank] = carried_ns
        most_ns = max(most_ns, abs(carried_ns))
    if slot == kept or not most_ns > (0.0 if slot == 0 else own_row_ns):
        return True
    for rank in range(ranks):
        is_fresh = graphs.fresh[at * ranks + rank]
        for column in range(room.ended.shape[1]):
            if is_fresh or isnan(upper.stream_end[rank, column] - lower.stream_end[rank, column]):
                room.ended[rank, column] = 0.0
        for thread in range(room.back.shape[1]):
            if is_fresh or isnan(upper.back[rank, thread] - lower.back[rank, thread]):
                room.back[rank, thread] = 0.0
        room.carried[slot * ranks + rank] -= owed_to_state(graph, room, rank)
    return False


@compiled
def owed_to_state(graph: StepGraph, room: Room, rank: int) -> float:
    """Return what a step owes to how a rank came to it, for the multipliers of its carried state; 0 where unknown."""
    upper, lower, by_ends, by_threads = graph.upper.before, graph.lower.before, 0.0, 0.0
    for column in range(room.ended.shape[1]):
        if room.ended[rank, column] != 0:
            moved = upper.stream_end[rank, column] - lower.stream_end[rank, column] - graph.shift
            by_ends += room.ended[rank, column] * moved
    for thread in range(room.back.shape[1]):
        if room.back[rank, thread] != 0:
            by_threads += room.back[rank, thread] * (upper.back[rank, thread] - lower.back[rank, thread] - graph.shift)
    return known(by_ends + by_threads)


@compiled
def cut_shares(room: Room, slot: int) -> Shares:
    """Return the shares of a slot."""
    shares, ranks, groups = room.shares, len(room.ended), len(room.multiplier.group)
    low, high = slot * len(room.multiplier.end), (slot + 1) * len(room.multiplier.end)
    return Shares(
        shares.host[low:high],
        shares.gpu[low:high],
        shares.overlap[low:high],
        shares.transfer[slot * groups : (slot + 1) * groups],
        shares.passed[slot * groups : (slot + 1) * groups],
        shares.carried[slot * ranks : (slot + 1) * ranks],
        shares.unexplained[slot * ranks : (slot + 1) * ranks],
    )


@compiled
def find_largest(of_rank: Floats, ranks: Ints) -> int:
    """Return the number of the rank to which most is lost, of equal ones the least `ranks`; -1 if none loses any."""
    largest, most_ns = -1, 0.0
    for rank in range(len(of_rank)):
        lost_ns = of_rank[rank]  # NaN is neither
        if lost_ns > most_ns or (lost_ns == most_ns and largest >= 0 and ranks[rank] < ranks[largest]):
            largest, most_ns = rank, lost_ns
    return largest


@compiled
def list_losses(
    graphs: Graphs, number: int, at: int, slot: int, least_ns: float, room: Room, count: int, rows: LossRows
) -> int:
    """List the shares of a slot, which lie in the step `at`; return how many rows there are with `count` before.

    Shares of a rank and class below `least_ns` are one row. `rows` are filled as far as they have room. `number` is
    that of step 0 in the run.
    """
    shares, sums, excess, ranks = cut_shares(room, slot), room.sums, room.excess, len(room.sums)
    for rank in range(ranks):
        for position in range(sums.shape[1]):
            sums[rank, position] = excess[rank, position] = 0.0
    count = list_own_shares(graphs, number, at, slot, -1, least_ns, room, count, rows)
    graph = cut_graph(graphs.graph, at, len(graphs.shift), 0.0)
    upper, lower = graph.upper.transfer, graph.lower.transfer
    for rank in range(ranks):
        for position in range(sums.shape[1]):
            share, above = sums[rank, position], excess[rank, position]
            if share != 0 or above != 0:
                loss_class = position if position <= GPU else OVERLAP
                add_row(rows, count, number + at, graph, rank, loss_class, -1, share, above)
                count += 1
    for group in range(len(shares.transfer)):
        share = shares.transfer[group]
        if share != 0:
            add_row(rows, count, number + at, graph, -1, TRANSFER, -1, share, upper[group] - lower[group])
            if count < rows.ns.shape[1]:
                rows.numbers[5, count] = group
            count += 1
    for part in range(3):
        for rank in range(ranks):
            lost = room.carried[slot * ranks + rank] if part == 2 else shares.carried[rank]
            lost = shares.unexplained[rank] if part == 1 else lost
            if lost != 0:
                loss_class = UNEXPLAINED if part == 1 else CARRIED
                add_row(rows, count, number + at, graph, rank, loss_class, -1, lost, math.nan)
                count += 1
    return count


@compiled
def list_own_shares(
    graphs: Graphs,
    number: int,
    at: int,
    slot: int,
    only: int,
    least_ns: float,
    room: Room,
    count: int,
    rows: LossRows,
) -> int:
    """List the shares of own time that have rows of their own, and sum up the others; see `list_losses`.

    In the order of the ranks' programs. Of the `only` rank, unless that is -1, all shares, without overlap.
    """
    graph, shares, ranks = cut_graph(graphs.graph, at, len(graphs.shift), 0.0), cut_shares(room, slot), len(room.sums)
    job, step, last_launch = graph.job, graph.step, graph.structure.last_launch
    sums, excess, has_overlap = room.sums, room.excess, len(shares.overlap) > 0 and only < 0
    for rank in range(0 if only < 0 else only, ranks if only < 0 else only + 1):
        team, row, touched = step.team[rank], step.row[rank], room.touched[slot * ranks + rank]
        # what ends a step has its time above the baseline in that step's rows, and all of earlier steps in theirs
        last_listed, end = -1, graphs.last[at * ranks + rank]
        if only < 0 and slot > 0:
            last_listed = end if slot == 1 and end >= 0 else job.first[team + 1] - job.first[team]
        low = 0 if touched else last_listed + 1
        size = job.first[team + 1] - job.first[team] - low
        if row < 0 or size <= 0:
            continue
        # numbers from 0 up, in parts of the arrays, need no test for places counted from the end
        begin = job.first[team] + low
        usual = cut_self_times(graph.baseline, begin, begin + size)
        begin = row + low
        recorded = cut_self_times(graph.self_times, begin, begin + size)
        of_host, of_gpu = shares.host[begin : begin + size], shares.gpu[begin : begin + size]
        for op in range(size):
            is_new = low + op > last_listed
            if not is_new and of_host[op] == 0 and of_gpu[op] == 0 and not has_overlap:
                continue  # of a step in a file such times need not be read
            host_class = int(low + op > job.first_kernel[team]) + int(low + op > last_launch[team])
            host = known(recorded.host[op] - usual.host[op]) + recorded.call[op] - usual.call[op]
            host -= recorded.lead[op] - usual.lead[op]
            gpu = known(recorded.delay[op] - usual.delay[op]) + recorded.gpu[op] - usual.gpu[op]
            if not touched:
                excess[rank, host_class] += host
                excess[rank, GPU] += gpu
                continue
            for part in range(3 if has_overlap else 2):
                if part == 0:
                    position, share, above = host_class, of_host[op], host
                elif part == 1:
                    position, share, above = GPU, of_gpu[op], gpu
                else:
                    position, share, above = GPU + 1, shares.overlap[begin + op], 0.0
                if share == 0 or abs(share) < least_ns:
                    sums[rank, position] += share
                    excess[rank, position] += above if is_new else 0.0
                    continue
                loss_class = position if position <= GPU else OVERLAP
                above = above if is_new else math.nan
                add_row(rows, count, number + at, graph, rank, loss_class, low + op, share, above)
                count += 1
    return count


@compiled
def add_row(
    rows: LossRows,
    at: int,
    origin: int,
    graph: StepGraph,
    rank: int,
    loss_class: int,
    place: int,
    loss_ns: float,
    excess_ns: float,
) -> None:
    """Fill one row of `Losses`, of no transfer, if there is room for it; add to what is lost to the rank, if any."""
    if at < rows.ns.shape[1]:
        numbers = rows.numbers
        numbers[0, at], numbers[3, at], numbers[4, at] = origin, loss_class, place
        numbers[1, at] = numbers[2, at] = numbers[5, at] = -1
        if rank >= 0:
            numbers[1, at], numbers[2, at] = graph.structure.rank[rank], graph.step.team[rank]
        rows.ns[0, at], rows.ns[1, at] = loss_ns, excess_ns
    if rank >= 0 and loss_class != UNEXPLAINED:
        rows.of_rank[rank] = loss_ns + known(rows.of_rank[rank])


def _loss_rows(count: int, ranks: int) -> LossRows:
    return LossRows(np.empty((6, count), np.int64), np.empty((2, count)), np.empty(ranks))


def _losses(rows: LossRows, count: int) -> Losses:
    """Return the first rows as a table."""
    return Losses(rows.numbers[:, :count].astype(np.int32), rows.ns[:, :count].copy())


def _empty_heads(cells: int, instances: int) -> Heads:
    start, end, free, back = np.empty((4, cells), np.int32)
    return Heads(start, end, free, back, np.empty(instances, np.int64), np.empty(instances))


def _empty_inputs(most: int) -> Inputs:
    upper, lower, factor = np.empty((3, most))
    goes, which, head, order = np.empty((4, most), np.int64)
    return Inputs(upper, lower, goes, which, head, factor, order, np.empty(most, np.bool_))


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
        collectives.collective,
        attendance,
        computed,
        np.array(
            [np.flatnonzero(kinds < SYNC).max(initial=-1) for kinds in np.split(run.job.kind, run.job.first[1:-1])]
        ),
        run.rank_numbers,
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
