"""Operator, scope and phase of launches: against a search of all ranges, launch by launch."""

import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from jitter.core.schema import BACKWARD, OPERATORS, RANGES
from jitter.ingestion.names import compile_step_pattern
from jitter.ingestion.transform import launch_scopes, sorted_rows
from jitter.ingestion.transform.capture import Capture
from jitter.ingestion.transform.launch_scopes import LaunchScopes, parse_operator, parse_phase
from jitter.readers import Batch

NAMES = ["aten::mm", "nn.Module: Block_0", "nn.Module: Linear_1", "aten::relu"]
NAMES += ["train.py(3): main", "model.py(12): forward", "c10d::barrier", "gloo:barrier"]


class Range(NamedTuple):
    thread: int | None
    text: str
    start_ns: int
    end_ns: int | None
    kind: str = "annotation"


def scopes_of(ranges: list[Range], tmp_path: Path, links: list[tuple[int, ...]] = []) -> LaunchScopes:  # noqa: B006
    capture = Capture(compile_step_pattern(None), tmp_path)
    annotations = [one for one in ranges if one.kind == "annotation"]
    operators = [one for one in ranges if one.kind != "annotation"]
    columns = {
        "process": [0] * len(annotations),
        "thread": [one.thread for one in annotations],
        "text": [one.text for one in annotations],
        "start_ns": [one.start_ns for one in annotations],
        "end_ns": [one.end_ns for one in annotations],
    }
    capture.add(Batch("ranges", pa.record_batch(columns, schema=RANGES)))
    columns = {
        "process": [0] * len(operators),
        "thread": [one.thread for one in operators],
        "name": [NAMES.index(one.text) for one in operators],
        "is_module": [one.kind == "module" for one in operators],
        "start_ns": [one.start_ns for one in operators],
        "end_ns": [one.end_ns for one in operators],
    }
    capture.add(Batch("operators", pa.record_batch(columns, schema=OPERATORS)))
    if links:
        columns = dict(zip(BACKWARD.names, zip(*links, strict=True), strict=True))
        capture.add(Batch("backward", pa.record_batch({k: list(v) for k, v in columns.items()}, schema=BACKWARD)))
    return LaunchScopes(capture.code_ranges, NAMES)


def annotated(
    scopes: LaunchScopes,
    launches: list[tuple[int, int]],
    collective: bool = False,
    columns: tuple[str, ...] = ("operator", "scope", "phase"),
) -> list[tuple[object, ...]]:
    rows = pa.table(
        {
            "launch_thread": pa.array([thread for thread, _ in launches], pa.int64()),
            "launch_start_ns": pa.array([at for _, at in launches], pa.int64()),
            "is_collective": np.full(len(launches), collective),
        }
    )
    found = scopes.annotate(0, rows)
    return list(zip(*(found[name].to_pylist() for name in columns), strict=True))


def test_nested(tmp_path: Path):
    ranges = [
        Range(1, "step 7", 0, 1000),
        Range(1, "forward", 10, 500),
        Range(1, "nn.Module: Block_0", 20, 300, "module"),
        Range(1, "nn.Module: Linear_1", 30, 200, "module"),
        Range(1, "aten::mm", 40, 100, "operator"),
        Range(1, "Optimizer.step#Adam.step", 600, 700),
        Range(2, "aten::relu", 0, 1000, "operator"),
    ]
    found = annotated(scopes_of(ranges, tmp_path), [(1, 50), (1, 150), (1, 250), (1, 400), (1, 650), (1, 800), (2, 50)])
    assert found == [
        ("aten::mm", "forward/Block_0/Linear_1", "forward"),
        (None, "forward/Block_0/Linear_1", "forward"),
        (None, "forward/Block_0", "forward"),
        (None, "forward", "forward"),
        (None, "Optimizer.step#Adam.step", "optimizer"),
        (None, None, None),  # the step marker is no scope
        ("aten::relu", None, None),
    ]


def test_backward_has_the_modules_of_the_forward_operator(tmp_path: Path):
    ranges = [
        Range(1, "nn.Module: Block_0", 20, 300, "module"),
        Range(1, "aten::mm", 40, 100, "operator"),
        Range(1, "aten::relu", 110, 120, "operator"),
        Range(2, "aten::mm", 1000, 1100, "operator"),
        Range(2, "aten::relu", 1200, 1300, "operator"),
    ]
    links = [(0, 2, 1005, 1, 40)]
    found = annotated(scopes_of(ranges, tmp_path, links), [(2, 1050), (2, 1250), (1, 50), (1, 115)])
    assert found == [
        ("aten::mm", "Block_0", "backward"),
        ("aten::relu", None, None),  # after the backward operator
        ("aten::mm", "Block_0", "forward"),
        ("aten::relu", "Block_0", "forward"),
    ]


def test_a_forward_operator_without_modules_is_forward(tmp_path: Path):
    ranges = [Range(1, "aten::mm", 40, 100, "operator"), Range(1, "aten::relu", 110, 120, "operator")]
    links = [(0, 2, 1005, 1, 40)]
    assert annotated(scopes_of(ranges, tmp_path, links), [(1, 50), (1, 115)]) == [
        ("aten::mm", None, "forward"),
        ("aten::relu", None, None),
    ]


def test_communication_and_unknown(tmp_path: Path):
    scopes = scopes_of([Range(1, "forward", 0, 100)], tmp_path)
    assert annotated(scopes, [(1, 50), (9, 50)], collective=True) == [
        (None, "forward", "communication"),
        (None, None, "communication"),
    ]
    nothing = scopes_of([], tmp_path)
    rows = pa.table({"launch_thread": [1], "launch_start_ns": [5], "is_collective": [False]})
    assert nothing.annotate(0, rows).schema.names == rows.schema.names


def test_ranges_that_overlap(tmp_path: Path):
    ranges = [Range(1, "data", 0, 10), Range(1, "copy", 5, 15), Range(1, "open", 12, None)]
    found = annotated(scopes_of(ranges, tmp_path), [(1, 3), (1, 7), (1, 11), (1, 13), (1, 900)])
    assert [scope for _, scope, _ in found] == ["data", "data/copy", "copy", "copy/open", "open"]


@pytest.mark.parametrize("kept", ["all", "none"])
@pytest.mark.parametrize("seed", range(8))
def test_random_nests(tmp_path: Path, seed: int, kept: str, monkeypatch: pytest.MonkeyPatch):
    """Whether short ranges stay in memory or not, and whatever launches are looked up together."""
    chance = random.Random(seed)
    monkeypatch.setattr(launch_scopes, "LONG_OPERATION_NS", 200)
    if kept == "none":
        monkeypatch.setattr(sorted_rows, "RUN_BYTES", 0)
    ranges: list[Range] = []

    def nest(thread: int, start_ns: int, end_ns: int, depth: int) -> None:
        at = start_ns
        while depth and end_ns - at > 4:
            first = chance.randint(at, end_ns - 2)
            last = chance.randint(first + 1, end_ns - 1)
            kind = chance.choice(["annotation", "operator", "module"])
            texts = {"annotation": ["layer", "attention", "copy"], "operator": NAMES[::3], "module": NAMES[1:3]}
            ranges.append(Range(thread, chance.choice(texts[kind]), first, last, kind))
            nest(thread, first + 1, last, depth - 1)
            at = last + 1

    for thread in (1, 2):
        nest(thread, 0, 3000, 6)
    launches = [(chance.choice([1, 2, 3]), chance.randint(0, 3000)) for _ in range(400)]
    scopes, cut = scopes_of(ranges, tmp_path), chance.randrange(1, 400)
    launches.sort(key=lambda launch: launch[1])
    found = annotated(scopes, launches[:cut]) + annotated(scopes, launches[cut:])
    for (thread, at), (operator, scope, _) in zip(launches, found, strict=True):
        around = [one for one in ranges if one.thread == thread and one.start_ns <= at < (one.end_ns or at + 1)]
        around.sort(key=lambda one: (one.start_ns, -(one.end_ns or 0)))
        names = [one.text for one in around if one.kind == "operator"]
        parts = [one.text.removeprefix("nn.Module: ") for one in around if one.kind != "operator"]
        assert operator == (names[-1] if names else None)
        assert scope == ("/".join(parts) or None)


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("aten::add, seq = 5, op_id = 12, sizes = [[2, 3], []]", "aten::add"),
        ("aten::add", "aten::add"),
        (
            "autograd::engine::evaluate_function: AddmmBackward0, seq = 5",
            "autograd::engine::evaluate_function: AddmmBackward0",
        ),
        ("AddmmBackward0, op_id = 9", "AddmmBackward0"),
        ("ncclAllReduce", "ncclAllReduce"),
        ("DistributedDataParallel.forward, op_id = 9", None),
        ("FSDP::pre_forward (blocks.5)", None),
        ("layer 3", None),
        ("main->process->phase1->kernel0", None),
    ],
)
def test_operator_names(text: str, operator: str | None):
    assert parse_operator(text) == operator


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("## forward ##", "forward"),
        ("DistributedDataParallel.forward", "forward"),
        ("FSDP::pre_forward (blocks.5)", "forward"),
        ("backward_step", "backward"),
        ("AddmmBackward0", "backward"),
        ("autograd::engine::evaluate_function: MmBackward0", "backward"),
        ("Optimizer.step#SGD.step", "optimizer"),
        ("Optimizer.zero_grad#SGD.zero_grad", "optimizer"),
        ("DeepSpeedEngine.forward", "forward"),
        ("DeepSpeedEngine.step", "optimizer"),
        ("DeepSpeedZeroOptimizer_Stage3.step", "optimizer"),
        ("DeepSpeedZeroOptimizer_Stage3.unscale_and_clip_grads", "optimizer"),
        ("DeepSpeedZeroOptimizer_Stage3.backward", "backward"),
        ("megatron.core.pipeline_parallel.schedules.forward_backward_no_pipelining.forward_step", "forward"),
        ("megatron.core.pipeline_parallel.schedules.forward_backward_no_pipelining.warmup", None),
        ("transformer_engine._Linear.forward.gemm", "forward"),
        ("transformer_engine._LayerNormMLP.backward.fc2_dgrad", "backward"),
        ("megatron.core.optimizer.Adam.step_with_ready_grads", "optimizer"),
        ("DeepSpeedZeroOptimizer_Stage3.reduce_partition_and_remove_grads", "backward"),
        ("DeepSpeedZeroOptimizer_Stage3.__avg_scatter_grads", "backward"),
        ("DeepSpeedEngine.allreduce_gradients", "backward"),
        ("PipelineEngine.train_batch", None),
        ("forward_backward_func", None),
        ("straightforward", None),
        ("aten::add", None),
    ],
)
def test_phases(text: str, phase: str | None):
    assert parse_phase(text) == phase


def test_lines_of_the_python_stack(tmp_path: Path):
    """The innermost frame counts; frames are no part of the scope; the backward pass has its forward operator's."""
    ranges = [
        Range(1, "train.py(3): main", 0, 1000, "module"),
        Range(1, "nn.Module: Linear_1", 20, 300, "module"),
        Range(1, "model.py(12): forward", 30, 200, "module"),
        Range(1, "aten::mm", 40, 100, "operator"),
        Range(2, "aten::mm", 400, 500, "operator"),
    ]
    scopes = scopes_of(ranges, tmp_path, [(0, 2, 410, 1, 50)])
    launches = [(1, 10), (1, 50), (1, 250), (2, 420)]
    assert annotated(scopes, launches, columns=("source_line", "scope")) == [
        ("train.py(3): main", None),
        ("model.py(12): forward", "Linear_1"),
        ("train.py(3): main", "Linear_1"),
        ("model.py(12): forward", "Linear_1"),
    ]


def test_long_ranges_alone(tmp_path: Path):
    scopes = scopes_of([Range(1, "forward", 0, 10**6)], tmp_path)
    assert annotated(scopes, [(1, 50), (2, 50)]) == [(None, "forward", "forward"), (None, None, None)]


def test_barriers_of_hosts_are_kept_however_short(tmp_path: Path):
    """Not those that launch: their GPUs meet. What overlaps is one; a range of the user's is another one."""
    ranges = [
        Range(7, "c10d::barrier", 1_000, 41_000, "operator"),
        Range(7, "gloo:barrier", 5_000, 45_000, "operator"),
        Range(7, "aten::mm", 50_000, 60_000, "operator"),  # short, and no barrier
        Range(7, "dist.barrier", 70_000, 71_000),
        Range(7, "c10d::barrier", 100_000, 200_000, "operator"),  # launches at 150,000
        Range(7, "aten::relu", 300_000, 400_000, "operator"),
        Range(8, "c10d::barrier", 300_000, 400_000, "operator"),  # a thread that launches nothing
    ]
    scopes = scopes_of(ranges, tmp_path)
    annotated(scopes, [(7, 150_000)])
    rows = [tuple(row.values()) for row in scopes.operations(0).sort_by("start_ns").to_pylist()]
    assert rows == [
        ("barrier", "c10d::barrier", 7, 1_000, 45_000),
        ("barrier", "dist.barrier", 7, 70_000, 71_000),
        ("operation", "aten::relu", 7, 300_000, 400_000),
    ]
