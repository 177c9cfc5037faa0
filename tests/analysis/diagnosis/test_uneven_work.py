"""Work that is uneven over ranks and steps, as of packed sequences: all ranks hold up the job in turn."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitter
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.core.formatting import format_time
from tests.accuracy.irregular.job import IrregularJob
from tests.accuracy.irregular.programs import duration_ns, run_job
from tests.accuracy.irregular.scoring import ingest_job
from tests.support.kineto_traces import Row, call, kernel, step, write


def diagnose(job: IrregularJob, folder: Path) -> Diagnosis:
    return ingest_job(job, folder)[0].diagnose()


def even_work_saves_ns(job: IrregularJob) -> float:
    """Return what the job gains where all ranks have the mean work of each step."""
    uneven = duration_ns(run_job(job))
    job.length[:] = job.length.mean(axis=0)
    return uneven - duration_ns(run_job(job))


@pytest.mark.parametrize(
    ("seed", "ranks", "shape", "fixed", "cause"),
    [
        (1, 8, "overlapped", False, "workload_imbalance"),
        (5, 4, "blocking", False, "workload_imbalance"),
        (3, 8, "sharded", True, "gpu_time"),
    ],
)
def test_uneven_batches_are_named_and_priced_by_even_ones(
    tmp_path, seed: int, ranks: int, shape: str, fixed: bool, cause: str
):
    job = IrregularJob(seed, shape, ranks, 12, 60, "variable lengths", lengths=0.4, fixed_grids=fixed)
    diagnosis = diagnose(job, tmp_path)
    (found,) = diagnosis.culprits
    assert (found.scope, found.ranks, found.cause) == ("job", tuple(range(ranks)), cause)
    assert found.recurs == "no"
    assert found.confidence in ("medium", "high")
    assert found.gain_ns == pytest.approx(even_work_saves_ns(job), rel=0.15)
    assert "in turn, so none is to blame" in diagnosis.verdict
    assert "tokens" in diagnosis.verdict


@pytest.mark.parametrize(("seed", "ranks", "shape"), [(6, 16, "blocking"), (8, 8, "sharded")])
def test_work_of_which_the_same_ranks_always_have_most_is_divided_by_all(tmp_path, seed: int, ranks: int, shape: str):
    """As of a causal mask: no rank stands out from ranks that all differ, and repairing the worst leaves the next."""
    job = IrregularJob(seed, shape, ranks, 12, 60, "variable lengths")
    job.length[:] = np.linspace(0.6, 1, ranks)[:, None]
    (found,) = (diagnosis := diagnose(job, tmp_path)).culprits
    assert (found.scope, found.ranks, found.cause) == ("job", tuple(range(ranks)), "workload_imbalance")
    assert (found.recurs, found.confidence) == ("yes", "medium")
    assert found.gain_ns == pytest.approx(even_work_saves_ns(job), rel=0.05)
    per_step = format_time(found.loss_ns / found.seen.steps)
    assert any(line.startswith(f"{per_step} per affected step where the job waited") for line in found.evidence)
    assert "divide the work evenly" in diagnosis.verdict


def write_layers(folder: Path, share: "np.ndarray[Any, Any]", *, has_sizes: bool) -> None:
    """Write steps in which ranks compute for the share of tokens of their experts, (steps, layers, ranks), and meet."""
    folder.mkdir()
    begin, layers, ranks, bring_back = 1_000.0, *share.shape[1:], "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage)"
    meeting = {"Collective name": "all_to_allv", "In msg nelems": 4096, "Out msg nelems": 4096, "dtype": "BFloat16"}
    meeting |= {"Group size": ranks, "Process Group Name": "ep", "Process Group Ranks": str(list(range(ranks)))}
    events: list[list[Row]] = [[] for _ in range(ranks)]
    for number, of_layers in enumerate(share.tolist()):
        now = begin + 30 * layers
        for layer, of_ranks in enumerate(of_layers):
            end = now + 500 * max(of_ranks) + 60
            for rank, own in enumerate(of_ranks):
                launch, grid = 1_000 * number + 2 * layer, [round(800 * own) if has_sizes else 132, 1, 1]
                at, since = begin + 20 * layer, now + 500 * own + 2
                events[rank] += [call(ts=at + 8 * behind, correlation=launch + behind) for behind in range(2)]
                events[rank] += [
                    kernel("grouped_gemm", now, 500 * own, pid=rank, correlation=launch, grid=grid, block=[128, 1, 1])
                ]
                events[rank] += [
                    kernel(bring_back, since, end - since, pid=rank, stream=20, correlation=launch + 1, **meeting)
                ]
            now = end + 3
        for of_rank in events:
            of_rank += [call("cudaDeviceSynchronize", begin + 20 * layers, now - begin - 20 * layers)]
            of_rank += [step(number, ts=begin, dur=now + 10 - begin)]
        begin = now + 10
    for rank, of_rank in enumerate(events):
        write(folder / f"rank{rank}.json", of_rank, before={"distributedInfo": {"rank": rank, "world_size": ranks}})


@pytest.mark.parametrize("has_sizes", [True, False])
def test_experts_that_differ_in_each_layer_need_no_test_where_launches_tell_their_work(tmp_path, has_sizes: bool):
    """Over the layers of a step they even out: the job waits in each layer for another rank."""
    share = np.random.default_rng(5).normal(1, 0.08, (8, 10, 16))
    write_layers(tmp_path / "traces", share, has_sizes=has_sizes)
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    uneven = [one for one in jitter.open(tmp_path / "lake").diagnose().culprits if one.rung == "ranks"]
    waited_ns = 500e3 * float((share.max(axis=2) - share.mean(axis=2))[1:].sum())
    assert [(one.cause, one.scope, one.recurs) for one in uneven] == [("workload_imbalance", "job", "no")] * has_sizes
    assert [one.gain_ns for one in uneven] == [pytest.approx(waited_ns, rel=0.1)] * has_sizes
    assert ["tokens over experts" in one.advice for one in uneven] == [True] * has_sizes


@pytest.mark.parametrize("slow", [1.0, 1.2])
def test_ranks_that_do_the_same_by_one_kernel_or_by_several_lose_nothing_by_it(tmp_path: Path, slow: float):
    """As heads of several tasks: no kernel of them is usual, and the time of the median rank counts."""
    folder, whole = tmp_path / "traces", {"Process Group Name": "dp", "Process Group Ranks": str(list(range(6)))}
    folder.mkdir()
    noise = np.random.default_rng(5).normal(1, 0.002, (8, 6, 4))
    begin, events = 1_000.0, list[list[Row]]([] for _ in range(6))
    for number, of_ranks in enumerate(noise.tolist()):
        end = begin + 100 + max(900 * factor * (slow if rank == 4 else 1) for rank, (factor, *_) in enumerate(of_ranks))
        for rank, factors in enumerate(of_ranks):
            parts, now = 2 ** ((rank + number) % 3), begin + 50  # 1, 2 or 4 kernels
            kernels = [*[("trunk", 30.0)] * 10, *[(f"head_of_{parts}", 600.0 / parts)] * parts]
            for at, (name, us) in enumerate(kernels):
                correlation, took = 20 * number + at, us * factors[0] * (slow if rank == 4 else 1)
                events[rank] += [call(ts=begin + 2 * at, dur=1, correlation=correlation)]
                events[rank] += [
                    kernel(name, now, took, pid=rank, correlation=correlation, grid=[8, 1, 1], block=[128, 1, 1])
                ]
                now += took
            events[rank] += [call(ts=begin + 40, dur=1, correlation=20 * number + 19)]
            reduce = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            events[rank] += [kernel(reduce, now + 2, end - now, pid=rank, correlation=20 * number + 19, **whole)]
            events[rank] += [call("cudaDeviceSynchronize", begin + 44, end - begin - 40)]
            events[rank] += [step(number, ts=begin, dur=end - begin + 10)]
        begin = end + 12
    for rank, of_rank in enumerate(events):
        write(folder / f"rank{rank}.json", of_rank, before={"distributedInfo": {"rank": rank, "world_size": 6}})
    jitter.ingest([folder], tmp_path / "lake")
    diagnosis = jitter.open(tmp_path / "lake").diagnose()
    late = [one for one in diagnosis.culprits if one.rung == "ranks"]
    assert [(one.ranks, one.loss_class) for one in late] == [((4,), "gpu")] * (slow > 1)
    assert diagnosis.loss.fraction == pytest.approx((slow - 1) * 900 / (900 * slow + 110), abs=0.01)


@pytest.mark.parametrize("effect", ["noise", "spread"])
def test_noise_and_gpus_that_differ_for_ever_are_no_uneven_work(tmp_path, effect: str):
    job = IrregularJob(4, "blocking", 8, 12, 60, "plain", **{effect: 0.04})
    assert np.ptp(job.length) == 0
    assert not [one for one in diagnose(job, tmp_path).culprits if one.scope == "job"]


def write_generation(folder: Path, tokens: "np.ndarray[Any, Any]", *, reduces_first: bool = False) -> None:
    """Write steps in which ranks launch unlike numbers of short kernels, (steps, ranks), and then reduce together.

    A step that `reduces_first` begins there: what it launches then the next step waits for.
    """
    folder.mkdir()
    ranks, begin = tokens.shape[1], 1_000.0
    events: list[list[Row]] = [[] for _ in range(ranks)]
    marks: list[list[float]] = [[] for _ in range(ranks)]
    for number, of_ranks in enumerate(tokens.tolist()):
        end = begin + 40 * max(of_ranks) + 100
        for rank, count in enumerate(of_ranks):
            for token in range(count):
                at, launch = begin + 10 + 40 * token, 1_000 * number + token
                events[rank] += [call(ts=at, dur=6.0, correlation=launch)]
                events[rank] += [kernel("decode_attention", at + 10, 10.0, pid=rank, correlation=launch)]
            at, launch = begin + 10 + 40 * count, 1_000 * number + 999
            events[rank] += [call(ts=at, dur=6.0, correlation=launch)]
            reduction = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            events[rank] += [kernel(reduction, at + 10, end - at - 10, pid=rank, stream=20, correlation=launch)]
            waits = call("cudaDeviceSynchronize", at + 8, end - at - 6, correlation=launch + 500_000)
            events[rank] += [waits]
            marks[rank].append(at - 5 if reduces_first else begin)
        begin = end + 20
    for of_rank, starts in zip(events, marks, strict=True):
        of_rank += [step(number, ts=ts, dur=to - ts) for number, (ts, to) in enumerate(pairwise([*starts, begin]))]
    for rank, of_rank in enumerate(events):
        write(folder / f"rank{rank}.json", of_rank, before={"distributedInfo": {"rank": rank, "world_size": ranks}})


@pytest.mark.parametrize(
    ("is_one", "reduces_first", "words"),
    [
        (True, False, "Rank 2 launches kernels that most"),
        (True, True, "Rank 2 launches kernels that most"),
        (False, False, "in turn, so none is to blame"),
    ],
)
def test_ranks_that_launch_more_kernels_have_more_work_and_no_slow_host(
    tmp_path: Path, is_one: bool, reduces_first: bool, words: str
):
    rng = np.random.default_rng(1)
    tokens = 16 + rng.integers(0, 2, (8, 8))
    tokens[range(8), 2 if is_one else [0, 3, 5, 1, 7, 2, 4, 6]] += 10
    write_generation(tmp_path / "traces", tokens, reduces_first=reduces_first)
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    diagnosis = jitter.open(tmp_path / "lake").diagnose()
    assert diagnosis.culprits[0].cause == "cpu_launch"
    assert words in diagnosis.verdict
    assert "how evenly work is divided" in diagnosis.verdict
