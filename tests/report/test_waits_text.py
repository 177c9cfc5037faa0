"""The sentence on waiting in collectives: what was recorded is not denied, and many short waits are added up."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from jitter.report.text.step_text import _waits

MS = 1_000_000


def view(collectives: int, recorded: int, waited_ns: float = 0.0) -> Any:
    met = SimpleNamespace(kernel_index=np.arange(collectives), waited_ns=np.zeros(collectives))
    return SimpleNamespace(collectives=met, recorded_collectives=recorded, waited_ns=waited_ns, ranks=2, waits=())


def test_a_collective_without_an_index_is_not_denied():
    assert _waits(view(0, 1), 13 * MS) == "1 collective without a kernel index; waiting there is unknown."
    assert _waits(view(0, 0), 13 * MS) == "This step has no collectives."


def test_short_waits_are_added_up():
    said = _waits(view(84, 84, 1.44 * MS), 13 * MS)
    assert said == (
        "84 collectives; no rank waited long in any of them; all waits of one rank together: up to 1.44 ms (11.1% of "
        "the step)."
    )
    assert _waits(view(3, 3), 13 * MS) == "3 collectives; no rank waited long in any of them."
