"""Unequal expert work: the numbers of `jitter steps` beside those of the job's own table of times."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitter
from jitter.core.names.kernels import is_expert_kernel
from tests.support.kineto_traces import Row, call, kernel, step, write
from tests.support.printed import json_of, output_of

STEPS, LAYERS, RANKS = 6, 5, 4
GROUPS = {"expert": [[0, 1], [2, 3]], "all": [[0, 1, 2, 3]]}
EXPERT_KERNELS = (
    "fused_moe_kernel",
    "fused_moe_kernel_gptq_awq",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<cute::tuple<"
    "long, long, long>>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90ArrayTmaGmma<12>>>>",
    "void cutlass::Kernel<cutlass::gemm::kernel::GemmGrouped<cutlass::gemm::threadblock::MmaMultistage<>>>(Params)",
    "void cutlass::Kernel<cutlass::gemm::kernel::MoeFCGemm<cutlass::gemm::threadblock::DqMma<>>>(Params)",
    "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, 160u, true, (deep_gemm::GemmType)1>(__nv_bfloat16*, float*)",
    "bmm_E4m3_E4m3E4m3_Fp32_t128x8x128u2_s8_et64x8_m64x8x32_cga1x1x1_16dp256b_TN_schedS_bN_ldgsts_clmp_dynBatch_sm100a",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_32x256x256x1_swiglu",
    "_p_matmul_ogs_NNT_bf16xbf16xbf16_128x256x64",
    "void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1, 8, 8, true, 4>(int4 const*)",
    "void ck::kernel_moe_gemm<ck::GridwiseMoeGemm<>>(Argument)",
)
OTHERS = (
    "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, 160u, true, (deep_gemm::GemmType)0>(__nv_bfloat16*, float*)",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
    "void at::native::(anonymous namespace)::GroupNormKernel<float>(float*)",
    "void vllm::moe::topkGatingSoftmax<8, 128, 4, 16>(float const*)",
    "void moe_align_block_size_kernel<int>(int*)",
    "bmm_Bfloat16_E2m1E2m1_Fp32_t128x16x256_s6_et128x16_TN_transOut_schedP_bN_sm100a",
)


@pytest.mark.parametrize("name", EXPERT_KERNELS)
def test_matrix_products_of_experts(name: str):
    assert is_expert_kernel(name)


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels(name: str):
    assert not is_expert_kernel(name)


def write_job(
    folder: Path,
    times_us: "np.ndarray[Any, Any]",
    groups: list[list[int]],
    collective: str,
    *,
    paced: bool = False,
    sized: float = 0.0,
    product: str = "fused_moe_kernel",
) -> Path:
    """Write traces of layers of attention, dispatch, two expert kernels and combine; one gradient all-reduce a step.

    `times_us` (steps, layers, ranks) are the times of a layer's expert kernels, two thirds of it in the first one. If
    `paced`, the other kernels of rank 2 take 1.4 times as long as those of the other ranks. The activation between them
    takes `sized` of their time more, and its threads state the tokens.
    """
    events: list[list[Row]] = [[] for _ in range(RANKS)]
    now, correlation = np.full(RANKS, 2_000.0), 0

    def launch(
        name: str,
        took: "np.ndarray[Any, Any]",
        stream: int,
        group: list[list[int]] | None = None,
        blocks: "np.ndarray[Any, Any] | None" = None,
    ) -> None:
        nonlocal now, correlation
        correlation += 1
        start = now + 1
        args: list[dict[str, Any]] = [{} for _ in range(RANKS)]
        for ranks in group or ():
            now[ranks] = start[ranks].max() + took[ranks]
            for rank in ranks:
                args[rank] = {
                    "Collective name": name, "Process Group Name": str(ranks), "Process Group Ranks": str(ranks),
                    "Group size": len(ranks), "dtype": "BFloat16", "In msg nelems": 4096, "Out msg nelems": 4096,
                }  # fmt: skip
        if group is None:
            now = start + took
        shown = name if group is None else "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        for rank in range(RANKS):
            begin, end = round(float(start[rank]), 3), round(float(now[rank]), 3)
            row = kernel(shown, begin, round(end - begin, 3), pid=rank, stream=stream, correlation=correlation)
            row["args"] |= {"grid": [64 if blocks is None else int(blocks[rank]), 1, 1], "block": [256, 1, 1]}
            row["args"] |= args[rank]
            events[rank] += [call(ts=round(begin - 8, 3), dur=2.0, correlation=correlation), row]

    same = np.ones(RANKS)
    pace = same + 0.4 * paced * (np.arange(RANKS) == 2)
    for number in range(STEPS):
        begin = now.copy()
        for layer in range(LAYERS):
            launch("flash_attention", 40 * pace, 7)
            launch(collective, 10 * same, 20, groups)
            launch(product, times_us[number, layer] * 2 / 3, 7)
            tokens = times_us[number, layer] if sized else 100 * same
            launch("silu_and_mul_kernel", 4 * pace + sized * tokens, 7, blocks=tokens)
            launch(product, times_us[number, layer] / 3, 7)
            launch(collective, 10 * same, 20, groups)
        launch("all_reduce", 30 * same, 21, [[0, 1, 2, 3]])
        for rank in range(RANKS):
            events[rank].append(step(number, ts=round(float(begin[rank]) - 7, 3), dur=float(now[rank] - begin[rank])))
        now += 20
    folder.mkdir(parents=True)
    for rank, of_rank in enumerate(events):
        write(folder / f"rank{rank}.json", of_rank, before={"distributedInfo": {"rank": rank, "world_size": RANKS}})
    return folder


@pytest.mark.parametrize(
    ("grouping", "collective"), [("expert", "all_to_allv"), ("expert", "all_reduce"), ("all", "all_to_allv")]
)
def test_the_longest_rank_of_each_layer(
    grouping: str, collective: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rng, groups = np.random.default_rng(3), GROUPS[grouping]
    times_us = np.round(100 * rng.uniform(0.5, 1.5, (STEPS, LAYERS, RANKS)), 2)
    times_us[2, :, 3] *= 2  # one rank is long in each layer
    write_job(tmp_path / "traces", times_us, groups, collective)
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    lake = jitter.open(tmp_path / "lake")
    columns = ["expert_wait_ns", "expert_imbalance", "expert_rank"]
    rows = lake.sql(f"SELECT {', '.join(columns)} FROM steps ORDER BY step", arrow=True).to_pylist()
    assert len(rows) == STEPS
    for row, of_step in zip(rows, times_us, strict=True):
        waits = [(of_step[:, ranks].max(axis=1) - of_step[:, ranks].mean(axis=1)).sum() for ranks in groups]
        worst = groups[int(np.argmax(waits))]
        of_group = of_step[:, worst]
        assert row["expert_wait_ns"] == pytest.approx(1000 * max(waits), abs=100)
        ratio = of_group.max(axis=1).sum() / of_group.mean(axis=1).sum()
        assert row["expert_imbalance"] == pytest.approx(ratio, rel=1e-6)
        assert row["expert_rank"] == worst[int(of_group.sum(axis=0).argmax())]
    if (grouping, collective) == ("all", "all_to_allv"):
        printed = json_of(capsys, "steps", tmp_path / "lake", "--format", "json")["rows"]
        for row, exact in zip(printed, rows, strict=True):
            assert [row[name] for name in columns] == pytest.approx([*exact.values()], abs=6e-4)  # three decimals
        assert f"{rows[2]['expert_imbalance']:.2f} (3)" in output_of(capsys, "steps", tmp_path / "lake")


@pytest.mark.parametrize(
    ("paced", "sized", "cause"),
    [(False, 0.0, "workload_imbalance"), (False, 0.1, "workload_imbalance"), (True, 0.0, "gpu_compute")],
)
def test_a_rank_whose_experts_alone_take_longer_has_more_tokens(
    tmp_path: Path, cause: str, sized: float, *, paced: bool
):
    times_us = 100 * np.random.default_rng(4).normal(1, 0.01, (STEPS, LAYERS, RANKS))
    times_us[:, :, 2] *= 1.4
    write_job(tmp_path / "traces", times_us, GROUPS["all"], "all_to_allv", paced=paced, sized=sized)
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    found = jitter.open(tmp_path / "lake").diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause, culprit.cause_certainty) == ((2,), cause, "likely")
    assert ("how evenly the router fills the experts" in found.verdict) != paced


def test_experts_that_take_longer_on_one_rank_after_another_are_unequal_work_of_all(tmp_path: Path):
    """In each step the experts of another rank take 40 us longer in each layer, and the other ranks wait for them."""
    times_us = 100 * np.random.default_rng(4).normal(1, 0.01, (STEPS, LAYERS, RANKS))
    times_us[range(STEPS), :, [0, 3, 1, 2, 0, 1]] += 40
    write_job(tmp_path / "traces", times_us, GROUPS["all"], "all_to_allv")
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    found = jitter.open(tmp_path / "lake").diagnose()
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.cause, culprit.recurs) == ("job", "workload_imbalance", "no")
    assert culprit.gain_ns == pytest.approx(1000 * 40 * LAYERS * (STEPS - 1), rel=0.05)
    assert "All ranks compute longer for their experts in turn: check how evenly the router fills" in found.verdict


def test_a_job_without_experts_says_nothing_of_them(small_lake: Path, capsys: pytest.CaptureFixture[str]):
    assert {answer.experts for answer in jitter.open(small_lake).diagnose().steps} == {None}
    assert "experts" not in output_of(capsys, "steps", small_lake)


@pytest.mark.parametrize(
    ("product", "cause", "advice"),
    [
        (EXPERT_KERNELS[0], "workload_imbalance", "how evenly the router fills the experts"),
        (OTHERS[1], "gpu_time", "how evenly each step's work is divided"),
    ],
)
def test_experts_that_are_uneven_in_each_layer_hold_up_the_job_in_turn(
    tmp_path: Path, product: str, cause: str, advice: str
):
    """No rank has more tokens over a whole step: another one is the longest in each layer.

    Matrix products with a common name are known by how far they differ, as no GPU's kernels of one name alone do.
    """
    times_us = np.round(100 * np.random.default_rng(5).uniform(0.5, 1.5, (STEPS, LAYERS, RANKS)), 2)
    write_job(tmp_path / "traces", times_us, GROUPS["all"], "all_to_allv", product=product)
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    (found,) = jitter.open(tmp_path / "lake").diagnose().culprits
    assert (found.scope, found.cause, found.recurs) == ("job", cause, "no")
    saved_us = (times_us.max(axis=2) - times_us.mean(axis=2))[1:].sum()
    assert found.gain_ns == pytest.approx(1e3 * saved_us, rel=0.1)
    assert advice in found.advice
