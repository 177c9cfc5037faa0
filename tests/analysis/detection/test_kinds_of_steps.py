"""Steps are compared with steps of their kind, so that long prefill steps are innocent, named by markers or not."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import jitter
from jitter.analysis.replay.like_steps import find_factor, number_programs, repeats_part, split_by_size
from tests.support.serving import KERNELS, ServingJob, write_serving
from tests.support.simulated import ingest_traces


def ingested(folder: Path, job: ServingJob, only: str = "*.json") -> jitter.Lake:
    return ingest_traces(folder, *write_serving(folder / "traces", job).glob(only))


@pytest.fixture(scope="module")
def slow_decode(tmp_path_factory: pytest.TempPathFactory) -> jitter.Lake:
    return ingested(tmp_path_factory.mktemp("slow"), ServingJob())


def test_a_rank_that_decodes_slowly_is_the_only_finding(slow_decode: jitter.Lake):
    job, found = ServingJob(), slow_decode.diagnose()
    decode = [at for at, kind in enumerate(job.kinds) if kind == "decode"]
    (culprit,) = found.culprits
    assert (culprit.rank, culprit.cause, [key.step for key in culprit.steps]) == (3, "gpu_compute", decode)
    assert culprit.loss_ns == pytest.approx(1e3 * job.excess_us * len(decode), rel=0.03)
    assert all(step.cause == "none" for step in found.steps if step.kind == "prefill")
    for step in found.steps:
        if step.kind == "decode":
            assert step.loss_ns == pytest.approx(1e3 * job.excess_us, rel=0.05)


def test_long_prefill_steps_are_not_slow_steps(slow_decode: jitter.Lake):
    found = slow_decode.diagnose()
    mean_ns = np.mean([step.step_time_ns for step in found.steps if step.loss_ns is not None])
    loss_ns = np.mean([step.loss_ns for step in found.steps if step.loss_ns is not None])
    # with every own time and transfer at the median of its kind of step nothing is left to lose between steps
    assert found.lower_rungs["steps"] == pytest.approx(mean_ns - loss_ns, rel=0.01)


def test_transfers_are_compared_within_a_kind(slow_decode: jitter.Lake):
    calls = slow_decode.collective_calls()
    kinds = {key.step: kind for key, kind in slow_decode.kinds.items()}
    usual = calls.groupby(calls["step"].map(kinds))["usual_transfer_ns"]
    assert usual.median()["decode"] == pytest.approx(16e3, rel=0.01)
    assert usual.median()["prefill"] == pytest.approx(240e3, rel=0.01)


def test_a_job_without_a_fault_has_no_finding(tmp_path: Path):
    assert ingested(tmp_path, ServingJob(slow_rank=None)).diagnose().culprits == ()


def test_a_rank_that_is_slow_in_steps_of_two_kinds_is_one_finding(tmp_path: Path):
    kinds = ("prefill", "decode") * 12
    lake = ingested(tmp_path, ServingJob(kinds, slow_kind="both"))
    (culprit,) = lake.diagnose().culprits
    assert (culprit.rank, len(culprit.steps)) == (3, len(kinds))


def test_a_lone_rank_is_compared_with_its_steps_of_one_kind(tmp_path: Path):
    lake = ingested(tmp_path, ServingJob(slow_rank=None), only="rank0.json")
    assert lake.diagnose().culprits == ()
    usual = lake.self_times()
    kinds = {key.step: kind for key, kind in lake.kinds.items()}
    gemm = usual[usual["gpu_ns"].notna()].groupby(usual["step"].map(kinds))["usual_gpu_ns"].max()
    assert gemm["prefill"] > 20 * gemm["decode"]


def test_a_program_without_a_name_is_told_by_its_kernels(tmp_path: Path):
    job = ServingJob(engine="profiler")
    lake = ingested(tmp_path, job)
    found = lake.diagnose()
    decode = [at for at, kind in enumerate(job.kinds) if kind == "decode"]
    (culprit,) = found.culprits
    assert (culprit.rank, culprit.cause, [key.step for key in culprit.steps]) == (3, "gpu_compute", decode)
    assert culprit.loss_ns == pytest.approx(1e3 * job.excess_us * len(decode), rel=0.03)
    assert {step.kind for step in found.steps} == {"train"}
    assert any("Another program runs in steps 0,7,14,21 (30 kernels" in note for note in found.notes)


AS_MANY = {**KERNELS, "prefill": KERNELS["prefill"][1:]}
"""A prefill that runs as many kernels as a decoding step, of other names."""
BATCHES = ("prefill", *("decode", "decode", "decode_more") * 2) * 4
"""Steps that decode batches of two sizes, each a graph of its own kernels."""


@pytest.mark.parametrize(
    ("job", "kind", "said"),
    [
        (
            ServingJob(engine="profiler", graphs=False, kernels=AS_MANY),
            "decode",
            "Another program runs in steps 0,7,14,21 (24 kernels on the median rank, other ones in most steps)",
        ),
        (
            ServingJob(BATCHES, slow_kind="decode_more"),
            "decode_more",
            "(30 kernels on the median rank, 24 in most steps of kind decode)",
        ),
    ],
)
def test_a_program_is_told_by_its_kernels_and_compared_with_itself(
    tmp_path: Path, job: ServingJob, kind: str, said: str
):
    found = ingested(tmp_path, job).diagnose()
    slow = [at for at, of_step in enumerate(job.kinds) if of_step == kind]
    (culprit,) = found.culprits
    assert (culprit.rank, culprit.cause, [key.step for key in culprit.steps]) == (3, "gpu_compute", slow)
    assert culprit.loss_ns == pytest.approx(1e3 * job.excess_us * len(slow), rel=0.03)
    assert any(said in one for one in found.notes)


@pytest.mark.parametrize("kinds", [ServingJob().kinds, (*("decode",) * 5, "prefill", *("decode",) * 4) * 2])
def test_steps_of_two_programs_without_a_fault_are_no_finding(tmp_path: Path, kinds: tuple[str, ...]):
    assert ingested(tmp_path, ServingJob(kinds, engine="profiler", slow_rank=None)).diagnose().culprits == ()


def test_batches_of_two_sizes_without_a_fault_are_no_finding(tmp_path: Path):
    assert ingested(tmp_path, ServingJob(BATCHES, slow_rank=None)).diagnose().culprits == ()


DECODING = ("decode",) * 28
SIZES = (1.0, 2.0, 0.5, 1.0, 4.0, 1.0, 8.0) * 4
"""How large the batches are that the same kernels decode."""


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_batches_of_many_stated_sizes_without_a_fault_are_no_finding(tmp_path: Path, engine: str):
    job = ServingJob(DECODING, engine=engine, slow_rank=None, graphs=False, work=SIZES)
    found = ingested(tmp_path, job).diagnose()
    assert found.culprits == ()
    assert found.loss.fraction < 0.01


def test_a_rank_that_decodes_batches_of_many_sizes_slowly_loses_in_proportion(tmp_path: Path):
    job = ServingJob(DECODING, factor=1.1, graphs=False, work=SIZES)
    found = ingested(tmp_path, job).diagnose()
    (culprit,) = found.culprits
    assert (culprit.rank, culprit.cause, len(culprit.steps)) == (3, "gpu_compute", len(DECODING))
    assert culprit.loss_ns == pytest.approx(1e3 * job.excess_us * sum(SIZES[1:]), rel=0.05)


def test_a_rank_that_is_slow_in_batches_no_two_of_which_are_alike(tmp_path: Path):
    lengths = tuple(np.random.default_rng(2).permutation(0.25 * 1.2 ** np.arange(16)).tolist())
    job = ServingJob(("prefill",) * 16, factor=1.1, slow_kind="prefill", work=lengths)
    found = ingested(tmp_path, job).diagnose()
    (culprit,) = found.culprits
    assert (culprit.rank, culprit.cause, len(culprit.steps)) == (3, "gpu_compute", 16)
    assert culprit.loss_ns == pytest.approx(1e3 * job.excess_us * sum(lengths[1:]), rel=0.05)
    # of batches of many sizes the median one is not the one that it costs
    timed = [step for step in found.steps if step.loss_ns is not None]
    assert float(culprit.evidence[0].split("(")[1].split("%")[0]) == pytest.approx(
        100 * culprit.loss_ns / sum(step.step_time_ns for step in timed), rel=0.05
    )
    assert any("No other step of the kind has a batch as large as that of step" in note for note in found.notes)


def test_a_slow_step_is_told_from_those_of_its_size(tmp_path: Path):
    slow = (8, 15)  # with batches a fourth as large as the largest
    job = ServingJob(DECODING, slow_rank=None, factor=1.5, graphs=False, work=SIZES, slow_steps=slow)
    found = ingested(tmp_path, job).diagnose()
    (culprit,) = found.culprits
    assert (culprit.rung, culprit.ranks, tuple(key.step for key in culprit.steps)) == ("steps", (0, 1, 2, 3), slow)
    excess_us = sum(SIZES[at] for at in slow) * job.excess_us
    assert culprit.loss_ns == pytest.approx(1e3 * excess_us, rel=0.05)


IDLE_US = tuple(8_000.0 if at in (3, 9, 10, 17, 22) else 0.0 for at in range(28))


@pytest.mark.parametrize("only", ["*.json", "rank0.json"])
def test_an_engine_without_requests_is_not_late(tmp_path: Path, only: str):
    found = ingested(tmp_path, ServingJob(DECODING, slow_rank=None, idle_us=IDLE_US), only).diagnose()
    assert found.culprits == ()
    assert any("start steps 3,9-10,17,22 late: the engine may have had no requests" in note for note in found.notes)


def test_a_slow_rank_of_an_engine_without_requests(tmp_path: Path):
    (culprit,) = ingested(tmp_path, ServingJob(DECODING, idle_us=IDLE_US)).diagnose().culprits
    assert (culprit.rank, culprit.cause) == (3, "gpu_compute")


UNSTATED = tuple(np.exp(0.6 * np.random.default_rng(3).standard_normal(28)).tolist())
"""How large batches are whose size no marker states."""


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_batches_of_many_unstated_sizes_without_a_fault_are_no_finding(tmp_path: Path, kind: str):
    job = ServingJob((kind,) * 28, engine="profiler", slow_rank=None, graphs=False, work=UNSTATED)
    found = ingested(tmp_path, job).diagnose()
    assert found.culprits == ()
    assert found.loss.fraction < 0.01
    assert any("GPU time of all ranks varies from step to step" in note for note in found.notes)


@pytest.mark.parametrize("only", ["*.json", "rank0.json"])
def test_prompts_of_unstated_lengths_between_decoding_steps_are_no_finding(tmp_path: Path, only: str):
    prompts = {0: 0.5, 1: 0.92, 9: 0.95, 15: 0.49, 16: 0.5, 22: 1.7}
    kinds = tuple("prefill" if at in prompts else "decode" for at in range(28))
    work = tuple(prompts.get(at, 1.0) for at in range(28))
    found = ingested(tmp_path, ServingJob(kinds, "vllm, unstated", slow_rank=None, work=work), only).diagnose()
    assert found.culprits == ()
    assert found.loss.fraction < 0.01
    assert {step.kind for step in found.steps} == {"serve"}


@pytest.mark.parametrize("only", ["*.json", "rank3.json"])
def test_a_rank_that_decodes_slowly_in_some_steps_of_unstated_kinds(tmp_path: Path, only: str):
    """Its prompts' lengths say nothing of that: most decoding steps take as long."""
    kinds = tuple("prefill" if at in (0, 1, 9) else "decode" for at in range(28))
    job = ServingJob(kinds, "vllm, unstated", slow_rank=None, slow_steps=(12, 13, 14))
    (culprit,) = ingested(tmp_path, job, only).diagnose().culprits
    assert (culprit.cause, [key.step for key in culprit.steps]) == ("gpu_compute", [12, 13, 14])


def test_a_rank_that_is_slow_in_batches_of_unstated_sizes(tmp_path: Path):
    job = ServingJob(("prefill",) * 28, engine="profiler", slow_kind="prefill", factor=1.1, work=UNSTATED)
    (culprit,) = ingested(tmp_path, job).diagnose().culprits
    assert (culprit.rank, culprit.cause, len(culprit.steps)) == (3, "gpu_compute", 28)
    assert culprit.gain_ns == pytest.approx(1e3 * job.excess_us * sum(UNSTATED[1:]), rel=0.05)


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([np.nan] * 3, [[0, 1, 2]]),
        ([32, 64, 32, 33, np.nan, 35, 36], [[0, 2, 3, 5], [6], [1], [4]]),
        ([1, 2, 1], [[0, 2], [1]]),
    ],
)
def test_steps_of_sizes_a_tenth_apart_should_take_as_long(sizes: list[float], parts: list[list[int]]):
    numbers = np.arange(len(sizes)) + 10
    found = split_by_size(numbers, np.array(sizes, np.float64))
    assert [(part - 10).tolist() for part in found] == parts


def test_engines_whose_steps_wait_for_each_other_in_none_are_two_jobs(tmp_path: Path):
    """Ranks 0 to 3 prefill in 8 steps, ranks 4 to 7 decode in 24: as one job, a step takes the mean over its ranks."""
    slow = ServingJob(("prefill",) * 8, engine="profiler", slow_kind="prefill", factor=1.2)
    prefills = write_serving(tmp_path / "traces" / "prefill", slow)
    decoding = ServingJob(("decode",) * 24, engine="profiler", slow_rank=None)
    decodes = write_serving(tmp_path / "traces" / "decode", decoding)
    for rank in range(4):
        trace = json.loads((decodes / f"rank{rank}.json").read_text())
        trace["distributedInfo"]["rank"] = rank + 4
        (decodes / f"rank{rank + 4}.json").write_text(json.dumps(trace))
        (decodes / f"rank{rank}.json").unlink()
    said = jitter.ingest(tmp_path / "traces", tmp_path / "lake").refused
    assert len(said) == 4
    assert not jitter.open(tmp_path / "lake").unread_ranks  # the job may have no rank of the numbers left out
    assert all(str(prefills) in str(error) and "they wait for each other in no step" in str(error) for error in said)
    for rank in range(8):  # ranks that prefill send their caches
        trace = json.loads(((prefills if rank < 4 else decodes) / f"rank{rank}.json").read_text())
        kernel = next(one for one in trace["traceEvents"] if one.get("cat") == "kernel" and "nccl" in one["name"])
        sent = {
            "Collective name": "send",
            "Process Group Name": "cache",
            "Process Group Ranks": f"[{rank % 4}, {rank % 4 + 4}]",
        }
        trace["traceEvents"].append(kernel | {"name": "ncclDevKernel_SendRecv()", "args": kernel["args"] | sent})
        (tmp_path / "met").mkdir(exist_ok=True)
        (tmp_path / "met" / f"rank{rank}.json").write_text(json.dumps(trace))
    assert jitter.ingest(tmp_path / "met", tmp_path / "of-both").refused == []
    gains = {"alone": 7 * slow.excess_us, "same_job": 7 * slow.excess_us / 2}
    for name, gain_us in gains.items():
        given = prefills if name == "alone" else tmp_path / "traces"
        jitter.ingest(given, tmp_path / name, same_job=name == "same_job")
        (culprit,) = jitter.open(tmp_path / name).diagnose().culprits
        assert (culprit.rank, culprit.cause, len(culprit.steps)) == (3, "gpu_compute", 8)
        assert culprit.gain_ns == pytest.approx(1e3 * gain_us, rel=0.05)


@pytest.mark.parametrize(
    ("kernels", "programs"),
    [
        ([5, 5, 5, 9] * 3, [0, 0, 0, 1] * 3),
        ([5, 9] * 6, [0, 1] * 6),
        ([5, 5, 5, 9] * 2, [0, 0, 0, 1] * 2),  # as two evaluations do
        ([9, 9, 5, 5, 5, 5], [0] * 6),  # a warm-up does not come back
        ([5, 5, 9, 5, 5, 5], [0] * 6),  # nor does one checkpoint
        ([5, 6, 7, 8, 9, 5, 6, 7, 8, 9], [0] * 10),  # too many of them are none
        ([50, 50, 50, 48, 52] * 2, [0] * 10),  # nor are two steps of one, about as long, by where borders lie
    ],
)
def test_programs_are_those_that_come_back(kernels: list[int], programs: list[int]):
    of_ranks = np.array(kernels, np.float64)[:, None] + np.arange(4)  # as pipeline stages differ
    assert number_programs(of_ranks, of_ranks).tolist() == programs


@pytest.mark.parametrize(
    ("sequences", "programs"),
    [
        ([1, 1, 1, 2] * 3, [0, 0, 0, 1] * 3),  # decoding and prefilling with as many kernels
        ([1, 1, 1, 2] * 2, [0] * 8),
        ([1, 2, 3, 4, 5, 6, 7, 8], [0] * 8),  # the order that threads give, which does not come back
    ],
)
def test_programs_with_as_many_kernels_are_sequences_that_come_back(sequences: list[int], programs: list[int]):
    of_ranks = np.array(sequences, np.float64)[:, None] + 10 * np.arange(4)
    assert number_programs(np.full_like(of_ranks, 7.0), of_ranks).tolist() == programs


@pytest.mark.parametrize(
    ("kernels", "sequences", "programs"),
    [
        ([429, 429, 399, 399, 399, 399], [0] * 6, [1, 1, 0, 0, 0, 0]),  # vLLM: prompts, then decoding
        ([399, 399, 429, 399, 399, 399], [0] * 6, [0, 0, 1, 0, 0, 0]),
        ([7] * 6, [1, 1, 1, 2, 1, 1], [0, 0, 0, 1, 0, 0]),
        ([7] * 6, [1, 2, 3, 4, 5, 6], [0] * 6),  # the order that threads give
    ],
)
def test_a_serving_engine_may_run_a_program_once(kernels: list[int], sequences: list[int], programs: list[int]):
    of_ranks = [np.array(values, np.float64)[:, None] + 1000 * np.arange(4) for values in (kernels, sequences)]
    assert number_programs(*of_ranks, on_request=True).tolist() == programs
    assert not number_programs(*of_ranks).any()


def test_a_rank_that_differs_alone_or_lacks_a_step_makes_no_program():
    kernels = np.full((12, 4), 5.0)
    kernels[3::4] = 9.0
    kernels[[1, 6, 9], 2] = 7.0
    kernels[7, 3] = kernels[10, 0] = np.nan
    assert number_programs(kernels, kernels).tolist() == [0, 0, 0, 1] * 3
    kernels[3::4] = 5.0
    assert not number_programs(kernels, kernels).any()


@pytest.mark.parametrize(
    ("kernels", "factor"),
    [
        ({"forward": 60, "backward": 60, "optimizer": 3}, 1.5),
        ({"forward": 20, "backward": 20, "optimizer": 3}, 0.5),
        ({"forward": 60, "backward": 40, "optimizer": 3}, 1),  # an evaluation
        ({"forward": 40, "backward": 40, "optimizer": 3, "checkpoint": 40}, 1),
        ({"forward": 140, "backward": 60, "optimizer": 3}, 1),  # a warm-up tries kernels
    ],
)
def test_a_step_of_more_micro_batches_runs_its_kernels_more_often(kernels: dict[str, int], factor: float):
    usual = {"forward": 40, "backward": 40, "optimizer": 3}
    ours, others = (Counter({(0, name): times for name, times in one.items()}) for one in (kernels, usual))
    assert find_factor(ours, others) == factor


@pytest.mark.parametrize(
    ("more", "is_longer"),
    [
        ({(0, "forward"): 80, (1, "all_reduce"): 1}, True),  # an evaluation, which adds up its metric
        ({(0, "forward"): 80, (1, "all_reduce"): 10}, False),  # another model, with gradients of its own
        ({(0, "forward"): 40, (0, "backward"): 40, (0, "adam"): 3, (1, "all_reduce"): 5}, False),  # micro-batches
        ({(0, "forward"): 30, (0, "generate"): 30}, False),
        ({(0, "backward"): -40}, False),
        ({}, False),
    ],
)
def test_a_step_that_runs_part_of_a_usual_one_again_is_a_longer_one(more: dict[tuple[int, str], int], is_longer: bool):
    usual = Counter({(0, "forward"): 40, (0, "backward"): 40, (0, "adam"): 3, (1, "all_reduce"): 5})
    operations = Counter(usual)
    operations.update(more)
    assert repeats_part(+operations, usual) is is_longer
