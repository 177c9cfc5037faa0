"""Microseconds to nanoseconds, against decimal arithmetic."""

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from jitter.readers.kineto.columns import join_values, parse_microseconds
from tests.support.kineto_traces import call, kernel, read, step, text, write

PLAIN = st.builds(
    lambda whole, digits: f"{whole}.{digits}" if digits else str(whole),
    st.integers(-(10**9), 4 * 10**15),
    st.text("0123456789", max_size=3),
)
ANY = st.one_of(
    PLAIN,
    st.decimals(allow_nan=True).map(str),
    st.floats().map(repr),
    st.integers().map(str),
    st.sampled_from(
        ["null", '""', "true", "1e400", "-1E-400", "9223372036854775807", "9" * 60, "-", "1.", ".5", "1-2"]
    ),
)


def oracle(word: str) -> int | None:
    try:
        value = Decimal(word)
    except ArithmeticError:
        return None
    if not value.is_finite() or abs(value) > Decimal(2**62) / 1000:
        return None
    return int((value * 1000).to_integral_value())


@pytest.mark.parametrize("words", [PLAIN, ANY])
def test_exact_as_decimals(words) -> None:
    @given(st.lists(st.lists(words, min_size=1), max_size=4))
    def check(parts: list[list[str]]) -> None:
        values, valid = parse_microseconds([",".join(part).encode() for part in parts])
        flat = [oracle(word) for part in parts for word in part]
        assert valid.tolist() == [value is not None for value in flat]
        assert values.tolist() == [value or 0 for value in flat]
        assert values.dtype == np.int64

    check()


def test_epoch_microseconds_do_not_fit_a_float() -> None:
    words = [f"1712195495{k:06d}.{k % 1000:03d}" for k in range(20_000)]
    values, _ = parse_microseconds([",".join(words).encode()])
    assert values.tolist() == [int(word.replace(".", "")) for word in words]
    assert sum(round(float(word) * 1000) != int(word.replace(".", "")) for word in words) > 10_000


def test_values_with_commas_of_their_own_keep_the_others_in_place() -> None:
    assert join_values([Raw(b"1"), Raw(b'"a,b"'), Raw(b"[1,2]"), Raw(b"4")]) == b"1,null,null,4"
    assert join_values([]) == b""


@pytest.mark.parametrize("odd", [False, 0.0, "0"])
def test_ids_that_equal_integers_of_other_types(tmp_path: Path, odd: object) -> None:
    """In Python 0 == False, so equal values may be of several types."""
    events = [
        step(pid=0),
        call(pid=0),
        kernel(),
        call(pid=odd, correlation=2),
        kernel(ts=200.0, correlation=2, pid=odd),
    ]
    _, rows = read(write(tmp_path / "t.json", events))
    assert [row["device"] for row in rows["activities"]] == [0, None if odd is False else 0]


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


def test_a_name_that_begins_often_like_a_built_in_function_is_read_at_once(tmp_path: Path):
    """The time grows with the length of the name, not with its square, which would be hours."""
    name = "<built-in " * 100_000
    recording, _ = read(write(tmp_path / "t.json", text([step(), python(name, 1003, 70), call(), kernel()])), 10**6)
    assert name in recording.names
