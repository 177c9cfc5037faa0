"""What waits for what in a run, inferred from a team's ranks in some of its steps."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from jitter.analysis.alignment.program import NO_STREAM, Program
from jitter.analysis.execution.dependencies import Dependencies, Launches, Sample, infer
from jitter.analysis.execution.host_waits import HostSample, find_host_waits, follow_other_teams
from jitter.analysis.execution.job_arrays import StateTracker, unknown_state
from jitter.analysis.execution.step_times import StepTimes, TeamTimes
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import SYNC
from jitter.core.numeric.arrays import Floats, Ints, distinct_values, spread_positions
from jitter.core.parallel.prefetch import map_ahead
from jitter.core.step_key import StepKey

if TYPE_CHECKING:
    from jitter.analysis.execution.run_model import RunModel

_LIMITS: Final = THRESHOLDS.dependencies


class _Followed(NamedTuple):
    """A step of the ranks that have it, (ranks, operations) each; ns from the rank's origin, NaN where unknown."""

    ranks: Ints
    start: Floats
    end: Floats
    call: Floats
    back: Floats
    back_before: Floats
    """When the call before on the thread returned."""
    end_before: Floats
    """The latest end of the operations before on the stream."""
    end_in_step_before: Floats
    stream_end: Floats
    """(ranks, streams) the last ends before the step."""


class SampledSteps:
    """Follows one team's ranks through some steps, each after the one before it where that is there."""

    def __init__(self, program: Program, thread: Ints, ranks: int) -> None:
        """`thread` (operations,) is the thread that each operation follows; `ranks` is how many the run has."""
        self._program, self._thread = program, thread
        streams, threads = 1 + int(program.streams.max(initial=NO_STREAM)), 1 + int(thread.max(initial=0))
        self._tracker = StateTracker(unknown_state(ranks, streams, threads, 0))
        self._ends = np.full((ranks, len(thread)), np.nan)
        self._parts: list[tuple[Ints | Floats, ...]] = []
        self._launches: dict[tuple[int, int], list[Launches]] = defaultdict(list)
        self._stretch = 0
        self._last: StepKey | None = None

    def follow(self, key: StepKey, step: StepTimes) -> _Followed:
        """Follow a step of this team's ranks without taking it into the sample."""
        here = np.flatnonzero(step.row >= 0)
        (fresh,) = self._tracker.enter([key], step.row >= 0)
        state = self._tracker.state
        end_in_step_before = np.where(fresh[here, None], np.nan, self._ends[here])
        start, end, call, back = (values.reshape(len(here), len(self._thread)) for values in step[2:])
        back_before, end_before = np.full((2, *start.shape), np.nan)
        stream_end = state.stream_end[here]
        for thread, places in _lanes(self._thread):
            returns = np.column_stack([state.back[here, thread], back[:, places]])
            known = np.where(np.isnan(returns), 0, np.arange(returns.shape[1]))
            last = np.take_along_axis(returns, np.maximum.accumulate(known, axis=1), axis=1)
            back_before[:, places], state.back[here, thread] = last[:, :-1], last[:, -1]
        for stream, places in _lanes(self._program.streams):
            if stream != NO_STREAM:
                # a later kernel of a stream may end before an earlier one that overlaps it
                ends = np.fmax.accumulate(np.column_stack([stream_end[:, stream], end[:, places]]), axis=1)
                end_before[:, places], state.stream_end[here, stream] = ends[:, :-1], ends[:, -1]
        self._ends[here] = end
        return _Followed(here, start, end, call, back, back_before, end_before, end_in_step_before, stream_end)

    def add(self, key: StepKey, step: StepTimes) -> None:
        """Take a step of this team's ranks into the sample."""
        ranks, start, end, call, back, back_before, end_before, end_in_step_before, stream_end = self.follow(key, step)
        # the GPU has a launch when it returns, at the latest when it starts; the activities of one launch share it
        submit = np.minimum(np.where(np.isnan(back), back_before, back), start)
        ended = np.where(np.isnan(end), end_before, end)
        self._parts.append((ranks, start, ended, call, back, submit, end_before, end_in_step_before, stream_end))
        self._stretch += self._last is None or key != StepKey(self._last.epoch, self._last.step + 1)
        self._last = key
        launches = self._program.kinds < SYNC
        for cell, rank in enumerate(ranks[: THRESHOLDS.sampled_ranks].tolist()):
            is_launched = launches & ~np.isnan(back[cell])
            times_of_rank = (call[cell, is_launched], back[cell, is_launched], start[cell, is_launched])
            self._launches[self._stretch, rank].append(Launches(*times_of_rank))

    def sample(self) -> tuple[Sample, list[Launches]]:
        """Return the cells of all added steps, and some ranks' launches, by stretch of consecutive steps.

        The steps are given up, a field at a time.
        """
        launches = [Launches(*map(np.concatenate, zip(*parts, strict=True))) for parts in self._launches.values()]
        fields = list(zip(*self._parts, strict=True))[::-1]
        self._parts.clear()
        return Sample(*(np.concatenate(fields.pop()) for _ in Sample._fields)), launches

    def sample_hosts(
        self, steps: Iterable[tuple[StepKey, StepTimes]], loading: Callable[[StepKey, int], Floats], steps_back: int
    ) -> HostSample:
        """Return when the hosts of this team's ranks came to each call, in consecutive steps.

        `loading` gives from and until when a rank, by its number, waits for data in a step; `steps_back` is of how many
        earlier steps the ends are wanted.
        """
        since, until, rank, number, data = [], [], [], [], []
        ends: list[list[Floats]] = [[] for _ in range(1 + steps_back)]
        stand_ins: dict[int, frozenset[int]] = {}
        before: list[Floats] = []
        is_sync = self._program.kinds == SYNC
        for at, (key, step) in enumerate(steps):
            followed = self.follow(key, step)
            here, call = followed.ranks, followed.call
            since.append(np.where(is_sync, call, followed.back_before))
            until.append(np.where(is_sync, followed.back, call))
            data.append(np.zeros_like(call))
            for cell, number_in_run in enumerate(here.tolist()):
                begin, end = loading(key, number_in_run)
                last = np.append(np.nan, begin)[np.searchsorted(end, call[cell])]
                data[-1][cell] = np.where(last >= followed.back_before[cell], call[cell] - last, 0.0)
            of_run = np.full((len(step.row), call.shape[1]), np.nan)
            of_run[here] = self._with_stand_ins(followed.end, stand_ins)
            before = [of_run, *before][: 1 + steps_back]
            for past_ends, values in zip(ends, before, strict=False):
                past_ends.append(values[here])
            for past_ends in ends[len(before) :]:
                past_ends.append(np.full_like(call, np.nan))
            rank.append(here)
            number.append(np.full(len(here), at))
        return HostSample(
            np.concatenate(since),
            np.concatenate(until),
            tuple(map(np.concatenate, ends)),
            stand_ins,
            np.concatenate(rank),
            np.concatenate(number),
            np.concatenate(data),
        )

    def _with_stand_ins(self, end: Floats, stand_ins: dict[int, frozenset[int]]) -> Floats:
        """Return ends, (ranks, operations), with those before on the stream where few ranks lack an operation.

        What stands in for each place is added to `stand_ins`.
        """
        lacks, streams = np.isnan(end), self._program.streams
        filled = end.copy()
        for place in np.flatnonzero(lacks.any(axis=0) & (2 * lacks.sum(axis=0) < len(end))).tolist():
            on_stream = np.flatnonzero(streams[:place] == streams[place])
            for row in np.flatnonzero(lacks[:, place]).tolist():
                there = on_stream[~lacks[row, on_stream]]
                if len(there):
                    filled[row, place] = end[row, there[-1]]
                    stand_ins[place] = stand_ins.get(place, frozenset()) | {int(there[-1])}
        return filled


def _lanes(lane: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each lane (a stream, a thread) with the places of the operations on it."""
    return ((number, np.flatnonzero(lane == number)) for number in distinct_values(lane).tolist())


def threads_of(program: Program, steps: Iterable[TeamTimes]) -> Ints:
    """Return, (operations,), the thread that each follows: all 0, one chain, unless launches interleave in these steps.

    Autograd's thread takes over for a whole pass and hands back; threads that launch at the same time do not wait for
    each other.
    """
    op_threads = np.array([op.thread for op in program.operations], np.int64)
    switches = int((np.diff(op_threads) != 0).sum())
    threads = len(distinct_values(op_threads))
    interleave = threads > 1 and switches > _LIMITS.max_switches * threads and not _take_turns(op_threads, steps)
    return op_threads if interleave else np.zeros_like(op_threads)


def _take_turns(op_threads: Ints, steps: Iterable[TeamTimes]) -> bool:
    """Return whether the threads' calls follow each other: none begins while another thread's call lasts.

    So do forward and backward passes of a pipeline's micro-batches: whatever holds up one thread holds up the other.
    """
    first = np.flatnonzero(np.diff(op_threads) != 0)
    overlapping = switches = 0
    for step in steps:
        returned, called = step.back[first], step.call[first + 1]
        switches += int((~np.isnan(returned + called)).sum())
        overlapping += int((called < returned).sum())
    return overlapping <= _LIMITS.overlapping_share * switches


_WAIT_LIMITS: Final = THRESHOLDS.host_waits


def middle_of_longest_stretch(keys: Sequence[StepKey], most: int) -> tuple[int, int]:
    """Return the range of positions of at most so many consecutive steps, from the middle of the longest stretch."""
    breaks = [at for at in range(1, len(keys)) if keys[at] != StepKey(keys[at - 1].epoch, keys[at - 1].step + 1)]
    stretches = zip([0, *breaks], [*breaks, len(keys)], strict=True)
    begin, end = max(stretches, key=lambda stretch: stretch[1] - stretch[0])
    first = begin + max(0, (end - begin - most) // 2)
    return first, min(end, first + most)


def sample_shape(steps: int, ranks: int) -> tuple[int, int]:
    """Return of how many steps and ranks of a team the dependencies are inferred.

    All ranks wait alike, while a wait may bind in few steps: of many ranks some are left out, and no steps before that.

    >>> sample_shape(12, 8), sample_shape(10, 512), sample_shape(1000, 512)
    ((12, 8), (10, 51), (32, 16))
    """
    chosen = min(ranks, max(THRESHOLDS.sampled_ranks, _LIMITS.sampled_cells // steps))
    return min(steps, _LIMITS.sampled_cells // chosen), chosen


def infer_rules(run: "RunModel", team: int, steps: Sequence[StepKey]) -> Dependencies:
    """Infer the dependencies of a team's program from these steps alone."""
    program = run.programs[team]
    sizes = {key: size for key in steps if (size := len(run.ranks(key, team)))}
    having, (wanted, most) = list(sizes), sample_shape(len(sizes), max(sizes.values()))
    sampled = {having[at] for at in spread_positions(len(having), wanted)}
    tried = having[:: -(-len(having) // THRESHOLDS.tried_steps)]
    thread = threads_of(program, (run.team_times(key, team) for key in tried))
    fitting = max(1, THRESHOLDS.max_cells // max(1, len(sampled) * len(program.operations)))
    chosen = run.spread_ranks(team, min(most, fitting))
    sample, there = SampledSteps(program, thread, len(chosen)), set(run.keys)
    for key in sorted(sampled, key=lambda k: k.order):
        before = StepKey(key.epoch, key.step - 1)
        if before in there and before not in sampled:
            sample.follow(before, run.step_times(before, chosen))
        sample.add(key, run.step_times(key, chosen))
    rules = infer(program, thread, *sample.sample())
    return _with_host_waits(run, team, rules, having) if rules.has_launches else rules


def _with_host_waits(run: "RunModel", team: int, rules: Dependencies, having: Sequence[StepKey]) -> Dependencies:
    """Add the waits of hosts that no call records, from consecutive ones of the steps that the team has."""
    program = run.programs[team]
    chosen = run.spread_ranks(team, THRESHOLDS.sampled_ranks)
    cells = int(chosen.sum()) * max(1, len(program.operations))
    most = min(_WAIT_LIMITS.max_steps, max(THRESHOLDS.few_steps, _WAIT_LIMITS.sampled_cells // cells))
    ordered = sorted(having, key=lambda key: key.order)
    keys = ordered[slice(*middle_of_longest_stretch(ordered, most))]
    steps = map_ahead(lambda key: (key, run.step_times(key, chosen)), keys, run.ahead)
    sampled = SampledSteps(program, rules.thread, len(chosen))
    known_calls = frozenset(wait.op_index for wait in rules.waits if wait.kind == "sync")
    sample = sampled.sample_hosts(steps, run.loading, _WAIT_LIMITS.steps_back)
    host_waits = find_host_waits(program, known_calls, sample)
    following = frozenset[int]()
    if len(run.programs) > 1:
        of_others = [at for at, other in enumerate(run.programs) if other != team]
        ends = np.stack([run.last_ends(key) for key in keys])[:, of_others]
        following = follow_other_teams(program, known_calls, sample, ends)
    added = host_waits._replace(waits=(*rules.waits, *host_waits.waits))._asdict()
    return replace(rules, **added, following_teams=following)
