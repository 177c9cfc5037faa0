"""Dependencies between operations, inferred for each place in a program from all ranks and steps; the launch queue.

An operation always starts after its launch and after the one before it on its stream. It waits for an operation of
another stream too if it never starts before that one ends, and if that one's end explains its start where nothing else
does. A wait that never mattered is not seen, and does no harm; but reductions would begin too early if those before
them were faster, so they wait as others of their channel do. A launch waits too where as many launches as the queue
holds are pending on the GPU.

Without launches, idle time is taken for the host's, on whichever stream: an end explains a start however late.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, NamedTuple

import numpy as np

from jitter.analysis.alignment.program import Program
from jitter.analysis.execution.interference import estimate_interference, find_later_beside
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COLLECTIVE, REDUCTIONS, SYNC
from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.numeric.compilation import compiled
from jitter.core.numeric.selection import later
from jitter.core.numeric.stats import middle_value


class Launches(NamedTuple):
    """A rank's launches in order, ns."""

    call: Floats
    back: Floats
    start: Floats
    """Of what each launched, on the GPU."""


def queue_limit(orders: Sequence[Launches]) -> int | None:
    """Find the limit: the most launches ever pending, where launches then had to wait; None if none is seen."""
    if not any(len(order.call) for order in orders):
        return None
    pending, freed, took = [], [], []
    for call, back, start in orders:
        ordered = np.sort(start)
        started = np.searchsorted(ordered, back, side="right")
        pending.append(np.arange(1, len(back) + 1) - started)
        freed.append(back - ordered[np.maximum(started - 1, 0)])
        took.append(back - call)
    counts, since_start, in_call = np.concatenate(pending), np.concatenate(freed), np.concatenate(took)
    most = int(counts.max(initial=0))
    # where the GPU is always behind, most launches wait: launches that surely did not wait give a launch's length
    roomy = counts <= most // 2
    usual = float(np.median(in_call[roomy] if roomy.any() else in_call))
    # a launch that finds the last place free does not wait
    waited = (counts == most) & (in_call > THRESHOLDS.much_more * usual)
    if most < THRESHOLDS.dependencies.min_queue or waited.sum() < THRESHOLDS.min_repeats:
        return None
    return (
        most
        if (since_start[waited] <= THRESHOLDS.dependencies.right_after_ns).mean() >= THRESHOLDS.always_share
        else None
    )


# for compiled loops, which know no classes
_LATER_NS: Final = THRESHOLDS.later_ns
_RIGHT_AFTER_NS: Final = THRESHOLDS.dependencies.right_after_ns
_ROUNDING_NS: Final = THRESHOLDS.rounding_ns
_EXPLAINED_SHARE: Final = THRESHOLDS.main_share
_LOOK_BACK: Final = THRESHOLDS.max_tried
_NONE: Final = -(1 << 62)


Provenance = Literal["recorded", "observed", "inferred"]
"""How a wait is known: a call that waits has a row; starts on the GPU right after ends show it; the distance of a call
without a row to an end shows it.
"""


class Wait(NamedTuple):
    """An operation waits for another one's end; both are places in the program.

    `on_op_index` below 0 is the last operation of the step before on stream ~`on_op_index`.
    """

    op_index: int
    on_op_index: int
    kind: Literal["event", "sync"]
    """Whether the operation waits on the GPU, or the host before its call."""
    steps_back: int = 0
    """How many steps before the operation's the awaited place was run."""
    provenance: Provenance = "observed"
    spread_ns: float | None = None
    """By how much the distance from the awaited end to the call varies: how well an inferred wait fits."""
    gap_spread_ns: float | None = None
    """The same of the host's time since its call before: what the wait explains."""

    def on(self, columns: Mapping[tuple[int, int], int]) -> int:
        """Return what it waits for as in `JobArrays.wait_on`; `columns` are those of (place, steps back)."""
        return ~columns[self.on_op_index, self.steps_back] if self.steps_back else self.on_op_index


class RowDependency(NamedTuple):
    """A `Wait` between rows of a lake: `ordinal` is the launch order of a row in the commonest sequence."""

    ordinal: int
    on_ordinal: int
    kind: Literal["event", "sync"]
    steps_back: int = 0
    provenance: Provenance = "observed"
    spread_ns: float | None = None


@dataclass(frozen=True)
class Dependencies:
    """The dependencies between the operations of one program."""

    waits: tuple[Wait, ...]
    thread: Ints
    """(operations,) the host thread whose calls it follows; all 0 where the threads hand over to each other."""
    queue: int | None
    """Limit of pending launches, at which the host has to wait; None: no limit was seen."""
    launch_ns: float
    """Usual time from the end of a launch to the start of its kernel, where only that held it back."""
    stream_ns: float
    """The same from the end of the operation before it on its stream."""
    interference: float = 0.0
    """By what part compute kernels take longer while a collective of their rank runs; 0 where that was not seen."""
    has_launches: bool = True
    """Whether any launch was recorded. Without launches, idle time before a kernel counts as its host's."""

    later_beside: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """By place of a compute kernel the collectives launched after it that were seen to run beside it."""
    host_lead_ns: Mapping[int, float] = field(default_factory=dict)
    """By place of a launch with inferred waits: how much of its own host time lies before the wait."""

    bound_waits: tuple[Wait, ...] = ()
    """Waits without a record that may be or not be: where launches follow ends, but no wait fits."""
    bound_lead_ns: Mapping[int, float] = field(default_factory=dict)
    """By place of an inferred wait that binds in every step: the most that may lie before the wait."""
    unexplained: float = 0.0
    """Share of the step's time in host gaps that vary on most ranks and may be waits, where no wait fits."""
    following_teams: frozenset[int] = frozenset()
    """Places of these whose calls follow ends of another team: no `Wait` expresses that."""

    @property
    def bound(self) -> "Dependencies | None":
        """The other dependencies that the recording allows; None where it leaves no choice."""
        if not self.bound_waits and not self.bound_lead_ns:
            return None
        return replace(
            self,
            waits=(*self.waits, *self.bound_waits),
            host_lead_ns={**self.host_lead_ns, **self.bound_lead_ns},
            bound_waits=(),
            bound_lead_ns={},
        )

    @cached_property
    def by_place(self) -> dict[int, tuple[Wait, ...]]:
        """By place what it waits for once it is called."""
        return _by_place(wait for wait in self.waits if wait.provenance != "inferred")

    @cached_property
    def of_hosts(self) -> dict[int, tuple[Wait, ...]]:
        """By place what the host waits for before its call, without a record."""
        return _by_place(wait for wait in self.waits if wait.provenance == "inferred")

    @cached_property
    def carried(self) -> tuple[tuple[int, int], ...]:
        """(place, steps back), ascending and without holes, of the awaited operations of earlier steps."""
        most: dict[int, int] = {}
        for wait in self.waits:
            if wait.steps_back:
                most[wait.on_op_index] = max(most.get(wait.on_op_index, 0), wait.steps_back)
        return tuple((place, back) for place in sorted(most) for back in range(1, most[place] + 1))


def _by_place(waits: Iterable[Wait]) -> dict[int, tuple[Wait, ...]]:
    waits_at: dict[int, tuple[Wait, ...]] = {}
    for wait in waits:
        waits_at[wait.op_index] = (*waits_at.get(wait.op_index, ()), wait)
    return waits_at


class Sample(NamedTuple):
    """Ranks' steps one after another: (cells, operations), and how each cell comes to its step (cells, streams); ns."""

    rank: Ints
    """(cells,) whose each is, by number in the run."""
    start: Floats
    end: Floats
    """Its own; where a rank lacks it, that of the one before it on its stream."""
    call: Floats
    back: Floats
    submit: Floats
    end_before: Floats
    end_in_step_before: Floats
    """Of the same operation in the step before; NaN where the rank then lacked it."""
    stream_end: Floats


class WaitSearch(NamedTuple):
    """What is searched for waits, and what is known of the operations so far."""

    sample: Sample
    within_ns: float
    """An end explains starts so long after it."""
    previous: Ints
    """(operations,) the operation before each on its stream; -1 for none."""
    last: Ints
    """(streams,) the last operation so far on each; -1 for none."""
    final: Ints
    """(streams,) the last operation of a step on each; -1 for none."""
    last_end: Floats
    """(streams, cells) the latest end on each; at first that of the step before."""
    room: Floats
    """(3, cells) until when each cell was held back, what explains that, and the latest end of what may be awaited."""
    awaited: Ints
    """(operations, streams) what each operation waits for on each stream: a place, ~stream, or `_NONE`.

    In the step before ~(streams + place).
    """


def infer(program: Program, thread: Ints, sample: Sample, launches: Sequence[Launches]) -> Dependencies:
    """Infer the dependencies of a program from a sample of its cells, and of some ranks' launches in order."""
    launch_ns, stream_ns = _usual_delays(sample)
    cells, operations = sample.start.shape
    streams = sample.stream_end.shape[1]
    is_launch = program.kinds < SYNC
    has_launches = not is_launch.any() or not np.isnan(sample.call[:, is_launch]).all()
    awaited = np.full((operations, streams), _NONE, np.int64)
    previous, final = np.full(operations, -1, np.int64), np.full(streams, -1, np.int64)
    for stream in range(streams):
        places = np.flatnonzero(program.streams == stream)
        previous[places[1:]], final[stream] = places[:-1], places.max(initial=-1)
    search = WaitSearch(
        sample,
        float(_RIGHT_AFTER_NS) if has_launches else math.inf,
        previous,
        np.full(streams, -1, np.int64),
        final,
        sample.stream_end.T.copy(),
        np.empty((3, cells)),
        awaited,
    )
    find_waits(program.kinds, program.streams, launch_ns, stream_ns, search)
    if has_launches:
        add_waits_of_channels(program, sample, awaited)
    for place, call in program.waits_in_barriers.items():  # given
        awaited[call] = _NONE
        awaited[call, program.streams[place]] = place
    waits = []
    for place, stream in np.argwhere(awaited != _NONE).tolist():
        on, is_call = int(awaited[place, stream]), program.kinds[place] == SYNC
        is_of_step_before = ~on >= streams
        waits.append(
            Wait(
                place,
                ~on - streams if is_of_step_before else on,
                "sync" if is_call else "event",
                int(is_of_step_before),
                "recorded" if is_call else "observed",
            )
        )
    later_beside = find_later_beside(program, sample.start, sample.end)
    interference = estimate_interference(program, later_beside, sample.rank, sample.start, sample.end)
    queue = queue_limit(launches)
    return Dependencies(
        *(tuple(waits), thread, queue, launch_ns, stream_ns, interference, has_launches),
        later_beside=later_beside if interference else {},
    )


def add_waits_of_channels(program: Program, sample: Sample, awaited: Ints) -> None:
    """Let all operations of a channel wait as those of them that were seen to.

    A channel is what comes first on one stream after operations of one kind on another: reductions after the main
    stream's kernels, or these after what is received. On a stream that is never idle, or behind a late host, no such
    wait holds an operation back; were they faster, it would begin before its data are there. One reduction shows it,
    one collective without a name, or one operation after a receive, as on a slow stage, for which all others have come;
    of others half: what is gathered or sent may be there long before. None waits if any begins before that in the
    sample. `awaited` (operations, streams) is that of `WaitSearch`.
    """
    latest: dict[int, int] = {}
    channels: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for place, operation in enumerate(program.operations):
        stream = operation.stream
        for other, on in latest.items() if stream >= 0 else ():
            if other != stream and on > latest.get(stream, -1):
                of_kinds = [(each.stream, each.kind, each.collective) for each in (operation, program.operations[on])]
                channels.setdefault(tuple(of_kinds), []).append((place, on))
        if stream >= 0:
            latest[stream] = place
    for channel in channels.values():
        waiting, on = np.array(channel).T
        operation, of_others = program.operations[waiting[0]], program.operations[on[0]]
        may_reduce = operation.kind == COLLECTIVE and operation.collective in (*REDUCTIONS, None)
        least = 1 if may_reduce or of_others.is_exchange else THRESHOLDS.main_share * len(channel)
        begins_before = sample.start[:, waiting] + _ROUNDING_NS < sample.end[:, on]
        on_stream = awaited[waiting, of_others.stream]
        if (on_stream == on).sum() >= least and not begins_before.any():
            awaited[waiting, of_others.stream] = np.where(on_stream == _NONE, on, on_stream)


@compiled
def find_waits(kind: Ints, stream: Ints, launch_ns: float, stream_ns: float, search: WaitSearch) -> None:
    """Find what each operation waits for on each stream."""
    sample, room, last, last_end = search.sample, search.room, search.last, search.last_end
    cells = sample.start.shape[0]
    for op in range(len(kind)):
        for cell in range(cells):
            if kind[op] == SYNC:
                room[0, cell], room[1, cell] = sample.back[cell, op], sample.call[cell, op]
            else:
                room[0, cell] = sample.start[cell, op]
                room[1, cell] = later(sample.submit[cell, op] + launch_ns, sample.end_before[cell, op] + stream_ns)
        has_waits = find_waits_of_operation(search, stream[op], _ROUNDING_NS, op)
        if kind[op] == SYNC and not has_waits:
            # the host's clock and the GPU's agree to some microseconds only: strictly first, then within that
            find_waits_of_operation(search, stream[op], float(_RIGHT_AFTER_NS), op)
        if stream[op] >= 0:
            last[stream[op]] = op
            for cell in range(cells):
                last_end[stream[op], cell] = later(last_end[stream[op], cell], sample.end[cell, op])


@compiled
def find_waits_of_operation(search: WaitSearch, own_stream: int, slack_ns: float, op: int) -> bool:  # noqa: PLR0912  # one rule
    """Find what one operation waits for; return whether it waits for anything.

    On each other stream that is the latest operation that had always ended when this one was let go. Together they
    must explain half of the starts that nothing else explains; of a synchronising call (no stream), which surely waits,
    half of that time. Of several, those are kept that were the last somewhere.
    """
    sample, room, awaited, last = search.sample, search.room, search.awaited, search.last
    cells = sample.start.shape[0]
    unexplained = 0.0
    for cell in range(cells):
        unexplained += weight(search, cell, own_stream)
        room[2, cell] = math.nan
    if unexplained == 0:
        return False
    for stream in range(len(last)):
        if stream != own_stream and may_matter(search, stream):
            awaited[op, stream] = find_always_ended(search, stream, slack_ns)
            if awaited[op, stream] != _NONE:
                for cell in range(cells):
                    room[2, cell] = later(room[2, cell], ended(sample, cell, awaited[op, stream]))
    explained = 0.0
    for cell in range(cells):
        if is_right_after(search, cell):
            explained += weight(search, cell, own_stream)
    kept = False
    for stream in range(len(last)):
        if awaited[op, stream] != _NONE:
            matters = False
            if explained > 0 and explained >= _EXPLAINED_SHARE * unexplained:
                for cell in range(cells):
                    if is_right_after(search, cell) and ended(sample, cell, awaited[op, stream]) == room[2, cell]:
                        matters = True
                        break
            if matters:
                kept = True
            else:
                awaited[op, stream] = _NONE
    return kept


@compiled
def weight(search: WaitSearch, cell: int, own_stream: int) -> float:
    """Return how much a start counts that nothing else explains: 1, of a synchronising call its time; else 0."""
    late_ns = search.room[0, cell] - search.room[1, cell]
    return (late_ns if own_stream < 0 else 1.0) if late_ns > _LATER_NS else 0.0


@compiled
def may_matter(search: WaitSearch, stream: int) -> bool:
    """Tell whether an unexplained start is right after an end on this stream at the earliest, in any cell."""
    room = search.room
    for cell in range(room.shape[1]):
        until = room[0, cell]
        if until - room[1, cell] > _LATER_NS and until - search.last_end[stream, cell] <= search.within_ns:
            return True
    return False


@compiled
def find_always_ended(search: WaitSearch, stream: int, slack_ns: float) -> int:
    """Return the latest operation of a stream that had ended in every cell by then, as `WaitSearch.awaited` does.

    The step before may gather the parameters of each layer in turn: a layer waits for its own alone.
    """
    candidate = search.last[stream]
    for _ in range(_LOOK_BACK):
        if candidate < 0:
            break
        if had_always_ended(search, candidate, slack_ns):
            return int(candidate)
        candidate = search.previous[candidate]
    if had_always_ended(search, ~stream, slack_ns):
        return ~stream
    before = search.final[stream]
    for _ in range(_LOOK_BACK):
        if before < 0 or search.previous[before] < 0:
            break
        before = search.previous[before]
        candidate = ~(len(search.last) + before)
        if had_always_ended(search, candidate, slack_ns):
            return int(candidate)
    return _NONE


@compiled
def had_always_ended(search: WaitSearch, candidate: int, slack_ns: float) -> bool:
    """Tell whether an operation had ended in every cell where that is known, and it is known in one at least."""
    is_known = False
    for cell in range(search.sample.start.shape[0]):
        end, by = ended(search.sample, cell, candidate), search.room[0, cell] + slack_ns
        if end > by:
            return False
        is_known = is_known or end <= by
    return is_known


@compiled
def ended(sample: Sample, cell: int, candidate: int) -> float:
    """Return the end of an operation, or as `WaitSearch.awaited` tells of one in the step before."""
    if candidate >= 0:
        return float(sample.end[cell, candidate])
    streams = sample.stream_end.shape[1]
    if ~candidate < streams:
        return float(sample.stream_end[cell, ~candidate])
    return float(sample.end_in_step_before[cell, ~candidate - streams])


@compiled
def is_right_after(search: WaitSearch, cell: int) -> bool:
    """Tell whether an unexplained start is right after the end of what may be awaited."""
    until, explained, latest = search.room[0, cell], search.room[1, cell], search.room[2, cell]
    return bool(until - explained > _LATER_NS and latest > explained and until - latest <= search.within_ns)


def _usual_delays(sample: Sample) -> tuple[float, float]:
    """Return the usual times from a launch's return, and from the stream's last end, to starts that only this held.

    A GPU that is never idle for long, as behind fast hosts, tells the first where its stream was ready before a launch.
    """
    stream_held = sample.end_before - sample.submit > _RIGHT_AFTER_NS
    stream_ns = _usual((sample.start - sample.end_before)[stream_held])
    latency, idle_ns = sample.start - sample.submit, sample.submit - sample.end_before
    usual = (_usual(latency[idle_ns > least]) for least in (_RIGHT_AFTER_NS, stream_ns or 0.0))
    return next((launch_ns for launch_ns in usual if launch_ns is not None), 0.0), stream_ns or 0.0


def _usual(delays: Floats) -> float | None:
    short = delays[delays <= _RIGHT_AFTER_NS]
    return middle_value(short) if len(short) else None


def row_dependencies(program: Program, dependencies: Dependencies) -> list[RowDependency]:
    """Return the waits within a step between rows of the lake, by the program's commonest sequence.

    A call that waits has no row: the activity that is launched next stands for it.
    """
    operations = program.operations
    reference = program.places[program.reference].tolist()
    ordinal = {place: number for number, place in enumerate(p for p in reference if operations[p].kind < SYNC)}
    row_waits = []
    for wait in dependencies.waits:
        waiting = wait.op_index
        while waiting < len(operations) and waiting not in ordinal:
            waiting += 1
        if waiting in ordinal and (wait.on_op_index < 0 or wait.on_op_index in ordinal):
            on = ordinal.get(wait.on_op_index, wait.on_op_index)
            row_waits.append(
                RowDependency(ordinal[waiting], on, wait.kind, wait.steps_back, wait.provenance, wait.spread_ns)
            )
    return row_waits
