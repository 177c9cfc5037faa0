"""Recordings of frameworks: annotations as real ones nest them, with the GPU activities of a job on GPUs."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jitter
from jitter.cli import main
from tests.support.lake_content import records

STEPS = 4
_TICK_US = 10
_OPERATIONS = {"AllReduce": "allreduce", "AllGather": "_allgather_base", "ReduceScatter": "_reduce_scatter_base"}
"""PyTorch's names of what NCCL's kernels do."""
_KINDS = {"run": ("kernel", 7), "send": ("kernel", 20)}


def _trace(script: Iterable[str], rank: int = 0, group: str = "0") -> dict[str, Any]:
    """Return a trace of `+ RANGE`, `- RANGE`, `run KERNEL` and `send COLLECTIVE`, one tick of time each.

    Collectives are of the process group `group`, of both ranks.
    """
    events: list[dict[str, Any]] = []
    opened: dict[str, float] = {}
    for tick, line in enumerate(script):
        now = 1000.0 + tick * _TICK_US
        word, _, name = line.partition(" ")
        common = {"ph": "X", "pid": 42, "tid": 42}
        if word == "+":
            opened[name] = now
        elif word == "-":
            start = opened.pop(name)
            category = "cpu_op" if "::" in name and "FSDP" not in name else "user_annotation"
            events.append({**common, "cat": category, "name": name, "ts": start, "dur": now - start})
        else:
            category, stream = _KINDS[word]
            args = {"correlation": tick, "External id": tick}
            launch = {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": now, "dur": 2.0, "args": args}
            place = {"pid": 0, "tid": stream, "args": {**args, "device": 0, "stream": stream, "grid": [8, 1, 1]}}
            if word == "send":
                place["args"] |= {"Collective name": _OPERATIONS[name.split("_")[1]], "Process Group Name": group,
                                  "Process Group Ranks": "[0, 1]", "Group size": 2, "dtype": "Float",
                                  "In msg nelems": 1024, "Out msg nelems": 1024}  # fmt: skip
            events += [launch, {"ph": "X", "cat": category, "name": name, "ts": now + 4, "dur": 5.0, **place}]
    assert not opened
    told = {"backend": "nccl", "rank": rank, "world_size": 2}
    return {"schemaVersion": 1, "baseTimeNanoseconds": 1_790_857_026_000_000_000, "distributedInfo": told,
            "traceEvents": events}  # fmt: skip


def _within(name: str, *inner: str) -> list[str]:
    return [f"+ {name}", *inner, f"- {name}"]


_ALLREDUCE = "send ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _lightning() -> Iterator[str]:
    """Yield what Lightning's PyTorchProfiler records: it counts before the training, and turns within the closure."""
    strategy, module = "[pl][profile][Strategy]DDPStrategy", "[pl][profile][LightningModule]M"
    yield from ("+ ProfilerStep#2", "run sanity_check", "- ProfilerStep#2")
    outer = ["[pl][profile]run_training_batch", f"{module}.optimizer_step", "Optimizer.step#AdamW.step"]
    for batch in range(STEPS + 1):
        yield from (f"+ {name}" for name in outer)
        forward = _within("DistributedDataParallel.forward", "run gemm")
        yield from _within(f"{strategy}.training_step", *forward, "run loss")
        if batch:
            yield f"- ProfilerStep#{batch}"
        if batch < STEPS:
            yield f"+ ProfilerStep#{batch + 1}"
        yield from _within("Optimizer.zero_grad#AdamW.zero_grad", "run zero")
        yield from _within(f"{strategy}.backward", "run gemm_backward", _ALLREDUCE)
        yield "run adam"
        yield from (f"- {name}" for name in reversed(outer))


def _fsdp2() -> Iterator[str]:
    gather = "send ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    scatter = "send ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    node = "autograd::engine::evaluate_function: RegisterPostBackwardFunctionBackward"
    for step in range(1, STEPS + 1):
        yield f"+ ProfilerStep#{step}"
        pre = _within("FSDP::all_gather (0)", gather), _within("FSDP::all_gather_copy_out (0)", "run split_copy")
        yield from _within("FSDP::pre_forward (0)", *pre[0], *pre[1])
        yield from _within("## forward ##", "run gemm")
        yield from _within("FSDP::post_forward (0)", "run free")
        yield from _within(node, *_within("FSDP::post_backward_reduce (0)", "run chunk_cat", scatter))
        yield from _within("Optimizer.step#AdamW.step", "run adam")
        yield f"- ProfilerStep#{step}"


def _deepspeed() -> Iterator[str]:
    """Yield the ranges of DeepSpeed's ZeRO-3."""
    stage, engine = "DeepSpeedZeroOptimizer_Stage3", "DeepSpeedEngine"
    coordinator, offload = "PartitionedParameterCoordinator", "DeepSpeedZeRoOffload"
    hook = f"{stage}.create_reduce_and_remove_grad_hooks.<locals>.wrapper.<locals>.reduce_partition_and_remove_grads"
    gather = "send ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    scatter = "send ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    fetch = _within(f"{coordinator}.fetch_sub_module", *_within("Init._all_gather", gather))
    reduce = _within(f"{stage}.__avg_scatter_grads", *_within("reduce_scatter_coalesced", "run cat", scatter))
    norm = _within(f"{stage}._get_norm_groups", *_within(f"{stage}.get_grad_norm_direct", "run norm"))
    for step in range(1, STEPS + 1):
        yield f"+ ProfilerStep#{step}"
        before = _within(f"{offload}._register_deepspeed_module.<locals>._pre_forward_module_hook", *fetch)
        yield from _within(f"{engine}.forward", *before, "run gemm")
        bucket = _within(hook, *_within(f"{stage}.__add_grad_to_ipg_bucket", "run add_grad"))
        last = _within(f"{engine}.allreduce_gradients", *reduce)
        yield from _within(f"{engine}.backward", "run gemm_backward", *bucket, *last)
        yield from _within(f"{stage}.step", *norm, *_within("Optimizer.step#AdamW.step", "run adam"), "run copy")
        yield f"- ProfilerStep#{step}"


def _megatron() -> Iterator[str]:
    """Yield Megatron-core's ranges: the path of the function in whose middle they lie, and a part of it."""
    layer, attention, mlp = (
        f"megatron.core.transformer.{path}" for path in ("transformer_layer", "attention.forward", "mlp.forward")
    )
    for step in range(1, STEPS + 1):
        yield f"+ ProfilerStep#{step}"
        yield from _within(f"{layer}._forward_attention.self_attention", *_within(f"{attention}.qkv", "run qkv"))
        yield from _within(f"{layer}._forward_mlp.mlp", *_within(f"{mlp}.linear_fc1", "run fc1", _ALLREDUCE))
        yield from _within("autograd::engine::evaluate_function: MmBackward0", "run gemm_backward")
        yield from _within("Optimizer.step#AdamW.step", "run adam")
        yield f"- ProfilerStep#{step}"


def _torchtitan(first: int) -> Iterator[str]:
    """Yield one cycle of torchtitan's profiler, which writes a file for each; later cycles lie at later times."""
    yield from ["run warm_up"] * 20 * first
    for step in (first, first + 1):
        yield from _within(
            f"ProfilerStep#{step}", "run gemm", _ALLREDUCE, *_within("Optimizer.step#AdamW.step", "run adam")
        )


PHASES = {
    "megatron": (_megatron, {
        "qkv": "forward", "fc1": "forward", "gemm_backward": "backward", "adam": "optimizer",
    }),
    "deepspeed": (_deepspeed, {
        "gemm": "forward", "gemm_backward": "backward", "add_grad": "backward", "cat": "backward",
        "norm": "optimizer", "adam": "optimizer", "copy": "optimizer",
    }),
    "lightning": (_lightning, {
        "gemm": "forward", "loss": "forward", "zero": "optimizer", "gemm_backward": "backward", "adam": "optimizer",
    }),
    "fsdp2": (_fsdp2, {
        "split_copy": "forward", "gemm": "forward", "free": "forward", "chunk_cat": "backward", "adam": "optimizer",
    }),
}  # fmt: skip


GROUPS = {"megatron": "TENSOR_MODEL_PARALLEL_GROUP", "fsdp2": "mesh_dp_shard"}
"""Names of process groups other than PyTorch's number of the whole job."""


def _write(folder: Path, name: str, script: Iterable[str], rank: int, group: str = "0") -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text(json.dumps(_trace(script, rank, group)))


@pytest.mark.parametrize("framework", PHASES)
def test_steps_phases_and_groups(framework: str, tmp_path: Path):
    (script, phases), group = PHASES[framework], GROUPS.get(framework, "0")
    for rank in range(2):
        _write(tmp_path / "traces", f"node1_{rank}.pt.trace.json", script(), rank, group)
    report = jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    assert report.refused == []
    assert {record["rank"]: [step["step"] for step in record["steps"]] for record in records(tmp_path / "lake")} == {
        rank: list(range(1, STEPS + 1)) for rank in range(2)
    }
    found = jitter.open(tmp_path / "lake").sql("SELECT kernel_name, phase, count(*) n FROM kernels GROUP BY 1, 2")
    counted = {row.kernel_name: (row.phase, row.n) for row in found.itertuples()}
    assert {name: of for name, of in counted.items() if "nccl" not in name} == {
        name: (phase, 2 * STEPS) for name, phase in phases.items()
    }
    assert {of for name, of in counted.items() if "nccl" in name} == {("communication", 2 * STEPS)}
    lake = jitter.open(tmp_path / "lake")
    calls = lake.collectives(by="group")
    assert set(zip(calls["group"], calls["group_size"], calls["calls"], strict=True)) == {(group, 2, STEPS)}
    matched = lake.analyze().run.matching
    assert (matched.inferred, matched.unpaired, matched.named) == (False, 0, 2)


def test_cycles_of_a_profiler_in_files_of_their_own(tmp_path: Path):
    """Torchtitan writes a folder for each cycle of its schedule, and the file's name has the rank."""
    for folder, first in (("iteration_5", 3), ("iteration_10", 8)):
        for rank in range(2):
            script = _torchtitan(first)
            _write(tmp_path / "traces" / folder, f"rank{rank}_trace.json", script, rank)
    assert jitter.ingest([tmp_path / "traces"], tmp_path / "lake").refused == []
    lake = jitter.open(tmp_path / "lake")
    assert (lake.ranks, [key.step for key in lake.step_keys]) == ([0, 1], [3, 4, 8, 9])


def test_lightning_records_steps_of_training_and_of_validation(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def validation() -> Iterator[str]:
        for step in range(3, 3 + STEPS):
            yield from _within(f"ProfilerStep#{step}", "run evaluate", "run metric")

    traces = tmp_path / "traces"
    for rank in range(2):
        name = f"fit-prof-{rank}-[Strategy]DDPStrategy.%s_step.17955374256354475{rank}.pt.trace.json"
        _write(traces, name % "training", _lightning(), rank)
        _write(traces, name % "validation", validation(), rank)
    assert main(["ingest", str(traces), "-o", str(tmp_path / "lake")]) == 0
    said = capsys.readouterr().err
    assert (
        "validation_step.179553742563544750.pt.trace.json and 1 more: recorded by Lightning in steps that do not train"
        in said
    )
    assert f"2 ranks, {STEPS} steps" in said
    alone = sorted(map(str, traces.glob("*validation*")))
    assert main(["ingest", *alone, "-o", str(tmp_path / "alone")]) == 0
    assert f"2 ranks, {STEPS} steps" in capsys.readouterr().err


def test_many_recordings_without_gpu_activity_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for rank in range(6):
        _write(
            tmp_path / "traces",
            f"node1_{rank}.pt.trace.json",
            _within("ProfilerStep#1", "+ aten::mm", "- aten::mm"),
            rank,
        )
    assert main(["ingest", str(tmp_path / "traces"), "-o", str(tmp_path / "lake")]) == 3
    first, hint, *others = capsys.readouterr().err.splitlines()
    assert first.startswith(
        f"left out: {tmp_path / 'traces' / 'node1_0.pt.trace.json'}: no GPU activity among the 2 events"
    )
    assert "(and 5 more recordings for the same reason; jitter inspect lists them)" in first
    assert "record on GPUs, with ProfilerActivity.CUDA (`jitter record torch`)" in hint
    assert others == ["6 left out; nothing to read"]


@pytest.mark.parametrize("marker", ["epoch=0,batch={}", "mini-batch {}", "batch{}", "[rank{rank}] batch: {}"])
def test_batches_are_steps(marker: str, tmp_path: Path):
    """Beside them, the numbers of parts begin anew in each step, and sizes stay."""

    def script(rank: int) -> Iterator[str]:
        for batch in range(11, 11 + STEPS):
            parts = [_within(f"micro-batch {part}", *_within("batch=32", "run gemm")) for part in range(2)]
            yield from _within(marker.format(batch, rank=rank), *parts[0], *parts[1], "run adam", _ALLREDUCE)

    for rank in range(2):
        _write(tmp_path / "traces", f"rank{rank}.json", script(rank), rank)
    report = jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    assert report.refused == []
    assert [[step["step"] for step in record["steps"]] for record in records(tmp_path / "lake")] == [
        list(range(11, 11 + STEPS))
    ] * 2
    counts = jitter.open(tmp_path / "lake").sql(
        "SELECT DISTINCT rank, step, count(*) OVER (PARTITION BY rank, step) n FROM kernels"
    )
    assert set(counts["n"]) == {4}
