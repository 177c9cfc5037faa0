"""Layers within steps: a short repetition inside a longer cycle is no step."""

from pathlib import Path

import numpy as np
import pytest

import jitter
from jitter.ingestion.transform.steps.find_steps import Launches, find_cycles, find_repetition, is_optimizer
from tests.support import kineto_traces

FORWARD = [f"forward_{n}" for n in range(14)]
BACKWARD = [f"backward_{n}" for n in range(20)]
OPTIMIZER = ["multi_tensor_apply_kernel<adam>"] * 6


def step(number: int, *, odd: bool, layers: int = 39, optimizer: bool = True) -> list[str]:
    """One training step; `odd`: it has a kernel that no other step has."""
    odd_kernel = [f"odd_{number}"] if odd else []
    return ["embed", "norm", *FORWARD * layers, *odd_kernel, *BACKWARD * layers, *(OPTIMIZER if optimizer else [])]


def cycles(sequence: list[str], collective_positions: list[int] | None = None):
    """The repetition and the cycles around it; launches are 10 ns apart."""
    names = sorted(set(sequence))
    ids = np.array([names.index(name) for name in sequence], np.int32)
    launches = Launches(ids, np.arange(len(sequence), dtype=np.int64) * 10, names)
    repetition = find_repetition(launches)
    assert repetition is not None
    collectives = np.array([10 * position + 5 for position in collective_positions or []], np.int64)
    return repetition, find_cycles(repetition, launches, collectives)


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_steps_with_odd_kernels(steps: int):
    sequence = [name for number in range(steps) for name in step(number, odd=True)]
    repetition, found = cycles(sequence)
    assert repetition.period == 20  # the layers, which recur exactly
    assert found is not None
    assert found[0] is not None
    size = len(step(0, odd=True))
    assert found[0].starts_ns == tuple(10 * size * number for number in range(steps))
    assert found[0].end_ns == 10 * (size * steps - 1)
    assert found[0].names == tuple(step(0, odd=True))


def test_a_capture_that_begins_and_ends_within_a_step():
    sequence = [name for number in range(5) for name in step(number, odd=True)]
    size = len(step(0, odd=True))
    _, found = cycles(sequence[size // 2 : -size // 3])
    assert found is not None
    assert found[0] is not None
    first = size - size // 2
    assert found[0].starts_ns == tuple(10 * (first + size * number) for number in range(3))


def test_one_step_is_not_39():
    for odd in (False, True):
        repetition, found = cycles(step(0, odd=odd))
        assert len(repetition.starts_ns) == 39
        assert found is not None
        assert found[0] is None


def test_exact_steps_stay():
    sequence = [name for number in range(4) for name in step(number, odd=False)]
    repetition, found = cycles(sequence)
    assert (repetition.period, found) == (len(step(0, odd=False)), None)


def test_micro_batches_before_an_optimizer_are_no_steps():
    micro = step(0, odd=False, layers=3, optimizer=False)
    sequence = (
        (micro * 4 + OPTIMIZER + ["odd_1"] + micro * 4 + OPTIMIZER + ["odd_2", "odd_3"]) * 1 + micro * 4 + OPTIMIZER
    )
    repetition, found = cycles(sequence)
    assert repetition.period == len(micro)
    assert found is not None
    assert found[0] is not None
    assert len(found[0].starts_ns) == 3


def test_collectives_that_recur_regularly_end_a_cycle():
    one = step(0, odd=True, optimizer=False)
    sequence = [name for number in range(4) for name in step(number, odd=True, optimizer=False)]
    at = [len(one) * number + len(one) - 1 for number in range(4)]
    _, found = cycles(sequence, at)
    assert found is not None
    assert found[0] is not None
    assert found[1] == "the collectives"
    assert found[0].starts_ns == tuple(10 * len(one) * number for number in range(4))
    # one barrier at the end, or collectives at irregular distances, say nothing
    assert cycles(sequence, at[-1:])[1] is None
    assert cycles(sequence, [at[0], at[0] + 45, at[3]])[1] is None


def test_an_optimizer_that_only_runs_before_the_steps_says_nothing():
    loop = [f"k{n}" for n in range(9)]
    assert cycles(OPTIMIZER + loop * 6)[1] is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<4>>", True),
        ("FusedAdamMathFunctor", True),
        ("void adam_kernel<float>(float*)", True),
        ("LAMB_step", True),
        ("void cutlass::Kernel<sm80>", False),
        ("ampere_sgemm_128x64_nn", False),
        ("scalar_lambda_kernel", False),
        ("radam", False),
    ],
)
def test_names_of_optimizer_kernels(name: str, expected: bool):
    assert is_optimizer(name) is expected


def trace(path: Path, sequence: list[str]) -> None:
    events = []
    for number, name in enumerate(sequence):
        at = 100.0 + 10 * number
        events.append(kineto_traces.call(ts=at, dur=2.0, correlation=number + 1))
        events.append(kineto_traces.kernel(name, ts=at + 4, dur=5.0, correlation=number + 1))
    kineto_traces.write(path, events)


def test_ingest_says_how_steps_were_guessed(tmp_path: Path):
    (tmp_path / "t").mkdir()
    trace(tmp_path / "t" / "rank0.json", [name for n in range(3) for name in step(n, odd=True, layers=5)])
    (record,) = jitter.ingest(tmp_path / "t", tmp_path / "lake").added
    size = len(step(0, odd=True, layers=5))
    assert [one.kernels for one in record.steps] == [size, size, size]
    assert record.has_guessed_steps
    (problem,) = [problem for problem in record.problems if "step markers" in problem]
    assert problem == (
        f"no step markers: cut into 3 steps after the optimizer's kernels, about every {size} kernels of the main "
        "stream; the repetition of 20 kernels (15 times) is taken for layers"
    )


def test_one_kernel_is_no_step(tmp_path: Path):
    (tmp_path / "t").mkdir()
    trace(tmp_path / "t" / "rank0.json", ["gemm"] * 50)
    (record,) = jitter.ingest(tmp_path / "t", tmp_path / "lake").added
    assert (record.steps_from, [one.kernels for one in record.steps]) == ("whole capture", [50])
    assert any("only a single kernel repeats" in problem for problem in record.problems)
