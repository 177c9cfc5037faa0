"""One step's answer as a flat row, the same for SQL and for `jitter steps`; and which step is the costliest."""

import pytest

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.model import ClassShares, Divergence, Loss, StepAnswer, WhatIf
from jitter.core.step_key import StepKey
from jitter.query.diagnosis_rows import STEPS_SCHEMA, step_row


def answer(number, loss_ns, *, told=True):
    return StepAnswer(
        StepKey(1, number),
        1000,
        loss_ns,
        None if loss_ns is None else loss_ns / 1000,
        2,
        5,
        Divergence(17, "void kernel(int)", 0) if told else None,
        6 if told else None,
        "cpu_launch" if told else "none",
        ClassShares(10, 20, 0, 7, 1, 0, 3, -1) if told else None,
    )


def diagnosis(*steps):
    return Diagnosis(Loss(None, None), steps, (), WhatIf(None, None), "")


@pytest.mark.parametrize(
    ("losses", "costliest"),
    [
        ((None, 5, 7, 7), 2),
        ((None, -5, -2), 2),  # known, if less than nothing
        ((None, 0), 1),
        ((None, None), 0),
        ((3,), 0),
    ],
)
def test_the_costliest_step(losses, costliest):
    assert diagnosis(*(answer(n, ns) for n, ns in enumerate(losses))).costliest.key.step == costliest


def test_a_row_is_the_answer_flat():
    whole, bare = step_row(answer(3, 40)), step_row(answer(4, None, told=False))
    assert list(whole) == STEPS_SCHEMA.names == list(bare)
    assert tuple(whole.values()) == (
        1,
        3,
        "train",
        1000,
        40,
        0.04,
        2,
        5,
        17,
        "void kernel(int)",
        10,
        20,
        0,
        7,
        1,
        0,
        3,
        -1,
        "cpu_launch",
    )
    assert tuple(bare.values()) == (1, 4, "train", 1000, None, None, 2, 5, *[None] * 10, "none")
