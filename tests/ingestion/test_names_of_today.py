"""Names that frameworks, launchers and profilers write today: which step and rank each states."""

from pathlib import Path

import pytest

from jitter.ingestion.names import compile_step_pattern, is_unnumbered_step, rank_in_path
from jitter.ingestion.transform.steps.step_markers import parse_marker

# names of files and folders by the rank that they state; others count something else, or state none
FILES = {
    0: "rank-0.Nov_11_10_25_02.1690.pt.trace.json.gz rank_000.sqlite 1726000000-TP-0.trace.json.gz",
    3: """
        rank3_trace.json iteration_100/rank3_trace.json rank-3.json.gz rank_3.json.gz trace_rank_3.json rank.3.json
        rank=3.json rank[3].json rank:3.json worldrank3.json world_rank_3.json global_rank3.json global-rank-3.json
        global_rank_3_local_rank_1.json report_rank3.nsys.sqlite nsys_rank3_step100-105.sqlite RANK3.sqlite
        Rank_03.sqlite rank3/report1.sqlite rank_3/nsys/out.sqlite train_step_rank3.json prep_rank3.json
        1726000000.123-TP-3.trace.json.gz 1726000000-TP-3-DECODE.trace.json.gz report.3.sqlite report_3.sqlite
        report-3.sqlite profile_r3.sqlite profile_3.sqlite trace_3.json trace.3.json.gz pytorch_trace_3.json
        trace_kineto_3.json kineto-3.json worker3_step_7.json worker_3.json trainer_3.json trainer3.json gpu3.sqlite
        gpu_3.json gpu-3.json node1/rank3.json 3.pt.trace.json 3.pt.trace.json.gz rank-3_results.db rank3.sqlite
        rank-3.sqlite rank_003_trace.sqlite job12.rank.3.sqlite report_rank=3.sqlite profile-global_rank_3.sqlite
        globalrank3.sqlite Rank3.sqlite rank3_pqtdir rank3/nsys/report1.sqlite rank8/rank3.sqlite
        rank3/worker20240401123456.json global_rank3_local_rank1.sqlite trace_rank3.json global_rank_3.json
        http-rank-3.json setup-rank-3.json profile_1234567_0_3.sqlite llama3-8b-bf16_64g_1234567_1_3.sqlite
        procid3.sqlite job_procid-3.sqlite rank3/report.1.sqlite rank3/trace_10.json rank3/gpu0/trace.json
        rank3/node1/4711_results.db worker3/host1/4711_results.db
        rank3.tar.gz/trace_10.json global_rank_3/trace_10.json lora_rank16/trace_3.json
        report_3.1.sqlite profile_3.12.nsys-rep gpu3/out.sqlite gpu3/report.3.sqlite
        profile_1/trace_3.json trace_7/gpu3/x.json report.2/report.3.sqlite nsys_1/worker3.sqlite
    """,
    5: "tp0_pp1_dp2_rank5.json tp_rank_0-rank_5.json rank5_tp_rank_0.json",
    9: "local_rank_1_global_rank_9.json rank_9_tp_rank_1.json tp_rank_1_rank_9.json",
    11: "profile_traces/iteration_20/rank11_trace.json",
    12: "dlio_rank12_of_16.json",
    13: "node1_rank13.sqlite host-4_rank-13.sqlite",
    15: "profile-TP-15.trace.json.gz",
    None: """
        mpirank3.sqlite 1726000000-TP-3-DP-1.trace.json.gz 1726000000-TP-1-PP-2.trace.json.gz
        1726000000-TP-1-DP-0-PP-2.trace.json.gz 1726000000-TP-1-DP-0-PP-2-EP-1.trace.json.gz
        1726000000-TP-3-EP-3.trace.json.gz report3.sqlite report1.sqlite coworker3.json constrainer_3.json
        node-1-gpu-3.trace.json node1/gpu3.json node1/gpu3/trace.json worker-1/gpu3/trace.json gpu3/report.1.sqlite
        worker-3/4711_kernel_trace.csv gpu-3/4711_results.db node123456/gpu3.json
        worker_1/gpu_3.json gpu8/trace_3.json job_rank3/trace_10.json lora_rank_3/out.json trace_3.1.json
        host2/trace_3.json gpu-7_4242.1700000000000000000.pt.trace.json.gz
        job-worker-3_4242.1700000000000.pt.trace.json 3.json nid001234_51234.1700000000000000000.pt.trace.json
        host1_4711.1700000000000.pt.trace.json.gz node01_4711.sqlite node01.4711.sqlite node3.sqlite
        dp_rank_1_tp_rank_0.json tp_rank_3.json tp-rank-3.json tprank3.json pp_rank_3.json cp_rank_3.json
        ep_rank_3.json mp_rank_03.json dp_rank_3.json node_rank_3.json node-rank-3.json noderank3.json
        machine_rank_3.json machine_rank0/out.json group_rank_3.json local_rank3.sqlite localrank3.sqlite
        local-rank-3.sqlite local.rank.3.sqlite host_rank_3.json data_parallel_rank_3.json
        tensor_parallel_rank_3.json stage_rank_3.json franks3.sqlite ranking_3_items.json rank20240401123456.sqlite
        trace_2024.json trace_20240401.json report_20240401.sqlite trace_51234.json tp3_trace_1.json dp0_gpu3.json
        step_12.json 4711_kernel_trace.csv results.json frank3.sqlite coworker3.sqlite rank.sqlite node-rank-1.json
        machine_rank_1.json local_rank_1.json profile_20240101_12_30.sqlite profile_1234_12_30.sqlite
    """,
}

# texts of ranges by the (epoch, step, rank) that they state
MARKERS = {
    (None, 0, None): "iteration 0 tp-rank:2",
    (None, 0, 7): "iteration 0 tp-rank:2 rank:7",
    (None, 3, None): "interval_step 3 | medieval iteration 3 | latest step 3 | step 3 dp_rank=1 | step 3 node rank 1",
    (None, 3, 1): "step 3 rank=1 | step 3 global_rank=1 | step 3 warmup rank=1",
    (None, 5, None): "step5-local_rank3",
    (None, 7, None): """
        iteration 7 pp_rank 1 dp_rank 2 | step 7 local_rank 3 | step 7 node-rank=3 | step 7 machine_rank=3
        step7-rank12345678901
    """,
    (None, 7, 3): "step 7 world_rank=3",
    (None, 7, 9): "iteration 7 tp_rank 1 global_rank 9 | iteration 7 rank 9 tp_rank 1",
    (None, 7, 12): "step7-rank12",
    (None, 12, None): """
        ProfilerStep#12 | train#step_num=12# | step_num: 12 | step_num=12 | step_idx=12 | step number 12 | batch 12
        Batch 12 | batch_12 | batch#12 | batch_idx=12 | batch_idx: 12 | batch index 12 | it 12 | it: 12 | update 12
        update_12 | step 12,3456 | global_step 12 | train_step=12 | training step 12 | iteration 12 | iteration12
        iter_12 | [iter 12] | [Executor] _forward_step 12: 0 ctx reqs, 8 gen reqs | decode_step 12 | step 12
        Step: 12 | STEP_0012 | iteration: 12 | Iter#12 | step(12) | step 12 forward | step 12 local_rank 5 | step-12
        step_12 | step - 12
    """,
    (None, 12, 0): "iter-12-rank-0",
    (None, 12, 3): "step 12, rank 3 | [rank3] step 12 | rank 3/iteration 12 | rank3_step_12",
    (None, 12, 5): "step 12 of global_rank 5",
    (None, 100, None): "global_step_100",
    (None, 1234, 5): "step 1,234 rank 5",
    (None, 12345, None): "step 12,345",
    (None, 1012345, None): "step 1,012,345",
    (1, 12, None): """
        epoch=1,batch=12 | epoch=1/batch=12 | Epoch: 1, Batch: 12 | epoch 1 batch-12 | epoch_1_batch_12
        Epoch 1: batch12
        train#epoch=1,step_num=12# | epoch 1 batch 12 | Epoch: 1, Batch 12 | epoch 1 it 12 | epoch-1-step-12
    """,
    (1, 12, 3): "epoch 1 batch_idx 12 rank 3",
    (1, 2003, 0): "epoch1_step2003-rank0-640_8-640_8 | epoch1_step2003-rank0-640_8-640_8-640_8",
    (3, 7, None): "epoch 3, iteration 7",
    (3, 12, None): "epoch 3 step 12 | Epoch: 3, Iteration: 12",
    (3, 12, 5): "epoch=3/step=12/rank=5",
    None: """
        execute_context_1(10)_generation_5(5) | step[DECODE bs=8] | forward_step | backward_step | forward_step 3
        backward-step 3 | save_checkpoint iteration 0 | save-checkpoint step 100 | checkpoint_step_100
        ckpt step 100 | validation step 3 | validation_step 3 | val_step 3 | eval iteration 3 | evaluate step 3
        test_step 3 | sanity check batch 1 | epoch 1 validation batch 3 | batch_size=32 | batch=32 | batch: 32
        microbatch 3 | micro_batch 3 | minibatch 3 | next_batch 3 | load batch 3 | get_batch 3 | fetch_batch 3
        accumulation step 3 | gradient_accumulation_step 3 | grad_acc_step 3 | batch12 | batch-12 | steps12
        microstep 3 | substep 3 | accum_step 3 | weight update 3 | optimizer_update 3 | fit 12 | with it 12
        item 12 | update | Optimizer.step#AdamW.step | Optimizer.zero_grad#AdamW.zero_grad | aten::batch_norm
        DistributedDataParallel.forward | FullyShardedDataParallel._pre_forward | nccl:all_reduce | step 1.5
        epoch 3 | layer 12 | ## forward ## | forward | micro_step 3 | mini-step 3 | substep3 | footstep 3
        optimizer.step | step | criterion 3 | ncclAllReduce | ProfilerStep#-1 | step -1 | step=-12 | iteration: -3
        train_step=-4 | [iter -2] | timestep 3
    """,
}

# whether a range is a step of a framework that writes no number
UNNUMBERED = {
    True: """
        execute_context_1(10)_generation_5(5) | execute_context_0(0)_generation_64(64) | execute_new_1_cached_7
        gpu_model_runner: execute_model | execute_model | step[DECODE bs=8] | step[EXTEND bs=1 toks=512]
        [pl][profile]run_training_batch | run_training_batch | PipelineEngine.train_batch
        DeepSpeedEngine.train_batch | train_step | training_step | train step | TrainStep | run_step
        Training iteration | train_iter | train_one_step | train_one_batch | run_iter
    """,
    False: """
        training steps | validation_step | forward_step | DeepSpeedEngine.forward
        step | train_step_end | optimizer_step
    """,
}


def listed(tables: dict[object, str], separator: str | None) -> list[tuple[str, object]]:
    return [(name.strip(), key) for key, names in tables.items() for line in names.strip().splitlines()
            for name in line.split(separator)]  # fmt: skip


@pytest.mark.parametrize(("path", "rank"), listed(FILES, None))
def test_ranks_of_files(path: str, rank: int | None):
    assert rank_in_path(Path(path)) == rank


def test_blanks_in_names_of_files():
    assert rank_in_path(Path("my run (2)/trace of rank 3 (copy).json")) == 3
    assert rank_in_path(Path("local rank 3.json")) is None


@pytest.mark.parametrize("group", ["tp", "PP", "dp", "cp", "ep", "mp", "sp"])
def test_a_rank_in_a_group_is_no_global_rank(group: str):
    assert [rank_in_path(Path(f"{group}{separator}rank_1.json")) for separator in "_-."] == [None] * 3


@pytest.mark.parametrize(("text", "expected"), listed(MARKERS, " | "))
def test_steps_and_ranks_of_markers(text: str, expected: tuple[int | None, int, int | None] | None):
    marker = parse_marker(compile_step_pattern(None), text)
    assert (None if marker is None else (marker.epoch, marker.step, marker.rank)) == expected


@pytest.mark.parametrize("digits", [18, 19, 5000])
def test_a_number_that_fits_no_column_is_no_step(digits: int):
    marker = parse_marker(compile_step_pattern(None), "ProfilerStep#" + "9" * digits)
    assert (None if marker is None else marker.step) == (10**18 - 1 if digits == 18 else None)


@pytest.mark.parametrize(("text", "is_step"), listed(UNNUMBERED, " | "))
def test_steps_without_a_number(text: str, is_step: bool):
    assert is_unnumbered_step(text) is is_step


@pytest.mark.parametrize(("beside", "rank"), [("llama_gpu8", 5), ("llama_base", None)])
def test_a_folder_far_above_has_the_number_of_a_rank_only_if_one_beside_it_has_another(
    tmp_path: Path, beside: str, rank: int | None
):
    for folder in ("llama_gpu5", beside):
        (tmp_path / folder / "traces").mkdir(parents=True)
    assert rank_in_path(tmp_path / "llama_gpu5" / "traces" / "node.sqlite") == rank
    assert rank_in_path(tmp_path / "llama_gpu5" / "node.sqlite") == 5
    (tmp_path / "worker_3" / "traces").mkdir(parents=True)
    assert rank_in_path(tmp_path / "worker_3" / "traces" / "node.sqlite") == 3
