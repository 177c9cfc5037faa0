"""How report and ingest grow with the ranks, with the steps and with the kernels of a step, each alone.

python -m tests.bench.report_growth [--quick] [--rounds N]

Each exponent is that of the increments from one size to the next, which leave start-up out.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

from tests.bench.measure import exponent
from tests.bench.shapes import Job, Row, compile_loops, measure, simulate

_BASE = Job("base", 8, 20, 8_000, 0)
_FACTORS = (1, 2, 4, 8)
_QUICK_BASE = _BASE._replace(steps=10, kernels=2_000)
_QUICK_FACTORS = (1, 4, 16)


def grown(base: Job, of: str, factors: Sequence[int]) -> list[Job]:
    """Jobs that grow in one of their sizes."""
    return [base._replace(**{of: getattr(base, of) * factor}) for factor in factors]


@cache
def cost(job: Job, rounds: int) -> Row:
    """The times of the job's ingest and of its report."""
    with tempfile.TemporaryDirectory(prefix="jitter-bench-") as folder:
        work = Path(folder)
        simulate(job, work / "traces", [])
        row = measure(job.name, work / "traces", work, rounds)
    print(f"{job.ranks} × {job.steps} × {job.kernels}: {row}", flush=True)
    return row


def exponent_of_increments(factors: Sequence[int], costs: Sequence[float]) -> float:
    """The power p of costs `start + c · size ** p` at sizes in geometric progression: their increments have no start.

    >>> round(exponent_of_increments((1, 2, 4), [9 + size**2 for size in (1, 2, 4)]), 2)
    2.0
    """
    return exponent(factors[1:], [max(after - before, 1e-3) for before, after in pairwise(costs)])


def main() -> None:
    """Print the exponents."""
    options = argparse.ArgumentParser()
    options.add_argument("--quick", action="store_true", help="one round, with an eighth of the kernels at first")
    options.add_argument("--rounds", type=int, default=3, help="of alternating runs; medians are used")
    chosen = options.parse_args()
    base, factors, rounds = (_QUICK_BASE, _QUICK_FACTORS, 1) if chosen.quick else (_BASE, _FACTORS, chosen.rounds)
    started = time.perf_counter()
    compile_loops()
    for of in ("ranks", "steps", "kernels"):
        rows = [cost(job, rounds) for job in grown(base, of, factors)]
        for verb in ("report", "ingest"):
            for unit in ("seconds", "cpu_seconds"):
                costs = [getattr(getattr(row, verb), unit) for row in rows]
                print(f"with {of}: {verb}: {unit} grow to the power of {exponent_of_increments(factors, costs):.2f}")
    print(f"({time.perf_counter() - started:.0f} s)")


if __name__ == "__main__":
    main()
