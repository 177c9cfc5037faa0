"""How report and ingest grow with the ranks, with the steps and with the kernels of a step, each alone.

python -m tests.bench.report_growth [--quick] [--rounds N]

What the least job that runs compiled takes, which is start-up, is subtracted from all.
"""

import argparse
import tempfile
import time
from pathlib import Path

from tests.bench.measure import exponent
from tests.bench.shapes import LEAST, Job, Row, compile_loops, measure, simulate

_BASE = Job("base", 8, 10, 4_000, 0)
_FACTORS = (1, 2, 4, 8)


def grown(size: Job, of: str) -> list[Job]:
    """Jobs that grow in one of their sizes."""
    return [size._replace(**{of: getattr(size, of) * factor}) for factor in _FACTORS]


def cost(job: Job, rounds: int) -> Row:
    """The times of the job's ingest and of its report."""
    with tempfile.TemporaryDirectory(prefix="jitter-bench-") as folder:
        work = Path(folder)
        simulate(job, work / "traces", [])
        row = measure(job.name, work / "traces", work, rounds)
    print(f"{job.ranks} × {job.steps} × {job.kernels}: {row}", flush=True)
    return row


def main() -> None:
    """Print the exponents."""
    options = argparse.ArgumentParser()
    options.add_argument("--quick", action="store_true", help="a quarter of the kernels, one round")
    options.add_argument("--rounds", type=int, default=3, help="of alternating runs; medians are used")
    chosen = options.parse_args()
    base = _BASE._replace(kernels=_BASE.kernels // 4) if chosen.quick else _BASE
    rounds = 1 if chosen.quick else chosen.rounds
    started = time.perf_counter()
    compile_loops()
    least = cost(LEAST, rounds)
    for of in ("ranks", "steps", "kernels"):
        jobs = grown(base, of)
        rows = [cost(job, rounds) for job in jobs]
        sizes = [getattr(job, of) for job in jobs]
        for verb in ("report", "ingest"):
            for unit in ("seconds", "cpu_seconds"):
                start = getattr(getattr(least, verb), unit)
                more = [max(getattr(getattr(row, verb), unit) - start, 1e-3) for row in rows]
                print(f"with {of}: {verb}: {unit} grow to the power of {exponent(sizes, more):.2f}")
    print(f"({time.perf_counter() - started:.0f} s)")


if __name__ == "__main__":
    main()
