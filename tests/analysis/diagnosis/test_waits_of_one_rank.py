"""A call that waits for the GPU on one rank alone, as `if rank == 0: print(loss.item())`, holds up the whole job.

Its host then hides nothing of what it does next, which the other hosts do ahead of their GPUs.
"""

import json
from pathlib import Path

import pytest

import jitter
from tests.support.simulated import ingest_traces

RANKS, STEPS, KERNELS = range(4), 8, 20
LOAD_US, LAUNCH_US, KERNEL_US, TRANSFER_US = 600.0, 5.0, 100.0, 60.0


def write_job(
    folder: Path,
    waiting: frozenset[int],
    *,
    often: frozenset[int] = frozenset(),
    more_waits: int = 3,
    load_us: float = LOAD_US,
    is_launch_bound: bool = False,
) -> float:
    """Write each rank's trace; the ranks in `waiting` wait for their GPU after each step. Return the run's end, µs.

    Those in `often` wait after each of the first `more_waits` kernels, too. Hosts pause before each step, or take
    longer to launch the first half of the kernels than these last.
    """
    launch_us = 90.0 if is_launch_bound else LAUNCH_US
    folder.mkdir()
    events: dict[int, list[dict[str, object]]] = {rank: [] for rank in RANKS}
    host, stream = dict.fromkeys(RANKS, 0.0), dict.fromkeys(RANKS, 0.0)

    def add(rank: int, name: str, category: str, start: float, end: float, **args: object) -> None:
        tid = 7 if category == "kernel" else 100 + rank
        event = {"ph": "X", "cat": category, "name": name, "pid": tid, "tid": tid, "ts": start, "dur": end - start}
        events[rank].append({**event, "args": args})

    for step in range(STEPS):
        began, arrived, number = dict(host), {}, step * (KERNELS + 2)
        for rank in RANKS:
            host[rank] += load_us
            for kernel in range(KERNELS + 1):
                call, host[rank] = host[rank], host[rank] + launch_us
                add(rank, "cudaLaunchKernel", "cuda_runtime", call, host[rank], correlation=number + kernel)
                start = max(call + 3, stream[rank] + 1)
                if kernel == KERNELS:
                    arrived[rank] = start
                    continue
                stream[rank] = start + (KERNEL_US if not is_launch_bound else 20 if kernel < KERNELS / 2 else 200)
                where = {"stream": 7, "device": rank, "correlation": number + kernel}
                add(rank, f"gemm_{kernel % 5}", "kernel", start, stream[rank], **where)
                if rank in often and kernel < more_waits:
                    call, host[rank] = host[rank], max(host[rank], stream[rank]) + 2
                    wait = 10_000 + number + kernel
                    add(rank, "cudaStreamSynchronize", "cuda_runtime", call, host[rank], correlation=wait)
        end = max(arrived.values()) + TRANSFER_US
        for rank, start in arrived.items():
            where = {"stream": 7, "device": rank, "correlation": number + KERNELS}
            add(rank, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "kernel", start, end, **where)
            stream[rank] = end
            if rank in waiting:
                call, host[rank] = host[rank], max(host[rank], end) + 2
                add(rank, "cudaStreamSynchronize", "cuda_runtime", call, host[rank], correlation=number + KERNELS + 1)
            add(rank, f"ProfilerStep#{step}", "user_annotation", began[rank], host[rank])
    for rank, of_rank in events.items():
        content = {"distributedInfo": {"rank": rank, "world_size": len(RANKS)}, "traceEvents": of_rank}
        (folder / f"rank{rank}.json").write_text(json.dumps(content))
    return max(stream.values())


@pytest.mark.parametrize(("waiting", "words"), [({0}, "1 call per step; "), ({1, 3}, None)])
def test_a_wait_of_few_ranks_costs_what_the_job_without_it_saves(tmp_path: Path, waiting: set[int], words: str | None):
    saved_us = write_job(tmp_path / "traces", frozenset(waiting)) - write_job(tmp_path / "without", frozenset())
    diagnosis = ingest_traces(tmp_path).diagnose()
    costs = {one.cause: one for one in diagnosis.of_all_ranks}
    cause = "sync_calls" if words else "late_start"  # where half of the ranks wait, the pause is what all can mend
    assert costs[cause].loss_ns == pytest.approx(1000 * saved_us, rel=0.03)
    assert words is None or (costs[cause].ranks == (0,) and costs[cause].evidence[1].startswith(words))
    assert ("late_start" in costs) is (cause == "late_start")


@pytest.mark.parametrize(("more_waits", "is_launch_bound", "named"), [(3, True, tuple(RANKS)), (19, False, (2,))])
def test_where_all_ranks_wait_the_one_that_waits_more_often_is_named_alone_if_that_costs_most(
    tmp_path: Path, more_waits: int, is_launch_bound: bool, named: tuple[int, ...]
):
    job = tmp_path / "traces"
    often = frozenset({2})
    write_job(job, frozenset(RANKS), often=often, more_waits=more_waits, load_us=0.0, is_launch_bound=is_launch_bound)
    costs = {one.cause: one for one in ingest_traces(tmp_path).diagnose().of_all_ranks}
    assert costs["sync_calls"].ranks == named


def test_calls_of_a_rank_with_a_program_of_its_own_are_counted_as_it_makes_them(tmp_path: Path):
    write_job(tmp_path / "traces", frozenset({0}), is_launch_bound=True)
    first = tmp_path / "traces" / "rank0.json"
    first.write_text(first.read_text().replace("gemm_", "conv_"))
    jitter.ingest(tmp_path / "traces", tmp_path / "lake", same_job=True)
    lake = jitter.open(tmp_path / "lake")
    (waits,) = [one for one in lake.diagnose().of_all_ranks if one.cause == "sync_calls"]
    assert len(lake.analyze().run.programs) == 2
    assert waits.ranks == (0,)
    assert waits.evidence[1].startswith("1 call per step; ")


def test_a_wait_of_the_only_rank_of_its_program_is_that_of_few_too(tmp_path: Path):
    saved_us = write_job(tmp_path / "traces", frozenset({0})) - write_job(tmp_path / "without", frozenset())
    first = tmp_path / "traces" / "rank0.json"
    first.write_text(first.read_text().replace("gemm_", "conv_"))
    jitter.ingest(tmp_path / "traces", tmp_path / "lake", same_job=True)
    costs = {one.cause: one for one in jitter.open(tmp_path / "lake").diagnose().of_all_ranks}
    assert costs["sync_calls"].loss_ns == pytest.approx(1000 * saved_us, rel=0.03)
    assert "late_start" not in costs
