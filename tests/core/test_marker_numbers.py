"""Numbers in the texts of step markers."""

import time

import pytest

from jitter.core.names.marker_numbers import parse_marker_numbers


@pytest.mark.parametrize(
    ("text", "step", "epoch", "rank", "numbers"),
    [
        (
            "epoch1_step2003-rank0-640_8-512_8",
            2003,
            1,
            0,
            [("number_1", 640), ("number_2", 8), ("number_3", 512), ("number_4", 8)],
        ),
        ("ProfilerStep#12", 12, None, 3, []),
        ("step 12 batch=640 seq_len: 2048", 12, None, 3, [("batch", 640), ("seq_len", 2048)]),
        ("train_step 12, rank 3, loss 0.5", 12, None, 3, [("loss", 0.5)]),
        ("batch 12", 12, None, None, []),
        ("", 1, None, None, []),
    ],
)
def test_numbers(text: str, step: int, epoch: int | None, rank: int | None, numbers: list[tuple[str, float]]):
    assert [tuple(one) for one in parse_marker_numbers(text, step, epoch, rank)] == numbers


@pytest.mark.parametrize("word", ["a", "a_", "step "])
def test_time_is_linear_in_the_text(word: str):
    start = time.process_time()
    assert parse_marker_numbers(word * (60_000 // len(word)), 1, None, None) == ()
    assert time.process_time() - start < 5
