"""Jobs that the simulator lacks: files of a lake that were changed after its ingest, and waits put into its rules."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from jitter.analysis.alignment.program import Program
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.dependencies import Dependencies, Wait
from jitter.core.names.kernels import COLLECTIVE, SYNC
from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run, rewrite_kernels, small

FAULTS: Final = (
    "cpu_stall:rank=1,step=2,kernel=9,ms=1.5",
    "slow_gpu:rank=2,factor=1.4",
    "late_start:rank=0,step=3,ms=2",
)
TIMES: Final = ("launch_start_ns", "launch_end_ns", "start_ns", "end_ns")
EARLY, QUEUED = 1, 40
"""Ordinals of what `beside` puts on streams of their own."""
Change = Callable[[pa.Table], Mapping[str, Any]]


def late_returns_and_overlap() -> Change:
    """Calls return after their kernel began, kernels overlap the next."""
    rng = np.random.default_rng(4)

    def change(rows: pa.Table) -> Mapping[str, Any]:
        called, back, start, end = (rows[name].to_numpy().copy() for name in TIMES)
        compute = np.array(rows["kind"].to_pylist()) == "compute"
        for at in np.flatnonzero(rng.random(len(start)) < 0.4).tolist():
            if at + 1 < len(start) and called[at + 1] > start[at] + 10:
                back[at] = min(start[at] + int(rng.integers(500, 2500)), called[at + 1] - 1)
        for at in np.flatnonzero(rng.random(len(start)) < 0.2).tolist():
            if compute[at : at + 3].sum() == 3:
                end[at] = end[at + 1] + 300
        return {"launch_end_ns": back, "end_ns": end}

    return change


def two_threads() -> Change:
    """Every other activity is launched by another thread, which does not wait until the one before is launched."""

    def change(rows: pa.Table) -> Mapping[str, Any]:
        called, back = (rows[name].to_numpy().copy() for name in TIMES[:2])
        # into the other thread's call, but not into one's own next
        back[:-2] = np.maximum(back[:-2], np.minimum(called[1:-1] + 500, called[2:] - 1))
        main = rows["launch_thread"][0].as_py()
        return {"launch_thread": [main + number % 2 for number in range(rows.num_rows)], "launch_end_ns": back}

    return change


def beside() -> Change:
    """Two kernels run beside the main stream until the next one may start, which waits for them.

    One begins before the last step's last collective has ended; the other's launch waits for a place in the queue, and
    it for nothing else.
    """
    left: dict[int, int] = {}

    def change(rows: pa.Table) -> Mapping[str, Any]:
        rank = rows["rank"][0].as_py()
        stream = rows["stream"].to_numpy().copy()
        _, back, start, end = (rows[name].to_numpy().copy() for name in TIMES)
        stream[EARLY], stream[QUEUED] = 98, 99
        if rank in left:
            start[EARLY], start[QUEUED] = left[rank] - 1500, back[QUEUED] + 3000
            for at in (EARLY, QUEUED):
                end[at] = start[at + 1] - 700
        left[rank] = int(end[np.array(rows["kind"].to_pylist()) == "collective"].max())
        return {"start_ns": start, "end_ns": end, "stream": stream}

    return change


def wait_for_the_step_before(program: Program, rules: Dependencies) -> Dependencies:
    """Wait for what the step before left on a stream, which no simulated program has."""
    first = next(at for at, op in enumerate(program.operations) if op.kind == COLLECTIVE)
    return replace(rules, waits=(*rules.waits, Wait(0, ~1, "event"), Wait(first, ~0, "event")))


def wait_beside(program: Program, rules: Dependencies) -> Dependencies:
    on_gpu = [at for at, op in enumerate(program.operations) if op.kind != SYNC]
    waits = [Wait(on_gpu[at + 1], on_gpu[at], "event") for at in (EARLY, QUEUED)]
    return replace(rules, waits=(*(wait for wait in rules.waits if wait not in waits), *waits))


def wait_without_calls(program: Program, rules: Dependencies) -> Dependencies:
    """Wait for an end of the step, of the step before, and of the one before that; not always binding."""
    last, middle = len(program.operations) - 1, len(program.operations) // 2
    places = [(middle, middle - 6, 0), (2, last, 1), (last, middle + 2, 0), (7, 3, 2), (11, last - 1, 1)]
    waits = [Wait(at, on, "sync", back, "inferred") for at, on, back in places]
    return replace(rules, waits=(*rules.waits, *waits), host_lead_ns={middle: 3000.0, 2: 1500.0})


def wait_early(program: Program, rules: Dependencies) -> Dependencies:
    """Have calls wait for what they hardly ever have to wait for."""
    syncs = [at for at, op in enumerate(program.operations) if op.kind == SYNC]
    others = [wait for wait in rules.waits if wait.op_index not in syncs]
    return replace(rules, waits=(*others, *(Wait(at, program.first_kernel, "sync") for at in syncs)))


class ChangedJob(NamedTuple):
    job: Job
    change: Callable[[], Change] | None = None
    rules: Callable[[Program, Dependencies], Dependencies] | None = None


CHANGED: Final[Mapping[str, ChangedJob]] = {
    "waits for the step before": ChangedJob(small(), rules=wait_for_the_step_before),
    "late returns and overlap": ChangedJob(small(cpu_bound=True), late_returns_and_overlap),
    "two threads": ChangedJob(small("tensor_parallel", cpu_bound=True), two_threads),
    "a full queue beside": ChangedJob(small("tensor_parallel", launch_queue=12), beside, wait_beside),
    "waits without calls": ChangedJob(small("tensor_parallel", cpu_bound=True), rules=wait_without_calls),
    "a slow host": ChangedJob(small("sharded", cpu_bound=True, syncs=frozenset({"loss", "before"})), rules=wait_early),
}


@contextmanager
def analyzed_changed(name: str) -> Iterator[RunAnalysis]:
    """Simulate, ingest, change and analyze a job."""
    job, change, rules = CHANGED[name]
    with TemporaryDirectory() as folder:
        lake = ingest_run(simulate(job, [Fault.parse(fault) for fault in FAULTS]), Path(folder))
        analysis = (rewrite_kernels(lake, change()) if change is not None else lake).analyze()
        run = analysis.run
        if rules is not None:
            run.dependencies[0] = rules(run.programs[0], run.dependencies[0])
        assert len(set(run.dependencies[0].thread.tolist())) == (2 if name == "two threads" else 1)
        yield analysis
