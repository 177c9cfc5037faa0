"""Compiled loops: machine code is shared between calls with constants, and kept apart by how a function is called."""

from pathlib import Path

import numba
import numpy as np
import pytest

from jitter.core.numeric.arrays import Floats
from jitter.core.numeric.compilation import CompiledFunction, compiled
from tests.support.loops import run_loops


@compiled
def add_at(values: Floats, at: int, more: float) -> float:
    """Add to one value and return it."""
    values[at] += more
    return float(values[at])


@compiled
def add_at_both_ends(values: Floats) -> float:
    """Add to the first value and, before the others, to the last."""
    for at in range(len(values)):
        add_at(values, at, 0.0)
    return add_at(values, 0, 1.0) + add_at(values, -1, 2.0)


_LIMIT = 1.0


@compiled
def add_limit(value: float) -> float:
    """Add a global number."""
    return value + _LIMIT


@pytest.fixture(autouse=True)
def nothing_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without machine code, in memory and on disk."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    for function in (add_at, add_at_both_ends):
        monkeypatch.delitem(function.__dict__, "fast", raising=False)
        monkeypatch.delitem(function.__dict__, "inner", raising=False)


@pytest.mark.usefixtures("each_way")
def test_compiled_and_uncompiled_do_the_same() -> None:
    values = np.array([1.0, 2.0, 3.0])
    assert add_at_both_ends(values) == 7
    assert values.tolist() == [2, 2, 5]


def test_a_callee_is_compiled_once_whatever_constants_it_is_given() -> None:
    with run_loops("compiled"):
        add_at_both_ends(np.zeros(3))
    assert len(add_at.inner.signatures) == 1  # type: ignore[attr-defined]


def test_machine_code_on_disk_of_a_callee_is_not_taken_for_calls_from_python() -> None:
    with run_loops("compiled"):
        add_at_both_ends(np.zeros(2))
        again = CompiledFunction(add_at.function)  # as another process has it: with nothing but what is on disk
        assert again(np.zeros(2), 1, 3.0) == 3


def test_machine_code_of_another_global_number_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    before = add_limit.digest()
    monkeypatch.setitem(globals(), "_LIMIT", 2.0)
    assert add_limit.digest() != before
