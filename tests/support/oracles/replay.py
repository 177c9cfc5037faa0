"""The replay of METRICS once more: one loop over calls and activities, numbers and dictionaries, in global time.

It is for jobs all of whose ranks run the same operations. Which operation waits for which is given (whether that is
inferred rightly is another matter), and so is the usual time from a launch and from a stream's last end to a start;
everything else is made from what was recorded. `clock` puts a rank's times on the one clock that the simulator knows.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import jitter
from jitter.analysis.execution.dependencies import Wait
from jitter.core.names.kernels import COLLECTIVE, SYNC
from jitter.simulate import Fault, Run, simulate
from tests.support.simulated import accept_changed_files, ingest_run, on_disk, small


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


FAULTS = [
    Fault.parse("cpu_stall:rank=1,step=2,kernel=9,ms=1.5"),
    Fault.parse("slow_gpu:rank=2,factor=1.4"),
    Fault.parse("late_start:rank=0,step=3,ms=2"),
]
JOBS = {
    "overlap": small("data_parallel"),
    "groups": small("tensor_data"),
    "syncs and a side stream": small("sharded", syncs=frozenset({"loss", "before", "after"}), side_stream=21),
    "a full queue": small("tensor_parallel", launch_queue=12),
    "late returns and overlap": small("data_parallel", cpu_bound=True),
    "three ranks": small("tensor_parallel", ranks=3),
    "two threads": small("tensor_parallel", cpu_bound=True),
    "a full queue beside": small("tensor_parallel", launch_queue=12),
    "waits without calls": small("tensor_parallel", cpu_bound=True),
    "a slow host": small("sharded", cpu_bound=True, syncs=frozenset({"loss", "before"})),
}


def recorded_of(run: Run, lake, threads: list[int]) -> dict[int, list[list[Op]]]:
    """Each rank's steps from its files: activities by ordinal, calls that wait where they began."""
    found = {}
    for recording in run.ranks():
        steps = []
        for number in run.job.step_numbers:
            rows, syncs = on_disk(lake, recording.rank, number)
            ops = [
                (row.launch_start_ns, 0, Op(row.kind, row.kernel_name, row.stream, *times))
                for row in rows.itertuples()
                for times in [(row.launch_start_ns, row.launch_end_ns, row.start_ns, row.end_ns)]
            ]
            ops += [
                (call.start_ns, 1, Op("sync", call.name, None, call.start_ns, call.end_ns, None, None))
                for call in syncs.itertuples()
            ]
            in_order = [op for _, _, op in sorted(ops, key=lambda one: one[:2])]
            zero = recording.clock.offset_ns
            moved = [
                op._replace(
                    thread=threads[at],
                    **{f: v - zero for f in ("call", "back", "start", "end") if (v := getattr(op, f)) is not None},
                )
                for at, op in enumerate(in_order)
            ]
            steps.append(moved)
        found[recording.rank] = steps
    return found


@dataclass(frozen=True)
class OracleJob:
    """A run, its lake, and what the oracles need of it."""

    run: Run
    lake: "jitter.Lake"
    examined: Any
    recorded: dict[int, list[list[Op]]]
    rule: Rule
    own: dict[Key, Own]
    usual: dict[Key, Own]
    transfers: dict[Meeting, float]
    first_kernel: int
    """The place of the step's first main-stream kernel."""
    zeros: dict[int, int]
    """Of each rank's clock in global time."""

    def group(self, rank: int, at: int) -> object:
        return group_of(self.run, rank, at)


def group_of(run: Run, rank: int, at: int) -> object:
    """The group of the collective at a place of the step."""
    name = [op.group for op in run.plan.programs[0].step if op.kind != "call"][at]
    return name, int(run.plan.groups[name][rank])


def blur(lake: "jitter.Lake") -> jitter.Lake:
    """Cases that the simulator lacks: calls that return after their kernel began, kernels that overlap the next."""
    rng = np.random.default_rng(4)
    for path in sorted((lake.root / "kernels").rglob("*.parquet")):
        rows = pq.read_table(path, partitioning=None)
        called, back, start, end = (rows[name].to_numpy().copy() for name in TIMES)
        compute = np.array(rows["kind"].to_pylist()) == "compute"
        for at in np.flatnonzero(rng.random(len(start)) < 0.4).tolist():
            if at + 1 < len(start) and called[at + 1] > start[at] + 10:
                back[at] = min(start[at] + int(rng.integers(500, 2500)), called[at + 1] - 1)
        for at in np.flatnonzero(rng.random(len(start)) < 0.2).tolist():
            if compute[at : at + 3].sum() == 3:
                end[at] = end[at + 1] + 300
        for name, values in zip(TIMES, (called, back, start, end), strict=True):
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(place), pa.array(values))
        pq.write_table(rows, path)
    return accept_changed_files(lake)


def alternate(lake: "jitter.Lake") -> jitter.Lake:
    """Every other activity is launched by another thread, which does not wait until the one before is launched."""
    for path in sorted((lake.root / "kernels").rglob("*.parquet")):
        rows = pq.read_table(path, partitioning=None)
        at = rows.schema.get_field_index("launch_thread")
        main = rows["launch_thread"][0].as_py()
        field = rows.schema.field(at)
        threads = pa.array([main + number % 2 for number in range(rows.num_rows)], field.type)
        rows = rows.set_column(at, field, threads)
        called, back = (rows[name].to_numpy().copy() for name in TIMES[:2])
        # into the other thread's call, but not into one's own next
        back[:-2] = np.maximum(back[:-2], np.minimum(called[1:-1] + 500, called[2:] - 1))
        at = rows.schema.get_field_index(TIMES[1])
        pq.write_table(rows.set_column(at, rows.schema.field(at), pa.array(back)), path)
    return accept_changed_files(lake)


EARLY, QUEUED = 1, 40
"""Ordinals of what `aside` puts on streams of their own."""


def aside(lake: "jitter.Lake") -> jitter.Lake:
    """Two kernels run beside the main stream until the next one may start, which waits for them.

    One begins before the last step's last collective has ended; the other's launch waits for a place in the queue, and
    it for nothing else.
    """
    for rank in lake.ranks:
        left = None
        for key in lake.step_keys:
            path = next((lake.root / "kernels").glob(f"**/step={key.step}/rank={rank}.parquet"))
            rows = pq.read_table(path, partitioning=None)
            stream = rows["stream"].to_numpy().copy()
            _, back, start, end = (rows[name].to_numpy().copy() for name in TIMES)
            stream[EARLY], stream[QUEUED] = 98, 99
            if left is not None:
                start[EARLY], start[QUEUED] = left - 1500, back[QUEUED] + 3000
                for at in (EARLY, QUEUED):
                    end[at] = start[at + 1] - 700
            left = int(end[np.array(rows["kind"].to_pylist()) == "collective"].max())
            for name, values in (("start_ns", start), ("end_ns", end), ("stream", stream)):
                place = rows.schema.get_field_index(name)
                field = rows.schema.field(place)
                rows = rows.set_column(place, field, pa.array(values, field.type))
            pq.write_table(rows, path)
    return accept_changed_files(lake)


TIMES = ("launch_start_ns", "launch_end_ns", "start_ns", "end_ns")


def oracle_job(name: str, folder: Path) -> OracleJob:
    run = simulate(JOBS[name], FAULTS)
    lake = ingest_run(run, folder)
    if name == "two threads":
        lake = alternate(lake)
    if name == "late returns and overlap":
        lake = blur(lake)
    if name == "a full queue beside":
        lake = aside(lake)
    examined = lake.analyze()
    assert list(examined.run.programs) == [0]
    program, rules = examined.run.programs[0], examined.run.dependencies[0]
    if name == "overlap":
        # waits for what the step before left on a stream, which no simulated program has
        first = next(at for at, op in enumerate(program.operations) if op.kind == COLLECTIVE)
        more = (Wait(0, ~1, "event"), Wait(first, ~0, "event"))
        rules = examined.run.dependencies[0] = replace(rules, waits=(*rules.waits, *more))
    if name == "waits without calls":
        # for an end of the step, of the step before, and of the one before that; not always binding
        last, middle = len(program.operations) - 1, len(program.operations) // 2
        places = [(middle, middle - 6, 0), (2, last, 1), (last, middle + 2, 0), (7, 3, 2), (11, last - 1, 1)]
        waits = [Wait(at, on, "sync", back, "inferred") for at, on, back in places]
        rules = examined.run.dependencies[0] = replace(
            rules, waits=(*rules.waits, *waits), host_lead_ns={middle: 3000.0, 2: 1500.0}
        )
    if name == "a full queue beside":
        on_gpu = [at for at, op in enumerate(program.operations) if op.kind != SYNC]
        beside = [Wait(on_gpu[at + 1], on_gpu[at], "event") for at in (EARLY, QUEUED)]
        others = [wait for wait in rules.waits if wait not in beside]
        rules = examined.run.dependencies[0] = replace(rules, waits=(*others, *beside))
    if name == "a slow host":
        # calls that hardly ever have to wait for what they wait for
        syncs = [at for at, op in enumerate(program.operations) if op.kind == SYNC]
        early = program.first_kernel
        others = [wait for wait in rules.waits if wait.op_index not in syncs]
        waits = (*others, *(Wait(at, early, "sync") for at in syncs))
        rules = examined.run.dependencies[0] = replace(rules, waits=waits)
    recorded = recorded_of(run, lake, rules.thread.tolist())
    assert len(set(rules.thread.tolist())) == (2 if name == "two threads" else 1)
    assert {tuple((op.kind, op.name) for op in step) for steps in recorded.values() for step in steps} == {
        tuple((["compute", "collective", "memory", "sync"][op.kind], op.name) for op in program.operations)
    }
    streams = {op.stream: own.stream for op, own in zip(program.operations, recorded[0][0], strict=True) if own.stream}
    assert all(one.steps_back == 0 for waits in rules.by_place.values() for one in waits)
    rule = Rule(
        {at: [one.on_op_index for one in waits] for at, waits in rules.by_place.items()},
        [streams[stream] for stream in range(len(streams))],
        rules.launch_ns,
        rules.stream_ns,
        rules.queue,
        {at: [(one.on_op_index, one.steps_back) for one in waits] for at, waits in rules.of_hosts.items()},
        rules.host_lead_ns,
    )
    assert rule.queue == run.job.launch_queue
    own = own_times(recorded, rule)
    return OracleJob(
        run,
        lake,
        examined,
        recorded,
        rule,
        own,
        medians(own, sorted(recorded)),
        transfers_of(recorded, lambda rank, at: group_of(run, rank, at)),
        next(at for at, op in enumerate(recorded[0][0]) if op.kind == "compute" and op.stream == run.job.main_stream),
        {recording.rank: recording.clock.offset_ns for recording in run.ranks()},
    )
