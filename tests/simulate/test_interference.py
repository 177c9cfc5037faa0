"""Compute kernels take longer while a collective that was launched before them runs on their GPU."""

import pytest

from jitter.core.errors import UsageError
from jitter.simulate import Job, RankRecording, simulate

FACTOR = 0.25
SIZE = {"ranks": 4, "steps": 3, "kernels": 60, "seed": 5}


def kernels(recording: RankRecording, kind: str) -> list[tuple[int, int, int]]:
    """Position, start and end of each kernel of a kind."""
    times = zip(recording.ops(), recording.start_ns.tolist(), recording.end_ns.tolist(), strict=True)
    return [(at, start, end) for at, (op, start, end) in enumerate(times) if op.kind == kind]


def time_beside(start: int, end: int, collectives: list[tuple[int, int, int]]) -> int:
    """How much of a time lies in any of these, which may overlap."""
    found, now = 0, start
    for _, begin, over in sorted(collectives, key=lambda one: one[1]):
        more = min(over, end) - max(begin, now)
        if more > 0:
            found, now = found + more, min(over, end)
    return found


@pytest.mark.parametrize("options", [{"buckets": 5, "collective_streams": (33, 34)}, {"shape": "sharded"}])
def test_kernels_beside_collectives_take_longer(options: dict[str, object]):
    alone = simulate(Job(**SIZE, **options)).ranks()  # type: ignore[arg-type]
    slowed = simulate(Job(**SIZE, **options, interference=FACTOR)).ranks()  # type: ignore[arg-type]
    beside = 0
    for one, other in zip(alone, slowed, strict=True):
        collectives = kernels(other, "collective")
        for (at, start, end), (_, begin, over) in zip(kernels(one, "compute"), kernels(other, "compute"), strict=True):
            lost = time_beside(begin, over, [one for one in collectives if one[0] < at]) * FACTOR / (1 + FACTOR)
            assert over - begin == pytest.approx(end - start + lost, abs=1)
            beside += lost > 0
    assert beside > 10


def test_it_is_not_below_zero():
    with pytest.raises(UsageError, match="interference"):
        Job(interference=-0.1)
