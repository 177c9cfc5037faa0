"""The replay of METRICS once more: one loop over calls and activities, numbers and dictionaries, in global time.

It is for jobs all of whose ranks run the same operations. Which operation waits for which is given (whether that is
inferred rightly is another matter), and so is the usual time from a launch and from a stream's last end to a start;
everything else is made from what was recorded. `clock` puts a rank's times on the one clock that the simulator knows.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Op(NamedTuple):
    """One operation of one rank's step as recorded, in global time; a call that waits has no stream."""

    kind: str
    name: str
    stream: int | None
    call: int
    back: int
    start: int | None
    end: int | None
    thread: int = 0
    """Whose calls it follows."""


Steps = Sequence[Sequence[Op]]
"""One rank's steps."""


class Rule(NamedTuple):
    """The facts that hold for every rank and step."""

    waits: Mapping[int, Sequence[int]]
    """Operation to those that it waits for; below 0: ~n is the last of stream `streams[n]` in the step before."""
    streams: Sequence[int]
    launch_ns: float
    stream_ns: float
    queue: int | None
    host_waits: Mapping[int, Sequence[tuple[int, int]]]
    """Operation to those, (operation, steps back), that the host waits for before its call, without a call for that."""
    host_lead_ns: Mapping[int, float]
    """Operation to how much of the host's time before its call lies before that wait."""


class Own(NamedTuple):
    """The own time of an operation."""

    host: float | None
    call: float
    lead: float
    delay: float
    gpu: float


Key = tuple[int, int, int]
"""(rank, step, operation)."""


class Rank:
    """The state of one rank: its host, its streams, the content of its launch queue."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.back: dict[int, float] = {}
        """By thread."""
        self.free: dict[int, float] = {}
        self.free_before: dict[int, float] = {}
        self.started: list[float] = []
        self.ended: dict[int, float] = {}
        self.earlier: list[dict[int, float]] = [{}, {}]
        """What ended in the step before, in the one before that, and so on."""

    def next_step(self) -> None:
        self.earlier = [self.ended, *self.earlier]
        self.free_before, self.ended = dict(self.free), {}

    def let_go(self, at: int) -> tuple[float | None, int | None]:
        """When a wait without a call let the host go, and for which operation of this step it waited."""
        found = [
            (end - self.rule.host_lead_ns.get(at, 0.0), None if back else o)
            for o, back in self.rule.host_waits.get(at, ())
            if (end := (self.earlier[back - 1] if back else self.ended).get(o)) is not None
        ]
        return max(found, key=lambda one: one[0], default=(None, None))

    def since(self, op: "Op", at: int) -> float | None:
        """When the host's own time before a call began."""
        before, let_go = self.back.get(op.thread), self.let_go(at)[0]
        return before if before is None or let_go is None else max(before, let_go)

    def awaited(self, at: int) -> float | None:
        """The latest end of what operation `at` waits for."""
        found = [
            self.ended.get(o) if o >= 0 else self.free_before.get(self.rule.streams[~o])
            for o in self.rule.waits.get(at, ())
        ]
        return max((end for end in found if end is not None), default=None)

    def slot(self) -> float | None:
        """When the launch queue has a place."""
        if self.rule.queue is None or len(self.started) < self.rule.queue:
            return None
        return sorted(self.started)[-self.rule.queue]

    def held(self, op: Op, at: int) -> float | None:
        """Until when a call is held back: by what it waits for, or by a full queue."""
        return self.awaited(at) if op.kind == "sync" else self.slot()

    def ready(self, op: Op, at: int, submitted: float) -> float:
        """When all that a kernel waits for is over."""
        assert op.stream is not None
        found = [submitted + self.rule.launch_ns]
        if op.stream in self.free:
            found.append(self.free[op.stream] + self.rule.stream_ns)
        awaited = self.awaited(at)
        return max(found if awaited is None else [*found, awaited])

    def take(self, op: Op, at: int, back: float, start: float | None, end: float | None) -> None:
        self.back[op.thread] = back
        if op.stream is not None:
            assert start is not None
            assert end is not None
            self.started.append(start)
            self.ended[at] = end
            # one that overlaps the next may end after it
            self.free[op.stream] = max(end, self.free.get(op.stream, end))


def own_times(recorded: Mapping[int, Steps], rule: Rule) -> dict[Key, Own]:
    """Each operation's."""
    found: dict[Key, Own] = {}
    for rank, steps in recorded.items():
        state = Rank(rule)
        for number, step in enumerate(steps):
            state.next_step()
            for at, op in enumerate(step):
                since = state.since(op, at)
                host = None if since is None else op.call - since
                held = state.held(op, at)
                in_call = op.back - (op.call if held is None else max(op.call, held))
                lead = delay = gpu = 0.0
                if op.kind != "sync":
                    assert op.start is not None
                    assert op.end is not None
                    submitted = min(op.back, op.start)
                    lead = op.back - submitted
                    delay = op.start - state.ready(op, at, submitted)
                    gpu = 0 if op.kind == "collective" else op.end - op.start
                found[rank, number, at] = Own(host, in_call, lead, delay, gpu)
                state.take(op, at, op.back, op.start, op.end)
    return found


def medians(own: Mapping[Key, Own], ranks: Sequence[int]) -> dict[Key, Own]:
    """For each operation of each step the lower median over ranks, which all of them get."""
    found = {}
    for rank, number, at in own:
        values = []
        for field in range(len(Own._fields)):
            known = sorted(v for r in ranks if (v := own[r, number, at][field]) is not None)
            values.append(known[(len(known) - 1) // 2] if known else None)
        found[rank, number, at] = Own(*values)  # type: ignore[arg-type]
    return found


Meeting = tuple[object, int, int]
"""A group of ranks, the step, which of its collectives in the step."""


def replay(
    recorded: Mapping[int, Steps],
    rule: Rule,
    own: Mapping[Key, Own],
    groups: Callable[[int, int], object],
    transfers: Mapping[Meeting, float],
) -> dict[Key, float]:
    """When each activity ends if these are the own times; `groups(rank, operation)` is a collective's group.

    Ends of collectives are guessed, all ranks computed, the guess replaced by what the arrivals give, until it holds.
    """
    ends: dict[Meeting, float] = {}
    while True:
        arrivals: dict[Meeting, list[float]] = defaultdict(list)
        times: dict[Key, float] = {}
        for rank, steps in recorded.items():
            _one_rank(rank, steps, Rank(rule), own, groups, ends, arrivals, times)
        found = {meeting: max(come) + transfers[meeting] for meeting, come in arrivals.items()}
        if found == ends:
            return times
        ends = found


def _one_rank(
    rank: int,
    steps: Steps,
    state: Rank,
    own: Mapping[Key, Own],
    groups: Callable[[int, int], object],
    ends: Mapping[Meeting, float],
    arrivals: dict[Meeting, list[float]],
    times: dict[Key, float],
) -> None:
    for number, step in enumerate(steps):
        state.next_step()
        met: dict[object, int] = defaultdict(int)
        for at, op in enumerate(step):
            mine = own[rank, number, at]
            # nothing tells what goes before a rank's first call: it begins when it began
            since = state.since(op, at)
            called = op.call if since is None or mine.host is None else since + mine.host
            held = state.held(op, at)
            back = (called if held is None else max(called, held)) + mine.call
            start = end = None
            if op.kind != "sync":
                start = state.ready(op, at, back - mine.lead) + mine.delay
                end = start + mine.gpu
                if op.kind == "collective":
                    group = groups(rank, at)
                    meeting = (group, number, met[group])
                    met[group] += 1
                    arrivals[meeting].append(start)
                    end = max(start, ends.get(meeting, start))
                times[rank, number, at] = end
            state.take(op, at, back, start, end)


def transfers_of(recorded: Mapping[int, Steps], groups: Callable[[int, int], object]) -> dict[Meeting, float]:
    """From the last arrival of each collective to its end."""
    came: dict[Meeting, list[Op]] = defaultdict(list)
    for rank, steps in recorded.items():
        for number, step in enumerate(steps):
            met: dict[object, int] = defaultdict(int)
            for at, op in enumerate(step):
                if op.kind == "collective":
                    group = groups(rank, at)
                    came[group, number, met[group]].append(op)
                    met[group] += 1
    return {meeting: min(op.end - op.start for op in ops) for meeting, ops in came.items()}  # type: ignore[operator]
