"""Modules and frames are found in the text as decoding all Python functions would find them; operators by name."""

from pathlib import Path

import pytest

from tests.support.kineto_traces import call, kernel, read, step, text, write


def python(name: str, ts: float, dur: float, **more: object) -> dict[str, object]:
    place = {"ph": "X", "cat": "python_function", "name": name, "pid": 7, "tid": 9, "ts": ts, "dur": dur}
    return {**place, "args": {"Python id": 1, "Python module id": 0}, **more}


def operator(name: str, ts: float, dur: float) -> dict[str, object]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": 9, "ts": ts, "dur": dur, "args": {}}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("piece", [64, 300, 10**6])
def test_modules(tmp_path: Path, indent: int | None, piece: int):
    events = [
        step(),
        python("train.py(3): main", 1000.0, 50.0),
        python("nn.Module: Block_0", 1000.125, 40.5),
        operator('aten::say "nn.Module: No_1"', 1001.0, 30.0),
        python("nn.Module: Linear_1", 1002, 30),
        python("torch/nn/modules/module.py(1501): _call_impl", 1003, 20),
        python("/opt/env/lib/python3.12/site-packages/torch/_ops.py(1158): __call__", 1003, 20),
        python("threading.py(1002): _bootstrap", 1003, 20),
        python("concurrent/futures/thread.py(58): run", 1003, 20),
        python("<built-in function linear>", 1003, 20),
        python("/home/user/model/layers.py(120): forward", 1004, 10),
        {**python("x", 1, 2), "args": {"name": "nn.Module: Argument_2", "pid": 7, "tid": 9, "ts": 1, "dur": 2}},
        call(),
        kernel(),
    ]
    recording, rows = read(write(tmp_path / "t.json", text(events, indent=indent)), piece)
    found = [
        (recording.names[row["name"]], row["start_ns"], row["end_ns"], row["thread"])
        for row in rows["operators"]
        if row["is_module"]
    ]
    assert sorted(found) == [
        ("/home/user/model/layers.py(120): forward", 1_004_000, 1_014_000, 9),
        ("nn.Module: Block_0", 1_000_125, 1_040_625, 9),
        ("nn.Module: Linear_1", 1_002_000, 1_032_000, 9),
        ("train.py(3): main", 1_000_000, 1_050_000, 9),
    ]
    assert recording.problems == []


def test_operators_that_launch_nothing(tmp_path: Path):
    """They are left out, unless they are long enough to explain a gap between launches."""
    events = [
        operator("aten::view", 1000, 5),
        operator("aten::empty", 1010, 80),
        operator("aten::mm", 1100, 5),
        operator("aten::tiny", 1110, 0.5),
        call(),
        kernel(),
    ]
    recording, rows = read(write(tmp_path / "t.json", text(events)))
    assert sorted(recording.names[row["name"]] for row in rows["operators"]) == ["aten::empty", "aten::mm"]
