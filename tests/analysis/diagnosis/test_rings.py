"""Rings: exchanges in which a rank waits for its neighbours alone, as in context parallelism with grouped transfers."""

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitter

HOPS, STEPS, LAUNCH_US, TRANSFER_US, REDUCE_US = 9, 6, 3.0, 60.0, 90.0
COLUMNS = ((0, 2, 4, 6), (1, 3, 5, 7))
SLOW, LATE, LINK = 5, 2, 4


class Job:
    """Eight ranks in two rings: each hop a kernel, then an exchange with both neighbours; an all-reduce ends a step."""

    def __init__(self, rings: Sequence[Sequence[int]], seed: int, *, states_groups: bool = True) -> None:
        self.rings, self.seed, self.ranks = rings, seed, sum(map(len, rings))
        self.states_groups = states_groups
        self.ring_of = {rank: ring for ring in rings for rank in ring}

    def run(self, *, slow: float = 1.0, late_us: float = 0.0, link: float = 1.0) -> tuple[float, list[list[Any]]]:
        """Return the time from the end of the first step to that of the last, us, and each rank's events."""
        draw = np.random.default_rng(self.seed)
        now, events = np.zeros(self.ranks), [[] for _ in range(self.ranks)]
        ends = []
        for step in range(STEPS):
            host = now + draw.uniform(40, 60, self.ranks)
            host[LATE] += late_us
            begin, gpu = host.copy(), np.zeros(self.ranks)
            work = draw.normal(200, 2, (HOPS, self.ranks))
            work[:, SLOW] *= slow
            for hop in range(HOPS):
                host, gpu = self._launch(events, "gemm", 7, host, gpu, work[hop])
                start = np.maximum(gpu, host + 2 * LAUNCH_US)
                took = np.full(self.ranks, TRANSFER_US)
                took[[rank for rank in range(self.ranks) if LINK in self._waits(rank)]] *= link
                end = np.array([start[self._waits(rank)].max() for rank in range(self.ranks)]) + took
                host, gpu = self._launch(events, "exchange", 28, host, start, end - start)
            start = np.maximum(gpu, host + 2 * LAUNCH_US)
            host, gpu = self._launch(events, "reduce", 20, host, start, start.max() + REDUCE_US - start)
            for rank in range(self.ranks):
                events[rank].append(("sync", host[rank], gpu[rank] + 3, None))
                events[rank].append(("step", begin[rank], gpu[rank] + 4, step))
            now = gpu + 5
            ends.append(float(np.median(gpu)))
        return ends[-1] - ends[0], events

    def _waits(self, rank: int) -> list[int]:
        ring = self.ring_of[rank]
        at = ring.index(rank)
        return [ring[at - 1], rank, ring[(at + 1) % len(ring)]]

    def _launch(self, events: list[list[Any]], name: str, stream: int, host: Any, free: Any, took: Any) -> Any:
        start = np.maximum(host + 2 * LAUNCH_US, free)
        for rank in range(self.ranks):
            events[rank].append((name, host[rank], start[rank], (stream, took[rank])))
        return host + LAUNCH_US, start + took

    def write(self, folder: Path, events: list[list[Any]]) -> Path:
        clocks = np.random.default_rng(self.seed + 1).uniform(-5_000, 5_000, self.ranks)
        folder.mkdir()
        for rank, own in enumerate(events):
            document = {"distributedInfo": {"rank": rank, "world_size": self.ranks}, "baseTimeNanoseconds": 10**18}
            rows = self._rows(rank, own, clocks[rank] + 1e6)
            text = json.dumps({"schemaVersion": 1, **document, "traceEvents": rows})
            (folder / f"rank{rank}.json").write_text(text)
        return folder

    def _rows(self, rank: int, events: list[Any], clock: float) -> list[dict[str, Any]]:
        found, number = [], count(1)
        groups = {"exchange": ("coalesced", self.ring_of[rank]), "reduce": ("allreduce", range(self.ranks))}

        def row(cat: str, name: str, at: float, took: float, tid: int, **args: Any) -> None:
            times = {"ts": round(at + clock, 3), "dur": round(took, 3)}
            found.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, **times, "args": args})

        for name, at, until, more in events:
            which = next(number)
            if name == "step":
                row("user_annotation", f"ProfilerStep#{more + 10}", at, until - at, 1)
            elif name == "sync":
                row("cuda_runtime", "cudaDeviceSynchronize", at, until - at, 1, correlation=which)
            else:
                row("cuda_runtime", "cudaLaunchKernel", at, LAUNCH_US, 1, correlation=which)
                args: dict[str, Any] = {"device": 0, "stream": more[0], "correlation": which}
                if name in groups and self.states_groups:
                    called, ranks = groups[name]
                    args |= {"Collective name": called, "Group size": len(ranks), "Process Group Ranks": str([*ranks])}
                    args |= {"Process Group Name": f"{called}-{min(ranks)}", "dtype": "Float", "In msg nelems": 8}
                names = {"exchange": "ncclDevKernel_SendRecv(args)", "reduce": "ncclDevKernel_AllReduce_Sum(args)"}
                row("kernel", names.get(name, name), until, more[1], more[0], grid=[1, 1, 1], block=[1, 1, 1], **args)
        return found


def diagnose(job: Job, folder: Path, **fault: float) -> tuple[Any, float]:
    """Return the diagnosis, and what the fault costs, ns."""
    time, events = job.run(**fault)
    lake = folder / "lake"
    jitter.ingest([job.write(folder / "traces", events)], lake, executor=jitter.LocalExecutor())
    return jitter.open(lake).diagnose(), (time - job.run()[0]) * 1e3


@pytest.mark.parametrize("rings", [((*range(8),),), ((0, 1, 2, 3), (4, 5, 6, 7)), COLUMNS])
@pytest.mark.parametrize(
    ("fault", "rank", "cause"),
    [({"slow": 1.2}, SLOW, "gpu_compute"), ({"late_us": 400.0}, LATE, "late_start")],
)
@pytest.mark.parametrize("states_groups", [True, False])
def test_a_rank_that_its_ring_waits_for(
    tmp_path: Path, rings: Any, fault: Any, rank: int, cause: str, *, states_groups: bool
) -> None:
    found, cost_ns = diagnose(Job(rings, 1, states_groups=states_groups), tmp_path, **fault)
    (culprit,) = (one for one in found.culprits if one.rung == "ranks")
    assert (culprit.ranks, culprit.cause) == ((rank,), cause)
    assert culprit.confidence != "low"
    assert culprit.gain_ns == pytest.approx(cost_ns, rel=0.05)
    assert found.loss.ns == pytest.approx(cost_ns, rel=0.1)


def test_a_healthy_ring(tmp_path: Path) -> None:
    found, _ = diagnose(Job(COLUMNS, 2), tmp_path)
    assert not [one for one in found.culprits if one.rung == "ranks"]


def test_a_slow_link_of_a_ring(tmp_path: Path) -> None:
    found, cost_ns = diagnose(Job(COLUMNS, 3), tmp_path, link=3.0)
    culprit = max((one for one in found.culprits if one.rung == "ranks"), key=lambda one: one.gain_ns)
    assert (culprit.ranks, culprit.cause) == ((LINK,), "communication")
    assert culprit.gain_ns == pytest.approx(cost_ns, rel=0.05)
