"""An event-by-event engine: hosts launch, streams run in order, collectives meet, compute slows beside communication.

A host runs its operations one after another and is only held up by a synchronisation, by a wait for one operation on
the GPU, or by a loader that delivers at its own pace. A stream runs its items in the
order of their launch. A compute kernel that runs while a collective of its rank runs (or waits) progresses more
slowly, by the job's interference.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

LAUNCH_NS: Final = 3_500
"""From a launch's begin to the earliest start of its kernel."""
GAP_NS: Final = 900
"""Between two kernels of a stream."""
JOIN_NS: Final = 600
"""More than that after an item that waited for another stream."""
MAIN: Final = 7
_STARTS: Final = -1


@dataclass
class Op:
    """One operation of a host; of a kernel or a collective also what it becomes on the GPU."""

    kind: str
    """host, pace, kernel, collective, join, sync, wait, step (a marker's begin), end (its end)."""
    step: int
    ns: float = 0.0
    """Host: its time. Pace: the earliest time. Kernel: its work. Collective: from the last arrival to the end."""
    call_ns: float = 5_000.0
    """Time of the launching call."""
    stream: int = MAIN
    awaited: int = MAIN
    """Join: the stream whose last item `stream` waits for; a collective waits for its last item."""
    name: str = ""
    grid: int = 1
    meeting: tuple[object, ...] = ()
    """Collective: which one; its members meet."""
    members: int = 0
    comm: "Comm | None" = None
    mark: tuple[object, ...] = ()
    """Kernel or collective: its name for a wait. Wait: what the host waits for; nothing where that was not launched."""
    recorded: bool = True
    """Sync, wait: whether the trace has a row for the call."""


@dataclass(frozen=True)
class Comm:
    """The parameters of a collective that a trace states."""

    operation: str
    group: str
    ranks: tuple[int, ...]
    elements: int
    source: int | None = None
    destination: int | None = None


@dataclass
class Item:
    """An operation on a stream."""

    op: Op
    ready_ns: float
    awaited: "Item | None"
    left_ns: float = 0.0
    start_ns: float = -1.0
    end_ns: float = -1.0
    seen_ns: float = 0.0
    version: int = 0
    call_start_ns: float = 0.0
    call_end_ns: float = 0.0


@dataclass
class RankTrace:
    """The work of one rank, in global time, ns."""

    items: list[Item] = field(default_factory=list)
    syncs: list[tuple[int, float, float]] = field(default_factory=list)
    """(step, begin, end)."""
    steps: dict[int, list[float]] = field(default_factory=dict)
    """Step number to [begin, end] of its marker."""


class _Rank:
    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops, self.at, self.clock = ops, 0, 0.0
        self.queues: dict[int, deque[Item]] = {}
        self.last: dict[int, Item] = {}
        self.free: dict[int, float] = {}
        self.busy: dict[int, Item | None] = {}
        self.communicating = 0
        self.pending = 0
        self.sync_begun: float | None = None
        self.marked: dict[tuple[object, ...], Item] = {}
        self.trace = RankTrace()


class Engine:
    """Runs one job."""

    def __init__(self, programs: Sequence[Sequence[Op]], interference: float) -> None:
        self._ranks = [_Rank(ops) for ops in programs]
        self._slow = 1.0 + interference
        self._events: list[tuple[float, int, int, Item, int]] = []
        """(time, order, rank, item, version): the item's start where the version is `_STARTS`, else its end."""
        self._count = 0
        self._arrived: dict[tuple[object, ...], list[tuple[int, Item]]] = {}

    def run(self) -> list[RankTrace]:
        """Run to the end and return each rank's trace; raise RuntimeError if ranks wait for each other for ever."""
        for number in range(len(self._ranks)):
            self._host(number, 0.0)
        while self._events:
            time, _, number, item, version = heapq.heappop(self._events)
            if version == _STARTS:
                self._start(number, item, time)
            elif item.version == version:
                self._finish(number, item, time)
        if any(rank.at < len(rank.ops) or rank.pending for rank in self._ranks):
            raise RuntimeError("ranks wait for each other for ever")
        return [rank.trace for rank in self._ranks]

    def _push(self, time: float, number: int, item: Item, version: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (time, self._count, number, item, version))

    def _host(self, number: int, now: float) -> None:
        """Run a host up to a synchronisation that has to wait."""
        rank = self._ranks[number]
        rank.clock = max(rank.clock, now)
        while rank.at < len(rank.ops):
            op = rank.ops[rank.at]
            if op.kind in ("sync", "wait"):
                if rank.sync_begun is None:
                    rank.sync_begun = rank.clock
                if _holds(rank, op):
                    return
                end = max(rank.clock, now) + 4_000.0
                if op.recorded:
                    rank.trace.syncs.append((op.step, rank.sync_begun, end))
                rank.clock, rank.sync_begun = end, None
            elif op.kind == "host":
                rank.clock += op.ns
            elif op.kind == "pace":
                rank.clock = max(rank.clock, op.ns)
            elif op.kind == "step":
                rank.trace.steps[op.step] = [rank.clock, rank.clock]
            elif op.kind == "end":
                rank.trace.steps[op.step][1] = rank.clock
            else:
                self._launch(number, op)
            rank.at += 1

    def _launch(self, number: int, op: Op) -> None:
        rank = self._ranks[number]
        begin = rank.clock
        ready = begin
        if op.kind != "join":
            rank.clock += op.call_ns
            ready = begin + LAUNCH_NS
        other = rank.last.get(op.awaited) if op.kind in ("join", "collective") and op.awaited != op.stream else None
        item = Item(op, ready, other, op.ns, call_start_ns=begin, call_end_ns=rank.clock)
        rank.last[op.stream] = item
        if op.mark:
            rank.marked[op.mark] = item
        rank.pending += 1
        rank.queues.setdefault(op.stream, deque()).append(item)
        if op.kind != "join":
            rank.trace.items.append(item)
        if len(rank.queues[op.stream]) == 1 and rank.busy.get(op.stream) is None:
            self._head(number, op.stream)

    def _head(self, number: int, stream: int) -> None:
        """See when the first item of a stream's queue can start, if that is known."""
        rank = self._ranks[number]
        queue = rank.queues.get(stream)
        if not queue or rank.busy.get(stream) is not None:
            return
        item = queue[0]
        if item.awaited is not None and item.awaited.end_ns < 0:
            return
        awaited = -1.0 if item.awaited is None else item.awaited.end_ns + (0 if item.op.kind == "join" else 1_500.0)
        gap = 0.0 if item.op.kind == "join" else GAP_NS
        rank.busy[stream] = item
        queue.popleft()
        self._push(max(item.ready_ns, rank.free.get(stream, 0.0) + gap, awaited), number, item, _STARTS)

    def _start(self, number: int, item: Item, now: float) -> None:
        rank, op = self._ranks[number], item.op
        item.start_ns = item.seen_ns = now
        if op.kind == "join":
            self._finish(number, item, now)
        elif op.kind == "kernel":
            self._push(now + item.left_ns * self._rate(rank), number, item, item.version)
        else:
            self._communicate(number, 1, now)
            arrived = self._arrived.setdefault(op.meeting, [])
            arrived.append((number, item))
            if len(arrived) == op.members:
                took = max(one.op.ns for _, one in arrived)
                for member, one in arrived:
                    self._push(now + took, member, one, one.version)

    def _rate(self, rank: _Rank) -> float:
        return self._slow if rank.communicating else 1.0

    def _communicate(self, number: int, more: int, now: float) -> None:
        """A collective begins or ends on a rank: what computes there gets slower or faster."""
        rank = self._ranks[number]
        before = self._rate(rank)
        rank.communicating += more
        after = self._rate(rank)
        if before == after:
            return
        for item in rank.busy.values():
            if item is not None and item.op.kind == "kernel" and item.start_ns >= 0:
                item.left_ns = max(0.0, item.left_ns - (now - item.seen_ns) / before)
                item.seen_ns = now
                item.version += 1
                self._push(now + item.left_ns * after, number, item, item.version)

    def _finish(self, number: int, item: Item, now: float) -> None:
        rank, stream = self._ranks[number], item.op.stream
        item.end_ns = now
        rank.busy[stream] = None
        rank.free[stream] = max(rank.free.get(stream, 0.0), now + JOIN_NS if item.op.kind == "join" else now)
        rank.pending -= 1
        if item.op.kind == "collective":
            self._communicate(number, -1, now)
        for other in list(rank.queues):
            self._head(number, other)
        if rank.sync_begun is not None and not _holds(rank, rank.ops[rank.at]):
            self._host(number, now)


def _holds(rank: _Rank, op: Op) -> bool:
    """Return whether a synchronisation or a wait still holds up the host."""
    if op.kind == "sync":
        return rank.pending > 0
    awaited = rank.marked.get(op.mark)
    return awaited is not None and awaited.end_ns < 0
